//! Laws that hold for arbitrary bytes, called by fuzz targets and the replay test; each panics if its law is
//! violated.

use http::body::Body;
use http::forwarded::{self, Dialect};
use http::framing::Framing;
use http::path::{self, EmptySegments};
use http::target::split_port;
use http::{Fields, Limits, Method, RequestHead, Span, Target, TargetForm, encode, scan, target};

use super::drive::{Ending, Message, Outcome, Pairs, Role, Setup, run};

/// Requests: the outcome does not depend on where the bytes are cut, and an accepted request keeps its
/// meaning when encoded again.
pub(crate) fn request(bytes: &[u8]) {
    for setup in setups(Role::Request) {
        let whole = cuts_never_matter(&setup, bytes);
        encoded_again(Role::Request, &whole);
    }
}

/// Responses, to requests of the methods that change their framing.
pub(crate) fn response(bytes: &[u8]) {
    for method in [Method::Get, Method::Head, Method::Connect] {
        for mut setup in setups(Role::Response(method)) {
            setup.body_bytes_max = u64::MAX;
            cuts_never_matter(&setup, bytes);
            setup.close = true;
            let whole = cuts_never_matter(&setup, bytes);
            encoded_again(setup.role, &whole);
        }
    }
}

/// Chunked bodies: splits, limits, re-encoding, and agreement with a trivially simple decoder.
pub(crate) fn chunked(bytes: &[u8]) {
    let limits = Limits { head_bytes_max: 256, fields_max: 4, ..Limits::default() };
    for content_max in [u64::MAX, 16] {
        let whole = decode(bytes, [bytes], content_max, &limits);
        assert_eq!(whole, decode(bytes, bytes.chunks(1), content_max, &limits), "byte by byte");
        assert_eq!(whole, decode(bytes, corpus::random_cuts(bytes), content_max, &limits), "at random");
    }
    let Decoded { content, trailers, consumed: Some(consumed), .. } =
        decode(bytes, [bytes], u64::MAX, &limits)
    else {
        return;
    };
    assert_eq!(plain_chunked(&bytes[..consumed]).as_ref(), Some(&content), "the plain decoder disagrees");
    let encoded = write_chunked(&content, &trailers);
    let again = decode(&encoded, [&encoded[..]], u64::MAX, &Limits::default());
    assert_eq!((again.content, again.trailers, again.consumed), (content, trailers, Some(encoded.len())));
}

/// Targets, authorities and paths.
pub(crate) fn target(bytes: &[u8]) {
    let target_len = scan::target_len(bytes);
    let padded = [b"GET ", &bytes[..target_len], b" HTTP/1.1"].concat();
    for method in [Method::Get, Method::Options, Method::Connect] {
        let span = Span::new(4, 4 + target_len);
        if let Ok(found) = Target::parse(method, &padded, span) {
            target_is_taken_apart(&found, &padded);
        }
    }
    if let Some((host, port)) = split_port(bytes) {
        let tail = bytes.len() - host.len();
        assert!(bytes.starts_with(host) && port.map_or(tail <= 1, |port| tail == port.len() + 1));
    }
    if target::is_authority(bytes) && !bytes.is_empty() {
        let (host, _) = split_port(bytes).expect("an authority is a host and a port");
        assert!(
            !host.is_empty() && host.is_ascii() && !host.iter().any(|byte| b"/\\?#@\"<> ".contains(byte))
        );
    }
    if bytes.first() == Some(&b'/') {
        for empty in [EmptySegments::Merge, EmptySegments::Keep] {
            path_is_one(&bytes[..target_len], empty);
        }
    }
}

/// Values of `Forwarded` and `X-Forwarded-For`: the client is never an address before an untrusted one, and
/// an invalid value never names a client.
pub(crate) fn forwarded(bytes: &[u8]) {
    let value: Vec<u8> =
        bytes.iter().map(|&byte| if scan::value_len(&[byte]) == 1 { byte } else { b' ' }).collect();
    for (dialect, name) in [(Dialect::XForwarded, &b"X-Forwarded-For"[..]), (Dialect::Standard, b"Forwarded")]
    {
        let message =
            |value: &[u8]| [b"GET / HTTP/1.1\r\nHost: a\r\n", name, b": ", value, b"\r\n\r\n"].concat();
        let claim = |value: &[u8], trusts: fn(std::net::IpAddr) -> bool| {
            let mut head = RequestHead::default();
            let bytes = message(value);
            let whole = head.parse(&bytes, &Limits { head_bytes_max: 1 << 16, ..Limits::default() });
            assert_eq!(whole, Ok(true), "{}", bytes.escape_ascii());
            forwarded::claimed_client(&head, &bytes, dialect, trusts)
        };
        let Ok(nearest) = claim(&value, |_| false) else {
            assert_eq!(dialect, Dialect::Standard, "only `Forwarded` has a grammar to break");
            assert!(claim(&value, |_| true).is_err(), "validity depends on who is trusted");
            continue;
        };
        // Text that a client writes before the last element, which the server's own proxy wrote, changes
        // nothing.
        let last = &b"for=192.0.2.7"[if dialect == Dialect::XForwarded { 4 } else { 0 }..];
        if let Ok(found) = claim(&[&value[..], b", ", last].concat(), |_| false) {
            assert_eq!(found.address.map(|address| address.to_string()).as_deref(), Some("192.0.2.7:0"));
        }
        assert_eq!(claim(&value, |_| false), Ok(nearest), "the same bytes name the same client");
    }
}

