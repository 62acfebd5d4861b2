//! Files: `root`, `alias`, `index`, `try_files`, `autoindex`.

use super::php::FrontScript;
use super::place::{Place, ServerLocations};
use super::scope::{Scope, TemplateUse, constants};
use super::tree::NginxDirective;
use super::work::{Matcher, Translation, unavailable};
use crate::draft::{TomlItem, TomlSection};

/// What the last word of `try_files` asks for.
pub(crate) enum Last<'d> {
    /// Nothing but the files.
    Files,
    /// A named location, whose action answers what no file does.
    Named(&'d NginxDirective),
}

/// Extensions of a `types` block that are written: longer ones are a copy of the list that every server has.
const TYPES_MAX: usize = 40;

impl<'d> Translation<'d> {
    /// Writes the `files` of a location. `front` is the script for all that is no file.
    pub(crate) fn files(
        &self,
        place: &Place<'d>,
        section: &mut TomlSection,
        around: &ServerLocations<'d>,
        front: Option<&FrontScript<'d>>,
    ) -> Last<'d> {
        let scope = &place.scope;
        let mut files = TomlSection::default();
        match scope.own_one("alias") {
            Some(alias) => self.alias(alias, scope, &place.matcher, &mut files),
            None => self.root(scope, &mut files),
        }
        if files.get("root").is_none() {
            unavailable(section);
            return Last::Files;
        }
        if let Some(rewrite) = files.remove("rewrite") {
            section.set("rewrite", rewrite);
        }
        self.index(scope, &place.matcher, &mut files);
        self.file_settings(scope, &mut files);
        self.media_types(scope, &mut files);
        let last = match scope.own_one("try_files") {
            Some(one) => self.try_files(one, &mut files, around, front),
            None => Last::Files,
        };
        section.set("files", TomlItem::Table(files.entries));
        last
    }

    fn index(&self, scope: &Scope<'_>, matcher: &Matcher, files: &mut TomlSection) {
        let index = scope.all("index");
        let names: Vec<TomlItem> = index
            .iter()
            .flat_map(|one| &one.args)
            .map(|name| name.trim_start_matches('/'))
            .map(TomlItem::text)
            .collect();
        for one in &index {
            match one.args.iter().any(|name| name.contains('$')) {
                true => self.ledger.differs(one.entry, "a name with variables is left out"),
                false => self.ledger.translated(one.entry),
            }
        }
        let is_plain = |item: &TomlItem| !matches!(item, TomlItem::Text(name) if name.contains(['$', '/']));
        let names: Vec<TomlItem> = names.into_iter().filter(is_plain).collect();
        let is_default = names == [TomlItem::text("index.html")];
        let is_file = matches!(matcher, Matcher::Exact(path) if !path.ends_with('/'));
        if !names.is_empty() && !is_default && !is_file {
            files.set("index", TomlItem::List(names));
        }
    }

    pub(crate) fn file_settings(&self, scope: &Scope<'_>, files: &mut TomlSection) {
        if let Some(one) = scope.one("autoindex") {
            if one.first() == "on" {
                files.set("listing", TomlItem::Flag(true));
            }
            self.ledger.translated(one.entry);
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

    pub(crate) fn root(&self, scope: &Scope<'_>, files: &mut TomlSection) {
        match scope.one("root") {
            Some(root) => self.folder_of(root, scope, files),
            // The default of nginx.
            None => files.set_text("root", self.file("html")),
        }
    }

    pub(crate) fn alias(
        &self,
        alias: &NginxDirective,
        scope: &Scope<'_>,
        matcher: &Matcher,
        files: &mut TomlSection,
    ) {
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

    /// `alias /folder/$1`: the folder, and the path below it as `rewrite`.
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

    /// `types` and `default_type`: media types by extension.
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
        files: &mut TomlSection,
        around: &ServerLocations<'d>,
        front: Option<&FrontScript<'d>>,
    ) -> Last<'d> {
        let Some((last, tries)) = one.args.split_last() else { return Last::Files };
        let mut paths: Vec<String> = Vec::new();
        let mut is_exact = true;
        let finds_folders = tries.iter().any(|path| path.ends_with('/') && path.contains('$'));
        for path in tries {
            let path = path.replace("${uri}", "$uri").replace("$document_uri", "$uri");
            // A folder is found with its file's path.
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
            match front {
                // A folder is no file: what comes last answers for it.
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
        match last.as_str() {
            "=404" => Last::Files,
            code if code.starts_with('=') => {
                self.ledger.differs(one.entry, format!("the status is 404, not {}", &code[1..]));
                Last::Files
            }
            name if name.starts_with('@') => match around.named(name) {
                Some(location) => Last::Named(location),
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
                // The path of a page is below the root, without what `alias` removes.
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
