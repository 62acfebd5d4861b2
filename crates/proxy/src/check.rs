//! Active health checks: requests that the proxy itself sends to each server.

use cgi::Variables;
use http::machine::ClientMachine;
use http::{Limits, Method};
use net::{Core, HeldBuffers, MuxLinkOptions, MuxRequest, proxy_protocol};
use times::Millis;

use crate::cgi_side::CgiSide;
use crate::dial::{Connected, DialOptions, dial_any};
use crate::failure::AttemptFailure;
use crate::options::{CgiProtocol, GroupOptions, HealthCheck, UpstreamProtocol};
use crate::shared::Upstream;
use crate::upstream_connection::UpstreamConnection;
use crate::upstream_request::{RequestBounds, UpstreamRequest};
use crate::upstream_side::{Http1Side, UpstreamSide};

/// Checks a server once. True if it is healthy; an error if it did not answer. `None` if no connection could
/// be opened because this machine lacks descriptors or ports.
pub(crate) async fn probe(
    core: &Core,
    options: &GroupOptions,
    server: usize,
    upstream: &Upstream,
    check: &HealthCheck,
    buffers: HeldBuffers<ClientMachine>,
) -> Option<Result<bool, AttemptFailure>> {
    let deadline = core.now() + check.timeout;
    let mut preface = Vec::new();
    // Servers that expect a header in front of datagrams expect one in front of connections too.
    if let Some(version) = options.proxy_protocol {
        proxy_protocol::write(&mut preface, version, None);
    }
    let is_shared = options.servers[server].shares_connections();
    let how = DialOptions { first_address: 0, preface: &preface, is_shared };
    let connected = match dial_any(core, options, server, upstream, &how, deadline).await {
        Ok(connected) => connected,
        Err(AttemptFailure::ResourcesExhausted) => return None,
        Err(failure) => return Some(Err(failure)),
    };
    let Some(path) = &check.path else { return Some(Ok(true)) };
    let (first, last) = check.expect;
    let host = check.host.as_deref().unwrap_or(&upstream.authority);
    // Health checks accept the same heads as routes do.
    let limits = options.head_limits();
    let bounds = RequestBounds { limits, head_timeout: Millis::MAX, between: Millis::MAX, deadline };
    let side = match (options.servers[server].protocol, connected) {
        (UpstreamProtocol::Http2 | UpstreamProtocol::Http3, connected)
        | (_, connected @ Connected::Http3(..)) => {
            build_shared_request(connected, path, host, upstream.tls.is_some(), limits)?
        }
        (UpstreamProtocol::Cgi(protocol), Connected::Link(link, address)) => {
            let side =
                build_cgi_request(UpstreamConnection::new(link, address, buffers), protocol, path, host);
            match side {
                Ok(side) => side,
                Err(reason) => return Some(Err(AttemptFailure::Invalid(reason))),
            }
        }
        (
            UpstreamProtocol::Http1 | UpstreamProtocol::Tcp | UpstreamProtocol::Udp,
            Connected::Link(link, address),
        ) => {
            let mut connection = UpstreamConnection::new(link, address, buffers);
            connection.buffers.out.extend_from_slice(
                format!(
                    "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: komainu-check\r\nConnection: close\r\n\r\n"
                )
                .as_bytes(),
            );
            UpstreamSide::H1(Http1Side::new(connection, false))
        }
    };
    let mut request = UpstreamRequest::new(side, Method::Get, bounds);
    let answered = request.read_head().await;
    Some(answered.map(|()| (first..=last).contains(&request.head().0.status.code())))
}

/// Builds a request to a server of the CGI family. The path is passed as the script's, because PHP-FPM
/// compares that with its `ping.path`.
fn build_cgi_request(
    connection: UpstreamConnection,
    protocol: CgiProtocol,
    path: &str,
    host: &str,
) -> Result<UpstreamSide, &'static str> {
    let (script, info) = if protocol == CgiProtocol::FastCgi { (path, "") } else { ("", path) };
    let mut variables = Variables::new();
    for (name, value) in [
        ("GATEWAY_INTERFACE", "CGI/1.1"),
        ("REQUEST_METHOD", "GET"),
        ("REQUEST_URI", path),
        ("QUERY_STRING", ""),
        ("SCRIPT_NAME", script),
        ("SCRIPT_FILENAME", script),
        ("PATH_INFO", info),
        ("SERVER_PROTOCOL", "HTTP/1.1"),
        ("SERVER_NAME", host),
        ("SERVER_PORT", "80"),
        ("CONTENT_LENGTH", ""),
        ("HTTP_HOST", host),
        ("HTTP_USER_AGENT", "komainu-check"),
    ] {
        variables.push(name.as_bytes(), value.as_bytes());
    }
    let mut side = CgiSide::new(connection, protocol, &variables, false, None)?;
    side.finish();
    Ok(UpstreamSide::Cgi(Box::new(side)))
}

/// Sends a request on a new HTTP/2 or HTTP/3 connection that carries only this stream.
fn build_shared_request(
    connected: Connected,
    path: &str,
    host: &str,
    is_tls: bool,
    head: Limits,
) -> Option<UpstreamSide> {
    let connection = connected.start(&MuxLinkOptions { head, ..MuxLinkOptions::default() }, || ());
    let request = MuxRequest {
        method: Method::Get,
        method_name: b"GET",
        scheme: if is_tls { b"https" } else { b"http" },
        authority: host.as_bytes(),
        path: path.as_bytes(),
        lines: b"User-Agent: komainu-check\r\n",
        has_no_body: true,
        protocol: None,
    };
    connection.request(&request).map(|stream| UpstreamSide::Stream(Box::new(stream)))
}
