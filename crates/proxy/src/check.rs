//! Active health checks: requests that the proxy itself sends to each server.

use http::machine::{ClientMachine, Step};
use http::{Limits, Method};
use net::{Core, H2Link, H2Options, H2Request, Link, StreamStep, preface};

use crate::dial::dial;
use crate::failure::AttemptFailure;
use crate::options::{GroupOptions, HealthCheck, Probe};
use crate::response::INTERIM_MAX;
use crate::shared::Upstream;

/// The most bytes of a response head that a check reads.
const HEAD_BYTES: usize = 4096;

/// Checks a server once; true if it is healthy. `None` if no connection could be opened because this machine lacks
/// descriptors or ports.
pub(crate) async fn probe(
    core: &Core,
    options: &GroupOptions,
    server: usize,
    upstream: &Upstream,
    check: &HealthCheck,
) -> Option<bool> {
    let deadline_ms = core.now_ms().saturating_add(check.timeout_ms);
    let mut preface = Vec::new();
    if let Some(version) = options.proxy_protocol {
        preface::write(&mut preface, version, None);
    }
    let http2 = options.servers[server].http2;
    let mut link = match dial(core, options, server, upstream, 0, &preface, http2, deadline_ms).await {
        Ok((link, _)) => link,
        Err(AttemptFailure::Starved) => return None,
        Err(_) => return Some(false),
    };
    Some(match &check.probe {
        Probe::Connect => true,
        Probe::Get { path, host, first, last } => {
            let host = host.as_deref().unwrap_or(&upstream.authority);
            if http2 {
                let status = ask_on_stream(link, path, host, upstream.tls.is_some(), deadline_ms).await;
                return Some(status.is_some_and(|status| (*first..=*last).contains(&status)));
            }
            let request = format!(
                "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: komainu-check\r\nConnection: close\r\n\r\n"
            );
            let status = ask(&mut link, request.as_bytes(), deadline_ms).await;
            status.is_some_and(|status| (*first..=*last).contains(&status))
        }
    })
}

/// The same over HTTP/2, on a connection made for it.
async fn ask_on_stream(link: Link, path: &str, host: &str, secure: bool, deadline_ms: u64) -> Option<u16> {
    let head = Limits { head_bytes_max: HEAD_BYTES, ..Limits::default() };
    let connection = H2Link::start(link, &H2Options { head, ..H2Options::default() }, || ());
    let request = H2Request {
        method: Method::Get,
        method_name: b"GET",
        scheme: if secure { b"https" } else { b"http" },
        authority: host.as_bytes(),
        path: path.as_bytes(),
        lines: b"User-Agent: komainu-check\r\n",
        ended: true,
    };
    let mut stream = connection.request(&request)?;
    let mut interims = 0;
    loop {
        match stream.step().ok()? {
            StreamStep::Head if !stream.head().0.status.is_informational() => {
                return Some(stream.head().0.status.code());
            }
            StreamStep::Head if interims < INTERIM_MAX => interims += 1,
            StreamStep::Pending => stream.readable(deadline_ms).await.ok()?,
            _ => return None,
        }
    }
}

/// Sends a request and reads the head of its response: the status.
async fn ask(link: &mut Link, request: &[u8], deadline_ms: u64) -> Option<u16> {
    let mut rest = request;
    loop {
        if !rest.is_empty() {
            rest = &rest[link.try_write(&[rest], false).ok()?..];
        }
        if rest.is_empty() && link.try_flush().ok()? {
            break;
        }
        link.stream().ready_for(link.interest(false, true), deadline_ms).await.ok()?;
    }
    let mut machine = ClientMachine::default();
    let limits = Limits { head_bytes_max: HEAD_BYTES, ..Limits::default() };
    let (mut bytes, mut len) = (vec![0; HEAD_BYTES], 0);
    let mut interims = 0;
    loop {
        let fed = machine.feed(&bytes[..len], Method::Get, &limits).ok()?;
        if fed.step == Step::Head {
            if !machine.head.status.is_informational() {
                return Some(machine.head.status.code());
            }
            interims += 1;
            if interims > INTERIM_MAX {
                return None;
            }
            bytes.copy_within(fed.consumed..len, 0);
            len -= fed.consumed;
            machine.next();
            continue;
        }
        match link.try_read(&mut bytes[len..]).ok()? {
            Some(0) => return None,
            Some(read) => len += read,
            None => link.stream().ready_for(link.interest(true, false), deadline_ms).await.ok()?,
        }
    }
}
