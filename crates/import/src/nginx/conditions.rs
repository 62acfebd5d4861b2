//! `if`: routes with the condition, before that of the location itself.

use super::place::Place;
use super::rewrite::slash_apart;
use super::scope::{Scope, field_name};
use super::tree::NginxDirective;
use super::work::{Matcher, Translation, route};
use crate::conditions::{RouteCondition, close, cookie_conditions, value_conditions};
use crate::draft::{TomlItem, TomlSection};
use crate::expressions::{expression_below, path_expression, quoted};
use crate::paths::{from_literal, hosts_from_regex};

/// A condition of a route, and the value of the variable that it is about, where that is known.
type IfCondition<'d> = (RouteCondition, Option<(&'d str, &'d str)>);

impl<'d> Translation<'d> {
    /// `rewrite` and `if`: routes before that of the location itself.
    pub(crate) fn rewrites(&self, place: &Place<'d>) -> Vec<TomlSection> {
        let mut routes = Vec::new();
        for one in place.scope.own() {
            match one.name.as_str() {
                "rewrite" => routes.extend(self.rewrite(one, place)),
                "if" if is_of_referers(one) || is_of_files(one) => {}
                "if" if place.matcher == Matcher::Server
                    && self.maintenance_of(one, &place.scope).is_some() => {}
                "if" => routes.extend(self.condition(one, place)),
                "set" => self.ledger.needless(one.entry, "its value stands where the variable was used"),
                "break" => self.ledger.needless(one.entry, "there is nothing to end here"),
                _ => {}
            }
        }
        routes
    }

    /// Writes the `maintenance` of a site: `if (-f FILE) { return 503; }`.
    pub(crate) fn maintenance(&self, server: &Scope<'d>, section: &mut TomlSection) {
        let found = server.own().iter().filter(|one| one.name == "if");
        let Some((one, file)) = found.filter_map(|one| Some((one, self.maintenance_of(one, server)?))).next()
        else {
            return;
        };
        self.ledger.translated(one.entry);
        one.inner().iter().for_each(|inner| self.ledger.translated(inner.entry));
        section.set_in("maintenance", "file", TomlItem::Text(file));
    }

    /// The file whose presence has a server answer 503 to everything.
    fn maintenance_of(&self, one: &NginxDirective, scope: &Scope<'d>) -> Option<String> {
        let [answer] = one.inner() else { return None };
        if answer.name != "return" || answer.args != ["503"] {
            return None;
        }
        let words = words(one);
        let [_, path] = words.as_slice() else { return None };
        let root = scope.one("root").map_or("", |one| one.first());
        let file = path.replace("$document_root", root).replace("$realpath_root", root);
        let is_file = matches!(words[0], "-f" | "-e") && !file.contains('$') && !file.is_empty();
        is_file.then(|| self.file(&file))
    }