/// The limits under which a message is tried: the default ones, and tight ones.
fn setups(role: Role) -> [Setup; 2] {
    let tight = Limits {
        head_bytes_max: 160,
        start_line_bytes_max: 40,
        fields_max: 4,
        bare_lf: true,
        lenient_heads: true,
    };
    let default = Setup { role, ..Setup::default() };
    [default, Setup { limits: tight, body_bytes_max: 20, ..default }]
}

fn cuts_never_matter(setup: &Setup, bytes: &[u8]) -> Outcome {
    let whole = run(setup, [bytes]);
    assert_eq!(whole, run(setup, bytes.chunks(1)), "byte by byte");
    assert_eq!(whole, run(setup, corpus::random_cuts(bytes)), "at random");
    whole
}

fn encoded_again(role: Role, outcome: &Outcome) {
    let complete: Vec<&Message> = outcome.messages.iter().filter(|message| message.complete).collect();
    if complete.is_empty() {
        return;
    }
    let bytes: Vec<u8> = complete.iter().flat_map(|message| write(message)).collect();
    let roomy = Limits { head_bytes_max: 1 << 24, start_line_bytes_max: 1 << 24, ..Limits::default() };
    let close = complete.last().is_some_and(|message| message.framing == Framing::UntilClose);
    let again = run(&Setup { role, limits: roomy, close, ..Setup::default() }, [&bytes[..]]);
    assert_eq!(
        again.messages.iter().collect::<Vec<_>>(),
        complete,
        "encoded again as {:?}",
        bytes.escape_ascii()
    );
    assert!(
        matches!(again.ending, Ending::Idle | Ending::Left(0)),
        "{:?} after encoding again",
        again.ending
    );
}

fn write(message: &Message) -> Vec<u8> {
    let mut bytes = [&message.start_line[..], b"\r\n"].concat();
    for (name, value) in &message.fields {
        bytes.extend([&name[..], b": ", value, b"\r\n"].concat());
    }
    bytes.extend(b"\r\n");
    match message.framing {
        Framing::Chunked => bytes.extend(write_chunked(&message.content, &message.trailers)),
        _ => bytes.extend(&message.content),
    }
    bytes
}

fn write_chunked(content: &[u8], trailers: &Pairs) -> Vec<u8> {
    let mut bytes = Vec::new();
    for chunk in content.chunks(7) {
        encode::write_chunk_start(&mut bytes, chunk.len());
        bytes.extend_from_slice(chunk);
        bytes.extend_from_slice(encode::CHUNK_END);
    }
    let mut fields = Fields::new();
    for (name, value) in trailers {
        fields.try_push(name, value).expect("an accepted trailer is valid");
    }
    encode::write_last_chunk(&mut bytes, &fields);
    bytes
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Decoded {
    content: Vec<u8>,
    trailers: Pairs,
    /// Offset of the body's end.
    consumed: Option<usize>,
    reject: Option<http::Reject>,
}

fn decode<'b>(
    bytes: &[u8],
    pieces: impl IntoIterator<Item = &'b [u8]>,
    content_max: u64,
    limits: &Limits,
) -> Decoded {
    let mut body = Body::new(Framing::Chunked, content_max).expect("no length is announced");
    let mut decoded = Decoded::default();
    let mut at = 0;
    for piece in pieces {
        let end = at + piece.len();
        while at < end && !body.is_end() {
            let fed = match body.feed(&bytes[at..end], limits) {
                Ok(fed) => fed,
                Err(reject) => return Decoded { reject: Some(reject), ..decoded },
            };
            assert!(fed.consumed > 0 && fed.data_start <= fed.data_end && fed.data_end <= fed.consumed);
            decoded.content.extend_from_slice(&bytes[at + fed.data_start..at + fed.data_end]);
            at += fed.consumed;
            assert!(decoded.content.len() as u64 <= content_max, "content above its limit");
        }
    }
    assert!(body.trailers().as_bytes().len() <= 2 * limits.head_bytes_max, "trailers above their limit");
    if body.is_end() {
        decoded.trailers = body.trailers().iter().map(|(name, value)| (name.into(), value.into())).collect();
        decoded.consumed = Some(at);
    }
    decoded
}

