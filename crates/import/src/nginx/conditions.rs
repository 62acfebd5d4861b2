//! Translation of `if` to conditions of routes.

use super::guards::inexact_reason;
use super::location_place::{LocationPlace, ServerLocations};
use super::rewrite::move_leading_slash;
use super::scope::{Scope, TextPart, field_name, replace_constants, split_template};
use super::translation::Translation;
use super::tree::NginxDirective;
use crate::conditions::{RouteCondition, compare_cookie, compare_value, method_condition};
use crate::draft::{TomlItem, TomlSection};
use crate::expressions::{escape_literal, path_expression};
use crate::findings::Untranslatable;
use crate::paths::{from_literal, hosts_from_regex, may_match_only_file};

/// A condition of a route, and the variable that it tests with its value, if that is known.
pub(crate) type IfCondition<'d> = (RouteCondition, Option<(String, &'d str)>);

/// Requests for which the condition of an `if` is true.
pub(crate) enum IfConditions<'d> {
    /// All requests.
    Always,
    /// No requests.
    Never,
    /// Requests that meet any of these conditions.
    Any(Vec<IfCondition<'d>>),
}

impl<'d> Translation<'d> {
    /// Writes the `maintenance` of a site: `if (-f FILE) { return 503; }`.
    pub(crate) fn write_maintenance(&self, server: &Scope<'d>, section: &mut TomlSection) {
        let found = server.innermost().iter().filter(|one| one.name == "if");
        let Some((one, file)) =
            found.filter_map(|one| Some((one, self.maintenance_file(one, server)?))).next()
        else {
            return;
        };
        self.count_block_taken(one);
        section.set_in("maintenance", "file", TomlItem::Text(file));
    }

    /// Returns the file whose existence makes a server answer 503 to all requests.
    pub(crate) fn maintenance_file(&self, directive: &NginxDirective, scope: &Scope<'d>) -> Option<String> {
        let [answer] = directive.block_directives() else { return None };
        if answer.name != "return" || answer.args != ["503"] {
            return None;
        }
        let words = condition_words(directive);
        let [_, path] = words.as_slice() else { return None };
        let root = scope.effective("root").map_or("", |one| one.first_arg());
        let file = path.replace("$document_root", root).replace("$realpath_root", root);
        let is_file = matches!(words[0], "-f" | "-e") && !file.contains('$') && !file.is_empty();
        is_file.then(|| self.resolve_path(&file))
    }

