//! Active health checks: requests that the proxy itself sends to each server.

use http::{Limits, Method};
use net::{Core, preface};

use crate::dial::dial;
use crate::failure::AttemptFailure;
use crate::options::{GroupOptions, HealthCheck, Probe};
use crate::shared::Upstream;
use crate::upstream_connection::{PooledBuffers, UpstreamConnection};
use crate::upstream_request::{RequestBounds, UpstreamRequest};

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
    buffers: PooledBuffers,
) -> Option<bool> {
    let deadline_ms = core.now_ms().saturating_add(check.timeout_ms);
    let mut preface = Vec::new();
    if let Some(version) = options.proxy_protocol {
        preface::write(&mut preface, version, None);
    }
    let (link, address) = match dial(core, options, server, upstream, 0, &preface, deadline_ms).await {
        Ok(connected) => connected,
        Err(AttemptFailure::Starved) => return None,
        Err(_) => return Some(false),
    };
    let Probe::Get { path, host, first, last } = &check.probe else { return Some(true) };
    let host = host.as_deref().unwrap_or(&upstream.authority);
    let mut connection = UpstreamConnection::new(link, address, buffers);
    connection.buffers.out.extend_from_slice(
        format!(
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: komainu-check\r\nConnection: close\r\n\r\n"
        )
        .as_bytes(),
    );
    let limits = Limits { head_bytes_max: HEAD_BYTES, ..Limits::default() };
    let bounds = RequestBounds { limits, head_ms: u64::MAX, between_ms: u64::MAX, deadline_ms };
    let mut request = UpstreamRequest::new(connection, Method::Get, bounds);
    Some(match request.read_head().await {
        Ok(()) => (*first..=*last).contains(&request.head().0.status.code()),
        Err(_) => false,
    })
}
