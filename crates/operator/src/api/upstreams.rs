//! Upstream servers: their state, and changes of it by an operator.

use std::sync::Arc;

use net::Counter;
use net::clock::Clock;
use proxy::health::{ServerState, UpstreamOrder};
use proxy::{FAILURE_REASONS, GroupShared};
use serde_json::{Value, json};

use crate::api::operation::{Api, ApiCall, ApiResult, known_names};
use crate::api::request::ApiResponse;

/// Maximum weight of a server, as in the configuration.
const WEIGHT_MAX: u64 = 1_000;

/// Lists all groups.
pub(crate) fn list(api: &Api, _: &ApiCall<'_>) -> ApiResult {
    let groups = (api.info.groups)();
    let shown: Vec<Value> = groups.iter().map(|(name, group)| group_document(name, group)).collect();
    Ok(ApiResponse::ok(json!({ "groups": shown })))
}

/// Returns one group.
pub(crate) fn group(api: &Api, call: &ApiCall<'_>) -> ApiResult {
    let (name, group) = find_group(api, call)?;
    Ok(ApiResponse::ok(group_document(&name, &group)))
}

/// Returns one server.
pub(crate) fn server(api: &Api, call: &ApiCall<'_>) -> ApiResult {
    let (_, group) = find_group(api, call)?;
    let server = find_server(&group, call.path_parameter("server"))?;
    Ok(ApiResponse::ok(server_document(&group, server)))
}

/// Drains a server, takes it out of service, returns it, or changes its weight, until this process is
/// restarted.
pub(crate) fn change(api: &Api, call: &ApiCall<'_>) -> ApiResult {
    let (_, group) = find_group(api, call)?;
    let server = find_server(&group, call.path_parameter("server"))?;
    let body = call.body_object()?;
    ApiCall::reject_unknown_keys(&body, &["state", "weight"])?;
    let order = match &body.get("state") {
        None => None,
        Some(state) => {
            let found = UpstreamOrder::ALL.into_iter().find(|order| state.as_str() == Some(order.text()));
            Some(found.ok_or_else(|| invalid_body("`state` is \"ready\", \"drain\" or \"down\""))?)
        }
    };
    let weight = match body.get("weight") {
        None => None,
        Some(weight) => {
            let weight = weight.as_u64().filter(|weight| *weight <= WEIGHT_MAX);
            let weight = weight.and_then(|weight| u32::try_from(weight).ok());
            Some(weight.ok_or_else(|| invalid_body("`weight` is a number from 0 to 1000"))?)
        }
    };
    if order.is_none() && weight.is_none() {
        return Err(invalid_body("there is neither `state` nor `weight`"));
    }
    let now = Clock::new().now();
    weight.iter().for_each(|weight| group.set_weight(server, *weight, now));
    order.iter().for_each(|order| group.set_order(server, *order, now));
    let mut document = server_document(&group, server);
    let words = [order.map(|order| order.text().to_owned()), weight.map(|weight| format!("weight {weight}"))];
    let words: Vec<String> = words.into_iter().flatten().collect();
    document["done"] = json!(format!("{}: {}", group.display_name(server), words.join(", ")));
    // The change applies to the running server only; the configuration file is not modified.
    document["persisted"] = json!(false);
    Ok(ApiResponse::ok(document))
}

fn invalid_body(text: &str) -> ApiResponse {
    ApiResponse::error(400, text)
}

/// Finds the group named in the path.
pub(crate) fn find_group(api: &Api, call: &ApiCall<'_>) -> Result<(String, Arc<GroupShared>), ApiResponse> {
    let wanted = call.path_parameter("group");
    let mut groups = (api.info.groups)();
    if let Some(at) = groups.iter().position(|(name, _)| name == wanted) {
        return Ok(groups.swap_remove(at));
    }
    let names: Vec<String> = groups.into_iter().map(|(name, _)| name).collect();
    let text = format!("there is no group of upstream servers `{wanted}`; {}", known_names(&names));
    Err(ApiResponse::error(404, text))
}

/// Finds the server of a group by its URL, with or without the scheme, or by its index, from 0.
pub(crate) fn find_server(group: &GroupShared, selector: &str) -> Result<usize, ApiResponse> {
    let servers = 0..group.server_count();
    let short =
        |url: &str| url.split_once("://").map_or(url, |(_, rest)| rest).trim_end_matches('/').to_owned();
    let is_it = |server: &usize| {
        let url = group.display_name(*server);
        url == selector || short(url) == selector || short(url) == short(selector)
    };
    let by_place = || selector.parse::<usize>().ok().filter(|place| *place < group.server_count());
    servers.clone().find(is_it).or_else(by_place).ok_or_else(|| {
        let known: Vec<&str> = servers.map(|server| group.display_name(server)).collect();
        ApiResponse::error(404, format!("the group has no server `{selector}`; it has: {}", known.join(", ")))
    })
}

fn group_document(name: &str, group: &GroupShared) -> Value {
    let servers: Vec<Value> =
        (0..group.server_count()).map(|server| server_document(group, server)).collect();
    json!({ "name": name, "servers": servers })
}

fn server_document(group: &GroupShared, server: usize) -> Value {
    let now = Clock::new().now();
    let options = &group.options().servers[server];
    let cores = group.counters(server);
    let sum = |of: &dyn Fn(&proxy::UpstreamCounters) -> &Counter| {
        cores.iter().map(|core| of(core).value()).sum::<u64>()
    };
    let failures: serde_json::Map<String, Value> = (FAILURE_REASONS.iter().enumerate())
        .map(|(at, reason)| ((*reason).to_owned(), json!(sum(&|core| &core.failures[at]))))
        .collect();
    let responses: serde_json::Map<String, Value> =
        (1..6).map(|class| (format!("{class}xx"), json!(sum(&|core| &core.statuses[class])))).collect();
    let (health, for_ms) = match group.observed_state(server, now) {
        ServerState::Up => ("up", None),
        ServerState::Probe => ("probe", None),
        ServerState::Ejected(until) => ("ejected", Some((until - now).0)),
        ServerState::Down => ("down", None),
    };
    json!({
        "url": group.display_name(server),
        "state": group.order(server).text(),
        "health": health,
        "ejected_for_ms": for_ms,
        "weight": group.weight(server),
        "configured_weight": options.weight,
        "backup": options.backup,
        "connections_max": Some(options.connections_max).filter(|max| *max > 0),
        "active": group.active_requests(server),
        "requests": sum(&|core| &core.requests),
        "responses": responses,
        "failures": failures,
        "retries": sum(&|core| &core.retries),
        "ejections": sum(&|core| &core.ejections),
    })
}
