//! Importer of Caddy's configuration in JSON.

mod scripts;

mod changed_path;

mod templates;

mod reader;

mod hosts;

mod groups;

mod handlers;

mod rewrites;

mod proxies;

mod variants;

mod clients;

mod matchers;

mod hidden_files;

mod php;

mod restrictions;

mod refusals;

mod tls;

use std::cell::Cell;
use std::path::Path;

use other_servers::CADDY;

use crate::conditions::{add_conditions, close_route};
use crate::data::{DataNode, parse_json, read_file};
use crate::draft::{ConfigDraft, SiteDraft, TomlItem, TomlSection, route_covers};
use crate::findings::{ImportError, ImportLedger, ImportResult, Untranslatable};
use changed_path::ChangedPath;
use groups::{RouteGroups, may_answer};
use hidden_files::HiddenFilesOutcome;
use hosts::{CaddyRoute, build_sites, common_hosts};
use matchers::has_no_path;
use reader::{CaddyReader, CaddySettings};
use refusals::ServerRefusals;
use restrictions::{
    HARMLESS_HANDLERS, answers_without_file, is_answer_without_file, matches_folders_without_slash,
    matches_only_files, may_lead_to_login, redirects_to_slash, restricts_access, rewrites_to_found_file,
    uses_groups,
};
use scripts::{CaddyScripts, fastcgi_handler};
use variants::VARIANTS_MAX;

