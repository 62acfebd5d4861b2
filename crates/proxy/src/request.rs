//! Writes the upstream request head from the parsed one; the client's bytes are never copied as a whole.

use http::encode::FieldWriter;
use http::{
    BodySize, Dialect, Field, FieldList, Fields, Head, Method, Name, NameSet, Reject, RequestId, forwarded,
    ids, is_confusable, scan,
};
use net::websocket;

use crate::options::{self, GroupOptions, Host, PathMap, ProxyHeaders, RouteOptions};
use crate::path;
use crate::template::TemplateContext;

/// Field with the server's answer to the key of a WebSocket handshake.
pub(crate) const SEC_WEBSOCKET_ACCEPT: &[u8] = b"sec-websocket-accept";
/// `X-Forwarded-Proto` lines for the values of [`TemplateContext::scheme`].
const PROTO_HTTPS: &[u8] = b"X-Forwarded-Proto: https\r\n";
const PROTO_HTTP: &[u8] = b"X-Forwarded-Proto: http\r\n";
/// Fields that are always forwarded: [`RequestRules::passes`] has no case for them.
const ALWAYS_PASS: NameSet = NameSet::of(&[
    Name::Accept,
    Name::AcceptEncoding,
    Name::AcceptLanguage,
    Name::Authorization,
    Name::CacheControl,
    Name::ContentEncoding,
    Name::ContentLanguage,
    Name::ContentType,
    Name::Cookie,
    Name::IfMatch,
    Name::IfModifiedSince,
    Name::IfNoneMatch,
    Name::IfRange,
    Name::IfUnmodifiedSince,
    Name::Origin,
    Name::Pragma,
    Name::Range,
    Name::Referer,
    Name::UserAgent,
    Name::Via,
]);
/// Field that limits how often OPTIONS and TRACE are forwarded (RFC 9110 section 7.6.2).
const MAX_FORWARDS: &[u8] = b"Max-Forwards";
/// Maximum field names in `Connection`, in addition to the usual tokens.
const NAMED_MAX: usize = 32;

/// Rules for request heads.
#[derive(Debug)]
pub struct RequestRules {
    options: options::RequestOptions,
    path: Option<PathMap>,
    upgrades: Vec<String>,
    /// Whether to send `Connection: close`, because connections are not kept.
    sends_close: bool,
    /// Whether edits remove or replace fields.
    removes: bool,
    /// Comment in `Via` by which this proxy recognizes requests that it has forwarded.
    mark: String,
    /// Rest of the `Via` line after the version, including CRLF; empty if no `Via` is sent.
    via: String,
}

/// Properties of the request head that matter after it is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SentHead {
    /// Whether the request asks for a protocol switch (`Upgrade`).
    pub upgrade: bool,
    /// Whether `Expect: 100-continue` was forwarded, so that the body is sent later.
    pub expects: bool,
    /// Key generated for the WebSocket of an HTTP/2 client, which has none; the server's answer to it is
    /// verified.
    pub websocket_key: Option<[u8; websocket::KEY_BYTES]>,
}

/// The protocol that field lines are written for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MessageSyntax {
    /// A body of unknown length needs a transfer coding.
    Http1,
    /// The protocol itself frames the body: HTTP/2, HTTP/3, or one of the CGI family.
    Framed,
}

/// A request head for an HTTP/2 stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamRequestHead {
    /// Path and query, or `*`.
    pub path: Vec<u8>,
    /// `host[:port]`.
    pub authority: Vec<u8>,
    /// Field lines in HTTP/1 syntax.
    pub lines: Vec<u8>,
    /// Protocol of an extended CONNECT; empty for an ordinary request.
    pub protocol: Vec<u8>,
}

impl RequestRules {
    /// Creates the rules of a route to a group.
    #[must_use]
    pub fn new(group: &GroupOptions, route: &RouteOptions) -> RequestRules {
        RequestRules::with_mark(group, route, String::new())
    }

