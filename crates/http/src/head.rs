//! The head of a request, independent of the protocol.

use std::ops::Deref;

use crate::field_list::{Field, FieldList};
use crate::framing::BodySize;
use crate::method::Method;
use crate::name::Name;
use crate::scan;
use crate::span::Span;
use crate::target::Target;

/// The versions of HTTP, for logs and `Via`. Only the protocol implementations make decisions by version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Version {
    Http10,
    #[default]
    Http11,
    Http2,
    Http3,
}

impl Version {
    /// The version as written in HTTP/1, logs and `SERVER_PROTOCOL`.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Version::Http10 => "HTTP/1.0",
            Version::Http11 => "HTTP/1.1",
            Version::Http2 => "HTTP/2.0",
            Version::Http3 => "HTTP/3.0",
        }
    }

    /// The version as written in `Via`, without the protocol name (RFC 9110 section 7.6.3).
    #[must_use]
    pub const fn number(self) -> &'static str {
        match self {
            Version::Http10 => "1.0",
            Version::Http11 => "1.1",
            Version::Http2 => "2.0",
            Version::Http3 => "3.0",
        }
    }
}

/// The head of a request, as spans into a buffer that the protocol's parser filled: HTTP/1's connection
/// buffer, or the bytes that HPACK decoded.
#[derive(Clone, Debug, Default)]
pub struct Head {
    /// The method.
    pub method: Method,
    /// The method's name as sent.
    pub method_name: Span,
    /// The target.
    pub target: Target,
    /// The whole target as the client sent it, if this server has replaced the target; else empty.
    pub sent_target: Span,
    /// The version of HTTP, for logs and `Via`.
    pub version: Version,
    /// `host[:port]` of the request: `:authority` or the absolute-form target's, else the Host field's, else
    /// empty.
    pub authority: Span,
    /// All fields, in order. If the request names an authority, `Host` is among them in every version.
    pub fields: FieldList,
    /// The size of the body.
    pub body: BodySize,
    /// Whether the client waits for `100 Continue` before it sends the body.
    pub expects_continue: bool,
    /// The protocol that the client requests on this stream: `:protocol` of an extended CONNECT (RFC 8441);
    /// else empty. Otherwise the head looks like the equivalent HTTP/1.1 GET request with `Upgrade`.
    pub protocol: Span,
    /// Offset in the buffer from which on this server has written its own fields, which replace fields of the
    /// client; 0 if there are none.
    pub own_fields_at: usize,
}

impl Head {
    /// The whole target as the client sent it.
    #[must_use]
    pub fn sent_target<'b>(&self, buffer: &'b [u8]) -> &'b [u8] {
        if self.sent_target.is_empty() { self.target.whole.of(buffer) } else { self.sent_target.of(buffer) }
    }

    /// The target as the client sent it, split into its parts.
    #[must_use]
    pub fn sent_parts(&self, buffer: &[u8]) -> Target {
        if self.sent_target.is_empty() {
            return self.target;
        }
        Target::parse(self.method, buffer, self.sent_target).unwrap_or(self.target)
    }

    /// Whether this server has written the field.
    #[must_use]
    pub fn is_own(&self, field: &Field) -> bool {
        self.own_fields_at != 0 && field.name.start() >= self.own_fields_at
    }

    /// The first field of that known name.
    #[must_use]
    pub fn field<'b>(&self, buffer: &'b [u8], id: Name) -> Option<&'b [u8]> {
        self.fields.value(buffer, id)
    }

    /// The list of protocols to which the client asks to switch: the `Upgrade` field of an HTTP/1.1 request
    /// without a body whose `Connection` names it (RFC 9110 section 7.8), or the one protocol of an extended
    /// CONNECT.
    #[must_use]
    pub fn upgrade<'b>(&self, buffer: &'b [u8]) -> Option<&'b [u8]> {
        if !self.protocol.is_empty() {
            return Some(self.protocol.of(buffer));
        }
        let is_asked = self.fields.has(Name::Upgrade);
        if !is_asked || self.version != Version::Http11 || self.body != BodySize::None {
            return None;
        }
        let wanted = self.field(buffer, Name::Upgrade)?;
        let connection = self.fields.named(Name::Connection);
        let mut tokens = connection.flat_map(|field| scan::tokens(field.value.of(buffer)));
        tokens.any(|token| token.eq_ignore_ascii_case(b"upgrade")).then_some(wanted)
    }
}

/// A request head, and the bytes that its spans refer to.
#[derive(Clone, Copy, Debug)]
pub struct HeadRef<'b> {
    /// The parsed head.
    pub head: &'b Head,
    /// The bytes that the spans refer to.
    pub bytes: &'b [u8],
}

impl Deref for HeadRef<'_> {
    type Target = Head;

    #[inline]
    fn deref(&self) -> &Head {
        self.head
    }
}

impl<'b> HeadRef<'b> {
    /// Refers to a head and its bytes.
    #[must_use]
    #[inline]
    pub fn new(head: &'b Head, bytes: &'b [u8]) -> HeadRef<'b> {
        HeadRef { head, bytes }
    }

    /// Returns the value of the first field of this name.
    #[must_use]
    #[inline]
    pub fn value(self, id: Name) -> Option<&'b [u8]> {
        self.head.field(self.bytes, id)
    }

    /// Returns the values of the fields of this known name, in order.
    #[inline]
    pub fn values(self, id: Name) -> impl Iterator<Item = &'b [u8]> {
        self.head.fields.named(id).map(move |field| field.value.of(self.bytes))
    }

    /// Returns the values of the fields of this name in any case, in order.
    pub fn values_named(self, name: &[u8]) -> impl Iterator<Item = &'b [u8]> {
        let fields = self.head.fields.iter();
        let named = fields.filter(move |field| field.name.of(self.bytes).eq_ignore_ascii_case(name));
        named.map(move |field| field.value.of(self.bytes))
    }
}
