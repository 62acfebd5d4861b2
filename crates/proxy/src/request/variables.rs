//! CGI variables of a request (RFC 3875 section 4.1), with the names that other web servers use.

use std::net::SocketAddr;

use cgi::Variables;
use http::encode::FieldWriter;
use http::path::{EmptySegments, matched_path, normal_path};
use http::{BodySize, Head, Name, Reject, TargetForm, encode, scan};

use super::{MessageSyntax, RequestRules, write_ip};
use crate::options::{CgiOptions, Host};
use crate::path;
use crate::template::TemplateContext;

/// Capacity for the variables of most requests, in bytes.
const VARIABLES_BYTES: usize = 1000;
/// Capacity for most single values, in bytes.
const TEXT_BYTES: usize = 64;
/// Capacity for the fields of most requests.
const FIELDS: usize = 24;
/// Value of `SERVER_SOFTWARE`.
pub const SOFTWARE: &[u8] = concat!("komainu/", env!("CARGO_PKG_VERSION")).as_bytes();

/// Script that a server runs for a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Script {
    /// Directory of the scripts as the server sees it, without a trailing slash.
    pub root: Vec<u8>,
    /// Path prefix that the route has stripped.
    pub prefix: Vec<u8>,
    /// Path of the script below `root`, with a leading slash.
    pub name: Vec<u8>,
    /// Part of the request's path after the script.
    pub info: Vec<u8>,
}

/// Data about a request that is not in its head.
#[derive(Clone, Copy)]
pub(crate) struct CgiContext<'x> {
    pub(crate) script: Option<&'x Script>,
    /// Length of the body in bytes.
    pub(crate) length: u64,
    /// Local address of the client's connection.
    pub(crate) local: Option<SocketAddr>,
}

impl RequestRules {
    /// Returns the variables of a request.
    ///
    /// # Errors
    /// The errors of [`RequestRules::write`].
    pub(crate) fn variables(
        &self,
        context: &TemplateContext<'_>,
        cgi: &CgiContext<'_>,
        options: &CgiOptions,
    ) -> Result<Variables, Reject> {
        let mut variables =
            VariablesBuilder { variables: Variables::with_capacity(VARIABLES_BYTES), options };
        let mut target = Vec::with_capacity(TEXT_BYTES);
        if context.head.sent_target.is_empty() {
            path::write_target(&mut target, None, context)?;
        } else {
            // The target was rewritten by a route; like nginx, this passes the target that the client sent.
            let sent = Head { target: context.head.sent_parts(context.bytes), ..context.head.clone() };
            path::write_target(&mut target, None, &TemplateContext { head: &sent, ..*context })?;
        }
        let query = context.head.target.query.map_or(&b""[..], |query| query.of(context.bytes));
        variables.push(b"GATEWAY_INTERFACE", b"CGI/1.1");
        variables.push(b"SERVER_SOFTWARE", SOFTWARE);
        variables.push(b"REQUEST_METHOD", context.head.method_name.of(context.bytes));
        variables.push(b"REQUEST_URI", &target);
        variables.push(b"QUERY_STRING", query);
        self.push_paths(&mut variables, context, cgi.script)?;
        push_addresses(&mut variables, context, cgi.local, &mut target);
        variables.push(b"SERVER_PROTOCOL", context.head.version.text().as_bytes());
        target.clear();
        if context.head.body != BodySize::None || context.head.fields.has(Name::ContentLength) {
            encode::write_decimal(&mut target, cgi.length);
        }
        variables.push(b"CONTENT_LENGTH", &target);
        if let Some(user) = context.user {
            variables.push(b"REMOTE_USER", &user.name);
            variables.push(b"AUTH_TYPE", user.scheme.as_bytes());
        }
        self.push_fields(&mut variables, context)?;
        let values = context.values();
        for (name, value) in &options.variables {
            let mut text = Vec::new();
            value.write(&mut text, &values);
            variables.variables.push(name.as_bytes(), &text);
        }
        Ok(variables.variables)
    }

