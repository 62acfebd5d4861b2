//! Translation of Unit's routes: steps of which the first match responds.

use super::php::{app_name, script_of};
use crate::conditions::{
    RouteCondition, add_conditions, any_value, close_route, exact_cookie_condition, is_closed,
    method_condition, refuse_line_feeds,
};
use crate::data::{DataNode, DataValue};
use crate::draft::{CONDITIONS, ConfigDraft, SiteDraft, TomlItem, TomlSection};
use crate::expressions::path_expression;
use crate::findings::{ImportLedger, Untranslatable};
use crate::paths::from_regex;

/// Maximum depth of routes that pass requests to other routes.
const DEPTH_MAX: usize = 8;

/// Translates a pattern of Unit to values of a directive.
type PatternReader = fn(&str) -> Result<Vec<String>, Untranslatable>;

/// The steps of a configuration.
pub(super) struct UnitRoutes<'a> {
    pub(super) ledger: &'a ImportLedger,
    pub(super) config: &'a DataNode,
    /// Whether client addresses are those of Unit.
    pub(super) knows_clients: bool,
}

/// A step as a route, with its hosts.
struct RouteWithHosts {
    hosts: Vec<String>,
    section: TomlSection,
}

impl<'a> UnitRoutes<'a> {
    /// Writes the sites for the target of the listeners.
    pub(super) fn write(&self, pass: Option<&str>, draft: &mut ConfigDraft) {
        let mut routes = Vec::new();
        match pass {
            Some(pass) if pass == "routes" || pass.starts_with("routes/") => {
                self.translate_steps(pass, 0, &mut routes)
            }
            Some(pass) => {
                let mut route = RouteWithHosts { hosts: Vec::new(), section: TomlSection::default() };
                self.translate_pass(pass, &mut route.section);
                self.push_route(pass, TomlSection::default(), route, &mut routes);
            }
            None => {}
        }
        for named in self.config.get("routes").into_iter() {
            named.mark_impossible(self.ledger, "no listener that was translated leads to it");
        }
        if !routes.is_empty() && has_expression(self.config) {
            routes.insert(0, RouteWithHosts { hosts: Vec::new(), section: refuse_line_feeds() });
        }
        let mut hosts: Vec<String> = Vec::new();
        for host in routes.iter().flat_map(|route| &route.hosts) {
            if !hosts.contains(host) {
                hosts.push(host.clone());
            }
        }
        // Routes after one without conditions are not reached.
        let reached = |mut own: Vec<TomlSection>| {
            // The user may remove closed routes, so keep those after them.
            let is_any = |route: &TomlSection| {
                CONDITIONS.iter().all(|key| route.get(key).is_none()) && !is_closed(route)
            };
            if let Some(at) = own.iter().position(is_any) {
                own.truncate(at + 1);
            }
            own
        };
        let applies = |route: &RouteWithHosts, host: &str| {
            let matches = |pattern: &String| {
                pattern == host
                    || pattern.strip_prefix('*').is_some_and(|rest| host.ends_with(rest) && host != pattern)
            };
            route.hosts.is_empty() || route.hosts.iter().any(matches)
        };
        for host in hosts {
            let own: Vec<TomlSection> = routes
                .iter()
                .filter(|route| applies(route, &host))
                .map(|route| route.section.clone())
                .collect();
            let own = reached(own);
            let same = draft.sites.iter_mut().find(|site| site.routes == own);
            match same.map(|site| &mut site.section) {
                Some(section) => {
                    if let Some((_, TomlItem::List(names))) =
                        section.entries.iter_mut().find(|(key, _)| key == "hosts")
                    {
                        names.push(TomlItem::Text(host));
                    }
                }
                None => {
                    let mut site = SiteDraft::default();
                    site.section.set("hosts", TomlItem::List(vec![TomlItem::Text(host)]));
                    site.routes = own;
                    draft.sites.push(site);
                }
            }
        }
        let rest: Vec<TomlSection> =
            routes.into_iter().filter(|route| route.hosts.is_empty()).map(|route| route.section).collect();
        let rest = reached(rest);
        if !rest.is_empty() || draft.sites.is_empty() {
            draft.sites.push(SiteDraft { section: TomlSection::default(), routes: rest });
        }
    }

