//! Filters that every response passes, independent of its handler and lane. The list is short and fixed.
//!
//! ```text
//! handler ──▶ cache tap ──▶ field edits of the route ──▶ text replacement ──▶ compression ──▶ lane
//! ```

use std::any::Any;
use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, UNIX_EPOCH};

use http::{Fields, Length, Method, Name, Status};

use crate::compress::{self, CompressResponses, Compressing, CompressionInput};
use crate::fault::Fault;
use crate::replace::{Replacing, RequestReplacement};

/// Default fields that the handler provides itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DefaultFields {
    /// `Server`.
    pub server: bool,
    /// `Date`.
    pub date: bool,
}

/// The lines of `Server` and `Date`, rebuilt once a second.
pub(crate) struct DefaultLines {
    /// The value of `Server`; empty for none.
    server: &'static str,
    unix_s: Cell<u64>,
    lines: RefCell<Vec<u8>>,
    /// Offset of the `Date` line.
    date_at: Cell<usize>,
}

impl DefaultLines {
    pub(crate) fn new(server: &'static str) -> DefaultLines {
        DefaultLines { server, unix_s: Cell::new(0), lines: RefCell::default(), date_at: Cell::new(0) }
    }

    /// Passes the default lines, for the second `unix_s`, to `f`, without those that the handler provides.
    pub(crate) fn with<R>(&self, unix_s: u64, own: DefaultFields, f: impl FnOnce(&[u8]) -> R) -> R {
        if self.unix_s.get() != unix_s || self.lines.borrow().is_empty() {
            self.rebuild(unix_s);
        }
        let lines = self.lines.borrow();
        let date_at = self.date_at.get();
        f(match (own.server, own.date) {
            (false, false) => &lines,
            (true, false) => &lines[date_at..],
            (false, true) => &lines[..date_at],
            (true, true) => &[],
        })
    }

    fn rebuild(&self, unix_s: u64) {
        let mut fields = Fields::new();
        if !self.server.is_empty() {
            fields.push(Name::Server, self.server.as_bytes());
        }
        self.date_at.set(fields.as_bytes().len());
        let date = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(unix_s));
        fields.push(Name::Date, date.as_bytes());
        *self.lines.borrow_mut() = fields.as_bytes().to_vec();
        self.unix_s.set(unix_s);
    }
}

/// Fields that a route removes from, sets on and adds to every response.
#[derive(Clone, Debug, Default)]
pub struct FieldEdits {
    remove: Vec<Vec<u8>>,
    /// Fields that replace those removed by [`FieldEdits::replace`].
    pub set: Fields,
    /// Fields added to those with the same name.
    pub add: Fields,
}

impl FieldEdits {
    /// Removes every field with that name: the response's own, and those that earlier edits set or added.
    pub fn replace(&mut self, name: &[u8]) {
        self.set.remove(name);
        self.add.remove(name);
        self.remove.push(name.to_ascii_lowercase());
    }

    /// Returns an edited copy of a response's fields.
    #[must_use]
    pub fn apply(&self, fields: &Fields) -> Fields {
        let mut edited = fields.clone();
        for name in &self.remove {
            edited.remove(name);
        }
        edited.extend(&self.set);
        edited.extend(&self.add);
        edited
    }

    /// Whether a default field (`Server`, `Date`) is removed or set.
    pub(crate) fn replaces(&self, name: Name) -> bool {
        self.replaces_named(name.text().as_bytes())
    }

    /// Whether the field with that name is removed, set or added.
    pub(crate) fn changes(&self, name: &[u8]) -> bool {
        self.replaces_named(name) || self.add.first(name).is_some()
    }

    fn replaces_named(&self, name: &[u8]) -> bool {
        self.remove.iter().any(|other| other.eq_ignore_ascii_case(name))
    }
}

/// Observer of a response head before other filters change it; may add fields. Used by the cache for
/// responses that it does not store: bodies to store go through [`crate::DetachedRequest`].
pub trait HeadTap {
    /// Called once, with the head that the handler sends.
    fn head(self: Box<Self>, status: Status, fields: &mut Fields);
}

/// Observer of a switch to a WebSocket or another tunnel.
pub trait UpgradeTap {
    /// Called once, at the switch; the returned value is dropped when the tunnel ends.
    fn upgraded(self: Rc<Self>) -> Box<dyn Any>;
}

/// The filters of one response.
#[derive(Default)]
pub(crate) struct Filters {
    /// Observer of the response head.
    pub(crate) tap: Option<Box<dyn HeadTap>>,
    /// Edits of the response's fields.
    pub(crate) edits: Option<Rc<FieldEdits>>,
    /// Replacements in the body.
    pub(crate) replacement: Option<RequestReplacement>,
    /// Compression settings.
    pub(crate) compression: Option<Rc<CompressResponses>>,
    /// Whether the client gets `Server-Timing`.
    pub(crate) shows_timing: bool,
    /// Replacement in progress.
    pub(crate) replacing: Option<Box<Replacing>>,
    /// Compression in progress.
    pub(crate) compressing: Option<Box<Compressing>>,
}

/// Two taps, called in order.
struct TapPair(Box<dyn HeadTap>, Box<dyn HeadTap>);

