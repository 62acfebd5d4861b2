//! The configuration as a tree, read and changed by path.

use std::path::PathBuf;

use aws_lc_rs::digest::{SHA256, digest};
use serde_json::{Value, json};
use tree::{ConfigTree, TreeError, TreePath};

use crate::api::applications;
use crate::api::operation::{Api, ApiCall, ApiResult};
use crate::api::request::ApiResponse;
use crate::config_text::{ConfigEdit, ConfigText, EditError};

/// Keys that identify the items of lists: servers, sites, routes.
const IDENTIFYING_KEYS: &[&str] = &["url", "hosts", "path"];
/// Keys that cannot be changed, because they determine which other files are read.
const FIXED_KEYS: &[&str] = &["include"];
/// Bytes of the digest in an `ETag`, each written as two hexadecimal digits.
const ETAG_BYTES: usize = 16;

/// Returns the active configuration, or an item of it.
pub(crate) fn get(api: &Api, call: &ApiCall<'_>) -> ApiResult {
    let text = active_config(api)?;
    let value = parse_tree(&text)?.get(&request_path(call)?).map_err(tree_error_response)?;
    Ok(ApiResponse { etag: Some(etag(&text)), ..ApiResponse::ok(value) })
}

/// Sets the value of an item.
pub(crate) fn put(api: &Api, call: &ApiCall<'_>) -> ApiResult {
    let path = request_path(call)?;
    let value = call.body_json()?;
    edit(api, call, true, |tree| tree.put(&path, &value))
}

/// Merges keys into a table (RFC 7396).
pub(crate) fn patch(api: &Api, call: &ApiCall<'_>) -> ApiResult {
    let path = request_path(call)?;
    let value = call.body_json()?;
    edit(api, call, true, |tree| tree.patch(&path, &value))
}

/// Removes an item.
pub(crate) fn delete(api: &Api, call: &ApiCall<'_>) -> ApiResult {
    let path = request_path(call)?;
    edit(api, call, true, |tree| tree.delete(&path))
}

/// Adds a server to a group.
pub(crate) fn add_server(api: &Api, call: &ApiCall<'_>) -> ApiResult {
    let group = group_path(call)?;
    let server = match call.body_json()? {
        Value::String(url) => json!(url),
        Value::Object(entries) if entries.contains_key("url") => Value::Object(entries),
        _ => {
            return Err(ApiResponse::error(
                400,
                "write `{ \"url\": \"http://…\" }`, with `weight` and what else a server takes",
            ));
        }
    };
    edit(api, call, false, |tree| {
        let to = group.join("to");
        match tree.get(&to)? {
            Value::Array(_) => tree.put(&to.join("-"), &server),
            one => tree.put(&to, &json!([one, server])),
        }
    })
}

/// Removes a server from a group.
pub(crate) fn remove_server(api: &Api, call: &ApiCall<'_>) -> ApiResult {
    let group = group_path(call)?;
    let wanted = call.path_parameter("server");
    let short =
        |url: &str| url.split_once("://").map_or(url, |(_, rest)| rest).trim_end_matches('/').to_owned();
    edit(api, call, false, |tree| {
        let to = group.join("to");
        let Value::Array(servers) = tree.get(&to)? else {
            return Err(TreeError::Conflict("a group keeps at least one server".to_owned()));
        };
        let url = |server: &Value| server["url"].as_str().or(server.as_str()).unwrap_or_default().to_owned();
        let at = servers.iter().position(|server| short(&url(server)) == short(wanted));
        match at {
            Some(_) if servers.len() == 1 => {
                Err(TreeError::Conflict("a group keeps at least one server".to_owned()))
            }
            Some(at) => tree.delete(&to.join(at.to_string())),
            None => Err(TreeError::NotFound(format!("the group has no server `{wanted}`"))),
        }
    })
}

/// Changes the number of workers of an application.
pub(crate) fn scale(api: &Api, call: &ApiCall<'_>) -> ApiResult {
    let body = call.body_object()?;
    ApiCall::reject_unknown_keys(&body, &["workers"])?;
    let workers = body.get("workers").ok_or_else(|| ApiResponse::error(400, "`workers` is missing"))?;
    let name = call.path_parameter("name");
    if !api.info.hosting.names().iter().any(|known| known == name) {
        return Err(applications::unknown_application(api, name));
    }
    let path = TreePath::default().join("apps").join(name).join("workers");
    edit(api, call, false, |tree| tree.put(&path, workers))
}

