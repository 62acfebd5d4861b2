//! Importer of Caddy's configuration in JSON.

mod scripts;

mod handlers;

mod clients;

mod hidden;

mod php;

mod restricts;

mod tls;

mod variants;

use std::cell::Cell;
use std::path::Path;

use crate::conditions::{RouteCondition, any_value, ask, close, value_conditions};
use crate::data::{Datum, DatumAt, json, read};
use crate::draft::{Draft, SiteDraft, TomlItem, TomlSection};
use crate::findings::{ImportError, ImportLedger, Imported};
use clients::are_networks;
use handlers::{CaddyReader, CaddySettings};
use hidden::Hidden;
use restricts::{
    HARMLESS, adds_slash, asks_files_alone, asks_for_folders, may_ask_users, names_groups, restricts,
};
use scripts::{CaddyScripts, fastcgi_of};
use variants::VARIANTS_MAX;

/// Differences between the servers that do not depend on the configuration.
const GENERAL: [&str; 3] = [
    "Certificates are obtained by Komainu with an account of its own (`[acme]`); those of Caddy are not read.",
    "HTTP/3 is not there: clients use HTTP/2.",
    "Files with a leading dot are not served (`hidden` in `files`).",
];
/// Maximum nesting depth of routes.
const DEPTH_MAX: usize = 16;

/// A route and its hosts.
struct CaddyRoute {
    hosts: Vec<String>,
    section: TomlSection,
}

/// Translates Caddy's configuration: the JSON that `caddy adapt --config Caddyfile` prints.
///
/// # Errors
/// The file cannot be read or is not JSON; a Caddyfile is not.
pub fn import(path: &Path) -> Result<Imported, ImportError> {
    let (name, text) = read(path)?;
    let ledger = ImportLedger::default();
    let mut config = json(&name, &text).map_err(|error| match text.trim_start().starts_with("{\"") {
        true => error,
        false => {
            let remedy = "if this is a Caddyfile, `caddy adapt --config Caddyfile --pretty > caddy.json` makes the JSON that is read here";
            ImportError { message: format!("{}; {remedy}", error.message), ..error }
        }
    })?;
    config.enter(&ledger, &name, "");
    let mut draft = Draft::default();
    let reader = CaddyReader { ledger: &ledger, names_groups: Cell::new(false), client: Cell::default() };
    let servers = config.at(&["apps", "http", "servers"]).map_or(&[][..], DatumAt::entries);
    let clients = reader.trust(servers, &mut draft);
    for (at, (_, server)) in servers.iter().enumerate() {
        reader.client.set(clients[at]);
        let mut routes = Vec::new();
        reader.routes(server.get("routes"), &[], &CaddySettings::default(), 0, &mut routes);
        routes.iter_mut().for_each(|route| variants::any_case(&mut route.section));
        let others: Vec<&DatumAt> =
            servers.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, (_, one))| one).collect();
        let mut sites = sites(routes);
        let listen = reader.secure((&config, server, &others), &mut sites, &mut draft);
        server.impossible(&ledger, "a server has nothing like it here");
        let checks = server.get("errors").map_or_else(Vec::new, |errors| errors.open_ends(&ledger));
        for site in &mut sites {
            checks.iter().take(1).for_each(|check| site.section.comment(check.clone()));
            if at > 0 && !listen.is_empty() {
                let item = if listen.len() == 1 { listen[0].clone() } else { TomlItem::List(listen.clone()) };
                site.section.entries.insert(0, ("listen".to_owned(), item));
            }
        }
        if at == 0 && !listen.is_empty() {
            draft.top.set("listen", TomlItem::List(listen));
        }
        draft.sites.extend(sites);
    }
    if draft.sites.is_empty() {
        draft.sites.push(SiteDraft::default());
    }
    if let Some(email) = config
        .at(&["apps", "tls", "automation", "policies"])
        .and_then(|policies| policies.items().iter().find_map(email))
    {
        draft.table("acme").set_text("email", email.text().unwrap_or(""));
        email.translated(&ledger);
    }
    draft.gather();
    draft.share_fields();
    config.impossible(
        &ledger,
        "there is nothing like it here: see docs/configuration.md for what Komainu has instead",
    );
    Ok(Imported {
        toml: draft.text(),
        remarks: ledger.into_remarks(),
        general: GENERAL.map(str::to_owned).into(),
    })
}

fn email(policy: &DatumAt) -> Option<&DatumAt> {
    policy.get("issuers")?.items().iter().find_map(|issuer| issuer.get("email"))
}

