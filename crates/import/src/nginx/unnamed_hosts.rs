//! Hosts that `hosts` of a site cannot name, and requests without a host: their routes stand in the default site.

use super::address_kinds::merges_slashes;
use super::server::{AddressReach, HostExpression, NginxServer};
use super::translation::Translation;
use crate::conditions::{RouteCondition, close_route};
use crate::draft::{TomlItem, TomlSection};
use crate::findings::EntryIndex;

impl<'d> Translation<'d> {
    /// Returns the routes of servers whose names cannot be written as `hosts`. They come first in the default
    /// site, as nginx tries regular expressions after all other names.
    /// `address` is the one that they share, if the site is for one address.
    pub(crate) fn expression_routes(
        &self,
        servers: &[&NginxServer<'d>],
        default: Option<usize>,
        address: Option<&str>,
    ) -> Vec<TomlSection> {
        let reach = |at: usize| {
            let known = address.and_then(|text| servers[at].address(text));
            known.filter(|address| address.reach != AddressReach::All).map(|address| address.entry)
        };
        let mut all: Vec<(usize, usize, &HostExpression)> = Vec::new();
        for (at, server) in servers.iter().enumerate() {
            all.extend(server.expressions.iter().map(|one| (one.rank, at, one)));
        }
        all.sort_by_key(|(rank, ..)| *rank);
        let mut routes = Vec::new();
        routes.extend(self.close_hostless_requests(servers, default));
        let mut of_default: Vec<RouteCondition> = Vec::new();
        for (_, at, one) in all {
            let condition = RouteCondition::on_value("header", "Host", one.pattern.clone());
            if Some(at) == default {
                of_default.push(condition);
                continue;
            }
            let condition = if of_default.is_empty() { condition } else { condition.excluding(&of_default) };
            let lost = match reach(at) {
                None if one.matches_too_much => servers[at].scope.innermost_last("server_name"),
                None if servers[at].rejects_handshakes() => {
                    servers[at].scope.effective("ssl_reject_handshake")
                }
                _ => None,
            };
            let speaks_tls = address.and_then(|text| servers[at].address(text)).map(|address| address.tls);
            let speaks_tls = speaks_tls.unwrap_or_else(|| servers[at].has_tls_address());
            let merges = merges_slashes(servers[at]);
            // With TLS, the server itself decides about slashes in nginx, and the default site here.
            let merges_otherwise =
                speaks_tls && default.is_none_or(|at| merges_slashes(servers[at])) != merges;
            let lost = reach(at).or(lost.map(|one| one.entry)).or_else(|| {
                let default = default.map(|at| servers[at]);
                let asks = speaks_tls.then(|| self.other_client_certificates(servers[at], default)).flatten();
                asks.or_else(|| {
                    (merges_otherwise && !merges).then(|| self.report_kept_slashes(servers[at]))?
                })
            });
            let mut own = if lost.is_some() {
                Vec::new()
            } else {
                self.server_routes(&servers[at].scope, servers[at].block.entry)
            };
            if lost.is_none() && merges_otherwise {
                let mut refusal = TomlSection::default();
                refusal.set_text("path", "~ //");
                refusal.comment("Paths whose slashes nginx merges, as this server is not the default one.");
                refusal.set("respond", TomlItem::Number(403));
                own.insert(0, refusal);
            }
            // Requests without a route must not reach the default server.
            let mut last = TomlSection::default();
            match lost {
                Some(entry) => {
                    close_route(&mut last, self.ledger.manual_comment(entry).unwrap_or_default());
                }
                None => last.set("respond", TomlItem::Number(404)),
            }
            own.extend(self.finish_routes(vec![last], &servers[at].scope));
            own.iter_mut().for_each(|route| condition.write(route));
            routes.extend(own);
        }
        routes
    }

    /// Returns the directive by which a server keeps slashes that the default site merges, and reports it.
    fn report_kept_slashes(&self, server: &NginxServer<'d>) -> Option<EntryIndex> {
        let kept = server.scope.effective("merge_slashes")?;
        self.ledger.mark_impossible(
            kept.entry,
            "the default site, in which its routes stand, merges slashes: its hosts are refused (403)",
        );
        Some(kept.entry)
    }

    /// Returns the directive by which a server asks clients for certificates that the default site does not ask for, and
    /// reports it: its routes stand in the default site.
    fn other_client_certificates(
        &self,
        server: &NginxServer<'d>,
        default: Option<&NginxServer<'d>>,
    ) -> Option<EntryIndex> {
        let asks = server.scope.effective("ssl_verify_client").filter(|_| server.asks_for_certificates())?;
        let shown = |server: &NginxServer<'d>| {
            let names = ["ssl_verify_client", "ssl_client_certificate", "ssl_trusted_certificate", "ssl_crl"];
            names.map(|name| server.scope.effective(name).map(|one| one.args.clone()))
        };
        if default.is_some_and(|default| shown(default) == shown(server)) {
            return None;
        }
        self.ledger.mark_impossible(
            asks.entry,
            "the default site, in which its routes stand, asks for other certificates: its hosts are refused (403)",
        );
        Some(asks.entry)
    }

    /// Returns the route that refuses requests without `Host`, if they are not for the default server.
    fn close_hostless_requests(
        &self,
        servers: &[&NginxServer<'d>],
        default: Option<usize>,
    ) -> Option<TomlSection> {
        let at = servers.iter().position(|server| server.has_empty_name)?;
        if Some(at) == default {
            return None;
        }
        let names = servers[at].scope.innermost_last("server_name").unwrap_or(servers[at].block);
        let reason =
            "requests without Host, by HTTP/1.0, are for this server in nginx: they are refused (403)";
        self.ledger.mark_different(names.entry, reason);
        let mut route = TomlSection::default();
        RouteCondition::none_of(&[RouteCondition::on_value("header", "Host", "~ .".to_owned())])
            .write(&mut route);
        route.comment("Requests without Host, which are for another server in nginx.");
        route.set("respond", TomlItem::Number(403));
        Some(route)
    }
}
