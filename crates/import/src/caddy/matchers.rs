//! Matchers of Caddy as conditions of routes.

use super::clients::are_networks;
use super::reader::{CaddyReader, CaddySettings};
use crate::conditions::{RouteCondition, any_value, compare_value};
use crate::data::{DataNode, DataValue};
use crate::draft::{TomlItem, TomlSection};
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
                let mut patterns = Vec::new();
                for text in &texts {
                    match settings.path.original_patterns(text)? {
                        None => return Ok(()),
                        Some(own) => patterns.extend(own),
                    }
                }
                section.set("path", TomlItem::text_or_list(patterns));
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
                    let (hosts, mut excluded) = self.translate_matcher_set(set, settings)?;
                    if has_no_path(&excluded) {
                        continue;
                    }
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
                patterns.iter().try_for_each(|pattern| settings.path.check_expression(pattern))?;
                section.set("path", TomlItem::text_or_list(patterns));
            }
            _ => return Err(format!("a route cannot ask for `{key}`").into()),
        }
        Ok(())
    }
}