impl HeadTap for TapPair {
    fn head(self: Box<Self>, status: Status, fields: &mut Fields) {
        self.0.head(status, fields);
        self.1.head(status, fields);
    }
}

impl Filters {
    /// Appends a tap.
    pub(crate) fn add_tap(&mut self, tap: Box<dyn HeadTap>) {
        self.tap = Some(match self.tap.take() {
            Some(first) => Box::new(TapPair(first, tap)),
            None => tap,
        });
    }

    /// Whether a filter may change the head.
    pub(crate) fn may_change_head(&self) -> bool {
        self.edits.is_some()
            || self.compression.is_some()
            || self.tap.is_some()
            || self.shows_timing
            || self.replacement.is_some()
    }

    /// Returns the fields to send; updates `length` and `own` for the filtered response. `encoders` counts
    /// the core's encoders; `None` if memory is too short for another one.
    pub(crate) fn filter_head<'f>(
        &mut self,
        request: &CompressionInput<'_>,
        status: Status,
        fields: &'f Fields,
        length: &mut Length,
        own: &mut DefaultFields,
        encoders: Option<&Rc<Cell<usize>>>,
    ) -> Cow<'f, Fields> {
        let mut fields = Cow::Borrowed(fields);
        if let Some(tap) = self.tap.take() {
            tap.head(status, fields.to_mut());
        }
        if let Some(edits) = &self.edits {
            own.server |= edits.replaces(Name::Server);
            own.date |= edits.replaces(Name::Date);
            fields = Cow::Owned(edits.apply(&fields));
        }
        let announced = *length;
        if let Some(replacement) = &self.replacement {
            self.replacing = replacement.begin(request, status, fields.to_mut(), length);
        }
        if let Some(compression) = self.compression.clone() {
            self.compress(&compression, request, status, fields.to_mut(), (announced, length), encoders);
        }
        fields
    }

    /// Compresses the response if its settings say so, given the length that the handler `announced`.
    fn compress(
        &mut self,
        compression: &CompressResponses,
        request: &CompressionInput<'_>,
        status: Status,
        fields: &mut Fields,
        (announced, length): (Length, &mut Length),
        encoders: Option<&Rc<Cell<usize>>>,
    ) {
        let Some(coding) = compression.choose(request, status, fields, announced) else { return };
        // A response to HEAD has the fields of the response to GET.
        if request.head.method != Method::Head {
            let media_type = fields.first(b"Content-Type").map(http::media::without_parameters);
            let is_event_stream = media_type.as_deref() == Some("text/event-stream");
            let begun = encoders.and_then(|encoders| {
                Compressing::begin(coding, compression.effort, *length, is_event_stream, encoders)
            });
            let Some(compressing) = begun else { return };
            self.compressing = Some(compressing);
        }
        compress::set_coded_fields(fields, coding);
        *length = Length::Unknown;
    }

    /// Whether a filter changes the body.
    pub(crate) fn changes_body(&self) -> bool {
        self.compressing.is_some() || self.replacing.is_some()
    }

    /// Compresses a piece of the body; `None` if it is not compressed.
    pub(crate) fn compress_piece(&mut self, piece: &[u8]) -> Result<Option<Vec<u8>>, Fault> {
        self.compressing.as_mut().map(|compressing| compressing.write(piece)).transpose()
    }

    /// Memory held by the filters, in bytes.
    pub(crate) fn weight_bytes(&self) -> usize {
        self.compressing.as_ref().map_or(0, |compressing| compressing.weight_bytes)
            + self.replacing.as_ref().map_or(0, |replacing| replacing.weight_bytes())
    }
}

/// Parses field lines written by [`FieldWriter`], which are valid.
pub(crate) fn fields_of(block: &[u8]) -> Fields {
    let mut fields = Fields::new();
    for line in block.split(|&byte| byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if let Some(colon) = line.iter().position(|&byte| byte == b':') {
            fields.try_push(&line[..colon], &line[colon + 1..]).expect("lines under way are valid");
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_fields_set_by_the_handler_are_omitted() {
        let text = |lines: &DefaultLines, unix_s: u64, server: bool, date: bool| {
            lines.with(unix_s, DefaultFields { server, date }, |lines| {
                String::from_utf8(lines.into()).unwrap()
            })
        };
        const SERVER: &str = "Server: Test\r\n";
        const DATE: &str = "Date: Thu, 01 Jan 1970 00:00:00 GMT\r\n";
        let lines = DefaultLines::new("Test");
        assert_eq!(text(&lines, 0, false, false), format!("{SERVER}{DATE}"));
        assert_eq!(text(&lines, 0, true, false), DATE);
        assert_eq!(text(&lines, 0, false, true), SERVER);
        assert_eq!(text(&lines, 0, true, true), "");
        assert_eq!(text(&lines, 86_400, true, false), "Date: Fri, 02 Jan 1970 00:00:00 GMT\r\n");
        let nameless = DefaultLines::new("");
        assert_eq!(
            (text(&nameless, 0, false, false), text(&nameless, 0, false, true)),
            (DATE.into(), String::new())
        );
    }
}