    fn translate_steps(&self, pass: &str, depth: usize, found: &mut Vec<RouteWithHosts>) {
        let routes = self.config.get("routes");
        let steps = match pass.strip_prefix("routes/") {
            Some(name) => routes.and_then(|routes| routes.get(name)),
            None => routes,
        };
        let mut missing: Vec<String> = Vec::new();
        for step in steps.map_or(&[][..], DataNode::items) {
            let before = found.len();
            self.translate_step(step, depth, found);
            match found.get_mut(before) {
                Some(next) => missing.drain(..).for_each(|comment| next.section.comment(comment)),
                None => missing.push(
                    self.ledger
                        .check_comment(step.line, "a route before this one is missing: see the report"),
                ),
            }
        }
    }

    fn translate_step(&self, step: &DataNode, depth: usize, found: &mut Vec<RouteWithHosts>) {
        let mut section = TomlSection::default();
        let mut hosts = Vec::new();
        if let Some(conditions) = step.get("match")
            && let Err(reason) = self.translate_conditions(conditions, &mut section, &mut hosts)
        {
            step.mark_different(self.ledger, "");
            conditions.mark_impossible(self.ledger, reason.as_ref());
            let redirects = step.at(&["action", "return"]).and_then(DataNode::number);
            // A redirect may lead to a login page, unless its conditions only concern scheme, path or host.
            let is_scheme =
                conditions.entries().iter().all(|(key, _)| matches!(key.as_str(), "scheme" | "uri" | "host"));
            if is_scheme && redirects.is_some_and(|status| (300..400).contains(&status)) {
                let all = "the step was left out: write a route for it by hand";
                self.mark_all_impossible(step, &format!("{reason}: {all}"));
                return;
            }
            self.close_step(step, reason.as_ref(), (hosts, section), found);
            return;
        }
        let Some(action) = step.get("action") else { return };
        let pass = action.get("pass").and_then(DataNode::text).unwrap_or("");
        if let Some(inner) = Some(pass).filter(|pass| pass.starts_with("routes/") && depth < DEPTH_MAX) {
            let mut below = Vec::new();
            self.translate_steps(inner, depth + 1, &mut below);
            action.mark_translated(self.ledger);
            let clashes = below.iter().any(|route| {
                !route.hosts.is_empty() && !hosts.is_empty()
                    || route.section.entries.iter().any(|(key, _)| section.get(key).is_some())
            });
            if clashes {
                let reason = "conditions of both, the step and the routes that it leads to, cannot be joined";
                self.close_step(step, reason, (hosts, section), found);
                return;
            }
            // Requests that none of these routes matches do not come back.
            let is_any = |route: &RouteWithHosts| {
                route.hosts.is_empty() && CONDITIONS.iter().all(|key| route.section.get(key).is_none())
            };
            if !below.iter().any(is_any) {
                let mut rest = TomlSection::default();
                rest.comment("Unit answers 404 if none of the routes that a step leads to matches.");
                rest.set("respond", TomlItem::Number(404));
                below.push(RouteWithHosts { hosts: Vec::new(), section: rest });
            }
            for mut route in below {
                let mut entries = section.entries.clone();
                entries.append(&mut route.section.entries);
                route.section.entries = entries;
                if route.hosts.is_empty() {
                    route.hosts = hosts.clone();
                }
                found.push(route);
            }
            return;
        }
        let conditions = section.clone();
        self.translate_action(action, &mut section);
        self.push_route(pass, conditions, RouteWithHosts { hosts, section }, found);
    }

