//! A request of the API and its answer.

use config::TokenRole;
use serde_json::{Value, json};

/// The longest body of a request.
pub(crate) const BODY_BYTES_MAX: usize = 1 << 20;

/// What a caller may do. Each may do what those before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ControlRole {
    /// Read figures and states: whoever reaches an open listener.
    Open,
    /// Read everything: the configuration, the audit log, who is connected.
    Read,
    /// Operate the server as it is configured: reload, drain, restart, purge.
    Operate,
    /// Change the configuration.
    Admin,
}

impl From<TokenRole> for ControlRole {
    fn from(role: TokenRole) -> ControlRole {
        match role {
            TokenRole::Read => ControlRole::Read,
            TokenRole::Operate => ControlRole::Operate,
            TokenRole::Admin => ControlRole::Admin,
        }
    }
}

impl ControlRole {
    /// The word for it.
    pub(crate) fn text(self) -> &'static str {
        match self {
            ControlRole::Open => "open",
            ControlRole::Read => "read",
            ControlRole::Operate => "operate",
            ControlRole::Admin => "admin",
        }
    }
}

/// Who asks.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// For the audit log.
    pub(crate) name: String,
    pub(crate) role: ControlRole,
    /// The user at the other end of a Unix socket.
    pub(crate) uid: Option<u32>,
    /// Where the request comes from; empty for a Unix socket.
    pub(crate) address: String,
    /// There are tokens, and the request has none: with one it might be answered.
    pub(crate) may_send_token: bool,
}

impl Caller {
    /// Whether this is root, by a Unix socket.
    pub(crate) fn is_root(&self) -> bool {
        self.uid == Some(0)
    }
}

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct ApiRequest {
    pub(crate) caller: Caller,
    pub(crate) method: String,
    /// Without the query, percent-encoded.
    pub(crate) path: String,
    pub(crate) query: String,
    /// The field `If-Match`.
    pub(crate) if_match: Option<String>,
    pub(crate) body: Vec<u8>,
}

/// What is answered.
#[derive(Clone, Debug)]
pub(crate) struct ApiResponse {
    pub(crate) status: u16,
    pub(crate) document: Value,
    /// The version of the configuration.
    pub(crate) etag: Option<String>,
    /// The methods that there are, for status 405.
    pub(crate) allow: Option<String>,
    /// When to ask again, for status 429.
    pub(crate) retry_after_s: Option<u64>,
}

impl ApiResponse {
    /// What was asked for.
    pub(crate) fn of(document: Value) -> ApiResponse {
        ApiResponse { status: 200, document, etag: None, allow: None, retry_after_s: None }
    }

    /// What was done.
    pub(crate) fn done(text: impl Into<String>) -> ApiResponse {
        ApiResponse::of(json!({ "done": text.into() }))
    }

    /// Why nothing was done.
    pub(crate) fn error(status: u16, text: impl Into<String>) -> ApiResponse {
        ApiResponse { status, ..ApiResponse::of(json!({ "error": text.into() })) }
    }

    /// Whether whoever asks may not.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self.status, 401 | 403 | 429)
    }
}
