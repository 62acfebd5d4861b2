//! Translation of TLS: addresses, certificates, and client certificates.

use shapes::host::PRIVATE_SUFFIXES;

use super::reader::CaddyReader;
use crate::data::DataNode;
use crate::draft::{ConfigDraft, SiteDraft, TomlItem};

/// Loopback addresses, for which the local authority issues certificates as well.
const LOCAL_ADDRESSES: [&str; 2] = ["127.0.0.1", "[::1]"];
/// Listener wrappers that refuse no connections.
const HARMLESS_WRAPPERS: [&str; 2] = ["tls", "http_redirect"];

/// The `tls` of a site, or the comment above its closed routes.
type CaddySiteTls = Result<TomlItem, String>;

impl CaddyReader<'_> {
    /// Writes the `tls` of the sites of a server, and closes those whose TLS settings cannot be translated.
    /// Returns the listening addresses.
    pub(super) fn write_tls(
        &self,
        (config, server, others): (&DataNode, &DataNode, &[&DataNode]),
        sites: &mut [SiteDraft],
        draft: &mut ConfigDraft,
    ) -> Vec<TomlItem> {
        let ports = |key: &str, default: &str| {
            config.at(&["apps", "http", key]).and_then(DataNode::text).unwrap_or(default).to_owned()
        };
        let http = format!(":{}", ports("http_port", "80"));
        let https = format!(":{}", ports("https_port", "443"));
        let addresses = server_addresses(server);
        let flag = |key: &str| server.at(&["automatic_https", key]).and_then(DataNode::flag) == Some(true);
        let skipped = server.at(&["automatic_https", "skip"]).map_or_else(Vec::new, DataNode::texts);
        let has_hosts = sites.iter().flat_map(site_hosts).any(|host| !skipped.contains(&host));
        let policies = server.get("tls_connection_policies").map_or(&[][..], DataNode::items);
        let is_secured = |address: &String| !address.ends_with(&http) && !address.starts_with("unix:");
        let by_policy = !policies.is_empty();
        let by_itself = !flag("disable")
            && (has_hosts && addresses.iter().any(is_secured)
                || addresses.iter().any(|one| one.ends_with(&https)));
        let has_tls = by_policy || by_itself;
        let mut items = listen_items(&addresses, |address| has_tls && is_secured(address));
        let redirects = by_itself && !flag("disable_redirects");
        let own: Vec<String> = sites.iter().flat_map(site_hosts).collect();
        let is_taken = others.iter().any(|other| {
            self::server_addresses(other).iter().any(|one| one.ends_with(&http))
                && (own.is_empty() || server_names(other).iter().any(|name| own.contains(name)))
        });
        let plain = TomlItem::text(":80");
        if redirects && !is_taken && addresses.iter().any(|one| one == ":443") && !items.contains(&plain) {
            items.push(plain);
        }
        let answers_plainly = !redirects && has_tls && !addresses.iter().all(is_secured);
        let is_beside_tls = others.iter().any(|other| {
            other.get("tls_connection_policies").is_some()
                || self::server_addresses(other).iter().any(|one| one.ends_with(&https))
        });
        for site in sites.iter_mut() {
            if !has_tls {
                // Otherwise the site would get a certificate, because an address uses TLS.
                if is_beside_tls && site.section.get("hosts").is_some() {
                    site.section.set("tls", TomlItem::Flag(false));
                }
                continue;
            }
            if answers_plainly {
                site.section.set("redirect_https", TomlItem::Flag(false));
            }
            match self.translate_site_tls(config, policies, site) {
                Ok(item) => site.section.set("tls", item),
                Err(check) => {
                    site.section.set_text("tls", "auto");
                    site.close(check);
                }
            }
        }
        self.translate_min_version(policies, draft);
        self.translate_wrappers(server, sites, &mut items);
        for key in ["listen", "automatic_https"] {
            server.get(key).into_iter().for_each(|one| one.mark_translated(self.ledger));
        }
        if let Some(logs) = server.get("logs") {
            logs.mark_impossible(self.ledger, "`[log] access` or `[[logs]]` has the access log");
        }
        items
    }

    /// Returns the `tls` of a site, from the first policy for its names.
    fn translate_site_tls(
        &self,
        config: &DataNode,
        policies: &[DataNode],
        site: &mut SiteDraft,
    ) -> CaddySiteTls {
        let names: Vec<String> = site_hosts(site).collect();
        let sni = |policy: &DataNode| policy.at(&["match", "sni"]).map_or_else(Vec::new, DataNode::texts);
        let guards = |policy: &&DataNode| {
            policy.get("client_authentication").is_some()
                || policy.get("drop").and_then(DataNode::flag) == Some(true)
        };
        let first_for = |name: &String| {
            policies.iter().find(|policy| {
                let patterns = sni(policy);
                patterns.is_empty() || patterns.iter().any(|pattern| names_match(pattern, name))
            })
        };
        let found: Vec<&DataNode> = match names.as_slice() {
            [] => policies.iter().find(|policy| sni(policy).is_empty()).into_iter().collect(),
            names => names.iter().filter_map(first_for).collect(),
        };
        if !policies.is_empty() && found.is_empty() {
            let reason = "no policy of TLS is for this host: the site is closed (403)";
            return Err(self.mark_tls_impossible(&policies[0], reason));
        }
        // A policy may apply only to some connections of the site: by other matchers, or by a subdomain of
        // its name.
        let is_below = |name: &String| {
            names.iter().any(|own| own.starts_with('*') && own != name && names_match(own, name))
        };
        let is_partial = |policy: &&DataNode| {
            let has_others =
                policy.get("match").is_some_and(|all| all.entries().iter().any(|(key, _)| key != "sni"));
            has_others && (sni(policy).is_empty() || found.iter().any(|one| one.line == policy.line))
                || sni(policy).iter().any(is_below)
        };
        if let Some(partial) = policies.iter().filter(guards).find(is_partial) {
            return Err(self.mark_tls_impossible(
                partial,
                "a policy of TLS that guards some connections: the site is closed (403)",
            ));
        }
        let policy = found.iter().copied().find(guards).or(found.first().copied());
        let certificate = self.site_certificate(config, policy, site);
        let Some(policy) = policy.filter(guards) else { return Ok(certificate) };
        let Some(client) = policy.get("client_authentication") else {
            return Err(self.mark_tls_impossible(policy, "connections are dropped: the site is closed (403)"));
        };
        let (certificate, key) = match certificate {
            TomlItem::Table(entries) => (entries, None),
            item => (Vec::new(), Some(("certificate".to_owned(), item))),
        };
        let mut entries: Vec<(String, TomlItem)> = key.into_iter().chain(certificate).collect();
        entries.push(("client".to_owned(), self.translate_client_auth(client)?));
        Ok(TomlItem::Table(entries))
    }

    pub(super) fn mark_tls_impossible(&self, policy: &DataNode, reason: &str) -> String {
        policy.mark_all_impossible(self.ledger, reason);
        self.ledger.check_comment(policy.line, reason)
    }

    /// Returns the `client` of a site's `tls`.
    fn translate_client_auth(&self, client: &DataNode) -> CaddySiteTls {
        let files: Vec<String> = [
            client.get("trusted_ca_certs_pem_files"),
            client
                .at(&["ca", "pem_files"])
                .filter(|_| client.at(&["ca", "provider"]).and_then(DataNode::text) == Some("file")),
        ]
        .into_iter()
        .flatten()
        .flat_map(DataNode::texts)
        .collect();
        let known = ["mode", "trusted_ca_certs_pem_files", "ca"];
        let is_known = client.entries().iter().all(|(key, _)| known.contains(&key.as_str()));
        let required = match client.get("mode").and_then(DataNode::text).unwrap_or("require_and_verify") {
            "require_and_verify" => true,
            "verify_if_given" => false,
            _ => {
                return Err(self.mark_tls_impossible(
                    client,
                    "a certificate of the client that nobody verifies: the site is closed (403)",
                ));
            }
        };
        let [file] = files.as_slice() else {
            let reason = "the authorities are not in one file of PEM: write it, and `client` in `tls`; the site is closed (403)";
            return Err(self.mark_tls_impossible(client, reason));
        };
        if !is_known {
            return Err(self.mark_tls_impossible(
                client,
                "this check of the client's certificate has no translation: the site is closed (403)",
            ));
        }
        client.mark_translated(self.ledger);
        let mut entries = vec![("ca".to_owned(), TomlItem::text(file.clone()))];
        if !required {
            entries.push(("required".to_owned(), TomlItem::Flag(false)));
        }
        Ok(TomlItem::Table(entries))
    }

    /// Returns the certificate of a site: its files, or `"auto"`.
    fn site_certificate(
        &self,
        config: &DataNode,
        policy: Option<&DataNode>,
        site: &mut SiteDraft,
    ) -> TomlItem {
        let tags = policy
            .and_then(|policy| policy.at(&["certificate_selection", "any_tag"]))
            .map_or_else(Vec::new, DataNode::texts);
        let files =
            config.at(&["apps", "tls", "certificates", "load_files"]).map_or(&[][..], DataNode::items);
        let is_own = |file: &&DataNode| {
            let own = file.get("tags").map_or_else(Vec::new, DataNode::texts);
            tags.is_empty() && own.is_empty() || tags.iter().any(|tag| own.contains(tag))
        };
        let mut certificates = Vec::new();
        let mut keys = Vec::new();
        for file in files.iter().filter(is_own) {
            let text = |key: &str| file.get(key).and_then(DataNode::text).map(str::to_owned);
            certificates.extend(text("certificate"));
            keys.extend(text("key"));
            file.mark_translated(self.ledger);
        }
        if !certificates.is_empty() {
            return TomlItem::Table(vec![
                ("certificate".to_owned(), TomlItem::text_or_list(certificates)),
                ("key".to_owned(), TomlItem::text_or_list(keys)),
            ]);
        }
        let names: Vec<String> = site_hosts(site).collect();
        let policies = config.at(&["apps", "tls", "automation", "policies"]).map_or(&[][..], DataNode::items);
        let issuer = policies
            .iter()
            .find(|policy| {
                let subjects = policy.get("subjects").map_or_else(Vec::new, DataNode::texts);
                subjects.is_empty() || names.iter().any(|name| subjects.contains(name))
            })
            .and_then(|policy| policy.get("issuers")?.items().first()?.get("module"));
        let is_local = |name: &String| {
            PRIVATE_SUFFIXES
                .iter()
                .chain(&LOCAL_ADDRESSES)
                .any(|end| name == end || name.ends_with(&format!(".{end}")))
        };
        match (issuer.filter(|one| one.text() == Some("internal")), names.iter().find(|name| !is_local(name)))
        {
            (Some(module), Some(name)) => {
                let reason = "the local authority issues for local names alone: write a certificate of an authority of your own into this file";
                module.mark_impossible(self.ledger, reason);
                site.section.comment(self.ledger.check_comment(module.line, reason));
                let file = format!("/etc/komainu/tls/{}.pem", name.replace('*', "_"));
                TomlItem::Table(vec![("certificate".to_owned(), TomlItem::Text(file))])
            }
            (module, _) => {
                module.into_iter().for_each(|one| one.mark_translated(self.ledger));
                TomlItem::text("auto")
            }
        }
    }

    /// Translates the minimum version of TLS.
    fn translate_min_version(&self, policies: &[DataNode], draft: &mut ConfigDraft) {
        for min in policies.iter().filter_map(|policy| policy.get("protocol_min")) {
            match min.text() {
                Some("tls1.3") => {
                    draft.table("tls").set_text("min", "1.3");
                    min.mark_translated(self.ledger);
                }
                _ => min.mark_not_needed(self.ledger, "not needed: TLS 1.2 is the oldest"),
            }
        }
    }

    /// Translates listener wrappers; closes the sites if one is unknown.
    fn translate_wrappers(&self, server: &DataNode, sites: &mut [SiteDraft], items: &mut [TomlItem]) {
        for wrapper in server.get("listener_wrappers").map_or(&[][..], DataNode::items) {
            let kind = wrapper.get("wrapper").and_then(DataNode::text).unwrap_or("");
            if kind == "proxy_protocol" {
                self.translate_proxy_protocol(wrapper, sites, items);
                continue;
            }
            if HARMLESS_WRAPPERS.contains(&kind) {
                wrapper.mark_translated(self.ledger);
                continue;
            }
            let check = self.mark_tls_impossible(
                wrapper,
                "this wrapper of connections may refuse some: the sites are closed (403)",
            );
            sites.iter_mut().for_each(|site| site.close(check.clone()));
        }
    }
}