/// Returns the path of an upstream group in the configuration.
fn group_path(call: &ApiCall<'_>) -> Result<TreePath, ApiResponse> {
    Ok(TreePath::default().join("upstreams").join(call.path_parameter("group")))
}

fn request_path(call: &ApiCall<'_>) -> Result<TreePath, ApiResponse> {
    TreePath::parse(call.path_parameter("path")).map_err(tree_error_response)
}

fn tree_error_response(error: TreeError) -> ApiResponse {
    let status = match &error {
        TreeError::NotFound(_) => 404,
        TreeError::Invalid(_) => 400,
        TreeError::Conflict(_) => 409,
    };
    ApiResponse::error(status, error.to_string())
}

fn active_config(api: &Api) -> Result<ConfigText, ApiResponse> {
    let none = "this server has no configuration file: it was started by `komainu run`";
    (api.info.active_text)().ok_or_else(|| ApiResponse::error(409, none))
}

/// Returns the entity tag of a configuration.
fn etag(text: &ConfigText) -> String {
    let sum = digest(&SHA256, text.joined.as_bytes());
    let digits: String = sum.as_ref().iter().take(ETAG_BYTES).map(|byte| format!("{byte:02x}")).collect();
    format!("\"{digits}\"")
}

fn parse_tree(text: &ConfigText) -> Result<ConfigTree, ApiResponse> {
    let files = text.files().into_iter().map(|(path, text)| (path.display().to_string(), text));
    ConfigTree::parse(files, IDENTIFYING_KEYS, FIXED_KEYS).map_err(tree_error_response)
}

/// Changes the configuration atomically. If `needs_match` is set, the request must name the version to change
/// in `If-Match`.
fn edit(
    api: &Api,
    call: &ApiCall<'_>,
    needs_match: bool,
    change: impl Fn(&mut ConfigTree) -> Result<(), TreeError>,
) -> ApiResult {
    let persist = call.query_flag("persist")?;
    let before = active_config(api)?;
    let version = etag(&before);
    match call.request.if_match.as_deref() {
        None if needs_match => {
            let text = "`If-Match` is missing: send the `ETag` of what you have read, or `*` to change whatever is there";
            return Err(ApiResponse { etag: Some(version), ..ApiResponse::error(428, text) });
        }
        Some(wanted) if wanted.trim() != "*" && !wanted.split(',').any(|one| one.trim() == version) => {
            let text = "the configuration has changed since you have read it: read it again";
            return Err(ApiResponse { etag: Some(version), ..ApiResponse::error(412, text) });
        }
        _ => {}
    }
    let files = edit_files(&before, change)?;
    let edit = ConfigEdit {
        base_text: before.joined.clone(),
        files,
        persist,
        is_by_root: call.request.caller.is_root(),
    };
    match (api.info.edit_config)(edit) {
        Ok(document) => {
            let failures: Vec<String> =
                api.info.hosting.loading().iter().filter_map(|loading| loading.wait_for_failure()).collect();
            let mut document = document;
            if !failures.is_empty() {
                document["failures"] = json!(failures);
            }
            Ok(ApiResponse { etag: active_config(api).ok().as_ref().map(etag), ..ApiResponse::ok(document) })
        }
        Err(EditError { status, document }) => {
            Err(ApiResponse { status, etag: Some(version), ..ApiResponse::ok(document) })
        }
    }
}

/// Returns the files of the configuration after `change`.
fn edit_files(
    before: &ConfigText,
    change: impl Fn(&mut ConfigTree) -> Result<(), TreeError>,
) -> Result<Vec<(PathBuf, String)>, ApiResponse> {
    let mut tree = parse_tree(before)?;
    change(&mut tree).map_err(tree_error_response)?;
    let texts = tree.texts();
    let root = TreePath::default();
    let again =
        ConfigTree::parse(texts.clone(), IDENTIFYING_KEYS, FIXED_KEYS).and_then(|again| again.get(&root));
    if again != tree.get(&root) {
        // Refuse the change if the written TOML does not parse to the requested configuration.
        return Err(ApiResponse::error(500, "this change cannot be written as TOML here: edit the file"));
    }
    let paths = before.files().into_iter().map(|(path, _)| path);
    Ok(paths.zip(texts.into_iter().map(|(_, text)| text)).collect())
}
