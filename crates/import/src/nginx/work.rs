//! What all parts of a translation share.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::scope::{Scope, TemplateUse, bytes, duration_within, milliseconds, size, template};
use super::tree::NginxDirective;
use crate::draft::{TomlItem, TomlSection};
use crate::findings::{EntryNumber, ImportLedger};

/// The state of a translation.
pub(crate) struct Translation<'d> {
    pub(crate) ledger: &'d ImportLedger,
    pub(crate) http: Scope<'d>,
    /// The folder that nginx's configuration has there: names of files are relative to it.
    pub(crate) folder: PathBuf,
    /// Tables of the file, by their path: groups of upstream servers and the store of the cache.
    pub(crate) tables: RefCell<Vec<(String, TomlSection)>>,
    /// The routes of each server so far. Sites at several addresses have the same ones: what is reported of a directive counts where others
    /// lead to it, so a second translation would find less.
    pub(crate) routes: RefCell<HashMap<EntryNumber, Vec<TomlSection>>>,
    /// Whether the address of a client is the one that nginx takes: proxies may name it in a field that is not read here.
    pub(crate) knows_clients: bool,
}

/// Why a condition for addresses is closed where proxies name clients in a field that is not read here.
pub(crate) const UNKNOWN_CLIENTS: &str =
    "`set_real_ip_from` is not translated, so that all clients of its proxies have the address of the proxy";

impl<'d> Translation<'d> {
    pub(crate) fn new(ledger: &'d ImportLedger, http: Scope<'d>, folder: PathBuf) -> Self {
        let knows_clients = reads_clients(&http);
        Self { ledger, http, folder, tables: RefCell::default(), routes: RefCell::default(), knows_clients }
    }
}

/// Whether no proxy names clients in another field than X-Forwarded-For or Forwarded, or in the PROXY protocol.
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

/// Whether the address of a client is read from a field, by its name in lower case.
pub(crate) fn is_client_field(field: &str) -> bool {
    matches!(field, "x-forwarded-for" | "forwarded" | "proxy_protocol")
}

/// How a location is chosen.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Matcher {
    /// `location = /path`.
    Exact(String),
    /// `location /path`; true for `^~`.
    Prefix(String, bool),
    /// `location ~ expression`; true for `~*`.
    Regex(String, bool),
    /// What no location has: the server itself.
    Server,
}

impl Matcher {
    /// The location as nginx has it.
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

    /// The part of the path that `alias` and `proxy_pass` replace.
    pub(crate) fn replaced(&self) -> Option<&str> {
        match self {
            Self::Exact(path) | Self::Prefix(path, _) => Some(path),
            Self::Server => Some("/"),
            Self::Regex(..) => None,
        }
    }
}

/// The action of a redirect.
pub(crate) fn redirect(to: &str, status: u64) -> TomlItem {
    match status {
        302 => TomlItem::text(to),
        _ => TomlItem::Table(vec![
            ("to".to_owned(), TomlItem::text(to)),
            ("status".to_owned(), TomlItem::Number(status)),
        ]),
    }
}

/// Whether a text with variables is the target of a redirect for certain.
pub(crate) fn is_target(to: &str) -> bool {
    ["/", "http://", "https://", "$scheme://", "$path", "$uri"].iter().any(|start| to.starts_with(start))
}

/// What the route in a file's place answers where nothing here does what the location did.
pub(crate) fn unavailable(section: &mut TomlSection) {
    section.set("respond", TomlItem::Number(501));
}

impl<'d> Translation<'d> {
    /// Names the directives of a block that need a human, above what was written for the block.
    pub(crate) fn open_ends(&self, block: &[NginxDirective], section: &mut TomlSection) {
        for one in block.iter().filter(|one| !matches!(one.name.as_str(), "location" | "server")) {
            if let Some(comment) = self.ledger.open_end(one.entry) {
                section.comment(comment);
            }
        }
    }

    /// A file or folder: relative names are relative to nginx's configuration.
    pub(crate) fn file(&self, name: &str) -> String {
        let name = name.strip_suffix('/').filter(|rest| !rest.is_empty()).unwrap_or(name);
        match Path::new(name).is_absolute() {
            true => name.to_owned(),
            false => self.folder.join(name).display().to_string(),
        }
    }

    /// A text with variables; reports the directive where it has one that is not there.
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

    /// Sets a duration within a table, where the scope has the directive.
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

    /// The size that a directive has, in the text that Komainu reads.
    pub(crate) fn size(&self, one: &NginxDirective) -> Option<String> {
        let found = size(one.first());
        match &found {
            Some(_) => self.ledger.translated(one.entry),
            None => self.ledger.impossible(one.entry, "this is no size"),
        }
        found
    }

    /// Bytes of a size; 0 where it is none.
    pub(crate) fn bytes(text: &str) -> u64 {
        bytes(text).unwrap_or(0)
    }

    /// Changes a table of the file.
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