    /// Adds a route, and another one before it that refuses what Unit's PHP does not answer.
    fn push_route(
        &self,
        pass: &str,
        conditions: TomlSection,
        mut route: RouteWithHosts,
        found: &mut Vec<RouteWithHosts>,
    ) {
        if route.section.get("app").is_some()
            && route.section.get("files").is_none()
            && let Some((one, target)) = self.php_of_pass(pass)
        {
            match script_of(one, target) {
                Some(script) => route.section.set_text("rewrite", script),
                None if asks_for_scripts(&conditions) => {}
                None => {
                    let mut others = conditions;
                    others
                        .comment("Unit runs scripts alone: it does not send the other files below the root.");
                    let scripts = TomlItem::text_list(&["*.php", "*.php/*", "*/"]);
                    others.exclude(TomlItem::Table(vec![("path".to_owned(), scripts)]));
                    others.set("respond", TomlItem::Number(404));
                    found.push(RouteWithHosts { hosts: route.hosts.clone(), section: others });
                }
            }
        }
        found.push(route);
    }

    /// Returns the PHP application and the target to which a step passes its requests.
    fn php_of_pass<'p>(&self, pass: &'p str) -> Option<(&'a DataNode, Option<&'p str>)> {
        let mut parts = pass.strip_prefix("applications/")?.split('/');
        let one = self.config.at(&["applications", parts.next()?])?;
        let kind = one.get("type").and_then(DataNode::text)?;
        kind.starts_with("php").then(|| (one, parts.next()))
    }

    /// Closes the requests of a step, as far as its conditions have an equivalent.
    fn close_step(
        &self,
        step: &DataNode,
        reason: &str,
        (hosts, mut section): (Vec<String>, TomlSection),
        found: &mut Vec<RouteWithHosts>,
    ) {
        self.mark_all_impossible(
            step,
            &format!("{reason}: the route is closed (403) until it is written by hand"),
        );
        close_route(&mut section, self.ledger.check_comment(step.line, reason));
        found.push(RouteWithHosts { hosts, section });
    }

    /// Marks all values within `value` as not possible, regardless of other verdicts.
    fn mark_all_impossible(&self, value: &DataNode, reason: &str) {
        match &value.value {
            DataValue::Table(entries) => {
                entries.iter().for_each(|(_, inner)| self.mark_all_impossible(inner, reason))
            }
            DataValue::List(items) => items.iter().for_each(|inner| self.mark_all_impossible(inner, reason)),
            _ => {}
        }
        if let Some(entry) = value.entry {
            self.ledger.mark_impossible(entry, reason);
        }
    }

    /// Translates the conditions of a step to `section`, which gets those with an equivalent even if others
    /// fail.
    fn translate_conditions(
        &self,
        all: &DataNode,
        section: &mut TomlSection,
        hosts: &mut Vec<String>,
    ) -> Result<(), Untranslatable> {
        let results: Vec<Result<(), Untranslatable>> = all
            .entries()
            .iter()
            .map(|(key, value)| self.translate_condition(key, value, section, hosts))
            .collect();
        add_conditions(section, &[]);
        results.into_iter().collect()
    }

    fn translate_condition(
        &self,
        key: &str,
        value: &DataNode,
        section: &mut TomlSection,
        hosts: &mut Vec<String>,
    ) -> Result<(), Untranslatable> {
        let texts = value.texts();
        let (excluded, meant): (Vec<String>, Vec<String>) =
            texts.into_iter().partition(|text| text.starts_with('!'));
        let excluded: Vec<String> = excluded.iter().map(|text| text[1..].to_owned()).collect();
        let (directive, read): (&str, PatternReader) = match key {
            "host" => ("host", translate_host),
            "uri" => ("path", translate_paths),
            "method" => ("method", translate_method),
            "source" if !self.knows_clients => {
                return Err("the address of clients is not known: see `forwarded` of the listeners".into());
            }
            "source" => ("client", translate_source),
            "cookies" => {
                let table = single_table(value)?;
                let mut all = Vec::new();
                for (name, pattern) in table.entries() {
                    let texts = pattern.texts();
                    let [text] = texts.as_slice() else {
                        return Err("one pattern for a cookie can be asked for".into());
                    };
                    if text.starts_with(['~', '!']) {
                        return Err("a cookie is asked for by a text with `*`".into());
                    }
                    all.push(exact_cookie_condition(name, text));
                }
                let [one] = all.as_slice() else { return Err("a route asks for one cookie".into()) };
                one.write(section);
                value.mark_translated(self.ledger);
                return Ok(());
            }
            "headers" | "arguments" => {
                let name = if key == "headers" { "header" } else { "query" };
                translate_values(name, value, section)?;
                value.mark_translated(self.ledger);
                return Ok(());
            }
            _ => return Err(format!("a route cannot ask for `{key}`").into()),
        };
        let all = |texts: &[String]| -> Result<Vec<String>, Untranslatable> {
            texts.iter().map(|text| read(text)).collect::<Result<Vec<_>, _>>().map(|found| found.concat())
        };
        let meant = all(&meant)?;
        let excluded = all(&excluded)?;
        if !excluded.is_empty() {
            let excluded = match directive {
                "method" => method_condition(excluded),
                _ => RouteCondition::new(directive, TomlItem::text_or_list(excluded)),
            };
            RouteCondition::none_of(&[excluded]).write(section);
        }
        match directive {
            _ if meant.is_empty() => {}
            "method" => method_condition(meant).write(section),
            "host" => hosts.extend(meant),
            _ => section.set(directive, TomlItem::text_or_list(meant)),
        }
        value.mark_translated(self.ledger);
        Ok(())
    }

    fn translate_action(&self, action: &DataNode, section: &mut TomlSection) {
        let text = |key: &str| action.get(key).and_then(DataNode::text);
        if let Some(headers) = action.get("response_headers") {
            self.translate_response_headers(headers, section);
        }
        if let Some(rewrite) = action.get("rewrite") {
            let to = translate_template(rewrite.text().unwrap_or(""));
            if ["/", "$path", "$uri"].iter().any(|start| to.starts_with(start)) {
                section.set_text("rewrite", to);
                rewrite.mark_translated(self.ledger);
            } else {
                rewrite.mark_impossible(
                    self.ledger,
                    "the new path does not begin with `/`: write `rewrite` in the route",
                );
                section.comment("CHECK: Unit rewrote the path here.");
                // Closed below, as all that an action has and a route has not.
            }
        }
        if let Some(pass) = text("pass") {
            self.translate_pass(pass, section);
            action.mark_key_translated("pass", self.ledger);
        } else if let Some(url) = text("proxy") {
            section.set_text("proxy", proxy_url(url));
            action.mark_key_translated("proxy", self.ledger);
        } else if let Some(share) = action.get("share") {
            self.translate_share(action, share, section);
        } else if let Some(code) = action.get("return").and_then(DataNode::number) {
            let location = text("location");
            match (code, location) {
                (301 | 302 | 303 | 307 | 308, Some(to)) => {
                    let to = translate_template(to);
                    section.set(
                        "redirect",
                        match code {
                            302 => TomlItem::Text(to),
                            _ => TomlItem::Table(vec![
                                ("to".to_owned(), TomlItem::Text(to)),
                                ("status".to_owned(), TomlItem::Number(code)),
                            ]),
                        },
                    );
                }
                (200..=599, _) => section.set("respond", TomlItem::Number(code)),
                _ => section.set("respond", TomlItem::Number(501)),
            }
            action.mark_key_translated("return", self.ledger);
            action.mark_key_translated("location", self.ledger);
        }
        action.mark_impossible(self.ledger, "an action has nothing like it here: the route is closed (403)");
        let answers = ["files", "proxy", "app"].iter().any(|key| section.get(key).is_some());
        let guards = action
            .entries()
            .iter()
            .filter(|(key, _)| key != "fallback")
            .flat_map(|(_, one)| one.manual_comments(self.ledger));
        let guards: Vec<String> = guards.collect();
        if answers && !guards.is_empty() {
            guards.into_iter().for_each(|check| close_route(section, check));
            return;
        }
        let has_action =
            ["files", "proxy", "app", "redirect", "respond"].iter().any(|key| section.get(key).is_some());
        if !has_action {
            section.comment("CHECK: what answered here is not possible: see the report.");
            section.set("respond", TomlItem::Number(501));
        }
    }

    fn translate_pass(&self, pass: &str, section: &mut TomlSection) {
        let mut parts = pass.split('/');
        match (parts.next(), parts.next(), parts.next()) {
            (Some("applications"), Some(name), target) => {
                let one = self.config.at(&["applications", name]);
                let kind = one.and_then(|one| one.get("type")).and_then(DataNode::text).unwrap_or("");
                if let Some(one) = one.filter(|_| kind.starts_with("php")) {
                    section.set_text("app", app_name(name, one, target));
                    return;
                }
                let is_there =
                    self.config.at(&["applications", name, "type"]).and_then(DataNode::text).is_some_and(
                        |kind| ["python", "perl", "ruby"].iter().any(|known| kind.starts_with(known)),
                    );
                match (is_there, target) {
                    (false, _) => {
                        section.comment(format!("CHECK: the application {name} is not one that Komainu runs: name its server in `proxy`."));
                        section.set("respond", TomlItem::Number(501));
                    }
                    (true, None) => section.set_text("app", name),
                    (true, Some(target)) => {
                        section.set_in("app", "name", TomlItem::text(name));
                        section.set_in("app", "target", TomlItem::text(target));
                    }
                }
            }
            (Some("upstreams"), Some(name), _) => section.set_in("proxy", "upstream", TomlItem::text(name)),
            _ => {
                section.comment(format!("CHECK: requests were passed to {pass}."));
                section.set("respond", TomlItem::Number(501));
            }
        }
    }

    fn translate_share(&self, action: &DataNode, share: &DataNode, section: &mut TomlSection) {
        let mut roots = Vec::new();
        let mut tries = Vec::new();
        for text in share.texts() {
            match text.strip_suffix("$uri") {
                Some(root) if !root.contains('$') => roots.push(root.trim_end_matches('/').to_owned()),
                None if !text.contains('$') && !text.ends_with('/') => {
                    let (root, name) = text.rsplit_once('/').unwrap_or((".", &text));
                    roots.push(root.to_owned());
                    tries.push(TomlItem::Text(format!("/{name}")));
                }
                _ => {
                    share.mark_impossible(
                        self.ledger,
                        "the folder depends on the request: write a route for each",
                    );
                    return;
                }
            }
        }
        if !tries.is_empty() && roots.len() > 1 {
            share.mark_impossible(
                self.ledger,
                "folders and files together: write a route with `files` for each",
            );
            return;
        }
        share.mark_translated(self.ledger);
        let roots = roots.into_iter().map(|root| if root.is_empty() { "/".to_owned() } else { root });
        section.set_in("files", "root", TomlItem::text_or_list(roots));
        if !tries.is_empty() {
            section.set_in("files", "try", TomlItem::List(tries));
        }
        if let Some(index) = action.get("index") {
            section.set_in(
                "files",
                "index",
                TomlItem::List(index.texts().into_iter().map(TomlItem::Text).collect()),
            );
            index.mark_translated(self.ledger);
        }
        let follows = action.get("follow_symlinks").and_then(DataNode::flag).unwrap_or(true);
        if follows && action.get("chroot").is_none() {
            section.set_in("files", "symlinks", TomlItem::text("on"));
        }
        if action.get("traverse_mounts").and_then(DataNode::flag) == Some(true) {
            action.mark_key_translated("traverse_mounts", self.ledger);
        }
        for key in ["follow_symlinks", "chroot"] {
            if let Some(one) = action.get(key) {
                one.mark_different(
                    self.ledger,
                    "paths never leave the root; `symlinks` in `files` says which links are followed",
                );
            }
        }
        self.translate_fallback(action, section);
    }

    fn translate_fallback(&self, action: &DataNode, section: &mut TomlSection) {
        let Some(fallback) = action.get("fallback") else { return };
        let text = |key: &str| fallback.get(key).and_then(DataNode::text);
        match (text("pass"), text("proxy"), text("share")) {
            (Some(pass), ..) if !pass.starts_with("routes") => {
                self.translate_pass(pass, section);
                fallback.mark_translated(self.ledger);
            }
            (_, Some(url), _) => {
                section.set_text("proxy", proxy_url(url));
                fallback.mark_translated(self.ledger);
            }
            (.., Some(file)) if !file.contains('$') => {
                let name = file.rsplit('/').next().unwrap_or(file);
                section.set_in("files", "fallback", TomlItem::Text(format!("/{name}")));
                fallback.mark_different(self.ledger, "the file has to be in the same folder");
            }
            _ => {
                section.comment("CHECK: what no file answered had another action in Unit; it is 404 here.");
                fallback.mark_impossible(
                    self.ledger,
                    "what no file answers is 404, or belongs to `proxy`, `app` or `fallback`",
                );
            }
        }
        if section.get("respond").is_some() {
            // The 501 response of an unsupported application cannot be combined with files.
            section.remove("respond");
        }
    }

    fn translate_response_headers(&self, headers: &DataNode, section: &mut TomlSection) {
        let mut removed = Vec::new();
        for (name, value) in headers.entries() {
            value.mark_translated(self.ledger);
            match (&value.value, value.text()) {
                (DataValue::Null, _) => removed.push(TomlItem::text(name.clone())),
                (_, Some(text)) => {
                    let mut set = match section.get("response_headers") {
                        Some(TomlItem::Table(entries)) => {
                            entries.iter().find(|(key, _)| key == "set").map(|(_, item)| item.clone())
                        }
                        _ => None,
                    };
                    let entries = set.get_or_insert(TomlItem::Table(Vec::new()));
                    if let TomlItem::Table(entries) = entries {
                        entries.push((name.clone(), TomlItem::Text(translate_template(text))));
                    }
                    section.set_in("response_headers", "set", entries.clone());
                }
                _ => {}
            }
        }
        if !removed.is_empty() {
            section.set_in("response_headers", "remove", TomlItem::List(removed));
        }
    }
}

