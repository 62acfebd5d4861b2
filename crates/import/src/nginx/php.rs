//! Translation of PHP sites: locations whose scripts a FastCGI server runs, and locations that lead to them.

use super::conditions::{file_operator, front_script, is_of_files};
use super::place::{LocationPaths, Place, ServerLocations};
use super::scope::constants;
use super::tree::NginxDirective;
use super::work::{Matcher, Translation, unavailable};
use crate::draft::{TomlItem, TomlSection};
use crate::paths::examples;

/// Pattern of every script, with or without PATH_INFO.
const SCRIPTS: &str = r"~ \.php(?:/|$)";

/// Representative paths of scripts.
const SAMPLES: [&str; 2] = ["/verify.php", "/folder/verify.php"];

/// Returns the `fastcgi_pass` of a location that runs scripts stored among static files.
pub(crate) fn php_pass<'d>(place: &Place<'d>) -> Option<&'d NginxDirective> {
    let scope = &place.scope;
    let pass = scope.own_one("fastcgi_pass")?;
    let is_php = match &place.matcher {
        Matcher::Regex(regex, _) => regex.contains("php"),
        Matcher::Exact(path) => path.ends_with(".php"),
        Matcher::Prefix(..) | Matcher::Server => {
            let script = scope.all("fastcgi_param").into_iter().find(|one| one.first() == "SCRIPT_FILENAME");
            let is_own = script.is_none_or(|one| {
                one.arg(1).contains("$fastcgi_script_name") || one.arg(1) == "$request_filename"
            });
            let has_name = pass.first().contains("php")
                || scope.one("fastcgi_index").is_some_and(|one| one.first().ends_with(".php"));
            is_own && has_name
        }
    };
    is_php.then_some(pass)
}

/// The remark on paths behind a script, which the expression of most sites does not match.
const PATH_INFO: &str = "a script answers for the paths behind it too, as PATH_INFO (`/a.php/b`)";

/// Whether a location runs every script, but does not match paths with PATH_INFO.
fn lacks_path_info(place: &Place<'_>) -> bool {
    runs_all(place) && !place.paths.matches("/verify.php/x")
}

/// Whether a location runs every script, not just some.
pub(crate) fn runs_all(place: &Place<'_>) -> bool {
    SAMPLES.iter().all(|path| place.paths.matches(path))
}

/// A script that handles paths without a file.
pub(crate) struct FrontScript<'d> {
    /// Path of the script.
    pub(crate) script: String,
    /// The directive that names the script.
    pub(crate) named_by: &'d NginxDirective,
    /// Text that follows the script in the directive.
    behind: String,
    /// The named location that runs the script, if there is one.
    runs: Option<&'d NginxDirective>,
}

impl<'d> FrontScript<'d> {
    fn of(text: &str, named_by: &'d NginxDirective) -> Option<Self> {
        let script = front_script(text)?.to_owned();
        let behind = text[script.len()..].to_owned();
        Some(Self { script, named_by, behind, runs: None })
    }
}

