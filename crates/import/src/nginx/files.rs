//! Translation of static files: `root`, `alias`, `index`, `try_files`, `autoindex`.

use super::conditions::{executed_directives, may_act_on_file};
use super::directive::Part;
use super::location_place::{LocationPlace, ServerLocations};
use super::php::{FrontScript, without_looking_ahead};
use super::scope::Scope;
use super::translation::{AppliedDirective, LocationMatcher, Translation, make_unavailable};
use super::tree::NginxDirective;
use crate::draft::{TomlItem, TomlSection};
use crate::expressions::{path_expression, path_matches};
use crate::findings::{EntryIndex, Outcome};
use crate::paths::{may_be_folder, may_match_only_file};

/// The remark on `$uri/` in `try_files`.
pub(super) const NO_INDEX_REMARK: &str =
    "a folder without a page is answered as if it were not there, and not refused (403)";

/// The remark on `$uri/` in `try_files` that ends with a front script.
pub(super) const FRONT_FOLDER_REMARK: &str =
    "a folder without a page is for the front script, as a path without a file, and not refused (403)";

/// The remark on `autoindex` beside `expires`.
pub(super) const LISTINGS_REMARK: &str = "listings have no `Cache-Control`";

/// Meaning of the last argument of `try_files`.
pub(crate) enum FilesFallback<'d> {
    /// Only files.
    FilesOnly,
    /// A named location that handles paths without a file.
    Named(&'d NginxDirective),
}

/// The remark on header fields if one of two locations leads to a page of the other.
pub(crate) const LEADS_TO_REMARK: &str =
    "a page that another location's `index` or `try_files` leads to has the fields of that location here";

/// Default and maximum of `ranges`.
const RANGES_DEFAULT: u64 = 16;
const RANGES_MAX: u64 = 1000;
/// Maximum number of extensions of a translated `types` block: longer ones are copies of the usual list.
const TYPES_MAX: usize = 40;

