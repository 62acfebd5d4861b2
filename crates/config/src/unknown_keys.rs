//! Keys that their table does not define: the directive that was probably meant.

use settings::checker::{Advice, Checker, UnknownKey, shorten};
use settings::node::{Entry, NodeData};
use settings::shape::join_alternatives;
use settings::spelling::nearest_name;

use crate::hint;

/// Advice on faults, for people who know another server.
pub(crate) const ADVICE: Advice =
    Advice { table_example: hint::table_example, syntax_hint: hint::syntax_hint, report_unknown_key };

/// Keys that people write for TLS to clients, and the tables in which they write them.
const TLS_KEYS: [&str; 6] = ["tls", "ssl", "https", "ssl_certificate", "ssl_certificate_key", "certificate"];
const TLS_TABLES: [&str; 3] = ["Config", "Listener", "Site"];
/// Actions of routes, and the tables in which people write them without a route.
const ACTION_KEYS: [&str; 5] = ["files", "proxy", "app", "redirect", "respond"];
const ROUTES_TABLES: [(&str, &str); 2] = [("Config", "[[route]]"), ("Site", "[[site.route]]")];

/// Top-level keys that people write at the end of the file, where they belong to the last table.
const TOP_KEYS: [&str; 6] = ["listen", "threads", "user", "group", "include", "trusted_proxies"];

/// Keys that people give another name, by the table.
const COMMON_MISNOMERS: [(&str, &str, &str); 32] = [
    ("RateLimit", "nodelay", "remove it: without `delay` the whole `burst` passes at once"),
    ("RateLimit", "zone", "remove it: each limit has a table of its own, of `keys` entries"),
    (
        "CollectedMetrics",
        "listen",
        "metrics are served by `[control] listen = \"127.0.0.1:9180\"`, at `GET /metrics`",
    ),
    ("Mounted", "threads", "it belongs to the application: `threads` in `[apps.NAME]`"),
    ("Mounted", "workers", "it belongs to the application: `workers` in `[apps.NAME]`"),
    ("Timeouts", "keepalive", "here this is `idle`"),
    ("Timeouts", "keep_alive", "here this is `idle`"),
    ("Timeouts", "keepalive_timeout", "here this is `idle`"),
    (
        "Timeouts",
        "graceful_timeout",
        "here this is `drain`; applications have `timeouts = { stop = \"30s\" }` in `[apps.NAME]`",
    ),
    ("ControlToken", "token", "it stands in a file: write it there, and `token_file = \"FILE\"` here"),
    (
        "Log",
        "filter",
        "`only` says which requests are logged, `mask_query` and `mask_headers` what is hidden",
    ),
    ("Log", "format", "here this is `access`: `\"json\"`, `\"combined\"` or a text with variables"),
    ("Log", "output", "here this is `file`"),
    ("Log", "path", "here this is `file`"),
    ("Route", "client_max_body_size", "write `limits = { body = \"20MiB\" }`"),
    ("Site", "client_max_body_size", "write `limits = { body = \"20MiB\" }`"),
    ("Route", "basicauth", "write `auth = { basic = \"FILE\" }`"),
    ("Site", "basicauth", "write `auth = { basic = \"FILE\" }`"),
    (
        "Respond",
        "headers",
        "fields stand beside it: `response_headers = { set = { X-Name = \"value\" } }` in the route",
    ),
    (
        "Respond",
        "file",
        "a file is sent by `files = { root = \"FOLDER\", try = \"/NAME\" }` in place of `respond`",
    ),
    ("Respond", "content_type", "here this is `type`"),
    ("Proxy", "servers", "here this is `to`"),
    ("Health", "uri", "here this is `path`"),
    ("SiteTls", "cert", "here this is `certificate`"),
    ("Config", "log_level", "here this is `level` in `[log]`"),
    (
        "Config",
        "auto_https",
        "sites with `hosts` obtain certificates by themselves where an address speaks TLS (port 443); `redirect_https` sends clients there",
    ),
    ("Config", "admin", "here this is `[control]`, with its `listen`"),
    ("Config", "storage", "certificates are kept in `state` of `[acme]`"),
    ("Respond", "text", "here this is `body`: `respond = { body = \"...\" }`"),
    ("Respond", "content", "here this is `body`: `respond = { body = \"...\" }`"),
    ("Redirect", "url", "here this is `to`: `redirect = { to = \"...\" }`"),
    ("KeepAlive", "timeout", "here this is `idle`: `keep_alive = { idle = \"60s\" }`"),
];

