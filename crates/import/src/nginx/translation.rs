//! State and helpers shared by all parts of the nginx translation.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::client_addresses::ClientAddresses;
use super::directive::{Arguments, Contexts, Part};
use super::scope::{
    Scope, TemplateDestination, format_clamped_duration, parse_milliseconds, translate_template,
};
use super::tree::NginxDirective;
use crate::draft::{TomlItem, TomlSection};
use crate::findings::{EntryIndex, ImportLedger, Outcome};

/// A directive of nginx, and what becomes of it.
#[derive(Clone, Copy)]
pub(crate) struct DirectiveRow {
    pub(crate) name: &'static str,
    pub(crate) contexts: Contexts,
    pub(crate) arguments: Arguments,
    pub(crate) treatment: Treatment,
    /// Whether a route may be served without the directive if it cannot be translated. All others may restrict
    /// access, so that the routes to which they apply are closed.
    pub(crate) is_harmless: bool,
    /// Whether several directives of one block apply together; otherwise the last one does.
    pub(crate) is_repeatable: bool,
    /// First argument with which the directive changes nothing, if it cannot be translated otherwise.
    pub(crate) neutral: Option<&'static str>,
    /// Remark if no route that was translated uses the directive.
    pub(crate) unused: Option<Remark>,
}

/// How a directive is translated.
#[derive(Clone, Copy)]
pub(crate) enum Treatment {
    /// Translated by itself: `Translation::apply` calls the function for each directive that applies in a place, in the
    /// order of the table.
    Each(Part, TranslateFn),
    /// Without an effect where a part applies; `other_servers` says why.
    Noted(Part),
    /// With another effect where a part applies; `other_servers` says which.
    Different(Part),
    /// A block, whose directives are translated one by one.
    Block,
    /// Together with other directives: the function of the part takes it (`Translation::take`).
    Together(Part),
    /// Has no translation; `other_servers` says why, and what to write.
    Untranslated,
}

/// Remark on a directive that no translated route uses.
#[derive(Clone, Copy)]
pub(crate) enum Remark {
    /// Komainu does the same by itself.
    NotNeeded(&'static str),
    /// The reason names the difference.
    Differs(&'static str),
}

/// Translates one directive to a table of the configuration.
pub(crate) type TranslateFn = fn(&AppliedDirective<'_>, &mut TomlSection) -> Outcome;

/// A directive that applies in a place.
pub(crate) struct AppliedDirective<'a> {
    pub(crate) translation: &'a Translation<'a>,
    pub(crate) scope: &'a Scope<'a>,
    pub(crate) directive: &'a NginxDirective,
    /// Number of directives of the same name that were translated before it.
    pub(crate) at: usize,
}

impl AppliedDirective<'_> {
    /// Returns the first argument, or an empty text.
    pub(crate) fn first_arg(&self) -> &str {
        self.directive.first_arg()
    }

    /// Whether the first argument is `on`.
    pub(crate) fn is_on(&self) -> bool {
        self.first_arg() == "on"
    }

    /// Returns the first argument as the name of a file or folder.
    pub(crate) fn path(&self) -> TomlItem {
        TomlItem::Text(self.translation.resolve_path(self.first_arg()))
    }

    /// Writes the duration in the first argument to a key of a table, clamped to `min` and `max` (milliseconds).
    pub(crate) fn write_time(
        &self,
        section: &mut TomlSection,
        (table, key): (&str, &str),
        (min, max): (u64, u64),
    ) -> Outcome {
        let Some(ms) = parse_milliseconds(self.first_arg()) else {
            return Outcome::not_possible("this is not a duration");
        };
        let (text, is_exact) = format_clamped_duration(ms, min, max);
        let outcome = if is_exact {
            Outcome::TRANSLATED
        } else {
            Outcome::differs(format!("it is {text} here, the nearest that can be set"))
        };
        section.set_in(table, key, TomlItem::Text(text));
        outcome
    }
}

/// State of a translation.
pub(crate) struct Translation<'d> {
    pub(crate) ledger: &'d ImportLedger,
    /// The table of directives.
    pub(crate) directives: &'static [DirectiveRow],
    pub(crate) http: Scope<'d>,
    /// Directory of nginx's configuration: relative file names are resolved against it.
    pub(crate) folder: PathBuf,
    /// Tables of Komainu's configuration by path: groups of upstream servers, maps and the cache store.
    pub(crate) tables: RefCell<Vec<(String, TomlSection)>>,
    /// Routes of the servers translated so far. Sites of one server at several addresses share them: a second
    /// translation would differ, because it depends on what was reported before.
    pub(crate) cached_routes: RefCell<HashMap<EntryIndex, Vec<TomlSection>>>,
    /// Source of client addresses.
    pub(crate) client_addresses: ClientAddresses,
}

impl<'d> Translation<'d> {
    pub(crate) fn new(
        (ledger, directives): (&'d ImportLedger, &'static [DirectiveRow]),
        http: Scope<'d>,
        folder: PathBuf,
    ) -> Self {
        let client_addresses = ClientAddresses::of(&http);
        Self {
            ledger,
            directives,
            http,
            folder,
            tables: RefCell::default(),
            cached_routes: RefCell::default(),
            client_addresses,
        }
    }
}

