//! Translation of PHP sites: locations whose scripts a FastCGI server runs, and locations that lead to them.

use super::conditions::{file_operator, front_script, is_file_fallback};
use super::location_place::{LocationPlace, ServerLocations};
use super::scope::{Scope, replace_constants};
use super::translation::{LocationMatcher, Translation, make_unavailable};
use super::tree::NginxDirective;
use crate::draft::{TomlItem, TomlSection};
use crate::expressions::may_match_path;
use crate::paths::{matching_examples, may_be_folder};

/// Paths of scripts that are tested against the patterns of locations.
pub(super) const SAMPLE_SCRIPTS: [&str; 2] = ["/verify.php", "/folder/verify.php"];

/// Returns the `fastcgi_pass` of a location that runs scripts stored among static files.
pub(crate) fn script_pass<'d>(place: &LocationPlace<'d>) -> Option<&'d NginxDirective> {
    let scope = &place.scope;
    let pass = scope.innermost_last("fastcgi_pass")?;
    let is_php = match &place.matcher {
        LocationMatcher::Regex(regex, _) => regex.contains("php"),
        LocationMatcher::Exact(path) => path.ends_with(".php"),
        LocationMatcher::Prefix(..) | LocationMatcher::Server => {
            let script = scope
                .effective_all("fastcgi_param")
                .into_iter()
                .find(|one| one.first_arg() == "SCRIPT_FILENAME");
            let is_own = script.is_none_or(|one| {
                one.arg_at(1).contains("$fastcgi_script_name") || one.arg_at(1) == "$request_filename"
            });
            let has_name = pass.first_arg().contains("php")
                || scope.effective("fastcgi_index").is_some_and(|one| one.first_arg().ends_with(".php"));
            is_own && has_name
        }
    };
    is_php.then_some(pass)
}

/// The remark on paths behind a script, which the expression of most sites does not match.
pub(super) const PATH_INFO_REMARK: &str =
    "a script answers for the paths behind it too, as PATH_INFO (`/a.php/b`)";

/// Begins remarks on scripts that do not exist.
pub(super) const MISSING_SCRIPT_REMARK: &str = "a script that does not exist";

/// Whether a location runs every script, but does not match paths with PATH_INFO.
fn lacks_path_info(place: &LocationPlace<'_>) -> bool {
    runs_every_script(place) && !place.paths.matches("/verify.php/x")
}

/// Whether a location runs every script, not just some.
pub(crate) fn runs_every_script(place: &LocationPlace<'_>) -> bool {
    SAMPLE_SCRIPTS.iter().all(|path| place.paths.matches(path))
}

/// A script that handles paths without a file.
pub(crate) struct FrontScript<'d> {
    /// Path of the script.
    pub(crate) script: String,
    /// The directive that names the script.
    pub(crate) naming_directive: &'d NginxDirective,
    /// Text that follows the script in the directive.
    suffix: String,
    /// The named location that runs the script, if there is one.
    named_location: Option<&'d NginxDirective>,
}

/// The location that runs a script to which another location leads.
struct ScriptLocation<'d> {
    /// Path of the script.
    script: String,
    /// The `fastcgi_pass` of the location; `None` if it runs no scripts.
    pass: Option<&'d NginxDirective>,
    scope: Scope<'d>,
    /// The location, for messages.
    name: String,
}

impl<'d> FrontScript<'d> {
    fn parse(text: &str, named_by: &'d NginxDirective) -> Option<Self> {
        let script = front_script(text)?.to_owned();
        let behind = text[script.len()..].to_owned();
        Some(Self { script, naming_directive: named_by, suffix: behind, named_location: None })
    }
}