    /// Translates the condition of an `if` to conditions of routes, of which one has to be met.
    ///
    /// # Errors
    /// The reason why routes cannot express the condition.
    pub(crate) fn translate_if(
        &self,
        directive: &'d NginxDirective,
        scope: &Scope<'d>,
    ) -> Result<IfConditions<'d>, Untranslatable> {
        let words = condition_words(directive);
        let (variable, operator, value) = match words.as_slice() {
            [variable] if variable.starts_with('$') => (*variable, "", ""),
            [variable, operator, value] if variable.starts_with('$') => (*variable, *operator, *value),
            // `""` has been parsed to an empty word, which `words` drops.
            [variable, operator @ ("=" | "!=")] if variable.starts_with('$') => (*variable, *operator, ""),
            [operator, _] if operator.starts_with(['-', '!']) => {
                return Err("only `files` looks for a file (`try`, `fallback`, and `proxy`, `php` or `app` beside it)".into());
            }
            _ => return Err("a route cannot ask for it".into()),
        };
        let name = variable[1..].trim_matches(['{', '}']);
        let known = scope.before(directive);
        let resolved = replace_constants(value, &known, 0);
        if matches!(operator, "=" | "!=") && resolved.contains('$') {
            return Err("it compares two values that depend on the request".into());
        }
        let value = if matches!(operator, "=" | "!=") { resolved.as_str() } else { value };
        let is_meant = |found: &str| match operator {
            "" => !found.is_empty() && found != "0",
            "=" => found == value,
            _ => found != value,
        };
        let is_expression = operator.starts_with('~') || operator.starts_with("!~");
        let is_guard = !directive.block_directives().iter().all(super::rewrite::responds_or_redirects);
        let bare = operator.trim_start_matches('!');
        let fault = inexact_reason(name, bare, value).filter(|_| is_guard);
        if let Some(fault) = fault {
            return Err(fault.into());
        }
        if let Some(constant) = constant_value(name, &known).filter(|_| !is_expression) {
            return Ok(if is_meant(&constant) { IfConditions::Always } else { IfConditions::Never });
        }
        if name == "invalid_referer" && operator.is_empty() {
            let found = self.invalid_referer_conditions(scope)?;
            return Ok(IfConditions::Any(found.into_iter().map(|one| (one, None)).collect()));
        }
        if let Some(block) = self.find_map(name) {
            if is_expression {
                return Err("it compares the value of a map with an expression".into());
            }
            let found = self.map_comparison(directive, block, (operator, &is_meant))?;
            let of_value = |(condition, value)| (condition, Some((name.to_owned(), value)));
            return Ok(IfConditions::Any(found.into_iter().map(of_value).collect()));
        }
        if let Some(reason) = self.unknown_source_reason(name) {
            return Err(reason.into());
        }
        let target = directive
            .block_directives()
            .iter()
            .find(|one| one.name == "return")
            .and_then(|one| one.args.last());
        let apart = target.and_then(|target| move_leading_slash(value, target));
        let value = apart.as_ref().map_or(value, |(value, _)| value.as_str());
        let found = match operator.strip_prefix('!') {
            Some(_) if name == "request_uri" => {
                return Err("it lets requests through by the path as it is sent, before it is decoded".into());
            }
            Some(operator) => {
                vec![RouteCondition::none_of(&comparison_conditions(name, operator, value)?)]
            }
            None => comparison_conditions(name, operator, value)?,
        };
        Ok(IfConditions::Any(found.into_iter().map(|condition| (condition, None)).collect()))
    }

    /// Returns the conditions under which the value of a map meets the condition of an `if`, each with that
    /// value.
    fn map_comparison(
        &self,
        directive: &NginxDirective,
        block: &'d NginxDirective,
        (operator, is_meant): (&str, &dyn Fn(&str) -> bool),
    ) -> Result<Vec<(RouteCondition, &'d str)>, Untranslatable> {
        let is_guard = !directive.block_directives().iter().all(super::rewrite::responds_or_redirects);
        // A value with literal text is neither empty nor `0`.
        let is_text = |part: &TextPart| matches!(part, TextPart::Text(text) if text != "0");
        let is_certain = |value: &str| operator.is_empty() && split_template(value).iter().any(is_text);
        let mut values = block.block_directives().iter().map(NginxDirective::first_arg);
        if values.any(|value| value.contains('$') && !is_certain(value)) {
            return Err("a value of its map depends on the request".into());
        }
        let refuses = directive.block_directives().iter().all(super::rewrite::refuses_or_redirects);
        let found = self.translate_map_conditions(block, is_meant, (refuses, is_guard))?;
        self.not_needed(block, "a route for each of its values stands in place of it");
        for differs in found.iter().filter_map(|(condition, _)| condition.difference) {
            self.ledger.mark_different(block.entry, differs);
        }
        Ok(found)
    }

    /// Reports the directives in an `if` that was not translated.
    pub(crate) fn report_untranslated_if(&self, directive: &NginxDirective) {
        for inner in directive.block_directives() {
            self.ledger.mark_impossible(inner.entry, "it belongs to an `if` that was not translated");
        }
    }

    /// Returns the condition for `if ($invalid_referer)`: the Referer matches none of `valid_referers`.
    fn invalid_referer_conditions(&self, scope: &Scope<'d>) -> Result<Vec<RouteCondition>, Untranslatable> {
        let valid = self.take_all(scope, "valid_referers");
        let mut pages = Vec::new();
        for one in &valid {
            for word in &one.args {
                pages.extend(
                    self.referer_patterns(word, one, scope)
                        .map_err(|reason| format!("`{word}`: {reason}"))?,
                );
            }
        }
        if pages.is_empty() {
            Err("`valid_referers` is missing".into())
        } else {
            let pages = TomlItem::text_or_list(super::tree::unique(pages));
            let mut found = vec![RouteCondition::none_of(&[RouteCondition::new("referer", pages)])];
            let has = |word: &str| valid.iter().any(|one| one.args.iter().any(|arg| arg == word));
            if !has("blocked") {
                // Of other schemes nginx takes no host, and a field without a value has none.
                let web = RouteCondition::on_value("header", "Referer", "~* ^https?://....".to_owned());
                found.push(match has("none") {
                    true => RouteCondition::on_value("header", "Referer", "*".to_owned()).excluding(&[web]),
                    false => RouteCondition::none_of(&[web]),
                });
            }
            Ok(found)
        }
    }

    /// Translates one argument of `valid_referers` to patterns of pages.
    fn referer_patterns(
        &self,
        word: &str,
        directive: &NginxDirective,
        scope: &Scope<'d>,
    ) -> Result<Vec<String>, Untranslatable> {
        match word {
            "none" => Ok(vec!["none".to_owned()]),
            "blocked" => {
                self.ledger.mark_different(directive.entry, "`blocked`: a Referer without a scheme is looked up as it is, a firewall's `XXXX` is refused");
                Ok(Vec::new())
            }
            "server_names" => {
                let names = scope.effective("server_name").map_or(&[][..], |one| &one.args);
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
            _ if word.contains('/') => {
                Ok(vec![format!("~* ^{}", escape_literal(word).replace("\\*", "[^/]*"))])
            }
            _ => match (word.strip_prefix("*."), word.strip_suffix(".*")) {
                (Some(rest), None) if !rest.contains('*') => Ok(vec![word.to_owned()]),
                (None, Some(rest)) if !rest.contains('*') => {
                    Ok(vec![format!("~* ^{}\\.", escape_literal(rest))])
                }
                (None, None) if !word.contains('*') => Ok(vec![word.to_owned()]),
                _ => Ok(vec![format!("~* ^{}(?:[:/]|$)", escape_literal(word).replace("\\*", "[^/:]*"))]),
            },
        }
    }
}

