//! Annotations that may refuse requests: addresses, users and passwords, other servers, certificates of clients.

use std::collections::BTreeMap;

use admission::PasswordFile;
use import::ingress::translate_sign_in;
use net::ClientCertificates;
use serde_json::{Map, Value, json};

use crate::ingress::faults::Faults;
use crate::ingress::references::{MemoryFolder, NamedUrl, find_secret, parse_reference, secret_part};
use crate::ingress::values;
use crate::objects::{ObjectKey, Objects};

/// Users of an `auth-map`.
const USERS_MAX: usize = 10_000;

/// Annotations by name, without their prefix.
pub(crate) type Annotations<'a> = BTreeMap<&'a str, &'a str>;

/// What guards need to know of an Ingress.
pub(crate) struct GuardContext<'a, 'f, 'm> {
    pub(crate) objects: &'a Objects,
    pub(crate) key: &'a ObjectKey,
    pub(crate) annotations: &'a Annotations<'a>,
    pub(crate) faults: &'f mut Faults,
    pub(crate) files: &'f mut MemoryFolder<'m>,
}

/// Addresses that are let in and refused.
#[derive(Debug, Default, Clone)]
pub(crate) struct Networks {
    pub(crate) allow: Option<Vec<String>>,
    pub(crate) deny: Option<Vec<String>>,
}

/// How clients are authenticated.
#[derive(Debug, Clone)]
pub(crate) enum Authentication {
    /// The table `auth`, for every host.
    Table(Map<String, Value>),
    /// The server at a URL, and the table without it.
    Server(NamedUrl, Map<String, Value>),
}

/// Certificates of clients, for a host.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ClientAuthority {
    /// The table `client` of `tls`.
    pub(crate) table: Value,
    /// Whether Services get the certificate.
    pub(crate) passes_certificate: bool,
}

