//! `if`: routes with the condition, before that of the location itself.

use super::maps::{MapCondition, value_patterns};
use super::place::Place;
use super::rewrite::slash_apart;
use super::scope::{Scope, field_name};
use super::tree::NginxDirective;
use super::work::{Matcher, Translation, route};
use crate::draft::{TomlItem, TomlSection};
use crate::expressions::{expression_below, path_expression, quoted};

/// A condition of a route, and the value of the variable that it is about, where that is known.
type IfCondition<'d> = (MapCondition, Option<(&'d str, &'d str)>);

impl<'d> Translation<'d> {
    /// `rewrite` and `if`: routes before that of the location itself.
    pub(crate) fn rewrites(&self, place: &Place<'d>) -> Vec<TomlSection> {
        let mut routes = Vec::new();
        for one in place.scope.own() {
            match one.name.as_str() {
                "rewrite" => routes.extend(self.rewrite(one, place)),
                "if" if is_of_referers(one) || is_of_files(one) => {}
                "if" => routes.extend(self.condition(one, place)),
                "set" => self.ledger.needless(one.entry, "its value stands where the variable was used"),
                "break" => self.ledger.needless(one.entry, "there is nothing to end here"),
                _ => {}
            }
        }
        routes
    }

    /// `if` with `return` or `rewrite` in it, where the condition is one that routes have.
    fn condition(&self, one: &'d NginxDirective, place: &Place<'d>) -> Vec<TomlSection> {
        let inner = Place {
            scope: place.scope.with(one.inner()),
            matcher: place.matcher.clone(),
            paths: place.paths.clone(),
            within: place.within.clone(),
            entry: place.entry,
        };
        let answer = inner.scope.own_one("return");
        let rewrites = inner.scope.own().iter().any(|one| one.name == "rewrite");
        if answer.is_none() && !rewrites {
            self.ledger.impossible(
                one.entry,
                "only `return` and `rewrite` in `if` can be translated: write a route with the condition",
            );
            return self.lost(one);
        }
        let conditions = match self.if_conditions(one, place) {
            Ok(found) => found,
            Err(reason) => {
                self.ledger.impossible(
                    one.entry,
                    format!(
                        "{reason}: routes have conditions for path, method, header, query, client and referer"
                    ),
                );
                return self.lost(one);
            }
        };
        self.ledger.translated(one.entry);
        let mut routes = Vec::new();
        for (condition, value) in conditions {
            if let Some(differs) = condition.differs {
                self.ledger.differs(one.entry, differs);
            }
            let mut section = route(&place.paths);
            section.set(condition.directive, condition.item.clone());
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
                routes.push(section);
                continue;
            }
            for mut rewritten in self.rewrites(&inner) {
                if rewritten
                    .get(condition.directive)
                    .is_some_and(|item| Some(item) != route(&place.paths).get("path"))
                {
                    self.ledger.impossible(
                        one.entry,
                        "its condition and its `rewrite` both ask for a path: write a route for both",
                    );
                    continue;
                }
                rewritten.set(condition.directive, condition.item.clone());
                routes.push(rewritten);
            }
        }
        routes
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
            self.ledger.differs(block.entry, "a route for each of its values stands in place of it");
            return Ok(found
                .into_iter()
                .map(|(condition, value)| (condition, Some((name, value))))
                .collect());
        }
        let target = one.inner().iter().find(|one| one.name == "return").and_then(|one| one.args.last());
        let apart = target.and_then(|target| slash_apart(value, target));
        let value = apart.as_ref().map_or(value, |(value, _)| value.as_str());
        Ok(conditions(name, operator, value, place)?.into_iter().map(|condition| (condition, None)).collect())
    }

    /// Reports what stands in an `if` that was not translated.
    fn lost(&self, one: &NginxDirective) -> Vec<TomlSection> {
        for inner in one.inner() {
            self.ledger.impossible(inner.entry, "it belongs to an `if` that was not translated");
        }
        Vec::new()
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

/// The conditions of a route that a comparison has.
fn conditions(
    name: &str,
    operator: &str,
    value: &str,
    place: &Place<'_>,
) -> Result<Vec<MapCondition>, String> {
    let of = |directive, item, differs| MapCondition { directive, item, groups: Vec::new(), differs };
    let given = match operator {
        "=" => value.to_owned(),
        "~" | "~*" => format!("{operator}{value}"),
        "" if name.starts_with("http_") || name.starts_with("arg_") => String::new(),
        _ => return Err("a route cannot ask for what is not so".to_owned()),
    };
    match name {
        "uri" | "document_uri" | "request_uri" if operator.starts_with('~') => {
            let found = path_expression(value, operator == "~*")?;
            let pattern = match &place.matcher {
                Matcher::Server => Some(found.pattern.clone()),
                Matcher::Prefix(prefix, _) => expression_below(prefix, &found.pattern),
                _ => None,
            };
            let pattern = pattern.ok_or("both its expression and its location would have to be found")?;
            let differs = (name == "request_uri")
                .then_some("the path alone is looked up, decoded and without its query");
            Ok(vec![MapCondition {
                directive: "path",
                item: TomlItem::Text(pattern),
                groups: found.groups,
                differs,
            }])
        }
        "request_method" => {
            let (values, _) = value_patterns(&given, false)?;
            match values.iter().all(|value| !value.contains('*')) {
                true => Ok(vec![of("method", TomlItem::texts(values), None)]),
                false => Err("a method is a word: write `^(GET|POST)$`".to_owned()),
            }
        }
        "remote_addr" if operator == "=" => Ok(vec![of("client", TomlItem::text(value), None)]),
        "host" | "http_host" | "server_name" => {
            Err("the host chooses a site: write a `[[site]]` with it in `hosts`".to_owned())
        }
        _ => {
            let (directive, key) = match (name.strip_prefix("http_"), name.strip_prefix("arg_")) {
                (Some(field), _) => ("header", field_name(field)),
                (_, Some(parameter)) => ("query", parameter.to_owned()),
                _ => return Err(format!("a route cannot ask for `${name}`")),
            };
            let table = |item| TomlItem::Table(vec![(key.clone(), item)]);
            if operator.is_empty() {
                let differs = "an empty value, and `0`, are meant too";
                return Ok(vec![of(directive, table(TomlItem::Flag(true)), Some(differs))]);
            }
            let (values, _) = value_patterns(&given, false)?;
            let differs = (operator == "~*").then_some("upper and lower case differ in the value");
            Ok(values.into_iter().map(|value| of(directive, table(TomlItem::Text(value)), differs)).collect())
        }
    }
}
