//! Addresses of application servers, with server and client certificates.

use super::settings::{AppSettings, ClientVerification, is_network};
use crate::draft::TomlItem;
use crate::findings::EntryIndex;
use crate::kind::ImportKind;

/// Certificate for addresses that use TLS if the configuration names none.
const UNKNOWN_CERTIFICATE: &str = "/etc/komainu/tls/app.pem";
/// Port of a gunicorn address without one.
const GUNICORN_PORT: &str = "8000";
/// Parameters of Puma's addresses that refuse no requests.
const HARMLESS_PARAMETERS: [&str; 17] = [
    "cert",
    "key",
    "cert_pem",
    "key_pem",
    "key_password_command",
    "umask",
    "mode",
    "backlog",
    "low_latency",
    "reuse",
    "no_tlsv1",
    "no_tlsv1_1",
    "ssl_cipher_filter",
    "ssl_ciphersuites",
    "ca",
    "verify_mode",
    "ca_additions",
];
/// Remark on an address that Komainu cannot listen on.
const UNKNOWN_ADDRESS: &str = "an address is IP:PORT, :PORT, localhost:PORT or unix:PATH: it is left out";

/// An address as the application server writes it.
struct ForeignAddress {
    /// The address in Komainu's notation; `None` if there is none.
    address: Option<String>,
    is_tls: bool,
    /// Parameters behind the address.
    query: String,
}

/// Returns `HOST:PORT` in Komainu's notation.
fn tcp_address(text: &str) -> Option<String> {
    let (host, port) = text.rsplit_once(':')?;
    port.parse::<u16>().ok()?;
    let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    match (host, inner) {
        ("" | "*", _) => Some(format!(":{port}")),
        ("localhost", _) => Some(text.to_owned()),
        (_, Some(inner)) => inner.parse::<std::net::Ipv6Addr>().is_ok().then(|| text.to_owned()),
        (_, None) if host.contains(':') => {
            host.parse::<std::net::Ipv6Addr>().is_ok().then(|| format!("[{host}]:{port}"))
        }
        (_, None) => host.parse::<std::net::Ipv4Addr>().is_ok().then(|| text.to_owned()),
    }
}

fn unix_address(path: &str) -> Option<String> {
    (!path.is_empty() && !path.starts_with('@') && !path.contains('$')).then(|| format!("unix:{path}"))
}

impl ForeignAddress {
    fn parse(kind: ImportKind, text: &str) -> Self {
        let (text, query) = match kind {
            ImportKind::Puma => text.split_once('?').unwrap_or((text, "")),
            _ => (text, ""),
        };
        let (scheme, rest) = match text.split_once("://") {
            Some((scheme, rest)) => (scheme, rest),
            None => match text.strip_prefix("unix:") {
                Some(path) => ("unix", path),
                None => ("", text),
            },
        };
        let mut is_tls = false;
        let address = match (kind, scheme) {
            (_, "unix") => unix_address(rest),
            (ImportKind::Puma, "ssl") => {
                is_tls = true;
                tcp_address(rest)
            }
            (ImportKind::Puma, "tcp") => tcp_address(rest),
            (ImportKind::Gunicorn, "tcp" | "") => {
                let has_port = rest.rsplit(']').next().is_some_and(|end| end.contains(':'));
                tcp_address(&if has_port { rest.to_owned() } else { format!("{rest}:{GUNICORN_PORT}") })
            }
            // Addresses of Starman may end with `:ssl`; those without a colon are paths.
            (ImportKind::Starman, "") if rest.contains(':') => {
                let lower = rest.to_ascii_lowercase();
                is_tls = lower.ends_with(":ssl");
                let end = if is_tls { rest.len() - ":ssl".len() } else { rest.len() };
                tcp_address(&rest[..end])
            }
            (ImportKind::Starman, "") => unix_address(rest),
            _ => None,
        };
        Self { address, is_tls, query: query.to_owned() }
    }
}