    fn with_mark(group: &GroupOptions, route: &RouteOptions, mark: String) -> RequestRules {
        let is_safe = |protocol: &&String| !protocol.eq_ignore_ascii_case("h2c");
        let via = &route.request.forwarded.via;
        RequestRules {
            via: via.as_ref().map(|via| format!(" {via}{mark}\r\n")).unwrap_or_default(),
            options: route.request.clone(),
            path: route.path.clone(),
            upgrades: route.upgrades.iter().filter(is_safe).cloned().collect(),
            sends_close: !group.keeps_connections(),
            removes: removes(&route.request.edits),
            mark,
        }
    }

    /// Like [`RequestRules::new`], with a mark in `Via` that detects loops. The mark must differ between
    /// routes and between processes, and be equal on all cores.
    #[must_use]
    pub fn marked(group: &GroupOptions, route: &RouteOptions, mark: u64) -> RequestRules {
        RequestRules::with_mark(group, route, format!(" ({mark:016x})"))
    }

    /// Whether this proxy has forwarded the request before, so that it loops. Always false without `Via`.
    #[must_use]
    pub fn is_loop(&self, context: &TemplateContext<'_>) -> bool {
        let mark = self.mark.trim_ascii_start().as_bytes();
        !mark.is_empty()
            && context.head.fields.named(Name::Via).any(|field| {
                let value = field.value.of(context.bytes);
                value.windows(mark.len()).any(|part| part == mark)
            })
    }

    /// Whether the client asks for a protocol that it may switch to.
    #[must_use]
    pub fn asks_for_upgrade(&self, context: &TemplateContext<'_>) -> bool {
        self.upgrade(context).is_some()
    }

    /// Returns the head for an HTTP/2 stream; see [`RequestRules::write`]. `switch`: the protocols of an extended
    /// CONNECT; otherwise a protocol switch is omitted.
    ///
    /// # Errors
    /// The errors of [`RequestRules::write`], and 400 for an HTTP/1 WebSocket without a valid key.
    pub fn stream_head(
        &self,
        context: &TemplateContext<'_>,
        awaits_continue: bool,
        switch: Option<&[u8]>,
    ) -> Result<(StreamRequestHead, SentHead), Reject> {
        let mut head = StreamRequestHead::default();
        if let Some(protocol) = switch {
            let is_websocket = protocol.eq_ignore_ascii_case(b"websocket");
            if is_websocket && context.head.protocol.is_empty() && client_key(context).is_none() {
                return Err(Reject::bad_request("Sec-WebSocket-Key is not 16 bytes in base64"));
            }
            head.protocol.extend_from_slice(scan::list(protocol).next().unwrap_or_default());
        }
        let upgrade = !head.protocol.is_empty();
        path::write_target(&mut head.path, self.path.as_ref(), context)?;
        // An HTTP/1.0 request may lack a host, but a stream needs an authority.
        let host = self.host(context);
        head.authority = if host.is_empty() { context.upstream.as_bytes() } else { host }.to_vec();
        let mut lines = FieldWriter::new(&mut head.lines);
        self.write_fields(&mut lines, context, awaits_continue, MessageSyntax::Framed)?;
        if accepts_trailers(context) {
            lines.line(b"TE", b"trailers");
        }
        let expects = context.head.expects_continue && awaits_continue;
        Ok((head, SentHead { upgrade, expects, websocket_key: None }))
    }

    /// Writes the whole head. `awaits_continue`: the client waits for `100 Continue` before it sends the
    /// body; otherwise `Expect` is not forwarded.
    ///
    /// # Errors
    /// 400 for a request that cannot be forwarded unambiguously.
    pub fn write(
        &self,
        out: &mut Vec<u8>,
        context: &TemplateContext<'_>,
        awaits_continue: bool,
    ) -> Result<SentHead, Reject> {
        let head = context.head;
        let bytes = context.bytes;
        // The written head has about the size of the parsed one.
        let read = head.fields.last().map_or(head.target.whole.end(), |field| field.value.end());
        out.reserve(read + 256);
        out.extend_from_slice(head.method_name.of(bytes));
        out.push(b' ');
        path::write_target(out, self.path.as_ref(), context)?;
        out.extend_from_slice(b" HTTP/1.1\r\n");
        let mut lines = FieldWriter::new(out);
        lines.line(b"Host", self.host(context));
        self.write_fields(&mut lines, context, awaits_continue, MessageSyntax::Http1)?;
        let upgrade = self.write_connection(&mut lines, context);
        let is_keyless = upgrade && !head.protocol.is_empty() && is_websocket(context);
        let key = is_keyless.then(websocket::new_key);
        if let Some(key) = &key {
            lines.line(b"Sec-WebSocket-Key", key);
        }
        out.extend_from_slice(b"\r\n");
        Ok(SentHead { upgrade, expects: head.expects_continue && awaits_continue, websocket_key: key })
    }

