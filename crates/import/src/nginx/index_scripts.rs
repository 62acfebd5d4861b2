//! Scripts as index of folders, which other locations may guard.

use super::conditions::{executed_directives, is_file_fallback, may_act_on_file};
use super::location_place::{LocationPlace, ServerLocations};
use super::php::{script_pass, without_looking_ahead};
use super::translation::{LocationMatcher, Translation};
use super::tree::NginxDirective;
use crate::draft::{TomlItem, TomlSection};
use crate::expressions::literal_start;
use crate::paths::may_match_only_file;

impl<'d> Translation<'d> {
    /// Returns a route that refuses directories if another location may have their index scripts: nginx selects a
    /// location again for the path of the script.
    pub(crate) fn refuse_guarded_index(
        &self,
        place: &LocationPlace<'d>,
        locations: &ServerLocations<'d>,
        section: &TomlSection,
    ) -> Option<TomlSection> {
        let Some(TomlItem::Table(files)) = section.get("files") else { return None };
        let has_php = section.get("php").is_some();
        let scripts: Vec<String> = match files.iter().find(|(key, _)| key == "index") {
            Some((_, TomlItem::List(names))) if has_php => {
                let is_script = |item: &TomlItem| match item {
                    TomlItem::Text(name) if name.ends_with(".php") => Some(name.clone()),
                    _ => None,
                };
                names.iter().filter_map(is_script).collect()
            }
            // Of the folders of an expression, the script is left out of `index`: the next page is not to be sent in its place.
            _ if !has_php && matches!(place.matcher, LocationMatcher::Regex(..)) => {
                let names = place.scope.effective_all("index").into_iter().flat_map(|one| &one.args);
                names.filter(|name| name.ends_with(".php")).cloned().collect()
            }
            _ => return None,
        };
        let folder = match &place.matcher {
            LocationMatcher::Prefix(path, _) => format!("{}/", path.trim_end_matches('/')),
            LocationMatcher::Exact(path) => path.clone(),
            _ => "/".to_owned(),
        };
        let handler = |name: &String| {
            locations.find_location(&format!("{folder}{name}")).filter(|found| script_pass(found).is_some())
        };
        let differs = |other: &LocationPlace<'d>, name: &String| {
            if !has_php {
                return script_pass(other).is_some()
                    && self.may_refuse_more(None, (&other.scope, &place.scope));
            }
            let own = handler(name);
            let shown = |place: &LocationPlace<'d>| -> Vec<Vec<String>> {
                let names = ["limit_req", "limit_conn"];
                let all = names.into_iter().flat_map(|name| place.scope.effective_all(name));
                all.chain(script_pass(place)).map(|one| one.args.clone()).collect()
            };
            own.is_none_or(|own| {
                own.entry != other.entry
                    && (other.is_closed
                        || script_pass(other).is_none()
                        || shown(own) != shown(other)
                        || self.may_refuse_more(None, (&other.scope, &own.scope)))
            })
        };
        let may_have = |other: &LocationPlace<'d>, name: &String| match &other.matcher {
            LocationMatcher::Exact(path) => path.ends_with(&format!("/{name}")),
            LocationMatcher::Prefix(path, _) => {
                let last = path.rsplit('/').next().unwrap_or_default();
                !last.is_empty() && name.starts_with(last)
            }
            LocationMatcher::Regex(regex, _) => may_match_only_file(&without_looking_ahead(regex), name),
            LocationMatcher::Server => false,
        };
        let others = locations.ordered_places.iter();
        let others = others.filter(|other| other.entry != place.entry && !other.lacks_slash);
        // Unless the path changes, or a name is a path of its own, scripts of folders are below those of the location.
        let mut names = place.scope.effective_all("index").into_iter().flat_map(|one| &one.args);
        let mut is_elsewhere = names.any(|name| name.starts_with('/') || name.contains('$'));
        super::tree::visit(place.scope.innermost(), &mut |one| is_elsewhere |= one.name == "rewrite");
        let starts = path_starts(place);
        let others = others.filter(|other| {
            let mut begins = path_starts(other).into_iter();
            is_elsewhere
                || begins
                    .any(|one| starts.iter().any(|start| one.starts_with(start) || start.starts_with(&one)))
        });
        let found: Vec<_> = others
            .filter(|other| scripts.iter().any(|name| may_have(other, name) && differs(other, name)))
            .collect();
        let acts = |one: &&NginxDirective| {
            !is_file_fallback(one) && scripts.iter().any(|name| may_act_on_file(one, name))
        };
        let act = executed_directives(place, locations).find(acts);
        let shown = match (found.first(), act) {
            (_, Some(one)) => format!("{} {}", one.name, one.args.join(" ")),
            (Some(other), _) => other.matcher.to_nginx_syntax(),
            (None, None) => return None,
        };
        let folders: Option<Vec<String>> = found
            .iter()
            .map(|other| index_folders(&other.matcher))
            .collect::<Option<_>>()
            .filter(|_| act.is_none());
        let reason = format!("scripts of folders may be for `{shown}`: these folders are closed (403)");
        let index = place.scope.effective("index").map(|one| one.entry);
        if let Some(entry) = index.or(place.entry) {
            self.ledger.mark_different(entry, &reason);
        }
        let mut refusal = place.paths.to_route();
        refusal.require("path", TomlItem::text("*/"));
        folders.into_iter().for_each(|all| refusal.require("path", TomlItem::text_or_list(all)));
        if act.is_none() && !scripts.is_empty() && scripts.iter().all(|name| handler(name).is_some()) {
            let mut own = TomlSection::default();
            own.set_text("path", folder.clone());
            refusal.exclude(TomlItem::Table(own.entries));
        }
        refusal.comment(reason);
        refusal.set("respond", TomlItem::Number(403));
        Some(refusal)
    }

    /// Returns the script that is the index page of a location's directory.
    pub(super) fn find_index_script(&self, place: &LocationPlace<'d>) -> Option<String> {
        let scope = &place.scope;
        let names: Vec<&String> =
            scope.effective_all("index").into_iter().flat_map(|one| &one.args).collect();
        let name = names.into_iter().find(|name| name.ends_with(".php"))?.trim_start_matches('/');
        match &place.matcher {
            LocationMatcher::Prefix(path, _) => Some(format!("{}/{name}", path.trim_end_matches('/'))),
            LocationMatcher::Exact(path) if path.ends_with('/') => Some(format!("{path}{name}")),
            LocationMatcher::Server => Some(format!("/{name}")),
            _ => None,
        }
    }
}

