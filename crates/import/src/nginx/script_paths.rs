//! Paths that a route of scripts would answer and nginx does not: they are refused.

use super::location_place::{LocationPlace, PathConditions, ServerLocations};
use super::php::{SAMPLE_SCRIPTS, script_pass};
use super::translation::Translation;
use crate::draft::{TomlItem, TomlSection};

/// Pattern of every script, with or without PATH_INFO.
const SCRIPT_PATTERN: &str = r"~ \.php(?:/|$)";

impl<'d> Translation<'d> {
    /// Returns a route that refuses all other scripts if nginx runs only one of them and sends the source of
    /// the others.
    pub(crate) fn refuse_other_scripts(
        &self,
        place: &LocationPlace<'d>,
        locations: &ServerLocations<'d>,
        section: &TomlSection,
    ) -> Option<TomlSection> {
        section.get("php")?;
        let is_own = |other: &&LocationPlace<'d>| script_pass(other).is_some();
        if script_pass(place).is_some()
            || SAMPLE_SCRIPTS.iter().any(|path| {
                locations.find_location(path).is_some_and(|other| {
                    is_own(&other)
                        || other.scope.innermost_last("return").is_some()
                        || other.scope.innermost_last("deny").is_some()
                })
            })
        {
            return None;
        }
        let tries = place.scope.innermost_last("try_files").map(|one| one.entry);
        if let Some(entry) = tries.or(place.entry) {
            self.ledger
                .mark_different(entry, "scripts that nginx does not run are 404: nginx sends their source");
        }
        let mut paths = PathConditions { patterns: vec![SCRIPT_PATTERN.to_owned()], ..place.paths.clone() };
        if !PathConditions::from_patterns(place.paths.patterns.clone()).includes_every_path() {
            paths.enclosing_patterns.push(place.paths.patterns.clone());
        }
        let mut refusal = paths.to_route();
        refusal.comment("Scripts of which nginx sends the source, as it runs others alone.");
        refusal.set("respond", TomlItem::Number(404));
        Some(refusal)
    }
}

/// Returns a route that refuses paths behind scripts if `try_files` looks for them as files: `php` would run the script.
pub(super) fn refuse_path_info_route(
    place: &LocationPlace<'_>,
    section: &TomlSection,
) -> Option<TomlSection> {
    section.get("php")?;
    script_pass(place)?;
    let status = place.scope.innermost_last("try_files")?.args.last()?.strip_prefix('=')?.parse().ok()?;
    if !place.paths.matches("/verify.php/x") && !place.paths.matches("/folder/verify.php/x") {
        return None;
    }
    let mut refusal = place.paths.to_route();
    refusal.require("path", TomlItem::text(r"~ \.php/"));
    refusal.comment("Paths behind a script, which nginx looks for as files.");
    let status = if (400..=599).contains(&status) { status } else { 404 };
    refusal.set("respond", TomlItem::Number(status));
    Some(refusal)
}
