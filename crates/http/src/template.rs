//! Texts with request variables, such as `https://$host$path`.

use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use crate::encode::write_decimal;
use crate::field_list::Field;
use crate::head::Head;
use crate::ids::RequestIds;
use crate::log_variable::LogVariable;
use crate::name::Name;
use crate::path::{EmptySegments, encode_beyond_ascii, encoded_path, strip_prefix};
use crate::scan;
use crate::target::split_port;

/// A variable in a text. Each name has the same meaning everywhere; each directive defines which variables it
/// allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Variable {
    /// `$path`: the path that routes match, percent-encoded.
    Path,
    /// `$rest`: the part of the path that the final `*` of the route's path matched, percent-encoded.
    Rest,
    /// `$query`: the query with its `?`; empty if there is none. Bytes beyond ASCII are percent-encoded.
    Query,
    /// `$args`: the query without its `?`.
    Args,
    /// `$uri`: `$path` and `$query`.
    Uri,
    /// `$host`: the host that the request is for, in lower case, without port.
    Host,
    /// `$scheme`: `http` or `https`.
    Scheme,
    /// `$method`: the method, as sent.
    Method,
    /// `$remote_addr`, or `$client_ip`: the client's IP address; `unix:` over a Unix socket.
    RemoteAddr,
    /// `$remote_user`: the user that `auth` has verified; empty if there is none.
    RemoteUser,
    /// `$country`: the code of the client's country, two letters; empty if it is not known.
    Country,
    /// `$client_port`: the client's port; 0 if it is not known.
    ClientPort,
    /// `$upstream`: `host:port` of the upstream server that gets the request.
    Upstream,
    /// `$request_id`: the id of the request (`request_ids`); empty if it has none.
    RequestId,
    /// `$trace_id`: the id of the trace that the request is part of, 32 hexadecimal digits (`[tracing]`);
    /// empty if there is none.
    TraceId,
    /// `$span_id`: this server's span in that trace, 16 hexadecimal digits.
    SpanId,
    /// `$http_NAME`: the first request field of that name; `_` stands for `-`. `$http_host` is the host with
    /// its port, as sent, even if it was sent in the request target.
    Field(String),
    /// `$cookie_NAME`: the first cookie of that name.
    Cookie(String),
    /// `$status` and others: properties of a completed request, for logs.
    Log(LogVariable),
    /// `$tls_version` and others: properties of the client's TLS connection; empty without TLS.
    Tls(TlsVariable),
    /// `$1`, `$id`: the text that a group of the route's regular expression matched, or the result of a map
    /// by its name.
    Custom(String),
}

/// Kind of a variable's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VariableKind {
    /// Text.
    Text,
    /// A number in decimal digits, perhaps with decimals.
    Number,
    /// `true` or `false`.
    Boolean,
}

/// A property of the client's TLS connection with this server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsVariable {
    /// `$tls_version`: `TLSv1.3` or `TLSv1.2`.
    Version,
    /// `$tls_cipher`: the cipher suite by its OpenSSL name, which for TLS 1.3 is the IANA name.
    Cipher,
    /// `$tls_resumed`: `true` if the session was resumed; `false` after a full handshake.
    Resumed,
    /// `$tls_server_name`: the host that the client asked for (SNI).
    ServerName,
    /// `$tls_client_verify`: `SUCCESS` if the client has sent a valid certificate; `NONE` otherwise.
    ClientVerify,
    /// `$tls_client_subject`: the distinguished name of the client's certificate.
    ClientSubject,
    /// `$tls_client_issuer`: the distinguished name of the certificate's issuer.
    ClientIssuer,
    /// `$tls_client_san`: the certificate's alternative names, as `DNS:a.example, email:b@example`.
    ClientSan,
    /// `$tls_client_serial`: the certificate's serial number in hexadecimal digits.
    ClientSerial,
    /// `$tls_client_fingerprint`: the certificate's SHA-256 in hexadecimal digits.
    ClientFingerprint,
    /// `$tls_client_certificate`: the certificate in PEM, percent-encoded.
    ClientCertificate,
}