/// Maximum nesting depth of routes.
const DEPTH_MAX: usize = 16;

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
    // Routes in front of those of a site, by its place.
    let mut refusals: Vec<(usize, Vec<TomlSection>)> = Vec::new();
    for (at, (_, server)) in servers.iter().enumerate() {
        reader.client_address.set(clients[at]);
        let mut routes = Vec::new();
        let mut settings = CaddySettings::default();
        reader.translate_routes(server.get("routes"), &[], &mut settings, 0, &mut routes);
        routes.iter_mut().for_each(|route| variants::ignore_path_case(&mut route.section));
        let others: Vec<&DataNode> =
            servers.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, (_, one))| one).collect();
        let mut sites = build_sites(routes);
        let listen = reader.write_tls((&config, server, &others), &mut sites, &mut draft);
        server.mark_impossible(&ledger, "a server has nothing like it here");
        let checks = server.get("errors").map_or_else(Vec::new, |errors| errors.manual_comments(&ledger));
        let of_server = ServerRefusals::new(server, &sites);
        refusals.extend(
            sites.iter().enumerate().map(|(at, site)| (draft.sites.len() + at, of_server.routes(site))),
        );
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
    for (at, routes) in refusals {
        draft.sites[at].routes.splice(..0, routes);
    }
    if let Some(disabled) = config.at(&["admin", "disabled"]) {
        disabled.mark_not_needed(&ledger, "not needed: `[control]` is off unless it is asked for");
    }
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
        settings: &mut CaddySettings,
        depth: usize,
        found: &mut Vec<CaddyRoute>,
    ) {
        let before_all = found.len();
        let mut groups = RouteGroups::default();
        let routes = routes.map_or(&[][..], DataNode::items);
        for (index, route) in routes.iter().enumerate() {
            for key in ["group", "terminal"] {
                route.get(key).into_iter().for_each(|one| {
                    one.mark_not_needed(self.ledger, "not needed: the first route that matches answers")
                });
            }
            let sets = route.get("match").map_or(&[][..], DataNode::items);
            let kinds: Vec<&str> = handlers_of(route).map(|(kind, _)| kind).collect();
            let only_rewrites = kinds.iter().all(|kind| *kind == "rewrite");
            if self.translate_file_route(route, only_rewrites, settings) {
                continue;
            }
            let Some(entered_before) = groups.entered_before(route) else {
                route.mark_not_needed(
                    self.ledger,
                    "not needed: another route of its group takes all requests",
                );
                continue;
            };
            self.uses_groups.set(uses_groups(route));
            let matched: Result<Vec<_>, Untranslatable> =
                sets.iter().map(|one| self.translate_matcher_set(one, settings)).collect();
            let merged: Vec<_> = match matched {
                Ok(_) if sets.is_empty() => vec![(None, (Vec::new(), TomlSection::default()))],
                Ok(all) => sets.iter().map(Some).zip(all).filter(|(_, (_, one))| !has_no_path(one)).collect(),
                // Without the rewrite, requests would be answered by their original path.
                Err(reason) if only_rewrites && !kinds.is_empty() => {
                    self.close_route(route, reason.as_ref(), found, (hosts, settings));
                    continue;
                }
                Err(reason) => {
                    self.refuse_route(route, reason.as_ref(), found, (hosts, settings));
                    continue;
                }
            };
            // Paths without a file are those of another file there, which the route does not get.
            let asks_for_path = merged.iter().any(|(_, (_, conditions))| conditions.get("path").is_some());
            if matches!(settings.path, ChangedPath::Tried(_)) && asks_for_path && answers_without_file(route)
            {
                let reason = "Caddy looks for a file first, and paths without one do not get here";
                self.close_route(route, reason, found, (hosts, settings));
                continue;
            }
            if merged.is_empty() {
                route.mark_not_needed(
                    self.ledger,
                    "not needed: no request has this path, which was changed before",
                );
            }
            let last = merged.len();
            let mut unanswered = Vec::new();
            for (at, (set, (own_hosts, mut conditions))) in merged.into_iter().enumerate() {
                let has_path = conditions.get("path").is_some();
                entered_before.iter().for_each(|other| conditions.exclude(other.clone()));
                let mut inner = settings.clone();
                inner.record_regex_name(set, &conditions);
                let is_free = conditions.entries.is_empty() && own_hosts.is_empty();
                let Some(next_hosts) = common_hosts(hosts, &own_hosts) else {
                    route.mark_not_needed(self.ledger, "not needed: no request for these hosts gets here");
                    continue;
                };
                self.join_conditions(&mut inner, &conditions);
                if has_path {
                    inner.forget_fallback();
                }
                let before = found.len();
                let entered = inner.section.clone();
                self.translate_handlers(route, &mut inner, &next_hosts, depth, found);
                let answers_all = |found: &[CaddyRoute]| {
                    found[before..].iter().any(|one| route_covers(&one.section, &entered))
                };
                let is_last = route.get("terminal").and_then(DataNode::flag) == Some(true);
                match (found.len() > before, is_free) {
                    // Settings of a route without conditions apply to the routes that follow.
                    (_, true) => *settings = inner,
                    (true, false)
                        if !is_last && !answers_all(found) && variants::changes_answers(settings, &inner) =>
                    {
                        let reason = "requests that this does not answer reach other routes with what it set";
                        let mut section = entered.clone();
                        section.close(self.ledger.check_comment(route.line, reason));
                        found.push(CaddyRoute { hosts: next_hosts.clone(), section });
                    }
                    (false, false) if kinds.iter().all(|kind| HARMLESS_HANDLERS.contains(kind)) => {}
                    (false, false) => {
                        let variant = variants::field_variant(settings, &inner, &conditions);
                        match variant
                            .filter(|_| next_hosts == hosts && settings.variants.len() < VARIANTS_MAX)
                        {
                            Some(variant) => settings.variants.push(variant),
                            None if at + 1 == last => {
                                let reason = "what this sets for some requests alone has to stand in the routes that answer them";
                                self.close_route(route, reason, found, (hosts, settings));
                            }
                            None => {}
                        }
                    }
                    _ => {}
                }
                if !answers_all(found) {
                    if is_last && (depth > 0 || may_answer(&routes[index + 1..], &next_hosts)) {
                        let mut section = entered;
                        section.comment("Caddy answers these requests with an empty body.");
                        section.set("respond", TomlItem::Number(404));
                        found.push(CaddyRoute { hosts: next_hosts, section });
                    } else {
                        unanswered.push((own_hosts, conditions));
                    }
                }
            }
            groups.enter(route, unanswered);
        }
        let is_sent = found[before_all..].iter().any(|route| route.section.get("php").is_some());
        if settings.php.is_some() && !is_sent {
            let mut section = self.scripts_only_route(settings);
            let mut closed = section.clone();
            closed.comments.clear();
            closed.close("CHECK: Komainu would send the other files of this folder too, which Caddy does not without `file_server`: the route is closed (403); remove it if clients may have them.".to_owned());
            found.push(CaddyRoute { hosts: hosts.to_vec(), section: closed });
            settings.unknown_path.iter().for_each(|check| section.close(check.clone()));
            for section in variants::expand_variants(section, &settings.variants) {
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
    ) -> bool {
        let sets = route.get("match").map_or(&[][..], DataNode::items);
        let only_rewrites = only_rewrites
            && matches!(route.get("handle").map_or(&[][..], DataNode::items), [one] if rewrites_to_found_file(one));
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
            self.mark_file_rewrite(route);
            return true;
        }
        if let ([one], Some(scripts), Some(handler)) =
            (sets, settings.scripts.clone(), fastcgi_handler(route))
            && one.get("path").is_some_and(|paths| paths.texts() == ["*.php"])
            && handler.get("handle_response").is_none()
            && handler.get("rewrite").is_none()
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
            && let (Some(file), true) =
                (one.get("file").filter(|file| file.get("try_files").is_some()), only_rewrites)
        {
            self.translate_try_files(file, settings);
            self.mark_file_rewrite(route);
            return true;
        }
        false
    }

    /// Marks the rewrite to the file that a matcher has found.
    fn mark_file_rewrite(&self, route: &DataNode) {
        for (_, handler) in handlers_of(route) {
            handler.mark_translated(self.ledger);
        }
    }

    /// Returns the route of scripts without `file_server`: Komainu also serves the other files of the
    /// directory, which Caddy does not.
    fn scripts_only_route(&self, settings: &CaddySettings) -> TomlSection {
        let mut section = settings.section.clone();
        self.write_files_with_scripts(settings, &mut section);
        section
    }

    /// Adds the conditions of a route to those of the enclosing routes.
    fn join_conditions(&self, settings: &mut CaddySettings, conditions: &TomlSection) {
        if let (Some(around), Some(own)) = (settings.section.get("path"), conditions.get("path"))
            && around != own
        {
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
    }

    /// Reports a route as not possible. Closes it if it may restrict access, so that no other route responds
    /// instead.
    fn refuse_route(
        &self,
        route: &DataNode,
        reason: &str,
        found: &mut Vec<CaddyRoute>,
        (hosts, settings): (&[String], &CaddySettings),
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
        self.close_route(route, reason, found, (hosts, settings));
    }

    /// Reports a route as not possible, and closes its paths.
    fn close_route(
        &self,
        route: &DataNode,
        reason: &str,
        found: &mut Vec<CaddyRoute>,
        (hosts, settings): (&[String], &CaddySettings),
    ) {
        let check = self.ledger.check_comment(route.line, reason);
        let sets = route.get("match").map_or(&[][..], DataNode::items);
        let mut closed: Vec<(Vec<String>, TomlSection)> = sets
            .iter()
            .filter_map(|set| {
                let (own, conditions, _) = self.translate_matchers(set, settings);
                let mut section = settings.section.clone();
                add_conditions(&mut section, &conditions.entries);
                Some((common_hosts(hosts, &own)?, section))
            })
            .filter(|(_, section)| !has_no_path(section))
            .collect();
        if sets.is_empty() {
            closed.push((hosts.to_vec(), settings.section.clone()));
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
            let answers = matches!(kind, "file_server" | "reverse_proxy");
            if is_answer_without_file(handler, kind)
                && (settings.needs_file || kind == "reverse_proxy" && !settings.try_files.is_empty())
            {
                let reason = "Caddy answers it for paths with a file alone, or with the path of another: the route is closed (403)";
                handler.mark_all_impossible(self.ledger, reason);
                section.close(self.ledger.check_comment(handler.line, reason));
                found.push(CaddyRoute { hosts: hosts.to_vec(), section });
                return;
            }
            if let Some(check) = settings.unknown_path.as_ref().filter(|_| answers) {
                handler.mark_all_impossible(
                    self.ledger,
                    "the path that it answers is not known: the route is closed (403)",
                );
                section.close(check.clone());
                found.push(CaddyRoute { hosts: hosts.to_vec(), section });
                return;
            }
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
                        && self.translate_forward_auth(handler, settings) =>
                {
                    continue;
                }
                "static_response" | "error" => {
                    self.translate_respond(handler, settings, &mut section);
                    if section.get("respond").is_some() {
                        section.remove("rewrite");
                    }
                }
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
                    if let Some(section) = self.missing_folders_route(settings, &section) {
                        found.push(CaddyRoute { hosts: hosts.to_vec(), section });
                    }
                    self.translate_files(handler, settings, &mut section);
                    if !section.is_closed() {
                        self.write_files_with_scripts(settings, &mut section);
                    }
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
