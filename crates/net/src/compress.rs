//! Compression of responses, independent of the handler that sends them.
//!
//! Applied after the route's header edits, so that it sees the fields that the client gets. Responses that
//! already have a content coding are left alone.

use std::cell::Cell;
use std::io;
use std::rc::Rc;

use coding::{Effort, Encoder};
use http::coding::AcceptedCodings;
use http::{Coding, Fields, Head, Length, Method, Name, Status, Version, media, scan};
use settings::directive_table::table;
use settings::directives;
use settings::shape::{Flag, List, Maybe, OneOrMore, Shape, Size, Toggle, Word};
use settings::units::GIB;
use shapes::media::{CODINGS, TYPE};

use crate::fault::Fault;

/// Maximum number of concurrent encoders of a core; further responses are sent uncompressed. A slow client
/// keeps its encoder until its response ends.
pub(crate) const ENCODERS_MAX: usize = 128;
/// Bytes compressed in one step.
pub(crate) const COMPRESSED_BYTES: usize = 16 * 1024;
/// Cost of a compressed byte against a connection's turn: compressing costs many times as much as copying.
pub(crate) const COMPRESSED_WEIGHT: usize = 8;

/// Upper bound of an encoder's memory, in bytes.
const fn weight_bytes(coding: Coding) -> usize {
    match coding {
        Coding::Brotli => 3 * 1024 * 1024,
        Coding::Zstd => 2 * 1024 * 1024,
        _ => 512 * 1024,
    }
}

/// The parts of a request that decide whether its response is compressed.
#[derive(Clone, Copy)]
pub(crate) struct CompressionInput<'x> {
    pub(crate) head: &'x Head,
    /// Bytes that the head's spans refer to.
    pub(crate) bytes: &'x [u8],
    /// Whether the client speaks TLS.
    pub(crate) secure: bool,
}

impl CompressionInput<'_> {
    /// Returns the accepted codings; multiple `Accept-Encoding` fields form one list.
    fn accepted(&self) -> AcceptedCodings {
        let fields = self.head.fields.iter().filter(|field| field.id == Name::AcceptEncoding);
        let values: Vec<&[u8]> = fields.map(|field| field.value.of(self.bytes)).collect();
        AcceptedCodings::parse(&values.join(&b", "[..]))
    }

    /// Whether `If-None-Match` contains the entity tag of the uncompressed response.
    pub(crate) fn knows_strong_tag(&self, fields: &Fields) -> bool {
        let known = self.head.fields.iter().filter(|field| field.id == Name::IfNoneMatch);
        let mut known = known.flat_map(|field| scan::list(field.value.of(self.bytes)));
        fields.first(b"ETag").is_some_and(|tag| known.any(|one| one == tag))
    }
}

/// Compression effort.
pub const EFFORTS: Word<Effort> =
    Word(&[("fast", Effort::Fast), ("balanced", Effort::Balanced), ("small", Effort::Small)]);

/// `compress` of the server, a site or a route; if absent, the level above applies.
pub fn responses() -> impl Shape<Out = Option<Option<CompressResponses>>> {
    Maybe(Toggle {
        on: Some(|| Some(CompressResponses::default())),
        off: || None,
        shape: Maybe(table::<CompressResponses>()),
    })
}

directives! {
    /// Compression of responses of files, upstream servers and applications. `true` is `{}`: all defaults.
    ///
    /// ```toml
    /// compress = true
    ///
    /// [[route]]
    /// path  = "/api/*"
    /// proxy = { to = "http://127.0.0.1:3000" }
    /// compress = { codings = ["gzip"], min = "2KiB" }
    /// ```
    ///
    /// A response is not compressed if it has a `Content-Encoding` or `no-transform`, is a part (206), or if the client
    /// uses HTTP/1.0. A compressed response has `Vary: Accept-Encoding` and a weak `ETag`. Event streams and other
    /// responses without a length are sent at once, event by event. Compressed files are kept in memory; see `compress`
    /// of `files`.
    CompressResponses in "`compress`" {
        /// Codings in the order of preference, for clients that accept several equally.
        "codings" codings: Vec<Coding> = ["zstd", "br", "gzip"], OneOrMore(Word(CODINGS));
        /// Responses of a known length below this are sent uncompressed.
        "min" min_bytes: u64 = "1KiB", Size { min: 0, max: GIB };
        /// Compression effort: `"fast"`, `"balanced"` or `"small"`.
        "level" effort: Effort = "balanced", EFFORTS;
        /// Media types that are compressed.
        "types" types: Vec<String> = [
            "text/*", "application/javascript", "application/json", "application/xml", "application/manifest+json",
            "application/rss+xml", "application/atom+xml", "application/wasm", "image/svg+xml"
        ], List(TYPE);
        /// Whether responses over HTTPS with a cookie and `Cache-Control: no-store` are compressed too. Their length
        /// then reveals their content to an attacker who can make the client send requests and can see the lengths (the
        /// BREACH attack).
        "secrets" secrets: bool = false, Flag;
    }
}