impl DataNode {
    /// Marks the value of a key as translated.
    fn mark_key_translated(&self, key: &str, ledger: &ImportLedger) {
        if let Some(one) = self.get(key) {
            one.mark_translated(ledger);
        }
    }
}

fn proxy_url(url: &str) -> String {
    url.strip_prefix("http://unix:").map_or_else(|| url.to_owned(), |path| format!("unix:{path}"))
}

/// Whether the paths of a route are those of scripts and folders alone.
fn asks_for_scripts(conditions: &TomlSection) -> bool {
    let is_script = |item: &TomlItem| {
        let ends = |text: &str| [".php", ".php/*", "/"].iter().any(|end| text.ends_with(end));
        item.as_text().is_some_and(|text| !text.starts_with('~') && ends(text))
    };
    match conditions.get("path") {
        Some(TomlItem::List(items)) => items.iter().all(is_script),
        Some(item) => is_script(item),
        None => false,
    }
}

/// Translates the values of header fields or parameters in a step. The field has to be present even if values
/// are only excluded.
fn translate_values(
    directive: &str,
    value: &DataNode,
    section: &mut TomlSection,
) -> Result<(), Untranslatable> {
    let table = single_table(value)?;
    for (field, pattern) in table.entries() {
        let (excluded, meant): (Vec<String>, Vec<String>) =
            pattern.texts().into_iter().partition(|text| text.starts_with('!'));
        for text in &excluded {
            let one = RouteCondition::on_value(directive, field, translate_value_pattern(&text[1..])?);
            RouteCondition::none_of(&[one]).write(section);
        }
        let item = match meant.as_slice() {
            [] => TomlItem::Flag(true),
            [one] => TomlItem::Text(translate_value_pattern(one)?),
            several => TomlItem::Text(any_value(several)?),
        };
        RouteCondition::new(directive, TomlItem::Table(vec![(field.clone(), item)])).write(section);
    }
    Ok(())
}

