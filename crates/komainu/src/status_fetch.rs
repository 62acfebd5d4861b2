//! The status of a server, by the address of its control listener.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use config::Listen;
use serde_json::Value;

use crate::control_client::printable;
use crate::token_file;

/// For the server to accept, and again for each part of its answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// A document larger than this is no server's.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// Asks for the status, each time that it is called.
pub(crate) type StatusSource = Box<dyn FnMut() -> Result<Value, String>>;

/// The status of the server at an address, HOST:PORT, http://HOST:PORT or unix:PATH; the token is sent over TCP alone.
///
/// # Errors
/// It is no address.
pub(crate) fn by_address(address: &str, token: Option<&str>) -> Result<StatusSource, String> {
    let plain = address.strip_prefix("http://").unwrap_or(address).trim_end_matches('/').to_owned();
    let shown = plain.clone();
    let explained = move |error: io::Error| format!("{shown}: {error}");
    if let Some(path) =
        plain.strip_prefix("unix:").map(str::to_owned).or_else(|| plain.contains('/').then(|| plain.clone()))
    {
        return Ok(Box::new(move || {
            let stream = UnixStream::connect(&path).and_then(|stream| {
                stream.set_read_timeout(Some(ANSWER_MAX))?;
                stream.set_write_timeout(Some(ANSWER_MAX))?;
                Ok(stream)
            });
            stream.and_then(|stream| fetch(stream, "")).map_err(&explained)
        }));
    }
    Listen::parse(&plain)
        .map_err(|error| format!("{plain}: {}: write HOST:PORT or unix:PATH", error.message))?;
    let to = if plain.starts_with(':') { format!("127.0.0.1{plain}") } else { plain };
    let field = token.map(token_file::field).unwrap_or_default();
    Ok(Box::new(move || connect(&to).and_then(|stream| fetch(stream, &field)).map_err(&explained)))
}

fn connect(address: &str) -> io::Result<TcpStream> {
    let mut outcome = Err(io::Error::other("the name has no address"));
    for address in address.to_socket_addrs()? {
        outcome = TcpStream::connect_timeout(&address, ANSWER_MAX);
        if outcome.is_ok() {
            break;
        }
    }
    let stream = outcome?;
    stream.set_read_timeout(Some(ANSWER_MAX))?;
    stream.set_write_timeout(Some(ANSWER_MAX))?;
    Ok(stream)
}

/// Asks for the status; `field` is one more line of the request.
fn fetch(mut stream: impl Read + Write, field: &str) -> io::Result<Value> {
    let head =
        "GET /v1/status HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\nConnection: close\r\n";
    stream.write_all(format!("{head}{field}\r\n").as_bytes())?;
    let mut bytes = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut bytes)?;
    parsed(&bytes)
}

fn parsed(bytes: &[u8]) -> io::Result<Value> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n");
    let no_server = || io::Error::other("this is no control listener of Komainu");
    let (head, body) = bytes.split_at(end.ok_or_else(no_server)? + 4);
    let line = head.split(|&byte| byte == b'\r').next().unwrap_or_default();
    let code = std::str::from_utf8(line).ok().and_then(|line| line.split(' ').nth(1));
    if code != Some("200") {
        let line = printable(&String::from_utf8_lossy(line));
        let remedy = match code {
            Some("401") => " (give a token with --token-file, or KOMAINU_TOKEN_FILE)",
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
    fn an_answer_is_a_status_or_an_error_in_words() {
        let answer = |text: &str| parsed(text.as_bytes()).map_err(|error| error.to_string());
        assert_eq!(answer("HTTP/1.1 200 OK\r\nA: b\r\n\r\n{\"pid\":7}").unwrap()["pid"], 7);
        let failed = |text: &str| answer(text).unwrap_err();
        assert_eq!(failed("HTTP/1.1 403 No\u{1b}\r\n\r\n"), "the answer is HTTP/1.1 403 No?");
        for text in ["", "SSH-2.0\r\n", "HTTP/1.1 200 OK\r\n\r\n<html>", "HTTP/1.1 200 OK\r\n\r\n{}"] {
            assert_eq!(failed(text), "this is no control listener of Komainu");
        }
    }
}
