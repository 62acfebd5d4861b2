//! Importer of Caddy's configuration in JSON.

mod scripts;

mod handlers;

mod clients;

mod hidden_files;

mod php;

mod restrictions;

mod tls;

mod variants;

use std::cell::Cell;
use std::path::Path;

use other_servers::CADDY;

use crate::conditions::{RouteCondition, add_conditions, any_value, close_route, compare_value};
use crate::data::{DataNode, DataValue, parse_json, read_file};
use crate::draft::{ConfigDraft, SiteDraft, TomlItem, TomlSection};
use crate::findings::{ImportError, ImportLedger, ImportResult, Untranslatable};
use clients::are_networks;
use handlers::{CaddyReader, CaddySettings};
use hidden_files::HiddenFilesOutcome;
use restrictions::{
    HARMLESS_HANDLERS, matches_folders_without_slash, matches_only_files, may_lead_to_login,
    redirects_to_slash, restricts_access, uses_groups,
};
use scripts::{CaddyScripts, fastcgi_handler};
use variants::VARIANTS_MAX;

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
pub fn import(path: &Path) -> Result<ImportResult, ImportError> {
    let (name, text) = read_file(path)?;
    let ledger = ImportLedger::default();
    let mut config = parse_json(&name, &text).map_err(|error| if text.trim_start().starts_with("{\"") { error } else {
            let remedy = "if this is a Caddyfile, `caddy adapt --config Caddyfile --pretty > caddy.json` makes the JSON that is read here";
            ImportError { message: format!("{}; {remedy}", error.message), ..error }
        })?;
    config.enter_in_ledger(&ledger, &name, "");
    let mut draft = ConfigDraft::default();
    let reader =
        CaddyReader { ledger: &ledger, uses_groups: Cell::new(false), client_address: Cell::default() };
    let servers = config.at(&["apps", "http", "servers"]).map_or(&[][..], DataNode::entries);
    let clients = reader.write_trusted_proxies(servers, &mut draft);
    for (at, (_, server)) in servers.iter().enumerate() {
        reader.client_address.set(clients[at]);
        let mut routes = Vec::new();
        reader.translate_routes(server.get("routes"), &[], &CaddySettings::default(), 0, &mut routes);
        routes.iter_mut().for_each(|route| variants::ignore_path_case(&mut route.section));
        let others: Vec<&DataNode> =
            servers.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, (_, one))| one).collect();
        let mut sites = build_sites(routes);
        let listen = reader.write_tls((&config, server, &others), &mut sites, &mut draft);
        server.mark_impossible(&ledger, "a server has nothing like it here");
        let checks = server.get("errors").map_or_else(Vec::new, |errors| errors.manual_comments(&ledger));
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
        .and_then(|policies| policies.items().iter().find_map(policy_email))
    {
        draft.table("acme").set_text("email", email.text().unwrap_or(""));
        email.mark_translated(&ledger);
    }
    draft.hoist_shared();
    draft.move_fields_to_snippets();
    config.mark_impossible(
        &ledger,
        "there is nothing like it here: see docs/configuration.md for what Komainu has instead",
    );
    Ok(ImportResult {
        toml: draft.to_toml(),
        remarks: ledger.into_remarks(),
        general_differences: CADDY.differences,
    })
}

fn policy_email(policy: &DataNode) -> Option<&DataNode> {
    policy.get("issuers")?.items().iter().find_map(|issuer| issuer.get("email"))
}