    /// Writes the field lines, except those of the connection.
    fn write_fields(
        &self,
        lines: &mut FieldWriter<'_>,
        ask: &TemplateContext<'_>,
        awaits_continue: bool,
        syntax: MessageSyntax,
    ) -> Result<(), Reject> {
        let head = ask.head;
        let bytes = ask.bytes;
        let named = named_by_connection(&head.fields, bytes)?;
        let empty_body = matches!(head.method, Method::Post | Method::Put | Method::Patch)
            || head.fields.has(Name::ContentLength);
        // Fields that always pass are not checked, unless the route or the client names fields to omit.
        let always = if self.removes || !named.is_empty() { NameSet::default() } else { ALWAYS_PASS };
        let passing = head.fields.iter().filter(|field| {
            always.has(field.id)
                || (self.passes(field, ask, &named, syntax) && (awaits_continue || field.id != Name::Expect))
        });
        lines.fields(bytes, passing);
        for forwards in max_forwards(head, bytes) {
            let is_removed = self.removes && is_edited_or_confusable(&self.options.edits, MAX_FORWARDS);
            if !is_removed && !is_named(&named, MAX_FORWARDS) {
                lines.begin(MAX_FORWARDS);
                lines.number(forwards.saturating_sub(1));
                lines.end();
            }
        }
        match head.body {
            BodySize::Known(length) => {
                lines.begin(b"Content-Length");
                lines.number(length);
                lines.end();
            }
            BodySize::Unknown if syntax == MessageSyntax::Http1 => {
                lines.line(b"Transfer-Encoding", b"chunked")
            }
            BodySize::Unknown => {}
            BodySize::None if empty_body => lines.line(b"Content-Length", b"0"),
            BodySize::None => {}
        }
        self.write_forwarded(lines, ask);
        // Fields that the route's edits set or remove are left to them.
        let is_own = |name: Name| self.removes && is_edited(&self.options.edits, name.text().as_bytes());
        if let RequestId::Generated(id) = ask.ids.request
            && !is_own(Name::XRequestId)
        {
            lines.push_encoded(&ids::request_id_line(id));
        }
        if let Some(trace) = &ask.ids.trace
            && !is_own(Name::Traceparent)
        {
            lines.line(Name::Traceparent.text().as_bytes(), &trace.traceparent());
        }
        if !self.via.is_empty() {
            lines.begin(b"Via");
            lines.part(head.version.number().as_bytes());
            lines.push_encoded(self.via.as_bytes());
        }
        write_edits(lines, &self.options.edits, ask);
        Ok(())
    }

    /// Returns the trailer fields to forward. Some servers merge trailers into the head, so a field that is
    /// not allowed in the head is not allowed here either.
    #[must_use]
    pub fn trailers(&self, trailers: &Fields, context: &TemplateContext<'_>) -> Fields {
        let mut passed = Fields::new();
        // The list was valid when the head was written.
        let named = named_by_connection(&context.head.fields, context.bytes).unwrap_or_default();
        for (name, value) in trailers.iter() {
            if self.may_forward_name(name, false)
                && !matches!(
                    Name::of(name),
                    Name::XRequestId | Name::Via | Name::Traceparent | Name::Tracestate
                )
                && !is_edited_or_confusable(&self.options.edits, name)
                && !is_named(&named, name)
            {
                passed.try_push(name, value).expect("a field that was read is valid");
            }
        }
        passed
    }