    /// Adds the variables for the script and the path after it. Without a script, the whole path belongs to
    /// the application that is mounted at the route.
    fn push_paths(
        &self,
        variables: &mut VariablesBuilder<'_>,
        ask: &TemplateContext<'_>,
        script: Option<&Script>,
    ) -> Result<(), Reject> {
        let Some(script) = script else {
            if ask.head.target.form == TargetForm::Asterisk {
                variables.push(b"SCRIPT_NAME", b"");
                variables.push(b"PATH_INFO", b"*");
                return Ok(());
            }
            let raw = ask.head.target.path(ask.bytes);
            let path = if variables.options.keeps_encoded_slashes {
                matched_path(raw, ask.empty_segments)?
            } else {
                normal_path(raw, ask.empty_segments)?
            };
            let (mount, info) = match self.path.as_ref().and_then(|map| map.split_prefix(&path)) {
                Some((mount, to, rest)) => (mount, [&normal_path(to, EmptySegments::Keep)?, rest].concat()),
                None => (&b""[..], path.into_owned()),
            };
            variables.push(b"SCRIPT_NAME", mount);
            variables.push_parts(b"DOCUMENT_URI", &[mount, &info]);
            variables.push(b"PATH_INFO", &info);
            return Ok(());
        };
        let Script { root, prefix, name, info } = script;
        variables.push_parts(b"DOCUMENT_URI", &[prefix, name, info]);
        variables.push_parts(b"SCRIPT_NAME", &[prefix, name]);
        variables.push_parts(b"SCRIPT_FILENAME", &[root, name]);
        variables.push(b"DOCUMENT_ROOT", root);
        variables.push(b"PATH_INFO", info);
        if !info.is_empty() {
            variables.push_parts(b"PATH_TRANSLATED", &[root, info]);
        }
        // PHP's CGI binary requires this variable.
        variables.push(b"REDIRECT_STATUS", b"200");
        Ok(())
    }

    /// Adds a variable for each field that would be forwarded over HTTP, except where two fields would share
    /// a name.
    fn push_fields(
        &self,
        variables: &mut VariablesBuilder<'_>,
        ask: &TemplateContext<'_>,
    ) -> Result<(), Reject> {
        let mut head = Vec::with_capacity(VARIABLES_BYTES);
        let mut lines = FieldWriter::new(&mut head);
        // An HTTP/1.0 client may omit the host; then there is no variable for it.
        if !ask.authority().is_empty() || !matches!(self.options.host, Host::Pass) {
            lines.line(b"Host", self.host(ask));
        }
        self.write_fields(&mut lines, ask, false, MessageSyntax::Framed)?;
        let mut rest = &head[..];
        let mut fields: Vec<(&[u8], &[u8])> = Vec::with_capacity(FIELDS);
        fields.extend(std::iter::from_fn(|| next_field(&mut rest)));
        let repeated = repeated_lengths(&fields);
        for (index, (own, first)) in fields.iter().enumerate() {
            let is_own = |other: &&(&[u8], &[u8])| is_same_variable(other.0, own);
            if repeated & length_bit(own) == 0 {
                variables.push_field(own, first);
                continue;
            }
            if fields[..index].iter().any(|other| is_own(&other)) {
                continue;
            }
            let mut value = first.to_vec();
            let separator = if own.eq_ignore_ascii_case(b"cookie") { &b"; "[..] } else { b", " };
            for (_, more) in fields[index + 1..].iter().filter(is_own) {
                value.extend_from_slice(separator);
                value.extend_from_slice(more);
            }
            variables.push_field(own, &value);
        }
        Ok(())
    }
}

/// Variables, except those that the route's options replace.
struct VariablesBuilder<'x> {
    variables: Variables,
    options: &'x CgiOptions,
}

impl VariablesBuilder<'_> {
    fn push(&mut self, name: &[u8], value: &[u8]) {
        if !self.is_replaced(name) {
            self.variables.push(name, value);
        }
    }

    /// Adds a variable whose value is given in parts.
    fn push_parts(&mut self, name: &[u8], parts: &[&[u8]]) {
        if !self.is_replaced(name) {
            self.variables.push_parts(name, parts);
        }
    }

    /// Adds the variable of a field. Omitted: names that would collide with others, fields whose value is in
    /// another variable, and `Proxy`, which programs confuse with their own setting (CVE-2016-5385).
    fn push_field(&mut self, name: &[u8], value: &[u8]) {
        let is = |other: &str| name.eq_ignore_ascii_case(other.as_bytes());
        if is("content-type") {
            self.push(b"CONTENT_TYPE", value);
            return;
        }
        if is("content-length")
            || is("proxy")
            || name.iter().any(|byte| VARIABLE_BYTES[usize::from(*byte)] == 0)
        {
            return;
        }
        let in_variables = || name.iter().map(|byte| VARIABLE_BYTES[usize::from(*byte)]);
        let of_field =
            |own: &str| own.strip_prefix("HTTP_").is_some_and(|own| own.bytes().eq(in_variables()));
        if !self.options.variables.iter().any(|(own, _)| of_field(own)) {
            self.variables.push_mapped(b"HTTP_", name, &VARIABLE_BYTES, value);
        }
    }

    fn is_replaced(&self, name: &[u8]) -> bool {
        self.options.variables.iter().any(|(own, _)| own.as_bytes() == name)
    }
}