/// A source of the properties of a TLS connection.
pub trait TlsValues {
    /// Appends the value of a property; nothing if there is none.
    fn write(&self, variable: TlsVariable, out: &mut Vec<u8>);
}

/// A source of the variables that a configuration defines: captures of the route's path, maps, and countries.
pub trait CustomVariables {
    /// Appends the value of the variable of that name; nothing if there is none. Text sent by the client is
    /// percent-encoded: everything but unreserved characters (RFC 3986 section 2.3) if `is_strict`, otherwise
    /// bytes that are not allowed in a path.
    fn write(&self, name: &str, is_strict: bool, values: &VariableValues<'_>, out: &mut Vec<u8>);

    /// Returns the ISO 3166-1 code, in upper case, of the country of an address, if known.
    fn country(&self, _address: IpAddr) -> Option<[u8; 2]> {
        None
    }
}

/// Variables by name. `http_NAME` and `cookie_NAME` are those of every field and cookie.
static VARIABLES_BY_NAME: [(&str, Variable); 55] = [
    ("path", Variable::Path),
    ("rest", Variable::Rest),
    ("query", Variable::Query),
    ("args", Variable::Args),
    ("uri", Variable::Uri),
    ("host", Variable::Host),
    ("scheme", Variable::Scheme),
    ("method", Variable::Method),
    ("remote_addr", Variable::RemoteAddr),
    ("client_ip", Variable::RemoteAddr),
    ("remote_user", Variable::RemoteUser),
    ("country", Variable::Country),
    ("client_port", Variable::ClientPort),
    ("upstream", Variable::Upstream),
    ("request_id", Variable::RequestId),
    ("trace_id", Variable::TraceId),
    ("span_id", Variable::SpanId),
    ("time", Variable::Log(LogVariable::Time)),
    ("time_local", Variable::Log(LogVariable::TimeLocal)),
    ("proxy_addr", Variable::Log(LogVariable::ProxyAddr)),
    ("target", Variable::Log(LogVariable::Target)),
    ("version", Variable::Log(LogVariable::Version)),
    ("referer", Variable::Log(LogVariable::Referer)),
    ("user_agent", Variable::Log(LogVariable::UserAgent)),
    ("status", Variable::Log(LogVariable::Status)),
    ("body_bytes", Variable::Log(LogVariable::BodyBytes)),
    ("request_bytes", Variable::Log(LogVariable::RequestBytes)),
    ("duration_ms", Variable::Log(LogVariable::DurationMs)),
    ("request_time", Variable::Log(LogVariable::RequestTime)),
    ("first_byte_ms", Variable::Log(LogVariable::FirstByteMs)),
    ("queue_ms", Variable::Log(LogVariable::QueueMs)),
    ("server_cpu_ms", Variable::Log(LogVariable::ServerCpuMs)),
    ("worker", Variable::Log(LogVariable::Worker)),
    ("worker_cpu_ms", Variable::Log(LogVariable::WorkerCpuMs)),
    ("worker_memory_kib", Variable::Log(LogVariable::WorkerMemoryKib)),
    ("connect_ms", Variable::Log(LogVariable::ConnectMs)),
    ("upstream_ms", Variable::Log(LogVariable::UpstreamMs)),
    ("attempts", Variable::Log(LogVariable::Attempts)),
    ("branch", Variable::Log(LogVariable::Branch)),
    ("cache", Variable::Log(LogVariable::Cache)),
    ("reason", Variable::Log(LogVariable::Reason)),
    ("fault", Variable::Log(LogVariable::Fault)),
    ("tls_version", Variable::Tls(TlsVariable::Version)),
    ("tls_cipher", Variable::Tls(TlsVariable::Cipher)),
    ("tls_resumed", Variable::Tls(TlsVariable::Resumed)),
    ("tls_server_name", Variable::Tls(TlsVariable::ServerName)),
    ("tls_client_verify", Variable::Tls(TlsVariable::ClientVerify)),
    ("tls_client_subject", Variable::Tls(TlsVariable::ClientSubject)),
    ("tls_client_issuer", Variable::Tls(TlsVariable::ClientIssuer)),
    ("tls_client_san", Variable::Tls(TlsVariable::ClientSan)),
    ("tls_client_serial", Variable::Tls(TlsVariable::ClientSerial)),
    ("tls_client_fingerprint", Variable::Tls(TlsVariable::ClientFingerprint)),
    ("tls_client_certificate", Variable::Tls(TlsVariable::ClientCertificate)),
    ("http_NAME", Variable::Field(String::new())),
    ("cookie_NAME", Variable::Cookie(String::new())),
];

impl Variable {
    /// All names, without the `$`; `http_NAME` and `cookie_NAME` stand for those of every field and cookie.
    pub fn names() -> impl Iterator<Item = &'static str> {
        VARIABLES_BY_NAME.iter().map(|(name, _)| *name)
    }