/// Returns the beginnings of the paths of a location.
fn path_starts(place: &LocationPlace<'_>) -> Vec<String> {
    match place.paths.patterns.as_slice() {
        [] => vec![String::new()],
        patterns => patterns.iter().map(|pattern| literal_start(pattern)).collect(),
    }
}

/// Returns a pattern of the folders whose index may be for a location; `None` if any may be.
fn index_folders(matcher: &LocationMatcher) -> Option<String> {
    let regex = match matcher {
        LocationMatcher::Exact(path) | LocationMatcher::Prefix(path, _) => {
            let folder = &path[..=path.rfind('/')?];
            return Some(format!("~* ^{}", crate::expressions::escape_literal(folder)));
        }
        LocationMatcher::Regex(regex, _) => regex,
        LocationMatcher::Server => return None,
    };
    let is_simple = |c: char| {
        c.is_ascii_alphanumeric()
            || matches!(c, '/' | '-' | '_' | '.' | '(' | ')' | '|' | '^' | '*' | '+' | '$' | '\\')
    };
    // Of classes, this one alone is read.
    if regex.contains("(?") || !regex.replace("[^/]", "").chars().all(is_simple) {
        return None;
    }
    let (mut depth, mut end) = (0_usize, None);
    for (at, c) in regex.char_indices() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.checked_sub(1)?,
            '|' if depth == 0 => return None,
            '/' if depth == 0 && !regex[at + 1..].starts_with(['*', '?', '{']) => end = Some(at),
            _ => {}
        }
    }
    // A parenthesis that is escaped is no group.
    if [r"\(", r"\)", r"\\"].iter().any(|escaped| regex.contains(escaped)) {
        return None;
    }
    Some(format!("~* {}", &regex[..=end?]))
}