/// Adds the variables for the client's and the server's address. `text` is a scratch buffer.
fn push_addresses(
    variables: &mut VariablesBuilder<'_>,
    ask: &TemplateContext<'_>,
    local: Option<SocketAddr>,
    text: &mut Vec<u8>,
) {
    variables.push(b"REQUEST_SCHEME", ask.scheme().as_bytes());
    if ask.client.is_secure {
        variables.push(b"HTTPS", b"on");
    }
    text.clear();
    match ask.client_address() {
        Some(client) => {
            write_ip(text, client.ip());
            variables.push(b"REMOTE_ADDR", text);
            text.clear();
            encode::write_decimal(text, client.port().into());
            variables.push(b"REMOTE_PORT", text);
        }
        None => variables.push(b"REMOTE_ADDR", b"unix:"),
    }
    text.clear();
    // Port of the connection, regardless of `Host` (RFC 3875 section 4.1.15): programs interpret 443 as TLS.
    let address_bytes = match local {
        Some(local) => {
            write_ip(text, local.ip().to_canonical());
            let bytes = text.len();
            encode::write_decimal(text, local.port().into());
            bytes
        }
        None => {
            text.extend_from_slice(if ask.client.is_secure { b"443" } else { b"80" });
            0
        }
    };
    let (ip, own_port) = text.split_at(address_bytes);
    let host = http::target::split_port(ask.authority()).map_or(ask.authority(), |(host, _)| host);
    variables.push(b"SERVER_NAME", if host.is_empty() { ip } else { host });
    variables.push(b"SERVER_PORT", own_port);
    if !ip.is_empty() {
        variables.push(b"SERVER_ADDR", ip);
    }
}

/// Returns the name and value of the next field in a head that [`FieldWriter`] has written.
fn next_field<'x>(rest: &mut &'x [u8]) -> Option<(&'x [u8], &'x [u8])> {
    let (name, after) = rest.split_at_checked(scan::token_len(rest))?;
    let after = after.strip_prefix(b": ")?;
    let (value, after) = after.split_at(scan::value_len(after));
    *rest = after.strip_prefix(b"\r\n")?;
    Some((name, value.trim_ascii()))
}

/// Returns a bit for the length of a name, modulo 64.
fn length_bit(name: &[u8]) -> u64 {
    1 << (name.len() % 64)
}

/// Returns the bits of the lengths that occur more than once; only names of such a length can share a
/// variable.
fn repeated_lengths(fields: &[(&[u8], &[u8])]) -> u64 {
    let mut seen = 0;
    let mut repeated = 0;
    for (name, _) in fields {
        repeated |= seen & length_bit(name);
        seen |= length_bit(name);
    }
    repeated
}

/// Whether two field names map to the same variable: case is ignored and `-` equals `_`.
fn is_same_variable(one: &[u8], other: &[u8]) -> bool {
    let plain = |byte: u8| if byte == b'-' { b'_' } else { byte.to_ascii_lowercase() };
    one.len() == other.len() && one.iter().zip(other).all(|(&one, &other)| plain(one) == plain(other))
}

/// Bytes of field names as they appear in variables; 0 for bytes that prevent a variable.
const VARIABLE_BYTES: [u8; 256] = {
    let mut bytes = [0; 256];
    let mut byte = 0;
    while byte < 128 {
        let ascii = byte as u8;
        bytes[byte] = match ascii {
            b'-' | b'_' => b'_',
            _ if ascii.is_ascii_alphanumeric() => ascii.to_ascii_uppercase(),
            _ => 0,
        };
        byte += 1;
    }
    bytes
};
