//! Errors of a stream or a connection (RFC 9113 sections 5.4 and 7).

/// An error code of RST_STREAM and GOAWAY frames (RFC 9113 section 7). Unregistered codes are preserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorCode(pub u32);

#[allow(missing_docs)] // each is its RFC 9113 name
impl ErrorCode {
    pub const NO_ERROR: ErrorCode = ErrorCode(0x0);
    pub const PROTOCOL_ERROR: ErrorCode = ErrorCode(0x1);
    pub const INTERNAL_ERROR: ErrorCode = ErrorCode(0x2);
    pub const FLOW_CONTROL_ERROR: ErrorCode = ErrorCode(0x3);
    pub const SETTINGS_TIMEOUT: ErrorCode = ErrorCode(0x4);
    pub const STREAM_CLOSED: ErrorCode = ErrorCode(0x5);
    pub const FRAME_SIZE_ERROR: ErrorCode = ErrorCode(0x6);
    pub const REFUSED_STREAM: ErrorCode = ErrorCode(0x7);
    pub const CANCEL: ErrorCode = ErrorCode(0x8);
    pub const COMPRESSION_ERROR: ErrorCode = ErrorCode(0x9);
    pub const CONNECT_ERROR: ErrorCode = ErrorCode(0xa);
    pub const ENHANCE_YOUR_CALM: ErrorCode = ErrorCode(0xb);
    pub const INADEQUATE_SECURITY: ErrorCode = ErrorCode(0xc);
    pub const HTTP_1_1_REQUIRED: ErrorCode = ErrorCode(0xd);
}

impl ErrorCode {
    /// The name in RFC 9113, for logs; empty for an unregistered code.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self.0 {
            0x0 => "NO_ERROR",
            0x1 => "PROTOCOL_ERROR",
            0x2 => "INTERNAL_ERROR",
            0x3 => "FLOW_CONTROL_ERROR",
            0x4 => "SETTINGS_TIMEOUT",
            0x5 => "STREAM_CLOSED",
            0x6 => "FRAME_SIZE_ERROR",
            0x7 => "REFUSED_STREAM",
            0x8 => "CANCEL",
            0x9 => "COMPRESSION_ERROR",
            0xa => "CONNECT_ERROR",
            0xb => "ENHANCE_YOUR_CALM",
            0xc => "INADEQUATE_SECURITY",
            0xd => "HTTP_1_1_REQUIRED",
            _ => "",
        }
    }
}

/// A connection error: the code of the GOAWAY frame and a static reason, for logs. The connection must be
/// closed afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionError {
    /// The code sent to the peer.
    pub code: ErrorCode,
    /// The reason, in a few words. Never contains bytes sent by the peer.
    pub reason: &'static str,
}

impl ConnectionError {
    /// Creates an error with any code.
    #[must_use]
    pub const fn new(code: ErrorCode, reason: &'static str) -> ConnectionError {
        ConnectionError { code, reason }
    }

    /// Creates a PROTOCOL_ERROR, the common case.
    #[must_use]
    pub const fn protocol(reason: &'static str) -> ConnectionError {
        ConnectionError { code: ErrorCode::PROTOCOL_ERROR, reason }
    }

    /// Creates a COMPRESSION_ERROR: a header block that cannot be decoded.
    #[must_use]
    pub const fn compression(reason: &'static str) -> ConnectionError {
        ConnectionError { code: ErrorCode::COMPRESSION_ERROR, reason }
    }

    /// Creates an ENHANCE_YOUR_CALM error: the peer has exceeded its share of memory or work.
    #[must_use]
    pub const fn enhance_your_calm(reason: &'static str) -> ConnectionError {
        ConnectionError { code: ErrorCode::ENHANCE_YOUR_CALM, reason }
    }
}