impl<'d> Translation<'d> {
    /// Returns the script that handles paths without a file: named by the last argument of `try_files`, by a
    /// named location, or by `if (!-e …)`.
    pub(crate) fn find_front_script(
        &self,
        place: &LocationPlace<'d>,
        locations: &ServerLocations<'d>,
    ) -> Option<FrontScript<'d>> {
        let scope = &place.scope;
        let by_if = || {
            let found = scope.innermost().iter().filter(|one| one.name == "if" && is_file_fallback(one));
            found
                .flat_map(|one| one.block_directives())
                .find_map(|one| FrontScript::parse(one.arg_at(1), one))
        };
        let Some(tries) = scope.innermost_last("try_files") else { return by_if() };
        let last = tries.args.last()?;
        if !last.starts_with('@') {
            return FrontScript::parse(last, tries).or_else(by_if);
        }
        let location = locations.find_named(last)?;
        let rewrite = location.block_directives().iter().find(|one| one.name == "rewrite");
        if let Some(front) = rewrite.and_then(|one| FrontScript::parse(one.arg_at(1), one)) {
            self.count_taken(location);
            return Some(front);
        }
        let pass = location.block_directives().iter().find(|one| one.name == "fastcgi_pass")?;
        let inner = scope.with_block(location.block_directives());
        let file = inner
            .effective_all("fastcgi_param")
            .into_iter()
            .find(|one| one.first_arg() == "SCRIPT_FILENAME")?;
        let file = replace_constants(file.arg_at(1), &inner, 0).replace(['{', '}'], "");
        let root = inner.effective("root").map_or("", |one| one.first_arg()).trim_end_matches('/');
        let script = file.strip_prefix("$document_root").or_else(|| file.strip_prefix(root))?;
        let mut front = FrontScript::parse(script, pass)?;
        self.count_taken(location);
        front.named_location = Some(location);
        Some(front)
    }

    /// Adds `php` to a route with `files`, for its front script or for scripts that are index pages.
    pub(crate) fn add_php(
        &self,
        place: &LocationPlace<'d>,
        locations: &ServerLocations<'d>,
        front: Option<&FrontScript<'d>>,
        section: &mut TomlSection,
    ) {
        self.write_php(place, locations, front, section);
        if section.get("php").is_none() {
            self.remove_index_scripts(place, section);
        }
    }

    /// Removes scripts from `index`: without `php`, their source would be sent.
    fn remove_index_scripts(&self, place: &LocationPlace<'d>, section: &mut TomlSection) {
        let is_script = |item: &TomlItem| matches!(item, TomlItem::Text(name) if name.ends_with(".php"));
        let Some((_, TomlItem::Table(files))) = section.entries.iter_mut().find(|(key, _)| key == "files")
        else {
            return;
        };
        let Some((_, TomlItem::List(names))) = files.iter_mut().find(|(key, _)| key == "index") else {
            return;
        };
        let count = names.len();
        names.retain(|name| !is_script(name));
        let is_for_files =
            matches!(&place.matcher, LocationMatcher::Regex(regex, _) if !may_be_folder(regex));
        let is_default = *names == [TomlItem::text("index.html")] || names.is_empty() && is_for_files;
        let is_less = names.len() < count;
        if is_default && is_less {
            files.retain(|(key, _)| key != "index");
        }
        let is_refused = place.scope.innermost_last("deny").is_some_and(|one| one.first_arg() == "all")
            || is_of_hidden_files(place);
        if is_less && !is_for_files && !is_refused && !matches!(place.matcher, LocationMatcher::Exact(_)) {
            for one in place.scope.effective_all("index") {
                self.ledger.mark_different(
                    one.entry,
                    "a script (`index.php`) answers for folders only where `php` stands beside `files`",
                );
            }
        }
    }

    fn write_php(
        &self,
        place: &LocationPlace<'d>,
        locations: &ServerLocations<'d>,
        front: Option<&FrontScript<'d>>,
        section: &mut TomlSection,
    ) {
        let Some(found) = self.find_script_location(place, locations, front) else { return };
        let ScriptLocation { script, pass, scope, .. } = found;
        let Some(pass) = pass else {
            if let Some(front) = front {
                self.ledger.mark_impossible(
                    front.naming_directive.entry,
                    format!("`{script}` is answered by another location: give this route its `proxy` or `app` beside `files`"),
                );
            }
            return;
        };
        if self.may_refuse_more(Some(&script), (&scope, &place.scope)) {
            return self.refuse_script((&script, front), place, section);
        }
        let root = place.scope.folder().map(|one| one.first_arg().trim_end_matches('/'));
        let Some(php) = self.build_php_servers(pass, &scope, front.map(|front| front.script.as_str()), root)
        else {
            if section.get("files").is_some() {
                section.remove("files");
                make_unavailable(section);
            }
            return;
        };
        section.set("php", php);
        self.translate_intercept_errors(&scope, "fastcgi_intercept_errors", section);
        if let Some(front) = front {
            self.report_front(front);
        }
        let index = || place.scope.effective("index").map(|one| one.entry);
        let entry = front.map(|front| front.naming_directive.entry).or(place.entry).or_else(index);
        if let (Some(other), Some(entry), Some(_)) = (locations.find_location(&script), entry, front)
            && lacks_path_info(other)
        {
            self.ledger.mark_different(entry, PATH_INFO_REMARK);
        }
        for one in place.scope.innermost().iter().filter(|one| one.name == "if" && is_file_fallback(one)) {
            self.not_needed(one, "not needed: paths without a file are for the front script");
            self.count_block_taken(one);
        }
    }

    /// Returns the location of the script to which a location leads: its front script, or an index page.
    fn find_script_location(
        &self,
        place: &LocationPlace<'d>,
        locations: &ServerLocations<'d>,
        front: Option<&FrontScript<'d>>,
    ) -> Option<ScriptLocation<'d>> {
        let script = front.map(|front| front.script.clone()).or_else(|| self.find_index_script(place))?;
        if let Some(location) = front.and_then(|front| front.named_location) {
            let pass = location.block_directives().iter().find(|one| one.name == "fastcgi_pass");
            let scope = place.scope.with_block(location.block_directives());
            return Some(ScriptLocation { script, pass, scope, name: location.first_arg().to_owned() });
        }
        Some(match locations.find_location(&script) {
            Some(other) => {
                let name = format!("`{}`", other.matcher.to_nginx_syntax());
                ScriptLocation { script, pass: script_pass(other), scope: other.scope.clone(), name }
            }
            None => ScriptLocation { script, pass: None, scope: place.scope.clone(), name: String::new() },
        })
    }

    /// Writes the header fields of the scripts to which a location leads: nginx sends those of the scripts' location.
    pub(crate) fn write_script_headers(
        &self,
        place: &LocationPlace<'d>,
        locations: &ServerLocations<'d>,
        section: &mut TomlSection,
    ) {
        if section.get("php").is_none() || script_pass(place).is_some() {
            return;
        }
        let front = self.find_front_script(place, locations);
        if let Some(found) = self.find_script_location(place, locations, front.as_ref()) {
            self.write_fallback_headers(("php", &found.name), (&place.scope, &found.scope), section);
        }
    }

    /// Whether the location of a script may refuse requests that the location which leads to it lets in; `path` is that of
    /// the script, if there is only one.
    pub(super) fn may_refuse_more(
        &self,
        path: Option<&str>,
        (script, other): (&Scope<'d>, &Scope<'d>),
    ) -> bool {
        const GUARDS: [&[&str]; 5] =
            [&["allow", "deny"], &["auth_basic"], &["auth_basic_user_file"], &["auth_request"], &["satisfy"]];
        let shown = |scope: &Scope<'d>, names: &[&str]| -> Vec<String> {
            let all = scope.effective_all_of(names);
            all.into_iter().map(|one| format!("{} {}", one.name, one.args.join(" "))).collect()
        };
        let is_stricter = GUARDS.iter().any(|names| {
            let own = shown(script, names);
            own != shown(other, names) && !own.iter().all(|one| one.ends_with(" off"))
        });
        let acts = |one: &NginxDirective| match one.name.as_str() {
            "return" | "limit_except" => true,
            // Its path becomes another one, which may be that of another location.
            "rewrite" => path.is_none_or(|path| may_match_path(one.first_arg(), path)),
            "if" => !is_file_fallback(one) && !one.block_directives().iter().all(|inner| inner.name == "set"),
            // Translated before, or with the route.
            "set" | "break" | "try_files" | "fastcgi_pass" => false,
            _ => one.block.is_none() && self.ledger.is_impossible(one.entry) && !self.is_harmless(&one.name),
        };
        is_stricter || script.innermost().iter().any(acts)
    }

    /// Leaves out a script whose location may refuse requests that the location which leads to it lets in: a route
    /// runs it without the restrictions of its location.
    fn refuse_script(
        &self,
        (script, front): (&str, Option<&FrontScript<'d>>),
        place: &LocationPlace<'d>,
        section: &mut TomlSection,
    ) {
        let reason = format!(
            "the location of `{script}` refuses requests that this one lets in, so that it is not run from here"
        );
        let named_by = front.map(|front| front.naming_directive.entry).into_iter();
        let tries = place.scope.innermost_last("try_files").filter(|_| front.is_some());
        let index = place.scope.effective_all("index");
        let index = index.into_iter().filter(|_| front.is_none());
        named_by
            .chain(tries.into_iter().chain(index).map(|one| one.entry))
            .for_each(|entry| self.ledger.mark_impossible(entry, &reason));
        section.set_in("files", "index", TomlItem::List(Vec::new()));
    }

    fn report_front(&self, front: &FrontScript<'d>) {
        let behind = front.suffix.replace(['{', '}'], "");
        let entry = front.naming_directive.entry;
        match behind.as_str() {
            "?$args" | "?$query_string" | "$is_args$args" | "$is_args$query_string" | "?$is_args$args" => {
                self.count_taken(front.naming_directive);
            }
            "" | "?" => self.ledger.mark_different(
                entry,
                "the front script gets the request's own query, where nginx passes none: REQUEST_URI has it in both",
            ),
            _ if behind.starts_with("$request_uri") || behind.starts_with("$uri") || behind.starts_with('/') => {
                self.ledger.mark_different(entry, "PATH_INFO of the front script is empty: REQUEST_URI has the path");
            }
            _ => self.ledger.mark_different(
                entry,
                format!("the front script gets the request's own query, without `{behind}`: REQUEST_URI has the path"),
            ),
        }
    }

    /// Writes the route of a location that runs scripts.
    pub(crate) fn write_script_location(
        &self,
        pass: &'d NginxDirective,
        place: &LocationPlace<'d>,
        section: &mut TomlSection,
    ) {
        let scope = &place.scope;
        let mut files = TomlSection::default();
        self.write_folder(place, &mut files);
        if files.get("root").is_none() {
            make_unavailable(section);
            return;
        }
        self.write_file_settings(scope, &mut files);
        let root = scope.folder().map(|one| one.first_arg().trim_end_matches('/'));
        let php = self.build_php_servers(pass, scope, None, root);
        let Some(php) = php else {
            make_unavailable(section);
            return;
        };
        section.set("files", TomlItem::Table(files.entries));
        section.set("php", php);
        self.translate_intercept_errors(scope, "fastcgi_intercept_errors", section);
        self.translate_cache("fastcgi", scope, section);
        if let Some(one) = scope.innermost_last("try_files") {
            let refuses = one.args.last().is_some_and(|last| last.starts_with('='));
            if refuses {
                self.not_needed(one, "not needed: only scripts that exist are run")
            } else {
                self.ledger.mark_different(one.entry, format!("{MISSING_SCRIPT_REMARK} is 404 here"))
            }
        }
        for one in scope.innermost().iter().filter(|one| one.name == "if" && file_operator(one).is_some()) {
            if is_file_fallback(one) {
                self.not_needed(one, "not needed: only scripts that exist are run");
                one.block_directives().iter().for_each(|inner| self.not_needed(inner, "see its `if`"));
            }
        }
        self.report_path_info(place);
    }

    /// Reports that scripts also handle paths with PATH_INFO, which the expression of the location may not
    /// match.
    fn report_path_info(&self, place: &LocationPlace<'d>) {
        if let Some(entry) = place.entry.filter(|_| lacks_path_info(place)) {
            self.ledger.mark_different(entry, PATH_INFO_REMARK);
        }
    }

    /// Drops the route of a location that runs scripts if the routes after it run them as well. `routes` has
    /// the routes of each location, in their order.
    pub(crate) fn merge_script_routes(&self, places: &[&LocationPlace<'d>], routes: &mut [Vec<TomlSection>]) {
        for at in 0..places.len() {
            let place = places[at];
            let [own] = routes[at].as_slice() else { continue };
            if script_pass(place).is_none() || !runs_every_script(place) {
                continue;
            }
            let Some(servers) = own.get("php").map(without_front_script) else { continue };
            let has_path_info = place.paths.matches("/verify.php/x");
            let mut is_covered = false;
            let mut refusing: Vec<&LocationPlace<'d>> = Vec::new();
            let agrees = places.iter().zip(routes.iter()).skip(at + 1).all(|(other, sections)| {
                if !may_be_script(other, has_path_info) {
                    return true;
                }
                if sections.iter().all(only_refuses) {
                    refusing.extend((!sections.is_empty() && !is_of_hidden_files(other)).then_some(other));
                    return true;
                }
                let same = sections.iter().filter(|section| !only_refuses(section)).all(|section| {
                    section.get("php").map(without_front_script).as_ref() == Some(&servers)
                        && is_same_route(own, section)
                });
                is_covered |= same && other.paths.includes_every_path();
                same
            });
            if !agrees || !is_covered {
                continue;
            }
            let front = places.iter().zip(routes.iter()).skip(at + 1).find_map(|(other, sections)| {
                other.paths.includes_every_path().then(|| php_front_script(sections.last()?.get("php")?))?
            });
            if let (Some(front), Some(entry)) = (front, place.entry) {
                self.ledger.mark_different(
                    entry,
                    format!("{MISSING_SCRIPT_REMARK} is for `{front}` here, as all other paths"),
                );
            }
            if let (Some(other), Some(entry)) = (refusing.first(), place.entry) {
                let other = other.matcher.to_nginx_syntax();
                self.ledger.mark_different(entry, format!("scripts that match `{other}` are refused too"));
            }
            routes[at].clear();
        }
    }
}

/// Whether a location that follows one for scripts may match paths of scripts; with PATH_INFO, they may end in any way.
fn may_be_script(place: &LocationPlace<'_>, has_path_info: bool) -> bool {
    match &place.matcher {
        LocationMatcher::Regex(..) if has_path_info => true,
        LocationMatcher::Exact(_) => false,
        LocationMatcher::Prefix(..) | LocationMatcher::Server => true,
        LocationMatcher::Regex(regex, _) => {
            let bound = regex.ends_with('$') && !regex.contains('|') || regex.ends_with(")$");
            let found = matching_examples(regex);
            !bound || found.is_empty() || found.iter().any(|(text, ..)| text.contains(".php"))
        }
    }
}

/// Whether a location is for hidden files alone, which are not served in any case.
fn is_of_hidden_files(place: &LocationPlace<'_>) -> bool {
    matches!(&place.matcher, LocationMatcher::Regex(regex, _) if regex.trim_start_matches('^').starts_with(r"/\."))
}

/// Returns an expression without its first negative lookahead, which matches more.
pub(super) fn without_looking_ahead(regex: &str) -> String {
    let parts = regex.split_once("(?!").and_then(|(before, rest)| {
        let (inside, behind) = rest.split_once(')')?;
        (!inside.contains(['(', '[', '\\'])).then_some((before, behind))
    });
    parts.map_or_else(|| regex.to_owned(), |(before, behind)| format!("{before}{behind}"))
}

/// Whether a route only refuses requests. Preceding a location that runs scripts, it only reduces the scripts
/// that run.
fn only_refuses(section: &TomlSection) -> bool {
    match section.get("respond") {
        Some(TomlItem::Number(status)) => *status >= 400,
        _ => false,
    }
}

/// Whether two routes are equal except for their paths and the lookup of files.
fn is_same_route(own: &TomlSection, other: &TomlSection) -> bool {
    let root = |section: &TomlSection| match section.get("files") {
        Some(TomlItem::Table(entries)) => {
            let mut kept = entries.clone();
            kept.retain(|(key, _)| matches!(key.as_str(), "root" | "strip_prefix" | "symlinks"));
            Some(kept)
        }
        _ => None,
    };
    let rest = |section: &TomlSection| {
        let mut kept = section.entries.clone();
        kept.retain(|(key, _)| !matches!(key.as_str(), "path" | "files" | "php"));
        kept.sort_by(|(a, _), (b, _)| a.cmp(b));
        kept
    };
    root(own) == root(other) && rest(own) == rest(other)
}

/// Returns the `php` of a route without its front script.
fn without_front_script(php: &TomlItem) -> TomlItem {
    let TomlItem::Table(entries) = php else { return php.clone() };
    let mut kept = entries.clone();
    for (key, item) in &mut kept {
        if let ("scripts", TomlItem::Table(scripts)) = (key.as_str(), item) {
            scripts.retain(|(name, _)| name != "front");
        }
    }
    kept.retain(|(_, item)| !matches!(item, TomlItem::Table(inner) if inner.is_empty()));
    match kept.as_slice() {
        [(key, to)] if key == "to" => to.clone(),
        _ => TomlItem::Table(kept),
    }
}

/// Returns the front script of a route's `php`; `None` if there is none.
pub(super) fn php_front_script(php: &TomlItem) -> Option<String> {
    let TomlItem::Table(entries) = php else { return Some("/index.php".to_owned()) };
    let scripts = entries.iter().find(|(key, _)| key == "scripts");
    let Some((_, TomlItem::Table(scripts))) = scripts else { return Some("/index.php".to_owned()) };
    match scripts.iter().find(|(key, _)| key == "front") {
        Some((_, TomlItem::Text(front))) => Some(front.clone()),
        Some(_) => None,
        None => Some("/index.php".to_owned()),
    }
}
