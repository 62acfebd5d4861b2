//! The server as a whole: status, reload, cache, certificates, logs, and who has changed what.

use serde_json::{Value, json};

use crate::api::operation::{Api, ApiCall, Outcome};
use crate::api::request::ApiResponse;
use crate::socket;

/// What `komainu status --json` prints.
pub(crate) fn status(api: &Api, _: &ApiCall<'_>) -> Outcome {
    Ok(ApiResponse::of(socket::status(&api.info)))
}

/// The last hour in steps of five seconds.
pub(crate) fn history(api: &Api, _: &ApiCall<'_>) -> Outcome {
    Ok(ApiResponse::of(api.history.document()))
}

/// Reads the configuration again: 422 where it is refused, 503 where the server is busy, stopping or being upgraded.
pub(crate) fn reload(api: &Api, _: &ApiCall<'_>) -> Outcome {
    let document = socket::obey("reload", &api.info);
    let status = if document["later"] == true { 503 } else { 422 };
    answered(document, status)
}

/// What the cache holds.
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

/// The certificates that are in use.
pub(crate) fn certificates(api: &Api, _: &ApiCall<'_>) -> Outcome {
    Ok(ApiResponse::of(json!({ "certificates": socket::all_certificates(&api.info) })))
}

/// Renews a certificate that the server obtains by itself.
pub(crate) fn renew(api: &Api, call: &ApiCall<'_>) -> Outcome {
    let response = answered(socket::obey(&format!("renew {}", call.part("name")), &api.info), 404)?;
    Ok(ApiResponse { status: 202, ..response })
}

/// Opens the log files again, after they were moved away; answers when that is done, 500 where one cannot be opened.
pub(crate) fn reopen(api: &Api, _: &ApiCall<'_>) -> Outcome {
    let faults = (api.info.reopen)();
    match faults.is_empty() {
        true => Ok(ApiResponse::done("the logs are opened again")),
        false => Err(ApiResponse { status: 500, ..ApiResponse::of(json!({ "error": faults.join("; ") })) }),
    }
}

/// Who has changed what.
pub(crate) fn audit(api: &Api, _: &ApiCall<'_>) -> Outcome {
    Ok(ApiResponse::of(json!({ "entries": api.audit.entries() })))
}

/// A document of the control socket: with an error it has this status.
fn answered(document: Value, status: u16) -> Outcome {
    match document["error"].is_string() {
        true => Err(ApiResponse { status, ..ApiResponse::of(document) }),
        false => Ok(ApiResponse::of(document)),
    }
}