/// Returns the fields or cookies that have to match together.
fn single_table(value: &DataNode) -> Result<&DataNode, Untranslatable> {
    match value.items() {
        [] => Ok(value),
        [one] => Ok(one),
        _ => Err("one of several fields cannot be asked for: write a route for each".into()),
    }
}

fn translate_value_pattern(text: &str) -> Result<String, Untranslatable> {
    match text.strip_prefix('~') {
        Some(regex) => path_expression(regex, false).map(|found| found.pattern),
        None => Ok(text.to_owned()),
    }
}

fn translate_host(text: &str) -> Result<Vec<String>, Untranslatable> {
    let name = text.strip_prefix("*.").unwrap_or(text);
    if text.starts_with('~') || name.contains('*') || name.is_empty() {
        Err("`hosts` takes names and `*.example.com`".into())
    } else {
        Ok(vec![text.to_lowercase()])
    }
}

fn translate_method(text: &str) -> Result<Vec<String>, Untranslatable> {
    if text.contains('*') || text.starts_with('~') {
        Err("a method is a word".into())
    } else {
        Ok(vec![text.to_uppercase()])
    }
}

fn translate_source(text: &str) -> Result<Vec<String>, Untranslatable> {
    let text = text.strip_suffix(":*").unwrap_or(text);
    let text = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let address = text.split('/').next().unwrap_or(text);
    if text == "unix" || address.parse::<std::net::IpAddr>().is_ok() {
        Ok(vec![text.to_owned()])
    } else {
        Err("`client` takes addresses and networks, without ports and ranges".into())
    }
}