    fn host<'a>(&'a self, ask: &TemplateContext<'a>) -> &'a [u8] {
        match &self.options.host {
            Host::Set(host) => host.as_bytes(),
            // An empty `Host` means that the target has no authority; an HTTP/1.0 client may omit the field.
            Host::Pass if !ask.authority().is_empty() || ask.head.field(ask.bytes, Name::Host).is_some() => {
                ask.authority()
            }
            Host::Pass | Host::Upstream => ask.upstream.as_bytes(),
        }
    }

    /// Whether a field of this name may be forwarded. Only a trusted proxy (`vouched`) may name the client.
    /// `X-Accel-*` fields never pass. A name with `_` does not pass by default, because applications confuse
    /// `_` with `-`, and never if the name with `-` is known.
    fn may_forward_name(&self, name: &[u8], vouched: bool) -> bool {
        (forwarded::dialect_of(Name::of(name), name).is_none() || vouched)
            && !http::is_internal(name)
            && (!name.contains(&b'_') || (self.options.underscores && !is_known_with_hyphens(name)))
            && !self.options.routing_fields.iter().any(|known| is_disguised(name, known.as_bytes()))
    }

    /// Whether a field is forwarded unchanged.
    fn passes(
        &self,
        field: &Field,
        ask: &TemplateContext<'_>,
        named: &[&[u8]],
        syntax: MessageSyntax,
    ) -> bool {
        let name = field.name.of(ask.bytes);
        let vouched = |dialect: Dialect| ask.client.trusted_dialect == Some(dialect);
        let passes = match field.id {
            // Over HTTP/2 there is no key (RFC 8441 section 5); over HTTP/1 this proxy generates one if the
            // client has none.
            Name::SecWebsocketKey | Name::SecWebsocketAccept
                if syntax == MessageSyntax::Framed || !ask.head.protocol.is_empty() =>
            {
                false
            }
            Name::Trailer => ask.head.body == BodySize::Unknown,
            id if id.is_framing() => false,
            Name::Expect => ask.head.expects_continue,
            Name::XRequestId | Name::Traceparent | Name::Tracestate => ask.ids.is_forwarded(field.id),
            Name::XForwardedFor | Name::XForwardedProto | Name::XForwardedHost => {
                !self.options.forwarded.sends_x_forwarded() && vouched(Dialect::XForwarded)
            }
            Name::Forwarded => !self.options.forwarded.standard && vouched(Dialect::Standard),
            // Addressed to this proxy, not to the upstream (RFC 9110 section 11.7.1).
            Name::ProxyAuthorization => false,
            // Written separately, with a decremented value.
            Name::Other if forwards_of(ask.head, ask.bytes, field).is_some() => false,
            Name::Other if ask.head.is_own(field) => true,
            Name::Other => self.may_forward_name(name, vouched(Dialect::XForwarded)),
            _ => true,
        };
        passes
            && !(self.removes && is_edited_or_confusable(&self.options.edits, name))
            && !is_named(named, name)
    }

    fn write_forwarded(&self, lines: &mut FieldWriter<'_>, ask: &TemplateContext<'_>) {
        let reported = |id: Name, dialect: Dialect| {
            let vouched = ask.client.trusted_dialect == Some(dialect);
            let fields = if vouched { Some(ask.head.fields.named(id)) } else { None };
            fields.into_iter().flatten().map(|field| field.value.of(ask.bytes)).filter(|it| !it.is_empty())
        };
        let sender = ask.sender().map(|address| address.ip());
        // The client's address, if a trusted proxy sent it in the other kind of field.
        let named = |dialect: Dialect| {
            let elsewhere = ask.client.trusted_dialect.is_some_and(|vouched| vouched != dialect);
            let client = if elsewhere { ask.client_address() } else { None };
            client.map(|address| address.ip()).filter(|&ip| Some(ip) != sender)
        };
        if self.options.forwarded.sends_x_forwarded() {
            match (ask.client.trusted_dialect, sender) {
                (None, Some(ip)) => {
                    lines.begin(b"X-Forwarded-For");
                    lines.part_with(|out| write_ip(out, ip));
                    lines.end();
                }
                (None, None) => {}
                (Some(_), _) => {
                    let before = reported(Name::XForwardedFor, Dialect::XForwarded);
                    write_forwarded_for(lines, before, [named(Dialect::XForwarded), sender]);
                }
            }
            lines.push_encoded(if ask.client.is_secure { PROTO_HTTPS } else { PROTO_HTTP });
            let host = reported(Name::XForwardedHost, Dialect::XForwarded).next().unwrap_or(ask.authority());
            if !host.is_empty() {
                lines.line(b"X-Forwarded-Host", host);
            }
        }
        if self.options.forwarded.standard {
            lines.begin(b"Forwarded");
            for value in reported(Name::Forwarded, Dialect::Standard) {
                lines.part(value);
                lines.part(b", ");
            }
            if let Some(client) = named(Dialect::Standard) {
                write_forwarded_element(lines, ask, Some(client));
                lines.part(b", ");
            }
            write_forwarded_element(lines, ask, sender);
            lines.end();
        }
    }

