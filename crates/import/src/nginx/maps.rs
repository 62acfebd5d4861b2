//! `map` and `geo`: variables whose values depend on others.

use super::scope::{Scope, TemplateUse, parts, template};
use super::tree::NginxDirective;
use super::work::Translation;
use crate::draft::{TomlItem, TomlSection, table_path};
use crate::expressions::quoted;

/// Values of a map that become conditions of routes, one each.
const CONDITIONS_MAX: usize = 100;

/// One line of a `map` or `geo`.
pub(crate) struct MapLine<'d> {
    /// What the source has to be: none for `default`.
    pub(crate) key: Option<&'d str>,
    pub(crate) value: &'d str,
}

/// The lines of such a block, and whether its texts may be hosts with `*`.
fn lines(block: &NginxDirective) -> Result<(Vec<MapLine<'_>>, bool), String> {
    let mut found = Vec::new();
    let mut hostnames = false;
    for one in block.inner() {
        let value = one.first();
        match one.name.as_str() {
            "hostnames" => hostnames = true,
            "volatile" => {}
            "default" => found.push(MapLine { key: None, value }),
            "include" => return Err(format!("write the lines of {value} into `values` of the map")),
            "ranges" => return Err("`networks` of a map takes networks, no ranges".to_owned()),
            "proxy" | "proxy_recursive" | "delete" if block.name == "geo" => {
                return Err(format!("`{}`: `trusted_proxies` says whose addresses count", one.name));
            }
            key => found.push(MapLine { key: Some(key), value }),
        }
    }
    Ok((found, hostnames))
}

/// A text that nginx compares without case, as a key of a map.
fn key(text: &str, hostnames: bool, differs: &mut Vec<&'static str>) -> Result<Vec<String>, String> {
    if let Some(regex) = text.strip_prefix('~') {
        let (regex, sign) = match regex.strip_prefix('*') {
            Some(regex) => (regex, "~*"),
            None => (regex, "~"),
        };
        return crate::expressions::path_expression(regex, sign == "~*").map(|found| vec![found.pattern]);
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
            (.., Some(rest)) if is_name(rest) => return Ok(vec![format!("~* ^{}\\.", quoted(rest))]),
            _ => {}
        }
    }
    if text.contains('*') || text.starts_with('~') {
        return Ok(vec![format!("~* ^{}$", quoted(text))]);
    }
    if text.contains(|c: char| c.is_ascii_alphabetic()) && !hostnames {
        differs.push("upper and lower case differ in texts (`~* ^text$` ignores case)");
    }
    Ok(vec![text.to_owned()])
}

