//! State and helpers shared by all parts of the nginx translation.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::scope::{
    Scope, TemplateDestination, format_clamped_duration, parse_bytes, parse_milliseconds, translate_size,
    translate_template,
};
use super::tree::NginxDirective;
use crate::draft::{TomlItem, TomlSection};
use crate::findings::{EntryIndex, ImportLedger};

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
    pub(crate) fn new(ledger: &'d ImportLedger, http: Scope<'d>, folder: PathBuf) -> Self {
        let knows_clients = reads_client_addresses(&http);
        Self {
            ledger,
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

    /// Translates a duration directive, if the scope has it, to a key of a table, clamped to `range`
    /// (milliseconds).
    pub(crate) fn translate_time(
        &self,
        scope: &Scope<'_>,
        name: &str,
        section: &mut TomlSection,
        place: (&str, &str),
        range: (u64, u64),
    ) {
        let Some(one) = scope.effective(name) else { return };
        let Some(ms) = parse_milliseconds(one.first_arg()) else {
            self.ledger.mark_impossible(one.entry, "this is no duration");
            return;
        };
        let (text, is_exact) = format_clamped_duration(ms, range.0, range.1);
        if is_exact {
            self.ledger.mark_translated(one.entry)
        } else {
            self.ledger.mark_different(one.entry, format!("it is {text} here, the nearest that can be set"))
        }
        section.set_in(place.0, place.1, TomlItem::text(text));
    }

    /// Translates the size in a directive to Komainu's notation.
    pub(crate) fn translate_size(&self, directive: &NginxDirective) -> Option<String> {
        let found = translate_size(directive.first_arg());
        match &found {
            Some(_) => self.ledger.mark_translated(directive.entry),
            None => self.ledger.mark_impossible(directive.entry, "this is no size"),
        }
        found
    }

    /// Parses a size and returns bytes; 0 if it is invalid.
    pub(crate) fn parse_bytes_or_zero(text: &str) -> u64 {
        parse_bytes(text).unwrap_or(0)
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