impl CompressResponses {
    /// Chooses the coding of a response and edits its fields; `None` if it is sent uncompressed. Adds
    /// `Vary: Accept-Encoding` if another client would get it compressed.
    pub(crate) fn choose(
        &self,
        request: &CompressionInput<'_>,
        status: Status,
        fields: &mut Fields,
        length: Length,
    ) -> Option<Coding> {
        if matches!(status, Status::NOT_MODIFIED | Status::PARTIAL_CONTENT) {
            self.set_full_response_fields(request, status, fields);
            return None;
        }
        if !self.may_be_compressed(request, status, fields, length) {
            return None;
        }
        add_vary(fields);
        self.preferred(request)
    }

    /// Returns the coding that the client prefers; `None` for no coding.
    fn preferred(&self, request: &CompressionInput<'_>) -> Option<Coding> {
        // Compressed content has no known length; an HTTP/1.0 connection would have to be closed after it.
        if request.head.version == Version::Http10 {
            return None;
        }
        let available: Vec<Coding> = self.codings.iter().copied().chain([Coding::Identity]).collect();
        request.accepted().choose(&available).filter(|&coding| coding != Coding::Identity)
    }

    /// Gives a 304 or 206 the fields that the 200 would have (RFC 9110 sections 15.3.7 and 15.4.5): caches in
    /// front would otherwise send stored compressed content to clients that do not accept it. A 304 seldom
    /// has a Content-Type and is then treated as compressible.
    fn set_full_response_fields(&self, request: &CompressionInput<'_>, status: Status, fields: &mut Fields) {
        let media_type = fields.first(b"Content-Type").map(media::without_parameters);
        let is_known = media_type.filter(|media_type| media_type != "multipart/byteranges");
        if is_known.is_some_and(|media_type| !self.is_compressible(&media_type))
            || self.forbids_compression(request, fields)
        {
            return;
        }
        add_vary(fields);
        // A 206 has uncompressed bytes, and so has a client that sent the strong tag.
        if status == Status::NOT_MODIFIED
            && self.preferred(request).is_some()
            && !request.knows_strong_tag(fields)
        {
            weaken_tag(fields);
        }
    }

    /// Whether the response may be compressed for some client, whatever this one accepts.
    pub(crate) fn may_be_compressed(
        &self,
        request: &CompressionInput<'_>,
        status: Status,
        fields: &Fields,
        length: Length,
    ) -> bool {
        let excluded = status.is_informational()
            || status.forbids_content()
            || matches!(status, Status::RESET_CONTENT | Status::PARTIAL_CONTENT)
            || request.head.method == Method::Connect
            || matches!(length, Length::Known(bytes) if bytes < self.min_bytes.max(1));
        let Some(content_type) = fields.first(b"Content-Type").filter(|_| !excluded) else { return false };
        self.is_compressible(&media::without_parameters(content_type))
            && fields.first(b"Content-Range").is_none()
            && !self.forbids_compression(request, fields)
    }

    fn is_compressible(&self, media_type: &str) -> bool {
        media::matches_any(media_type, &self.types) && !media::is_compressed(media_type)
    }

    /// Whether the fields forbid to change the bytes, or compression would reveal a secret.
    fn forbids_compression(&self, request: &CompressionInput<'_>, fields: &Fields) -> bool {
        let says = |name: &[u8], directive: &[u8]| {
            let values = fields.iter().filter(|(other, _)| other.eq_ignore_ascii_case(name));
            values.flat_map(|(_, value)| scan::list(value)).any(|one| one.eq_ignore_ascii_case(directive))
        };
        if has_coding_or_digest(fields) || says(b"Cache-Control", b"no-transform") {
            return true;
        }
        let is_secret =
            request.secure && fields.first(b"Set-Cookie").is_some() && says(b"Cache-Control", b"no-store");
        is_secret && !self.secrets
    }
}

/// Whether a response has a content coding, is a partial one, or has digests of its bytes.
pub(crate) fn has_fixed_bytes(fields: &Fields) -> bool {
    fields.first(b"Content-Range").is_some() || has_coding_or_digest(fields)
}

/// Whether the complete response has a content coding or digests of its bytes.
fn has_coding_or_digest(fields: &Fields) -> bool {
    let fixed: [&[u8]; 5] =
        [b"Content-Encoding", b"Content-MD5", b"Digest", b"Content-Digest", b"Repr-Digest"];
    fixed.iter().any(|name| fields.first(name).is_some())
}

/// Returns the fields of the response with its content coded.
#[must_use]
pub fn coded_fields(fields: &Fields, coding: Coding) -> Fields {
    let mut coded = fields.clone();
    add_vary(&mut coded);
    set_coded_fields(&mut coded, coding);
    coded
}