impl<'a> GuardContext<'a, '_, '_> {
    fn text(&self, name: &str) -> Option<&'a str> {
        self.annotations.get(name).copied()
    }

    /// Reads the networks. One that is none closes the paths, as in ingress-nginx.
    pub(crate) fn networks(&mut self) -> Networks {
        let mut read = |names: &[&str]| {
            let found = names.iter().find_map(|name| Some((*name, self.annotations.get(name).copied()?)));
            let (name, text) = found.filter(|(_, text)| !text.trim().is_empty())?;
            match values::networks(text) {
                Some(all) if !all.is_empty() => Some(all),
                _ => {
                    let note = format!(
                        "{name} {text:?} has an entry that is neither a network nor an address: correct it"
                    );
                    self.faults.close("InvalidAnnotation", &note);
                    None
                }
            }
        };
        let allow = read(&["allowlist-source-range", "whitelist-source-range"]);
        let deny = read(&["denylist-source-range"]);
        Networks { allow, deny }
    }

    /// Reads `auth-type` and `auth-url`.
    pub(crate) fn authentication(&mut self) -> Option<Authentication> {
        let asks_password = self.text("auth-type").is_some_and(|text| !text.trim().is_empty());
        let url = self.text("auth-url").map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned);
        match (asks_password, url) {
            (true, Some(_)) => {
                let note =
                    "auth-type and auth-url both ask who a client is, and one of them can: remove the other";
                self.faults.close("UnsupportedAnnotation", note);
                None
            }
            (true, None) => self.passwords().map(Authentication::Table),
            (false, Some(url)) => self.server(&url),
            (false, None) => {
                if self.text("auth-secret").is_some_and(|text| !text.is_empty()) {
                    let note = "auth-secret without auth-type asks nobody: add `auth-type: basic`";
                    self.faults.close("InvalidAnnotation", note);
                }
                None
            }
        }
    }

    fn passwords(&mut self) -> Option<Map<String, Value>> {
        let kind = self.text("auth-type").unwrap_or_default().trim().to_owned();
        if kind != "basic" {
            let note = format!("auth-type {kind:?} is not supported: use `basic`, with TLS");
            self.faults.close("UnsupportedAnnotation", &note);
            return None;
        }
        let Some(name) = self.text("auth-secret").filter(|name| !name.trim().is_empty()) else {
            self.faults.close(
                "InvalidAnnotation",
                "auth-type needs auth-secret, which names the Secret with the users",
            );
            return None;
        };
        let key = parse_reference(name, &self.key.namespace);
        let is_map = match self.text("auth-secret-type").unwrap_or("auth-file") {
            "auth-file" => false,
            "auth-map" => true,
            other => {
                let note = format!("auth-secret-type {other:?} is neither auth-file nor auth-map");
                self.faults.close("InvalidAnnotation", &note);
                return None;
            }
        };
        let content = find_secret(self.objects, &self.key.namespace, &key).and_then(|secret| {
            if !is_map {
                return secret_part(secret, &key, "auth");
            }
            if secret.data.len() > USERS_MAX {
                return Err(format!("the Secret {key} has more than {USERS_MAX} users"));
            }
            let mut lines = Vec::new();
            for user in secret.data.keys() {
                let hash = secret_part(secret, &key, user)?;
                lines.extend_from_slice(user.as_bytes());
                lines.push(b':');
                lines.extend(hash.trim_ascii().iter().filter(|byte| !matches!(byte, b'\n' | b'\r')));
                lines.push(b'\n');
            }
            Ok(lines)
        });
        let checked = content.and_then(|content| match PasswordFile::parse(&content) {
            // The text of the error is not passed on: it has names of users.
            Err(_) => Err(format!(
                "the Secret {key} has a line that is not NAME:HASH with bcrypt or Argon2: write it with `htpasswd -B`"
            )),
            Ok(users) if users.is_empty() => Err(format!("the Secret {key} has no users")),
            Ok(_) => Ok(content),
        });
        match checked {
            Ok(content) => {
                let file = if is_map { "map" } else { "auth" };
                let path = self.files.add("users", &key, file, content);
                let realm: String = self
                    .text("auth-realm")
                    .unwrap_or_default()
                    .chars()
                    .filter(|c| (*c == ' ' || c.is_ascii_graphic()) && !matches!(c, '"' | '\\'))
                    .take(128)
                    .collect();
                let mut table = Map::new();
                table.insert("basic".to_owned(), json!(path));
                if !realm.is_empty() {
                    table.insert("realm".to_owned(), json!(realm));
                }
                Some(table)
            }
            Err(note) => {
                self.faults.close("InvalidSecret", &note);
                None
            }
        }
    }

    fn server(&mut self, text: &str) -> Option<Authentication> {
        let url = match NamedUrl::parse(text) {
            Ok(url) if !url.rest.contains('$') => url,
            Ok(_) => {
                let note = "auth-url may have $scheme and $host, and no other variable: the server that is asked finds the URL in X-Original-URL";
                self.faults.close("UnsupportedAnnotation", note);
                return None;
            }
            Err(note) => {
                self.faults.close("InvalidAnnotation", &format!("auth-url: {note}"));
                return None;
            }
        };
        if let Some(method) = self.text("auth-method").filter(|method| !matches!(*method, "" | "GET")) {
            let note = format!("auth-method {method:?} is not supported: the server is asked by GET");
            self.faults.close("UnsupportedAnnotation", &note);
        }
        let mut table = Map::new();
        let fields = values::list(self.text("auth-response-headers").unwrap_or_default());
        if !fields.is_empty() {
            table.insert("response_headers".to_owned(), json!(fields));
            // Other routes of the host may belong to others.
            table.insert("remove_from".to_owned(), json!("route"));
        }
        if let Some(page) = self.text("auth-signin").filter(|text| !text.is_empty()) {
            match translate_sign_in(page, self.text("auth-signin-redirect-param")) {
                Some(to) => _ = table.insert("sign_in".to_owned(), json!(to)),
                None => self.faults.warn(
                    "UnsupportedAnnotation",
                    "auth-signin may have $scheme, $host and $escaped_request_uri: clients get 401 instead of the page",
                ),
            }
        }
        self.remember(&mut table);
        Some(Authentication::Server(url, table))
    }

    fn remember(&mut self, table: &mut Map<String, Value>) {
        let Some(key) = self.text("auth-cache-key").filter(|key| !key.is_empty()) else { return };
        let time = values::cache_seconds(self.text("auth-cache-duration").unwrap_or("200 202 401 5m"));
        match (values::key_fields(key), time) {
            (Some(fields), Some(seconds)) => {
                table.insert("remember".to_owned(), json!(format!("{}s", seconds.min(3_600))));
                if !fields.is_empty() {
                    table.insert("remember_by".to_owned(), json!(fields));
                }
            }
            _ => self.faults.warn(
                "UnsupportedAnnotation",
                "auth-cache-key may have fields ($http_NAME) and cookies ($cookie_NAME), and auth-cache-duration a time such as `200 10m`: answers are not remembered",
            ),
        }
    }

    /// Reads the certificates that clients show.
    pub(crate) fn client_authority(&mut self) -> Option<ClientAuthority> {
        let mode = self.text("auth-tls-verify-client").unwrap_or("on").trim().to_owned();
        let secret = self.text("auth-tls-secret").filter(|text| !text.trim().is_empty());
        let Some(secret) = secret else {
            let is_asked = self.text("auth-tls-verify-client").is_some() && mode != "off";
            if is_asked || self.text("auth-tls-match-cn").is_some_and(|text| !text.is_empty()) {
                self.faults.close(
                    "InvalidAnnotation",
                    "certificates of clients need auth-tls-secret, which names the Secret with ca.crt",
                );
            }
            return None;
        };
        let is_required = match mode.as_str() {
            "off" => return None,
            "on" => true,
            "optional" => false,
            other => {
                let note = format!(
                    "auth-tls-verify-client {other:?} lets certificates in that nobody verifies: use `on` or `optional`"
                );
                self.faults.close("UnsupportedAnnotation", &note);
                return None;
            }
        };
        let key = parse_reference(secret, &self.key.namespace);
        let authority = find_secret(self.objects, &self.key.namespace, &key)
            .and_then(|secret| secret_part(secret, &key, "ca.crt"))
            .and_then(|pem| match ClientCertificates::check_authority(&pem) {
                Ok(()) => Ok(pem),
                Err(_) => Err(format!("ca.crt of the Secret {key} has no certificates in PEM")),
            });
        let pem = match authority {
            Ok(pem) => pem,
            Err(note) => {
                self.faults.close("InvalidSecret", &note);
                return None;
            }
        };
        let mut table = Map::new();
        table.insert("ca".to_owned(), json!(self.files.add("authorities", &key, "ca.crt", pem)));
        table.insert("required".to_owned(), json!(is_required));
        if let Some(subject) = self.text("auth-tls-match-cn").filter(|text| !text.is_empty()) {
            let pattern = format!("~ {subject}");
            if shapes::pattern::ValuePattern::parse(&pattern).is_err() || !subject.starts_with("CN=") {
                let note = format!("auth-tls-match-cn {subject:?} is not an expression that begins with CN=");
                self.faults.close("InvalidAnnotation", &note);
                return None;
            }
            table.insert("subject".to_owned(), json!(pattern));
        }
        let passes = self.text("auth-tls-pass-certificate-to-upstream").and_then(values::flag) == Some(true);
        Some(ClientAuthority { table: Value::Object(table), passes_certificate: passes })
    }
}