/// Returns the correct notation of a key found in the wrong table or under another name.
fn misplaced_remedy(table: &str, entry: &Entry) -> Option<String> {
    if let Some((_, _, here)) = COMMON_MISNOMERS.iter().find(|(of, key, _)| *of == table && *key == entry.key)
    {
        return Some((*here).to_owned());
    }
    if table == "ResponseHeaders" && matches!(entry.value.data, NodeData::Text(_)) {
        return Some(format!(
            "fields stand in `set`: `response_headers = {{ set = {{ {} = \"...\" }} }}`",
            entry.key
        ));
    }
    (table != "Config" && TOP_KEYS.contains(&entry.key.as_str())).then(|| {
        format!(
            "`{}` belongs at the top of the file: move it above the first `[`; what stands below a header is a part of its table",
            entry.key
        )
    })
}

/// Reports a key that its table does not define, with the directive that was probably meant.
pub(crate) fn report_unknown_key(unknown: &UnknownKey, entry: &Entry, check: &mut Checker<'_>) {
    let (table, place) = (unknown.table, unknown.place);
    if TLS_KEYS.contains(&entry.key.as_str()) && TLS_TABLES.contains(&table) {
        let title = format!("unknown key `{}` in {place}", entry.key);
        let finding = check.error(&entry.key_span, title, "no such key here");
        finding.help(
            "write `tls = { certificate = \"cert.pem\", key = \"key.pem\" }` or `tls = \"auto\"` in a `[[site]]`; an \
             address speaks TLS at port 443, or by `{ address = \":8443\", tls = true }` in `listen`",
        );
        return;
    }
    let names = || unknown.names.iter().copied();
    let misplaced = misplaced_remedy(table, entry);
    let foreign = hint::directive_hint(&entry.key, place);
    let near = nearest_name(&entry.key, names()).filter(|_| misplaced.is_none() && foreign.is_none());
    let label = match near {
        Some(name) => format!("did you mean `{name}`?"),
        None => "no such key here".to_owned(),
    };
    let title = format!("unknown key `{}` in {place}", shorten(&entry.key));
    let homes: Vec<String> = check
        .tables_of_keys
        .iter()
        .filter(|(key, _)| *key == entry.key)
        .map(|(_, place)| (*place).to_owned())
        .collect();
    let finding = check.error(&entry.key_span, title, label);
    if let Some(text) = misplaced {
        finding.help(text);
        return;
    }
    // `headers` is a limit elsewhere; here, header fields are meant.
    let of_fields: Vec<String> = match entry.key.as_str() {
        "header" | "headers" => {
            names().filter(|name| name.ends_with("_headers")).map(|name| format!("`{name}`")).collect()
        }
        _ => Vec::new(),
    };
    if !of_fields.is_empty() {
        finding.help(format!("here this is {}", join_alternatives(of_fields.into_iter())));
        return;
    }
    if let Some((_, header)) = ROUTES_TABLES.iter().find(|(of, _)| *of == table)
        && ACTION_KEYS.contains(&entry.key.as_str())
    {
        finding.help(format!("a route does this: write `{header}` on the line above"));
        return;
    }
    let home = (!homes.is_empty())
        .then(|| format!("`{}` belongs in {}", entry.key, join_alternatives(homes.into_iter())));
    if near.is_none() && foreign.is_none() && home.is_none() {
        finding.help(format!("the keys here are {}", names().collect::<Vec<_>>().join(", ")));
    }
    for text in [foreign, home].into_iter().flatten() {
        finding.help(text);
    }
}
