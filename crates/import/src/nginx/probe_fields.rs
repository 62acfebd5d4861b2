//! Fields for requests: addresses that proxies forward, and fields that conditions ask for.

use std::collections::BTreeSet;

use super::scope::Scope;
use super::tree::NginxDirective;

/// Returns fields in which a proxy tells the addresses that the configuration asks for, if it trusts proxies: alone, behind
/// the address of another proxy, and before it.
pub(super) fn forwarded_addresses(http: &Scope<'_>) -> Vec<(&'static str, String)> {
    const ADDRESSES_MAX: usize = 4;
    /// One of those that the scratch copy trusts.
    const PROXY: &str = "127.0.0.9";
    let mut trusts = false;
    let mut found: Vec<String> = Vec::new();
    let mut add = |text: &str| {
        let address = text.split('/').next().unwrap_or(text);
        if address.parse::<std::net::IpAddr>().is_ok() && !found.iter().any(|known| known == address) {
            found.push(address.to_owned());
        }
    };
    super::tree::visit(http.innermost(), &mut |one| match one.name.as_str() {
        "set_real_ip_from" => trusts = true,
        "allow" | "deny" => add(one.first_arg()),
        "if" => one.args.iter().for_each(|word| add(word.trim_matches(['(', ')']))),
        "geo" | "map" => one.block_directives().iter().for_each(|line| add(&line.name)),
        _ => {}
    });
    if !trusts {
        return Vec::new();
    }
    found.truncate(ADDRESSES_MAX);
    let values =
        |address: String| [address.clone(), format!("{address}, {PROXY}"), format!("{PROXY}, {address}")];
    let of_field = |value: String| ("X-Forwarded-For", value);
    let real = found.iter().map(|address| ("X-Real-IP", address.clone()));
    let mut all: Vec<(&'static str, String)> = real.collect();
    all.extend(found.into_iter().flat_map(values).map(of_field));
    all
}

/// Returns the names of header fields that conditions of a server use, themselves or by a `map`.
pub(super) fn tested_fields(server: &NginxDirective, http: &Scope<'_>) -> Vec<String> {
    let mut found = BTreeSet::new();
    let mut add = |word: &str| {
        if let Some(at) = word.find("$http_") {
            let is_part = |c: &char| c.is_ascii_alphanumeric() || *c == '_';
            let name: String = word[at + 6..].chars().take_while(is_part).collect();
            found.insert(super::scope::field_name(&name));
        }
    };
    super::tree::visit(server.block_directives(), &mut |one| {
        for word in one.args.iter().filter(|_| one.name == "if") {
            add(word);
            let is_it = |map: &&NginxDirective| {
                map.name == "map" && map.args.last().is_some_and(|name| word.trim_matches(['(', ')']) == name)
            };
            http.innermost().iter().filter(is_it).for_each(|map| add(map.first_arg()));
        }
    });
    found.remove("Host");
    found.into_iter().take(8).collect()
}
