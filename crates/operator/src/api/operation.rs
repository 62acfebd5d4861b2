//! What an operation of the API is, and what it works on.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::access::ControlAccess;
use crate::api::audit::AuditLog;
use crate::api::request::{ApiRequest, ApiResponse, ControlRole};
use crate::history::History;
use crate::socket::ServerInfo;

/// An answer, or one that says why there is none.
pub(crate) type Outcome = Result<ApiResponse, ApiResponse>;

/// A request with the parts of its path, as an operation gets it.
pub(crate) struct ApiCall<'r> {
    pub(crate) request: &'r ApiRequest,
    /// By the names in the operation's path.
    pub(crate) parts: Vec<(&'static str, String)>,
}

impl ApiCall<'_> {
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
pub struct Api {
    /// The running server.
    pub info: Arc<ServerInfo>,
    pub(crate) audit: AuditLog,
    pub(crate) history: History,
    access: AccessSource,
}

/// Who may use the control listener by the configuration in force.
pub(crate) type AccessSource = Box<dyn Fn() -> Arc<ControlAccess> + Send + Sync>;

impl Api {
    /// The API of a server, whose changes are recorded in `audit`.
    pub fn new(info: Arc<ServerInfo>, audit: AuditLog, access: AccessSource) -> Api {
        Api { info, audit, history: History::default(), access }
    }

    /// Who may use the control listener now.
    pub(crate) fn access(&self) -> Arc<ControlAccess> {
        (self.access)()
    }
}

/// A value in the body of an operation, for `/v1/openapi.json`.
pub(crate) struct BodyField {
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
    pub(crate) role: ControlRole,
    /// What it does, in a line.
    pub(crate) about: &'static str,
    /// What its body has; `None` where it takes none, empty where it takes any JSON.
    pub(crate) body: Option<&'static [BodyField]>,
    pub(crate) run: fn(&Api, &ApiCall<'_>) -> Outcome,
}

/// The end of a message about a name that is unknown: the names that are known.
pub(crate) fn there_are(names: &[String]) -> String {
    match names {
        [] => "there are none".to_owned(),
        names => format!("there are: {}", names.join(", ")),
    }
}
