//! Secrets, ConfigMaps and URLs that annotations name.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;

use data_encoding::BASE64;

use crate::escape;
use crate::grants::{CrossReference, is_reference_allowed};
use crate::objects::{ConfigMap, INGRESS_GROUP, ObjectKey, Objects, Secret};
use crate::options::MEMORY_FOLDER;

/// Bytes of a URL.
const URL_BYTES_MAX: usize = 2048;

/// Reads `NAME` or `NAMESPACE/NAME`.
pub(crate) fn parse_reference(text: &str, namespace: &str) -> ObjectKey {
    match text.trim().split_once('/') {
        Some((namespace, name)) => ObjectKey::new(namespace, name),
        None => ObjectKey::new(namespace, text.trim()),
    }
}

/// Whether an Ingress of a namespace may name an object.
pub(crate) fn may_name(objects: &Objects, namespace: &str, kind: &str, to: &ObjectKey) -> bool {
    let reference = CrossReference {
        from_group: INGRESS_GROUP,
        from_kind: "Ingress",
        from_namespace: namespace,
        to_group: "",
        to_kind: kind,
        to,
    };
    is_reference_allowed(objects, &reference)
}

fn not_permitted(kind: &str, to: &ObjectKey) -> String {
    format!("no ReferenceGrant in the namespace {} allows this Ingress the {kind} {}", to.namespace, to.name)
}

/// Finds a Secret that an Ingress of a namespace names.
pub(crate) fn find_secret<'o>(
    objects: &'o Objects,
    namespace: &str,
    key: &ObjectKey,
) -> Result<&'o Secret, String> {
    // Asked first, so that a reference does not reveal whether the object exists.
    if !may_name(objects, namespace, "Secret", key) {
        return Err(not_permitted("Secret", key));
    }
    let found = objects.secrets.get(key);
    found
        .map(|secret| &**secret)
        .ok_or_else(|| format!("there is no Secret {key} of the type Opaque or kubernetes.io/tls"))
}

/// Finds a ConfigMap that an Ingress of a namespace names.
pub(crate) fn find_config_map<'o>(
    objects: &'o Objects,
    namespace: &str,
    key: &ObjectKey,
) -> Result<&'o ConfigMap, String> {
    if !may_name(objects, namespace, "ConfigMap", key) {
        return Err(not_permitted("ConfigMap", key));
    }
    let found = objects.config_maps.get(key);
    found.map(|map| &**map).ok_or_else(|| format!("there is no ConfigMap {key}"))
}

/// Returns a part of a Secret, decoded.
pub(crate) fn secret_part(secret: &Secret, key: &ObjectKey, name: &str) -> Result<Vec<u8>, String> {
    let text = secret.data.get(name).ok_or_else(|| format!("the Secret {key} has no {name}"))?;
    BASE64.decode(text.as_bytes()).map_err(|_| format!("{name} of the Secret {key} is not base64"))
}

/// Files that the configuration finds in memory.
pub(crate) struct MemoryFolder<'a>(pub(crate) &'a mut BTreeMap<String, Vec<u8>>);

impl MemoryFolder<'_> {
    /// Adds a file of an object, and returns its name, which changes with its content: what has read it is then made anew.
    pub(crate) fn add(&mut self, folder: &str, key: &ObjectKey, name: &str, content: Vec<u8>) -> String {
        let mut hasher = DefaultHasher::new();
        content.hash(&mut hasher);
        let version = hasher.finish();
        let path = format!("{MEMORY_FOLDER}/{folder}/{}/{}/{version:016x}/{name}", key.namespace, key.name);
        self.0.insert(path.clone(), content);
        path
    }
}

/// A URL that an annotation names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NamedUrl {
    /// `http` or `https`.
    pub(crate) scheme: &'static str,
    /// A name, an IP address, or `$host`.
    pub(crate) host: String,
    pub(crate) port: Option<u16>,
    /// Path and query; empty, or begins with a slash.
    pub(crate) rest: String,
}

