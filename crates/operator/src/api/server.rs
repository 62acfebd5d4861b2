//! The server as a whole: status, reload, cache, certificates, logs and the audit log.

use serde_json::{Value, json};

use crate::api::operation::{Api, ApiCall, Outcome};
use crate::api::request::ApiResponse;
use crate::socket;

/// Returns the document that `komainu status --json` prints.
pub(crate) fn status(api: &Api, _: &ApiCall<'_>) -> Outcome {
    Ok(ApiResponse::of(socket::status(&api.info)))
}

/// Returns the last hour in steps of five seconds.
pub(crate) fn history(api: &Api, _: &ApiCall<'_>) -> Outcome {
    Ok(ApiResponse::of(api.history.document()))
}

/// Reloads the configuration: 422 if it is rejected, 503 if the server is busy, stopping or being upgraded.
pub(crate) fn reload(api: &Api, _: &ApiCall<'_>) -> Outcome {
    let document = socket::obey("reload", &api.info);
    let status = if document["later"] == true { 503 } else { 422 };
    answered(document, status)
}

/// Returns the statistics of the cache; 404 if there is no cache.
pub(crate) fn cache(api: &Api, _: &ApiCall<'_>) -> Outcome {
    answered((api.info.cache)("stats"), 404)
}

/// Removes stored responses.
pub(crate) fn purge(api: &Api, call: &ApiCall<'_>) -> Outcome {
    let body = call.object()?;
    ApiCall::only(&body, &["url", "prefix", "tag", "all", "soft"])?;
    let mut response = answered((api.info.cache)(&format!("purge {}", Value::Object(body))), 400)?;
    let text = format!("{} responses were removed", response.document["objects"]);
    response.document["done"] = json!(text);
    Ok(response)
}

/// Lists the certificates in use.
pub(crate) fn certificates(api: &Api, _: &ApiCall<'_>) -> Outcome {
    Ok(ApiResponse::of(json!({ "certificates": socket::all_certificates(&api.info) })))
}

/// Starts the renewal of a certificate that the server obtains itself.
pub(crate) fn renew(api: &Api, call: &ApiCall<'_>) -> Outcome {
    let response = answered(socket::obey(&format!("renew {}", call.part("name")), &api.info), 404)?;
    Ok(ApiResponse { status: 202, ..response })
}

/// Reopens the log files after rotation; answers when this is done, with 500 if one cannot be opened.
pub(crate) fn reopen(api: &Api, _: &ApiCall<'_>) -> Outcome {
    let faults = (api.info.reopen)();
    match faults.is_empty() {
        true => Ok(ApiResponse::done("the logs are opened again")),
        false => Err(ApiResponse { status: 500, ..ApiResponse::of(json!({ "error": faults.join("; ") })) }),
    }
}

/// Returns the audit log, newest entry first.
pub(crate) fn audit(api: &Api, _: &ApiCall<'_>) -> Outcome {
    Ok(ApiResponse::of(json!({ "entries": api.audit.entries() })))
}

/// Converts a document of the control socket to a response; one with an error gets `status`.
fn answered(document: Value, status: u16) -> Outcome {
    match document["error"].is_string() {
        true => Err(ApiResponse { status, ..ApiResponse::of(document) }),
        false => Ok(ApiResponse::of(document)),
    }
}
