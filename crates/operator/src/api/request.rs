//! Requests and responses of the API.

use config::TokenRole;
use serde_json::{Value, json};

/// Maximum size of a request body in bytes.
pub(crate) const BODY_BYTES_MAX: usize = 1 << 20;

/// Role of a caller. Each role includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CallerRole {
    /// Read metrics and status: anyone who can reach an open listener.
    Open,
    /// Read everything except the configuration: also the audit log and the client connections.
    Read,
    /// Operate the server within its configuration: reload, drain, restart, purge.
    Operate,
    /// Change the configuration.
    Admin,
}

impl From<TokenRole> for CallerRole {
    fn from(role: TokenRole) -> CallerRole {
        match role {
            TokenRole::Read => CallerRole::Read,
            TokenRole::Operate => CallerRole::Operate,
            TokenRole::Admin => CallerRole::Admin,
        }
    }
}

impl CallerRole {
    /// Returns the name of the role.
    pub(crate) fn text(self) -> &'static str {
        match self {
            CallerRole::Open => "open",
            CallerRole::Read => "read",
            CallerRole::Operate => "operate",
            CallerRole::Admin => "admin",
        }
    }
}

/// The client that sent a request.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// Name in the audit log.
    pub(crate) name: String,
    pub(crate) role: CallerRole,
    /// The user at the other end of a Unix socket.
    pub(crate) uid: Option<u32>,
    /// Client address; empty for a Unix socket.
    pub(crate) address: String,
    /// Whether tokens are configured and the request has none, so that a token might help.
    pub(crate) may_send_token: bool,
}

impl Caller {
    /// Whether this is root, connected by a Unix socket.
    pub(crate) fn is_root(&self) -> bool {
        self.uid == Some(0)
    }
}

/// A request of the API.
#[derive(Clone, Debug)]
pub(crate) struct ApiRequest {
    pub(crate) caller: Caller,
    pub(crate) method: String,
    /// Percent-encoded path without the query.
    pub(crate) path: String,
    pub(crate) query: String,
    /// The value of `If-Match`.
    pub(crate) if_match: Option<String>,
    pub(crate) body: Vec<u8>,
}

/// A response of the API.
#[derive(Clone, Debug)]
pub(crate) struct ApiResponse {
    pub(crate) status: u16,
    pub(crate) document: Value,
    /// Entity tag of the configuration.
    pub(crate) etag: Option<String>,
    /// The supported methods, for status 405.
    pub(crate) allow: Option<String>,
    /// Seconds until the client may try again, for status 429.
    pub(crate) retry_after_s: Option<u64>,
}

impl ApiResponse {
    /// Creates a response with status 200 and this document.
    pub(crate) fn ok(document: Value) -> ApiResponse {
        ApiResponse { status: 200, document, etag: None, allow: None, retry_after_s: None }
    }

    /// Creates a response with status 200 that reports what was done.
    pub(crate) fn success(text: impl Into<String>) -> ApiResponse {
        ApiResponse::ok(json!({ "done": text.into() }))
    }

    /// Creates an error response.
    pub(crate) fn error(status: u16, text: impl Into<String>) -> ApiResponse {
        ApiResponse { status, ..ApiResponse::ok(json!({ "error": text.into() })) }
    }

    /// Whether the status is 401, 403 or 429.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self.status, 401 | 403 | 429)
    }
}
