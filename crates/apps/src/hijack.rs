//! A connection that an application takes over (Rack's full hijack): the server relays it to a socket of the worker's.

use std::os::fd::{AsFd, OwnedFd};

use http::Version;
use net::{Exchange, Fault, Link, Stream, TunnelEnd};
use ring::FilePart;
use rustix::net::{AddressFamily, SocketType, sockopt};
use rustix::process::ForeignRawFd;

use crate::descriptors;

/// The server's own descriptor of a worker's socket, checked: one end of a socketpair, or what is like it.
///
/// # Errors
/// Why nothing can be relayed to it, for the log.
pub(crate) fn take(process: &OwnedFd, part: FilePart) -> Result<OwnedFd, String> {
    let socket = descriptors::copy(process.as_fd(), part.fd as ForeignRawFd)
        .map_err(|error| format!("descriptor {} of the worker cannot be had: {error}", part.fd))?;
    let is_stream = sockopt::socket_type(&socket) == Ok(SocketType::STREAM);
    match is_stream && sockopt::socket_domain(&socket) == Ok(AddressFamily::UNIX) {
        true => Ok(socket),
        false => Err("what the worker wants to be handed the connection is no Unix socket".into()),
    }
}

/// Why a connection of that version cannot be taken over, for the log.
pub(crate) fn refusal(version: Version) -> &'static str {
    match version {
        Version::Http2 => "it wants to take over a connection of HTTP/2, which other requests share",
        _ => "it took a connection over before it had read the request",
    }
}

/// Relays until both sides have closed, or nothing has moved for `idle_ms`. At most 64 KiB are held for each side.
///
/// # Errors
/// Either side is gone.
pub(crate) async fn relay(x: &mut Exchange<'_>, socket: OwnedFd, idle_ms: u64) -> Result<(), Fault> {
    let mut link = Link::Plain(Stream::adopt(x.core(), socket)?);
    net::tunnel(x, TunnelEnd::Link(&mut link), b"", idle_ms).await
}
