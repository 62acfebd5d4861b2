//! Importer of NGINX Unit's configuration.

mod php;

mod app;

mod routes;

use std::path::Path;

use other_servers::UNIT;

use crate::data::{DataNode, parse_json, read_file};
use crate::draft::{ConfigDraft, TomlItem, table_path};
use crate::findings::{ImportError, ImportLedger, ImportResult};
use routes::UnitRoutes;

/// Translates the configuration of NGINX Unit, as returned by `GET /config` on its control socket.
///
/// # Errors
/// The file cannot be read or is not JSON.
pub fn import(path: &Path) -> Result<ImportResult, ImportError> {
    let (name, text) = read_file(path)?;
    let ledger = ImportLedger::default();
    let mut config = parse_json(&name, &text)?;
    config.enter_in_ledger(&ledger, &name, "");
    // The response to `GET /` has the configuration under `config`.
    let config = config.get("config").unwrap_or(&config).clone();
    let mut draft = ConfigDraft::default();
    let listeners = config.get("listeners").map_or(&[][..], DataNode::entries);
    let knows_clients = translate_forwarded(listeners, &ledger, &mut draft);
    let (pass, tls) = translate_listeners(&config, &ledger, &mut draft);
    translate_settings(&config, &ledger, &mut draft);
    for (name, one) in config.get("applications").map_or(&[][..], DataNode::entries) {
        for (name, section) in app::app_sections(name, one, &ledger) {
            draft.tables.push((table_path("apps", &name), section));
        }
    }
    for (name, one) in config.get("upstreams").map_or(&[][..], DataNode::entries) {
        let servers = one.get("servers").map_or(&[][..], DataNode::entries);
        let server = |(address, server): &(String, DataNode)| {
            server.mark_translated(&ledger);
            let url = ("url".to_owned(), TomlItem::text(format!("http://{address}")));
            match server.get("weight").and_then(DataNode::text).and_then(|weight| weight.parse::<f64>().ok())
            {
                Some(weight) => {
                    if weight.fract() != 0.0 {
                        server.mark_different(&ledger, "weights are whole numbers");
                    }
                    TomlItem::Table(vec![url, ("weight".to_owned(), TomlItem::Number(weight.round() as u64))])
                }
                None => url.1,
            }
        };
        let to = servers.iter().map(server).collect();
        draft.table(&table_path("upstreams", name)).set("to", TomlItem::List(to));
    }
    let routes = UnitRoutes { ledger: &ledger, config: &config, knows_clients };
    routes.write(pass.as_deref(), &mut draft);
    tls.write(&mut draft);
    translate_access_log(&config, &ledger, &mut draft);
    draft.hoist_shared();
    draft.move_fields_to_snippets();
    let toml = draft.to_toml();
    Ok(ImportResult { toml, remarks: ledger.into_remarks(), general_differences: UNIT.differences })
}

/// Writes `listen`; returns the target of the first listener, and the TLS settings of all.
fn translate_listeners(
    config: &DataNode,
    ledger: &ImportLedger,
    draft: &mut ConfigDraft,
) -> (Option<String>, UnitTls) {
    let mut first: Option<String> = None;
    let mut tls = Vec::new();
    let mut answers_plainly = false;
    let mut addresses = Vec::new();
    for (address, one) in config.get("listeners").map_or(&[][..], DataNode::entries) {
        let pass = one.get("pass");
        let target = pass.and_then(DataNode::text).unwrap_or("").to_owned();
        match (&first, pass) {
            (Some(known), Some(pass)) if *known != target => {
                pass.mark_impossible(
                    ledger,
                    "all listeners have the same routes: write a `[[site]]` with `listen` for this one",
                );
                one.mark_impossible(ledger, "it belongs to a listener that was left out");
                continue;
            }
            (_, Some(pass)) => pass.mark_translated(ledger),
            (_, None) => {}
        }
        first.get_or_insert(target);
        let text = match address.strip_prefix("*:") {
            Some(port) => format!(":{port}"),
            None => address.clone(),
        };
        let mut entries = vec![("address".to_owned(), TomlItem::Text(text.clone()))];
        if let Some(found) = one.get("tls") {
            tls.push(translate_certificates(found, ledger));
            if !text.ends_with(":443") {
                entries.push(("tls".to_owned(), TomlItem::Flag(true)));
            }
        } else if text.ends_with(":443") {
            entries.push(("tls".to_owned(), TomlItem::Flag(false)));
        }
        answers_plainly |= one.get("tls").is_none();
        one.mark_impossible(ledger, "a listener has `address`, `tls` and `proxy_protocol`");
        addresses.push(match entries.len() {
            1 => entries.remove(0).1,
            _ => TomlItem::Table(entries),
        });
    }
    match addresses.len() {
        0 => {}
        1 => draft.top.set("listen", addresses.remove(0)),
        _ => draft.top.set("listen", TomlItem::List(addresses)),
    }
    (first, UnitTls { listeners: tls, has_plain_listener: answers_plainly })
}