    /// Writes `Connection`, `Upgrade` and `TE`. True if the request asks for a protocol switch.
    fn write_connection(&self, lines: &mut FieldWriter<'_>, ask: &TemplateContext<'_>) -> bool {
        if let Some(protocols) = self.upgrade(ask) {
            lines.line(b"Connection", b"Upgrade");
            lines.line(b"Upgrade", protocols);
            return true;
        }
        let trailers = accepts_trailers(ask);
        match (trailers, self.sends_close) {
            (true, false) => lines.line(b"Connection", b"TE"),
            (true, true) => lines.line(b"Connection", b"TE, close"),
            (false, true) => lines.line(b"Connection", b"close"),
            (false, false) => {}
        }
        if trailers {
            lines.line(b"TE", b"trailers");
        }
        false
    }

    /// Returns the protocols that the client asks for, if it may switch to all of them. `h2c` must never be
    /// among them: HTTP/2 requests in the tunnel would bypass all rules.
    pub(crate) fn upgrade<'x>(&self, ask: &TemplateContext<'x>) -> Option<&'x [u8]> {
        let head = ask.head;
        let bytes = ask.bytes;
        let wanted = head.upgrade(bytes)?;
        let allowed = |protocol: &[u8]| {
            self.upgrades.iter().any(|known| known.as_bytes().eq_ignore_ascii_case(protocol))
        };
        (scan::list(wanted).next().is_some() && scan::list(wanted).all(allowed)).then_some(wanted)
    }
}

/// Returns the valid values of `Max-Forwards` of an OPTIONS request; none for other methods, to which the
/// field does not apply.
pub(crate) fn max_forwards<'x>(head: &'x Head, bytes: &'x [u8]) -> impl Iterator<Item = u64> + 'x {
    let fields = if head.method == Method::Options { &head.fields[..] } else { &[] };
    fields.iter().filter_map(move |field| forwards_of(head, bytes, field))
}

/// Returns the value of the field if it is a valid `Max-Forwards` of an OPTIONS request, saturated at
/// `u64::MAX`.
fn forwards_of(head: &Head, bytes: &[u8], field: &Field) -> Option<u64> {
    if head.method != Method::Options || !field.name.of(bytes).eq_ignore_ascii_case(MAX_FORWARDS) {
        return None;
    }
    let digits = field.value.of(bytes);
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    let add = |sum: u64, digit: &u8| sum.saturating_mul(10).saturating_add(u64::from(digit - b'0'));
    is_number.then(|| digits.iter().fold(0, add))
}

/// Whether a name with `_`, once it is replaced by `-`, is that of a known field or of an internal one.
fn is_known_with_hyphens(name: &[u8]) -> bool {
    let name: Vec<u8> = name.iter().map(|byte| if *byte == b'_' { b'-' } else { *byte }).collect();
    Name::of(&name) != Name::Other
        || forwarded::dialect_of(Name::Other, &name).is_some()
        || http::is_internal(&name)
}

/// Whether the client asks for a WebSocket.
fn is_websocket(ask: &TemplateContext<'_>) -> bool {
    ask.head.upgrade(ask.bytes).is_some_and(|wanted| wanted.eq_ignore_ascii_case(b"websocket"))
}

