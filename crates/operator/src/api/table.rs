//! The table of operations, and the dispatch of requests.

use serde_json::{Value, json};

use crate::api::operation::{Api, ApiCall, ApiResult, BodyField, Operation};
use crate::api::request::{ApiRequest, ApiResponse, CallerRole};
use crate::api::{applications, configuration, connections, generations, openapi, server, upstreams};

const fn get(path: &'static str, role: CallerRole, about: &'static str, run: OperationFn) -> Operation {
    Operation { method: "GET", path, role, about, body: None, run }
}

const fn post(
    path: &'static str,
    about: &'static str,
    body: &'static [BodyField],
    run: OperationFn,
) -> Operation {
    Operation { method: "POST", path, role: CallerRole::Operate, about, body: Some(body), run }
}

const fn admin(
    method: &'static str,
    path: &'static str,
    about: &'static str,
    body: Option<&'static [BodyField]>,
    run: OperationFn,
) -> Operation {
    Operation { method, path, role: CallerRole::Admin, about, body, run }
}

type OperationFn = fn(&Api, &ApiCall<'_>) -> ApiResult;

const TEXT_SCHEMA: fn() -> Value = || json!({ "type": "string" });
const FLAG_SCHEMA: fn() -> Value = || json!({ "type": "boolean" });

/// All operations of the API.
const OPERATIONS: &[Operation] = &[
    get("/v1/status", CallerRole::Open, "The server, its processes and what they use", server::status),
    get(
        "/v1/history",
        CallerRole::Open,
        "Rates, latencies and memory of the last hour, in steps of 5 seconds",
        server::history,
    ),
    get(
        "/v1/config",
        CallerRole::Admin,
        "The configuration that is in force, with the secrets that stand in it",
        configuration::get,
    ),
    admin("PUT", "/v1/config", "Give the whole configuration", Some(&[]), configuration::put),
    admin(
        "PATCH",
        "/v1/config",
        "Change keys of the configuration (RFC 7396)",
        Some(&[]),
        configuration::patch,
    ),
    get("/v1/config/{path...}", CallerRole::Admin, "An item of the configuration", configuration::get),
    admin("PUT", "/v1/config/{path...}", "Give an item a value, or add one", Some(&[]), configuration::put),
    admin(
        "PATCH",
        "/v1/config/{path...}",
        "Change keys of an item (RFC 7396)",
        Some(&[]),
        configuration::patch,
    ),
    admin("DELETE", "/v1/config/{path...}", "Remove an item", None, configuration::delete),
    get("/v1/upstreams", CallerRole::Open, "The groups of upstream servers", upstreams::list),
    get("/v1/upstreams/{group}", CallerRole::Open, "One group of upstream servers", upstreams::group),
    get("/v1/upstreams/{group}/{server}", CallerRole::Open, "One upstream server", upstreams::server),
    Operation {
        method: "PATCH",
        path: "/v1/upstreams/{group}/{server}",
        role: CallerRole::Operate,
        about: "Drain an upstream server, take it out of service, return it, or change its weight",
        body: Some(&[
            BodyField {
                name: "state",
                doc: "`drain` leaves it the clients whose sticky cookie names it, `down` none.",
                schema: || json!({ "enum": ["ready", "drain", "down"] }),
            },
            BodyField {
                name: "weight",
                doc: "Its share of the requests.",
                schema: || json!({ "type": "integer", "minimum": 0, "maximum": 1000 }),
            },
        ]),
        run: upstreams::change,
    },
    admin(
        "POST",
        "/v1/upstreams/{group}",
        "Add a server to a group, in the configuration too",
        Some(&[]),
        configuration::add_server,
    ),
    admin(
        "DELETE",
        "/v1/upstreams/{group}/{server}",
        "Remove a server from a group, in the configuration too",
        None,
        configuration::remove_server,
    ),
    admin(
        "PATCH",
        "/v1/applications/{name}",
        "Change how many workers an application has, in the configuration too",
        Some(&[BodyField {
            name: "workers",
            doc: "A number, or a table with `min` and `max`.",
            schema: || json!({ "anyOf": [{ "type": "integer", "minimum": 1 }, { "type": "object" }] }),
        }]),
        configuration::scale,
    ),
    get("/v1/applications", CallerRole::Open, "The applications and their processes", applications::list),
    get("/v1/applications/{name}", CallerRole::Open, "One application", applications::get),
    post(
        "/v1/applications/{name}/restart",
        "Load an application again, without losing a request",
        &[],
        applications::restart,
    ),
    get("/v1/cache", CallerRole::Open, "What the cache holds", server::cache),
    post(
        "/v1/cache/purge",
        "Remove stored responses",
        &[
            BodyField { name: "url", doc: "This URL, in all its variants.", schema: TEXT_SCHEMA },
            BodyField { name: "prefix", doc: "Every URL that begins so.", schema: TEXT_SCHEMA },
            BodyField { name: "tag", doc: "Every response with this tag.", schema: TEXT_SCHEMA },
            BodyField { name: "all", doc: "Everything.", schema: FLAG_SCHEMA },
            BodyField { name: "soft", doc: "Make them stale instead.", schema: FLAG_SCHEMA },
        ],
        server::purge,
    ),
    get("/v1/certificates", CallerRole::Open, "The certificates that are in use", server::certificates),
    post("/v1/certificates/{name}/renew", "Renew a certificate now", &[], server::renew),
    post("/v1/reload", "Read the configuration again", &[], server::reload),
    post("/v1/logs/reopen", "Open the log files again, after they were moved away", &[], server::reopen),
    get(
        "/v1/generations",
        CallerRole::Open,
        "The configuration in force, and those that requests still work by",
        generations::list,
    ),
    Operation {
        method: "DELETE",
        path: "/v1/generations/{number}",
        role: CallerRole::Operate,
        about: "Close the requests, WebSockets and tunnels that work by an old configuration",
        body: None,
        run: generations::close,
    },
    get(
        "/v1/connections",
        CallerRole::Read,
        "How many clients are connected, by listener, protocol and address, and the oldest connections",
        connections::list,
    ),
    get("/v1/audit", CallerRole::Read, "Who has changed what, the newest first", server::audit),
    get("/v1/openapi.json", CallerRole::Open, "This document", |api, _| {
        Ok(ApiResponse::ok(openapi::document(OPERATIONS, api.access().allows_anonymous_metrics)))
    }),
];

/// Returns the role that a request needs; `None` if there is no matching operation.
pub(crate) fn required_role(method: &str, path: &str) -> Option<CallerRole> {
    find_operation(method, path).ok().map(|(operation, _)| operation.role)
}

/// Answers a request. Changes are recorded in the audit log whether or not they succeed, reads only if
/// refused.
pub(crate) fn answer_request(api: &Api, request: &ApiRequest) -> ApiResponse {
    let (operation, parts) = match find_operation(&request.method, &request.path) {
        Ok(found) => found,
        Err(response) => return response,
    };
    let response = if request.caller.role >= operation.role {
        (operation.run)(api, &ApiCall { request, path_parameters: parts }).unwrap_or_else(|error| error)
    } else {
        refuse_role(request, operation.role)
    };
    if operation.method != "GET" || response.is_refusal() {
        api.audit.record(request, &response);
    }
    response
}

fn refuse_role(request: &ApiRequest, needed: CallerRole) -> ApiResponse {
    let has = request.caller.role.text();
    let needed = needed.text();
    if request.caller.may_send_token && request.caller.role == CallerRole::Open {
        let text = format!(
            "this needs the role `{needed}`: send a token that has it, as `Authorization: Bearer TOKEN`"
        );
        return ApiResponse::error(401, text);
    }
    let text = match request.caller.role {
        CallerRole::Open => format!(
            "this needs the role `{needed}`: ask by a Unix socket (`[control] listen = \"unix:…\"`, or `komainu ctl` on this \
             machine), or give the listener a `[[control.token]]`"
        ),
        _ => format!("this needs the role `{needed}`, and that of `{}` is `{has}`", request.caller.name),
    };
    ApiResponse::error(403, text)
}

type FoundOperation = (&'static Operation, Vec<(&'static str, String)>);