/// TLS settings of the listeners.
struct UnitTls {
    /// The `tls` of sites for each listener with TLS, and comments on untranslated restrictions.
    listeners: Vec<(TomlItem, Vec<String>)>,
    /// Whether there is a listener without TLS.
    has_plain_listener: bool,
}

impl UnitTls {
    /// Writes the certificates to all sites.
    fn write(self, draft: &mut ConfigDraft) {
        let Some((first, _)) = self.listeners.first().cloned() else { return };
        let mut closed: Vec<String> = self.listeners.iter().flat_map(|(_, checks)| checks.clone()).collect();
        let asks = |item: &TomlItem| matches!(item, TomlItem::Table(entries) if entries.iter().any(|(key, _)| key == "client"));
        if self.listeners.iter().any(|(item, _)| asks(item) != asks(&first)) {
            closed.push("CHECK: the listeners ask for different certificates of clients.".to_owned());
        }
        for site in &mut draft.sites {
            site.section.comment(
                "CHECK: Unit kept the certificate itself: write it into these files, or `tls = \"auto\"`.",
            );
            site.section.set("tls", first.clone());
            if self.has_plain_listener && !asks(&first) {
                site.section.set("redirect_https", TomlItem::Flag(false));
            }
            closed.iter().for_each(|check| site.close(check.clone()));
        }
    }
}

/// OpenSSL configuration commands that add no restriction beyond Komainu's own.
const HARMLESS_COMMANDS: [&str; 8] =
    ["MinProtocol", "MaxProtocol", "Protocol", "Ciphersuites", "CipherString", "Curves", "Groups", "Options"];

/// Returns the `tls` of sites for that of a listener, and the comments that close them.
fn translate_certificates(tls: &DataNode, ledger: &ImportLedger) -> (TomlItem, Vec<String>) {
    let names = tls.get("certificate").map_or_else(Vec::new, DataNode::texts);
    let names = if names.is_empty() { vec!["unit".to_owned()] } else { names };
    let file = |name: &String| format!("/etc/komainu/tls/{}.pem", name.replace('/', "_"));
    let mut entries = vec![("certificate".to_owned(), TomlItem::text_or_list(names.iter().map(file)))];
    if let Some(found) = tls.get("certificate") {
        found.mark_different(
            ledger,
            "Unit keeps certificates itself: write the bundle, with its key, into this file",
        );
    }
    if let Some(session) = tls.get("session") {
        session.mark_not_needed(ledger, "not needed: see `ticket_keys` of `[tls]`");
    }
    let commands = tls.get("conf_commands");
    for (name, value) in commands.map_or(&[][..], DataNode::entries) {
        if HARMLESS_COMMANDS.contains(&name.as_str()) {
            value.mark_different(ledger, "TLS 1.3 and 1.2 with their safe ciphers are spoken: see `[tls]`");
        }
    }
    let text = |key: &str| commands.and_then(|all| all.get(key)).and_then(DataNode::text);
    let authorities = text("VerifyCAFile").or(text("ClientCAFile"));
    if let (Some(mode), Some(authorities)) = (text("VerifyMode"), authorities) {
        let is_required = mode.split(',').any(|one| one.trim() == "Require");
        let mut client = vec![("ca".to_owned(), TomlItem::text(authorities))];
        if !is_required {
            client.push(("required".to_owned(), TomlItem::Flag(false)));
        }
        entries.push(("client".to_owned(), TomlItem::Table(client)));
        for key in ["VerifyMode", "VerifyCAFile", "ClientCAFile"] {
            commands.and_then(|all| all.get(key)).into_iter().for_each(|one| one.mark_translated(ledger));
        }
    }
    tls.mark_impossible(ledger, "this setting of TLS has no translation: the sites are closed (403)");
    (TomlItem::Table(entries), tls.manual_comments(ledger))
}

/// Source of client addresses at a listener.
#[derive(Clone, PartialEq)]
struct UnitForwarded {
    from: Vec<String>,
    field: String,
    recursive: bool,
}

impl UnitForwarded {
    /// `None` if a listener trusts no proxy.
    fn of(listener: &DataNode) -> Option<Self> {
        let forwarded = forwarded_node(listener)?;
        let from = forwarded.get("source")?.texts();
        let field = forwarded.get("client_ip").or(forwarded.get("header")).and_then(DataNode::text);
        let recursive = forwarded.get("recursive").and_then(DataNode::flag) == Some(true);
        Some(Self { from, field: field.unwrap_or("").to_ascii_lowercase(), recursive })
    }
}