/// Whether a pattern, a name or `*.example.com`, matches a name.
fn names_match(pattern: &str, name: &str) -> bool {
    name.eq_ignore_ascii_case(pattern)
        || pattern.strip_prefix('*').is_some_and(|end| name.to_lowercase().ends_with(&end.to_lowercase()))
}

/// Returns the addresses of a server in Komainu's notation.
fn server_addresses(server: &DataNode) -> Vec<String> {
    let address = |text: String| text.strip_prefix("tcp/").unwrap_or(&text).replace("unix/", "unix:");
    server.get("listen").map_or_else(Vec::new, DataNode::texts).into_iter().map(address).collect()
}

/// Returns the `listen` items for these addresses.
fn listen_items(addresses: &[String], is_tls: impl Fn(&String) -> bool) -> Vec<TomlItem> {
    let mut items: Vec<TomlItem> = Vec::new();
    for address in addresses {
        let item = match (is_tls(address), address.ends_with(":443")) {
            (true, true) | (false, false) => TomlItem::text(address.clone()),
            (flag, _) => TomlItem::Table(vec![
                ("address".to_owned(), TomlItem::text(address.clone())),
                ("tls".to_owned(), TomlItem::Flag(flag)),
            ]),
        };
        if !items.contains(&item) {
            items.push(item);
        }
    }
    items
}

/// Returns the names in the host matchers of a server's routes.
fn server_names(server: &DataNode) -> Vec<String> {
    let routes = server.get("routes").map_or(&[][..], DataNode::items);
    let sets = routes.iter().flat_map(|route| route.get("match").map_or(&[][..], DataNode::items));
    sets.filter_map(|set| set.get("host")).flat_map(DataNode::texts).collect()
}

fn site_hosts(site: &SiteDraft) -> impl Iterator<Item = String> {
    let items = match site.section.get("hosts") {
        Some(TomlItem::List(items)) => items.clone(),
        _ => Vec::new(),
    };
    items.into_iter().filter_map(|item| item.as_text().map(str::to_owned))
}
