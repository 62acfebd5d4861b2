//! Fetching the status of a server from its control listener.

use std::io::{self, Read, Write};
use std::time::Duration;

use failure::{Failure, FailureContext};
use serde_json::Value;

use crate::cli::control_endpoint::{ControlCredentials, ControlEndpoint, read_answer};
use crate::terminal::sanitize;

/// Timeout of each read of the answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size of an answer in bytes.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// Fetches the status on each call.
pub(crate) type StatusSource = Box<dyn FnMut() -> Result<Value, Failure>>;

/// Returns a source of the status of the server at an address.
///
/// # Errors
/// The errors of [`ControlEndpoint::new`].
pub(crate) fn source_for_address(
    address: &str,
    credentials: &ControlCredentials,
) -> Result<StatusSource, Failure> {
    let endpoint = ControlEndpoint::new(address, credentials)?;
    let shown = address.to_owned();
    Ok(Box::new(move || {
        let connected = endpoint.connect(ANSWER_TIMEOUT);
        connected.and_then(|(stream, fields)| fetch(stream, &fields)).context(&shown)
    }))
}

/// Requests the status; `fields` are additional header lines.
fn fetch(mut stream: impl Read + Write, fields: &str) -> io::Result<Value> {
    let head = "GET /v1/status HTTP/1.1\r\nAccept: application/json\r\nConnection: close\r\n";
    stream.write_all(format!("{head}{fields}\r\n").as_bytes())?;
    parse_response(&read_answer(stream, ANSWER_BYTES_MAX)?)
}

fn parse_response(bytes: &[u8]) -> io::Result<Value> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n");
    let no_server = || io::Error::other("this is not a control listener of Komainu");
    let (head, body) = bytes.split_at(end.ok_or_else(no_server)? + 4);
    let line = head.split(|&byte| byte == b'\r').next().unwrap_or_default();
    let code = std::str::from_utf8(line).ok().and_then(|line| line.split(' ').nth(1));
    if code != Some("200") {
        let line = sanitize(&String::from_utf8_lossy(line));
        let remedy = match code {
            Some("401") => {
                " (give a token with --token-file or KOMAINU_TOKEN_FILE, or a certificate with --cert)"
            }
            _ => "",
        };
        return Err(io::Error::other(format!("the answer is {line}{remedy}")));
    }
    let document: Value = serde_json::from_slice(body).map_err(|_| no_server())?;
    if document["pid"].is_null() { Err(no_server()) } else { Ok(document) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_status_answers_produce_readable_errors() {
        let answer = |text: &str| parse_response(text.as_bytes()).map_err(|error| error.to_string());
        assert_eq!(answer("HTTP/1.1 200 OK\r\nA: b\r\n\r\n{\"pid\":7}").unwrap()["pid"], 7);
        let failed = |text: &str| answer(text).unwrap_err();
        assert_eq!(failed("HTTP/1.1 403 No\u{1b}\r\n\r\n"), "the answer is HTTP/1.1 403 No?");
        for text in ["", "SSH-2.0\r\n", "HTTP/1.1 200 OK\r\n\r\n<html>", "HTTP/1.1 200 OK\r\n\r\n{}"] {
            assert_eq!(failed(text), "this is not a control listener of Komainu");
        }
    }
}
