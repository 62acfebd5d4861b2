//! Requests, rendered once and sent many times.

use failure::Failure;
use http::{Fields, Method, Version};

use crate::url::Url;

/// Size of a chunk of a chunked upload.
const CHUNK_BYTES: usize = 16 * 1024;

/// Request to send, before it is rendered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BenchRequest {
    /// Method name.
    pub method: String,
    /// URL that is requested.
    pub url: Url,
    /// Request content; `Some` of an empty vector is sent with `Content-Length: 0`.
    pub body: Option<Vec<u8>>,
    /// Weight: number of times it is sent relative to the others. At least 1; default 1.
    pub weight: u32,
}

impl BenchRequest {
    /// Returns a GET request for `url`.
    #[must_use]
    pub fn get(url: Url) -> BenchRequest {
        BenchRequest { method: "GET".into(), url, body: None, weight: 1 }
    }
}

/// Settings that all requests have in common.
#[derive(Clone, Debug, Default)]
pub struct RequestSettings {
    /// HTTP/1.1, 1.0 or 2.
    pub version: Version,
    /// Whether the connection is kept after the response; otherwise every HTTP/1.1 request has `Connection:
    /// close` and an HTTP/1.0 request has no `Connection` field.
    pub keep_alive: bool,
    /// Whether content is sent with the chunked transfer coding.
    pub chunked: bool,
    /// Additional fields. They replace default fields of the same name.
    pub fields: Fields,
}

/// Head of an HTTP/2 request. It is encoded for each connection, because HPACK depends on earlier heads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamHead {
    /// Method name.
    pub method: String,
    /// Scheme: `http` or `https`.
    pub scheme: &'static str,
    /// Host and port.
    pub authority: String,
    /// Path and query.
    pub path: String,
    /// Header fields.
    pub fields: Fields,
}

impl StreamHead {
    /// Builds the head of a request; a `Host` field becomes the authority.
    fn from_request(request: &BenchRequest, fields: &Fields) -> StreamHead {
        let host = fields.first(b"host").map(|host| String::from_utf8_lossy(host).into_owned());
        let mut others = Fields::new();
        for (name, value) in fields.iter().filter(|(name, _)| !name.eq_ignore_ascii_case(b"host")) {
            others.try_push(name, value).expect("checked when they were read");
        }
        StreamHead {
            method: request.method.clone(),
            scheme: if request.url.tls { "https" } else { "http" },
            authority: host.unwrap_or_else(|| request.url.authority()),
            path: request.url.target.clone(),
            fields: others,
        }
    }
}

/// Request in wire format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireRequest {
    /// Serialized head and content; over HTTP/2 only the content.
    pub bytes: Vec<u8>,
    /// Head of the request, only over HTTP/2.
    pub head: Option<StreamHead>,
    /// Method, which determines the framing of the response.
    pub method: Method,
    /// Index of the origin in the plan.
    pub origin: usize,
}

/// Renders `ask`, which goes to the origin with index `origin`.
///
/// # Errors
/// Describes what cannot be sent.
pub fn render(
    request: &BenchRequest,
    settings: &RequestSettings,
    origin: usize,
) -> Result<WireRequest, Failure> {
    let chunked = settings.chunked && request.body.is_some();
    if chunked && settings.version != Version::Http11 {
        let (name, option) = match settings.version {
            Version::Http2 => ("HTTP/2", "--http2"),
            Version::Http3 => ("HTTP/3", "--http3"),
            _ => ("HTTP/1.0", "--http1.0"),
        };
        return Err(Failure::new(format!("{name} has no chunked coding: leave out --chunked or {option}")));
    }
    if request.method.is_empty()
        || !request.method.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_!".contains(&b))
    {
        return Err(Failure::new(format!("{:?} is not a method", request.method)));
    }
    let mut fields = Fields::new();
    let mut push = |name: &str, value: &str| {
        if settings.fields.first(name.as_bytes()).is_none() {
            fields.try_push(name.as_bytes(), value.as_bytes()).expect("checked with the URL");
        }
    };
    let is_multiplexed = matches!(settings.version, Version::Http2 | Version::Http3);
    if !is_multiplexed {
        push("Host", &request.url.authority());
    }
    push("User-Agent", concat!("komainu/", env!("CARGO_PKG_VERSION")));
    push("Accept", "*/*");
    match (settings.version, settings.keep_alive) {
        (Version::Http10, true) => push("Connection", "keep-alive"),
        (Version::Http11, false) => push("Connection", "close"),
        _ => {}
    }
    if let Some(body) = &request.body {
        push("Content-Type", "application/x-www-form-urlencoded");
        // The framing fields cannot be replaced.
        for name in ["Content-Length", "Transfer-Encoding"] {
            if settings.fields.first(name.as_bytes()).is_some() {
                return Err(Failure::new(format!("{name} follows from the content: leave it out")));
            }
        }
        if chunked {
            push("Transfer-Encoding", "chunked")
        } else {
            push("Content-Length", &body.len().to_string())
        }
    }
    fields.extend(&settings.fields);
    let method = Method::of(request.method.as_bytes());
    let content = request.body.as_deref().unwrap_or_default();
    if is_multiplexed {
        let head = StreamHead::from_request(request, &fields);
        return Ok(WireRequest { bytes: content.to_vec(), head: Some(head), method, origin });
    }
    let mut bytes =
        format!("{} {} {}\r\n", request.method, request.url.target, settings.version.text()).into_bytes();
    bytes.extend_from_slice(fields.as_bytes());
    bytes.extend_from_slice(b"\r\n");
    if chunked {
        push_chunks(&mut bytes, content)
    } else {
        bytes.extend_from_slice(content)
    }
    Ok(WireRequest { bytes, head: None, method, origin })
}