/// The content of a complete, valid chunked body. Ignores trailers.
fn plain_chunked(mut bytes: &[u8]) -> Option<Vec<u8>> {
    let mut content = Vec::new();
    loop {
        let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
        let line = std::str::from_utf8(bytes.get(..end)?.split(|&byte| byte == b';').next()?).ok()?;
        let line = line.trim_end_matches([' ', '\t']);
        let size = usize::from_str_radix(line, 16).ok().filter(|_| !line.starts_with('+'))?;
        bytes = &bytes[end + 2..];
        if size == 0 {
            return bytes.ends_with(b"\r\n").then_some(content);
        }
        content.extend_from_slice(bytes.get(..size)?);
        bytes = bytes.get(size..)?.strip_prefix(b"\r\n")?;
    }
}

fn target_is_taken_apart(found: &Target, buffer: &[u8]) {
    let whole = found.whole.of(buffer);
    let path = found.path.of(buffer);
    let authority = found.authority.of(buffer);
    let query = found.query.map_or(Vec::new(), |query| [b"?", query.of(buffer)].concat());
    assert!(path.is_empty() || path[0] == b'/', "a path begins with a slash");
    assert!(!path.contains(&b'?'), "a path ends before the query");
    match found.form {
        TargetForm::Origin => assert_eq!(whole, [path, &query].concat()),
        TargetForm::Absolute => {
            let scheme = &whole[..whole.len() - authority.len() - path.len() - query.len()];
            assert!(scheme.eq_ignore_ascii_case(b"http://") || scheme.eq_ignore_ascii_case(b"https://"));
            assert!(whole.ends_with(&[authority, path, &query].concat()));
            assert!(!authority.is_empty() && target::is_authority(authority));
        }
        TargetForm::Authority => assert!(authority == whole && target::is_authority(whole)),
        TargetForm::Asterisk => assert_eq!(whole, b"*"),
    }
}

/// Both forms of a path are normalized and equivalent.
fn path_is_one(raw: &[u8], empty: EmptySegments) {
    let (normal, encoded) = match (path::normal_path(raw, empty), path::encoded_path(raw, empty)) {
        (Ok(normal), Ok(encoded)) => (normal, encoded),
        (normal, encoded) => return assert_eq!(normal.err(), encoded.err(), "one form is refused"),
    };
    assert!(!normal.contains(&0));
    for form in [&normal, &encoded] {
        assert_eq!(form.first(), Some(&b'/'), "a path stays absolute");
        let segments: Vec<&[u8]> = form.split(|&byte| byte == b'/').skip(1).collect();
        let (last, before) = segments.split_last().expect("a path has a segment");
        assert!(!matches!(*last, b"." | b".."), "a dot segment is left");
        assert!(!before.iter().any(|segment| matches!(*segment, b"." | b"..")), "a dot segment is left");
        let empties = before.iter().filter(|segment| segment.is_empty()).count();
        assert!(empties == 0 || empty == EmptySegments::Keep, "an empty segment is left");
        assert!(before.first().is_none_or(|first| !first.is_empty()), "the path begins as a host does");
    }
    let stands = |&byte: &u8| byte == b'%' || scan::is_path_byte(byte);
    assert!(encoded.iter().all(stands), "a byte that may not stand in a path");
    assert_eq!(path::normal_path(&encoded, empty), Ok(normal.clone()), "encoding changes what it says");
    assert_eq!(path::encoded_path(&encoded, empty), Ok(encoded.clone()), "encoding is not final");
    assert_eq!(
        path::has_encoded_slash(&encoded),
        path::has_encoded_slash(raw) && !is_resolved_away(&encoded)
    );
    let matched = path::matched_path(raw, empty).expect("a path that has the other forms has this one");
    assert_eq!(path::strip_prefix(&encoded, &matched), Some(&b""[..]));
    for piece in read_carelessly(&encoded).split(|&byte| byte == b'/') {
        let name = piece.split(|&byte| byte == b';').next().unwrap_or_default();
        assert!(!matches!(name, b"." | b".."), "a careless server climbs");
    }
}

/// Whether no encoded slash is left: it was in a segment that `..` removed.
fn is_resolved_away(encoded: &[u8]) -> bool {
    let left = |three: &[u8]| matches!(three.to_ascii_uppercase().as_slice(), b"%2F" | b"%5C");
    !encoded.windows(3).any(left)
}

/// The path as read by a server that decodes first and treats backslashes as slashes.
fn read_carelessly(encoded: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = encoded;
    while let [byte, after @ ..] = rest {
        (rest, _) = match (byte, after) {
            (b'%', [high, low, after @ ..]) => {
                let digit = |byte: &u8| scan::hex_value(*byte).expect("an encoded path is well encoded");
                (after, out.push(digit(high) << 4 | digit(low)))
            }
            _ => (after, out.push(*byte)),
        };
    }
    out.iter_mut().filter(|byte| **byte == b'\\').for_each(|byte| *byte = b'/');
    out
}