    /// The variable of that name, without the `$`.
    #[must_use]
    pub fn named(name: &str) -> Option<Variable> {
        if let Some(field) = name.strip_prefix("http_") {
            return scan::is_token(field.as_bytes()).then(|| Variable::Field(field.replace('_', "-")));
        }
        if let Some(cookie) = name.strip_prefix("cookie_") {
            return scan::is_token(cookie.as_bytes()).then(|| Variable::Cookie(cookie.into()));
        }
        VARIABLES_BY_NAME.iter().find(|(known, _)| *known == name).map(|(_, variable)| variable.clone())
    }

    /// Returns the kind of the variable's value.
    #[must_use]
    pub fn kind(&self) -> VariableKind {
        match self {
            Variable::Log(variable) if variable.is_number() => VariableKind::Number,
            Variable::ClientPort => VariableKind::Number,
            Variable::Tls(TlsVariable::Resumed) => VariableKind::Boolean,
            _ => VariableKind::Text,
        }
    }

    /// The variable's first name among [`Variable::names`]; `NAME` for variables that the configuration
    /// defines.
    #[must_use]
    pub fn canonical_name(&self) -> &'static str {
        if let Variable::Custom(_) = self {
            return "NAME";
        }
        let is_same = |other: &Variable| match (other, self) {
            (Variable::Tls(other), Variable::Tls(this)) => other == this,
            (Variable::Log(other), Variable::Log(this)) => other == this,
            _ => std::mem::discriminant(other) == std::mem::discriminant(self),
        };
        VARIABLES_BY_NAME
            .iter()
            .find(|(_, variable)| is_same(variable))
            .map(|(name, _)| *name)
            .expect("each has a name")
    }

    /// Appends the variable's value for a request; nothing for variables that are known only after the
    /// request.
    pub fn write(&self, out: &mut Vec<u8>, values: &VariableValues<'_>) {
        self.write_in(out, values, false);
    }

    /// Like [`Variable::write`]; `is_strict` is set for parts of a URL other than the path, see
    /// [`CustomVariables::write`].
    fn write_in(&self, out: &mut Vec<u8>, values: &VariableValues<'_>, is_strict: bool) {
        match self {
            Variable::Log(_) => {}
            Variable::Custom(name) => {
                if let Some(own) = values.custom {
                    own.write(name, is_strict, values, out);
                }
            }
            Variable::Path => out.extend_from_slice(&values.path()),
            Variable::Rest => {
                out.extend_from_slice(strip_prefix(&values.path(), values.prefix).unwrap_or_default());
            }
            Variable::Query => values.write_query(out),
            Variable::Args => out.extend_from_slice(&values.args().unwrap_or_default()),
            Variable::Uri => {
                out.extend_from_slice(&values.path());
                values.write_query(out);
            }
            Variable::Host => {
                let authority = values.authority();
                let start = out.len();
                out.extend_from_slice(split_port(authority).map_or(authority, |(host, _)| host));
                out[start..].make_ascii_lowercase();
            }
            Variable::Scheme => out.extend_from_slice(if values.is_secure { b"https" } else { b"http" }),
            Variable::Method => out.extend_from_slice(values.head.method_name.of(values.bytes)),
            Variable::RemoteAddr => match values.client {
                Some(address) => out.extend_from_slice(address.ip().to_canonical().to_string().as_bytes()),
                None => out.extend_from_slice(b"unix:"),
            },
            Variable::RemoteUser => out.extend_from_slice(values.user),
            Variable::Country => {
                if let Some(country) = values.custom.and_then(|own| own.country(values.client?.ip())) {
                    out.extend_from_slice(&country);
                }
            }
            Variable::ClientPort => {
                write_decimal(out, values.client.map_or(0, |address| address.port()).into());
            }
            Variable::Upstream => out.extend_from_slice(values.upstream.as_bytes()),
            Variable::RequestId => values.ids.write_request_id(values.head, values.bytes, out),
            Variable::TraceId => values.ids.trace.iter().for_each(|trace| trace.write_trace(out)),
            Variable::SpanId => values.ids.trace.iter().for_each(|trace| trace.write_span(out)),
            Variable::Field(name) => out.extend_from_slice(values.field(name)),
            Variable::Cookie(name) => out.extend_from_slice(values.cookie(name).unwrap_or_default()),
            Variable::Tls(variable) => {
                if let Some(tls) = values.tls {
                    tls.write(*variable, out);
                }
            }
        }
    }
}

