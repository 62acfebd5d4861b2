//! API requests sent as a single line over the control socket, as by `komainu ctl`.

use serde_json::{Value, json};

use crate::api::operation::Api;
use crate::api::request::{ApiRequest, BODY_BYTES_MAX, Caller, CallerRole};
use crate::api::table::answer_request;

/// Answers `{ "method", "path", "query", "if_match", "body" }` sent by user `uid` with `{ "status", "etag",
/// "document" }`. Only root and the server's user can reach the socket; both have the role `admin`.
pub fn answer_line(api: &Api, line: &str, uid: u32) -> Value {
    let asked: Value = match serde_json::from_str(line) {
        Ok(asked) => asked,
        Err(error) => return json!({ "error": format!("the request is no JSON: {error}") }),
    };
    let text = |key: &str| asked[key].as_str().map(str::to_owned);
    let body = match &asked["body"] {
        Value::Null => Vec::new(),
        body => body.to_string().into_bytes(),
    };
    if body.len() > BODY_BYTES_MAX {
        return json!({ "error": format!("the body is longer than {BODY_BYTES_MAX} bytes") });
    }
    let request = ApiRequest {
        caller: Caller {
            name: format!("uid {uid} by the control socket"),
            role: CallerRole::Admin,
            uid: Some(uid),
            address: String::new(),
            may_send_token: false,
        },
        method: text("method").unwrap_or_else(|| "GET".into()),
        path: text("path").unwrap_or_default(),
        query: text("query").unwrap_or_default(),
        if_match: text("if_match"),
        body,
    };
    let response = answer_request(api, &request);
    json!({ "status": response.status, "etag": response.etag, "document": response.document })
}
