//! Generations of the configuration: requests that still use an old one.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::api::operation::{Api, ApiCall, ApiResult};
use crate::api::request::ApiResponse;

/// Time for the requests of a closed generation to end; each core checks once per second.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval between two checks.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Lists the current generation and all others with requests in progress.
pub(crate) fn list(api: &Api, _: &ApiCall<'_>) -> ApiResult {
    Ok(ApiResponse::ok(api.info.generations.to_json(api.info.stop_handle.is_draining())))
}

/// Ends the requests of an old generation and waits until they have ended.
pub(crate) fn close(api: &Api, call: &ApiCall<'_>) -> ApiResult {
    let generations = &api.info.generations;
    let part = call.path_parameter("number");
    let gone =
        || ApiResponse::error(404, format!("there is no generation `{part}`: it is over, or never was"));
    let number: u64 = part.parse().map_err(|_| gone())?;
    let before = generations.active_requests(number).ok_or_else(gone)?;
    if generations.is_current(number) && !api.info.stop_handle.is_draining() {
        let text = format!("generation {number} is in force: only older ones are closed");
        return Err(ApiResponse::error(409, text));
    }
    generations.close(number);
    let until = Instant::now() + CLOSE_TIMEOUT;
    let left = loop {
        match generations.active_requests(number) {
            Some(work) if work.requests > 0 && Instant::now() < until => std::thread::sleep(CHECK_INTERVAL),
            left => break left.map_or(0, |work| work.requests),
        }
    };
    let text = match left {
        0 => format!(
            "generation {number}: {} requests were closed, {} of them upgraded",
            before.requests, before.upgraded
        ),
        left => format!("generation {number}: {left} of {} requests are still to end", before.requests),
    };
    let mut document = ApiResponse::success(text).document;
    document["closed"] = json!(before.requests.saturating_sub(left));
    Ok(ApiResponse::ok(document))
}