/// The values of the variables for one request.
#[derive(Clone, Copy)]
pub struct VariableValues<'x> {
    /// The parsed head.
    pub head: &'x Head,
    /// The bytes that the head's spans refer to.
    pub bytes: &'x [u8],
    /// Treatment of empty path segments.
    pub empty_segments: EmptySegments,
    /// The client's address; `None` over a Unix socket.
    pub client: Option<SocketAddr>,
    /// Whether the client uses `https`.
    pub is_secure: bool,
    /// The client's TLS connection with this server.
    pub tls: Option<&'x dyn TlsValues>,
    /// The ids of the request.
    pub ids: RequestIds,
    /// The user that the server has verified; empty if there is none.
    pub user: &'x [u8],
    /// The part of the route's path before the final `*`, decoded: for `$rest`.
    pub prefix: &'x [u8],
    /// `host:port` of the chosen upstream server.
    pub upstream: &'x str,
    /// The variables that the configuration defines.
    pub custom: Option<&'x dyn CustomVariables>,
}

impl<'x> VariableValues<'x> {
    /// The encoded path; empty if the path is refused.
    fn path(&self) -> Cow<'x, [u8]> {
        encoded_path(self.head.target.path(self.bytes), self.empty_segments).unwrap_or_default()
    }

    fn args(&self) -> Option<Cow<'x, [u8]>> {
        self.head.target.query.map(|query| encode_beyond_ascii(query.of(self.bytes)))
    }

    fn write_query(&self, out: &mut Vec<u8>) {
        if let Some(args) = self.args() {
            out.push(b'?');
            out.extend_from_slice(&args);
        }
    }

    fn authority(&self) -> &'x [u8] {
        self.head.authority.of(self.bytes)
    }

    /// The first value of the request field of that name (case-insensitive); empty if there is none. `Host`
    /// is the request's authority, wherever it was sent.
    #[must_use]
    pub fn field(&self, name: &str) -> &'x [u8] {
        if name.eq_ignore_ascii_case("host") {
            return self.authority();
        }
        let is_it = |field: &&Field| field.name.of(self.bytes).eq_ignore_ascii_case(name.as_bytes());
        self.head.fields.iter().find(is_it).map_or(b"", |field| field.value.of(self.bytes))
    }

    /// The first value of the cookie of that name (RFC 6265 section 4.2).
    #[must_use]
    pub fn cookie(&self, name: &str) -> Option<&'x [u8]> {
        let bytes = self.bytes;
        let cookies = self.head.fields.named(Name::Cookie);
        cookies.flat_map(|field| field.value.of(bytes).split(|&byte| byte == b';')).find_map(|pair| {
            let pair = scan::trim(pair);
            pair.strip_prefix(name.as_bytes())?.strip_prefix(b"=")
        })
    }
}

