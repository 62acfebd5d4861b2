//! The head of a request, independent of the protocol.

use crate::framing::BodySize;
use crate::line::Field;
use crate::method::Method;
use crate::name::Name;
use crate::span::Span;
use crate::target::Target;

/// The versions of HTTP, for logs and `Via`. Only the code of the protocols makes decisions by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Version {
    Http10,
    #[default]
    Http11,
    Http2,
}

impl Version {
    /// As HTTP/1 writes it, and as logs and `SERVER_PROTOCOL` name it.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Version::Http10 => "HTTP/1.0",
            Version::Http11 => "HTTP/1.1",
            Version::Http2 => "HTTP/2.0",
        }
    }

    /// As `Via` names it, without the protocol's name (RFC 9110 section 7.6.3).
    #[must_use]
    pub const fn number(self) -> &'static str {
        match self {
            Version::Http10 => "1.0",
            Version::Http11 => "1.1",
            Version::Http2 => "2.0",
        }
    }
}

/// A request's head, as spans into a buffer that its protocol's parser filled: HTTP/1's connection buffer, or the bytes that
/// HPACK decoded.
#[derive(Clone, Debug, Default)]
pub struct Head {
    /// The method.
    pub method: Method,
    /// Its name as sent.
    pub method_name: Span,
    /// The target.
    pub target: Target,
    /// The version of HTTP, for logs and `Via`.
    pub version: Version,
    /// `host[:port]` of the request: `:authority` or the absolute-form target's, else the Host field's, else empty.
    pub authority: Span,
    /// All fields, in order. If the request names an authority, `Host` is among them in every version.
    pub fields: Vec<Field>,
    /// How much body follows.
    pub body: BodySize,
    /// Whether the client waits for `100 Continue` before it sends the body.
    pub expects_continue: bool,
}

impl Head {
    /// The first field of that known name.
    #[must_use]
    pub fn field<'b>(&self, buffer: &'b [u8], id: Name) -> Option<&'b [u8]> {
        self.fields.iter().find(|field| field.id == id).map(|field| field.value.of(buffer))
    }

    /// Whether the connection may switch to the protocol of an `Upgrade` field: only in HTTP/1.1 (RFC 9110 section
    /// 7.8), and only for requests without a body.
    #[must_use]
    pub fn may_upgrade(&self) -> bool {
        self.version == Version::Http11 && self.body == BodySize::None
    }
}