    /// `if` with `return` or `rewrite` in it, where the condition is one that routes have.
    fn condition(&self, one: &'d NginxDirective, place: &Place<'d>) -> Vec<TomlSection> {
        let inner = Place {
            scope: place.scope.with(one.inner()),
            matcher: place.matcher.clone(),
            paths: place.paths.clone(),
            within: place.within.clone(),
            entry: place.entry,
            is_closed: false,
        };
        let answer = inner.scope.own_one("return");
        let rewrites = inner.scope.own().iter().any(|one| one.name == "rewrite");
        if answer.is_none() && !rewrites {
            self.ledger.impossible(
                one.entry,
                "only `return` and `rewrite` in `if` can be translated: write a route with the condition",
            );
            self.lost(one);
            return Vec::new();
        }
        let conditions = match self.if_conditions(one, place) {
            Ok(found) => found,
            Err(reason) => return self.unknown_condition(one, &reason, place),
        };
        self.ledger.translated(one.entry);
        let mut routes = Vec::new();
        for (condition, value) in conditions {
            if let Some(differs) = condition.differs {
                self.ledger.differs(one.entry, differs);
            }
            let mut section = route(&place.paths);
            if let Err(reason) = condition.write(&mut section) {
                routes.extend(self.unknown_condition(one, &reason, place));
                continue;
            }
            if let Some(answer) = answer {
                let scope = match condition.groups.is_empty() {
                    true => inner.scope.clone(),
                    false => inner.scope.with_groups(&condition.groups),
                };
                let mut answer = with_value(answer, value);
                if let (Some(target), false) = (answer.args.last_mut(), condition.groups.is_empty())
                    && let Some(apart) = words(one).last().and_then(|regex| slash_apart(regex, target))
                {
                    *target = apart.1;
                }
                self.respond(&answer, &scope, &mut section);
                self.headers(&scope, &mut section);
                self.open_ends(inner.scope.own(), &mut section);
                routes.push(section);
                continue;
            }
            for mut rewritten in self.rewrites(&inner) {
                let has_path =
                    rewritten.get("path").is_some_and(|item| Some(item) != route(&place.paths).get("path"));
                let written = match has_path && condition.asks_for("path") {
                    true => Err("its condition and its `rewrite` both ask for a path".to_owned()),
                    false => condition.write(&mut rewritten),
                };
                match written {
                    Ok(()) => routes.push(rewritten),
                    Err(reason) => routes.extend(self.unknown_condition(one, &reason, place)),
                }
            }
        }
        routes
    }

    /// An `if` whose condition no route can have: what it refuses stays closed.
    fn unknown_condition(
        &self,
        one: &'d NginxDirective,
        reason: &str,
        place: &Place<'d>,
    ) -> Vec<TomlSection> {
        let is_refusal = |inner: &NginxDirective| {
            inner.name == "return"
                && inner.first().parse().is_ok_and(|status: u16| (400..500).contains(&status))
        };
        let is_answer = |inner: &NginxDirective| matches!(inner.name.as_str(), "return" | "rewrite");
        let is_guard = self.is_guard(one, place);
        let refuses = one.inner().iter().any(|inner| is_refusal(inner) || is_guard && is_answer(inner));
        let what = match refuses {
            true => "the route is closed (403) until its condition is written",
            false => {
                "routes have conditions for path, host, method, header, query, client, country and referer"
            }
        };
        self.ledger.impossible(one.entry, format!("{reason}: {what}"));
        self.lost(one);
        if !refuses {
            return Vec::new();
        }
        let mut section = route(&place.paths);
        close(&mut section, self.ledger.open_end(one.entry).unwrap_or_default());
        vec![section]
    }

    /// Whether an `if` asks who sends a request, itself or through a `map` or `set`: what answers then keeps others out, with a redirect
    /// to a page for signing in as well.
    fn is_guard(&self, one: &'d NginxDirective, place: &Place<'d>) -> bool {
        let words = words(one);
        let Some(variable) = words.iter().copied().find(|word| word.starts_with('$')) else { return false };
        let source = self.map_block(&variable[1..]).map_or(variable, Self::map_source);
        let sets = |other: &&NginxDirective| {
            let is_it = |inner: &NginxDirective| inner.name == "set" && inner.first() == variable;
            other.name == "if" && other.inner().iter().any(is_it)
        };
        let of_user = |text: &str| {
            ["$cookie_", "$http_cookie", "$http_authorization", "$remote_user", "$ssl_client_"]
                .iter()
                .any(|start| text.starts_with(start))
        };
        let all = place.scope.levels.iter().flat_map(|level| level.iter());
        of_user(source) || all.filter(sets).any(|other| self::words(other).iter().any(|word| of_user(word)))
    }

