//! Client addresses: `trusted_proxies`, and the listener wrapper `proxy_protocol`.

use std::net::IpAddr;

use super::reader::{CaddyReader, ClientAddress};
use crate::data::DataNode;
use crate::draft::{ConfigDraft, SiteDraft, TomlItem, TomlSection};

/// Whether all texts are addresses or networks, and there is at least one.
pub(super) fn are_networks(texts: &[String]) -> bool {
    let is_network =
        |text: &String| text.split('/').next().is_some_and(|address| address.parse::<IpAddr>().is_ok());
    !texts.is_empty() && texts.iter().all(is_network)
}

/// Returns the networks of the trusted proxies of a server; `None` if they have no equivalent.
fn networks(server: &DataNode) -> Option<Vec<String>> {
    let trusted = server.get("trusted_proxies")?;
    let ranges = trusted.get("ranges").map_or_else(Vec::new, DataNode::texts);
    let headers = server.get("client_ip_headers").map_or_else(Vec::new, DataNode::texts);
    let is_forwarded = headers.is_empty()
        || matches!(headers.as_slice(), [one] if one.eq_ignore_ascii_case("x-forwarded-for"));
    let is_static = trusted.get("source").and_then(DataNode::text) == Some("static");
    (is_static && is_forwarded && are_networks(&ranges)).then_some(ranges)
}

impl CaddyReader<'_> {
    /// Writes `trusted_proxies` if all servers have the same, because it applies to all sites. Returns the
    /// meaning of client addresses for each server.
    pub(super) fn write_trusted_proxies(
        &self,
        servers: &[(String, DataNode)],
        draft: &mut ConfigDraft,
    ) -> Vec<ClientAddress> {
        let all: Vec<Option<Vec<String>>> = servers.iter().map(|(_, server)| networks(server)).collect();
        let shared =
            all.first().cloned().flatten().filter(|first| all.iter().all(|one| one.as_ref() == Some(first)));
        if let Some(networks) = &shared {
            draft.top.set("trusted_proxies", TomlItem::List(networks.iter().map(TomlItem::text).collect()));
        }
        let of_server = |(_, server): &(String, DataNode)| {
            let strict = server.get("trusted_proxies_strict").and_then(DataNode::number) == Some(1);
            let keys = ["trusted_proxies", "trusted_proxies_strict", "client_ip_headers"];
            let entries: Vec<&DataNode> = keys.iter().filter_map(|key| server.get(key)).collect();
            match (server.get("trusted_proxies"), &shared) {
                (None, _) => return ClientAddress::Connection,
                (Some(_), None) => {
                    let reason = "`trusted_proxies` takes networks, for all sites, and reads X-Forwarded-For: routes that ask for the \
                        client's address are closed (403)";
                    entries.iter().for_each(|one| one.mark_impossible(self.ledger, reason));
                    return ClientAddress::Unknown;
                }
                (Some(_), Some(_)) if strict => {
                    entries.iter().for_each(|one| one.mark_translated(self.ledger))
                }
                (Some(_), Some(_)) => {
                    let reason = "Caddy takes the first address of X-Forwarded-For, which any client can send, and `trusted_proxies` \
                        the last one that no trusted proxy has, as with `trusted_proxies_strict`: routes that ask for the client's \
                        address are closed (403)";
                    entries.iter().for_each(|one| one.mark_different(self.ledger, reason));
                    return ClientAddress::FirstForwarded;
                }
            }
            ClientAddress::FromTrustedProxies
        };
        servers.iter().map(of_server).collect()
    }

    /// Translates the wrapper `proxy_protocol`, with the proxies that it allows. Without such a list the
    /// sites are closed.
    pub(super) fn translate_proxy_protocol(
        &self,
        wrapper: &DataNode,
        sites: &mut [SiteDraft],
        items: &mut [TomlItem],
    ) {
        let allowed = wrapper.get("allow").map_or_else(Vec::new, DataNode::texts);
        let has_others = wrapper.get("deny").is_some_and(|deny| !deny.items().is_empty());
        if !are_networks(&allowed) || has_others {
            let reason = "`proxy_protocol` of `listen` takes the networks of the proxies: the sites are closed (403) until they stand there";
            let check = self.mark_tls_impossible(wrapper, reason);
            sites.iter_mut().for_each(|site| site.close(check.clone()));
            return;
        }
        wrapper.mark_different(
            self.ledger,
            "connections of others, and those without the header, are refused: `proxy_protocol` of `listen`",
        );
        for item in items {
            let mut listener = TomlSection::default();
            match &*item {
                TomlItem::Table(entries) => listener.entries.clone_from(entries),
                other => listener.set("address", other.clone()),
            }
            listener.set("proxy_protocol", TomlItem::text_or_list(allowed.clone()));
            *item = TomlItem::Table(listener.entries);
        }
    }
}