/// Returns a site for each set of hosts, in Caddy's order.
fn sites(routes: Vec<CaddyRoute>) -> Vec<SiteDraft> {
    let mut found = Vec::new();
    let mut hosts: Vec<Vec<String>> = Vec::new();
    for route in routes.iter().filter(|route| !route.hosts.is_empty()) {
        if !hosts.contains(&route.hosts) {
            hosts.push(route.hosts.clone());
        }
    }
    for names in hosts {
        let applies = |route: &&CaddyRoute| route.hosts.is_empty() || route.hosts == names;
        let mut site = SiteDraft::default();
        site.section.set("hosts", TomlItem::List(names.iter().cloned().map(TomlItem::Text).collect()));
        site.routes = routes.iter().filter(applies).map(|route| route.section.clone()).collect();
        found.push(site);
    }
    let rest: Vec<TomlSection> =
        routes.into_iter().filter(|route| route.hosts.is_empty()).map(|route| route.section).collect();
    if !rest.is_empty() || found.is_empty() {
        found.push(SiteDraft { section: TomlSection::default(), routes: rest });
    }
    found
}

/// Returns the handlers of a route with their names.
fn handlers_of(route: &DatumAt) -> impl Iterator<Item = (&str, &DatumAt)> {
    let handlers = route.get("handle").map_or(&[][..], DatumAt::items);
    handlers.iter().map(|handler| (handler.get("handler").and_then(DatumAt::text).unwrap_or(""), handler))
}