/// Returns `forwarded` of a listener, or `client_ip`, its name in older versions.
fn forwarded_node(listener: &DataNode) -> Option<&DataNode> {
    listener.get("forwarded").or(listener.get("client_ip"))
}

/// Translates `forwarded` of listeners to `trusted_proxies`, and returns whether client addresses are those of Unit then.
/// Nothing is written otherwise: a proxy that sends another field passes on the `X-Forwarded-For` of the client unchanged.
fn translate_forwarded(
    listeners: &[(String, DataNode)],
    ledger: &ImportLedger,
    draft: &mut ConfigDraft,
) -> bool {
    let all: Vec<Option<UnitForwarded>> = listeners.iter().map(|(_, one)| UnitForwarded::of(one)).collect();
    let is_alike = all.iter().all(|one| *one == all[0]);
    let Some(first) = all.iter().flatten().next() else { return true };
    let reason = if !is_alike {
        Some(
            "`trusted_proxies` counts for all listeners, which differ here: it is not written, and routes that ask for addresses are closed (403)",
        )
    } else if first.field != "x-forwarded-for" {
        Some(
            "`trusted_proxies` is not written: have this proxy send X-Forwarded-For, then write it; routes that ask for addresses are closed (403)",
        )
    } else if first.from.iter().any(|text| text.starts_with('!')) {
        Some(
            "`trusted_proxies` takes networks that are trusted: routes that ask for addresses are closed (403)",
        )
    } else {
        None
    };
    for forwarded in listeners.iter().filter_map(|(_, listener)| forwarded_node(listener)) {
        if let Some(reason) = reason {
            forwarded.mark_impossible(ledger, reason);
            draft.top.comment(ledger.check_comment(forwarded.line, reason));
        } else {
            forwarded.mark_different(ledger, "the fields are X-Forwarded-For and X-Forwarded-Proto");
        }
    }
    if reason.is_some() {
        return false;
    }
    let from = TomlItem::List(first.from.iter().map(TomlItem::text).collect());
    let proxies = if first.recursive {
        from
    } else {
        let recursive = ("recursive".to_owned(), TomlItem::Flag(false));
        TomlItem::Table(vec![("from".to_owned(), from), recursive])
    };
    draft.top.set("trusted_proxies", proxies);
    true
}

fn translate_settings(config: &DataNode, ledger: &ImportLedger, draft: &mut ConfigDraft) {
    let Some(http) = config.at(&["settings", "http"]) else { return };
    for (name, key) in [
        ("header_read_timeout", "head"),
        ("body_read_timeout", "body"),
        ("send_timeout", "write"),
        ("idle_timeout", "idle"),
    ] {
        if let Some(one) = http.get(name) {
            one.mark_translated(ledger);
            draft.top.set_in(
                "timeouts",
                key,
                TomlItem::Text(format!("{}s", one.number().unwrap_or(30).clamp(1, 3600))),
            );
        }
    }
    if let Some(one) = http.get("max_body_size") {
        one.mark_translated(ledger);
        draft.top.set_in("limits", "body", TomlItem::Text(format!("{}B", one.number().unwrap_or(8 << 20))));
    } else {
        // Unit's default.
        draft.top.set_in("limits", "body", TomlItem::text("8MiB"));
    }
    for name in ["server_version", "discard_unsafe_fields", "log_route"] {
        if let Some(one) = http.get(name) {
            one.mark_not_needed(
                ledger,
                "not needed: the version is never sent, and fields with `_` are not passed on",
            );
        }
    }
    if let Some(threads) =
        config.at(&["settings", "listen_threads"]).or(config.at(&["settings", "listen_threads_count"]))
    {
        threads.mark_translated(ledger);
        draft.top.set("threads", TomlItem::Number(threads.number().unwrap_or(0).min(1024)));
    }
    if let Some(settings) = config.get("settings") {
        settings
            .mark_impossible(ledger, "this cannot be set: media types are those of the server's own list");
    }
}

fn translate_access_log(config: &DataNode, ledger: &ImportLedger, draft: &mut ConfigDraft) {
    let Some(one) = config.get("access_log") else { return };
    let path = one.text().or(one.get("path").and_then(DataNode::text));
    if let Some(path) = path {
        draft.table("log").set_text("access", "combined");
        draft.table("log").set_text("file", path);
        one.text().map_or_else(
            || one.get("path").into_iter().for_each(|path| path.mark_translated(ledger)),
            |_| one.mark_translated(ledger),
        );
    }
    one.mark_impossible(
        ledger,
        "the log is \"combined\": `access` and `only` in `[log]` say other formats and conditions",
    );
}