/// Updates the fields for coded content.
pub(crate) fn set_coded_fields(fields: &mut Fields, coding: Coding) {
    fields.push(Name::ContentEncoding, coding.text().as_bytes());
    fields.remove(b"Accept-Ranges");
    weaken_tag(fields);
}

/// Makes the entity tag a weak one: the coded bytes may differ from one response to the next.
pub fn weaken_tag(fields: &mut Fields) {
    let strong = fields.first(b"ETag").filter(|tag| !tag.starts_with(b"W/")).map(|tag| [b"W/", tag].concat());
    if let Some(weak) = strong {
        fields.remove(b"ETag");
        // A valid tag stays valid with `W/` in front.
        let _ = fields.try_push(b"ETag", &weak);
    }
}

fn add_vary(fields: &mut Fields) {
    let varies = |(name, value): (&[u8], &[u8])| {
        name.eq_ignore_ascii_case(b"Vary")
            && scan::list(value).any(|one| one == b"*" || one.eq_ignore_ascii_case(b"Accept-Encoding"))
    };
    if !fields.iter().any(varies) {
        fields.push(Name::Vary, b"Accept-Encoding");
    }
}

/// The compression of the current response.
pub(crate) struct Compressing {
    encoder: Encoder,
    /// Memory held by the encoder, in bytes.
    pub(crate) weight_bytes: usize,
    /// Announced bytes that the handler has not written.
    remaining_bytes: Option<u64>,
    /// Whether to flush the encoder before the handler waits, because the content may be produced slowly.
    flushes: bool,
    _permit: Permit,
}

/// One of [`ENCODERS_MAX`] permits, returned on drop.
struct Permit(Rc<Cell<usize>>);

impl Permit {
    fn take(used: &Rc<Cell<usize>>) -> Option<Permit> {
        (used.get() < ENCODERS_MAX).then(|| {
            used.set(used.get() + 1);
            Permit(used.clone())
        })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Compressing {
    /// Begins to compress a response; `None` if the core has no encoder left. `used` counts the encoders.
    pub(crate) fn begin(
        coding: Coding,
        effort: Effort,
        length: Length,
        is_event_stream: bool,
        used: &Rc<Cell<usize>>,
    ) -> Option<Box<Compressing>> {
        let permit = Permit::take(used)?;
        let encoder = Encoder::new(coding, effort).ok()??;
        let left = match length {
            Length::Known(bytes) => Some(bytes),
            Length::Unknown => None,
        };
        let flushes = left.is_none() || is_event_stream;
        let weight_bytes = weight_bytes(coding);
        Some(Box::new(Compressing { encoder, weight_bytes, remaining_bytes: left, flushes, _permit: permit }))
    }

    /// Compresses a piece of the content; returns the bytes to send now, often none.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<Vec<u8>, Fault> {
        if let Some(left) = &mut self.remaining_bytes {
            let written = left.checked_sub(bytes.len() as u64);
            *left = written.ok_or(Fault::Failed("more body written than announced"))?;
        }
        self.encoder.write(bytes).map_err(encoder_fault)?;
        Ok(self.encoder.take())
    }

    /// Flushes the encoder if the client must get the content before the handler waits.
    pub(crate) fn flush(&mut self) -> Result<Vec<u8>, Fault> {
        if !self.flushes {
            return Ok(Vec::new());
        }
        self.encoder.flush().map_err(encoder_fault)?;
        Ok(self.encoder.take())
    }

    /// Ends the content and returns its last bytes.
    pub(crate) fn finish(self) -> Result<Vec<u8>, Fault> {
        if self.remaining_bytes.is_some_and(|left| left > 0) {
            return Err(Fault::Failed("less body written than announced"));
        }
        self.encoder.finish().map_err(encoder_fault)
    }
}

fn encoder_fault(_: io::Error) -> Fault {
    Fault::Failed("the response could not be compressed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn core_limits_concurrent_compressions() {
        let used = Rc::default();
        let begin = || Compressing::begin(Coding::Gzip, Effort::Fast, Length::Known(3), false, &used);
        let mut under_way: Vec<_> = (0..ENCODERS_MAX).map(|_| begin().unwrap()).collect();
        assert!(begin().is_none());
        let mut one = under_way.pop().unwrap();
        assert!(begin().is_none(), "it is still there");
        one.write(b"abc").unwrap();
        assert!(one.finish().is_ok());
        assert!(begin().is_some());
        drop(under_way);
        assert_eq!(used.get(), 0);
    }

    #[test]
    fn compressed_body_must_match_its_declared_length() {
        let used = Rc::default();
        let begin =
            || Compressing::begin(Coding::Zstd, Effort::Fast, Length::Known(3), false, &used).unwrap();
        assert!(begin().write(b"abcd").is_err());
        let mut short = begin();
        short.write(b"ab").unwrap();
        assert!(short.finish().is_err());
    }
}
