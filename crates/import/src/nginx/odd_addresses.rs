//! Fields with addresses of clients that nginx parses in its own way.

use super::client_addresses::ClientAddresses;
use super::scope::Scope;
use super::translation::Translation;
use super::tree::{NginxDirective, visit};
use crate::conditions::RouteCondition;
use crate::draft::{TomlItem, TomlSection};

/// Values of X-Forwarded-For in which nginx finds another address than Komainu: other separators than a comma and one space,
/// elements that are empty, octets with a zero in front or none at all, brackets, the port 0, and forms of IPv6 for IPv4.
const ODD_ADDRESSES: &str = concat!(
    r"~ [^ -~]|[\[\]]|^$|^[ ,]|[ ,]$|, ?,|[^,] ",
    r"|(^|[ ,])(0|\.|:[^:]|::([^1]|$|1[^,]))|\.0[0-9]|\.(\.|$|[ ,:])|:[^ ,]*\.|\.[0-9]+:0|:($|[ ,])",
);
const ODD_ADDRESSES_REMARK: &str = "nginx parses X-Forwarded-For in its own way: where addresses of clients decide, requests are refused (403) if it is \
    not a list of plain addresses with a comma, or a comma and a space, between them";

impl<'d> Translation<'d> {
    /// Returns the route that refuses requests whose X-Forwarded-For nginx may read in another way, if addresses of clients
    /// decide in a server.
    pub(crate) fn odd_addresses_route(&self, server: &Scope<'d>) -> Option<TomlSection> {
        let ClientAddresses::Field { .. } = self.client_addresses else { return None };
        let decides = |one: &NginxDirective| match one.name.as_str() {
            "allow" | "deny" => one.first_arg() != "all",
            "geo" => true,
            "map" | "if" | "set" | "limit_req_zone" | "limit_conn_zone" => {
                one.args.iter().any(|arg| arg.contains("remote_addr"))
            }
            _ => false,
        };
        let mut found = server.levels.iter().copied().flatten().any(decides);
        visit(server.innermost(), &mut |one| found |= decides(one));
        if !found {
            return None;
        }
        for one in server.effective_all("set_real_ip_from") {
            self.ledger.mark_different(one.entry, ODD_ADDRESSES_REMARK);
        }
        let mut section = TomlSection::default();
        section.comment("nginx parses such a field in another way.");
        RouteCondition::on_value("header", "X-Forwarded-For", ODD_ADDRESSES).write(&mut section);
        section.set("respond", TomlItem::Number(403));
        Some(section)
    }
}
