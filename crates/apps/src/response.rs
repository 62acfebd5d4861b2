//! Head of a worker's response. Its framing fields are not trusted.

use http::encode::FieldWriter;
use http::{Fields, Name, Status, scan};
use net::{DefaultFields, Exchange, FileReference, NamedFile};
use ring::wire::{self, FieldId as Part};

/// Treatment of a header field.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FieldAction {
    Pass,
    /// The field is dropped, because the server frames its messages itself.
    Drop,
    Coding,
    Length,
    Server,
    Date,
}

/// Treatment and usual spelling of each well-known name, which workers send as an id, without case.
pub(crate) struct HeaderNameCache([(FieldAction, Box<str>); 256]);

impl HeaderNameCache {
    pub(crate) fn new() -> HeaderNameCache {
        let mut table = std::array::from_fn(|_| (FieldAction::Drop, Box::default()));
        for part in (0..=u8::MAX).filter_map(Part::of_id).filter(|part| part.is_header()) {
            let name = Name::of(part.text().as_bytes());
            let fate = match name {
                Name::ContentLength => FieldAction::Length,
                Name::TransferEncoding => FieldAction::Coding,
                Name::Connection | Name::KeepAlive | Name::ProxyConnection | Name::Upgrade => {
                    FieldAction::Drop
                }
                Name::Server => FieldAction::Server,
                Name::Date => FieldAction::Date,
                // Addressed to the server in front of the application, which is this one.
                Name::Other if http::is_internal(part.text().as_bytes()) => FieldAction::Drop,
                _ => FieldAction::Pass,
            };
            let text = if name == Name::Other { usual_spelling(part.text()) } else { name.text().into() };
            table[usize::from(part.id())] = (fate, text);
        }
        HeaderNameCache(table)
    }

    fn lookup(&self, field: &wire::WireField<'_>) -> (FieldAction, Option<&str>) {
        // The worker library sends well-known names as ids; workers that write the protocol themselves may
        // not.
        match field.known.or_else(|| Part::of_header(field.name)) {
            Some(part) => {
                let (fate, text) = &self.0[usize::from(part.id())];
                (*fate, Some(text))
            }
            None if http::is_internal(field.name) => (FieldAction::Drop, None),
            None => (FieldAction::Pass, None),
        }
    }
}

/// Converts `x-frame-options` to `X-Frame-Options`.
fn usual_spelling(name: &str) -> Box<str> {
    let words = name.split('-').map(|word| match word {
        "ch" | "csrf" | "dnt" | "gpc" | "ip" | "te" | "ua" | "xss" => word.to_ascii_uppercase(),
        "websocket" => "WebSocket".to_owned(),
        word => {
            let (first, rest) = word.split_at(word.len().min(1));
            first.to_ascii_uppercase() + rest
        }
    });
    words.collect::<Vec<_>>().join("-").into()
}

/// A validated head.
#[derive(Debug)]
pub(crate) struct AppResponse<'h> {
    pub(crate) status: Status,
    /// Value of `Content-Length`.
    pub(crate) length: Option<u64>,
    /// Whether `Transfer-Encoding: chunked` is present.
    pub(crate) chunked: bool,
    pub(crate) provided_defaults: DefaultFields,
    fields: wire::WireFields<'h>,
}

impl<'h> AppResponse<'h> {
    /// Reads a head.
    ///
    /// # Errors
    /// Reason why the head cannot be used for a response, for the log.
    pub(crate) fn read(
        head: &'h [u8],
        header_names: &HeaderNameCache,
    ) -> Result<AppResponse<'h>, &'static str> {
        let (code, fields) = wire::response(head).map_err(|_| "a head without a status")?;
        let status = Status::of(code).ok_or("a status that has not three digits")?;
        let mut reply = AppResponse {
            status,
            length: None,
            chunked: false,
            provided_defaults: DefaultFields::default(),
            fields: fields.clone(),
        };
        for field in fields {
            let field = field.map_err(|_| "a malformed head")?;
            if field.known.is_none() && !scan::is_token(field.name) {
                return Err("a header name that is not valid");
            }
            if scan::value_len(field.value) != field.value.len() {
                return Err("a header value with control bytes");
            }
            match header_names.lookup(&field).0 {
                FieldAction::Length => {
                    let length =
                        scan::parse_decimal(scan::trim(field.value)).ok_or("an invalid Content-Length")?;
                    if reply.length.is_some_and(|other| other != length) {
                        return Err("two values of Content-Length");
                    }
                    reply.length = Some(length);
                }
                FieldAction::Coding => {
                    reply.chunked = scan::trim(field.value).eq_ignore_ascii_case(b"chunked")
                }
                FieldAction::Server => reply.provided_defaults.server = true,
                FieldAction::Date => reply.provided_defaults.date = true,
                FieldAction::Pass | FieldAction::Drop => {}
            }
        }
        Ok(reply)
    }

