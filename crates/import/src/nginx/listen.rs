//! Listening addresses of a site, or of all.

use super::log::source_item;
use super::server::ListenAddress;
use crate::draft::{TomlItem, TomlSection};

/// Settings of all addresses.
pub(super) struct SharedListenOptions {
    /// Whether HTTP/2 is spoken without TLS.
    pub(super) clear_http2: bool,
    /// Networks whose PROXY protocol is trusted; all if there are none.
    pub(super) proxies: Vec<String>,
}

/// Returns each address once, with the union of its parameters.
pub(super) fn merge_addresses<'a>(all: impl Iterator<Item = &'a ListenAddress>) -> Vec<ListenAddress> {
    let mut addresses: Vec<ListenAddress> = Vec::new();
    for address in all {
        match addresses.iter_mut().find(|known| known.text == address.text) {
            Some(known) => {
                known.tls |= address.tls;
                known.proxy_protocol |= address.proxy_protocol;
            }
            None => addresses.push(address.clone()),
        }
    }
    addresses
}

/// Writes `listen`. Addresses that differ in the version of IP alone are one.
pub(super) fn write_listen(
    addresses: &[ListenAddress],
    options: &SharedListenOptions,
    section: &mut TomlSection,
) {
    let mut both: Vec<ListenAddress> = Vec::new();
    for address in addresses {
        let is_same_kind = |other: &ListenAddress, text: &str| {
            other.text == text && other.tls == address.tls && other.proxy_protocol == address.proxy_protocol
        };
        let has = |text: String| addresses.iter().any(|other| is_same_kind(other, &text));
        let ports = (address.text.strip_prefix("0.0.0.0:"), address.text.strip_prefix("[::]:"));
        match ports {
            (Some(port), _) if has(format!("[::]:{port}")) => {
                both.push(ListenAddress { text: format!(":{port}"), ..address.clone() });
            }
            (_, Some(port)) if has(format!("0.0.0.0:{port}")) => {}
            _ => both.push(address.clone()),
        }
    }
    let mut items: Vec<TomlItem> = both.iter().map(|address| address_item(address, options)).collect();
    match items.len() {
        0 => {}
        1 => section.set("listen", items.remove(0)),
        _ => section.set("listen", TomlItem::List(items)),
    }
}

fn address_item(address: &ListenAddress, options: &SharedListenOptions) -> TomlItem {
    let by_port = address.text.ends_with(":443");
    let mut entries = vec![("address".to_owned(), TomlItem::text(address.text.clone()))];
    if address.tls != by_port {
        entries.push(("tls".to_owned(), TomlItem::Flag(address.tls)));
    }
    if address.proxy_protocol {
        let networks = match options.proxies.as_slice() {
            [] => ["0.0.0.0/0", "::/0"].map(TomlItem::text).into(),
            proxies => proxies.iter().map(|text| source_item(text)).collect(),
        };
        entries.push(("proxy_protocol".to_owned(), TomlItem::List(networks)));
    }
    if options.clear_http2 && !address.tls {
        entries.push(("h2c".to_owned(), TomlItem::Flag(true)));
    }
    match entries.len() {
        1 => entries.remove(0).1,
        _ => TomlItem::Table(entries),
    }
}
