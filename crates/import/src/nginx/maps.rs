//! Translation of `map` and `geo`, variables whose values depend on other variables.

use std::collections::HashSet;

use super::guards::inexact_reason;
use super::scope::{Scope, TemplateDestination, split_template, translate_template};
use super::translation::Translation;
use super::tree::NginxDirective;
use crate::conditions::{RouteCondition, compare_cookie, compare_value, exact_value, method_condition};
use crate::draft::{TomlItem, TomlSection, table_path};
use crate::expressions::{escape_literal, path_expression};
use crate::findings::Untranslatable;
use shapes::host::HostPattern;

/// Maximum number of values of a map that become conditions of routes.
const CONDITIONS_MAX: usize = 100;

/// Maximum number of values of `[maps.NAME]`.
const VALUES_MAX: usize = 10_000;

/// A line of a `map` or `geo`.
pub(crate) struct MapLine<'d> {
    /// Key that the source has to match; `None` for `default`.
    pub(crate) key: Option<&'d str>,
    pub(crate) value: &'d str,
}

/// Returns the lines of a `map` or `geo`, and whether its keys may be hosts with `*` (`hostnames`).
fn map_lines(block: &NginxDirective) -> Result<(Vec<MapLine<'_>>, bool), Untranslatable> {
    let mut found = Vec::new();
    let mut hostnames = false;
    for one in block.block_directives() {
        let value = one.first_arg();
        match one.name.as_str() {
            "hostnames" => hostnames = true,
            "volatile" => {}
            "default" => found.push(MapLine { key: None, value }),
            "include" => return Err(format!("write the lines of {value} into `values` of the map").into()),
            "ranges" => return Err("`networks` of a map takes networks, no ranges".into()),
            "proxy" | "proxy_recursive" | "delete" if block.name == "geo" => {
                return Err(format!("`{}`: `trusted_proxies` says whose addresses count", one.name).into());
            }
            key => found.push(MapLine { key: Some(key), value }),
        }
    }
    Ok((found, hostnames))
}

/// Translates a key, which nginx compares case-insensitively, to keys of Komainu's map.
fn translate_key(
    text: &str,
    hostnames: bool,
    differs: &mut Vec<&'static str>,
) -> Result<Vec<String>, Untranslatable> {
    if let Some(regex) = text.strip_prefix('~') {
        let (regex, sign) = match regex.strip_prefix('*') {
            Some(regex) => (regex, "~*"),
            None => (regex, "~"),
        };
        return path_expression(regex, sign == "~*").map(|found| vec![found.pattern]);
    }
    let text = text.strip_prefix('\\').unwrap_or(text);
    if hostnames {
        let is_name = |name: &str| !name.contains('*');
        match (text.strip_prefix("*."), text.strip_prefix('.'), text.strip_suffix(".*")) {
            (Some(rest), ..) if is_name(rest) => return Ok(vec![format!("*.{}", rest.to_lowercase())]),
            (_, Some(rest), _) if is_name(rest) => {
                let rest = rest.to_lowercase();
                return Ok(vec![rest.clone(), format!("*.{rest}")]);
            }
            (.., Some(rest)) if is_name(rest) => return Ok(vec![format!("~* ^{}\\.", escape_literal(rest))]),
            _ => {}
        }
    }
    if text.contains('*') || text.starts_with('~') {
        return Ok(vec![format!("~* ^{}$", escape_literal(text))]);
    }
    if text.contains(|c: char| c.is_ascii_alphabetic()) && !hostnames {
        differs.push("upper and lower case differ in texts (`~* ^text$` ignores case)");
    }
    Ok(vec![text.to_owned()])
}

