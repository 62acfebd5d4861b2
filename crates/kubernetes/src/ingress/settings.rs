//! All annotations of an Ingress.

use std::collections::BTreeSet;

use other_servers::{INGRESS_PREFIX, IngressVerdict, ingress_annotation};
use serde_json::{Map, Value, json};
use shapes::header;

use crate::allowance::text_bytes;
use crate::escape;
use crate::ingress::faults::Faults;
use crate::ingress::guards::{Annotations, Authentication, ClientAuthority, GuardContext, Networks};
use crate::ingress::references::{
    MemoryFolder, NamedUrl, find_config_map, find_secret, parse_reference, secret_part,
};
use crate::ingress::values;
use crate::objects::{ConfigMap, Ingress, ObjectKey, Objects};

/// Entries of a ConfigMap that are used.
const ENTRIES_MAX: usize = 100;
/// Name of the cookie of `affinity`.
const AFFINITY_COOKIE: &str = "INGRESSCOOKIE";
/// Largest number of a limit.
const COUNT_MAX: u64 = 1_000_000;
/// `Strict-Transport-Security` and the like belong to the connection or the server, not to a ConfigMap.
const CONNECTION_FIELDS: [&str; 8] =
    ["connection", "content-length", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "date"];

/// How an Ingress wants its requests handled.
#[derive(Debug, Default, Clone)]
pub(crate) struct IngressSettings {
    /// Directives of its routes.
    pub(crate) route: Map<String, Value>,
    /// Directives of their `proxy`.
    pub(crate) proxy: Map<String, Value>,
    /// Directives of the groups of their servers.
    pub(crate) group: Map<String, Value>,
    /// The protocol of the Service; `None` for what its port says.
    pub(crate) scheme: Option<&'static str>,
    /// The redirect that answers in place of the Service.
    pub(crate) redirect: Option<Value>,
    pub(crate) networks: Networks,
    pub(crate) authentication: Option<Authentication>,
    /// Whether addresses or authentication suffice.
    pub(crate) satisfies_any: bool,
    /// The path, with groups of the expression, that the Service gets.
    pub(crate) rewrite: Option<String>,
    pub(crate) uses_expressions: bool,
    pub(crate) app_root: Option<String>,
    /// Whether requests without TLS are redirected where the host has a certificate.
    pub(crate) redirects_to_tls: bool,
    /// Whether they are redirected in any case.
    pub(crate) forces_tls: bool,
    pub(crate) client_authority: Option<ClientAuthority>,
    pub(crate) aliases: Vec<String>,
    pub(crate) redirects_www: bool,
    pub(crate) is_passed_through: bool,
    /// Service that answers where the one of the path has no endpoints.
    pub(crate) default_backend: Option<String>,
    /// Statuses whose responses are replaced by those of `default_backend`.
    pub(crate) error_statuses: Vec<u16>,
    pub(crate) uses_service_address: bool,
    /// Target of copies, and the table `mirror` without `to`.
    pub(crate) mirror: Option<(NamedUrl, Map<String, Value>, Option<String>)>,
    pub(crate) canary: Option<CanaryRules>,
    /// Cookie that keeps a client on its branch of a canary.
    pub(crate) split_cookie: Option<String>,
}

impl IngressSettings {
    /// Returns the length of the directives of each route, in bytes.
    pub(super) fn route_bytes(&self) -> usize {
        let tables = [&self.route, &self.proxy].into_iter().flatten();
        let tables: usize = tables.map(|(name, value)| name.len() + 4 + text_bytes(value)).sum();
        let networks = [&self.networks.allow, &self.networks.deny].into_iter().flatten().flatten();
        tables + networks.map(|network| network.len() + 3).sum::<usize>()
    }
}

/// Which requests a canary gets.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CanaryRules {
    /// Name of the field and the value, if it has one of its own.
    pub(crate) header: Option<(String, Option<String>)>,
    pub(crate) cookie: Option<String>,
    pub(crate) weight: u64,
    pub(crate) weight_total: u64,
    pub(crate) ignores_affinity: bool,
}

