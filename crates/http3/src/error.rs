//! Errors of a stream or a connection (RFC 9114 section 8, RFC 9204 section 6).

/// An application error code of QUIC. Unregistered codes are preserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Http3Code(pub u64);

#[allow(missing_docs)] // each is its name in RFC 9114 or RFC 9204
impl Http3Code {
    pub const NO_ERROR: Http3Code = Http3Code(0x100);
    pub const GENERAL_PROTOCOL_ERROR: Http3Code = Http3Code(0x101);
    pub const INTERNAL_ERROR: Http3Code = Http3Code(0x102);
    pub const STREAM_CREATION_ERROR: Http3Code = Http3Code(0x103);
    pub const CLOSED_CRITICAL_STREAM: Http3Code = Http3Code(0x104);
    pub const FRAME_UNEXPECTED: Http3Code = Http3Code(0x105);
    pub const FRAME_ERROR: Http3Code = Http3Code(0x106);
    pub const EXCESSIVE_LOAD: Http3Code = Http3Code(0x107);
    pub const ID_ERROR: Http3Code = Http3Code(0x108);
    pub const SETTINGS_ERROR: Http3Code = Http3Code(0x109);
    pub const MISSING_SETTINGS: Http3Code = Http3Code(0x10a);
    pub const REQUEST_REJECTED: Http3Code = Http3Code(0x10b);
    pub const REQUEST_CANCELLED: Http3Code = Http3Code(0x10c);
    pub const REQUEST_INCOMPLETE: Http3Code = Http3Code(0x10d);
    pub const MESSAGE_ERROR: Http3Code = Http3Code(0x10e);
    pub const CONNECT_ERROR: Http3Code = Http3Code(0x10f);
    pub const VERSION_FALLBACK: Http3Code = Http3Code(0x110);
    pub const QPACK_DECOMPRESSION_FAILED: Http3Code = Http3Code(0x200);
    pub const QPACK_ENCODER_STREAM_ERROR: Http3Code = Http3Code(0x201);
    pub const QPACK_DECODER_STREAM_ERROR: Http3Code = Http3Code(0x202);
}

impl Http3Code {
    /// The name in the RFCs, for logs; empty for an unregistered code.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self.0 {
            0x100 => "H3_NO_ERROR",
            0x101 => "H3_GENERAL_PROTOCOL_ERROR",
            0x102 => "H3_INTERNAL_ERROR",
            0x103 => "H3_STREAM_CREATION_ERROR",
            0x104 => "H3_CLOSED_CRITICAL_STREAM",
            0x105 => "H3_FRAME_UNEXPECTED",
            0x106 => "H3_FRAME_ERROR",
            0x107 => "H3_EXCESSIVE_LOAD",
            0x108 => "H3_ID_ERROR",
            0x109 => "H3_SETTINGS_ERROR",
            0x10a => "H3_MISSING_SETTINGS",
            0x10b => "H3_REQUEST_REJECTED",
            0x10c => "H3_REQUEST_CANCELLED",
            0x10d => "H3_REQUEST_INCOMPLETE",
            0x10e => "H3_MESSAGE_ERROR",
            0x10f => "H3_CONNECT_ERROR",
            0x110 => "H3_VERSION_FALLBACK",
            0x200 => "QPACK_DECOMPRESSION_FAILED",
            0x201 => "QPACK_ENCODER_STREAM_ERROR",
            0x202 => "QPACK_DECODER_STREAM_ERROR",
            _ => "",
        }
    }
}

/// The extent of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorScope {
    /// The stream is reset, and reading from it stops; the connection continues.
    Stream,
    /// The connection is closed.
    Connection,
}

/// A violation by the peer: the code that it is told, and a static reason for logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Http3Error {
    /// The extent.
    pub scope: ErrorScope,
    /// The code sent to the peer.
    pub code: Http3Code,
    /// The reason, in a few words. Never contains bytes sent by the peer.
    pub reason: &'static str,
}

impl Http3Error {
    /// Creates an error that ends the connection.
    #[must_use]
    pub const fn connection(code: Http3Code, reason: &'static str) -> Http3Error {
        Http3Error { scope: ErrorScope::Connection, code, reason }
    }

    /// Creates an error that ends one stream.
    #[must_use]
    pub const fn stream(code: Http3Code, reason: &'static str) -> Http3Error {
        Http3Error { scope: ErrorScope::Stream, code, reason }
    }
}