impl<'d> Translation<'d> {
    /// Returns the `map` or `geo` that defines a variable.
    pub(crate) fn find_map(&self, name: &str) -> Option<&'d NginxDirective> {
        let is_it = |one: &&NginxDirective| {
            matches!(one.name.as_str(), "map" | "geo")
                && one.args.last().is_some_and(|last| last.strip_prefix('$') == Some(name))
        };
        self.http.levels.iter().flat_map(|level| level.iter()).find(is_it)
    }

    /// Returns the source of a `map` or `geo`.
    pub(crate) fn map_source(block: &'d NginxDirective) -> &'d str {
        match (block.name.as_str(), block.args.len()) {
            ("geo", 1) => "$remote_addr",
            _ => block.first_arg(),
        }
    }

    /// Returns Komainu's name of a variable that a `map` or `geo` defines; its first use translates the map.
    /// `None` if there is no such map or it cannot be translated.
    pub(crate) fn use_map(&self, name: &str) -> Option<String> {
        let block = self.find_map(name)?;
        let own = match config::check_variable_name(name) {
            Ok(()) => name.to_owned(),
            Err(_) => format!("{name}_"),
        };
        let path = table_path("maps", &own);
        if self.tables.borrow().iter().any(|(known, _)| *known == path) {
            return Some(own);
        }
        match self.translate_map(block) {
            Ok((section, differs)) => {
                self.count_taken(block);
                differs.iter().for_each(|reason| self.ledger.mark_different(block.entry, reason));
                self.tables.borrow_mut().push((path, section));
                Some(own)
            }
            Err(reason) => {
                self.ledger.mark_impossible(block.entry, reason);
                None
            }
        }
    }

    fn translate_map(
        &self,
        block: &'d NginxDirective,
    ) -> Result<(TomlSection, Vec<&'static str>), Untranslatable> {
        let (lines, hostnames) = map_lines(block)?;
        if lines.len() > VALUES_MAX {
            return Err(format!("a map has at most {VALUES_MAX} values").into());
        }
        let source = Self::map_source(block);
        if let Some(reason) =
            self.client_addresses.unknown_reason().filter(|_| source.contains("remote_addr"))
        {
            return Err(reason.into());
        }
        let scope = Scope::of(self.http.levels.clone());
        let text = |text: &str| {
            translate_template(text, &scope, TemplateDestination::Header, &|_| None).map_err(|reason| {
                format!("{reason}: a map has neither those of other maps nor groups of its own")
            })
        };
        let mut section = TomlSection::default();
        let mut differs = Vec::new();
        section.set_text("of", text(source)?);
        if source.contains("uri") {
            differs.push("paths are percent-encoded in the text that is looked up, without empty segments and those of dots");
        }
        let mut values: Vec<(String, TomlItem)> = Vec::new();
        let mut known: HashSet<String> = HashSet::new();
        let mut default = None;
        for MapLine { key: given, value } in &lines {
            let value = text(value)?;
            match given {
                None => default = Some(value),
                Some(network) if block.name == "geo" => {
                    values.push(((*network).to_owned(), TomlItem::Text(value)));
                }
                Some(given) => {
                    for key in translate_key(given, hostnames, &mut differs)? {
                        if known.insert(key.clone()) {
                            values.push((key, TomlItem::text(value.clone())));
                        }
                    }
                }
            }
        }
        let place = if block.name == "geo" { "networks" } else { "values" };
        if source == "$host" || source == "$scheme" {
            differs.retain(|reason| !reason.starts_with("upper"));
        }
        differs.dedup();
        section.set(place, TomlItem::Table(values));
        if let Some(default) = default.filter(|text| !text.is_empty()) {
            section.set_text("default", default);
        }
        Ok((section, differs))
    }

    /// Returns the route conditions under which the variable of a `map` or `geo` has a value for which
    /// `is_meant` returns true, each with that value.
    ///
    /// # Errors
    /// The reason why routes cannot express the condition.
    pub(crate) fn translate_map_conditions(
        &self,
        block: &'d NginxDirective,
        is_meant: &dyn Fn(&str) -> bool,
        (may_be_wider, is_guard): (bool, bool),
    ) -> Result<Vec<(RouteCondition, &'d str)>, Untranslatable> {
        let (lines, hostnames) = map_lines(block)?;
        let source = Self::map_source(block);
        let default = lines.iter().rev().find(|line| line.key.is_none()).map_or("", |line| line.value);
        let is_of_target = source.trim_matches(['$', '{', '}']) == "request_uri";
        // Excluded paths have to be exact.
        let has_others = lines.iter().any(|line| line.key.is_some() && !is_meant(line.value));
        if is_of_target && (!may_be_wider || is_meant(default) || has_others) {
            return Err("a route asks for the path alone, decoded and without its query".into());
        }
        if lines.len() > CONDITIONS_MAX {
            return Err(format!("its map has more than {CONDITIONS_MAX} values").into());
        }
        let name = source.trim_start_matches('$').trim_matches(['{', '}']);
        let is_of_networks = block.name == "geo";
        if is_of_networks && name != "remote_addr" {
            return Err(format!("a route asks for networks of the client, not of `{source}`").into());
        }
        if let Some(reason) = self.unknown_source_reason(name) {
            return Err(reason.into());
        }
        if let Some(fault) = inexact_map_reason(name, &lines).filter(|_| is_guard) {
            return Err(fault.into());
        }
        // In order of precedence: literal keys first, then expressions in the order of the source.
        let mut given: Vec<(&str, &'d str)> =
            lines.iter().filter_map(|line| Some((line.key?, line.value))).collect();
        given.sort_by_key(|(key, _)| key_precedence(key, is_of_networks, hostnames));
        let mut found: Vec<(RouteCondition, &'d str)> = Vec::new();
        let mut others: Vec<RouteCondition> = Vec::new();
        for (key, value) in given {
            let conditions = if is_of_networks {
                vec![network_condition(key)?]
            } else {
                line_conditions(source, key, hostnames)?
            };
            if !is_meant(value) {
                others.extend(conditions);
                continue;
            }
            // Keys with a higher precedence may match some of the same requests: longer networks, and literal
            // keys before expressions.
            let is_exact = !key.starts_with('~') && !is_of_networks && !hostnames;
            for one in conditions {
                let one = if is_exact || others.is_empty() { one } else { one.excluding(&others) };
                if !found.iter().any(|(known, _)| known.has_same_directives(&one)) {
                    found.push((one, value));
                }
            }
        }
        if is_meant(default) {
            found.push((RouteCondition::none_of(&others), default));
        }
        Ok(found)
    }
}

/// Whether a text is a valid method (RFC 9110 section 5.6.2).
fn is_method(text: &str) -> bool {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(is_token)
}

/// Returns the reason why the conditions of a guard may miss requests for which the map has its value, if
/// they may.
fn inexact_map_reason(name: &str, lines: &[MapLine<'_>]) -> Option<&'static str> {
    let fault = |key: &str| {
        let regex = key.strip_prefix('~').map(|regex| regex.trim_start_matches('*'));
        let operator = if regex.is_some() { "~" } else { "=" };
        inexact_reason(name, operator, regex.unwrap_or(key))
    };
    lines.iter().filter_map(|line| line.key).find_map(fault)
}

/// Precedence of the keys of a map: the longest networks; hosts before the longest names with a `*`;
/// expressions last, in the order of the source.
fn key_precedence(key: &str, is_of_networks: bool, hostnames: bool) -> (usize, std::cmp::Reverse<usize>) {
    use std::cmp::Reverse;
    match key {
        _ if is_of_networks => (0, Reverse(prefix_length(key).unwrap_or(0))),
        _ if key.starts_with('~') => (3, Reverse(0)),
        _ if hostnames && key.starts_with(['*', '.']) => (1, Reverse(key.trim_start_matches('*').len())),
        _ if hostnames && key.ends_with(".*") => (2, Reverse(key.len())),
        _ => (0, Reverse(0)),
    }
}

/// Prefix length of a network; `None` if the text is not a network.
fn prefix_length(text: &str) -> Option<usize> {
    let (address, length) = text.split_once('/').unwrap_or((text, ""));
    let all = if address.parse::<std::net::IpAddr>().ok()?.is_ipv4() { 32 } else { 128 };
    if length.is_empty() { Some(all) } else { length.parse().ok().filter(|length| *length <= all) }
}

/// Returns the condition for clients of a network.
fn network_condition(text: &str) -> Result<RouteCondition, Untranslatable> {
    match prefix_length(text) {
        Some(_) => Ok(RouteCondition::new("client", TomlItem::text(text))),
        None => Err("`client` takes addresses and networks".into()),
    }
}

/// Returns the conditions for a line of a map, of which one has to be met; empty if no request can meet them.
fn line_conditions(
    source: &str,
    given: &str,
    hostnames: bool,
) -> Result<Vec<RouteCondition>, Untranslatable> {
    let plain = |directive, item, differs| RouteCondition::new(directive, item).with_difference(differs);
    let name = source.trim_start_matches('$').trim_matches(['{', '}']);
    if split_template(source).len() != 1 {
        return Err("a route cannot ask for such a text".into());
    }
    match name {
        "uri" | "document_uri" | "request_uri" => {
            let differs = (name == "request_uri")
                .then_some("the path alone is looked up, decoded and without its query");
            if let Some(regex) = given.strip_prefix('~') {
                let (regex, ignores_case) =
                    regex.strip_prefix('*').map_or((regex, false), |regex| (regex, true));
                let found = path_expression(regex, ignores_case)?;
                let item = TomlItem::Text(found.pattern);
                return Ok(vec![plain("path", item, differs).with_groups(found.groups)]);
            }
            // Literal keys of a map are case-insensitive.
            let text = given.strip_prefix('\\').unwrap_or(given);
            if text.contains('?') {
                return Err("a route asks for parameters by `query`".into());
            }
            let pattern = if text.contains(|c: char| c.is_ascii_alphabetic()) {
                format!("~* ^{}$", escape_literal(text))
            } else {
                crate::paths::from_literal(text, false).ok_or("this is not a path")?
            };
            Ok(vec![plain("path", TomlItem::Text(pattern), differs)])
        }
        "remote_addr" if given.starts_with('~') => {
            Err("`client` takes addresses and networks, no expressions".into())
        }
        // An address never equals any other text.
        "remote_addr" if given.parse::<std::net::IpAddr>().is_err() => Ok(Vec::new()),
        "remote_addr" => network_condition(given).map(|one| vec![one]),
        "host" if !given.starts_with('~') => {
            let given = given.to_lowercase();
            let hosts = match given.strip_prefix('.').filter(|_| hostnames) {
                Some(rest) => vec![rest.to_owned(), format!("*.{rest}")],
                None => vec![given],
            };
            if hosts.iter().all(|host| HostPattern::parse(host).is_ok()) {
                Ok(vec![plain("host", TomlItem::text_or_list(hosts), None)])
            } else {
                Err("its value is not a host".into())
            }
        }
        // Methods are always tokens.
        "request_method" if !given.starts_with('~') && !is_method(given) => Ok(Vec::new()),
        "request_method" if !given.starts_with('~') => Ok(vec![method_condition(vec![given.to_uppercase()])]),
        _ => {
            if let Some(cookie) = name.strip_prefix("cookie_") {
                return match given.strip_prefix('~') {
                    Some(regex) => compare_cookie(cookie, "~", regex),
                    None if given.is_empty() => compare_cookie(cookie, "=", ""),
                    // Literal keys of a map are case-insensitive.
                    None => Err("a route compares a cookie exactly".into()),
                };
            }
            let (directive, name) = match (name.strip_prefix("http_"), name.strip_prefix("arg_")) {
                (Some(field), _) => ("header", super::scope::field_name(field)),
                (_, Some(parameter)) => ("query", parameter.to_owned()),
                _ => return Err(format!("a route cannot ask for `{source}`").into()),
            };
            match given.strip_prefix('~').map(|regex| (regex.strip_prefix('*'), regex)) {
                Some((Some(regex), _)) => compare_value(directive, &name, "~*", regex),
                Some((None, regex)) => compare_value(directive, &name, "~", regex),
                None if hostnames && (given.contains('*') || given.starts_with('.')) => {
                    Err("its value has a `*` in it".into())
                }
                None if given.is_empty() => compare_value(directive, &name, "=", ""),
                None => {
                    let text = given.strip_prefix('\\').unwrap_or(given);
                    Ok(vec![RouteCondition::on_value(directive, &name, exact_value(text, true))])
                }
            }
        }
    }
}
