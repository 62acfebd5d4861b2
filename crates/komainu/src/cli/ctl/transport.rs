//! Transport of `komainu ctl`: the control socket, or a control listener.

use std::io::Write;
use std::time::Duration;

use failure::{Failure, FailureContext};
use serde_json::{Value, json};

use crate::cli::control_endpoint::{ControlEndpoint, read_answer};
use crate::cli::ctl_arguments::CtlArguments;
use crate::cli::{control_client, status};

/// Timeout of each read of the answer; long, because a reload may wait for applications.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(300);
/// Maximum size of an answer in bytes.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// A request of the control API.
#[derive(Debug, Default)]
pub(crate) struct CtlRequest {
    pub(crate) method: &'static str,
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) if_match: Option<String>,
    pub(crate) body: Option<Value>,
}

/// An answer of the control API.
#[derive(Debug)]
pub(crate) struct CtlAnswer {
    pub(crate) status: u64,
    pub(crate) etag: Option<String>,
    pub(crate) document: Value,
}

/// Sends a request.
///
/// # Errors
/// There is no server, or it does not answer.
pub(crate) fn send(ctl: &CtlArguments, request: &CtlRequest) -> Result<CtlAnswer, Failure> {
    match &ctl.to {
        None => {
            ctl.credentials.refuse_without_address()?;
            send_by_socket(status::select_pid(ctl.pid)?, request)
        }
        Some(to) => send_by_listener(to, ctl, request).context(to),
    }
}

fn send_by_socket(pid: u32, request: &CtlRequest) -> Result<CtlAnswer, Failure> {
    let line = json!({
        "method": request.method, "path": request.path, "query": request.query,
        "if_match": request.if_match, "body": request.body,
    });
    let answer = control_client::send_command(pid, &format!("api {line}"))?;
    Ok(CtlAnswer {
        status: answer["status"].as_u64().unwrap_or_default(),
        etag: answer["etag"].as_str().map(str::to_owned),
        document: answer["document"].clone(),
    })
}

fn send_by_listener(to: &str, ctl: &CtlArguments, request: &CtlRequest) -> Result<CtlAnswer, Failure> {
    let (mut connection, fields) = ControlEndpoint::new(to, &ctl.credentials)?.connect(ANSWER_TIMEOUT)?;
    let body = request.body.as_ref().map(Value::to_string).unwrap_or_default();
    let target = if request.query.is_empty() {
        request.path.clone()
    } else {
        format!("{}?{}", request.path, request.query)
    };
    let mut head = format!("{} {target} HTTP/1.1\r\nConnection: close\r\n{fields}", request.method);
    if request.method != "GET" {
        head.push_str(&format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len()));
    }
    if let Some(version) = &request.if_match {
        head.push_str(&format!("If-Match: {version}\r\n"));
    }
    connection.write_all(format!("{head}\r\n{body}").as_bytes())?;
    let answer = read_answer(connection, ANSWER_BYTES_MAX)?;
    parse_answer(&String::from_utf8_lossy(&answer))
}

/// Parses an HTTP response without chunked coding.
fn parse_answer(answer: &str) -> Result<CtlAnswer, Failure> {
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("the answer is cut off")?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or("this is no HTTP")?;
    let etag = head
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("etag"));
    let document = serde_json::from_str(body).unwrap_or_else(|_| json!({ "error": body.trim() }));
    Ok(CtlAnswer { status, etag: etag.map(|(_, value)| value.trim().to_owned()), document })
}
