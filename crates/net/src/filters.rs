//! What every response passes on its way out, whatever handler sends it and whatever lane carries it: a short, closed list.
//!
//! ```text
//! handler ──▶ (a cache's tap, to come) ──▶ the route's field edits ──▶ compression ──▶ lane
//! ```

use std::borrow::Cow;
use std::cell::Cell;
use std::rc::Rc;

use http::{Fields, Length, Method, Name, Status};

use crate::compress::{self, Compressing, Compression, CompressionInput};
use crate::fault::Fault;
use crate::page::FieldEdits;

/// Which of the lines that every response carries the handler brings itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DefaultFields {
    /// `Server`.
    pub server: bool,
    /// `Date`.
    pub date: bool,
}

impl DefaultFields {
    /// The lines of `common` (`Server`, if there is one, then `Date`) that the handler does not bring.
    pub(crate) fn of(self, common: &[u8]) -> &[u8] {
        let date_at = || match common.starts_with(b"Server:") {
            true => common.iter().position(|&byte| byte == b'\n').map_or(0, |at| at + 1),
            false => 0,
        };
        match (self.server, self.date) {
            (false, false) => common,
            (true, false) => &common[date_at()..],
            (false, true) => &common[..date_at()],
            (true, true) => &[],
        }
    }
}

/// The filters of one response.
#[derive(Default)]
pub(crate) struct Filters {
    /// Edits of its fields.
    pub(crate) edits: Option<Rc<FieldEdits>>,
    /// Which responses are compressed.
    pub(crate) compression: Option<Rc<Compression>>,
    /// The compression of this one, once it has begun.
    pub(crate) compressing: Option<Box<Compressing>>,
}

impl Filters {
    /// Whether a head may have to be changed.
    pub(crate) fn see_heads(&self) -> bool {
        self.edits.is_some() || self.compression.is_some()
    }

    /// The fields of a response as they are to be sent. `length` and `own` become those of the filtered response. `encoders`
    /// counts the streams that the core compresses; `None` where memory is too short for one more.
    pub(crate) fn head<'f>(
        &mut self,
        request: &CompressionInput<'_>,
        status: Status,
        fields: &'f Fields,
        length: &mut Length,
        own: &mut DefaultFields,
        encoders: Option<&Rc<Cell<usize>>>,
    ) -> Cow<'f, Fields> {
        let mut fields = Cow::Borrowed(fields);
        if let Some(edits) = &self.edits {
            own.server |= edits.replaces(Name::Server);
            own.date |= edits.replaces(Name::Date);
            fields = Cow::Owned(edits.apply(&fields));
        }
        if let Some(compression) = self.compression.clone() {
            self.compress(&compression, request, status, fields.to_mut(), length, encoders);
        }
        fields
    }

    /// Has the response compressed where that is worth it.
    fn compress(
        &mut self,
        compression: &Compression,
        request: &CompressionInput<'_>,
        status: Status,
        fields: &mut Fields,
        length: &mut Length,
        encoders: Option<&Rc<Cell<usize>>>,
    ) {
        let Some(coding) = compression.choose(request, status, fields, *length) else { return };
        // To HEAD the fields are those of GET.
        if request.head.method != Method::Head {
            let media_type = fields.first(b"Content-Type").map(http::media::without_parameters);
            let is_event_stream = media_type.as_deref() == Some("text/event-stream");
            let begun = encoders.and_then(|encoders| {
                Compressing::begin(coding, compression.effort, *length, is_event_stream, encoders)
            });
            let Some(compressing) = begun else { return };
            self.compressing = Some(compressing);
        }
        compress::say_coded(fields, coding);
        *length = Length::Unknown;
    }

    /// A piece of the body as the encoder makes it; `None` where nothing changes bodies.
    pub(crate) fn body(&mut self, piece: &[u8]) -> Result<Option<Vec<u8>>, Fault> {
        self.compressing.as_mut().map(|compressing| compressing.write(piece)).transpose()
    }

    /// Bytes of memory that they hold.
    pub(crate) fn weight_bytes(&self) -> usize {
        self.compressing.as_ref().map_or(0, |compressing| compressing.weight_bytes)
    }
}