/// Returns a site for each set of hosts, in Caddy's order.
fn build_sites(routes: Vec<CaddyRoute>) -> Vec<SiteDraft> {
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
fn handlers_of(route: &DataNode) -> impl Iterator<Item = (&str, &DataNode)> {
    let handlers = route.get("handle").map_or(&[][..], DataNode::items);
    handlers.iter().map(|handler| (handler.get("handler").and_then(DataNode::text).unwrap_or(""), handler))
}

impl CaddyReader<'_> {
    fn translate_routes(
        &self,
        routes: Option<&DataNode>,
        hosts: &[String],
        settings: &CaddySettings,
        depth: usize,
        found: &mut Vec<CaddyRoute>,
    ) {
        let mut settings = settings.clone();
        let before_all = found.len();
        for route in routes.map_or(&[][..], DataNode::items) {
            for key in ["group", "terminal"] {
                route.get(key).into_iter().for_each(|one| {
                    one.mark_not_needed(self.ledger, "not needed: the first route that matches answers")
                });
            }
            let sets = route.get("match").map_or(&[][..], DataNode::items);
            let kinds: Vec<&str> = handlers_of(route).map(|(kind, _)| kind).collect();
            let only_rewrites = kinds.iter().all(|kind| *kind == "rewrite");
            if self.translate_file_route(route, only_rewrites, &mut settings, (hosts, depth), found) {
                continue;
            }
            let mut merged: Vec<(Vec<String>, TomlSection)> = Vec::new();
            self.uses_groups.set(uses_groups(route));
            let matched: Result<Vec<_>, Untranslatable> =
                sets.iter().map(|one| self.translate_matcher_set(one)).collect();
            match matched {
                Ok(all) if all.is_empty() => merged.push((Vec::new(), TomlSection::default())),
                Ok(all) => merged = all,
                // Without the rewrite, requests would be answered by their original path.
                Err(reason) if only_rewrites && !kinds.is_empty() => {
                    self.close_route(route, reason.as_ref(), found, (hosts, &settings.section));
                    continue;
                }
                Err(reason) => {
                    self.refuse_route(route, reason.as_ref(), found, (hosts, &settings.section));
                    continue;
                }
            }
            let last = merged.len();
            for (at, (own_hosts, conditions)) in merged.into_iter().enumerate() {
                let mut inner = settings.clone();
                inner.record_regex_name(sets.get(at), &conditions);
                let is_free = conditions.entries.is_empty() && own_hosts.is_empty();
                let hosts_clash = !own_hosts.is_empty() && !hosts.is_empty();
                if hosts_clash || self.join_conditions(&mut inner, &conditions).is_err() {
                    let reason = "conditions within conditions cannot be joined";
                    self.refuse_route(route, reason, found, (hosts, &settings.section));
                    break;
                }
                let next_hosts = if own_hosts.is_empty() { hosts.to_vec() } else { own_hosts };
                let before = found.len();
                self.translate_handlers(route, &mut inner, &next_hosts, depth, found);
                match (found.len() > before, is_free) {
                    // Settings of a route without conditions apply to the routes that follow.
                    (false, true) => settings = inner,
                    (false, false) if kinds.iter().all(|kind| HARMLESS_HANDLERS.contains(kind)) => {}
                    (false, false) => {
                        let variant = variants::field_variant(&settings, &inner, &conditions);
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
            for section in variants::expand_variants(self.scripts_only_route(&settings), &settings.variants) {
                found.push(CaddyRoute { hosts: hosts.to_vec(), section });
            }
        }
    }

    /// Translates a route that only determines how files and scripts are found. Returns false for other
    /// routes.
    fn translate_file_route(
        &self,
        route: &DataNode,
        only_rewrites: bool,
        settings: &mut CaddySettings,
        (hosts, depth): (&[String], usize),
        found: &mut Vec<CaddyRoute>,
    ) -> bool {
        let sets = route.get("match").map_or(&[][..], DataNode::items);
        if let [one] = sets
            && matches_folders_without_slash(one)
            && handlers_of(route).all(|(_, handler)| redirects_to_slash(handler))
        {
            route.mark_not_needed(self.ledger, "not needed: `files` redirects to folders, with the slash");
            return true;
        }
        if let [one] = sets
            && matches_only_files(one)
            && let (Some(scripts), true) =
                (one.get("file").and_then(CaddyScripts::from_file_matcher), only_rewrites)
        {
            one.mark_translated(self.ledger);
            settings.scripts = Some(scripts);
            self.translate_handlers(route, settings, hosts, depth, found);
            return true;
        }
        if let ([one], Some(scripts), Some(handler)) =
            (sets, settings.scripts.clone(), fastcgi_handler(route))
            && one.get("path").is_some_and(|paths| paths.texts() == ["*.php"])
            && let Some(php) = self.build_php(handler, &scripts, settings)
        {
            one.mark_translated(self.ledger);
            handler.get("handler").into_iter().for_each(|one| one.mark_translated(self.ledger));
            settings.php = Some(php);
            handler.mark_impossible(self.ledger, "there is nothing like it here");
            return true;
        }
        if let [one] = sets
            && matches_only_files(one)
            && let (Some(tries), true) = (one.at(&["file", "try_files"]), only_rewrites)
        {
            self.translate_try_files(one, tries, settings);
            self.translate_handlers(route, settings, hosts, depth, found);
            return true;
        }
        false
    }

    /// Returns the route of scripts without `file_server`: Komainu also serves the other files of the
    /// directory, which Caddy does not.
    fn scripts_only_route(&self, settings: &CaddySettings) -> TomlSection {
        let mut section = settings.section.clone();
        self.write_files_with_scripts(settings, &mut section);
        section.comment("CHECK: the files of this folder are sent too; Caddy had no `file_server` for them.");
        section
    }

    /// Adds the conditions of a route to those of the enclosing routes.
    fn join_conditions(
        &self,
        settings: &mut CaddySettings,
        conditions: &TomlSection,
    ) -> Result<(), Untranslatable> {
        if let (Some(around), Some(own)) = (settings.section.get("path"), conditions.get("path"))
            && around != own
        {
            if settings.strip_prefix.is_some() {
                return Err("both ask for a path".into());
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
        add_conditions(&mut settings.section, &conditions.entries);
        Ok(())
    }

    /// Reports a route as not possible. Closes it if it may restrict access, so that no other route responds
    /// instead.
    fn refuse_route(
        &self,
        route: &DataNode,
        reason: &str,
        found: &mut Vec<CaddyRoute>,
        (hosts, around): (&[String], &TomlSection),
    ) {
        if !restricts_access(route, may_lead_to_login(route)) {
            let what = format!("{reason}: write a `[[site.route]]` by hand");
            route.mark_all_impossible(self.ledger, &what);
            if let Some(next) = found.last_mut().filter(|next| next.hosts == hosts) {
                let what = format!("a route after this one is missing: {reason}");
                next.section.comment(self.ledger.check_comment(route.line, &what));
            }
            return;
        }
        self.close_route(route, reason, found, (hosts, around));
    }

    /// Reports a route as not possible, and closes its paths.
    fn close_route(
        &self,
        route: &DataNode,
        reason: &str,
        found: &mut Vec<CaddyRoute>,
        (hosts, around): (&[String], &TomlSection),
    ) {
        let check = self.ledger.check_comment(route.line, reason);
        let sets = route.get("match").map_or(&[][..], DataNode::items);
        let mut closed: Vec<(Vec<String>, TomlSection)> = sets
            .iter()
            .map(|set| {
                let (own, conditions, _) = self.translate_matchers(set);
                let mut section = around.clone();
                add_conditions(&mut section, &conditions.entries);
                (if own.is_empty() { hosts.to_vec() } else { own }, section)
            })
            .collect();
        if closed.is_empty() {
            closed.push((hosts.to_vec(), around.clone()));
        }
        for (hosts, mut section) in closed {
            close_route(&mut section, check.clone());
            found.push(CaddyRoute { hosts, section });
        }
        route.mark_all_impossible(
            self.ledger,
            &format!("{reason}: the route is closed (403) until it is written by hand"),
        );
    }

    fn translate_try_files(&self, node: &DataNode, tries: &DataNode, settings: &mut CaddySettings) {
        let plain: Vec<String> = tries
            .texts()
            .into_iter()
            .map(|path| path.replace("{http.request.uri.path}", "$path"))
            .map(|path| {
                path.strip_suffix('/').filter(|rest| !rest.is_empty()).map(str::to_owned).unwrap_or(path)
            })
            .collect();
        if plain.iter().any(|path| path.contains(['{', '=']) || path.ends_with(".php")) {
            node.mark_impossible(self.ledger, "`try` in `files` takes paths with `$path`")
        } else {
            node.mark_translated(self.ledger);
            settings.try_files = plain;
        }
    }

    /// Returns the hosts and conditions of a set of matchers.
    fn translate_matcher_set(&self, node: &DataNode) -> Result<(Vec<String>, TomlSection), Untranslatable> {
        let (hosts, section, results) = self.translate_matchers(node);
        results.into_iter().collect::<Result<Vec<()>, Untranslatable>>()?;
        Ok((hosts, section))
    }

    /// Like [`matcher`](Self::matcher), with the outcome of each matcher: untranslated matchers are omitted,
    /// so that the conditions may match more.
    fn translate_matchers(
        &self,
        node: &DataNode,
    ) -> (Vec<String>, TomlSection, Vec<Result<(), Untranslatable>>) {
        let mut section = TomlSection::default();
        let mut hosts = Vec::new();
        let results = node
            .entries()
            .iter()
            .map(|(key, value)| {
                self.translate_condition(key, value, &mut hosts, &mut section)?;
                value.mark_translated(self.ledger);
                Ok(())
            })
            .collect();
        (hosts, section, results)
    }

    fn translate_condition(
        &self,
        key: &str,
        value: &DataNode,
        hosts: &mut Vec<String>,
        section: &mut TomlSection,
    ) -> Result<(), Untranslatable> {
        let texts = value.texts();
        match key {
            "host" => {
                if texts.iter().any(|host| host.contains('{') || host.trim_start_matches("*.").contains('*'))
                {
                    return Err("`hosts` takes names and `*.example.com`".into());
                }
                *hosts = texts;
            }
            "path" => {
                let is_plain = |path: &String| {
                    path.starts_with(['/', '*']) && !path.contains(['?', '#', '%', '\\', '{'])
                };
                if !texts.iter().all(is_plain) {
                    return Err("`path` takes paths with `*`".into());
                }
                section.set("path", TomlItem::text_or_list(texts));
            }
            "method" => section.set("method", TomlItem::text_or_list(texts)),
            "header" | "query" => {
                for (name, pattern) in value.entries() {
                    let of = |pattern: String| RouteCondition::on_value(key, name, pattern);
                    let condition = match pattern.texts().as_slice() {
                        // `null` matches absent fields.
                        [] if pattern.items().is_empty() && matches!(pattern.value, DataValue::Null) => {
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
                    let pattern = regex.get("pattern").and_then(DataNode::text).unwrap_or("");
                    for one in compare_value("header", name, "~", pattern)?.iter().take(1) {
                        one.write(section);
                    }
                    regex.mark_translated(self.ledger);
                }
            }
            "remote_ip" | "client_ip" => {
                let ranges = value.get("ranges").map_or_else(Vec::new, DataNode::texts);
                if let Some(fault) = self.client_address.get().unsupported_reason(key) {
                    return Err(fault.into());
                }
                if !are_networks(&ranges) {
                    return Err(format!("`{key}`: `client` takes addresses and networks").into());
                }
                RouteCondition::new("client", TomlItem::text_or_list(ranges)).write(section);
            }
            "not" => {
                for set in value.items() {
                    let (hosts, mut excluded) = self.translate_matcher_set(set)?;
                    if excluded.get("not").is_some() || excluded.entries.is_empty() && hosts.is_empty() {
                        return Err("a `not` has the conditions of a route, and no `not`".into());
                    }
                    if !hosts.is_empty() {
                        excluded.set("host", TomlItem::text_or_list(hosts));
                    }
                    section.exclude(TomlItem::Table(excluded.entries));
                }
            }
            "path_regexp" => {
                let pattern = value.get("pattern").and_then(DataNode::text).unwrap_or("");
                // A path pattern with `*` would ignore case.
                let patterns = vec![crate::expressions::path_expression(pattern, false)?.pattern];
                section.set("path", TomlItem::text_or_list(patterns));
            }
            _ => return Err(format!("a route cannot ask for `{key}`").into()),
        }
        Ok(())
    }

    /// Translates the handler `headers`.
    fn translate_headers(&self, handler: &DataNode, settings: &mut CaddySettings) {
        self.translate_fields(handler.get("response"), "response_headers", &mut settings.section);
        self.translate_fields(handler.get("request"), "request_headers", &mut settings.request);
        handler.mark_impossible(self.ledger, "fields are set and removed, and nothing else");
        let checks = handler.manual_comments(self.ledger);
        checks.into_iter().for_each(|check| settings.section.comment(check));
    }

    fn translate_handlers(
        &self,
        route: &DataNode,
        settings: &mut CaddySettings,
        hosts: &[String],
        depth: usize,
        found: &mut Vec<CaddyRoute>,
    ) {
        for handler in route.get("handle").map_or(&[][..], DataNode::items) {
            let kind = handler.get("handler").and_then(DataNode::text).unwrap_or("");
            handler.get("handler").into_iter().for_each(|one| one.mark_translated(self.ledger));
            let mut section = settings.section.clone();
            match kind {
                "subroute" if depth < DEPTH_MAX => {
                    self.translate_routes(handler.get("routes"), hosts, settings, depth + 1, found);
                    continue;
                }
                "vars" => {
                    if let Some(root) = handler.get("root") {
                        settings.root = root.text().map(str::to_owned);
                        root.mark_translated(self.ledger);
                    }
                    continue;
                }
                "headers" => {
                    self.translate_headers(handler, settings);
                    continue;
                }
                "encode" => {
                    self.translate_encode(handler, &mut settings.section);
                    continue;
                }
                _ if HARMLESS_HANDLERS.contains(&kind) => {
                    handler.mark_impossible(
                        self.ledger,
                        "there is no such handler here; requests are answered without it",
                    );
                    continue;
                }
                "rewrite" => {
                    self.translate_rewrite(handler, settings);
                    continue;
                }
                "request_body" => {
                    if let Some(size) = handler.get("max_size") {
                        let bytes = TomlItem::Text(format!("{}B", size.number().unwrap_or(0)));
                        settings.section.set_in("limits", "body", bytes);
                        size.mark_translated(self.ledger);
                    }
                    continue;
                }
                // The adapted form of `forward_auth`.
                "reverse_proxy"
                    if handler.get("handle_response").is_some()
                        && self.translate_forward_auth(handler, &mut settings.section) =>
                {
                    continue;
                }
                "static_response" | "error" => self.translate_respond(handler, settings, &mut section),
                "file_server" => {
                    let hidden = self.hidden_files_route(handler, settings, &section);
                    match hidden {
                        HiddenFilesOutcome::Nothing => {}
                        HiddenFilesOutcome::Route(section) => {
                            found.push(CaddyRoute { hosts: hosts.to_vec(), section })
                        }
                        HiddenFilesOutcome::Closed(section) => {
                            handler.mark_impossible(self.ledger, "its route is closed (403): see `hide`");
                            found.push(CaddyRoute { hosts: hosts.to_vec(), section });
                            return;
                        }
                    }
                    self.translate_files(handler, settings, &mut section);
                    self.write_files_with_scripts(settings, &mut section);
                }
                "reverse_proxy" if handler.get("handle_response").is_none() => {
                    self.translate_proxy(handler, settings, &mut section);
                }
                _ => {
                    let reason = "there is no such handler here: the route is closed (403)";
                    handler.mark_all_impossible(self.ledger, reason);
                    section
                        .close(self.ledger.check_comment(handler.line, &format!("Caddy's handler `{kind}`")));
                }
            }
            if !settings.request.entries.is_empty() && section.get("php").is_some() {
                let what = "the variables of scripts are not changed here: the route is closed (403)";
                section.close(self.ledger.check_comment(handler.line, what));
            }
            handler.mark_impossible(self.ledger, "there is nothing like it here");
            if !section.is_closed() {
                handler.manual_comments(self.ledger).into_iter().for_each(|check| section.comment(check));
            }
            for section in variants::expand_variants(section, &settings.variants) {
                found.push(CaddyRoute { hosts: hosts.to_vec(), section });
            }
            return;
        }
    }
}