    /// Whether the application names a file of this server in place of its response, and may do so. The name
    /// is then passed on.
    pub(crate) fn names_file(&self, exchange: &mut Exchange<'_>) -> bool {
        if !exchange.may_name_file() {
            return false;
        }
        let name = |field: &wire::WireField<'h>| match field.known.or_else(|| Part::of_header(field.name)) {
            Some(part) => part.text().as_bytes(),
            None => field.name,
        };
        let file = NamedFile::find(self.fields.clone().flatten().map(|field| (name(&field), field.value)));
        file.map(|file| exchange.name_file(file)).is_some()
    }

    /// Writes the field lines for the client. Returns whether one that names a file was left out.
    pub(crate) fn write(&self, header_names: &HeaderNameCache, lines: &mut FieldWriter<'_>) -> bool {
        self.write_if(header_names, lines, |_| true)
    }

    /// Writes the field lines whose names satisfy the predicate; see [`AppResponse::write`].
    pub(crate) fn write_if(
        &self,
        header_names: &HeaderNameCache,
        lines: &mut FieldWriter<'_>,
        filter: impl Fn(&[u8]) -> bool,
    ) -> bool {
        let mut names_file = false;
        for field in self.fields.clone().flatten().filter(|field| filter(field.name)) {
            match header_names.lookup(&field) {
                (FieldAction::Drop, text) => {
                    let name = text.map_or(field.name, str::as_bytes);
                    names_file |= FileReference::of(name, b"").is_some();
                }
                (FieldAction::Coding | FieldAction::Length, _) => {}
                (_, Some(text)) => lines.line(text.as_bytes(), field.value),
                (_, None) => lines.line(field.name, field.value),
            }
        }
        names_file
    }
}

/// Whether a response head has status 101 (Switching Protocols).
pub(crate) fn accepts_upgrade(head: &[u8]) -> bool {
    wire::response(head).is_ok_and(|(code, _)| code == Status::SWITCHING_PROTOCOLS.code())
}

/// Returns the trailer fields that may be sent to the client.
pub(crate) fn trailers(bytes: &[u8], header_names: &HeaderNameCache) -> Fields {
    let mut trailers = Fields::new();
    for field in wire::WireFields(bytes).map_while(Result::ok) {
        if let (FieldAction::Pass, text) = header_names.lookup(&field) {
            // Invalid fields are left out, because the response was already sent.
            let _ = trailers.try_push(text.map_or(field.name, str::as_bytes), field.value);
        }
    }
    trailers
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(status: u16, fields: &[(&str, &str)]) -> Vec<u8> {
        let mut head = Vec::new();
        wire::put_status(&mut head, status);
        for (name, value) in fields {
            wire::put_header(&mut head, name.as_bytes(), value.as_bytes()).unwrap();
        }
        head
    }

    fn written(head: &[u8]) -> String {
        let header_names = HeaderNameCache::new();
        let mut out = Vec::new();
        AppResponse::read(head, &header_names).unwrap().write(&header_names, &mut FieldWriter::new(&mut out));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn framing_fields_of_the_worker_are_not_forwarded() {
        let head = head(
            200,
            &[
                ("content-type", "text/plain"),
                ("Content-Length", "5"),
                ("Connection", "close"),
                ("Transfer-Encoding", "chunked"),
                ("X-mine", "1"),
            ],
        );
        assert_eq!(written(&head), "Content-Type: text/plain\r\nX-mine: 1\r\n");
        let header_names = HeaderNameCache::new();
        let reply = AppResponse::read(&head, &header_names).unwrap();
        assert_eq!(
            (reply.status, reply.length, reply.provided_defaults),
            (Status::OK, Some(5), DefaultFields::default())
        );
    }

    #[test]
    fn sendfile_and_accel_fields_are_not_forwarded() {
        let fields = [
            ("X-Accel-Redirect", "/srv/secret"),
            ("x-sendfile", "/srv/secret"),
            ("X-LIGHTTPD-Send-File", "/srv/secret"),
            ("x-accel-buffering", "no"),
            ("X-Mine", "1"),
        ];
        let mut head = head(200, &fields);
        assert_eq!(written(&head), "X-Mine: 1\r\n");
        head.drain(..2);
        assert_eq!(trailers(&head, &HeaderNameCache::new()).as_bytes(), b"X-Mine: 1\r\n");
    }

    #[test]
    fn spelled_out_framing_fields_are_recognized() {
        let mut head = head(200, &[]);
        for (name, value) in
            [("Transfer-Encoding", "chunked"), ("content-LENGTH", "7"), ("Connection", "x"), ("X-A", "1")]
        {
            head.extend(((value.len() as u32) << 8).to_le_bytes());
            head.extend((name.len() as u16).to_le_bytes());
            head.extend(name.bytes().chain(value.bytes()));
        }
        assert_eq!(written(&head), "X-A: 1\r\n");
        let header_names = HeaderNameCache::new();
        let reply = AppResponse::read(&head, &header_names).unwrap();
        assert_eq!((reply.length, reply.chunked), (Some(7), true));
        assert_eq!(trailers(&head[2..], &header_names).as_bytes(), b"X-A: 1\r\n");
    }

    #[test]
    fn invalid_response_heads_are_rejected() {
        let header_names = HeaderNameCache::new();
        for (status, name, value) in [
            (200, "X-A", "a\r\nb: c"),
            (200, "X A", "a"),
            (200, "", "a"),
            (200, "content-length", "5, 5"),
            (200, "content-length", "-1"),
            (99, "x", "a"),
            (1000, "x", "a"),
        ] {
            assert!(
                AppResponse::read(&head(status, &[(name, value)]), &header_names).is_err(),
                "{status} {name} {value}"
            );
        }
        let twice = head(200, &[("content-length", "5"), ("content-length", "6")]);
        assert!(AppResponse::read(&twice, &header_names).is_err());
        assert!(AppResponse::read(&twice[..1], &header_names).is_err());
    }

    #[test]
    fn framing_fields_are_removed_from_trailers() {
        let mut fields = head(200, &[("X-Sum", "1"), ("Content-Length", "3"), ("X Y", "2")]);
        fields.drain(..2);
        assert_eq!(trailers(&fields, &HeaderNameCache::new()).as_bytes(), b"X-Sum: 1\r\n");
    }
}
