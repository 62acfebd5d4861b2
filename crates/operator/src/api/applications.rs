//! Applications: their processes, and restarts.

use serde_json::{Value, json};

use crate::api::operation::{Api, ApiCall, ApiResult, known_names};
use crate::api::request::ApiResponse;
use crate::overview;

/// Lists all applications.
pub(crate) fn list(api: &Api, _: &ApiCall<'_>) -> ApiResult {
    let exits = api.info.hosting.exits();
    let apps = api.info.hosting.processes().into_iter().map(|(name, processes)| {
        let ended = exits.iter().find(|(other, _)| *other == name);
        let ended: serde_json::Map<String, Value> = ended
            .map(|(_, counts)| {
                let each = apps::WorkerExit::ALL.iter().zip(counts);
                each.map(|(exit, count)| (exit.text().to_owned(), json!(count))).collect()
            })
            .unwrap_or_default();
        let processes: Vec<Value> = processes.iter().map(overview::process).collect();
        json!({ "name": name, "processes": processes, "exits": ended })
    });
    Ok(ApiResponse::ok(json!({ "applications": apps.collect::<Vec<_>>() })))
}

/// Returns one application.
pub(crate) fn get(api: &Api, call: &ApiCall<'_>) -> ApiResult {
    let ApiResponse { document, .. } = list(api, call)?;
    let all = document["applications"].as_array().cloned().unwrap_or_default();
    let name = call.path_parameter("name");
    let found = all.into_iter().find(|app| app["name"] == name);
    found.map(ApiResponse::ok).ok_or_else(|| unknown_application(api, name))
}

/// Loads an application again: new workers take over once they are ready, and no request is lost.
pub(crate) fn restart(api: &Api, call: &ApiCall<'_>) -> ApiResult {
    let name = call.path_parameter("name");
    let loading = api.info.hosting.reload(name).ok_or_else(|| unknown_application(api, name))?;
    match loading.wait_for_failure() {
        None => Ok(ApiResponse::success(format!("application {name}: the new code is in force"))),
        Some(text) => Err(ApiResponse::error(500, text)),
    }
}

pub(crate) fn unknown_application(api: &Api, name: &str) -> ApiResponse {
    let names: Vec<String> = api.info.hosting.names();
    let text = format!("there is no application `{name}`; {}", known_names(&names));
    ApiResponse::error(404, text)
}