impl AppSettings<'_> {
    pub(super) fn add_address(&mut self, text: &str, entry: EntryIndex) -> Result<(), &'static str> {
        let ForeignAddress { address, is_tls, query } = ForeignAddress::parse(self.kind, text);
        let Some(address) = address else {
            self.ledger.mark_impossible(entry, UNKNOWN_ADDRESS);
            self.code_addresses.push(entry);
            if text.contains("ssl") || !query.is_empty() {
                self.close_for(entry, "the address may ask for certificates of clients");
            }
            return Ok(());
        };
        let parameter = |name: &str| {
            query.split('&').find_map(|pair| {
                pair.split_once('=').filter(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
            })
        };
        if !self.listen.contains(&address) {
            self.listen.push(address.clone());
        }
        if is_tls {
            self.tls_addresses.push(address);
            self.certificate = parameter("cert").or(self.certificate.take());
            self.key = parameter("key").or(self.key.take());
            if self.kind == ImportKind::Puma {
                self.client_verifications.push(ClientVerification {
                    entry,
                    mode: parameter("verify_mode").unwrap_or_else(|| "none".to_owned()),
                    authorities: parameter("ca"),
                });
            }
        }
        let mut keys =
            query.split('&').filter_map(|pair| pair.split('=').next()).filter(|key| !key.is_empty());
        if keys.any(|key| !HARMLESS_PARAMETERS.contains(&key)) {
            self.close_for(entry, "a parameter of the address may refuse connections");
        }
        if parameter("cert_pem").is_some() {
            return Err("the certificate is code: write its file");
        }
        match parameter("umask").or(parameter("mode")) {
            Some(_) => {
                Err("the rights of the socket are those of the server's umask (`UMask=` of a service)")
            }
            None => Ok(()),
        }
    }

    /// Translates the requirements for client certificates; `has_tls` is whether an address uses TLS.
    fn write_client_certificates(&mut self, has_tls: bool) {
        let all = std::mem::take(&mut self.client_verifications);
        // Whether a certificate is required; `None` if none is asked for.
        let is_required = |one: &ClientVerification| match one.mode.as_str() {
            "0" | "none" | "NONE" | "CERT_NONE" => None,
            "1" | "peer" | "CERT_OPTIONAL" => Some(false),
            _ => Some(true),
        };
        let Some(first) = all.iter().find(|one| is_required(one).is_some()) else { return };
        let authorities = |one: &ClientVerification| one.authorities.clone().or(self.authorities.clone());
        let is_alike = |one: &ClientVerification| {
            is_required(one) == is_required(first) && authorities(one) == authorities(first)
        };
        let fault = match authorities(first) {
            _ if !all.iter().all(is_alike) => Err("the addresses ask for different certificates of clients"),
            _ if !has_tls => Err("no address uses TLS, so that there are no certificates of clients"),
            Some(file) => Ok(file),
            None => Err("the authorities of the clients' certificates are not known"),
        };
        let (entry, is_required) = (first.entry, is_required(first) == Some(true));
        match fault {
            Ok(file) => {
                let mut client = vec![("ca".to_owned(), TomlItem::Text(file))];
                if !is_required {
                    client.push(("required".to_owned(), TomlItem::Flag(false)));
                }
                self.site.set_in("tls", "client", TomlItem::Table(client));
            }
            Err(reason) => self.close_for(entry, reason),
        }
    }

    /// Adds the address that a host, a port and a socket name together.
    fn add_host_and_port(&mut self, default: &str) {
        // A list of addresses counts in place of them, and so does a socket.
        let has_list = !self.listen.is_empty() || self.kind == ImportKind::Puma;
        if let Some(path) = self.socket.take().filter(|_| !has_list) {
            self.listen.extend(unix_address(&path));
            return;
        }
        if has_list || self.port.is_none() && self.host.is_none() && self.tls_port.is_none() {
            return;
        }
        let default_port = default.rsplit(':').next().unwrap_or(default);
        let host = self.host.clone().filter(|host| !matches!(host.as_str(), "::" | "*")).unwrap_or_default();
        let of_port = |port: &str| tcp_address(&format!("{host}:{port}"));
        let port = self.port.clone().unwrap_or_else(|| default_port.to_owned());
        let tls_port = self.tls_port.take().filter(|_| self.is_tls);
        let address = of_port(&port);
        let tls_address = tls_port.as_deref().map(of_port);
        if address.is_none() || tls_address == Some(None) {
            let check =
                format!("CHECK: the address `{host}:{port}` is none of Komainu: write it in `listen`.");
            self.top.comment(check);
            self.listen.push(format!("127.0.0.1:{default_port}"));
            return;
        }
        self.listen.extend(address);
        if let Some(address) = tls_address.flatten() {
            self.tls_addresses.push(address.clone());
            self.listen.push(address);
            self.is_tls = false;
        }
    }

    /// Writes `listen`, and the certificate for addresses that use TLS.
    pub(super) fn write_addresses(&mut self, default: &str) {
        for entry in std::mem::take(&mut self.code_addresses) {
            self.ledger.manual_comment(entry).into_iter().for_each(|check| self.top.comment(check));
            if self.listen.is_empty() {
                // The address may be a Unix socket that only some users can open, so listen on loopback only.
                let port = default.rsplit(':').next().unwrap_or(default);
                self.listen.push(format!("127.0.0.1:{port}"));
            }
        }
        self.add_host_and_port(default);
        if self.listen.is_empty() {
            self.listen.push(default.to_owned());
        }
        let networks = self.proxy_networks();
        // gunicorn uses TLS at all addresses if it has a certificate or a key.
        let has_certificate =
            self.certificate.is_some() || self.key.is_some() && self.kind == ImportKind::Gunicorn;
        let all = self.is_tls || self.tls_addresses.is_empty() && has_certificate;
        let keeps_sockets_plain = self.kind == ImportKind::Starman;
        let is_tls = |address: &String| {
            self.tls_addresses.contains(address)
                || all && !(keeps_sockets_plain && address.starts_with("unix:"))
        };
        let item = |address: &String| {
            let mut entries = vec![("address".to_owned(), TomlItem::text(address.clone()))];
            if is_tls(address) != address.ends_with(":443") {
                entries.push(("tls".to_owned(), TomlItem::Flag(is_tls(address))));
            }
            if let Some(networks) = &networks {
                entries.push(("proxy_protocol".to_owned(), networks.clone()));
            }
            match entries.len() {
                1 => TomlItem::text(address.clone()),
                _ => TomlItem::Table(entries),
            }
        };
        let has_tls = self.listen.iter().any(is_tls);
        let answers_plainly = !self.listen.iter().all(is_tls);
        let items: Vec<TomlItem> = self.listen.iter().map(item).collect();
        let items = match items.as_slice() {
            [one] => one.clone(),
            _ => TomlItem::List(items),
        };
        self.top.entries.insert(0, ("listen".to_owned(), items));
        if has_tls {
            self.write_certificate();
            if answers_plainly {
                self.site.set("redirect_https", TomlItem::Flag(false));
            }
        }
        self.write_client_certificates(has_tls);
    }

    /// Returns the networks whose connections begin with a header of the PROXY protocol; `None` if there is no such
    /// header.
    fn proxy_networks(&mut self) -> Option<TomlItem> {
        let entry = self.proxy_protocol?;
        if self.proxy_networks.is_empty() || !self.proxy_networks.iter().all(|text| is_network(text)) {
            self.close_for(entry, "`proxy_protocol` of `listen` takes the networks of the proxies");
            return None;
        }
        self.ledger.mark_different(
            entry,
            "connections of others, and those without the header, are refused: `proxy_protocol` of `listen`",
        );
        Some(TomlItem::text_or_list(self.proxy_networks.iter().cloned()))
    }

    fn write_certificate(&mut self) {
        let certificate = self.certificate.clone().or(self.key.clone()).unwrap_or_else(|| {
            self.site.comment("CHECK: the certificate was not named: write its files, or `tls = \"auto\"`.");
            UNKNOWN_CERTIFICATE.to_owned()
        });
        // The key may be in the same file.
        let key = self.key.clone().unwrap_or_else(|| certificate.clone());
        self.site.set_in("tls", "certificate", TomlItem::Text(certificate));
        self.site.set_in("tls", "key", TomlItem::Text(key));
    }
}