    /// The conditions of routes for an `if`; any of them is enough.
    ///
    /// # Errors
    /// Why routes cannot ask for it.
    fn if_conditions(
        &self,
        one: &'d NginxDirective,
        place: &Place<'d>,
    ) -> Result<Vec<IfCondition<'d>>, String> {
        let words = words(one);
        let (variable, operator, value) = match words.as_slice() {
            [variable] if variable.starts_with('$') => (*variable, "", ""),
            [variable, operator, value] if variable.starts_with('$') => (*variable, *operator, *value),
            // An empty text is left of `""`.
            [variable, operator @ ("=" | "!=")] if variable.starts_with('$') => (*variable, *operator, ""),
            [operator, _] if operator.starts_with(['-', '!']) => {
                return Err("whether there is a file is asked by `files` alone (`try`, `fallback`, and `proxy`, `php` or `app` beside it)".to_owned());
            }
            _ => return Err("a route cannot ask for it".to_owned()),
        };
        let name = &variable[1..];
        if let Some(block) = self.map_block(name) {
            let is_meant = |found: &str| match operator {
                "" => !found.is_empty() && found != "0",
                "=" => found == value,
                "!=" => found != value,
                _ => false,
            };
            if operator.starts_with('~') || operator.starts_with("!~") {
                return Err("it compares the value of a map with an expression".to_owned());
            }
            let found = self.map_conditions(block, &is_meant)?;
            self.ledger.needless(block.entry, "a route for each of its values stands in place of it");
            return Ok(found
                .into_iter()
                .map(|(condition, value)| (condition, Some((name, value))))
                .collect());
        }
        let target = one.inner().iter().find(|one| one.name == "return").and_then(|one| one.args.last());
        let apart = target.and_then(|target| slash_apart(value, target));
        let value = apart.as_ref().map_or(value, |(value, _)| value.as_str());
        let found = match operator.strip_prefix('!') {
            // A path that is excluded stands beside that of the location.
            Some(operator) => {
                let everywhere = Place { matcher: Matcher::Server, ..place.clone() };
                vec![RouteCondition::none_of(&conditions(name, operator, value, &everywhere)?)?]
            }
            None => conditions(name, operator, value, place)?,
        };
        Ok(found.into_iter().map(|condition| (condition, None)).collect())
    }

    /// Reports what stands in an `if` that was not translated.
    fn lost(&self, one: &NginxDirective) {
        for inner in one.inner() {
            self.ledger.impossible(inner.entry, "it belongs to an `if` that was not translated");
        }
    }

    /// `valid_referers` with `if ($invalid_referer)`: writes `referer` of a location's route, and returns the route for all other
    /// requests.
    pub(crate) fn referers(&self, place: &Place<'d>, section: &mut TomlSection) -> Option<TomlSection> {
        let scope = &place.scope;
        let valid = scope.all("valid_referers");
        let condition = scope.own().iter().find(|one| one.name == "if" && is_of_referers(one))?;
        let inner = scope.with(condition.inner());
        let answer = inner.own_one("return").filter(|_| !valid.is_empty());
        let Some(answer) = answer else {
            self.ledger.impossible(
                condition.entry,
                "only `return` counts here: write `referer` in the route, and one for all others behind it",
            );
            self.lost(condition);
            return None;
        };
        let mut pages = Vec::new();
        for one in &valid {
            self.ledger.translated(one.entry);
            for word in &one.args {
                match self.pages(word, one, scope) {
                    Ok(found) => pages.extend(found),
                    Err(reason) => self.ledger.impossible(one.entry, format!("`{word}`: {reason}")),
                }
            }
        }
        self.ledger.translated(condition.entry);
        let mut refusal = route(&place.paths);
        self.respond(answer, &inner, &mut refusal);
        self.headers(&inner, &mut refusal);
        section.set("referer", TomlItem::texts(super::tree::unique(pages)));
        Some(refusal)
    }

    /// The pages of one word of `valid_referers`.
    fn pages(&self, word: &str, one: &NginxDirective, scope: &Scope<'d>) -> Result<Vec<String>, String> {
        match word {
            "none" => Ok(vec!["none".to_owned()]),
            "blocked" => {
                self.ledger.differs(one.entry, "`blocked`: a Referer without a scheme is looked up as it is, a firewall's `XXXX` is refused");
                Ok(Vec::new())
            }
            "server_names" => {
                let names = scope.one("server_name").map_or(&[][..], |one| &one.args);
                let is_host = |name: &&String| {
                    !name.starts_with('~') && !name.contains('$') && *name != "_" && !name.is_empty()
                };
                let hosts = names.iter().filter(is_host).flat_map(|name| match name.strip_prefix('.') {
                    Some(rest) => vec![rest.to_owned(), format!("*.{rest}")],
                    None => vec![name.clone()],
                });
                Ok(hosts.collect())
            }
            _ if word.starts_with('~') => {
                let regex = word.trim_start_matches(['~', '*']);
                path_expression(regex, true).map(|found| vec![found.pattern])
            }
            _ if word.contains('/') => Ok(vec![format!("~* ^{}", quoted(word).replace("\\*", "[^/]*"))]),
            _ => match (word.strip_prefix("*."), word.strip_suffix(".*")) {
                (Some(rest), None) if !rest.contains('*') => Ok(vec![word.to_owned()]),
                (None, Some(rest)) if !rest.contains('*') => Ok(vec![format!("~* ^{}\\.", quoted(rest))]),
                (None, None) if !word.contains('*') => Ok(vec![word.to_owned()]),
                _ => Ok(vec![format!("~* ^{}(?:[:/]|$)", quoted(word).replace("\\*", "[^/:]*"))]),
            },
        }
    }
}

