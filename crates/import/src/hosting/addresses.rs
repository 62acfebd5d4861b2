//! Addresses of application servers, with server and client certificates.

use super::settings::AppSettings;
use crate::draft::TomlItem;
use crate::findings::EntryIndex;

/// Certificate for addresses that use TLS if the configuration names none.
const UNKNOWN_CERTIFICATE: &str = "/etc/komainu/tls/app.pem";
impl AppSettings<'_> {
    pub(super) fn add_address(&mut self, text: &str, entry: EntryIndex) -> Result<(), &'static str> {
        let (text, query) = text.split_once('?').unwrap_or((text, ""));
        let (text, is_tls) = match text.split_once("://") {
            Some(("unix", path)) => (format!("unix:{path}"), false),
            Some((scheme, rest)) => (rest.to_owned(), scheme == "ssl"),
            // Addresses of Starman may end with `:ssl`.
            None => match text.strip_suffix(":ssl") {
                Some(address) => (address.to_owned(), true),
                None => (text.to_owned(), false),
            },
        };
        let parameter = |name: &str| {
            query.split('&').find_map(|pair| {
                pair.split_once('=').filter(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
            })
        };
        let address = match text.as_str() {
            _ if text.starts_with("unix:") => text.clone(),
            _ if text.starts_with('/') => format!("unix:{text}"),
            port if port.bytes().all(|b| b.is_ascii_digit()) => format!(":{port}"),
            _ => text.strip_prefix("0.0.0.0:").map_or(text.clone(), |port| format!(":{port}")),
        };
        if !self.listen.contains(&address) {
            self.listen.push(address);
        }
        if is_tls {
            self.tls_addresses.extend(self.listen.last().cloned());
            self.certificate = parameter("cert").or(self.certificate.take());
            self.key = parameter("key").or(self.key.take());
            self.authorities = parameter("ca").or(self.authorities.take());
            if let Some(mode) = parameter("verify_mode") {
                self.client_verification = Some((entry, mode));
            }
        }
        match parameter("umask") {
            Some(_) => {
                Err("the rights of the socket are those of the server's umask (`UMask=` of a service)")
            }
            None => Ok(()),
        }
    }

    /// Translates the requirements for client certificates.
    fn write_client_certificates(&mut self) {
        let Some((entry, mode)) = self.client_verification.take() else { return };
        let is_required = match mode.as_str() {
            "0" | "none" | "NONE" | "CERT_NONE" => return,
            "1" | "peer" | "CERT_OPTIONAL" => false,
            _ => true,
        };
        let Some(authorities) = self.authorities.clone() else {
            let reason =
                "the authorities of the clients' certificates are not known: the application is closed (403)";
            self.ledger.mark_impossible(entry, reason);
            self.untranslated_guards.push(entry);
            return;
        };
        let mut client = vec![("ca".to_owned(), TomlItem::Text(authorities))];
        if !is_required {
            client.push(("required".to_owned(), TomlItem::Flag(false)));
        }
        self.site.set_in("tls", "client", TomlItem::Table(client));
    }

    /// Writes `listen`, and the certificate for addresses that use TLS.
    pub(super) fn write_addresses(&mut self, default: &str) {
        if let Some(port) = &self.port {
            let host =
                self.host.as_deref().filter(|host| !matches!(*host, "0.0.0.0" | "::" | "*")).unwrap_or("");
            self.listen.push(format!("{host}:{port}"));
            if let Some(tls_port) = self.tls_port.take().filter(|_| self.is_tls) {
                self.tls_addresses.push(format!("{host}:{tls_port}"));
                self.listen.extend(self.tls_addresses.last().cloned());
                self.is_tls = false;
            }
        }
        for entry in std::mem::take(&mut self.code_addresses) {
            self.ledger.manual_comment(entry).into_iter().for_each(|check| self.top.comment(check));
            if self.listen.is_empty() {
                // The address may be a Unix socket that only some users can open, so listen on loopback only.
                let port = default.rsplit(':').next().unwrap_or(default);
                self.listen.push(format!("127.0.0.1:{port}"));
            }
        }
        if self.listen.is_empty() {
            self.listen.push(default.to_owned());
        }
        let all = self.is_tls || self.tls_addresses.is_empty() && self.certificate.is_some();
        let is_tls =
            |address: &String| self.tls_addresses.contains(address) || all && !address.starts_with("unix:");
        let item = |address: &String| match (is_tls(address), address.ends_with(":443")) {
            (false, false) | (true, true) => TomlItem::text(address.clone()),
            (flag, _) => TomlItem::Table(vec![
                ("address".to_owned(), TomlItem::text(address.clone())),
                ("tls".to_owned(), TomlItem::Flag(flag)),
            ]),
        };
        let has_tls = self.listen.iter().any(is_tls);
        let answers_plainly = !self.listen.iter().all(is_tls);
        let items: Vec<TomlItem> = self.listen.iter().map(item).collect();
        let items = match items.as_slice() {
            [one] => one.clone(),
            _ => TomlItem::List(items),
        };
        self.top.entries.insert(0, ("listen".to_owned(), items));
        if !has_tls {
            return;
        }
        let certificate = self.certificate.clone().unwrap_or_else(|| {
            self.site.comment("CHECK: the certificate was not named: write its files, or `tls = \"auto\"`.");
            UNKNOWN_CERTIFICATE.to_owned()
        });
        // The key may be in the same file.
        let key = self.key.clone().unwrap_or_else(|| certificate.clone());
        self.site.set_in("tls", "certificate", TomlItem::Text(certificate));
        self.site.set_in("tls", "key", TomlItem::Text(key));
        if answers_plainly {
            self.site.set("redirect_https", TomlItem::Flag(false));
        }
        self.write_client_certificates();
    }
}
