//! Translation of static files: `root`, `alias`, `index`, `try_files`, `autoindex`.

use super::conditions::words;
use super::php::FrontScript;
use super::place::{Place, ServerLocations};
use super::scope::{Scope, TemplateUse, constants};
use super::tree::NginxDirective;
use super::work::{Matcher, Translation, unavailable};
use crate::draft::{TomlItem, TomlSection};
use crate::expressions::{path_expression, path_matches};
use crate::findings::EntryNumber;
use crate::paths::{may_be_folder, may_be_for_file};

/// The remark on `$uri/` in `try_files`.
pub(super) const NO_PAGE: &str =
    "a folder without a page is answered as if it were not there, and not refused (403)";

/// The remark on `autoindex` beside `expires`.
pub(super) const NOT_IN_LISTINGS: &str = "listings have no `Cache-Control`";

/// Meaning of the last argument of `try_files`.
pub(crate) enum Last<'d> {
    /// Only files.
    Files,
    /// A named location that handles paths without a file.
    Named(&'d NginxDirective),
}

/// The remark on header fields if one of two locations leads to a page of the other.
pub(crate) const LED_TO: &str =
    "a page that another location's `index` or `try_files` leads to has the fields of that location here";

/// Maximum number of extensions of a translated `types` block: longer ones are copies of the usual list.
const TYPES_MAX: usize = 40;