/// A piece of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TemplatePart {
    /// Literal text.
    Text(String),
    /// The value of a variable.
    Variable(Variable),
}

/// A text with variables, parsed once and filled in for each request. Except after
/// [`Template::parse_content`], the text contains no control character but tab, so that a field value made
/// from it stays on one line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Template {
    /// The parts in order; no two texts are adjacent and none is empty.
    parts: Vec<TemplatePart>,
}

/// Why a text is not a valid template, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateError<'t> {
    /// The range of the invalid bytes.
    pub at: Range<usize>,
    /// The error.
    pub fault: TemplateFault<'t>,
}

/// The kind of a template error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TemplateFault<'t> {
    /// A `${` without its `}`.
    Unclosed,
    /// A `$` without a name after it.
    MissingName,
    /// An unknown variable, or one that is not allowed here.
    Unknown(&'t str),
    /// A control character.
    Control,
}

impl Template {
    /// Parses a text in which `$name` or `${name}` stands for a variable and `$$` for a dollar sign.
    /// `allowed` decides which variables are accepted.
    ///
    /// # Errors
    /// The first error.
    pub fn parse(text: &str, allowed: impl Fn(&Variable) -> bool) -> Result<Template, TemplateError<'_>> {
        Template::parse_with(text, allowed, |_| false)
    }

    /// Like [`Template::parse`]; `is_custom` accepts the names of variables that the configuration defines.
    ///
    /// # Errors
    /// The first error.
    pub fn parse_with(
        text: &str,
        allowed: impl Fn(&Variable) -> bool,
        is_custom: impl Fn(&str) -> bool,
    ) -> Result<Template, TemplateError<'_>> {
        if let Some((at, control)) = text.char_indices().find(|(_, c)| c.is_ascii_control() && *c != '\t') {
            return Err(TemplateError { at: at..at + control.len_utf8(), fault: TemplateFault::Control });
        }
        Template::parse_content(text, allowed, is_custom)
    }

    /// Like [`Template::parse_with`] for content rather than field values: line ends and other control
    /// characters are allowed.
    ///
    /// # Errors
    /// The first error.
    pub fn parse_content(
        text: &str,
        allowed: impl Fn(&Variable) -> bool,
        is_custom: impl Fn(&str) -> bool,
    ) -> Result<Template, TemplateError<'_>> {
        let mut parts = Vec::new();
        let mut plain = String::new();
        let mut at = 0;
        while let Some(dollar) = text[at..].find('$').map(|offset| at + offset) {
            plain.push_str(&text[at..dollar]);
            let (name, end) = name_after(text, dollar)?;
            at = end;
            if name == "$" {
                plain.push('$');
                continue;
            }
            let own = || is_custom(name).then(|| Variable::Custom(name.to_owned()));
            let Some(variable) = Variable::named(name).filter(&allowed).or_else(own) else {
                return Err(TemplateError { at: dollar..end, fault: TemplateFault::Unknown(name) });
            };
            if !plain.is_empty() {
                parts.push(TemplatePart::Text(std::mem::take(&mut plain)));
            }
            parts.push(TemplatePart::Variable(variable));
        }
        plain.push_str(&text[at..]);
        if !plain.is_empty() {
            parts.push(TemplatePart::Text(plain));
        }
        Ok(Template { parts })
    }

    /// The parts in order; no two texts are adjacent and none is empty.
    #[must_use]
    pub fn parts(&self) -> &[TemplatePart] {
        &self.parts
    }

    /// Whether the template contains the variable.
    #[must_use]
    pub fn uses(&self, variable: &Variable) -> bool {
        self.parts.iter().any(|part| matches!(part, TemplatePart::Variable(named) if named == variable))
    }

    /// The text before the first variable.
    #[must_use]
    pub fn literal_prefix(&self) -> &str {
        match self.parts.first() {
            Some(TemplatePart::Text(text)) => text,
            _ => "",
        }
    }

    /// The whole text if the template contains no variable.
    #[must_use]
    pub fn as_literal(&self) -> Option<&str> {
        match self.parts.as_slice() {
            [] => Some(""),
            [TemplatePart::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// Appends the text with the values of its variables. Paths and queries are percent-encoded, because
    /// decoded they may contain any byte. Values from a parsed head contain no control characters.
    pub fn write(&self, out: &mut Vec<u8>, values: &VariableValues<'_>) {
        self.write_each(out, values, |_, _| {});
    }

    /// Like [`Template::write`]; `escape` may change the value of a variable, which begins at the given byte
    /// of the text.
    pub fn write_each(
        &self,
        out: &mut Vec<u8>,
        values: &VariableValues<'_>,
        escape: impl Fn(&mut Vec<u8>, usize),
    ) {
        let mut place = UrlPosition::Path;
        for part in &self.parts {
            match part {
                TemplatePart::Text(text) => {
                    place = place.after(text);
                    out.extend_from_slice(text.as_bytes());
                }
                TemplatePart::Variable(variable) => {
                    let start = out.len();
                    variable.write_in(out, values, place != UrlPosition::Path);
                    escape(out, start);
                }
            }
        }
    }
}

/// A position in a text that may be a URL.
#[derive(Clone, Copy, PartialEq)]
enum UrlPosition {
    Authority,
    Path,
    Query,
}

impl UrlPosition {
    /// Returns the place after a literal text.
    fn after(self, text: &str) -> UrlPosition {
        let (place, rest) = match text.split_once("://") {
            Some((_, rest)) => (UrlPosition::Authority, rest),
            None => (self, text),
        };
        match place {
            _ if rest.contains(['?', '#']) => UrlPosition::Query,
            UrlPosition::Authority if rest.contains('/') => UrlPosition::Path,
            place => place,
        }
    }
}

/// Returns the name after the dollar sign and the offset of the text after it; `$` for a second dollar sign.
fn name_after(text: &str, dollar: usize) -> Result<(&str, usize), TemplateError<'_>> {
    let after = &text[dollar + 1..];
    if after.starts_with('$') {
        return Ok(("$", dollar + 2));
    }
    if let Some(braced) = after.strip_prefix('{') {
        return match braced.find('}') {
            // `${$}` is not `$$`.
            Some(length) if !braced[..length].contains('$') => Ok((&braced[..length], dollar + length + 3)),
            Some(length) => Err(TemplateError {
                at: dollar..dollar + length + 3,
                fault: TemplateFault::Unknown(&braced[..length]),
            }),
            None => Err(TemplateError { at: dollar..text.len(), fault: TemplateFault::Unclosed }),
        };
    }
    // A number is a complete name: `$1a` is `$1` followed by `a`.
    let is_digit = after.starts_with(|c: char| c.is_ascii_digit());
    let ends = |c: char| if is_digit { !c.is_ascii_digit() } else { !c.is_ascii_alphanumeric() && c != '_' };
    let length = after.find(ends).unwrap_or(after.len());
    match length {
        0 => Err(TemplateError { at: dollar..dollar + 1, fault: TemplateFault::MissingName }),
        _ => Ok((&after[..length], dollar + 1 + length)),
    }
}

/// Formats the template in source form: parsing the output gives the same template.
impl fmt::Display for Template {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in &self.parts {
            match part {
                TemplatePart::Text(text) => out.write_str(&text.replace('$', "$$"))?,
                TemplatePart::Variable(Variable::Custom(name)) => write!(out, "${{{name}}}")?,
                TemplatePart::Variable(Variable::Field(name)) => write!(out, "${{http_{name}}}")?,
                TemplatePart::Variable(Variable::Cookie(name)) => write!(out, "${{cookie_{name}}}")?,
                TemplatePart::Variable(variable) => write!(out, "${{{}}}", variable.canonical_name())?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
