//! Response header fields that apply only to some requests of a route, and case-insensitive paths.

use super::changed_path::case_insensitive_pattern;
use super::reader::{CaddySettings, FieldVariant};
use crate::conditions::add_conditions;
use crate::draft::{CONDITIONS, TomlItem, TomlSection};

/// Maximum number of variants of a route: each doubles the number of routes.
pub(super) const VARIANTS_MAX: usize = 3;

/// Returns the response header fields that a route sets for its requests; `None` if it sets anything else.
pub(super) fn field_variant(
    before: &CaddySettings,
    after: &CaddySettings,
    conditions: &TomlSection,
) -> Option<FieldVariant> {
    const FIELDS: &str = "response_headers";
    let others = |section: &TomlSection| {
        let is_other = |(key, _): &&(String, TomlItem)| key != FIELDS && conditions.get(key).is_none();
        section.entries.iter().filter(is_other).cloned().collect::<Vec<_>>()
    };
    let is_same = others(&before.section) == others(&after.section)
        && before.section.comments == after.section.comments
        && !changes_answers(before, after);
    let fields = after.section.get(FIELDS).filter(|_| is_same)?.clone();
    Some(FieldVariant { conditions: conditions.clone(), fields })
}

/// Whether handlers that follow answer differently after the second settings, apart from response header fields and
/// codings.
pub(super) fn changes_answers(before: &CaddySettings, after: &CaddySettings) -> bool {
    let of_requests = |settings: &CaddySettings| {
        let is_kept = |(key, _): &&(String, TomlItem)| {
            !CONDITIONS.contains(&key.as_str()) && !matches!(key.as_str(), "response_headers" | "compress")
        };
        settings.section.entries.iter().filter(is_kept).cloned().collect::<Vec<_>>()
    };
    of_requests(before) != of_requests(after)
        || before.root != after.root
        || before.strip_prefix != after.strip_prefix
        || before.try_files != after.try_files
        || before.needs_file != after.needs_file
        || before.tries_folders != after.tries_folders
        || before.scripts != after.scripts
        || before.php != after.php
        || before.request != after.request
        || before.path != after.path
        || before.unknown_path != after.unknown_path
}

/// Returns a route for each combination of variants, the most specific first.
pub(super) fn expand_variants(section: TomlSection, variants: &[FieldVariant]) -> Vec<TomlSection> {
    let mut found = vec![section];
    for variant in variants {
        let mut next = Vec::new();
        for route in found {
            match join_route_conditions(&route, &variant.conditions) {
                Ok(Some(mut both)) if !route.is_closed() => {
                    add_fields(&mut both, &variant.fields);
                    next.extend([both, route]);
                }
                Ok(_) => next.push(route),
                Err(()) => {
                    let mut route = route;
                    route.comment("CHECK: Caddy set fields of responses for some of these requests; conditions of both cannot be joined.");
                    next.push(route);
                }
            }
        }
        found = next;
    }
    found
}

/// Returns a route for the requests that also meet other conditions; `None` if there are none.
fn join_route_conditions(route: &TomlSection, conditions: &TomlSection) -> Result<Option<TomlSection>, ()> {
    let mut both = route.clone();
    let mut others = conditions.clone();
    if let (Some(TomlItem::Text(own)), Some(TomlItem::Text(other))) = (route.get("path"), others.get("path"))
    {
        let own = own.clone();
        let other = other.clone();
        let prefix =
            |text: &str| text.strip_suffix('*').filter(|rest| !rest.contains(['*', '~'])).map(str::to_owned);
        let is_plain = |text: &str| !text.trim_end_matches('*').contains(['*', '~']);
        match (prefix(&own), prefix(&other)) {
            _ if own == other => drop(others.remove("path")),
            (_, Some(prefix)) if is_plain(&own) && own.starts_with(&prefix) => drop(others.remove("path")),
            (Some(prefix), _) if is_plain(&other) && other.starts_with(&prefix) => drop(both.remove("path")),
            _ if is_plain(&own) && is_plain(&other) => return Ok(None),
            _ => return Err(()),
        }
    }
    add_conditions(&mut both, &others.entries);
    Ok(Some(both))
}

fn add_fields(section: &mut TomlSection, fields: &TomlItem) {
    let TomlItem::Table(places) = fields else { return };
    for (place, item) in places {
        let mut all = match section.get("response_headers") {
            Some(TomlItem::Table(known)) => {
                known.iter().find(|(known, _)| known == place).map(|(_, item)| item.clone())
            }
            _ => None,
        };
        match (&mut all, item) {
            (Some(TomlItem::Table(all)), TomlItem::Table(more)) => {
                all.retain(|(name, _)| !more.iter().any(|(other, _)| other == name));
                all.extend(more.iter().cloned());
            }
            (Some(TomlItem::List(all)), TomlItem::List(more)) => {
                let new: Vec<TomlItem> = more.iter().filter(|one| !all.contains(one)).cloned().collect();
                all.extend(new);
            }
            _ => all = Some(item.clone()),
        }
        if let Some(all) = all {
            section.set_in("response_headers", place, all);
        }
    }
}

/// Makes the paths of a route case-insensitive, as in Caddy.
pub(super) fn ignore_path_case(section: &mut TomlSection) {
    for (key, item) in &mut section.entries {
        match (key.as_str(), item) {
            ("path", item) => ignore_case_in_patterns(item),
            ("not", item) => ignore_case_in_tables(item),
            _ => {}
        }
    }
}

fn ignore_case_in_tables(item: &mut TomlItem) {
    match item {
        TomlItem::List(items) => items.iter_mut().for_each(ignore_case_in_tables),
        TomlItem::Table(entries) => {
            for (key, item) in entries {
                match key.as_str() {
                    "path" => ignore_case_in_patterns(item),
                    "not" => ignore_case_in_tables(item),
                    _ => {}
                }
            }
        }
        _ => {}
    }
}

fn ignore_case_in_patterns(item: &mut TomlItem) {
    match item {
        TomlItem::List(items) => items.iter_mut().for_each(ignore_case_in_patterns),
        TomlItem::Text(text) => *text = case_insensitive_pattern(text),
        _ => {}
    }
}