/// Returns the words of a condition, without its parentheses.
pub(crate) fn condition_words(directive: &NginxDirective) -> Vec<&str> {
    let last = directive.args.len().saturating_sub(1);
    let bare = |(at, word): (usize, &'_ String)| -> (usize, usize) {
        let start = if at == 0 && word.starts_with('(') { 1 } else { 0 };
        let end =
            if at == last && word.ends_with(')') && word.len() > start { word.len() - 1 } else { word.len() };
        (start, end)
    };
    directive
        .args
        .iter()
        .enumerate()
        .map(|(at, word)| {
            let (start, end) = bare((at, word));
            word[start..end].trim()
        })
        .filter(|word| !word.is_empty())
        .collect()
}

/// Returns the operator of an `if` that tests for a file.
pub(crate) fn file_operator(directive: &NginxDirective) -> Option<&str> {
    let words = condition_words(directive);
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

/// Whether an `if` tests for a missing file and passes such requests to a script or answers 404: `files` and
/// `php` do the same.
pub(crate) fn is_file_fallback(directive: &NginxDirective) -> bool {
    let is_for_missing = matches!(file_operator(directive), Some("!-f" | "!-e"));
    let is_plain = |inner: &NginxDirective| match inner.name.as_str() {
        "rewrite" => front_script(inner.arg_at(1)).is_some(),
        "return" => inner.first_arg() == "404",
        "break" => true,
        _ => false,
    };
    is_for_missing && directive.block_directives().iter().all(is_plain)
}

/// Returns the script in a target with variables: `/index.php` for `/index.php?$args`.
pub(crate) fn front_script(path: &str) -> Option<&str> {
    let end = path.find(".php")? + ".php".len();
    let script = &path[..end];
    (script.starts_with('/') && !script.contains(['$', '?'])).then_some(script)
}

/// Returns the value of a variable if it is the same for all requests of a server.
fn constant_value(name: &str, scope: &Scope<'_>) -> Option<String> {
    if let "scheme" | "https" = name {
        let server = scope.levels.iter().find(|level| level.iter().any(|one| one.name == "listen"));
        let listens = server.map(|level| level.iter().filter(|one| one.name == "listen"));
        let speaks = |one: &NginxDirective| one.args.iter().any(|arg| arg == "ssl");
        let kinds: Vec<bool> = listens.into_iter().flatten().map(speaks).collect();
        let speaks_tls = match kinds.as_slice() {
            [] => scope.effective("ssl").is_some_and(|one| one.first_arg() == "on"),
            [first, rest @ ..] if rest.iter().all(|other| other == first) => *first,
            _ => return None,
        };
        let values = if name == "scheme" { ("http", "https") } else { ("", "on") };
        return Some(if speaks_tls { values.1 } else { values.0 }.to_owned());
    }
    let value = replace_constants(&format!("${name}"), scope, 0);
    (!value.contains('$')).then_some(value)
}

/// Translates a comparison to conditions of routes, of which one has to be met. `operator` is `=`, `~`, `~*`
/// or empty.
fn comparison_conditions(
    name: &str,
    operator: &str,
    value: &str,
) -> Result<Vec<RouteCondition>, Untranslatable> {
    if !matches!(operator, "" | "=" | "~" | "~*") {
        return Err(format!("nginx has no `{operator}`").into());
    }
    match name {
        "uri" | "document_uri" | "request_uri" if operator.starts_with('~') => {
            let found = path_expression(value, operator == "~*")?;
            let differs = (name == "request_uri")
                .then_some("the path alone is looked up, decoded and without its query");
            let condition = RouteCondition::new("path", TomlItem::Text(found.pattern));
            Ok(vec![condition.with_groups(found.groups).with_difference(differs)])
        }
        "uri" | "document_uri" if operator == "=" => {
            let pattern =
                from_literal(value, false).unwrap_or_else(|| format!("~ ^{}$", escape_literal(value)));
            Ok(vec![RouteCondition::new("path", TomlItem::Text(pattern))])
        }
        "request_method" if !operator.is_empty() => {
            Ok(vec![method_condition(compared_methods(operator, value)?)])
        }
        "remote_addr" if operator == "=" && value.parse::<std::net::IpAddr>().is_ok() => {
            Ok(vec![RouteCondition::new("client", TomlItem::text(value))])
        }
        "http_host" => compare_value("header", "Host", operator, value),
        "host" => {
            let hosts = match operator {
                "=" => Some(vec![value.to_lowercase()]),
                "" => None,
                _ => hosts_from_regex(value).filter(|(_, is_wider)| !is_wider).map(|(hosts, _)| hosts),
            };
            let is_host = |host: &String| !host.is_empty() && !host.contains([':', '/', '*', '$']);
            match hosts.filter(|hosts| hosts.iter().all(is_host)) {
                Some(hosts) => Ok(vec![RouteCondition::new("host", TomlItem::text_or_list(hosts))]),
                None => Err("the host chooses a site: write a `[[site]]` with it in `hosts`".into()),
            }
        }
        _ => {
            if let Some(cookie) = name.strip_prefix("cookie_") {
                return compare_cookie(cookie, operator, value);
            }
            let (directive, name) = match (name.strip_prefix("http_"), name.strip_prefix("arg_")) {
                (Some(field), _) => ("header", field_name(field)),
                (_, Some(parameter)) => ("query", parameter.to_owned()),
                _ => return Err(format!("a route cannot ask for `${name}`").into()),
            };
            compare_value(directive, &name, operator, value)
        }
    }
}

/// Returns the methods in a comparison: a word, or an expression of words such as `^(GET|POST)$`.
fn compared_methods(operator: &str, value: &str) -> Result<Vec<String>, Untranslatable> {
    let words = match operator {
        "=" => value,
        _ => {
            let inner = value.strip_prefix('^').and_then(|value| value.strip_suffix('$')).unwrap_or(value);
            let in_group = |start| inner.strip_prefix(start).and_then(|inner| inner.strip_suffix(')'));
            // Each alternative of `^GET|POST$` is anchored on one side only, which makes no difference for
            // existing methods.
            in_group("(?:").or_else(|| in_group("(")).unwrap_or(inner)
        }
    };
    let methods: Vec<String> = words.split('|').map(str::to_uppercase).collect();
    if methods
        .iter()
        .all(|one| !one.is_empty() && one.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'-'))
    {
        Ok(methods)
    } else {
        Err("a method is a word: write `^(GET|POST)$`".into())
    }
}

/// Returns the directives that nginx executes for the path of a page in a place.
pub(super) fn executed_directives<'d>(
    place: &LocationPlace<'d>,
    locations: &ServerLocations<'d>,
) -> impl Iterator<Item = &'d NginxDirective> {
    locations.server.innermost().iter().chain(place.scope.innermost())
}

/// Whether a directive may act on the path of a file with this name, although it did not act on its
/// directory.
pub(super) fn may_act_on_file(directive: &NginxDirective, name: &str) -> bool {
    match directive.name.as_str() {
        "rewrite" => may_match_only_file(directive.first_arg(), name),
        "if" => {
            let inner = directive.block_directives().iter().filter(|inner| inner.name == "rewrite");
            let rewrites = inner.into_iter().any(|inner| may_match_only_file(inner.first_arg(), name));
            rewrites
                || match condition_words(directive).as_slice() {
                    ["$uri" | "$document_uri", "=", path] => path.ends_with(name),
                    ["$uri" | "$document_uri", "~" | "~*", regex] => may_match_only_file(regex, name),
                    all => {
                        all.iter().any(|word| matches!(*word, "$uri" | "$document_uri" | "$request_filename"))
                    }
                }
        }
        _ => false,
    }
}
