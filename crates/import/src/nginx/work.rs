//! State and helpers shared by all parts of the nginx translation.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::scope::{Scope, TemplateUse, bytes, duration_within, milliseconds, size, template};
use super::tree::NginxDirective;
use crate::draft::{TomlItem, TomlSection};
use crate::findings::{EntryNumber, ImportLedger};

/// State of a translation.
pub(crate) struct Translation<'d> {
    pub(crate) ledger: &'d ImportLedger,
    pub(crate) http: Scope<'d>,
    /// Directory of nginx's configuration: relative file names are resolved against it.
    pub(crate) folder: PathBuf,
    /// Tables of Komainu's configuration by path: groups of upstream servers, maps and the cache store.
    pub(crate) tables: RefCell<Vec<(String, TomlSection)>>,
    /// Routes of the servers translated so far. Sites of one server at several addresses share them: a second
    /// translation would differ, because it depends on what was reported before.
    pub(crate) routes: RefCell<HashMap<EntryNumber, Vec<TomlSection>>>,
    /// Whether Komainu determines the client address as nginx does. False if proxies send it in a field that
    /// Komainu does not read.
    pub(crate) knows_clients: bool,
}

/// Reason why a condition on client addresses is closed if proxies send them in a field that Komainu does not
/// read.
pub(crate) const UNKNOWN_CLIENTS: &str =
    "`set_real_ip_from` is not translated, so that all clients of its proxies have the address of the proxy";

impl<'d> Translation<'d> {
    pub(crate) fn new(ledger: &'d ImportLedger, http: Scope<'d>, folder: PathBuf) -> Self {
        let knows_clients = reads_clients(&http);
        Self { ledger, http, folder, tables: RefCell::default(), routes: RefCell::default(), knows_clients }
    }
}

/// Whether proxies send client addresses only in `X-Forwarded-For` or `Forwarded`, but not both, or by the
/// PROXY protocol.
fn reads_clients(http: &Scope<'_>) -> bool {
    let (mut has_proxies, mut fields) = (false, Vec::new());
    let mut note = |one: &NginxDirective| match one.name.as_str() {
        "set_real_ip_from" => has_proxies = true,
        "real_ip_header" => fields.push(one.first().to_ascii_lowercase()),
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
pub(crate) enum Matcher {
    /// `location = /path`.
    Exact(String),
    /// `location /path`; true for `^~`.
    Prefix(String, bool),
    /// `location ~ expression`; true for `~*`.
    Regex(String, bool),
    /// The server itself, for paths without a location.
    Server,
}

impl Matcher {
    /// The location in nginx's syntax.
    pub(crate) fn shown(&self) -> String {
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
    pub(crate) fn replaced(&self) -> Option<&str> {
        match self {
            Self::Exact(path) | Self::Prefix(path, _) => Some(path),
            Self::Server => Some("/"),
            Self::Regex(..) => None,
        }
    }
}

/// Returns the `redirect` of a route.
pub(crate) fn redirect(to: &str, status: u64) -> TomlItem {
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
pub(crate) fn unavailable(section: &mut TomlSection) {
    section.set("respond", TomlItem::Number(501));
}

impl<'d> Translation<'d> {
    /// Adds a comment to `section` for each directive of a block that requires manual work.
    pub(crate) fn open_ends(&self, block: &[NginxDirective], section: &mut TomlSection) {
        for one in block.iter().filter(|one| !matches!(one.name.as_str(), "location" | "server")) {
            if let Some(comment) = self.ledger.open_end(one.entry) {
                section.comment(comment);
            }
        }
    }

    /// Resolves a file or directory name against the directory of nginx's configuration.
    pub(crate) fn file(&self, name: &str) -> String {
        let name = name.strip_suffix('/').filter(|rest| !rest.is_empty()).unwrap_or(name);
        match Path::new(name).is_absolute() {
            true => name.to_owned(),
            false => self.folder.join(name).display().to_string(),
        }
    }

    /// Translates a text with variables; reports the directive if it uses one without an equivalent.
    pub(crate) fn template(
        &self,
        one: &NginxDirective,
        text: &str,
        scope: &Scope<'_>,
        used: TemplateUse,
    ) -> Option<String> {
        let is_path =
            |name: &str| text.contains(&format!("${name}")) || text.contains(&format!("${{{name}}}"));
        match template(text, scope, used, &|name| self.map_variable(name)) {
            Ok(text) => {
                if is_path("uri") || is_path("document_uri") {
                    self.ledger.differs(one.entry, "`$uri` is percent-encoded as the client has sent it");
                }
                Some(text)
            }
            Err(reason) => {
                let what = "a `map`, `geo`, `set` of several values or module made it: let the application do it, or write the value";
                self.ledger.impossible(one.entry, format!("{reason}: {what}"));
                None
            }
        }
    }

    /// Translates a duration directive, if the scope has it, to a key of a table, clamped to `range`
    /// (milliseconds).
    pub(crate) fn time(
        &self,
        scope: &Scope<'_>,
        name: &str,
        section: &mut TomlSection,
        place: (&str, &str),
        range: (u64, u64),
    ) {
        let Some(one) = scope.one(name) else { return };
        let Some(ms) = milliseconds(one.first()) else {
            self.ledger.impossible(one.entry, "this is no duration");
            return;
        };
        let (text, is_exact) = duration_within(ms, range.0, range.1);
        match is_exact {
            true => self.ledger.translated(one.entry),
            false => {
                self.ledger.differs(one.entry, format!("it is {text} here, the nearest that can be set"))
            }
        }
        section.set_in(place.0, place.1, TomlItem::text(text));
    }

    /// Translates the size in a directive to Komainu's notation.
    pub(crate) fn size(&self, one: &NginxDirective) -> Option<String> {
        let found = size(one.first());
        match &found {
            Some(_) => self.ledger.translated(one.entry),
            None => self.ledger.impossible(one.entry, "this is no size"),
        }
        found
    }

    /// Parses a size and returns bytes; 0 if it is invalid.
    pub(crate) fn bytes(text: &str) -> u64 {
        bytes(text).unwrap_or(0)
    }

    /// Changes the table at `path`, which is created if necessary.
    pub(crate) fn table(&self, path: &str, change: impl FnOnce(&mut TomlSection)) {
        let mut tables = self.tables.borrow_mut();
        if !tables.iter().any(|(name, _)| name == path) {
            tables.push((path.to_owned(), TomlSection::default()));
        }
        if let Some((_, section)) = tables.iter_mut().find(|(name, _)| name == path) {
            change(section);
        }
    }
}