impl<'d> Translation<'d> {
    /// The `map` or `geo` that makes a variable.
    pub(crate) fn map_block(&self, name: &str) -> Option<&'d NginxDirective> {
        let is_it = |one: &&NginxDirective| {
            matches!(one.name.as_str(), "map" | "geo")
                && one.args.last().is_some_and(|last| last.strip_prefix('$') == Some(name))
        };
        self.http.levels.iter().flat_map(|level| level.iter()).find(is_it)
    }

    /// The source of such a block.
    pub(crate) fn map_source(block: &'d NginxDirective) -> &'d str {
        match (block.name.as_str(), block.args.len()) {
            ("geo", 1) => "$remote_addr",
            _ => block.first(),
        }
    }

    /// The name here of a variable that a `map` or `geo` makes: with its first use the map is translated. None where there is no such
    /// map, or it cannot be one here.
    pub(crate) fn map_variable(&self, name: &str) -> Option<String> {
        let block = self.map_block(name)?;
        let own = match config::own_name(name) {
            Ok(()) => name.to_owned(),
            Err(_) => format!("{name}_"),
        };
        let path = table_path("maps", &own);
        if self.tables.borrow().iter().any(|(known, _)| *known == path) {
            return Some(own);
        }
        match self.map_section(block) {
            Ok((section, differs)) => {
                self.ledger.translated(block.entry);
                differs.iter().for_each(|reason| self.ledger.differs(block.entry, reason));
                self.tables.borrow_mut().push((path, section));
                Some(own)
            }
            Err(reason) => {
                self.ledger.impossible(block.entry, reason);
                None
            }
        }
    }

    fn map_section(&self, block: &'d NginxDirective) -> Result<(TomlSection, Vec<&'static str>), String> {
        let (lines, hostnames) = lines(block)?;
        let scope = Scope::of(self.http.levels.clone());
        let text = |text: &str| {
            template(text, &scope, TemplateUse::Header, &|_| None).map_err(|reason| {
                format!("{reason}: a map has neither those of other maps nor groups of its own")
            })
        };
        let mut section = TomlSection::default();
        let mut differs = Vec::new();
        let source = Self::map_source(block);
        section.set_text("of", text(source)?);
        if source.contains("uri") {
            differs.push("paths are percent-encoded in the text that is looked up, without empty segments and those of dots");
        }
        let mut values: Vec<(String, TomlItem)> = Vec::new();
        let mut default = None;
        for MapLine { key: given, value } in &lines {
            let value = text(value)?;
            match given {
                None => default = Some(value),
                Some(network) if block.name == "geo" => {
                    values.push(((*network).to_owned(), TomlItem::Text(value)));
                }
                Some(given) => {
                    for key in key(given, hostnames, &mut differs)? {
                        if !values.iter().any(|(known, _)| *known == key) {
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

    /// The conditions of routes under which a variable of a `map` or `geo` has a value that `is_meant`, each with that value.
    ///
    /// # Errors
    /// Why routes cannot ask for it.
    pub(crate) fn map_conditions(
        &self,
        block: &'d NginxDirective,
        is_meant: &dyn Fn(&str) -> bool,
    ) -> Result<Vec<(MapCondition, &'d str)>, String> {
        let (lines, hostnames) = lines(block)?;
        let source = Self::map_source(block);
        let default = lines.iter().rev().find(|line| line.key.is_none()).map_or("", |line| line.value);
        if is_meant(default) {
            return Err("it is so by default: a route cannot ask for what is not so".to_owned());
        }
        if lines.len() > CONDITIONS_MAX {
            return Err(format!("its map has more than {CONDITIONS_MAX} values"));
        }
        // A value that is not meant may stand before one that is, for some of the same requests.
        let mut found: Vec<(MapCondition, &'d str)> = Vec::new();
        let mut excepted = Vec::new();
        for MapLine { key: given, value } in lines {
            let Some(given) = given else { continue };
            match is_meant(value) {
                true => {
                    for condition in condition(source, given, hostnames)? {
                        let is_new = !found.iter().any(|(known, _)| known.item == condition.item);
                        if is_new {
                            found.push((condition, value));
                        }
                    }
                }
                false => excepted.push(given),
            }
        }
        match excepted.first() {
            Some(first) if !source.ends_with("uri") => {
                Err(format!("its map has exceptions (`{first}`): a route cannot ask for what is not so"))
            }
            _ => Ok(found),
        }
    }
}

/// A condition of a route.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct MapCondition {
    /// The directive of the route.
    pub(crate) directive: &'static str,
    pub(crate) item: TomlItem,
    /// Groups of the expression, as nginx and Komainu name them.
    pub(crate) groups: Vec<(String, String)>,
    /// What differs, if anything.
    pub(crate) differs: Option<&'static str>,
}

fn condition(source: &str, given: &str, hostnames: bool) -> Result<Vec<MapCondition>, String> {
    let plain = |directive, item, differs| MapCondition { directive, item, groups: Vec::new(), differs };
    let name = source.trim_start_matches('$').trim_matches(['{', '}']);
    if parts(source).len() != 1 {
        return Err("a route cannot ask for such a text".to_owned());
    }
    match name {
        "uri" | "document_uri" | "request_uri" => {
            if let Some(regex) = given.strip_prefix('~') {
                let (regex, ignores_case) =
                    regex.strip_prefix('*').map_or((regex, false), |regex| (regex, true));
                let found = crate::expressions::path_expression(regex, ignores_case)?;
                let differs = (name == "request_uri")
                    .then_some("the path alone is looked up, decoded and without its query");
                let item = TomlItem::Text(found.pattern);
                return Ok(vec![MapCondition { directive: "path", item, groups: found.groups, differs }]);
            }
            let path = given.split('?').next().unwrap_or(given);
            let pattern = crate::paths::from_literal(path, false).ok_or("this is no path")?;
            let differs = match given.contains('?') {
                true => return Err("a route asks for parameters by `query`".to_owned()),
                false if name == "request_uri" => "requests with a query are meant too",
                false => "upper and lower case differ",
            };
            Ok(vec![plain("path", TomlItem::Text(pattern), Some(differs))])
        }
        "remote_addr" | "realip_remote_addr" | "binary_remote_addr" => {
            Ok(vec![plain("client", TomlItem::text(given), None)])
        }
        "request_method" if !given.starts_with('~') => {
            Ok(vec![plain("method", TomlItem::text(given.to_uppercase()), None)])
        }
        "http_referer" if given.starts_with('~') => {
            let regex = given.trim_start_matches(['~', '*']);
            let regex = ["^https?://", "^https://", "^http://"]
                .iter()
                .find_map(|scheme| regex.strip_prefix(scheme))
                .map_or_else(|| regex.to_owned(), |rest| format!("^{rest}"));
            let found = crate::expressions::path_expression(&regex, given.starts_with("~*"))?;
            Ok(vec![plain(
                "referer",
                TomlItem::Text(found.pattern),
                Some("the URL is looked up without its scheme"),
            )])
        }
        _ => {
            let (directive, key) = match (name.strip_prefix("http_"), name.strip_prefix("arg_")) {
                (Some(field), _) => ("header", super::scope::field_name(field)),
                (_, Some(parameter)) => ("query", parameter.to_owned()),
                _ => return Err(format!("a route cannot ask for `{source}`")),
            };
            let (patterns, differs) = value_patterns(given, hostnames)?;
            let table = |value: String| TomlItem::Table(vec![(key.clone(), TomlItem::Text(value))]);
            Ok(patterns.into_iter().map(|value| plain(directive, table(value), differs)).collect())
        }
    }
}

/// Patterns of values, with `*`, for what a `map` or an `if` compares a value with.
pub(crate) fn value_patterns(
    given: &str,
    hostnames: bool,
) -> Result<(Vec<String>, Option<&'static str>), String> {
    let Some(regex) = given.strip_prefix('~') else {
        return match given.contains('*') || hostnames {
            true => Err("its value has a `*` in it".to_owned()),
            false => Ok((vec![given.to_owned()], Some("upper and lower case differ in the value"))),
        };
    };
    let (regex, ignores_case) = regex.strip_prefix('*').map_or((regex, false), |regex| (regex, true));
    let body = regex
        .trim_start_matches('^')
        .trim_end_matches('$')
        .replace("\\.", "\u{1}")
        .replace("\\-", "-")
        .replace("\\/", "/");
    let body = body.strip_prefix('(').and_then(|body| body.strip_suffix(')')).unwrap_or(&body).to_owned();
    let is_plain = |word: &str| {
        !word.is_empty() && !word.contains(['[', '\\', '+', '?', '{', '(', ')', '*', '.', '^', '$'])
    };
    let body = body.replace(".*", "\u{2}");
    let words: Vec<&str> = body.split('|').collect();
    if !words.iter().all(|word| is_plain(word)) {
        return Err("values are asked for with `*` alone: its expression is no such pattern".to_owned());
    }
    let (start, end) =
        (if regex.starts_with('^') { "" } else { "*" }, if regex.ends_with('$') { "" } else { "*" });
    let patterns = words
        .iter()
        .map(|word| format!("{start}{word}{end}").replace('\u{1}', ".").replace('\u{2}', "*"))
        .collect();
    Ok((patterns, ignores_case.then_some("upper and lower case differ in the value")))
}
