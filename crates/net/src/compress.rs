//! Compression of responses on their way out, whatever handler sends them.
//!
//! It stands below every way that a handler has of sending a response, after the route's field edits, so that it sees the
//! fields that the client gets. A response that is coded already is left alone.

use std::cell::Cell;
use std::io;
use std::rc::Rc;

use coding::{Effort, Encoder};
use http::coding::Accepted;
use http::{Coding, Fields, Head, Length, Method, Name, Status, Version, media, scan};

use crate::fault::Fault;

/// Streams that one core compresses at the same time; the responses beyond them go out as they are. A client that reads
/// slowly keeps an encoder as long as its response lasts.
pub(crate) const ENCODERS_MAX: usize = 128;
/// Bytes that are compressed in one go.
pub(crate) const COMPRESSED_BYTES: usize = 16 * 1024;
/// What a compressed byte weighs against a connection's turn: compressing costs many times what copying does.
pub(crate) const COMPRESSED_WEIGHT: usize = 8;

/// Bytes of memory that an encoder holds, at most.
const fn weight_bytes(coding: Coding) -> usize {
    match coding {
        Coding::Brotli => 3 * 1024 * 1024,
        Coding::Zstd => 2 * 1024 * 1024,
        _ => 512 * 1024,
    }
}

/// What of a request decides whether its response is compressed.
#[derive(Clone, Copy)]
pub(crate) struct CompressionInput<'x> {
    pub(crate) head: &'x Head,
    /// The bytes that the head's spans refer to.
    pub(crate) bytes: &'x [u8],
    /// Whether the client speaks TLS.
    pub(crate) secure: bool,
}

impl CompressionInput<'_> {
    /// What the client accepts: all fields of that name are one list.
    fn accepted(&self) -> Accepted {
        let fields = self.head.fields.iter().filter(|field| field.id == Name::AcceptEncoding);
        let values: Vec<&[u8]> = fields.map(|field| field.value.of(self.bytes)).collect();
        Accepted::parse(&values.join(&b", "[..]))
    }

    /// Whether `If-None-Match` has the tag of the response as it is.
    pub(crate) fn knows_strong_tag(&self, fields: &Fields) -> bool {
        let known = self.head.fields.iter().filter(|field| field.id == Name::IfNoneMatch);
        let mut known = known.flat_map(|field| scan::list(field.value.of(self.bytes)));
        fields.first(b"ETag").is_some_and(|tag| known.any(|one| one == tag))
    }
}

/// Which responses are compressed, and how. One for each route; shared by its requests.
#[derive(Clone, Debug)]
pub struct Compression {
    /// Codings, preferred in this order among what the client likes equally.
    pub codings: Vec<Coding>,
    /// Responses whose length is known and smaller than this are sent as they are.
    pub bytes_min: u64,
    /// How hard to compress.
    pub effort: Effort,
    /// Media types that are compressed, as [`media::is_any_of`] reads them.
    pub media: Vec<String>,
    /// Whether responses to clients over TLS that set a cookie and say `Cache-Control: no-store` are compressed too. They are
    /// likely to hold a secret and data of the request: compressed together, their length reveals the secret to an attacker
    /// who can make requests and see the lengths (BREACH).
    pub secrets: bool,
}

impl Compression {
    /// Decides the coding of a response and edits its fields for it; `None` where it goes out as it is. A response that
    /// another client would get compressed says `Vary: Accept-Encoding` in either case.
    pub(crate) fn choose(
        &self,
        request: &CompressionInput<'_>,
        status: Status,
        fields: &mut Fields,
        length: Length,
    ) -> Option<Coding> {
        if matches!(status, Status::NOT_MODIFIED | Status::PARTIAL_CONTENT) {
            self.describe_whole(request, status, fields);
            return None;
        }
        if !self.is_worth_it(request, status, fields, length) {
            return None;
        }
        add_vary(fields);
        self.preferred(request)
    }

    /// The coding that the client likes best.
    fn preferred(&self, request: &CompressionInput<'_>) -> Option<Coding> {
        // A 1.0 client would have to see the connection close at the end.
        if request.head.version == Version::Http10 {
            return None;
        }
        let available: Vec<Coding> = self.codings.iter().copied().chain([Coding::Identity]).collect();
        request.accepted().choose(&available).filter(|&coding| coding != Coding::Identity)
    }

    /// Makes the fields of a 304 or 206 say of the whole response what a 200 would (RFC 9110 sections 15.3.7 and 15.4.5): caches
    /// in front would otherwise send what is stored compressed to clients that do not accept it. A 304 seldom has a type, so it may say
    /// too much.
    fn describe_whole(&self, request: &CompressionInput<'_>, status: Status, fields: &mut Fields) {
        let media_type = fields.first(b"Content-Type").map(media::without_parameters);
        let is_known = media_type.filter(|media_type| media_type != "multipart/byteranges");
        if is_known.is_some_and(|media_type| !self.is_compressible(&media_type))
            || self.must_stay(request, fields)
        {
            return;
        }
        add_vary(fields);
        // The bytes of a part are those of the response as it is, and a client that knows the strong tag has them.
        if status == Status::NOT_MODIFIED
            && self.preferred(request).is_some()
            && !request.knows_strong_tag(fields)
        {
            weaken_tag(fields);
        }
    }