/// Finds the operation for a request; the error is a response with 404 or 405.
fn find_operation(method: &str, path: &str) -> Result<FoundOperation, ApiResponse> {
    // HEAD is handled as GET; the content is omitted later.
    let method = if method == "HEAD" { "GET" } else { method };
    let matching = || OPERATIONS.iter().filter_map(|one| Some((one, match_pattern(one.path, path)?)));
    if let Some(found) = matching().find(|(operation, _)| operation.method == method) {
        return Ok(found);
    }
    let methods: Vec<&str> = matching().map(|(operation, _)| operation.method).collect();
    if methods.is_empty() {
        return Err(ApiResponse::error(
            404,
            "there is nothing of this name: GET /v1/openapi.json lists what there is",
        ));
    }
    let text = format!("there is no {method} here, but {}", methods.join(", "));
    let allow = methods.join(", ").replace("GET", "GET, HEAD");
    Err(ApiResponse { allow: Some(allow), ..ApiResponse::error(405, text) })
}

/// Matches a path against a pattern and returns its parameters; `None` if it does not match.
fn match_pattern(pattern: &'static str, path: &str) -> Option<Vec<(&'static str, String)>> {
    let mut parts = Vec::new();
    let mut rest = Some(path.strip_suffix('/').unwrap_or(path));
    for wanted in pattern.split('/') {
        let name = wanted.strip_prefix('{').and_then(|name| name.strip_suffix('}'));
        if let Some(name) = name.and_then(|name| name.strip_suffix("...")) {
            parts.push((name, rest?.to_owned()));
            rest = None;
            continue;
        }
        let (segment, more) = match rest?.split_once('/') {
            Some((segment, more)) => (segment, Some(more)),
            None => (rest?, None),
        };
        rest = more;
        match name {
            Some(name) => parts.push((name, decode_segment(segment)?)),
            None if segment == wanted => {}
            None => return None,
        }
    }
    rest.is_none().then_some(parts)
}