impl<'d> Translation<'d> {
    /// Writes the `files` of a location. `front` is the script that handles paths without a file.
    pub(crate) fn write_files(
        &self,
        place: &LocationPlace<'d>,
        section: &mut TomlSection,
        locations: &ServerLocations<'d>,
        front: Option<&FrontScript<'d>>,
    ) -> FilesFallback<'d> {
        let scope = &place.scope;
        let mut files = TomlSection::default();
        self.write_folder(place, &mut files);
        if files.get("root").is_none() {
            make_unavailable(section);
            return FilesFallback::FilesOnly;
        }
        if let Some(rewrite) = files.remove("rewrite") {
            section.set("rewrite", rewrite);
        }
        let has_index = self.write_index(place, locations, &mut files);
        self.write_file_settings(scope, &mut files);
        let leaves_out =
            scope.effective_all("index").into_iter().flat_map(|one| &one.args).any(|name| is_left_out(name));
        if !has_index || leaves_out {
            // The index page may exist to hide the contents of a directory.
            files.remove("listing");
        }
        self.translate_media_types(scope, &mut files);
        let is_folder = matches!(&place.matcher, LocationMatcher::Exact(path) if path.ends_with('/'));
        let last = match scope.innermost_last("try_files") {
            Some(one) if is_folder && !has_index => {
                self.ledger.mark_impossible(
                    one.entry,
                    "another location answers for its folder, and not what it ends with",
                );
                FilesFallback::FilesOnly
            }
            Some(one) => self.translate_try_files(one, place, &mut files, (locations, front)),
            None => FilesFallback::FilesOnly,
        };
        section.set("files", TomlItem::Table(files.entries));
        last
    }

    /// Writes `index`, and returns whether index pages are served.
    fn write_index(
        &self,
        place: &LocationPlace<'d>,
        locations: &ServerLocations<'d>,
        files: &mut TomlSection,
    ) -> bool {
        let index = self.take_all(&place.scope, "index");
        for one in &index {
            if one.args.iter().any(|name| is_left_out(name)) {
                self.ledger.mark_different(
                    one.entry,
                    "a name with variables or a path is left out, and those behind it; folders are not listed",
                )
            }
        }
        // Pages that follow a name that is left out would answer instead of it.
        let names = index.iter().flat_map(|one| &one.args).take_while(|name| !is_left_out(name));
        let mut names: Vec<&str> = names.map(String::as_str).collect();
        if index.is_empty() {
            names.push("index.html");
        }
        let is_file = matches!(&place.matcher, LocationMatcher::Exact(path) if !path.ends_with('/'));
        let is_refused = place
            .scope
            .effective_all_of(&["allow", "deny"])
            .first()
            .is_some_and(|one| one.name == "deny" && one.first_arg() == "all")
            && place.scope.innermost_last("limit_except").is_none();
        if let Some((name, (other, other_entry))) =
            names.iter().find_map(|name| Some((name, self.find_index_location(place, locations, name)?)))
            && !is_file
            && !is_refused
        {
            let reason = format!(
                "`{name}` of a folder is answered by `{other}`, which does something else: folders have no index here"
            );
            let folder = place.find_folder().map(|(one, _)| one.entry);
            let entry = index.first().map(|one| one.entry).or(place.entry).or(folder).or(other_entry);
            entry.into_iter().for_each(|entry| self.ledger.mark_impossible(entry, &reason));
            files.set("index", TomlItem::List(Vec::new()));
            return false;
        }
        if names != ["index.html"] && !is_file {
            files.set("index", TomlItem::text_list(&names));
        }
        true
    }

    /// Returns the location that serves an index page instead of this one, if it behaves differently: nginx
    /// restarts the selection with the path of the page, and executes the rewrite directives of the server
    /// again.
    fn find_index_location(
        &self,
        place: &LocationPlace<'d>,
        locations: &ServerLocations<'d>,
        name: &str,
    ) -> Option<(String, Option<EntryIndex>)> {
        let is_for_files =
            matches!(&place.matcher, LocationMatcher::Regex(regex, _) if !may_be_folder(regex));
        if name.ends_with(".php") || is_for_files {
            return None;
        }
        if let Some(one) = executed_directives(place, locations).find(|one| may_act_on_file(one, name)) {
            return Some((format!("{} {}", one.name, one.args.join(" ")), Some(one.entry)));
        }
        let server = LocationPlace::for_server(&locations.server);
        if let LocationMatcher::Exact(folder) = &place.matcher {
            let other = locations.find_location(&format!("{folder}{name}")).unwrap_or(&server);
            return (!self.serves_same_files(place, other))
                .then(|| (other.matcher.to_nginx_syntax(), other.entry));
        }
        // An expression that is anchored at the end may not match the path of the page.
        let keeps = |pattern: &String| match pattern.strip_prefix('~') {
            Some(regex) => !regex.contains('$'),
            None => pattern.ends_with('*'),
        };
        let own =
            if matches!(place.matcher, LocationMatcher::Regex(..)) { &place.paths.patterns[..] } else { &[] };
        let keeps_files = own.iter().chain(place.paths.enclosing_patterns.iter().flatten()).all(keeps);
        let takes = |other: &&LocationPlace<'d>| match &other.matcher {
            _ if !keeps_files => true,
            LocationMatcher::Exact(path) | LocationMatcher::Prefix(path, _) => {
                let (folder, last) = path.split_at(path.rfind('/').map_or(0, |at| at + 1));
                let is_start = !last.is_empty() && name.starts_with(last);
                let is_it =
                    if matches!(other.matcher, LocationMatcher::Exact(_)) { last == name } else { is_start };
                is_it && locations.find_location(folder).and_then(|found| found.entry) == place.entry
            }
            // A nested location applies if it or an enclosing one may match the page but not its directory.
            LocationMatcher::Regex(..) => {
                other.enclosing_matchers.iter().all(|around| may_be_around_page(around, place, name))
                    && other.enclosing_matchers.iter().chain([&other.matcher]).any(|matcher| match matcher {
                        LocationMatcher::Regex(regex, _) => {
                            may_match_only_file(&without_looking_ahead(regex), name)
                        }
                        _ => false,
                    })
            }
            LocationMatcher::Server => true,
        };
        let rest = (!keeps_files).then_some(&server);
        let others =
            locations.ordered_places.iter().filter(|other| other.entry != place.entry && !other.lacks_slash);
        let mut others = others.filter(takes).chain(rest);
        let found = others.find(|other| !self.serves_same_files(place, other))?;
        Some((found.matcher.to_nginx_syntax(), found.entry))
    }

    /// Returns the location that serves a page of `try_files` instead of this one, if it behaves differently.
    fn find_page_location(
        &self,
        path: &str,
        place: &LocationPlace<'d>,
        locations: &ServerLocations<'d>,
    ) -> Option<String> {
        if path.contains('$') {
            return None;
        }
        let page = if path.ends_with('/') { format!("{path}index.html") } else { path.to_owned() };
        let server = LocationPlace::for_server(&locations.server);
        let other = locations.find_location(&page).unwrap_or(&server);
        let is_same = if other.entry == place.entry {
            !self.acts_on_page(&page, place)
        } else {
            self.serves_same_files(place, other)
        };
        (!is_same || self.is_changed_by_server(&page, locations)).then(|| other.matcher.to_nginx_syntax())
    }

    /// Whether a location whose `try_files` leads to a page of its own behaves differently for the path of
    /// the page, for which it is executed again.
    fn acts_on_page(&self, page: &str, place: &LocationPlace<'d>) -> bool {
        let own = place.scope.innermost();
        let breaks =
            |one: &NginxDirective| one.name == "break" || one.name == "rewrite" && one.arg_at(2) == "break";
        let is_broken = own.iter().any(|one| breaks(one) || one.block_directives().iter().any(breaks));
        own.iter().any(|one| match one.name.as_str() {
            "rewrite" => path_expression(one.first_arg(), false)
                .map_or(true, |found| path_matches(&found.pattern, page)),
            "return" => is_broken,
            "if" => is_broken || may_act_on_file(one, page.rsplit('/').next().unwrap_or(page)),
            _ => false,
        })
    }

    /// Whether another location sends the same files to the same clients. Differing header fields are
    /// reported.
    pub(crate) fn serves_same_files(&self, place: &LocationPlace<'d>, other: &LocationPlace<'d>) -> bool {
        let acts = |one: &NginxDirective| {
            one.name.ends_with("_pass")
                || matches!(
                    one.name.as_str(),
                    "rewrite" | "if" | "return" | "break" | "limit_except" | "try_files"
                )
                || self.ledger.is_impossible(one.entry) && !self.is_harmless(&one.name)
        };
        let is_server = other.matcher == LocationMatcher::Server;
        // No other location inherits its rules for methods.
        let has_own_rules = place.scope.innermost().iter().any(|one| one.name == "limit_except");
        let folder = |place: &LocationPlace<'d>| {
            place.find_folder().map(|(one, matcher)| {
                (one.name.clone(), one.args.clone(), (one.name == "alias").then_some(matcher))
            })
        };
        if other.is_closed
            || other.scope.effective("internal").is_some()
            || !is_server && other.scope.innermost().iter().any(acts)
            || has_own_rules
            || folder(place) != folder(other)
            || !self.is_no_stricter(&other.scope, &place.scope)
        {
            return false;
        }
        for name in ["add_header", "expires"] {
            let shown = |place: &LocationPlace<'d>| -> Vec<Vec<String>> {
                place.scope.effective_all(name).into_iter().map(|one| one.args.clone()).collect()
            };
            if shown(place) != shown(other) {
                let entries = place
                    .scope
                    .effective_all(name)
                    .into_iter()
                    .chain(other.scope.effective_all(name))
                    .map(|one| one.entry);
                entries.for_each(|entry| self.ledger.mark_different(entry, LEADS_TO_REMARK));
            }
        }
        true
    }

    /// Writes the further settings of `files`. Links are followed by default in nginx.
    pub(crate) fn write_file_settings(&self, scope: &Scope<'_>, files: &mut TomlSection) {
        let mut settings = TomlSection::default();
        self.apply(Part::FileSettings, scope, &mut settings);
        if scope.effective("disable_symlinks").is_none() {
            let at = usize::from(settings.get("listing").is_some());
            settings.entries.insert(at, ("symlinks".to_owned(), TomlItem::text("on")));
        }
        files.entries.append(&mut settings.entries);
    }

    /// Translates `types` and `default_type`: media types by extension.
    fn translate_media_types(&self, scope: &Scope<'_>, files: &mut TomlSection) {
        let mut types: Vec<(String, TomlItem)> = Vec::new();
        for block in scope.effective_all("types") {
            for line in block.block_directives() {
                for extension in &line.args {
                    types.push((extension.clone(), TomlItem::text(line.name.clone())));
                }
            }
            if block.block_directives().is_empty() {
                self.ledger.mark_different(
                    block.entry,
                    "extensions that Komainu knows keep their media types: `response_headers` can set Content-Type for all",
                )
            } else {
                self.ledger.mark_different(
                    block.entry,
                    "extensions that are not in it have the media types of Komainu's list",
                )
            }
        }
        if let Some(one) = self.take(scope, "default_type")
            && !matches!(one.first_arg(), "application/octet-stream" | "")
            && one.first_arg().contains('/')
        {
            types.push(("*".to_owned(), TomlItem::text(one.first_arg())));
        }
        if !types.is_empty() && types.len() <= TYPES_MAX {
            files.set("types", TomlItem::Table(types));
        }
    }

    fn translate_try_files(
        &self,
        directive: &NginxDirective,
        place: &LocationPlace<'d>,
        files: &mut TomlSection,
        (locations, front): (&ServerLocations<'d>, Option<&FrontScript<'d>>),
    ) -> FilesFallback<'d> {
        let Some((last, tries)) = directive.args.split_last() else { return FilesFallback::FilesOnly };
        let mut paths: Vec<String> = Vec::new();
        let mut is_exact = true;
        let finds_folders = finds_folders(tries);
        let spelled: Vec<String> = tries
            .iter()
            .map(|path| path.replace("${uri}", "$uri").replace("$document_uri", "$uri"))
            .collect();
        // A route sends a file at the path of a directory too.
        let is_only_folder = |path: &String| {
            path.strip_suffix('/').is_some_and(|rest| {
                !rest.is_empty()
                    && !spelled.iter().any(|other| other == rest)
                    && !path.replace("$uri", "").contains('$')
            })
        };
        let only_folder = spelled.iter().find(|path| is_only_folder(path)).cloned();
        for path in &spelled {
            // Komainu finds directories by their path without the slash.
            let path = path.strip_suffix('/').filter(|rest| !rest.is_empty()).unwrap_or(path).to_owned();
            let path = path.replace("$uri", "$path");
            let rest = path.replace("$path", "");
            let is_outside = path.split('/').any(|segment| segment == "..");
            match rest.contains('$') || !path.starts_with(['/', '$']) || is_outside {
                true => is_exact = false,
                false if !paths.contains(&path) => paths.push(path),
                false => {}
            }
        }
        self.count_taken(directive);
        if !is_exact {
            self.ledger.mark_different(
                directive.entry,
                "paths with `..` or other variables than `$uri` are not tried",
            )
        }
        if !finds_folders && !paths.is_empty() {
            // A directory is not a file: the last argument of `try_files` handles it.
            files.remove("listing");
            files.set("index", TomlItem::List(Vec::new()));
        }
        let is_of_expression = place
            .find_folder()
            .is_some_and(|(one, around)| one.name == "alias" && matches!(around, LocationMatcher::Regex(..)));
        if is_of_expression {
            let reason = "nginx appends its paths to the whole `alias` of an expression, where files are seldom: the route is closed (403)";
            self.ledger.mark_impossible(directive.entry, reason);
        }
        if paths.is_empty() {
            let reason = "none of its paths can be tried: the route is closed (403), as it would send the file at the path itself";
            self.ledger.mark_impossible(directive.entry, reason);
        } else if let Some(folder) = &only_folder {
            let reason = format!(
                "`{folder}` is for folders alone, and a route would send a file at the path too: the route is closed (403)"
            );
            self.ledger.mark_impossible(directive.entry, reason);
        } else if paths != ["$path"] {
            files.set("try", TomlItem::List(paths.into_iter().map(TomlItem::Text).collect()));
        }
        if finds_folders {
            let remark = if front.is_none() { NO_INDEX_REMARK } else { FRONT_FOLDER_REMARK };
            self.ledger.mark_different(directive.entry, remark);
        }
        self.translate_last_argument(directive, place, files, (locations, front), last)
    }

    /// Translates the last argument of `try_files`.
    fn translate_last_argument(
        &self,
        directive: &NginxDirective,
        place: &LocationPlace<'d>,
        files: &mut TomlSection,
        (locations, front): (&ServerLocations<'d>, Option<&FrontScript<'d>>),
        last: &str,
    ) -> FilesFallback<'d> {
        match last {
            "=404" => FilesFallback::FilesOnly,
            code if code.starts_with('=') => {
                self.ledger.mark_different(directive.entry, format!("the status is 404, not {}", &code[1..]));
                FilesFallback::FilesOnly
            }
            name if name.starts_with('@') => match locations.find_named(name) {
                Some(location) => {
                    let expires = |scope: &Scope<'d>| scope.effective("expires").map(|one| one.args.clone());
                    if expires(&place.scope)
                        != expires(&locations.server.with_block(location.block_directives()))
                    {
                        self.ledger.mark_different(directive.entry, LEADS_TO_REMARK);
                    }
                    FilesFallback::Named(location)
                }
                None => {
                    self.ledger.mark_impossible(directive.entry, format!("there is no `location {name}`"));
                    FilesFallback::FilesOnly
                }
            },
            path => {
                let path = path.split('?').next().unwrap_or(path);
                if front.is_some() {
                    return FilesFallback::FilesOnly;
                }
                if let Some(other) = self.find_page_location(path, place, locations) {
                    self.ledger.mark_impossible(
                        directive.entry,
                        format!("`{path}` is answered by `{other}`, which does something else"),
                    );
                    return FilesFallback::FilesOnly;
                }
                // The path of a page is relative to the root, without the prefix that `alias` replaces.
                let prefix = files.get("strip_prefix").and_then(TomlItem::as_text).unwrap_or_default();
                let below = path.strip_prefix(prefix).filter(|rest| rest.starts_with('/'));
                let Some(path) = below.or((!path.starts_with('/')).then_some(path)) else {
                    self.ledger.mark_impossible(
                        directive.entry,
                        format!("`{path}` is answered by another location, which has a folder of its own: paths without a file are 404 until `fallback` names a page below this root"),
                    );
                    return FilesFallback::FilesOnly;
                };
                if path.contains('$') || path.ends_with(".php") || !path.starts_with('/') {
                    self.ledger.mark_impossible(
                        directive.entry,
                        format!("`{path}` is answered by another location: give this route its `proxy` or `app` beside `files`"),
                    );
                } else if path == "/" {
                    files.set_text("fallback", "/index.html");
                } else {
                    files.set_text(
                        "fallback",
                        path.strip_suffix('/')
                            .map_or(path.to_owned(), |folder| format!("{folder}/index.html")),
                    );
                }
                FilesFallback::FilesOnly
            }
        }
    }
}

