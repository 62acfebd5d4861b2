//! Operations of the API and their context.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::access::ControlAccess;
use crate::api::audit::AuditLog;
use crate::api::request::{ApiRequest, ApiResponse, CallerRole};
use crate::history::History;
use crate::server_info::ServerInfo;

/// The response of an operation, or an error response.
pub(crate) type ApiResult = Result<ApiResponse, ApiResponse>;

/// A request with the parameters of its path, as passed to an operation.
pub(crate) struct ApiCall<'r> {
    pub(crate) request: &'r ApiRequest,
    /// Path parameters by their names in the operation's pattern, decoded.
    pub(crate) path_parameters: Vec<(&'static str, String)>,
}

impl ApiCall<'_> {
    /// Returns the path parameter `name`; empty if the operation has none of this name.
    pub(crate) fn path_parameter(&self, name: &str) -> &str {
        self.path_parameters.iter().find(|(other, _)| *other == name).map_or("", |(_, value)| value)
    }

    /// Parses the body as a JSON object.
    pub(crate) fn body_object(&self) -> Result<serde_json::Map<String, Value>, ApiResponse> {
        match self.body_json()? {
            Value::Object(entries) => Ok(entries),
            _ => Err(ApiResponse::error(400, "the body is to be a JSON object")),
        }
    }

    /// Parses the body as JSON; an empty body is an empty object.
    pub(crate) fn body_json(&self) -> Result<Value, ApiResponse> {
        if self.request.body.iter().all(u8::is_ascii_whitespace) {
            return Ok(json!({}));
        }
        serde_json::from_slice(&self.request.body)
            .map_err(|error| ApiResponse::error(400, format!("the body is no JSON: {error}")))
    }

    /// Parses a boolean query parameter, such as `persist=false`.
    pub(crate) fn query_flag(&self, name: &str) -> Result<Option<bool>, ApiResponse> {
        let given = self.request.query.split('&').filter_map(|pair| pair.split_once('='));
        let Some((_, value)) = given.into_iter().find(|(other, _)| *other == name) else { return Ok(None) };
        match value {
            "true" | "1" => Ok(Some(true)),
            "false" | "0" => Ok(Some(false)),
            _ => Err(ApiResponse::error(400, format!("`{name}` is `true` or `false`"))),
        }
    }

    /// Refuses a body with unknown keys.
    pub(crate) fn reject_unknown_keys(
        body: &serde_json::Map<String, Value>,
        known: &[&str],
    ) -> Result<(), ApiResponse> {
        match body.keys().find(|key| !known.contains(&key.as_str())) {
            None => Ok(()),
            Some(key) => {
                Err(ApiResponse::error(400, format!("`{key}` is unknown here: write {}", known.join(", "))))
            }
        }
    }
}

/// Context of the operations.
pub struct Api {
    /// The running server.
    pub info: Arc<ServerInfo>,
    pub(crate) audit: AuditLog,
    pub(crate) history: History,
    access: AccessSource,
}

/// Returns the access rules of the configuration in force.
pub(crate) type AccessSource = Box<dyn Fn() -> Arc<ControlAccess> + Send + Sync>;

impl Api {
    /// Creates the API of a server. Changes are recorded in `audit`.
    pub fn new(info: Arc<ServerInfo>, audit: AuditLog, access: AccessSource) -> Api {
        Api { info, audit, history: History::default(), access }
    }

    /// Returns the access rules in force.
    pub(crate) fn access(&self) -> Arc<ControlAccess> {
        (self.access)()
    }
}

/// A field in the body of an operation, for `/v1/openapi.json`.
pub(crate) struct BodyField {
    pub(crate) name: &'static str,
    pub(crate) doc: &'static str,
    /// Returns the JSON schema of the field.
    pub(crate) schema: fn() -> Value,
}

/// An operation of the API.
pub(crate) struct Operation {
    pub(crate) method: &'static str,
    /// Path pattern: `{name}` matches one segment, `{path...}` all remaining ones.
    pub(crate) path: &'static str,
    pub(crate) role: CallerRole,
    /// Summary in one line.
    pub(crate) about: &'static str,
    /// Fields of the body; `None` if the operation takes no body, empty if it takes any JSON.
    pub(crate) body: Option<&'static [BodyField]>,
    pub(crate) run: fn(&Api, &ApiCall<'_>) -> ApiResult,
}

/// Ends a message about an unknown name by listing the known names.
pub(crate) fn known_names(names: &[String]) -> String {
    match names {
        [] => "there are none".to_owned(),
        names => format!("there are: {}", names.join(", ")),
    }
}