fn push_chunks(out: &mut Vec<u8>, body: &[u8]) {
    for chunk in body.chunks(CHUNK_BYTES) {
        http::encode::write_chunk_start(out, chunk.len());
        out.extend_from_slice(chunk);
        out.extend_from_slice(http::encode::CHUNK_END);
    }
    http::encode::write_last_chunk(out, &Fields::new());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(request: &BenchRequest, settings: &RequestSettings) -> String {
        String::from_utf8(render(request, settings, 0).unwrap().bytes).unwrap()
    }

    fn post(body: &[u8]) -> BenchRequest {
        let url = Url::parse("http://h:81/p?q").unwrap();
        BenchRequest { method: "POST".into(), body: Some(body.to_vec()), ..BenchRequest::get(url) }
    }

    #[test]
    fn connection_field_depends_on_the_http_version() {
        let ask = BenchRequest::get(Url::parse("http://h/").unwrap());
        for (version, keep_alive, said) in [
            (Version::Http11, true, None),
            (Version::Http11, false, Some("Connection: close\r\n")),
            (Version::Http10, true, Some("Connection: keep-alive\r\n")),
            (Version::Http10, false, None),
        ] {
            let text = text(&ask, &RequestSettings { version, keep_alive, ..RequestSettings::default() });
            assert!(text.starts_with(&format!("GET / {}\r\nHost: h\r\n", version.text())), "{text}");
            match said {
                Some(said) => assert!(text.contains(said), "{text}"),
                None => assert!(!text.contains("Connection"), "{text}"),
            }
        }
    }

    #[test]
    fn content_is_framed_by_length_or_in_chunks() {
        let keep = RequestSettings { keep_alive: true, ..RequestSettings::default() };
        assert!(text(&post(b"ab"), &keep).ends_with("Content-Length: 2\r\n\r\nab"));
        assert!(text(&post(b""), &keep).ends_with("Content-Length: 0\r\n\r\n"));
        let chunked = RequestSettings { chunked: true, ..keep.clone() };
        assert!(
            text(&post(b"ab"), &chunked).ends_with("Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n")
        );
        assert!(!text(&BenchRequest::get(post(b"").url), &chunked).contains("chunked"));
        let old = RequestSettings { version: Version::Http10, ..chunked };
        assert!(render(&post(b"ab"), &old, 0).unwrap_err().to_string().contains("1.0"));
    }

    #[test]
    fn given_fields_replace_default_ones_but_not_framing() {
        let mut fields = Fields::new();
        fields.try_push(b"host", b"other").unwrap();
        fields.try_push(b"X", b"y").unwrap();
        let manner = RequestSettings { keep_alive: true, fields, ..RequestSettings::default() };
        let said = text(&post(b"ab"), &manner);
        assert!(said.contains("host: other\r\n") && said.contains("X: y\r\n") && !said.contains("Host:"));
        let mut fields = Fields::new();
        fields.try_push(b"Content-Length", b"9").unwrap();
        let error =
            render(&post(b"ab"), &RequestSettings { fields, ..RequestSettings::default() }, 0).unwrap_err();
        assert!(error.to_string().contains("Content-Length"), "{error}");
    }
}