fn decode_segment(segment: &str) -> Option<String> {
    let path = tree::TreePath::parse(segment).ok()?;
    match path.segments() {
        [one] => Some(one.clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_parameters_are_extracted() {
        let found = |pattern, path| {
            match_pattern(pattern, path)
                .map(|parts| parts.into_iter().map(|(_, value)| value).collect::<Vec<_>>())
        };
        assert_eq!(found("/v1/status", "/v1/status"), Some(vec![]));
        assert_eq!(found("/v1/status", "/v1/status/x"), None);
        assert_eq!(found("/v1/upstreams/{group}", "/v1/upstreams/a%2Fb"), Some(vec!["a/b".into()]));
        assert_eq!(found("/v1/upstreams/{group}", "/v1/upstreams"), None);
        assert_eq!(found("/v1/config/{path...}", "/v1/config/a/b%2F"), Some(vec!["a/b%2F".into()]));
        assert_eq!(found("/v1/config/{path...}", "/v1/config"), None);
        assert_eq!(find_operation("HEAD", "/v1/status").ok().map(|(one, _)| one.method), Some("GET"));
        assert_eq!(
            find_operation("DELETE", "/v1/status").err().and_then(|error| error.allow),
            Some("GET, HEAD".into())
        );
    }

    #[test]
    fn every_operation_is_in_the_openapi_document() {
        let document = openapi::document(OPERATIONS, true);
        for operation in OPERATIONS {
            let path = operation.path.replace("...}", "}");
            let found = &document["paths"][path.as_str()][operation.method.to_ascii_lowercase()];
            assert!(found["summary"].is_string(), "{} {path}", operation.method);
        }
    }
}