/// Reads the annotations of an Ingress. Those that cannot be followed are noted in `faults`.
pub(crate) fn read_settings(
    objects: &Objects,
    key: &ObjectKey,
    ingress: &Ingress,
    faults: &mut Faults,
    files: &mut MemoryFolder<'_>,
) -> IngressSettings {
    let all: Annotations<'_> = ingress
        .metadata
        .annotations
        .iter()
        .filter_map(|(name, value)| Some((name.strip_prefix(INGRESS_PREFIX)?, value.as_str())))
        .collect();
    let mut reader = SettingsReader { objects, key, all: &all, faults, settings: IngressSettings::default() };
    if reader.flag("canary") == Some(true) {
        // All other annotations are those of the main Ingress.
        reader.read_canary();
        return reader.settings;
    }
    reader.report_refused();
    reader.read_route();
    reader.read_proxy();
    reader.read_servers(files);
    reader.read_hosts();
    reader.read_mirror();
    let SettingsReader { mut settings, faults, .. } = reader;
    let mut guards = GuardContext { objects, key, annotations: &all, faults, files };
    settings.networks = guards.networks();
    settings.authentication = guards.authentication();
    settings.client_authority = guards.client_authority();
    match all.get("satisfy").copied().unwrap_or("all") {
        "" | "all" => {}
        "any" => {
            settings.satisfies_any = settings.networks.allow.is_some() && settings.authentication.is_some();
        }
        other => faults.close("InvalidAnnotation", &format!("satisfy {other:?} is neither all nor any")),
    }
    settings
}

struct SettingsReader<'a, 'f> {
    objects: &'a Objects,
    key: &'a ObjectKey,
    all: &'a Annotations<'a>,
    faults: &'f mut Faults,
    settings: IngressSettings,
}