/// Selection of a location.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum LocationMatcher {
    /// `location = /path`.
    Exact(String),
    /// `location /path`; true for `^~`.
    Prefix(String, bool),
    /// `location ~ expression`; true for `~*`.
    Regex(String, bool),
    /// The server itself, for paths without a location.
    Server,
}

impl LocationMatcher {
    /// The location in nginx's syntax.
    pub(crate) fn to_nginx_syntax(&self) -> String {
        match self {
            Self::Exact(path) => format!("location = {path}"),
            Self::Prefix(path, false) => format!("location {path}"),
            Self::Prefix(path, true) => format!("location ^~ {path}"),
            Self::Regex(regex, false) => format!("location ~ {regex}"),
            Self::Regex(regex, true) => format!("location ~* {regex}"),
            Self::Server => "server".to_owned(),
        }
    }

    /// Returns the part of the path that `alias` and `proxy_pass` replace.
    pub(crate) fn replaced_part(&self) -> Option<&str> {
        match self {
            Self::Exact(path) | Self::Prefix(path, _) => Some(path),
            Self::Server => Some("/"),
            Self::Regex(..) => None,
        }
    }
}

/// Returns the `redirect` of a route.
pub(crate) fn redirect_item(to: &str, status: u64) -> TomlItem {
    match status {
        302 => TomlItem::text(to),
        _ => TomlItem::Table(vec![
            ("to".to_owned(), TomlItem::text(to)),
            ("status".to_owned(), TomlItem::Number(status)),
        ]),
    }
}

/// Whether a text with variables is certain to be a valid redirect target.
pub(crate) fn is_target(to: &str) -> bool {
    ["/", "http://", "https://", "$scheme://", "$path", "$uri"].iter().any(|start| to.starts_with(start))
}

/// Makes a route answer 501 because Komainu has no equivalent of the location.
pub(crate) fn make_unavailable(section: &mut TomlSection) {
    section.set("respond", TomlItem::Number(501));
}

impl<'d> Translation<'d> {
    /// Returns the reason why a route cannot ask for a variable's value: it may be another one than in nginx.
    pub(crate) fn unknown_source_reason(&self, name: &str) -> Option<&'static str> {
        // nginx takes these from the field with hyphens alone.
        const OWN: [&str; 2] = ["user_agent", "x_forwarded_for"];
        let field = name.strip_prefix("http_").filter(|field| field.contains('_') && !OWN.contains(field));
        if name == "remote_addr" {
            return self.client_addresses.unknown_reason();
        }
        let mut has_underscores = false;
        if let Some(level) = self.http.levels.last().filter(|_| field.is_some()) {
            super::tree::visit(level, &mut |one| {
                has_underscores |= one.name == "underscores_in_headers" && one.first_arg() == "on";
            });
        }
        has_underscores.then_some(
            "with `underscores_in_headers`, it is the value of fields with `_` in the name too: a route asks for the field with hyphens alone",
        )
    }

    /// Adds a comment to `section` for each directive of a block that requires manual work.
    pub(crate) fn add_manual_comments(&self, block: &[NginxDirective], section: &mut TomlSection) {
        for one in block.iter().filter(|one| !matches!(one.name.as_str(), "location" | "server")) {
            if let Some(comment) = self.ledger.manual_comment(one.entry) {
                section.comment(comment);
            }
        }
    }

    /// Resolves a file or directory name against the directory of nginx's configuration.
    pub(crate) fn resolve_path(&self, name: &str) -> String {
        let name = name.strip_suffix('/').filter(|rest| !rest.is_empty()).unwrap_or(name);
        if Path::new(name).is_absolute() {
            name.to_owned()
        } else {
            self.folder.join(name).display().to_string()
        }
    }

    /// Translates a text with variables; reports the directive if it uses one without an equivalent.
    pub(crate) fn translate_template(
        &self,
        directive: &NginxDirective,
        text: &str,
        scope: &Scope<'_>,
        used: TemplateDestination,
    ) -> Option<String> {
        let is_path =
            |name: &str| text.contains(&format!("${name}")) || text.contains(&format!("${{{name}}}"));
        match translate_template(text, scope, used, &|name| self.use_map(name)) {
            Ok(text) => {
                if is_path("uri") || is_path("document_uri") {
                    self.ledger.mark_different(
                        directive.entry,
                        "`$uri` is percent-encoded as the client has sent it",
                    );
                }
                Some(text)
            }
            Err(reason) => {
                let what = "a `map`, `geo`, `set` of several values or module made it: let the application do it, or write the value";
                self.ledger.mark_impossible(directive.entry, format!("{reason}: {what}"));
                None
            }
        }
    }

    /// Changes the table at `path`, which is created if necessary.
    pub(crate) fn change_table(&self, path: &str, change: impl FnOnce(&mut TomlSection)) {
        let mut tables = self.tables.borrow_mut();
        if !tables.iter().any(|(name, _)| name == path) {
            tables.push((path.to_owned(), TomlSection::default()));
        }
        if let Some((_, section)) = tables.iter_mut().find(|(name, _)| name == path) {
            change(section);
        }
    }
}
