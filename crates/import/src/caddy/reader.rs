//! State of the Caddy importer: what handlers have set for those that follow, and what matchers refer to.

use std::cell::Cell;

use super::changed_path::ChangedPath;
use super::scripts::CaddyScripts;
use super::templates::translate_template;
use crate::data::DataNode;
use crate::draft::{TomlItem, TomlSection};
use crate::findings::{ImportLedger, Untranslatable};
use shapes::pattern::PathPattern;

/// Response header fields that apply only to requests that meet conditions.
#[derive(Debug, Clone)]
pub(super) struct FieldVariant {
    pub(super) conditions: TomlSection,
    pub(super) fields: TomlItem,
}

/// Settings of a route made by preceding handlers.
#[derive(Debug, Clone, Default)]
pub(super) struct CaddySettings {
    pub(super) section: TomlSection,
    pub(super) root: Option<String>,
    pub(super) strip_prefix: Option<String>,
    pub(super) try_files: Vec<String>,
    /// Whether paths without a file are 404, whatever follows.
    pub(super) needs_file: bool,
    /// Whether a path that is tried ends in a slash, as those of folders.
    pub(super) tries_folders: bool,
    /// Index and front scripts of a PHP site.
    pub(super) scripts: Option<CaddyScripts>,
    /// The `php` of a route, which runs the scripts.
    pub(super) php: Option<TomlItem>,
    /// Changes of request header fields.
    pub(super) request: TomlSection,
    /// Response header fields that apply only to some requests.
    pub(super) variants: Vec<FieldVariant>,
    /// Relation of the path that the next matchers look at to the client's.
    pub(super) path: ChangedPath,
    /// Whether a rewrite changed the query.
    pub(super) has_new_query: bool,
    /// Reason why the path that the next handlers see is not known.
    pub(super) unknown_path: Option<String>,
    /// Name of the `path_regexp` in the conditions.
    pub(super) regex: Option<String>,
}

impl CaddySettings {
    /// Records the name of the path expression in a set of matchers that was translated to `conditions`.
    pub(super) fn record_regex_name(&mut self, set: Option<&DataNode>, conditions: &TomlSection) {
        match set.and_then(|set| set.get("path_regexp")) {
            Some(regex) => {
                self.regex = Some(regex.get("name").and_then(DataNode::text).unwrap_or("").to_owned());
            }
            None if conditions.get("path").is_some() => self.regex = None,
            None => {}
        }
    }

    /// Removes the file that is sent where others are missing: its path would not meet the conditions of a route on the
    /// path.
    pub(super) fn forget_fallback(&mut self) {
        if let ChangedPath::Tried(others) = &self.path
            && !others.is_empty()
        {
            self.try_files.retain(|path| path.contains('$'));
            self.path = ChangedPath::Same;
        }
    }

    /// Checks that a matcher looks at what the client sent: earlier handlers may have changed the query or
    /// header fields.
    ///
    /// # Errors
    /// Conditions of routes would look at other values.
    pub(super) fn check_unchanged(&self, key: &str, value: &DataNode) -> Result<(), Untranslatable> {
        // Behind them, only paths of files are left.
        if matches!(key, "path" | "path_regexp") && self.scripts.is_some() && self.php.is_none() {
            return Err("a matcher looks at the path of a script; a route, at the path of the client".into());
        }
        if key == "query" && self.has_new_query {
            return Err(
                "a matcher looks at the query after it was changed; a route, at that of the client".into()
            );
        }
        let names: Vec<&str> = match key {
            "host" => vec!["host"],
            "header" | "header_regexp" => value.entries().iter().map(|(name, _)| name.as_str()).collect(),
            _ => return Ok(()),
        };
        let is_changed = |name: &str| self.request.entries.iter().any(|(_, item)| names_field(item, name));
        if names.into_iter().any(is_changed) {
            return Err(
                "a matcher looks at a header field after it was changed; a route, at that of the client"
                    .into(),
            );
        }
        Ok(())
    }

