//! `komainu top`: where the status of the server comes from, and where the figures go.

use std::io::{self, IsTerminal, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use config::Listen;
use serde_json::Value;

use crate::cli::Top;
use crate::control_client::{self, printable};
use crate::status;

/// For the server to accept, and again for each part of its answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// A document larger than this is no server's.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// Follows a server in the terminal, or prints what happens within an interval.
///
/// # Errors
/// There is no such server, or it does not answer; the terminal fails.
pub(crate) fn top(arguments: &Top) -> Result<(), String> {
    let mut ask = source(arguments)?;
    let is_terminal = io::stdout().is_terminal() && io::stdin().is_terminal();
    if is_terminal && !arguments.once && !arguments.json {
        let has_colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        return top::screen(ask, arguments.every, has_colour);
    }
    let mut before = ask()?;
    loop {
        std::thread::sleep(arguments.every);
        let now = ask()?;
        let sample = top::StatusInterval::new(now.clone(), Some(&before));
        let text = match arguments.json {
            true => format!("{}\n", top::json(&sample)),
            false => top::text(&sample),
        };
        match io::stdout().write_all(text.as_bytes()) {
            // Who reads has enough.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            written => written.map_err(|error| error.to_string())?,
        }
        // Without a terminal text is printed once: nobody reads pages of it.
        if arguments.once || !arguments.json {
            return Ok(());
        }
        before = now;
    }
}

type StatusSource = Box<dyn FnMut() -> Result<Value, String>>;

fn source(arguments: &Top) -> Result<StatusSource, String> {
    let Some(address) = &arguments.address else {
        let pid = status::one(arguments.pid)?;
        return Ok(Box::new(move || control_client::ask(pid, "status")));
    };
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
            stream.and_then(fetch).map_err(&explained)
        }));
    }
    Listen::parse(&plain)
        .map_err(|error| format!("{plain}: {}: write HOST:PORT or unix:PATH", error.message))?;
    let to = if plain.starts_with(':') { format!("127.0.0.1{plain}") } else { plain };
    Ok(Box::new(move || connect(&to).and_then(fetch).map_err(&explained)))
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

/// Asks for the status.
fn fetch(mut stream: impl Read + Write) -> io::Result<Value> {
    stream.write_all(b"GET /v1/status HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\nConnection: close\r\n\r\n")?;
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
        return Err(io::Error::other(format!("the answer is {line}")));
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