impl<'d> Translation<'d> {
    /// Returns the script that handles paths without a file: named by the last argument of `try_files`, by a
    /// named location, or by `if (!-e …)`.
    pub(crate) fn front_of(
        &self,
        place: &Place<'d>,
        around: &ServerLocations<'d>,
    ) -> Option<FrontScript<'d>> {
        let scope = &place.scope;
        let by_if = || {
            let found = scope.own().iter().filter(|one| one.name == "if" && is_of_files(one));
            found.flat_map(|one| one.inner()).find_map(|one| FrontScript::of(one.arg(1), one))
        };
        let Some(tries) = scope.own_one("try_files") else { return by_if() };
        let last = tries.args.last()?;
        if !last.starts_with('@') {
            return FrontScript::of(last, tries).or_else(by_if);
        }
        let location = around.named(last)?;
        let rewrite = location.inner().iter().find(|one| one.name == "rewrite");
        if let Some(front) = rewrite.and_then(|one| FrontScript::of(one.arg(1), one)) {
            self.ledger.translated(location.entry);
            return Some(front);
        }
        let pass = location.inner().iter().find(|one| one.name == "fastcgi_pass")?;
        let inner = scope.with(location.inner());
        let file = inner.all("fastcgi_param").into_iter().find(|one| one.first() == "SCRIPT_FILENAME")?;
        let file = constants(file.arg(1), &inner, 0).replace(['{', '}'], "");
        let root = inner.one("root").map_or("", |one| one.first()).trim_end_matches('/');
        let script = file.strip_prefix("$document_root").or_else(|| file.strip_prefix(root))?;
        let mut front = FrontScript::of(script, pass)?;
        self.ledger.translated(location.entry);
        front.runs = Some(location);
        Some(front)
    }

    /// Adds `php` to a route with `files`, for its front script or for scripts that are index pages.
    pub(crate) fn php_beside(
        &self,
        place: &Place<'d>,
        around: &ServerLocations<'d>,
        front: Option<&FrontScript<'d>>,
        section: &mut TomlSection,
    ) {
        self.php_runs(place, around, front, section);
        if section.get("php").is_none() {
            self.scripts_of_index(place, section);
        }
    }

    /// Removes scripts from `index`: without `php`, their source would be sent.
    fn scripts_of_index(&self, place: &Place<'d>, section: &mut TomlSection) {
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
        let (is_empty, is_less) =
            (names.is_empty() || *names == [TomlItem::text("index.html")], names.len() < count);
        if is_empty && is_less {
            files.retain(|(key, _)| key != "index");
        }
        if is_less && matches!(place.matcher, Matcher::Prefix(..) | Matcher::Server) {
            for one in place.scope.all("index") {
                self.ledger.differs(
                    one.entry,
                    "a script (`index.php`) answers for folders only where `php` stands beside `files`",
                );
            }
        }
    }

    fn php_runs(
        &self,
        place: &Place<'d>,
        around: &ServerLocations<'d>,
        front: Option<&FrontScript<'d>>,
        section: &mut TomlSection,
    ) {
        let script = match front {
            Some(front) => front.script.clone(),
            None => match self.index_script(place) {
                Some(script) => script,
                None => return,
            },
        };
        let (pass, scope) = match front.and_then(|front| front.runs) {
            Some(location) => {
                let scope = place.scope.with(location.inner());
                (location.inner().iter().find(|one| one.name == "fastcgi_pass"), scope)
            }
            None => match around.at(&script) {
                Some(other) => (php_pass(other), other.scope.clone()),
                None => (None, place.scope.clone()),
            },
        };
        let Some(pass) = pass else {
            if let Some(front) = front {
                self.ledger.impossible(
                    front.named_by.entry,
                    format!("`{script}` is answered by another location: give this route its `proxy` or `app` beside `files`"),
                );
            }
            return;
        };
        let root = place.scope.one("root").map(|one| one.first().trim_end_matches('/'));
        let Some(php) = self.php_servers(pass, &scope, front.map(|front| front.script.as_str()), root) else {
            if section.get("files").is_some() {
                section.remove("files");
                unavailable(section);
            }
            return;
        };
        section.set("php", php);
        self.intercepts(scope.one("fastcgi_intercept_errors"), section);
        if let Some(front) = front {
            self.front_reported(front);
        }
        let index = || place.scope.one("index").map(|one| one.entry);
        let entry = front.map(|front| front.named_by.entry).or(place.entry).or_else(index);
        if let (Some(other), Some(entry)) = (around.at(&script), entry)
            && lacks_path_info(other)
        {
            self.ledger.differs(entry, PATH_INFO);
        }
        for one in place.scope.own().iter().filter(|one| one.name == "if" && is_of_files(one)) {
            self.ledger.needless(one.entry, "not needed: what is no file is for the front script");
            one.inner().iter().for_each(|inner| self.ledger.translated(inner.entry));
        }
    }

    fn front_reported(&self, front: &FrontScript<'d>) {
        let behind = front.behind.replace(['{', '}'], "");
        let entry = front.named_by.entry;
        match behind.as_str() {
            "" | "?" | "?$args" | "?$query_string" | "$is_args$args" | "$is_args$query_string" | "?$is_args$args" => {
                self.ledger.translated(entry);
            }
            _ if behind.starts_with("$request_uri") || behind.starts_with("$uri") || behind.starts_with('/') => {
                self.ledger.differs(entry, "PATH_INFO of the front script is empty: REQUEST_URI has the path");
            }
            _ => self.ledger.differs(
                entry,
                format!("the front script gets the request's own query, without `{behind}`: REQUEST_URI has the path"),
            ),
        }
    }

    /// Returns a route that refuses all other scripts if nginx runs only one of them and sends the source of
    /// the others.
    pub(crate) fn other_scripts(
        &self,
        place: &Place<'d>,
        around: &ServerLocations<'d>,
        section: &TomlSection,
    ) -> Option<TomlSection> {
        section.get("php")?;
        let is_own = |other: &&Place<'d>| php_pass(other).is_some();
        if php_pass(place).is_some()
            || SAMPLES.iter().any(|path| {
                around.at(path).is_some_and(|other| {
                    is_own(&other)
                        || other.scope.own_one("return").is_some()
                        || other.scope.own_one("deny").is_some()
                })
            })
        {
            return None;
        }
        let tries = place.scope.own_one("try_files").map(|one| one.entry);
        if let Some(entry) = tries.or(place.entry) {
            self.ledger.differs(entry, "scripts that nginx does not run are 404: nginx sends their source");
        }
        let mut paths = LocationPaths { any: vec![SCRIPTS.to_owned()], ..place.paths.clone() };
        if !LocationPaths::of(place.paths.any.clone()).is_everything() {
            paths.within.push(place.paths.any.clone());
        }
        let mut refusal = paths.route();
        refusal.comment("Scripts of which nginx sends the source, as it runs others alone.");
        refusal.set("respond", TomlItem::Number(404));
        Some(refusal)
    }

    /// Returns the script that is the index page of a location's directory.
    fn index_script(&self, place: &Place<'d>) -> Option<String> {
        let scope = &place.scope;
        let names: Vec<&String> = scope.all("index").into_iter().flat_map(|one| &one.args).collect();
        let name = names.into_iter().find(|name| name.ends_with(".php"))?.trim_start_matches('/');
        match &place.matcher {
            Matcher::Prefix(path, _) => Some(format!("{}/{name}", path.trim_end_matches('/'))),
            Matcher::Exact(path) if path.ends_with('/') => Some(format!("{path}{name}")),
            Matcher::Server => Some(format!("/{name}")),
            _ => None,
        }
    }

    /// Writes the route of a location that runs scripts.
    pub(crate) fn php_location(
        &self,
        pass: &'d NginxDirective,
        place: &Place<'d>,
        section: &mut TomlSection,
    ) {
        let scope = &place.scope;
        let mut files = TomlSection::default();
        self.folder(place, &mut files);
        if files.get("root").is_none() {
            unavailable(section);
            return;
        }
        self.file_settings(scope, &mut files);
        let root = scope.one("root").map(|one| one.first().trim_end_matches('/'));
        let php = self.php_servers(pass, scope, None, root);
        let Some(php) = php else {
            unavailable(section);
            return;
        };
        section.set("files", TomlItem::Table(files.entries));
        section.set("php", php);
        self.intercepts(scope.one("fastcgi_intercept_errors"), section);
        self.cache("fastcgi", scope, section);
        if let Some(one) = scope.own_one("try_files") {
            let refuses = one.args.last().is_some_and(|last| last.starts_with('='));
            match refuses {
                true => self.ledger.needless(one.entry, "not needed: only scripts that exist are run"),
                false => self.ledger.differs(one.entry, "a script that does not exist is 404 here"),
            }
        }
        for one in scope.own().iter().filter(|one| one.name == "if" && file_operator(one).is_some()) {
            if is_of_files(one) {
                self.ledger.needless(one.entry, "not needed: only scripts that exist are run");
                one.inner().iter().for_each(|inner| self.ledger.needless(inner.entry, "see its `if`"));
            }
        }
        self.path_info_reported(place);
    }

    /// Reports that scripts also handle paths with PATH_INFO, which the expression of the location may not
    /// match.
    fn path_info_reported(&self, place: &Place<'d>) {
        if let Some(entry) = place.entry.filter(|_| lacks_path_info(place)) {
            self.ledger.differs(entry, PATH_INFO);
        }
    }

    /// Drops the route of a location that runs scripts if the routes after it run them as well. `routes` has
    /// the routes of each location, in their order.
    pub(crate) fn merge_scripts(&self, places: &[&Place<'d>], routes: &mut [Vec<TomlSection>]) {
        for at in 0..places.len() {
            let place = places[at];
            let [own] = routes[at].as_slice() else { continue };
            if php_pass(place).is_none() || !runs_all(place) {
                continue;
            }
            let Some(servers) = own.get("php").map(without_scripts) else { continue };
            let mut is_covered = false;
            let agrees = places.iter().zip(routes.iter()).skip(at + 1).all(|(other, sections)| {
                if !may_be_script(other) {
                    return true;
                }
                if sections.iter().all(is_refusal) {
                    return true;
                }
                let same = sections.iter().all(|section| {
                    section.get("php").map(without_scripts).as_ref() == Some(&servers)
                        && is_same(own, section)
                });
                is_covered |= same && other.paths.is_everything();
                same
            });
            if !agrees || !is_covered {
                continue;
            }
            let front = places.iter().zip(routes.iter()).skip(at + 1).find_map(|(other, sections)| {
                other.paths.is_everything().then(|| front(sections.last()?.get("php")?))?
            });
            if let (Some(front), Some(entry)) = (front, place.entry) {
                self.ledger.differs(
                    entry,
                    format!("a script that does not exist is for `{front}` here, as all other paths"),
                );
            }
            routes[at].clear();
        }
    }
}

