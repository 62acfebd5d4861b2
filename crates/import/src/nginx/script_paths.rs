//! Paths that a route of scripts would answer and nginx does not: they are refused.

use super::conditions::{condition_words, is_file_fallback};
use super::location_place::{LocationPlace, PathConditions, ServerLocations};
use super::php::{SAMPLE_SCRIPTS, php_front_script, script_pass};
use super::translation::{LocationMatcher, Translation};
use crate::draft::{TomlItem, TomlSection};
use crate::expressions::has_alternatives;
use crate::regex_tokens::regex_tokens;

/// Pattern of every script, with or without PATH_INFO.
const SCRIPT_PATTERN: &str = r"~ \.php(?:/|$)";

/// The remark on a location that passes other paths than those of scripts to the server of its scripts.
pub(super) const SCRIPTS_ALONE_REMARK: &str =
    "files whose names do not end in `.php` are neither run nor sent (403), as PHP-FPM refuses to run them";

impl<'d> Translation<'d> {
    /// Returns a route that refuses the paths of a script location that are not those of scripts: the route would send
    /// files that nginx passes to the server of its scripts.
    pub(crate) fn refuse_other_files(
        &self,
        place: &LocationPlace<'d>,
        section: &mut TomlSection,
    ) -> Option<TomlSection> {
        let pass = script_pass(place)?;
        section.get("php")?;
        if !place.paths.patterns.is_empty() && place.paths.patterns.iter().all(|one| is_of_scripts(one)) {
            return None;
        }
        self.ledger.mark_different(pass.entry, SCRIPTS_ALONE_REMARK);
        let condition = |pattern: &str| {
            let mut section = TomlSection::default();
            section.set_text("path", pattern);
            TomlItem::Table(section.entries)
        };
        let mut refusal = place.paths.to_route();
        refusal.exclude(condition(SCRIPT_PATTERN));
        if let Some(index) = place.scope.effective("fastcgi_index") {
            refusal.exclude(condition("*/"));
            section.set_in("files", "index", TomlItem::text_list(&[index.first_arg()]));
        }
        refusal.comment("Paths that are not those of scripts.");
        refusal.set("respond", TomlItem::Number(403));
        Some(refusal)
    }

    /// Returns a route that refuses all other scripts if nginx runs only one of them and sends the source of
    /// the others.
    pub(crate) fn refuse_other_scripts(
        &self,
        place: &LocationPlace<'d>,
        locations: &ServerLocations<'d>,
        section: &TomlSection,
    ) -> Option<TomlSection> {
        section.get("php")?;
        let is_handled = |other: &LocationPlace<'d>| {
            script_pass(other).is_some()
                || other.scope.innermost_last("return").is_some()
                || other.scope.innermost_last("deny").is_some()
        };
        let folder = own_folder(place);
        let are_all_handled = SAMPLE_SCRIPTS
            .iter()
            .all(|script| locations.find_location(&format!("{folder}{script}")).is_some_and(is_handled));
        if script_pass(place).is_some() || are_all_handled {
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

/// Directory of a location for a prefix, without its final slash.
fn own_folder<'p>(place: &'p LocationPlace<'_>) -> &'p str {
    match &place.matcher {
        LocationMatcher::Prefix(path, _) => path.trim_end_matches('/'),
        _ => "",
    }
}

/// Whether a pattern matches paths of scripts alone.
fn is_of_scripts(pattern: &str) -> bool {
    const ENDS: [&str; 4] = [r"\.php$", r"\.php(/|$)", r"\.php(?:/|$)", r"\.php/"];
    match pattern.strip_prefix('~') {
        Some(regex) => ENDS.iter().any(|end| regex.ends_with(end)) && !has_alternatives(&regex_tokens(regex)),
        None => pattern.ends_with(".php") || pattern.ends_with(".php/*"),
    }
}

/// Whether a location answers 404 for paths that are no files (`if (!-e $request_filename)`), and so for those behind scripts.
fn refuses_missing_files(place: &LocationPlace<'_>) -> bool {
    place.scope.innermost().iter().filter(|one| one.name == "if" && is_file_fallback(one)).any(|one| {
        condition_words(one).last().is_some_and(|path| !path.contains("fastcgi_script_name"))
            && one.block_directives().iter().any(|inner| inner.name == "return")
    })
}

/// Returns a route that refuses paths behind scripts where nginx looks for them as files: `php` would run the script.
pub(super) fn refuse_path_info_route(
    place: &LocationPlace<'_>,
    locations: &ServerLocations<'_>,
    section: &TomlSection,
) -> Option<TomlSection> {
    let php = section.get("php")?;
    let tries = place.scope.innermost_last("try_files").map(|one| one.args.as_slice());
    let status = match tries.and_then(<[String]>::split_last) {
        Some((_, tries)) if tries.iter().any(|path| path.contains("fastcgi_script_name")) => return None,
        Some((last, _)) => last.strip_prefix('=')?.parse().ok()?,
        None if script_pass(place).is_some() && !refuses_missing_files(place) => return None,
        None => 404,
    };
    // Such a path may end like a script.
    let is_own =
        |path: &str| ["x", "x.php"].iter().any(|rest| place.paths.matches(&format!("{path}/{rest}")));
    let has_such_paths = if script_pass(place).is_some() {
        SAMPLE_SCRIPTS.iter().any(|path| is_own(&format!("{}{path}", own_folder(place))))
    } else {
        let found = locations.find_location(&format!("{}{}/x", own_folder(place), SAMPLE_SCRIPTS[0]));
        php_front_script(php).is_none() && found.and_then(|found| found.entry) == place.entry
    };
    if !has_such_paths {
        return None;
    }
    let mut refusal = place.paths.to_route();
    match refusal.get("path") {
        Some(_) => refusal.require("path", TomlItem::text(r"~ \.php/")),
        None => refusal.set_text("path", r"~ \.php/"),
    }
    refusal.comment("Paths behind a script, which nginx looks for as files.");
    let status = if (400..=599).contains(&status) { status } else { 404 };
    refusal.set("respond", TomlItem::Number(status));
    Some(refusal)
}
