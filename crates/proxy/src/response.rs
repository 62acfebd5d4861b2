//! Writes the response head for the client from the parsed head of the upstream.

use http::encode::FieldWriter;
use http::{Fields, Name, NameSet, Reject, ResponseHead};
use net::{DefaultFields, FileReference};

use crate::options::{self, GroupOptions, RouteOptions};
use crate::request::{self, is_edited, is_named, removes, write_edits};
use crate::reverse::ReverseMapping;
use crate::template::TemplateContext;

/// Maximum interim (1xx) responses of an upstream before the final one.
pub(crate) const INTERIM_MAX: u32 = 32;

/// Rules for response heads.
#[derive(Debug)]
pub struct ResponseRules {
    options: options::ResponseOptions,
    reverse: ReverseMapping,
    has_edits: bool,
    /// Whether edits remove or replace fields.
    removes: bool,
}

/// Field lines that depend on the request, computed before the head is written.
#[derive(Debug, Default)]
pub struct PreparedLines {
    /// Fields that replace the upstream's `Location`, `Content-Location`, `Refresh` and `Set-Cookie`.
    rewritten: Option<Fields>,
    /// Lines that edits set and add.
    edit_lines: Vec<u8>,
}

impl ResponseRules {
    /// Creates the rules of a route to a group.
    #[must_use]
    pub fn new(group: &GroupOptions, route: &RouteOptions) -> ResponseRules {
        let edits = &route.response.edits;
        ResponseRules {
            reverse: ReverseMapping::new(group, route),
            has_edits: !(edits.remove.is_empty() && edits.set.is_empty() && edits.add.is_empty()),
            removes: removes(edits),
            options: route.response.clone(),
        }
    }

    /// Whether lines of this head depend on the request; if not, nothing needs to be prepared.
    #[must_use]
    pub fn depends_on_request(&self, head: &ResponseHead) -> bool {
        self.has_edits || (self.reverse.is_needed() && head.fields.names().intersects(REWRITTEN))
    }

    /// Computes the lines that depend on the request.
    #[must_use]
    pub fn prepare(&self, head: &ResponseHead, bytes: &[u8], context: &TemplateContext<'_>) -> PreparedLines {
        let mut prepared = PreparedLines::default();
        if self.reverse.is_needed() && head.fields.names().intersects(REWRITTEN) {
            let mut fields = Fields::new();
            for field in head.fields.iter().filter(|field| REWRITTEN.has(field.id)) {
                let value = self.reverse.rewrite(field.id, field.value.of(bytes), context);
                let pushed = fields.try_push(field.name.of(bytes), &value);
                pushed.expect("made of valid names and values");
            }
            prepared.rewritten = Some(fields);
        }
        if self.has_edits {
            write_edits(&mut FieldWriter::new(&mut prepared.edit_lines), &self.options.edits, context);
        }
        prepared
    }

    /// Writes the forwarded field lines, without framing fields and internal fields ([`http::is_internal`]).
    /// True if an internal field names a file.
    pub fn write(
        &self,
        lines: &mut FieldWriter<'_>,
        head: &ResponseHead,
        bytes: &[u8],
        named: &[&[u8]],
        prepared: &PreparedLines,
    ) -> bool {
        let mut names_file = false;
        let mut is_dropped = |name: &[u8]| {
            let is_internal = http::is_internal(name);
            names_file |= is_internal && FileReference::of(name, b"").is_some();
            is_internal
        };
        let dropped = match prepared.rewritten {
            Some(_) => NameSet::FRAMING.or(REWRITTEN),
            None => NameSet::FRAMING,
        };
        let is_left_out =
            |name: &[u8]| is_named(named, name) || (self.removes && is_edited(&self.options.edits, name));
        let passing = head.fields.iter().filter(|field| {
            let name = || field.name.of(bytes);
            !dropped.has(field.id)
                && (field.id != Name::Other || !is_dropped(name()))
                && ((named.is_empty() && !self.removes) || !is_left_out(name()))
        });
        lines.fields(bytes, passing);
        if let Some(fields) = &prepared.rewritten {
            for (name, value) in fields.iter() {
                if !is_left_out(name) {
                    lines.line(name, value);
                }
            }
        }
        lines.push_encoded(&prepared.edit_lines);
        names_file
    }

    /// Returns the trailer fields to forward, without those that edits remove.
    #[must_use]
    pub fn trailers(&self, trailers: &Fields) -> Fields {
        let mut passed = Fields::new();
        let passes = |name: &[u8]| !is_edited(&self.options.edits, name) && !http::is_internal(name);
        for (name, value) in trailers.iter().filter(|(name, _)| passes(name)) {
            passed.try_push(name, value).expect("a field that was read is valid");
        }
        passed
    }

    /// Returns which of the default fields the upstream or the edits provide.
    #[must_use]
    pub fn provided_defaults(&self, head: &ResponseHead) -> DefaultFields {
        let server = self.removes && is_edited(&self.options.edits, b"server");
        DefaultFields { server: server || head.fields.has(Name::Server), date: head.fields.has(Name::Date) }
    }
}

/// Returns the field names that `Connection` of a response lists, except those of fields that are for all recipients
/// and may not be listed (RFC 9110 section 7.6.1): without `Cache-Control` or `Set-Cookie`, a cache would give the
/// response to others.
///
/// # Errors
/// `Connection` lists too many fields.
pub fn named_by_connection<'b>(head: &ResponseHead, bytes: &'b [u8]) -> Result<Vec<&'b [u8]>, Reject> {
    let mut named = request::named_by_connection(&head.fields, bytes)?;
    named.retain(|name| !is_for_all_recipients(name));
    Ok(named)
}

fn is_for_all_recipients(name: &[u8]) -> bool {
    let id = Name::of(name);
    let has_own_name = id != Name::Other && !id.is_hop_by_hop();
    has_own_name || name.eq_ignore_ascii_case(b"cdn-cache-control")
}

/// Returns the first value of a field without a [`Name`] of its own.
pub(crate) fn first_value<'b>(head: &ResponseHead, bytes: &'b [u8], name: &[u8]) -> Option<&'b [u8]> {
    let mut fields = head.fields.iter();
    fields.find(|field| field.name.of(bytes).eq_ignore_ascii_case(name)).map(|field| field.value.of(bytes))
}

/// Fields whose value depends on the client's view of the server.
const REWRITTEN: NameSet =
    NameSet::of(&[Name::Location, Name::ContentLocation, Name::Refresh, Name::SetCookie]);