    /// Translates the placeholders in a text to variables, including groups of the path expression. Returns
    /// `None` if one has no equivalent.
    pub(super) fn translate_template(&self, text: &str) -> Option<String> {
        const START: &str = "{http.regexp.";
        if !text.contains(START) {
            return translate_template(text);
        }
        let Some(TomlItem::Text(path)) = self.section.get("path") else { return None };
        let groups = PathPattern::parse(path).ok()?.groups();
        let name = format!("{}.", self.regex.as_deref()?);
        // The text between groups may contain other placeholders.
        let mut pieces = text.split(START);
        let mut out = translate_template(pieces.next()?)?;
        for piece in pieces {
            let (group, rest) = piece.split_once('}')?;
            let group = group.strip_prefix(&name).unwrap_or(group);
            if !groups.iter().any(|known| known == group) {
                return None;
            }
            out.push_str(&format!("${{{group}}}"));
            out.push_str(&translate_template(rest)?);
        }
        Some(out)
    }
}

/// Whether changes of header fields include a field; a `*` in a name that is removed stands for any text.
fn names_field(changes: &TomlItem, name: &str) -> bool {
    match changes {
        TomlItem::Table(places) => places.iter().any(|(_, place)| match place {
            TomlItem::Table(fields) => fields.iter().any(|(field, _)| field.eq_ignore_ascii_case(name)),
            TomlItem::List(removed) => removed
                .iter()
                .filter_map(TomlItem::as_text)
                .any(|field| field.contains('*') || field.eq_ignore_ascii_case(name)),
            _ => false,
        }),
        _ => false,
    }
}

/// Addresses that the matchers `remote_ip` and `client_ip` of a server refer to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ClientAddress {
    /// Both refer to the address of the connection.
    #[default]
    Connection,
    /// `client_ip` refers to the address named by trusted proxies, like `client` of Komainu, which has no
    /// condition for the address of the connection.
    FromTrustedProxies,
    /// `client_ip` refers to the first address that a trusted proxy passes on, which any client can send: Komainu has no
    /// condition for it, nor for the address of the connection.
    FirstForwarded,
    /// `client_ip` refers to an address that Komainu cannot determine.
    Unknown,
}

impl ClientAddress {
    /// Returns the reason why a route cannot express a matcher, if there is one.
    pub(super) fn unsupported_reason(self, key: &str) -> Option<&'static str> {
        match (self, key) {
            (Self::FromTrustedProxies | Self::FirstForwarded, "remote_ip") => {
                Some("`remote_ip` asks for the address of the proxy; `client` is the one that it names")
            }
            (Self::FirstForwarded, "client_ip") => Some(
                "`client_ip` asks for the first address of X-Forwarded-For, unless `trusted_proxies_strict` is set",
            ),
            (Self::Unknown, "client_ip") => {
                Some("`client_ip` asks for what proxies say that are not trusted here")
            }
            _ => None,
        }
    }
}

/// Reader of the routes of a configuration.
pub(super) struct CaddyReader<'a> {
    pub(super) ledger: &'a ImportLedger,
    /// Whether the route whose conditions are being read uses groups of an expression.
    pub(super) uses_groups: Cell<bool>,
    /// Addresses that the matchers of the server being read refer to.
    pub(super) client_address: Cell<ClientAddress>,
}

impl DataNode {
    /// Marks all values within this one as not possible, regardless of other verdicts.
    pub(super) fn mark_all_impossible(&self, ledger: &ImportLedger, reason: &str) {
        self.mark_different(ledger, "");
        let all: Vec<&DataNode> = self.entries().iter().map(|(_, value)| value).chain(self.items()).collect();
        all.into_iter().for_each(|one| one.mark_all_impossible(ledger, reason));
        if let Some(entry) = self.entry {
            ledger.mark_impossible(entry, reason);
        }
    }
}