    /// Whether the response to a client of another coding may be compressed.
    pub(crate) fn is_worth_it(
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
            || matches!(length, Length::Known(bytes) if bytes < self.bytes_min.max(1));
        let Some(content_type) = fields.first(b"Content-Type").filter(|_| !excluded) else { return false };
        self.is_compressible(&media::without_parameters(content_type))
            && fields.first(b"Content-Range").is_none()
            && !self.must_stay(request, fields)
    }

    fn is_compressible(&self, media_type: &str) -> bool {
        media::is_any_of(media_type, &self.media) && !media::is_compressed(media_type)
    }

    /// Whether the fields say that the bytes must not change, or compression would reveal a secret.
    fn must_stay(&self, request: &CompressionInput<'_>, fields: &Fields) -> bool {
        let says = |name: &[u8], directive: &[u8]| {
            let values = fields.iter().filter(|(other, _)| other.eq_ignore_ascii_case(name));
            values.flat_map(|(_, value)| scan::list(value)).any(|one| one.eq_ignore_ascii_case(directive))
        };
        if is_fixed(fields) || says(b"Cache-Control", b"no-transform") {
            return true;
        }
        let is_secret =
            request.secure && fields.first(b"Set-Cookie").is_some() && says(b"Cache-Control", b"no-store");
        is_secret && !self.secrets
    }
}

/// Whether a response is coded already, is a part, or has digests of its bytes as they are.
pub(crate) fn has_fixed_bytes(fields: &Fields) -> bool {
    fields.first(b"Content-Range").is_some() || is_fixed(fields)
}

/// The same for the whole of which the response may be a part.
fn is_fixed(fields: &Fields) -> bool {
    let fixed: [&[u8]; 5] =
        [b"Content-Encoding", b"Content-MD5", b"Digest", b"Content-Digest", b"Repr-Digest"];
    fixed.iter().any(|name| fields.first(name).is_some())
}

/// The fields of a response whose content is coded.
#[must_use]
pub fn coded_fields(fields: &Fields, coding: Coding) -> Fields {
    let mut coded = fields.clone();
    add_vary(&mut coded);
    say_coded(&mut coded, coding);
    coded
}

/// Makes the fields say that the content is coded.
pub(crate) fn say_coded(fields: &mut Fields, coding: Coding) {
    fields.push(Name::ContentEncoding, coding.text().as_bytes());
    fields.remove(b"Accept-Ranges");
    weaken_tag(fields);
}

/// Makes the tag of the fields a weak one: the coded bytes may be others another time.
pub fn weaken_tag(fields: &mut Fields) {
    let strong = fields.first(b"ETag").filter(|tag| !tag.starts_with(b"W/")).map(|tag| [b"W/", tag].concat());
    if let Some(weak) = strong {
        fields.remove(b"ETag");
        // A tag that was valid is valid behind `W/`.
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

/// The compression of the response under way.
pub(crate) struct Compressing {
    encoder: Encoder,
    /// Bytes of memory that the encoder holds.
    pub(crate) weight_bytes: usize,
    /// Bytes that the handler has announced and not written yet.
    left: Option<u64>,
    /// Whether what was written must reach the client when the handler waits: its content may come slowly.
    flushes: bool,
    _permit: Permit,
}

/// One of [`ENCODERS_MAX`]; freed when it is dropped.
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
    /// Begins to compress a response; `None` where the core compresses too many already. `used` counts them.
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
        Some(Box::new(Compressing { encoder, weight_bytes, left, flushes, _permit: permit }))
    }

    /// Compresses a piece of the content; returns what there is to send now, often nothing.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<Vec<u8>, Fault> {
        if let Some(left) = &mut self.left {
            let written = left.checked_sub(bytes.len() as u64);
            *left = written.ok_or(Fault::Broken("more body written than announced"))?;
        }
        self.encoder.write(bytes).map_err(failed)?;
        Ok(self.encoder.take())
    }

    /// What the client must get before the handler waits.
    pub(crate) fn flush(&mut self) -> Result<Vec<u8>, Fault> {
        if !self.flushes {
            return Ok(Vec::new());
        }
        self.encoder.flush().map_err(failed)?;
        Ok(self.encoder.take())
    }

    /// Ends the content. Returns the last bytes of it.
    pub(crate) fn finish(self) -> Result<Vec<u8>, Fault> {
        if self.left.is_some_and(|left| left > 0) {
            return Err(Fault::Broken("less body written than announced"));
        }
        self.encoder.finish().map_err(failed)
    }
}

fn failed(_: io::Error) -> Fault {
    Fault::Broken("the response could not be compressed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_compresses_so_many_streams_and_no_more() {
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
    fn an_announced_length_is_kept_to() {
        let used = Rc::default();
        let begin =
            || Compressing::begin(Coding::Zstd, Effort::Fast, Length::Known(3), false, &used).unwrap();
        assert!(begin().write(b"abcd").is_err());
        let mut short = begin();
        short.write(b"ab").unwrap();
        assert!(short.finish().is_err());
    }
}
