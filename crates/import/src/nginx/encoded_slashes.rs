//! Encoded slashes (`%2F`) in the paths of proxied requests.

use super::location_place::LocationPlace;
use super::translation::{LocationMatcher, Translation};
use super::tree::NginxDirective;
use crate::draft::{TomlItem, TomlSection};
use crate::expressions::escape_literal;

impl Translation<'_> {
    /// Keeps encoded slashes (`encoded_slashes`), as nginx does, except in paths that belong to other locations
    /// once they are decoded: Komainu selects the route by the encoded path. Does nothing if these paths cannot
    /// be excluded, or if it depends on the address whether slashes are merged.
    pub(super) fn keep_encoded_slashes(&self, place: &LocationPlace<'_>, section: &mut TomlSection) {
        let Some(merges) = self.merges_slashes() else { return };
        let LocationMatcher::Prefix(prefix, _) = &place.matcher else { return };
        let levels = &place.scope.levels;
        let Some(server) = levels.len().checked_sub(2 + place.enclosing_matchers.len()).map(|at| levels[at])
        else {
            return;
        };
        let asks_for_path = |one: &NginxDirective| match one.name.as_str() {
            "rewrite" => true,
            "if" => one.args.iter().any(|arg| arg.contains("uri") || arg.contains("$request_filename")),
            _ => false,
        };
        if server.iter().chain(place.scope.innermost()).any(asks_for_path) {
            return;
        }
        let mut has_expressions = false;
        super::tree::visit(server, &mut |one| {
            has_expressions |=
                one.name == "location" && one.first_arg().starts_with('~') && Some(one.entry) != place.entry;
        });
        let mut others = Vec::new();
        if has_expressions || !collect_longer_locations(server, place, prefix, &mut others) {
            return;
        }
        let slashes = if merges { "(?:/|%2F)+" } else { "(?:/|%2F)" };
        for one in others {
            let end = if one.first_arg() == "=" { "$" } else { "" };
            let path = one.args.last().map_or("", String::as_str);
            let spelled = format!("~ ^{}{end}", escape_literal(path).replace('/', slashes));
            section.exclude(TomlItem::Table(vec![("path".to_owned(), TomlItem::Text(spelled))]));
        }
        section.set_text("encoded_slashes", "keep");
    }
}

/// Collects the locations of a level, and of the levels down to `place`, that nginx selects instead of it for
/// some paths below `prefix`. Returns false if there are others with such paths, nested in locations that
/// nginx does not select for them.
fn collect_longer_locations<'d>(
    level: &'d [NginxDirective],
    place: &LocationPlace<'_>,
    prefix: &str,
    found: &mut Vec<&'d NginxDirective>,
) -> bool {
    let is_longer = |one: &NginxDirective| {
        is_location(one) && one.args.last().is_some_and(|path| path.starts_with(prefix))
    };
    level.iter().filter(|one| is_location(one)).all(|one| {
        let mut has_place = Some(one.entry) == place.entry;
        let mut longer = Vec::new();
        let is_place = has_place;
        super::tree::visit(one.block_directives(), &mut |inner| {
            has_place |= Some(inner.entry) == place.entry;
            longer.extend(is_longer(inner).then_some(inner));
        });
        if is_place {
            found.extend(longer);
            true
        } else if has_place {
            collect_longer_locations(one.block_directives(), place, prefix, found)
        } else if is_longer(one) {
            found.push(one);
            true
        } else {
            longer.is_empty()
        }
    })
}

fn is_location(directive: &NginxDirective) -> bool {
    directive.name == "location" && !directive.first_arg().starts_with('@')
}