impl CaddyReader<'_> {
    fn routes(
        &self,
        routes: Option<&DatumAt>,
        hosts: &[String],
        settings: &CaddySettings,
        depth: usize,
        found: &mut Vec<CaddyRoute>,
    ) {
        let mut settings = settings.clone();
        let before_all = found.len();
        for route in routes.map_or(&[][..], DatumAt::items) {
            for key in ["group", "terminal"] {
                route.get(key).into_iter().for_each(|one| {
                    one.needless(self.ledger, "not needed: the first route that matches answers")
                });
            }
            let sets = route.get("match").map_or(&[][..], DatumAt::items);
            let kinds: Vec<&str> = handlers_of(route).map(|(kind, _)| kind).collect();
            let only_rewrites = kinds.iter().all(|kind| *kind == "rewrite");
            if self.file_route(route, only_rewrites, &mut settings, (hosts, depth), found) {
                continue;
            }
            let mut merged: Vec<(Vec<String>, TomlSection)> = Vec::new();
            self.names_groups.set(names_groups(route));
            let matched: Result<Vec<_>, String> = sets.iter().map(|one| self.matcher(one)).collect();
            match matched {
                Ok(all) if all.is_empty() => merged.push((Vec::new(), TomlSection::default())),
                Ok(all) => merged = all,
                // Without the rewrite, requests would be answered by their original path.
                Err(reason) if only_rewrites && !kinds.is_empty() => {
                    self.close_route(route, &reason, found, (hosts, &settings.section));
                    continue;
                }
                Err(reason) => {
                    self.refused(route, &reason, found, (hosts, &settings.section));
                    continue;
                }
            }
            let last = merged.len();
            for (at, (own_hosts, conditions)) in merged.into_iter().enumerate() {
                let mut inner = settings.clone();
                inner.name_regex(sets.get(at), &conditions);
                let is_free = conditions.entries.is_empty() && own_hosts.is_empty();
                let hosts_clash = !own_hosts.is_empty() && !hosts.is_empty();
                if hosts_clash || self.join(&mut inner, &conditions).is_err() {
                    let reason = "conditions within conditions cannot be joined";
                    self.refused(route, reason, found, (hosts, &settings.section));
                    break;
                }
                let next_hosts = if own_hosts.is_empty() { hosts.to_vec() } else { own_hosts };
                let before = found.len();
                self.handlers(route, &mut inner, &next_hosts, depth, found);
                match (found.len() > before, is_free) {
                    // Settings of a route without conditions apply to the routes that follow.
                    (false, true) => settings = inner,
                    (false, false) if kinds.iter().all(|kind| HARMLESS.contains(kind)) => {}
                    (false, false) => {
                        let variant = variants::variant_of(&settings, &inner, &conditions);
                        match variant
                            .filter(|_| next_hosts == hosts && settings.variants.len() < VARIANTS_MAX)
                        {
                            Some(variant) => settings.variants.push(variant),
                            None if at + 1 == last => {
                                let reason = "what this sets for some requests alone has to stand in the routes that answer them";
                                self.close_route(route, reason, found, (hosts, &settings.section));
                            }
                            None => {}
                        }
                    }
                    _ => {}
                }
            }
        }
        let is_sent = found[before_all..].iter().any(|route| route.section.get("php").is_some());
        if settings.php.is_some() && !is_sent {
            for section in variants::with_variants(self.scripts_alone(&settings), &settings.variants) {
                found.push(CaddyRoute { hosts: hosts.to_vec(), section });
            }
        }
    }

    /// Translates a route that only determines how files and scripts are found. Returns false for other
    /// routes.
    fn file_route(
        &self,
        route: &DatumAt,
        only_rewrites: bool,
        settings: &mut CaddySettings,
        (hosts, depth): (&[String], usize),
        found: &mut Vec<CaddyRoute>,
    ) -> bool {
        let sets = route.get("match").map_or(&[][..], DatumAt::items);
        if let [one] = sets
            && asks_for_folders(one)
            && handlers_of(route).all(|(_, handler)| adds_slash(handler))
        {
            route.needless(self.ledger, "not needed: `files` redirects to folders, with the slash");
            return true;
        }
        if let [one] = sets
            && asks_files_alone(one)
            && let (Some(scripts), true) = (one.get("file").and_then(CaddyScripts::of), only_rewrites)
        {
            one.translated(self.ledger);
            settings.scripts = Some(scripts);
            self.handlers(route, settings, hosts, depth, found);
            return true;
        }
        if let ([one], Some(scripts), Some(handler)) = (sets, settings.scripts.clone(), fastcgi_of(route))
            && one.get("path").is_some_and(|paths| paths.texts() == ["*.php"])
            && let Some(php) = self.php(handler, &scripts, settings)
        {
            one.translated(self.ledger);
            handler.get("handler").into_iter().for_each(|one| one.translated(self.ledger));
            settings.php = Some(php);
            handler.impossible(self.ledger, "there is nothing like it here");
            return true;
        }
        if let [one] = sets
            && asks_files_alone(one)
            && let (Some(tries), true) = (one.at(&["file", "try_files"]), only_rewrites)
        {
            self.tries(one, tries, settings);
            self.handlers(route, settings, hosts, depth, found);
            return true;
        }
        false
    }

    /// Returns the route of scripts without `file_server`: Komainu also serves the other files of the
    /// directory, which Caddy does not.
    fn scripts_alone(&self, settings: &CaddySettings) -> TomlSection {
        let mut section = settings.section.clone();
        self.files_with_scripts(settings, &mut section);
        section.comment("CHECK: the files of this folder are sent too; Caddy had no `file_server` for them.");
        section
    }

    /// Adds the conditions of a route to those of the enclosing routes.
    fn join(&self, settings: &mut CaddySettings, conditions: &TomlSection) -> Result<(), String> {
        if let (Some(around), Some(own)) = (settings.section.get("path"), conditions.get("path"))
            && around != own
        {
            if settings.strip_prefix.is_some() {
                return Err("both ask for a path".to_owned());
            }
            let around = around.as_text().and_then(|around| around.strip_suffix('*'));
            let prefix = around.filter(|prefix| prefix.starts_with('/') && !prefix.contains('*'));
            let own = match own {
                TomlItem::List(items) => items.clone(),
                one => vec![one.clone()],
            };
            let is_below = |item: &TomlItem| match (item, prefix) {
                (TomlItem::Text(own), Some(prefix)) => own.starts_with(prefix),
                _ => false,
            };
            if own.iter().all(is_below) {
                settings.section.remove("path");
            }
        }
        ask(&mut settings.section, &conditions.entries);
        Ok(())
    }

    /// Reports a route as not possible. Closes it if it may restrict access, so that no other route responds
    /// instead.
    fn refused(
        &self,
        route: &DatumAt,
        reason: &str,
        found: &mut Vec<CaddyRoute>,
        (hosts, around): (&[String], &TomlSection),
    ) {
        if !restricts(route, may_ask_users(route)) {
            let what = format!("{reason}: write a `[[site.route]]` by hand");
            route.refuse(self.ledger, &what);
            if let Some(next) = found.last_mut().filter(|next| next.hosts == hosts) {
                let what = format!("a route after this one is missing: {reason}");
                next.section.comment(self.ledger.check(route.line, &what));
            }
            return;
        }
        self.close_route(route, reason, found, (hosts, around));
    }

    /// Reports a route as not possible, and closes its paths.
    fn close_route(
        &self,
        route: &DatumAt,
        reason: &str,
        found: &mut Vec<CaddyRoute>,
        (hosts, around): (&[String], &TomlSection),
    ) {
        let check = self.ledger.check(route.line, reason);
        let sets = route.get("match").map_or(&[][..], DatumAt::items);
        let mut closed: Vec<(Vec<String>, TomlSection)> = sets
            .iter()
            .map(|set| {
                let (own, conditions, _) = self.matchers(set);
                let mut section = around.clone();
                ask(&mut section, &conditions.entries);
                (if own.is_empty() { hosts.to_vec() } else { own }, section)
            })
            .collect();
        if closed.is_empty() {
            closed.push((hosts.to_vec(), around.clone()));
        }
        for (hosts, mut section) in closed {
            close(&mut section, check.clone());
            found.push(CaddyRoute { hosts, section });
        }
        route
            .refuse(self.ledger, &format!("{reason}: the route is closed (403) until it is written by hand"));
    }

    fn tries(&self, one: &DatumAt, tries: &DatumAt, settings: &mut CaddySettings) {
        let plain: Vec<String> = tries
            .texts()
            .into_iter()
            .map(|path| path.replace("{http.request.uri.path}", "$path"))
            .map(|path| {
                path.strip_suffix('/').filter(|rest| !rest.is_empty()).map(str::to_owned).unwrap_or(path)
            })
            .collect();
        match plain.iter().any(|path| path.contains(['{', '=']) || path.ends_with(".php")) {
            true => one.impossible(self.ledger, "`try` in `files` takes paths with `$path`"),
            false => {
                one.translated(self.ledger);
                settings.tries = plain;
            }
        }
    }

    /// Returns the hosts and conditions of a set of matchers.
    fn matcher(&self, one: &DatumAt) -> Result<(Vec<String>, TomlSection), String> {
        let (hosts, section, results) = self.matchers(one);
        results.into_iter().collect::<Result<Vec<()>, String>>()?;
        Ok((hosts, section))
    }

    /// Like [`matcher`](Self::matcher), with the outcome of each matcher: untranslated matchers are omitted,
    /// so that the conditions may match more.
    fn matchers(&self, one: &DatumAt) -> (Vec<String>, TomlSection, Vec<Result<(), String>>) {
        let mut section = TomlSection::default();
        let mut hosts = Vec::new();
        let results = one
            .entries()
            .iter()
            .map(|(key, value)| {
                self.condition(key, value, &mut hosts, &mut section)?;
                value.translated(self.ledger);
                Ok(())
            })
            .collect();
        (hosts, section, results)
    }

    fn condition(
        &self,
        key: &str,
        value: &DatumAt,
        hosts: &mut Vec<String>,
        section: &mut TomlSection,
    ) -> Result<(), String> {
        let texts = value.texts();
        match key {
            "host" => {
                if texts.iter().any(|host| host.contains('{') || host.trim_start_matches("*.").contains('*'))
                {
                    return Err("`hosts` takes names and `*.example.com`".to_owned());
                }
                *hosts = texts;
            }
            "path" => {
                let is_plain = |path: &String| {
                    path.starts_with(['/', '*']) && !path.contains(['?', '#', '%', '\\', '{'])
                };
                if !texts.iter().all(is_plain) {
                    return Err("`path` takes paths with `*`".to_owned());
                }
                section.set("path", TomlItem::texts(texts));
            }
            "method" => section.set("method", TomlItem::texts(texts)),
            "header" | "query" => {
                for (name, pattern) in value.entries() {
                    let of = |pattern: String| RouteCondition::of_value(key, name, pattern);
                    let condition = match pattern.texts().as_slice() {
                        // `null` matches absent fields.
                        [] if pattern.items().is_empty() && matches!(pattern.datum, Datum::Null) => {
                            RouteCondition::none_of(&[of("*".to_owned())])
                        }
                        [] => of("*".to_owned()),
                        [one] => of(one.clone()),
                        several => of(any_value(several)?),
                    };
                    condition.write(section);
                }
            }
            "header_regexp" => {
                for (name, regex) in value.entries() {
                    let pattern = regex.get("pattern").and_then(DatumAt::text).unwrap_or("");
                    for one in value_conditions("header", name, "~", pattern)?.iter().take(1) {
                        one.write(section);
                    }
                    regex.translated(self.ledger);
                }
            }
            "remote_ip" | "client_ip" => {
                let ranges = value.get("ranges").map_or_else(Vec::new, DatumAt::texts);
                if let Some(fault) = self.client.get().fault(key) {
                    return Err(fault.to_owned());
                }
                if !are_networks(&ranges) {
                    return Err(format!("`{key}`: `client` takes addresses and networks"));
                }
                RouteCondition::new("client", TomlItem::texts(ranges)).write(section);
            }
            "not" => {
                for set in value.items() {
                    let (hosts, mut excluded) = self.matcher(set)?;
                    if excluded.get("not").is_some() || excluded.entries.is_empty() && hosts.is_empty() {
                        return Err("a `not` has the conditions of a route, and no `not`".to_owned());
                    }
                    if !hosts.is_empty() {
                        excluded.set("host", TomlItem::texts(hosts));
                    }
                    section.exclude(TomlItem::Table(excluded.entries));
                }
            }
            "path_regexp" => {
                let pattern = value.get("pattern").and_then(DatumAt::text).unwrap_or("");
                // A path pattern with `*` would ignore case.
                let patterns = vec![crate::expressions::path_expression(pattern, false)?.pattern];
                section.set("path", TomlItem::texts(patterns));
            }
            _ => return Err(format!("a route cannot ask for `{key}`")),
        }
        Ok(())
    }

    /// Translates the handler `headers`.
    fn header_fields(&self, handler: &DatumAt, settings: &mut CaddySettings) {
        self.fields(handler.get("response"), "response_headers", &mut settings.section);
        self.fields(handler.get("request"), "request_headers", &mut settings.request);
        handler.impossible(self.ledger, "fields are set and removed, and nothing else");
        let checks = handler.open_ends(self.ledger);
        checks.into_iter().for_each(|check| settings.section.comment(check));
    }

    fn handlers(
        &self,
        route: &DatumAt,
        settings: &mut CaddySettings,
        hosts: &[String],
        depth: usize,
        found: &mut Vec<CaddyRoute>,
    ) {
        for handler in route.get("handle").map_or(&[][..], DatumAt::items) {
            let kind = handler.get("handler").and_then(DatumAt::text).unwrap_or("");
            handler.get("handler").into_iter().for_each(|one| one.translated(self.ledger));
            let mut section = settings.section.clone();
            match kind {
                "subroute" if depth < DEPTH_MAX => {
                    self.routes(handler.get("routes"), hosts, settings, depth + 1, found);
                    continue;
                }
                "vars" => {
                    if let Some(root) = handler.get("root") {
                        settings.root = root.text().map(str::to_owned);
                        root.translated(self.ledger);
                    }
                    continue;
                }
                "headers" => {
                    self.header_fields(handler, settings);
                    continue;
                }
                "encode" => {
                    self.encode(handler, &mut settings.section);
                    continue;
                }
                _ if HARMLESS.contains(&kind) => {
                    handler.impossible(
                        self.ledger,
                        "there is no such handler here; requests are answered without it",
                    );
                    continue;
                }
                "rewrite" => {
                    self.rewrite(handler, settings);
                    continue;
                }
                "request_body" => {
                    if let Some(size) = handler.get("max_size") {
                        let bytes = TomlItem::Text(format!("{}B", size.number().unwrap_or(0)));
                        settings.section.set_in("limits", "body", bytes);
                        size.translated(self.ledger);
                    }
                    continue;
                }
                // The adapted form of `forward_auth`.
                "reverse_proxy"
                    if handler.get("handle_response").is_some()
                        && self.asks(handler, &mut settings.section) =>
                {
                    continue;
                }
                "static_response" | "error" => self.respond(handler, settings, &mut section),
                "file_server" => {
                    let hidden = self.hidden(handler, settings, &section);
                    match hidden {
                        Hidden::Nothing => {}
                        Hidden::Route(section) => found.push(CaddyRoute { hosts: hosts.to_vec(), section }),
                        Hidden::Closed(section) => {
                            handler.impossible(self.ledger, "its route is closed (403): see `hide`");
                            found.push(CaddyRoute { hosts: hosts.to_vec(), section });
                            return;
                        }
                    }
                    self.files(handler, settings, &mut section);
                    self.files_with_scripts(settings, &mut section);
                }
                "reverse_proxy" if handler.get("handle_response").is_none() => {
                    self.proxy(handler, settings, &mut section);
                }
                _ => {
                    let reason = "there is no such handler here: the route is closed (403)";
                    handler.refuse(self.ledger, reason);
                    section.close(self.ledger.check(handler.line, &format!("Caddy's handler `{kind}`")));
                }
            }
            if !settings.request.entries.is_empty() && section.get("php").is_some() {
                let what = "the variables of scripts are not changed here: the route is closed (403)";
                section.close(self.ledger.check(handler.line, what));
            }
            handler.impossible(self.ledger, "there is nothing like it here");
            if !section.is_closed() {
                handler.open_ends(self.ledger).into_iter().for_each(|check| section.comment(check));
            }
            for section in variants::with_variants(section, &settings.variants) {
                found.push(CaddyRoute { hosts: hosts.to_vec(), section });
            }
            return;
        }
    }
}
