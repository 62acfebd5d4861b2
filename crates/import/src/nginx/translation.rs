//! State and helpers shared by all parts of the nginx translation.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

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
    /// Whether Komainu determines the client address as nginx does. False if proxies send it in a field that
    /// Komainu does not read.
    pub(crate) knows_client_addresses: bool,
}

/// Reason why a condition on client addresses is closed if proxies send them in a field that Komainu does not
/// read.
pub(crate) const UNKNOWN_CLIENTS_REMARK: &str =
    "`set_real_ip_from` is not translated, so that all clients of its proxies have the address of the proxy";

impl<'d> Translation<'d> {
    pub(crate) fn new(
        (ledger, directives): (&'d ImportLedger, &'static [DirectiveRow]),
        http: Scope<'d>,
        folder: PathBuf,
    ) -> Self {
        let knows_clients = reads_client_addresses(&http);
        Self {
            ledger,
            directives,
            http,
            folder,
            tables: RefCell::default(),
            cached_routes: RefCell::default(),
            knows_client_addresses: knows_clients,
        }
    }
}

/// Whether proxies send client addresses only in `X-Forwarded-For` or `Forwarded`, but not both, or by the
/// PROXY protocol.
fn reads_client_addresses(http: &Scope<'_>) -> bool {
    let mut has_proxies = false;
    let mut fields = Vec::new();
    let mut note = |one: &NginxDirective| match one.name.as_str() {
        "set_real_ip_from" => has_proxies = true,
        "real_ip_header" => fields.push(one.first_arg().to_ascii_lowercase()),
        _ => {}
    };
    let outermost = http.levels.last().into_iter();
    outermost.for_each(|level| super::tree::visit(level, &mut |one| note(one)));
    let is_known = fields.iter().all(|field| is_client_field(field));
    let is_mixed =
        ["forwarded", "x-forwarded-for"].iter().all(|name| fields.iter().any(|field| field == name));
    !has_proxies || is_known && !is_mixed && !fields.is_empty()
}

/// Whether Komainu reads client addresses from this field, given in lower case.
pub(crate) fn is_client_field(field: &str) -> bool {
    matches!(field, "x-forwarded-for" | "forwarded" | "proxy_protocol")
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