impl<'a> SettingsReader<'a, '_> {
    fn text(&self, name: &str) -> Option<&'a str> {
        self.all.get(name).map(|text| text.trim()).filter(|text| !text.is_empty())
    }

    fn flag(&self, name: &str) -> Option<bool> {
        self.text(name).and_then(values::flag)
    }

    /// Notes a value that is not followed, which refuses nobody.
    fn invalid(&mut self, name: &str, wanted: &str) {
        let note =
            format!("{name} {:?} is not {wanted}: it has no effect", self.text(name).unwrap_or_default());
        self.faults.warn("InvalidAnnotation", &note);
    }

    fn number(&mut self, name: &str, wanted: &str) -> Option<u64> {
        let number = self.text(name)?.parse::<u64>().ok();
        if number.is_none() {
            self.invalid(name, wanted);
        }
        number
    }

    fn seconds(&mut self, name: &str) -> Option<u64> {
        let seconds = values::seconds(self.text(name)?);
        if seconds.is_none() {
            self.invalid(name, "a number of seconds");
        }
        seconds
    }

    /// Reports annotations that are never followed, and those that nobody knows.
    fn report_refused(&mut self) {
        for (name, value) in self.all {
            let is_off = matches!(value.trim(), "" | "false" | "off" | "\"false\"");
            match ingress_annotation(name) {
                Some(row) if row.verdict == IngressVerdict::Refused && !is_off => {
                    let note = format!("{name} is not followed: {}", row.text);
                    if row.guards {
                        self.faults.close("UnsupportedAnnotation", &note);
                    } else {
                        self.faults.warn("UnsupportedAnnotation", &note);
                    }
                }
                Some(_) => {}
                None => {
                    let note = format!(
                        "{name} is no annotation of ingress-nginx, and may be meant to refuse requests: correct its name, or remove it"
                    );
                    self.faults.close("UnknownAnnotation", &note);
                }
            }
        }
    }

    /// Directives of routes: limits, CORS, redirects, fields, logs.
    fn read_route(&mut self) {
        let body = match self.text("proxy-body-size").map(values::size) {
            None => Some(1 << 20),
            Some(Some(bytes)) => Some(bytes).filter(|bytes| *bytes > 0),
            Some(None) => {
                self.invalid("proxy-body-size", "a size such as `8m`");
                Some(1 << 20)
            }
        };
        let body = body.map_or("unlimited".to_owned(), |bytes| format!("{bytes}B"));
        self.settings.route.insert("limits".to_owned(), json!({ "body": body }));
        self.read_limits();
        self.read_bandwidth();
        self.read_cors();
        self.read_redirect();
        if self.flag("enable-access-log") == Some(false) {
            self.settings.route.insert("log".to_owned(), json!(false));
        }
        if let Some(map) = self.config_map("custom-headers") {
            let fields = self.header_fields(&map);
            self.settings.route.insert("response_headers".to_owned(), json!({ "set": fields }));
        }
        self.settings.rewrite = self.text("rewrite-target").map(str::to_owned);
        self.settings.uses_expressions = self.flag("use-regex") == Some(true);
        if let Some(root) = self.text("app-root").map(str::to_owned) {
            match values::redirect_target(&root) {
                Some(to) => self.settings.app_root = Some(to),
                None => self.invalid("app-root", "a path such as `/app`"),
            }
        }
    }

    fn read_limits(&mut self) {
        let factor = match self.number("limit-burst-multiplier", "a number") {
            Some(0) | None => 5,
            Some(factor) => factor.min(COUNT_MAX),
        };
        let mut except = None;
        for name in ["limit-allowlist", "limit-whitelist"] {
            match self.text(name).map(values::networks) {
                Some(Some(networks)) if !networks.is_empty() => except = Some(networks),
                Some(None) => self.invalid(name, "a list of networks"),
                _ => {}
            }
        }
        let mut limits = Vec::new();
        let mut add = |mut table: Value| {
            table["status"] = json!(503);
            if let Some(except) = &except {
                table["except"] = json!(except);
            }
            limits.push(table);
        };
        if let Some(count) = self.number("limit-connections", "a number").filter(|count| *count > 0) {
            add(json!({ "concurrent": count.min(COUNT_MAX) }));
        }
        for (name, unit) in [("limit-rpm", "m"), ("limit-rps", "s")] {
            if let Some(count) = self.number(name, "a number").filter(|count| *count > 0) {
                let count = count.min(COUNT_MAX);
                let burst = (count * factor).min(COUNT_MAX);
                add(json!({ "rate": format!("{count}/{unit}"), "burst": burst }));
            }
        }
        if !limits.is_empty() {
            self.settings.route.insert("limit".to_owned(), Value::Array(limits));
        }
    }

    fn read_bandwidth(&mut self) {
        const KIB_MAX: u64 = 1 << 30;
        let after = self.number("limit-rate-after", "a number of KiB").unwrap_or(0).min(KIB_MAX);
        if let Some(rate) = self.number("limit-rate", "a number of KiB a second").filter(|rate| *rate > 0) {
            let table =
                json!({ "rate": format!("{}KiB/s", rate.min(KIB_MAX)), "after": format!("{after}KiB") });
            self.settings.route.insert("bandwidth".to_owned(), table);
        }
    }

    fn read_cors(&mut self) {
        if self.flag("enable-cors") != Some(true) {
            return;
        }
        let listed = |name: &str, usual: &'static str| values::list(self.text(name).unwrap_or(usual));
        let origins = listed("cors-allow-origin", "*");
        let is_any = origins.contains(&"*");
        let mut table = Map::new();
        table.insert("origins".to_owned(), json!(if is_any { vec!["*"] } else { origins }));
        table.insert(
            "methods".to_owned(),
            json!(listed("cors-allow-methods", "GET, PUT, POST, DELETE, PATCH, OPTIONS")),
        );
        let usual = "DNT, Keep-Alive, User-Agent, X-Requested-With, If-Modified-Since, Cache-Control, Content-Type, Range, Authorization";
        table.insert("headers".to_owned(), json!(listed("cors-allow-headers", usual)));
        let exposed = listed("cors-expose-headers", "");
        if !exposed.is_empty() && !exposed.contains(&"*") {
            table.insert("expose".to_owned(), json!(exposed));
        }
        let credentials = self.flag("cors-allow-credentials").unwrap_or(true);
        if is_any && self.text("cors-allow-credentials").is_some() && credentials {
            let note = "cors-allow-credentials needs cors-allow-origin with names: browsers send no credentials where every origin is allowed";
            self.faults.warn("InvalidAnnotation", note);
        }
        table.insert("credentials".to_owned(), json!(credentials && !is_any));
        let age = self.seconds("cors-max-age").unwrap_or(86_400);
        table.insert("max_age".to_owned(), json!(format!("{age}s")));
        self.settings.route.insert("cors".to_owned(), Value::Object(table));
    }

    fn read_redirect(&mut self) {
        for (name, code, usual) in [
            ("temporal-redirect", "temporal-redirect-code", 302),
            ("permanent-redirect", "permanent-redirect-code", 301),
        ] {
            let Some(target) = self.text(name).map(str::to_owned) else { continue };
            let status = match self.number(code, "a status").unwrap_or(usual) {
                status @ (301 | 302 | 303 | 307 | 308) => status,
                _ => {
                    self.invalid(code, "one of 301, 302, 303, 307 and 308");
                    usual
                }
            };
            match values::redirect_target(&target) {
                Some(to) => self.settings.redirect = Some(json!({ "to": to, "status": status })),
                None => {
                    // The Service is not meant to get these requests.
                    let note = format!(
                        "{name} {target:?} is not a URL with at most $scheme, $host, $request_uri, $uri and $args"
                    );
                    self.faults.close("InvalidAnnotation", &note);
                }
            }
            return;
        }
    }

    fn config_map(&mut self, name: &str) -> Option<ConfigMap> {
        let key = parse_reference(self.text(name)?, &self.key.namespace);
        match find_config_map(self.objects, &self.key.namespace, &key) {
            Ok(map) => Some(map.clone()),
            Err(note) => {
                self.faults.warn("ConfigMapNotFound", &format!("{name}: {note}: it has no effect"));
                None
            }
        }
    }

    fn header_fields(&mut self, map: &ConfigMap) -> Map<String, Value> {
        let mut fields = Map::new();
        for (name, value) in map.data.iter().take(ENTRIES_MAX) {
            let parsed =
                header::parse_name(name).ok().filter(|name| !CONNECTION_FIELDS.contains(&name.as_str()));
            let is_line = value.trim().chars().all(|c| !c.is_control());
            match parsed.filter(|_| is_line) {
                Some(name) => _ = fields.insert(name, json!(escape::template(value.trim()))),
                None => {
                    let note = format!("custom-headers: the field {name:?} cannot be set: remove it");
                    self.faults.warn("InvalidAnnotation", &note);
                }
            }
        }
        fields
    }

    /// Directives of the proxy: timeouts, retries, fields, buffers.
    fn read_proxy(&mut self) {
        let mut timeouts = Map::new();
        let longest = |seconds: u64| format!("{}s", seconds.max(1));
        if let Some(seconds) = self.seconds("proxy-connect-timeout") {
            timeouts.insert("connect".to_owned(), json!(longest(seconds)));
        }
        if let Some(seconds) = self.seconds("proxy-read-timeout") {
            timeouts.insert("head".to_owned(), json!(longest(seconds)));
            timeouts.insert("between".to_owned(), json!(longest(seconds)));
            // Upgraded connections end after this time without a byte, too.
            timeouts.insert("tunnel".to_owned(), json!(longest(seconds)));
        }
        if !timeouts.is_empty() {
            self.settings.proxy.insert("timeouts".to_owned(), Value::Object(timeouts));
        }
        self.read_retry();
        if let Some(host) = self.text("upstream-vhost").map(str::to_owned) {
            match host.as_str() {
                "$host" | "$http_host" => {}
                host if escape::is_host(host) && !matches!(host, "pass" | "upstream") => {
                    self.settings.proxy.insert("host".to_owned(), json!(host));
                }
                _ => self.invalid("upstream-vhost", "a host name"),
            }
        }
        if let Some(prefix) = self.text("x-forwarded-prefix").map(escape::template) {
            self.settings
                .proxy
                .insert("request_headers".to_owned(), json!({ "set": { "x-forwarded-prefix": prefix } }));
        }
        if let Some(bytes) = self.text("proxy-max-temp-file-size").map(values::size) {
            match bytes {
                Some(bytes) => _ = self.settings.proxy.insert("spill".to_owned(), json!(format!("{bytes}B"))),
                None => self.invalid("proxy-max-temp-file-size", "a size such as `1024m`"),
            }
        }
        if let Some(text) = self.text("proxy-cookie-domain").filter(|text| *text != "off").map(str::to_owned)
        {
            let words: Vec<&str> = text.split_whitespace().collect();
            match words.as_slice() {
                [from, to] if escape::is_host(from) && escape::is_host(to) => {
                    let from = from.trim_start_matches('.');
                    self.settings.proxy.insert("cookie_domains".to_owned(), json!({ from: to }));
                }
                _ => self.invalid("proxy-cookie-domain", "two domains, with a space between"),
            }
        }
        self.read_locations();
    }

    fn read_locations(&mut self) {
        let from = self.text("proxy-redirect-from").unwrap_or("default").to_owned();
        let to = self.text("proxy-redirect-to").map(str::to_owned);
        match (from.as_str(), to) {
            ("off", _) => _ = self.settings.proxy.insert("rewrite".to_owned(), json!(false)),
            ("default", None) => {}
            ("default", Some(to)) if to == "off" => {}
            (from, Some(to)) if from != "default" && from.chars().all(|c| c.is_ascii_graphic()) => {
                match values::template(&to) {
                    Some(to) => _ = self.settings.proxy.insert("locations".to_owned(), json!({ from: to })),
                    None => {
                        self.invalid("proxy-redirect-to", "a URL with at most $scheme, $host, $uri and $args")
                    }
                }
            }
            _ => self.invalid(
                "proxy-redirect-from",
                "`off`, `default`, or the beginning of a URL beside proxy-redirect-to",
            ),
        }
    }

    fn read_retry(&mut self) {
        let mut retry = Map::new();
        if let Some(text) = self.text("proxy-next-upstream").map(str::to_owned) {
            let words: Vec<&str> = text.split_whitespace().collect();
            if words.contains(&"off") {
                self.settings.proxy.insert("retry".to_owned(), json!(false));
                return;
            }
            let mut statuses = Vec::new();
            for word in words {
                let status = word.strip_prefix("http_").and_then(|code| code.parse::<u16>().ok());
                match (word, status.filter(|code| (400..600).contains(code))) {
                    (_, Some(status)) => statuses.push(status),
                    ("non_idempotent", _) => _ = retry.insert("non_idempotent".to_owned(), json!(true)),
                    // An invalid head is a failure in any case.
                    ("error" | "timeout" | "invalid_header" | "updating", _) => {}
                    _ => self.invalid(
                        "proxy-next-upstream",
                        "a list of conditions such as `error timeout http_502`",
                    ),
                }
            }
            if !statuses.is_empty() {
                retry.insert("statuses".to_owned(), json!(statuses));
            }
        }
        match self.number("proxy-next-upstream-tries", "a number") {
            // 0 is for every server.
            Some(0) => _ = retry.insert("attempts".to_owned(), json!(100)),
            Some(count) => _ = retry.insert("attempts".to_owned(), json!(count.min(100))),
            None => {}
        }
        if !retry.is_empty() {
            self.settings.proxy.insert("retry".to_owned(), Value::Object(retry));
        }
    }

    /// Directives of the groups: protocol, TLS, balancing.
    fn read_servers(&mut self, files: &mut MemoryFolder<'_>) {
        let protocol = self.text("backend-protocol").unwrap_or("").to_ascii_uppercase();
        self.settings.scheme = match protocol.as_str() {
            "" => None,
            "HTTP" | "AUTO_HTTP" => Some("http"),
            "HTTPS" => Some("https"),
            "GRPC" => Some("h2c"),
            "GRPCS" => {
                self.settings.group.insert("http".to_owned(), json!("2"));
                Some("https")
            }
            "FCGI" => Some("fastcgi"),
            _ => {
                self.invalid("backend-protocol", "one of HTTP, HTTPS, GRPC, GRPCS and FCGI");
                None
            }
        };
        if self.settings.scheme == Some("https") {
            let tls = self.server_tls(files);
            self.settings.group.insert("tls".to_owned(), Value::Object(tls));
        }
        if self.settings.scheme == Some("fastcgi") {
            self.read_fastcgi();
        }
        self.read_balance();
        self.settings.uses_service_address = self.flag("service-upstream") == Some(true);
        self.settings.default_backend = self.text("default-backend").map(str::to_owned);
        self.read_error_statuses();
    }

    fn read_error_statuses(&mut self) {
        let Some(text) = self.text("custom-http-errors") else { return };
        if self.flag("disable-proxy-intercept-errors") == Some(true) {
            return;
        }
        let status = |text: &str| text.trim().parse().ok().filter(|status| (400..=599).contains(status));
        let Some(statuses) = text.split(',').map(status).collect::<Option<BTreeSet<u16>>>() else {
            return self
                .invalid("custom-http-errors", "a list of statuses from 400 to 599, such as `404,503`");
        };
        if self.settings.default_backend.is_none() {
            let note = "custom-http-errors without default-backend: there is no default backend of all Ingresses here, so errors reach \
                        the client as they are; name the Service that writes the pages in default-backend";
            self.faults.warn("InvalidAnnotation", note);
            return;
        }
        self.settings.error_statuses = statuses.into_iter().collect();
    }

    fn server_tls(&mut self, files: &mut MemoryFolder<'_>) -> Map<String, Value> {
        let mut table = Map::new();
        let verifies = matches!(self.text("proxy-ssl-verify"), Some("on" | "true"));
        table.insert("verify".to_owned(), json!(verifies));
        match self.text("proxy-ssl-name").map(str::to_owned) {
            Some(name) if escape::is_host(&name) => _ = table.insert("name".to_owned(), json!(name)),
            Some(_) => {
                self.invalid("proxy-ssl-name", "a host name");
                if verifies {
                    self.faults.close(
                        "InvalidAnnotation",
                        "proxy-ssl-name is needed to verify the Service's certificate",
                    );
                }
            }
            None => {}
        }
        let Some(name) = self.text("proxy-ssl-secret").map(str::to_owned) else { return table };
        let key = parse_reference(&name, &self.key.namespace);
        let secret = match find_secret(self.objects, &self.key.namespace, &key) {
            Ok(secret) => secret,
            Err(note) => {
                self.faults.close("InvalidSecret", &format!("proxy-ssl-secret: {note}"));
                return table;
            }
        };
        // Without verification it says nothing.
        if verifies && secret.data.contains_key("ca.crt") {
            match secret_part(secret, &key, "ca.crt") {
                Ok(pem) if net::ClientCertificates::check_authority(&pem).is_ok() => {
                    table.insert("ca".to_owned(), json!(files.add("authorities", &key, "ca.crt", pem)));
                }
                _ => {
                    let note = format!("ca.crt of the Secret {key} has no certificates in PEM");
                    self.faults.close("InvalidSecret", &note);
                }
            }
        }
        if secret.data.contains_key("tls.crt") {
            let pair = secret_part(secret, &key, "tls.crt")
                .and_then(|chain| Ok((chain, secret_part(secret, &key, "tls.key")?)));
            match pair {
                Ok((chain, private)) if net::ServerCertificate::from_pem(&chain, &private).is_ok() => {
                    table.insert(
                        "certificate".to_owned(),
                        json!(files.add("clients", &key, "tls.crt", chain)),
                    );
                    table.insert("key".to_owned(), json!(files.add("clients", &key, "tls.key", private)));
                }
                _ => {
                    let note = format!("the Secret {key} has no certificate with its key (tls.crt, tls.key)");
                    self.faults.close("InvalidSecret", &note);
                }
            }
        }
        table
    }

    fn read_fastcgi(&mut self) {
        let Some(map) = self.config_map("fastcgi-params-configmap") else { return };
        let mut variables = Map::new();
        for (name, value) in map.data.iter().take(ENTRIES_MAX) {
            let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            let parts: Vec<String> =
                value.trim().split("$fastcgi_script_name").map(escape::template).collect();
            if is_name && !parts.iter().any(|part| part.contains("$$")) {
                variables.insert(name.clone(), json!(parts.join("${path}")));
            } else {
                let note = format!(
                    "fastcgi-params-configmap: {name:?} is left out: a value may have $fastcgi_script_name, and no other variable"
                );
                self.faults.warn("InvalidAnnotation", &note);
            }
        }
        self.settings.proxy.insert("variables".to_owned(), Value::Object(variables));
    }

    fn read_balance(&mut self) {
        let key = self.text("upstream-hash-by").map(str::to_owned);
        let method = self.text("load-balance").unwrap_or("round_robin").to_owned();
        let hash = key.as_deref().map(values::hash_balance);
        if let Some(None) = hash {
            self.invalid(
                "upstream-hash-by",
                "one of $request_uri, $remote_addr, $http_NAME and $cookie_NAME",
            );
        }
        let balance = match (hash.flatten(), method.as_str()) {
            (Some(hash), _) => Some(hash),
            (None, "ewma") => Some("two-choices".to_owned()),
            (None, "least_conn") => Some("least-requests".to_owned()),
            (None, "round_robin") => None,
            _ => {
                self.invalid("load-balance", "round_robin or ewma");
                None
            }
        };
        match self.text("affinity").map(str::to_owned).as_deref() {
            None => {}
            Some("cookie") => {
                self.read_affinity();
                return;
            }
            Some(_) => self.invalid("affinity", "`cookie`"),
        }
        if let Some(balance) = balance {
            self.settings.group.insert("balance".to_owned(), json!(balance));
        }
    }

    fn read_affinity(&mut self) {
        let is_token = |text: &str| shapes::names::parse_cookie_name(text).is_ok();
        let name = match self.text("session-cookie-name").map(str::to_owned) {
            Some(name) if is_token(&name) => name,
            Some(_) => {
                self.invalid("session-cookie-name", "the name of a cookie");
                AFFINITY_COOKIE.to_owned()
            }
            None => AFFINITY_COOKIE.to_owned(),
        };
        self.settings.group.insert("balance".to_owned(), json!(format!("sticky:{name}")));
        let mut cookie = Map::new();
        for (annotation, key) in [("session-cookie-path", "path"), ("session-cookie-domain", "domain")] {
            if let Some(text) = self.text(annotation).map(str::to_owned) {
                cookie.insert(key.to_owned(), json!(text));
            }
        }
        for annotation in ["session-cookie-max-age", "session-cookie-expires"] {
            if let Some(seconds) =
                self.number(annotation, "a number of seconds").filter(|seconds| *seconds > 0)
            {
                let seconds = seconds.min(400 * 86_400);
                cookie.entry("max_age").or_insert_with(|| json!(format!("{seconds}s")));
            }
        }
        match self.text("session-cookie-samesite").map(str::to_ascii_lowercase).as_deref() {
            None => {}
            Some("strict") => _ = cookie.insert("same_site".to_owned(), json!("Strict")),
            Some("lax") => _ = cookie.insert("same_site".to_owned(), json!("Lax")),
            Some("none") => _ = cookie.insert("same_site".to_owned(), json!("None")),
            Some(_) => self.invalid("session-cookie-samesite", "one of Strict, Lax and None"),
        }
        let is_for_all_sites = cookie.get("same_site").is_some_and(|value| value == "None");
        match self.flag("session-cookie-secure") {
            None => {}
            Some(false) if is_for_all_sites => self.faults.warn(
                "InvalidAnnotation",
                "session-cookie-secure \"false\" has no effect with session-cookie-samesite \"None\": browsers refuse such a cookie",
            ),
            Some(is_secure) => _ = cookie.insert("secure".to_owned(), json!(is_secure)),
        }
        if !cookie.is_empty() {
            self.settings.proxy.insert("sticky".to_owned(), Value::Object(cookie));
        }
        self.settings.split_cookie = Some(format!("{name}-canary"));
    }

    /// What concerns whole hosts.
    fn read_hosts(&mut self) {
        self.settings.redirects_to_tls = self.flag("ssl-redirect") != Some(false);
        self.settings.forces_tls = self.flag("force-ssl-redirect") == Some(true);
        self.settings.redirects_www = self.flag("from-to-www-redirect") == Some(true);
        self.settings.is_passed_through = self.flag("ssl-passthrough") == Some(true);
        let aliases = self.text("server-alias").unwrap_or_default();
        for alias in values::list(aliases) {
            let alias = alias.to_ascii_lowercase();
            if shapes::host::HostPattern::parse(&alias).is_ok() {
                self.settings.aliases.push(alias);
            } else {
                let note =
                    format!("server-alias {alias:?} is not a host such as `example.com` or `*.example.com`");
                self.faults.warn("InvalidAnnotation", &note);
            }
        }
    }

    fn read_mirror(&mut self) {
        let Some(target) = self.text("mirror-target").map(str::to_owned) else { return };
        let url = NamedUrl::parse(&target);
        let Some(url) = url.ok().filter(|url| {
            matches!(url.rest.as_str(), "" | "/" | "$request_uri" | "/$request_uri") && url.host != "$host"
        }) else {
            let note = format!(
                "mirror-target {target:?} is not a URL without a path, such as `https://copy.example.com$request_uri`: nothing is copied"
            );
            self.faults.warn("InvalidAnnotation", &note);
            return;
        };
        let mut table = Map::new();
        if matches!(self.text("mirror-request-body"), Some("off" | "false")) {
            table.insert("body_max".to_owned(), json!("0B"));
        }
        let host = match self.text("mirror-host").map(str::to_owned) {
            Some(host) if escape::is_host(&host) && !matches!(host.as_str(), "pass" | "upstream") => {
                Some(host)
            }
            Some(host) if host == "$host" => None,
            Some(_) => {
                self.invalid("mirror-host", "a host name");
                Some(url.host.clone())
            }
            None => Some(url.host.clone()),
        };
        self.settings.mirror = Some((url, table, host));
    }

    fn read_canary(&mut self) {
        let header = self.text("canary-by-header").map(str::to_owned);
        let value = self.text("canary-by-header-value").map(escape::exact_value);
        let pattern = self.text("canary-by-header-pattern").map(|pattern| format!("~ {pattern}"));
        let value = value.or(pattern);
        let is_valid = value.as_deref().is_none_or(|text| shapes::pattern::ValuePattern::parse(text).is_ok());
        if !is_valid {
            self.invalid("canary-by-header-pattern", "a regular expression");
        }
        let header = match header.filter(|_| is_valid) {
            Some(name) => match header::parse_name(&name) {
                Ok(name) => Some((name, value)),
                Err(_) => {
                    self.invalid("canary-by-header", "the name of a header field");
                    None
                }
            },
            None => None,
        };
        let cookie = self.text("canary-by-cookie").map(str::to_owned);
        let cookie = cookie.filter(|name| shapes::names::parse_cookie_name(name).is_ok());
        let weight_total =
            self.number("canary-weight-total", "a number").filter(|total| *total > 0).unwrap_or(100);
        let weight = self.number("canary-weight", "a number").unwrap_or(0);
        self.read_balance();
        self.settings.canary = Some(CanaryRules {
            header,
            cookie,
            weight: weight.min(weight_total).min(COUNT_MAX),
            weight_total: weight_total.min(COUNT_MAX),
            ignores_affinity: self.text("affinity-canary-behavior") == Some("legacy"),
        });
    }
}