/// The words of a condition, without its parentheses.
fn words(one: &NginxDirective) -> Vec<&str> {
    let last = one.args.len().saturating_sub(1);
    let bare = |(at, word): (usize, &'_ String)| -> (usize, usize) {
        let start = if at == 0 && word.starts_with('(') { 1 } else { 0 };
        let end =
            if at == last && word.ends_with(')') && word.len() > start { word.len() - 1 } else { word.len() };
        (start, end)
    };
    one.args
        .iter()
        .enumerate()
        .map(|(at, word)| {
            let (start, end) = bare((at, word));
            word[start..end].trim()
        })
        .filter(|word| !word.is_empty())
        .collect()
}

/// Whether an `if` asks for the page that a request comes from.
fn is_of_referers(one: &NginxDirective) -> bool {
    words(one) == ["$invalid_referer"]
}

/// The operator, where an `if` asks for a file: what `try_files` says in another way.
pub(crate) fn file_operator(one: &NginxDirective) -> Option<&str> {
    let words = words(one);
    match words.as_slice() {
        [operator, path]
            if matches!(*operator, "-f" | "!-f" | "-e" | "!-e" | "-d" | "!-d")
                && (*path == "$request_filename"
                    || path.starts_with("$document_root")
                    || path.starts_with("$realpath_root")) =>
        {
            Some(operator)
        }
        _ => None,
    }
}

/// An `if` that asks whether there is no file, and passes everything else to a script or refuses it: `files` and `php` do the same.
pub(crate) fn is_of_files(one: &NginxDirective) -> bool {
    let is_for_missing = matches!(file_operator(one), Some("!-f" | "!-e"));
    let is_plain = |inner: &NginxDirective| match inner.name.as_str() {
        "rewrite" => front_script(inner.arg(1)).is_some(),
        "return" => inner.first() == "404",
        "break" => true,
        _ => false,
    };
    is_for_missing && one.inner().iter().all(is_plain)
}

/// The script that a path with variables names: `/index.php` of `/index.php?$args`.
pub(crate) fn front_script(path: &str) -> Option<&str> {
    let end = path.find(".php")? + ".php".len();
    let script = &path[..end];
    (script.starts_with('/') && !script.contains(['$', '?'])).then_some(script)
}

/// A directive in whose arguments a variable has a value.
fn with_value(one: &NginxDirective, value: Option<(&str, &str)>) -> NginxDirective {
    let mut one = one.clone();
    if let Some((name, value)) = value {
        for arg in &mut one.args {
            *arg = arg.replace(&format!("${{{name}}}"), value).replace(&format!("${name}"), value);
        }
    }
    one
}