impl NamedUrl {
    /// Parses `http://HOST[:PORT][/PATH]`; `$scheme` and `$host` may stand for those of the request.
    pub(crate) fn parse(text: &str) -> Result<NamedUrl, String> {
        let fault = || format!("{text:?} is not a URL such as \"http://auth.example.com/verify\"");
        let text = text.trim();
        if text.len() > URL_BYTES_MAX {
            return Err(format!("a URL has at most {URL_BYTES_MAX} bytes"));
        }
        let (scheme, rest) = text.split_once("://").ok_or_else(fault)?;
        let scheme = match scheme {
            "http" => "http",
            // Whoever asks by the scheme of the request wants TLS where there is TLS.
            "https" | "$scheme" => "https",
            _ => return Err(fault()),
        };
        let at = rest.find(['/', '?', '$']).filter(|at| !rest[*at..].starts_with("$host"));
        let at = at.or_else(|| {
            let start = rest.strip_prefix("$host")?;
            Some(start.find(['/', '?', '$']).map_or(rest.len(), |at| at + "$host".len()))
        });
        let (authority, rest) = rest.split_at(at.unwrap_or(rest.len()));
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => {
                (host, Some(port.parse::<u16>().map_err(|_| fault())?))
            }
            _ => (authority, None),
        };
        let is_v6 = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .is_some_and(|host| host.parse::<IpAddr>().is_ok());
        if !(host == "$host" || is_v6 || escape::is_host(host)) || port == Some(0) {
            return Err(fault());
        }
        if !rest.chars().all(|c| c.is_ascii_graphic() && c != '#') {
            return Err(fault());
        }
        let rest = if rest.starts_with('?') { format!("/{rest}") } else { rest.to_owned() };
        Ok(NamedUrl { scheme, host: host.to_ascii_lowercase(), port, rest })
    }

    /// Returns `SCHEME://HOST[:PORT]`.
    pub(crate) fn origin(&self) -> String {
        match self.port {
            Some(port) => format!("{}://{}:{port}", self.scheme, self.host),
            None => format!("{}://{}", self.scheme, self.host),
        }
    }

    /// Returns the port, or that of the scheme.
    pub(crate) fn port_number(&self) -> u16 {
        self.port.unwrap_or(if self.scheme == "https" { 443 } else { 80 })
    }

    /// Returns the Service that the cluster's DNS finds by this host, if it is such a name: `NAME`, `NAME.NAMESPACE`, and
    /// both below `svc`.
    pub(crate) fn service(&self, objects: &Objects, namespace: &str) -> Option<ObjectKey> {
        if self.host.starts_with('[') || self.host.starts_with('$') || self.host.parse::<IpAddr>().is_ok() {
            return None;
        }
        let labels: Vec<&str> = self.host.trim_end_matches('.').split('.').collect();
        match labels.as_slice() {
            [name] => Some(ObjectKey::new(namespace, name)),
            [name, other] => {
                let is_namespace = objects.namespaces.contains_key(&ObjectKey::new("", other))
                    || objects.services.contains_key(&ObjectKey::new(other, name));
                is_namespace.then(|| ObjectKey::new(other, name))
            }
            [name, other, "svc", ..] => Some(ObjectKey::new(other, name)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_have_a_scheme_and_a_host() {
        let parsed = |text: &str| {
            NamedUrl::parse(text).map(|url| format!("{} {}", url.origin(), url.rest)).unwrap_or_default()
        };
        assert_eq!(parsed("http://a.example.com/x?y"), "http://a.example.com /x?y");
        assert_eq!(parsed("https://$host/oauth2/auth"), "https://$host /oauth2/auth");
        assert_eq!(parsed("$scheme://$host"), "https://$host ");
        assert_eq!(parsed("http://10.0.0.1:4180?x=1"), "http://10.0.0.1:4180 /?x=1");
        assert_eq!(parsed("http://[2001:db8::1]:80/"), "http://[2001:db8::1]:80 /");
        assert_eq!(parsed("https://copy$request_uri"), "https://copy $request_uri");
        for refused in [
            "unix:/run/docker.sock:/x",
            "http://unix:/run/docker.sock:/x",
            "fastcgi://a:9000/",
            "http:///x",
            "http://a b/",
            "http://a:0/",
            "http://a:99999/",
            "http://a/x y",
            "http://user@host/",
            "/x",
        ] {
            assert_eq!(parsed(refused), "", "{refused}");
        }
    }

    #[test]
    fn names_of_the_clusters_dns_are_services() {
        let objects = Objects::default();
        let service = |host: &str| {
            let url = NamedUrl::parse(&format!("http://{host}/")).unwrap();
            url.service(&objects, "own").map(|key| key.to_string()).unwrap_or_default()
        };
        assert_eq!(service("auth"), "own/auth");
        assert_eq!(service("auth.infra.svc"), "infra/auth");
        assert_eq!(service("auth.infra.svc.cluster.local."), "infra/auth");
        assert_eq!(service("auth.example.com"), "");
        assert_eq!(service("10.0.0.1"), "");
    }
}