/// Whether a name of `index` is left out.
fn is_left_out(name: &str) -> bool {
    name.contains(['$', '/'])
}

pub(super) fn autoindex(one: &AppliedDirective<'_>, files: &mut TomlSection) -> Outcome {
    if !one.is_on() {
        return Outcome::TRANSLATED;
    }
    files.set("listing", TomlItem::Flag(true));
    match one.scope.effective("expires") {
        Some(_) => Outcome::differs(LISTINGS_REMARK),
        None => Outcome::TRANSLATED,
    }
}

pub(super) fn disable_symlinks(one: &AppliedDirective<'_>, files: &mut TomlSection) -> Outcome {
    match one.first_arg() {
        "off" => files.set_text("symlinks", "on"),
        "if_not_owner" => files.set_text("symlinks", "owner-match"),
        _ => {}
    }
    Outcome::differs("links that stay below the root are always followed")
}

pub(super) fn max_ranges(one: &AppliedDirective<'_>, files: &mut TomlSection) -> Outcome {
    let count = one.first_arg().parse().unwrap_or(RANGES_DEFAULT).min(RANGES_MAX);
    files.set("ranges", TomlItem::Number(count));
    Outcome::TRANSLATED
}

pub(super) fn charset(one: &AppliedDirective<'_>, files: &mut TomlSection) -> Outcome {
    match one.first_arg() {
        "off" => files.set("charset", TomlItem::Flag(false)),
        "utf-8" => {}
        name => files.set_text("charset", name),
    }
    Outcome::TRANSLATED
}

/// Whether the location `around` may enclose the one that serves the index page of a directory of `place`: it
/// contains the directory, or its prefix ends within the name of the page.
fn may_be_around_page(around: &LocationMatcher, place: &LocationPlace<'_>, name: &str) -> bool {
    let LocationMatcher::Prefix(path, _) = around else { return true };
    let (folder, last) = path.split_at(path.rfind('/').map_or(0, |at| at + 1));
    let begins_in_name = !last.is_empty() && name.starts_with(last) && place.paths.matches(folder);
    let is_known = !matches!(place.matcher, LocationMatcher::Regex(..));
    let has_folder = place.matcher == *around || place.enclosing_matchers.contains(around);
    !is_known || has_folder || begins_in_name
}

/// Whether `try_files` looks for directories.
pub(super) fn finds_folders(tries: &[String]) -> bool {
    tries.iter().any(|path| path.ends_with('/') && path.contains('$'))
}
