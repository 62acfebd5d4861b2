//! Folders of locations: `root` and `alias`.

use std::path::Path;

use super::location_place::LocationPlace;
use super::scope::{Scope, TemplateDestination, replace_constants};
use super::translation::{LocationMatcher, Translation};
use super::tree::NginxDirective;
use crate::draft::{TomlItem, TomlSection};

impl<'d> Translation<'d> {
    pub(super) fn write_own_folder(
        &self,
        directive: &NginxDirective,
        scope: &Scope<'_>,
        files: &mut TomlSection,
    ) {
        let folder = replace_constants(directive.first_arg(), scope, 0);
        self.count_taken(directive);
        if folder.contains('$') {
            self.ledger.mark_impossible(
                directive.entry,
                "the folder depends on the request: write a site or route for each value",
            )
        } else {
            files.set_text("root", self.resolve_path(&folder));
        }
    }

    /// Writes the root directory of a place: that of the nearest `root` or `alias`, which may belong to an
    /// enclosing location.
    pub(crate) fn write_folder(&self, place: &LocationPlace<'d>, files: &mut TomlSection) {
        match place.find_folder() {
            Some((alias, matcher)) if alias.name == "alias" => {
                let is_own = place.scope.innermost().iter().any(|one| one.entry == alias.entry);
                if let (false, LocationMatcher::Regex(..)) = (is_own, &matcher) {
                    let reason = "what the expression around it found is not known in this location";
                    self.ledger.mark_impossible(alias.entry, reason);
                    return;
                }
                self.translate_alias(alias, &place.scope, &matcher, files);
            }
            Some((root, _)) => self.write_own_folder(root, &place.scope, files),
            // nginx's default.
            None => files.set_text("root", self.resolve_path("html")),
        }
    }

    pub(super) fn translate_alias(
        &self,
        alias: &NginxDirective,
        scope: &Scope<'_>,
        matcher: &LocationMatcher,
        files: &mut TomlSection,
    ) {
        self.count_taken(alias);
        let folder = replace_constants(alias.first_arg(), scope, 0);
        match matcher {
            LocationMatcher::Prefix(path, _) if !folder.contains('$') && self.is_file_alias(path, &folder) => {
                let file = self.resolve_path(&folder);
                let (root, _) = file.rsplit_once('/').unwrap_or_default();
                let (around, _) = path.rsplit_once('/').unwrap_or_default();
                if name_of(path) != name_of(&file) {
                    let reason = "it is a file, and the location has another name: its requests are answered 501; `location = PATH` would have the file alone";
                    self.ledger.mark_impossible(alias.entry, reason);
                    return;
                }
                files.set_text("root", if root.is_empty() { "/" } else { root });
                if !around.is_empty() {
                    files.set_text("strip_prefix", around);
                }
            }
            LocationMatcher::Prefix(path, _) if !folder.contains('$') => {
                self.write_own_folder(alias, scope, files);
                let strip = path.trim_end_matches('/');
                if !strip.is_empty() {
                    files.set_text("strip_prefix", strip);
                }
                if path.ends_with('/') != alias.first_arg().ends_with('/') {
                    self.ledger.mark_different(alias.entry, "either the location or `alias` ends with `/`: whole segments of the path are replaced");
                }
            }
            LocationMatcher::Exact(_) if !folder.contains('$') => {
                let path = self.resolve_path(&folder);
                let (root, name) = path.rsplit_once('/').unwrap_or(("", path.as_str()));
                files.set_text("root", if root.is_empty() { "/" } else { root });
                files.set("try", TomlItem::List(vec![TomlItem::Text(format!("/{name}"))]));
            }
            LocationMatcher::Regex(..) if self.translate_alias_with_groups(alias, scope, files) => {}
            _ => self.ledger.mark_impossible(
                alias.entry,
                "the file depends on what the expression found: write a route with `strip_prefix` for each folder",
            ),
        }
    }

    /// Whether `alias` of a prefix is a file, as far as that is known: a folder of another machine may have any name.
    pub(super) fn is_file_alias(&self, path: &str, alias: &str) -> bool {
        let file = self.resolve_path(alias);
        let on_disk = Path::new(&file);
        let has_ending = on_disk.extension().is_some() && !on_disk.is_dir();
        !path.ends_with('/')
            && !alias.ends_with('/')
            && (on_disk.is_file() || name_of(path) == name_of(&file) && has_ending)
    }

    /// Translates `alias /folder/$1` to a root directory and a `rewrite` of the path below it.
    pub(super) fn translate_alias_with_groups(
        &self,
        alias: &NginxDirective,
        scope: &Scope<'_>,
        files: &mut TomlSection,
    ) -> bool {
        let text = alias.first_arg();
        let Some(at) = text.find('$').and_then(|at| text[..at].rfind('/')).filter(|at| *at > 0) else {
            return false;
        };
        let Some(to) = self.translate_template(alias, &text[at..], scope, TemplateDestination::Target) else {
            return false;
        };
        files.set_text("root", self.resolve_path(&text[..at]));
        files.set_text("rewrite", to);
        true
    }
}

/// The last segment of a path.
fn name_of(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}