impl<'d> Translation<'d> {
    /// Writes the `files` of a location. `front` is the script that handles paths without a file.
    pub(crate) fn files(
        &self,
        place: &Place<'d>,
        section: &mut TomlSection,
        around: &ServerLocations<'d>,
        front: Option<&FrontScript<'d>>,
    ) -> Last<'d> {
        let scope = &place.scope;
        let mut files = TomlSection::default();
        self.folder(place, &mut files);
        if files.get("root").is_none() {
            unavailable(section);
            return Last::Files;
        }
        if let Some(rewrite) = files.remove("rewrite") {
            section.set("rewrite", rewrite);
        }
        let has_index = self.index(place, around, &mut files);
        self.file_settings(scope, &mut files);
        if !has_index {
            // The index page may exist to hide the contents of a directory.
            files.remove("listing");
        }
        self.media_types(scope, &mut files);
        let is_folder = matches!(&place.matcher, Matcher::Exact(path) if path.ends_with('/'));
        let last = match scope.own_one("try_files") {
            Some(one) if is_folder && !has_index => {
                self.ledger.impossible(
                    one.entry,
                    "another location answers for its folder, and not what it ends with",
                );
                Last::Files
            }
            Some(one) => self.try_files(one, place, &mut files, (around, front)),
            None => Last::Files,
        };
        section.set("files", TomlItem::Table(files.entries));
        last
    }

    /// Writes `index`, and returns whether index pages are served.
    fn index(&self, place: &Place<'d>, around: &ServerLocations<'d>, files: &mut TomlSection) -> bool {
        let index = place.scope.all("index");
        let names: Vec<&str> = index.iter().flat_map(|one| &one.args).map(String::as_str).collect();
        for one in &index {
            match one.args.iter().any(|name| name.contains(['$', '/'])) {
                true => self.ledger.differs(one.entry, "a name with variables or a path is left out"),
                false => self.ledger.translated(one.entry),
            }
        }
        let mut names: Vec<&str> = names.into_iter().filter(|name| !name.contains(['$', '/'])).collect();
        if index.is_empty() {
            names.push("index.html");
        }
        let is_file = matches!(&place.matcher, Matcher::Exact(path) if !path.ends_with('/'));
        if let Some((name, (other, other_entry))) =
            names.iter().find_map(|name| Some((name, self.index_elsewhere(place, around, name)?)))
            && !is_file
        {
            let reason = format!(
                "`{name}` of a folder is answered by `{other}`, which does something else: folders have no index here"
            );
            let folder = place.folder().map(|(one, _)| one.entry);
            let entry = index.first().map(|one| one.entry).or(place.entry).or(folder).or(other_entry);
            entry.into_iter().for_each(|entry| self.ledger.impossible(entry, &reason));
            files.set("index", TomlItem::List(Vec::new()));
            return false;
        }
        if !names.is_empty() && names != ["index.html"] && !is_file {
            files.set("index", TomlItem::texts_list(&names));
        }
        true
    }

    /// Returns the location that serves an index page instead of this one, if it behaves differently: nginx
    /// restarts the selection with the path of the page, and executes the rewrite directives of the server
    /// again.
    fn index_elsewhere(
        &self,
        place: &Place<'d>,
        around: &ServerLocations<'d>,
        name: &str,
    ) -> Option<(String, Option<EntryNumber>)> {
        let is_for_files = matches!(&place.matcher, Matcher::Regex(regex, _) if !may_be_folder(regex));
        if name.ends_with(".php") || is_for_files {
            return None;
        }
        if let Some(one) = executed(place, around).find(|one| may_act_on_file(one, name)) {
            return Some((format!("{} {}", one.name, one.args.join(" ")), Some(one.entry)));
        }
        let server = Place::of_server(&around.server);
        if let Matcher::Exact(folder) = &place.matcher {
            let other = around.at(&format!("{folder}{name}")).unwrap_or(&server);
            return (!self.answers_alike(place, other)).then(|| (other.matcher.shown(), other.entry));
        }
        // An expression that is anchored at the end may not match the path of the page.
        let keeps = |pattern: &String| match pattern.strip_prefix('~') {
            Some(regex) => !regex.contains('$'),
            None => pattern.ends_with('*'),
        };
        let own = if matches!(place.matcher, Matcher::Regex(..)) { &place.paths.any[..] } else { &[] };
        let keeps_files = own.iter().chain(place.paths.within.iter().flatten()).all(keeps);
        let takes = |other: &&Place<'d>| match &other.matcher {
            _ if !keeps_files => true,
            Matcher::Exact(path) | Matcher::Prefix(path, _) => {
                let (folder, last) = path.split_at(path.rfind('/').map_or(0, |at| at + 1));
                let is_start = !last.is_empty() && name.starts_with(last);
                let is_it = if matches!(other.matcher, Matcher::Exact(_)) { last == name } else { is_start };
                is_it && around.at(folder).and_then(|found| found.entry) == place.entry
            }
            // A nested location applies if it or an enclosing one may match the page but not its directory.
            Matcher::Regex(..) => {
                other.around.iter().all(|around| may_be_around_page(around, place, name))
                    && other.around.iter().chain([&other.matcher]).any(|matcher| match matcher {
                        Matcher::Regex(regex, _) => may_be_for_file(regex, name),
                        _ => false,
                    })
            }
            Matcher::Server => true,
        };
        let rest = (!keeps_files).then_some(&server);
        let others = around.places.iter().filter(|other| other.entry != place.entry && !other.lacks_slash);
        let mut others = others.filter(takes).chain(rest);
        let found = others.find(|other| !self.answers_alike(place, other))?;
        Some((found.matcher.shown(), found.entry))
    }

    /// Returns the location that serves a page of `try_files` instead of this one, if it behaves differently.
    fn page_elsewhere(&self, path: &str, place: &Place<'d>, around: &ServerLocations<'d>) -> Option<String> {
        if path.contains('$') {
            return None;
        }
        let page = if path.ends_with('/') { format!("{path}index.html") } else { path.to_owned() };
        let server = Place::of_server(&around.server);
        let other = around.at(&page).unwrap_or(&server);
        let is_same = match other.entry == place.entry {
            true => !self.acts_on(&page, place),
            false => self.answers_alike(place, other),
        };
        (!is_same || self.server_acts_on(&page, around)).then(|| other.matcher.shown())
    }

    /// Whether a location whose `try_files` leads to a page of its own behaves differently for the path of
    /// the page, for which it is executed again.
    fn acts_on(&self, page: &str, place: &Place<'d>) -> bool {
        let own = place.scope.own();
        let breaks =
            |one: &NginxDirective| one.name == "break" || one.name == "rewrite" && one.arg(2) == "break";
        let is_broken = own.iter().any(|one| breaks(one) || one.inner().iter().any(breaks));
        own.iter().any(|one| match one.name.as_str() {
            "rewrite" => {
                path_expression(one.first(), false).map_or(true, |found| path_matches(&found.pattern, page))
            }
            "return" => is_broken,
            "if" => is_broken || may_act_on_file(one, page.rsplit('/').next().unwrap_or(page)),
            _ => false,
        })
    }

    /// Whether another location sends the same files to the same clients. Differing header fields are
    /// reported.
    pub(crate) fn answers_alike(&self, place: &Place<'d>, other: &Place<'d>) -> bool {
        let acts = |one: &NginxDirective| {
            one.name.ends_with("_pass")
                || matches!(
                    one.name.as_str(),
                    "rewrite" | "if" | "return" | "break" | "limit_except" | "try_files"
                )
                || self.ledger.is_impossible(one.entry) && !super::known::is_harmless(&one.name)
        };
        let is_server = other.matcher == Matcher::Server;
        let folder = |place: &Place<'d>| {
            place.folder().map(|(one, matcher)| {
                (one.name.clone(), one.args.clone(), (one.name == "alias").then_some(matcher))
            })
        };
        if other.is_closed
            || other.scope.one("internal").is_some()
            || !is_server && other.scope.own().iter().any(acts)
            || folder(place) != folder(other)
            || !self.asks_no_more(&other.scope, &place.scope)
        {
            return false;
        }
        for name in ["add_header", "expires"] {
            let shown = |place: &Place<'d>| -> Vec<Vec<String>> {
                place.scope.all(name).into_iter().map(|one| one.args.clone()).collect()
            };
            if shown(place) != shown(other) {
                let entries =
                    place.scope.all(name).into_iter().chain(other.scope.all(name)).map(|one| one.entry);
                entries.for_each(|entry| self.ledger.differs(entry, LED_TO));
            }
        }
        true
    }

    pub(crate) fn file_settings(&self, scope: &Scope<'_>, files: &mut TomlSection) {
        if let Some(one) = scope.one("autoindex") {
            if one.first() == "on" {
                files.set("listing", TomlItem::Flag(true));
            }
            match one.first() == "on" && scope.one("expires").is_some() {
                true => self.ledger.differs(one.entry, NOT_IN_LISTINGS),
                false => self.ledger.translated(one.entry),
            }
        }
        if let Some(one) = scope.one("disable_symlinks") {
            match one.first() {
                "off" => files.set_text("symlinks", "on"),
                "if_not_owner" => files.set_text("symlinks", "owner-match"),
                _ => {}
            }
            self.ledger.differs(one.entry, "links that stay below the root are always followed");
        } else {
            files.set_text("symlinks", "on");
        }
        if let Some(one) = scope.one("max_ranges") {
            files.set("ranges", TomlItem::Number(one.first().parse::<u64>().unwrap_or(16).min(1000)));
            self.ledger.translated(one.entry);
        }
        match scope.one("charset") {
            Some(one) if one.first() == "off" => {
                files.set("charset", TomlItem::Flag(false));
                self.ledger.translated(one.entry);
            }
            Some(one) => {
                if one.first() != "utf-8" {
                    files.set_text("charset", one.first());
                }
                self.ledger.translated(one.entry);
            }
            None => {}
        }
    }

    fn folder_of(&self, one: &NginxDirective, scope: &Scope<'_>, files: &mut TomlSection) {
        let folder = constants(one.first(), scope, 0);
        match folder.contains('$') {
            true => self.ledger.impossible(
                one.entry,
                "the folder depends on the request: write a site or route for each value",
            ),
            false => {
                self.ledger.translated(one.entry);
                files.set_text("root", self.file(&folder));
            }
        }
    }

    /// Writes the root directory of a place: that of the nearest `root` or `alias`, which may belong to an
    /// enclosing location.
    pub(crate) fn folder(&self, place: &Place<'d>, files: &mut TomlSection) {
        match place.folder() {
            Some((alias, matcher)) if alias.name == "alias" => {
                let is_own = place.scope.own().iter().any(|one| one.entry == alias.entry);
                if let (false, Matcher::Regex(..)) = (is_own, &matcher) {
                    let reason = "what the expression around it found is not known in this location";
                    self.ledger.impossible(alias.entry, reason);
                    return;
                }
                self.alias(alias, &place.scope, &matcher, files);
            }
            Some((root, _)) => self.folder_of(root, &place.scope, files),
            // nginx's default.
            None => files.set_text("root", self.file("html")),
        }
    }

    fn alias(&self, alias: &NginxDirective, scope: &Scope<'_>, matcher: &Matcher, files: &mut TomlSection) {
        let folder = constants(alias.first(), scope, 0);
        match matcher {
            Matcher::Prefix(path, _) if !folder.contains('$') => {
                self.folder_of(alias, scope, files);
                let strip = path.trim_end_matches('/');
                if !strip.is_empty() {
                    files.set_text("strip_prefix", strip);
                }
                if path.ends_with('/') != alias.first().ends_with('/') {
                    self.ledger.differs(alias.entry, "either the location or `alias` ends with `/`: whole segments of the path are replaced");
                }
            }
            Matcher::Exact(_) if !folder.contains('$') => {
                let path = self.file(&folder);
                let (root, name) = path.rsplit_once('/').unwrap_or(("", path.as_str()));
                files.set_text("root", if root.is_empty() { "/" } else { root });
                files.set("try", TomlItem::List(vec![TomlItem::Text(format!("/{name}"))]));
                self.ledger.translated(alias.entry);
            }
            Matcher::Regex(..) if self.alias_of_groups(alias, scope, files) => {}
            _ => self.ledger.impossible(
                alias.entry,
                "the file depends on what the expression found: write a route with `strip_prefix` for each folder",
            ),
        }
    }

    /// Translates `alias /folder/$1` to a root directory and a `rewrite` of the path below it.
    fn alias_of_groups(&self, alias: &NginxDirective, scope: &Scope<'_>, files: &mut TomlSection) -> bool {
        let text = alias.first();
        let Some(at) = text.find('$').and_then(|at| text[..at].rfind('/')).filter(|at| *at > 0) else {
            return false;
        };
        let Some(to) = self.template(alias, &text[at..], scope, TemplateUse::Target) else { return false };
        self.ledger.translated(alias.entry);
        files.set_text("root", self.file(&text[..at]));
        files.set_text("rewrite", to);
        true
    }

    /// Translates `types` and `default_type`: media types by extension.
    fn media_types(&self, scope: &Scope<'_>, files: &mut TomlSection) {
        let mut types: Vec<(String, TomlItem)> = Vec::new();
        for block in scope.all("types") {
            for line in block.inner() {
                for extension in &line.args {
                    types.push((extension.clone(), TomlItem::text(line.name.clone())));
                }
            }
            match block.inner().is_empty() {
                true => self.ledger.differs(
                    block.entry,
                    "extensions that Komainu knows keep their media types: `response_headers` can set Content-Type for all",
                ),
                false => self.ledger.differs(block.entry, "extensions that are not in it have the media types of Komainu's list"),
            }
        }
        if let Some(one) = scope.one("default_type") {
            self.ledger.translated(one.entry);
            if !matches!(one.first(), "application/octet-stream" | "") && one.first().contains('/') {
                types.push(("*".to_owned(), TomlItem::text(one.first())));
            }
        }
        if !types.is_empty() && types.len() <= TYPES_MAX {
            files.set("types", TomlItem::Table(types));
        }
    }

    fn try_files(
        &self,
        one: &NginxDirective,
        place: &Place<'d>,
        files: &mut TomlSection,
        (around, front): (&ServerLocations<'d>, Option<&FrontScript<'d>>),
    ) -> Last<'d> {
        let Some((last, tries)) = one.args.split_last() else { return Last::Files };
        let mut paths: Vec<String> = Vec::new();
        let mut is_exact = true;
        let finds_folders = finds_folders(tries);
        for path in tries {
            let path = path.replace("${uri}", "$uri").replace("$document_uri", "$uri");
            // Komainu finds directories by their path without the slash.
            let path = path.strip_suffix('/').filter(|rest| !rest.is_empty()).unwrap_or(&path).to_owned();
            let path = path.replace("$uri", "$path");
            let rest = path.replace("$path", "");
            match rest.contains('$') || !path.starts_with(['/', '$']) {
                true => is_exact = false,
                false if !paths.contains(&path) => paths.push(path),
                false => {}
            }
        }
        match is_exact {
            true => self.ledger.translated(one.entry),
            false => self.ledger.differs(one.entry, "paths with other variables than `$uri` are not tried"),
        }
        if !finds_folders && !paths.is_empty() {
            files.remove("listing");
            match front {
                // A directory is not a file: the last argument of `try_files` handles it.
                None => files.set("index", TomlItem::List(Vec::new())),
                Some(_) => {
                    self.ledger.differs(one.entry, "a folder with an index answers too, as with `$uri/`")
                }
            }
        }
        if paths.is_empty() {
            self.ledger.differs(one.entry, "the path itself is tried too");
        } else if paths != ["$path"] {
            files.set("try", TomlItem::List(paths.into_iter().map(TomlItem::Text).collect()));
        }
        if finds_folders && front.is_none() {
            self.ledger.differs(one.entry, NO_PAGE);
        }
        self.last_word(one, place, files, (around, front), last)
    }

    /// Translates the last argument of `try_files`.
    fn last_word(
        &self,
        one: &NginxDirective,
        place: &Place<'d>,
        files: &mut TomlSection,
        (around, front): (&ServerLocations<'d>, Option<&FrontScript<'d>>),
        last: &str,
    ) -> Last<'d> {
        match last {
            "=404" => Last::Files,
            code if code.starts_with('=') => {
                self.ledger.differs(one.entry, format!("the status is 404, not {}", &code[1..]));
                Last::Files
            }
            name if name.starts_with('@') => match around.named(name) {
                Some(location) => {
                    let expires = |scope: &Scope<'d>| scope.one("expires").map(|one| one.args.clone());
                    if expires(&place.scope) != expires(&around.server.with(location.inner())) {
                        self.ledger.differs(one.entry, LED_TO);
                    }
                    Last::Named(location)
                }
                None => {
                    self.ledger.impossible(one.entry, format!("there is no `location {name}`"));
                    Last::Files
                }
            },
            path => {
                let path = path.split('?').next().unwrap_or(path);
                if front.is_some() {
                    return Last::Files;
                }
                if let Some(other) = self.page_elsewhere(path, place, around) {
                    self.ledger.impossible(
                        one.entry,
                        format!("`{path}` is answered by `{other}`, which does something else"),
                    );
                    return Last::Files;
                }
                // The path of a page is relative to the root, without the prefix that `alias` replaces.
                let prefix = files.get("strip_prefix").and_then(TomlItem::as_text).unwrap_or_default();
                let below = path.strip_prefix(prefix).filter(|rest| rest.starts_with('/'));
                let Some(path) = below.or((!path.starts_with('/')).then_some(path)) else {
                    self.ledger.impossible(
                        one.entry,
                        format!("`{path}` is answered by another location, which has a folder of its own: what is no file is 404 until `fallback` names a page below this root"),
                    );
                    return Last::Files;
                };
                if path.contains('$') || path.ends_with(".php") || !path.starts_with('/') {
                    self.ledger.impossible(
                        one.entry,
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
                Last::Files
            }
        }
    }
}