/// Whether a configuration has patterns that are regular expressions.
fn has_expression(node: &DataNode) -> bool {
    node.text().is_some_and(|text| text.trim_start_matches('!').starts_with('~'))
        || node.items().iter().any(has_expression)
        || node.entries().iter().any(|(_, inner)| has_expression(inner))
}

fn translate_paths(text: &str) -> Result<Vec<String>, Untranslatable> {
    let Some(regex) = text.strip_prefix('~') else {
        return translate_path_pattern(text).map(|path| vec![path]);
    };
    match from_regex(regex, false).ok().filter(|set| set.difference.is_none()) {
        Some(set) => Ok(set.patterns),
        None => path_expression(regex, false).map(|found| vec![found.pattern]),
    }
}

/// Translates a pattern of Unit, whose `*` matches slashes, to a path pattern.
fn translate_path_pattern(text: &str) -> Result<String, Untranslatable> {
    let inner = text.trim_matches('*').replace('*', "**");
    let start = if text.starts_with('*') { "*" } else { "" };
    let end = if text.ends_with('*') && !inner.is_empty() { "*" } else { "" };
    let found = format!("{start}{inner}{end}");
    if found.starts_with(['/', '*']) && !found.contains(['?', '#', '%', '\\']) {
        Ok(found)
    } else {
        Err("it is not a path pattern".into())
    }
}

/// Translates Unit's variables in a text.
fn translate_template(text: &str) -> String {
    let text = text.replace("${", "$").replace('}', "");
    let text = text.replace("$request_uri", "\u{1}").replace("$uri", "$path").replace('\u{1}', "$uri");
    text.replace("$header_", "$http_").replace("$dollar", "$$")
}
