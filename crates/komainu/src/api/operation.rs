//! A request of the API, its answer, and what an operation is.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::api::audit::AuditLog;
use crate::control::ServerInfo;

/// The longest body of a request.
pub(crate) const BODY_BYTES_MAX: usize = 1 << 20;

/// What a caller may do. Each may do what those before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    /// Read figures and states: whoever reaches an open listener.
    Open,
    /// Read everything: the configuration, the audit log, who is connected.
    Read,
    /// Operate the server as it is configured: reload, drain, restart, purge.
    Operate,
    /// Change the configuration.
    Admin,
}

impl Role {
    /// The word for it.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Role::Open => "open",
            Role::Read => "read",
            Role::Operate => "operate",
            Role::Admin => "admin",
        }
    }
}

/// Who asks.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// For the audit log.
    pub(crate) name: String,
    pub(crate) role: Role,
}

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct ApiRequest {
    pub(crate) caller: Caller,
    pub(crate) method: String,
    /// Without the query, percent-encoded.
    pub(crate) path: String,
    pub(crate) query: String,
    #[expect(dead_code, reason = "changes of the configuration need it")]
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
}

impl ApiResponse {
    /// What was asked for.
    pub(crate) fn of(document: Value) -> ApiResponse {
        ApiResponse { status: 200, document, etag: None, allow: None }
    }

    /// What was done.
    pub(crate) fn done(text: impl Into<String>) -> ApiResponse {
        ApiResponse::of(json!({ "done": text.into() }))
    }

    /// Why nothing was done.
    pub(crate) fn error(status: u16, text: impl Into<String>) -> ApiResponse {
        ApiResponse { status, ..ApiResponse::of(json!({ "error": text.into() })) }
    }
}

/// An answer, or one that says why there is none.
pub(crate) type Outcome = Result<ApiResponse, ApiResponse>;

/// A request with the parts of its path, as an operation gets it.
pub(crate) struct Call<'r> {
    pub(crate) request: &'r ApiRequest,
    /// By the names in the operation's path.
    pub(crate) parts: Vec<(&'static str, String)>,
}

impl Call<'_> {
    /// The part of the path of this name; empty where there is none.
    pub(crate) fn part(&self, name: &str) -> &str {
        self.parts.iter().find(|(other, _)| *other == name).map_or("", |(_, value)| value)
    }

    /// The body: an object.
    pub(crate) fn object(&self) -> Result<serde_json::Map<String, Value>, ApiResponse> {
        match self.json()? {
            Value::Object(entries) => Ok(entries),
            _ => Err(ApiResponse::error(400, "the body is to be a JSON object")),
        }
    }

    /// The body; an empty one is an empty object.
    pub(crate) fn json(&self) -> Result<Value, ApiResponse> {
        if self.request.body.iter().all(u8::is_ascii_whitespace) {
            return Ok(json!({}));
        }
        serde_json::from_slice(&self.request.body)
            .map_err(|error| ApiResponse::error(400, format!("the body is no JSON: {error}")))
    }

    #[expect(dead_code, reason = "changes of the configuration need it")]
    /// A flag of the query, such as `persist=false`.
    pub(crate) fn flag(&self, name: &str) -> Result<Option<bool>, ApiResponse> {
        let given = self.request.query.split('&').filter_map(|pair| pair.split_once('='));
        let Some((_, value)) = given.into_iter().find(|(other, _)| *other == name) else { return Ok(None) };
        match value {
            "true" | "1" => Ok(Some(true)),
            "false" | "0" => Ok(Some(false)),
            _ => Err(ApiResponse::error(400, format!("`{name}` is `true` or `false`"))),
        }
    }

    /// Refuses keys of the body that the operation does not know.
    pub(crate) fn only(body: &serde_json::Map<String, Value>, known: &[&str]) -> Result<(), ApiResponse> {
        match body.keys().find(|key| !known.contains(&key.as_str())) {
            None => Ok(()),
            Some(key) => {
                Err(ApiResponse::error(400, format!("`{key}` is unknown here: write {}", known.join(", "))))
            }
        }
    }
}

/// What the operations work on.
pub(crate) struct Api {
    pub(crate) info: Arc<ServerInfo>,
    pub(crate) audit: AuditLog,
}

/// A value in the body of an operation, for `/v1/openapi.json`.
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) doc: &'static str,
    /// Its schema.
    pub(crate) schema: fn() -> Value,
}

/// What can be asked for.
pub(crate) struct Operation {
    pub(crate) method: &'static str,
    /// `{name}` is one segment, `{path...}` all that follow.
    pub(crate) path: &'static str,
    pub(crate) role: Role,
    /// What it does, in a line.
    pub(crate) about: &'static str,
    /// What its body has; `None` where it takes none, empty where it takes any JSON.
    pub(crate) body: Option<&'static [Field]>,
    pub(crate) run: fn(&Api, &Call<'_>) -> Outcome,
}