/// Whether the location `around` may enclose the one that serves the index page of a directory of `place`: it
/// contains the directory, or its prefix ends within the name of the page.
fn may_be_around_page(around: &Matcher, place: &Place<'_>, name: &str) -> bool {
    let Matcher::Prefix(path, _) = around else { return true };
    let (folder, last) = path.split_at(path.rfind('/').map_or(0, |at| at + 1));
    let begins_in_name = !last.is_empty() && name.starts_with(last) && place.paths.matches(folder);
    let is_known = !matches!(place.matcher, Matcher::Regex(..));
    let has_folder = place.matcher == *around || place.around.contains(around);
    !is_known || has_folder || begins_in_name
}

/// Whether `try_files` looks for directories.
pub(super) fn finds_folders(tries: &[String]) -> bool {
    tries.iter().any(|path| path.ends_with('/') && path.contains('$'))
}

/// Returns the directives that nginx executes for the path of a page in a place.
fn executed<'d>(place: &Place<'d>, around: &ServerLocations<'d>) -> impl Iterator<Item = &'d NginxDirective> {
    around.server.own().iter().chain(place.scope.own())
}

/// Whether a directive may act on the path of a file with this name, although it did not act on its
/// directory.
fn may_act_on_file(one: &NginxDirective, name: &str) -> bool {
    match one.name.as_str() {
        "rewrite" => may_be_for_file(one.first(), name),
        "if" => {
            let inner = one.inner().iter().filter(|inner| inner.name == "rewrite");
            let rewrites = inner.into_iter().any(|inner| may_be_for_file(inner.first(), name));
            rewrites
                || match words(one).as_slice() {
                    ["$uri" | "$document_uri", "=", path] => path.ends_with(name),
                    ["$uri" | "$document_uri", "~" | "~*", regex] => may_be_for_file(regex, name),
                    all => {
                        all.iter().any(|word| matches!(*word, "$uri" | "$document_uri" | "$request_filename"))
                    }
                }
        }
        _ => false,
    }
}