/// Returns the WebSocket key of the client, if it is valid.
pub(crate) fn client_key<'x>(context: &TemplateContext<'x>) -> Option<&'x [u8]> {
    let key = context.head.field(context.bytes, Name::SecWebsocketKey)?;
    websocket::is_key(key).then_some(key)
}

/// Whether the client accepts trailers. Because the proxy forwards trailers, it may forward `TE: trailers`
/// (RFC 9110 section 10.1.4).
fn accepts_trailers(ask: &TemplateContext<'_>) -> bool {
    ask.head.fields.named(Name::Te).any(|field| {
        scan::list(field.value.of(ask.bytes)).any(|coding| coding.eq_ignore_ascii_case(b"trailers"))
    })
}

/// Returns the field names that `Connection` lists, except those that are never forwarded.
///
/// # Errors
/// 400 if there are more than [`NAMED_MAX`].
#[inline]
pub(crate) fn named_by_connection<'x>(fields: &FieldList, bytes: &'x [u8]) -> Result<Vec<&'x [u8]>, Reject> {
    if fields.has(Name::Connection) { named_by(fields, bytes) } else { Ok(Vec::new()) }
}

fn named_by<'x>(fields: &FieldList, bytes: &'x [u8]) -> Result<Vec<&'x [u8]>, Reject> {
    let mut named = Vec::new();
    let is_usual = |token: &[u8]| {
        let usual: [&[u8]; 4] = [b"keep-alive", b"close", b"upgrade", b"te"];
        usual.contains(&token) || usual.iter().any(|word| word.eq_ignore_ascii_case(token))
    };
    for field in fields.named(Name::Connection) {
        let value = field.value.of(bytes);
        if matches!(value, b"keep-alive" | b"close") || is_usual(value) {
            continue;
        }
        for token in scan::tokens(value) {
            if is_usual(token) {
                continue;
            }
            if named.len() == NAMED_MAX {
                return Err(Reject::bad_request("Connection names too many fields"));
            }
            named.push(token);
        }
    }
    Ok(named)
}

pub(crate) fn is_named(named: &[&[u8]], name: &[u8]) -> bool {
    named.iter().any(|other| other.eq_ignore_ascii_case(name))
}

/// Whether applications may confuse the name with `known` although it is spelled differently.
fn is_disguised(name: &[u8], known: &[u8]) -> bool {
    is_confusable(name, known) && !name.eq_ignore_ascii_case(known)
}

/// Whether edits remove or replace the field.
pub(crate) fn is_edited(edits: &ProxyHeaders, name: &[u8]) -> bool {
    has_edited(edits, |other| other.eq_ignore_ascii_case(name))
}

/// Whether edits remove or replace the field, or one that applications may confuse with it: `X_Role` and
/// `X-Role`.
fn is_edited_or_confusable(edits: &ProxyHeaders, name: &[u8]) -> bool {
    has_edited(edits, |other| is_confusable(other, name))
}

fn has_edited(edits: &ProxyHeaders, is: impl Fn(&[u8]) -> bool) -> bool {
    edits.remove.iter().chain(edits.set.iter().map(|(name, _)| name)).any(|name| is(name.as_bytes()))
}

/// Whether edits remove or replace any field.
pub(crate) fn removes(edits: &ProxyHeaders) -> bool {
    !(edits.remove.is_empty() && edits.set.is_empty())
}

/// Writes the lines that edits set and add.
pub(crate) fn write_edits(lines: &mut FieldWriter<'_>, edits: &ProxyHeaders, context: &TemplateContext<'_>) {
    if edits.set.is_empty() && edits.add.is_empty() {
        return;
    }
    let values = context.values();
    for (name, value) in edits.set.iter().chain(&edits.add) {
        lines.begin(name.as_bytes());
        lines.part_with(|out| value.write(out, &values));
        lines.end();
    }
}

mod client_fields;

mod variables;

use client_fields::{write_forwarded_element, write_forwarded_for, write_ip};
pub(crate) use variables::CgiContext;
pub use variables::{SOFTWARE, Script};

#[cfg(test)]
mod tests;
