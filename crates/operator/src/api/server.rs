//! The server as a whole: status, reload, cache, certificates, logs and the audit log.

use serde_json::{Value, json};

use crate::api::operation::{Api, ApiCall, ApiResult};
use crate::api::request::ApiResponse;
use crate::socket;

/// Returns the document that `komainu status --json` prints.
pub(crate) fn status(api: &Api, _: &ApiCall<'_>) -> ApiResult {
    Ok(ApiResponse::ok(socket::status_document(&api.info)))
}

/// Returns the last hour in steps of five seconds.
pub(crate) fn history(api: &Api, _: &ApiCall<'_>) -> ApiResult {
    Ok(ApiResponse::ok(api.history.to_document()))
}

/// Reloads the configuration: 422 if it is rejected, 503 if the server is busy, stopping or being upgraded.
pub(crate) fn reload(api: &Api, _: &ApiCall<'_>) -> ApiResult {
    let document = socket::execute_command("reload", &api.info);
    let status = if document["later"] == true { 503 } else { 422 };
    to_outcome(document, status)
}

/// Returns the statistics of the cache; 404 if there is no cache.
pub(crate) fn cache(api: &Api, _: &ApiCall<'_>) -> ApiResult {
    to_outcome((api.info.run_cache_command)("stats"), 404)
}

/// Removes stored responses.
pub(crate) fn purge(api: &Api, call: &ApiCall<'_>) -> ApiResult {
    let body = call.body_object()?;
    ApiCall::reject_unknown_keys(&body, &["url", "prefix", "tag", "all", "soft"])?;
    let mut response =
        to_outcome((api.info.run_cache_command)(&format!("purge {}", Value::Object(body))), 400)?;
    let text = format!("{} responses were removed", response.document["objects"]);
    response.document["done"] = json!(text);
    Ok(response)
}

/// Lists the certificates in use.
pub(crate) fn certificates(api: &Api, _: &ApiCall<'_>) -> ApiResult {
    Ok(ApiResponse::ok(json!({ "certificates": socket::all_certificates(&api.info) })))
}

/// Starts the renewal of a certificate that the server obtains itself.
pub(crate) fn renew(api: &Api, call: &ApiCall<'_>) -> ApiResult {
    let response = to_outcome(
        socket::execute_command(&format!("renew {}", call.path_parameter("name")), &api.info),
        404,
    )?;
    Ok(ApiResponse { status: 202, ..response })
}

/// Reopens the log files after rotation; answers when this is done, with 500 if one cannot be opened.
pub(crate) fn reopen(api: &Api, _: &ApiCall<'_>) -> ApiResult {
    let faults = (api.info.reopen_logs)();
    if faults.is_empty() {
        Ok(ApiResponse::success("the logs are opened again"))
    } else {
        Err(ApiResponse { status: 500, ..ApiResponse::ok(json!({ "error": faults.join("; ") })) })
    }
}

/// Returns the audit log, newest entry first.
pub(crate) fn audit(api: &Api, _: &ApiCall<'_>) -> ApiResult {
    Ok(ApiResponse::ok(json!({ "entries": api.audit.entries() })))
}

/// Converts a document of the control socket to a response; one with an error gets `status`.
fn to_outcome(document: Value, status: u16) -> ApiResult {
    if document["error"].is_string() {
        Err(ApiResponse { status, ..ApiResponse::ok(document) })
    } else {
        Ok(ApiResponse::ok(document))
    }
}
