//! Matchers of Caddy as conditions of routes.

use super::changed_path::ChangedPath;
use super::clients::are_networks;
use super::reader::{CaddyReader, CaddySettings};
use crate::conditions::{RouteCondition, compare_value, exact_value, method_condition};
use crate::data::{DataNode, DataValue};
use crate::draft::{TomlItem, TomlSection};
use crate::expressions::{escape_literal, path_expression};
use crate::findings::Untranslatable;

/// Whether no path meets the conditions.
pub(super) fn has_no_path(conditions: &TomlSection) -> bool {
    matches!(conditions.get("path"), Some(TomlItem::List(paths)) if paths.is_empty())
}

impl CaddyReader<'_> {
    /// Returns the hosts and conditions of a set of matchers.
    pub(super) fn translate_matcher_set(
        &self,
        node: &DataNode,
        settings: &CaddySettings,
    ) -> Result<(Vec<String>, TomlSection), Untranslatable> {
        let (hosts, section, results) = self.translate_matchers(node, settings);
        results.into_iter().collect::<Result<Vec<()>, Untranslatable>>()?;
        Ok((hosts, section))
    }

    /// Like [`matcher`](Self::matcher), with the outcome of each matcher: untranslated matchers are omitted,
    /// so that the conditions may match more.
    pub(super) fn translate_matchers(
        &self,
        node: &DataNode,
        settings: &CaddySettings,
    ) -> (Vec<String>, TomlSection, Vec<Result<(), Untranslatable>>) {
        let mut section = TomlSection::default();
        let mut hosts = Vec::new();
        let results = node
            .entries()
            .iter()
            .map(|(key, value)| {
                self.translate_condition((key, value), settings, &mut hosts, &mut section)?;
                value.mark_translated(self.ledger);
                Ok(())
            })
            .collect();
        (hosts, section, results)
    }

    fn translate_condition(
        &self,
        (key, value): (&str, &DataNode),
        settings: &CaddySettings,
        hosts: &mut Vec<String>,
        section: &mut TomlSection,
    ) -> Result<(), Untranslatable> {
        let texts = value.texts();
        settings.check_unchanged(key, value)?;
        match key {
            "host" => {
                let is_pattern = |host: &String| host.strip_prefix("*.").unwrap_or(host).contains(['*', '{']);
                if texts.iter().any(is_pattern) {
                    return Err("`hosts` takes names and `*.example.com`".into());
                }
                *hosts = texts;
            }
            "path" => {
                let is_plain = |path: &String| {
                    path.starts_with(['/', '*'])
                        && !path.contains(['?', '#', '%', '\\', '{', '[', ']'])
                        && !path.contains("//")
                };
                if !texts.iter().all(is_plain) {
                    return Err("`path` takes paths with `*`".into());
                }
                let mut patterns = Vec::new();
                for text in &texts {
                    match settings.path.original_patterns(text)? {
                        None => return Ok(()),
                        Some(own) => patterns.extend(own),
                    }
                }
                if patterns.is_empty() {
                    section.set("path", TomlItem::List(patterns.into_iter().map(TomlItem::Text).collect()));
                } else if !has_no_path(section) {
                    RouteCondition::new("path", TomlItem::text_or_list(patterns)).write(section);
                }
            }
            "method" => {
                let is_method = |method: &String| method.chars().all(|c| c.is_ascii_uppercase() || c == '-');
                if texts.is_empty() || !texts.iter().all(is_method) {
                    return Err("`method` takes methods in upper case".into());
                }
                method_condition(texts).write(section);
            }
            "header" | "query" => {
                if key == "query" && value.entries().is_empty() {
                    return Err("a route cannot ask for an empty query".into());
                }
                if key == "query" && value.entries().len() > 1 {
                    return Err("any of several parameters is enough in some versions of Caddy, all have to be there in others: write a route for each, or one with all of them in `query`".into());
                }
                for (name, pattern) in value.entries() {
                    let of = |pattern: String| RouteCondition::on_value(key, name, pattern);
                    let condition = match pattern.texts().as_slice() {
                        // `null` matches absent fields.
                        [] if key == "header" && matches!(pattern.value, DataValue::Null) => {
                            RouteCondition::none_of(&[of("*".to_owned())])
                        }
                        [] if key == "header" => of("*".to_owned()),
                        [] => return Err("a parameter without a value matches no request".into()),
                        texts => of(value_pattern(key, texts)?),
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
                // Paths without a file are those of another file there.
                let mut settings = settings.clone();
                if matches!(settings.path, ChangedPath::Tried(_)) {
                    settings.path = ChangedPath::Unknown;
                }
                for set in value.items() {
                    let (hosts, mut excluded) = self.translate_matcher_set(set, &settings)?;
                    if has_no_path(&excluded) {
                        continue;
                    }
                    if excluded.entries.is_empty() && hosts.is_empty() {
                        return Err("a `not` with what all requests meet matches none".into());
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
                patterns.iter().try_for_each(|pattern| settings.path.check_expression(pattern))?;
                if !has_no_path(section) {
                    // Groups of the expression are those of the route's `path`.
                    let own = section.remove("path");
                    section.set("path", TomlItem::text_or_list(patterns));
                    own.into_iter().for_each(|own| section.require("path", own));
                }
            }
            _ => return Err(format!("a route cannot ask for `{key}`").into()),
        }
        Ok(())
    }
}

/// Returns the pattern of values that one of the texts of the matcher `header` or `query` matches. A `*` stands for any
/// text at the start and the end of a header field's value, and for itself elsewhere; a parameter has the value, or any
/// if the text is `*`.
fn value_pattern(key: &str, texts: &[String]) -> Result<String, Untranslatable> {
    if texts.iter().any(|text| text.contains('{')) {
        return Err(format!("`{key}`: the value depends on a placeholder").into());
    }
    if texts.iter().any(|text| text == "*") {
        return Ok("*".to_owned());
    }
    let split = |text: &'_ str| -> (bool, String, bool) {
        let is_open = |is_there: bool| key == "header" && is_there;
        let (start, end) = (is_open(text.starts_with('*')), is_open(text.ends_with('*')));
        let inner = &text[usize::from(start)..text.len() - usize::from(end)];
        (start, inner.to_owned(), end)
    };
    if let [one] = texts {
        let (start, inner, end) = split(one);
        match start || end {
            false => return Ok(exact_value(one, false)),
            true if !inner.contains('*') && !one.starts_with(['~', '!']) => return Ok(one.clone()),
            true => {}
        }
    }
    let alternative = |text: &String| {
        let (start, inner, end) = split(text);
        let (start, end) = (if start { "" } else { "^" }, if end { "" } else { "$" });
        format!("{start}{}{end}", escape_literal(&inner))
    };
    let all: Vec<String> = texts.iter().map(alternative).collect();
    path_expression(&all.join("|"), false).map(|found| found.pattern)
}