/// Whether a location that follows one for scripts may match paths of scripts.
fn may_be_script(place: &Place<'_>) -> bool {
    match &place.matcher {
        Matcher::Exact(_) => false,
        Matcher::Prefix(..) | Matcher::Server => true,
        Matcher::Regex(regex, _) => {
            let bound = regex.ends_with('$') && !regex.contains('|') || regex.ends_with(")$");
            let found = examples(regex);
            !bound || found.is_empty() || found.iter().any(|(text, ..)| text.contains(".php"))
        }
    }
}

/// Whether a route only refuses requests. Preceding a location that runs scripts, it only reduces the scripts
/// that run.
fn is_refusal(section: &TomlSection) -> bool {
    match section.get("respond") {
        Some(TomlItem::Number(status)) => *status >= 400,
        _ => false,
    }
}

/// Whether two routes are equal except for their paths and the lookup of files.
fn is_same(own: &TomlSection, other: &TomlSection) -> bool {
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
fn without_scripts(php: &TomlItem) -> TomlItem {
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
fn front(php: &TomlItem) -> Option<String> {
    let TomlItem::Table(entries) = php else { return Some("/index.php".to_owned()) };
    let scripts = entries.iter().find(|(key, _)| key == "scripts");
    let Some((_, TomlItem::Table(scripts))) = scripts else { return Some("/index.php".to_owned()) };
    match scripts.iter().find(|(key, _)| key == "front") {
        Some((_, TomlItem::Text(front))) => Some(front.clone()),
        Some(_) => None,
        None => Some("/index.php".to_owned()),
    }
}