/// The conditions of routes for a comparison, any of which is enough. `operator` is `=`, `~`, `~*` or nothing.
fn conditions(
    name: &str,
    operator: &str,
    value: &str,
    place: &Place<'_>,
) -> Result<Vec<RouteCondition>, String> {
    if !matches!(operator, "" | "=" | "~" | "~*") {
        return Err(format!("nginx has no `{operator}`"));
    }
    match name {
        "uri" | "document_uri" | "request_uri" if operator.starts_with('~') => {
            if name == "request_uri" && (value.contains("\\?") || value.contains("[?")) {
                return Err(
                    "its expression looks at the query: a route asks for parameters by `query`".to_owned()
                );
            }
            let found = path_expression(value, operator == "~*")?;
            let pattern = match &place.matcher {
                Matcher::Server => Some(found.pattern.clone()),
                Matcher::Prefix(prefix, _) => expression_below(prefix, &found.pattern),
                _ => None,
            };
            let pattern = pattern.ok_or("both its expression and its location would have to be found")?;
            let differs = (name == "request_uri")
                .then_some("the path alone is looked up, decoded and without its query");
            let condition = RouteCondition::new("path", TomlItem::Text(pattern));
            Ok(vec![condition.with_groups(found.groups).but(differs)])
        }
        "uri" | "document_uri" if operator == "=" && place.matcher == Matcher::Server => {
            let pattern = from_literal(value, false).ok_or("no path can be this")?;
            Ok(vec![RouteCondition::new("path", TomlItem::Text(pattern))])
        }
        "request_method" if !operator.is_empty() => {
            let methods = methods(operator, value)?;
            let differs = (methods.iter().any(|one| one == "GET")
                && !methods.iter().any(|one| one == "HEAD"))
            .then_some("`GET` includes HEAD");
            Ok(vec![RouteCondition::new("method", TomlItem::texts(methods)).but(differs)])
        }
        "remote_addr" if operator == "=" => Ok(vec![RouteCondition::new("client", TomlItem::text(value))]),
        "host" | "http_host" | "server_name" => {
            let hosts = match operator {
                "=" => Some(vec![value.to_lowercase()]),
                "" => None,
                _ => hosts_from_regex(value).filter(|(_, is_wider)| !is_wider).map(|(hosts, _)| hosts),
            };
            let is_host = |host: &String| !host.is_empty() && !host.contains([':', '/', '*', '$']);
            match hosts.filter(|hosts| hosts.iter().all(is_host)) {
                Some(hosts) => Ok(vec![RouteCondition::new("host", TomlItem::texts(hosts))]),
                None => Err("the host chooses a site: write a `[[site]]` with it in `hosts`".to_owned()),
            }
        }
        _ => {
            if let Some(cookie) = name.strip_prefix("cookie_") {
                return cookie_conditions(cookie, operator, value);
            }
            let (directive, name) = match (name.strip_prefix("http_"), name.strip_prefix("arg_")) {
                (Some(field), _) => ("header", field_name(field)),
                (_, Some(parameter)) => ("query", parameter.to_owned()),
                _ => return Err(format!("a route cannot ask for `${name}`")),
            };
            value_conditions(directive, &name, operator, value)
        }
    }
}

/// The methods of a comparison: a word, or an expression of words such as `^(GET|POST)$`.
fn methods(operator: &str, value: &str) -> Result<Vec<String>, String> {
    let words = match operator {
        "=" => value,
        _ => {
            let inner = value.strip_prefix('^').and_then(|value| value.strip_suffix('$')).unwrap_or(value);
            let in_group = |start| inner.strip_prefix(start).and_then(|inner| inner.strip_suffix(')'));
            // `^GET|POST$` is bound on one side each, which is the same for methods that there are.
            in_group("(?:").or_else(|| in_group("(")).unwrap_or(inner)
        }
    };
    let methods: Vec<String> = words.split('|').map(str::to_uppercase).collect();
    match methods
        .iter()
        .all(|one| !one.is_empty() && one.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'-'))
    {
        true => Ok(methods),
        false => Err("a method is a word: write `^(GET|POST)$`".to_owned()),
    }
}
