//! Connections that an application takes over (Rack's full hijack): the server relays them to a socket of the
//! worker. WebSockets over HTTP/2 streams are taken over in this way as well.

use std::os::fd::{AsFd, OwnedFd};

use failure::Failure;
use http::{Limits, Method, Name, ResponseHead, Status, Version};
use net::{Exchange, Fault, Interest, Link, Stream, TunnelEnd};
use ring::FilePart;
use rustix::net::{AddressFamily, SocketType, sockopt};
use rustix::process::ForeignRawFd;
use times::Millis;

use crate::descriptors;
use crate::upgrade::lacks_handshake;

/// Returns the server's own descriptor of a worker's socket, after checking that it is a Unix stream socket.
///
/// # Errors
/// Reason why the socket cannot be relayed to, for the log.
pub(crate) fn take_socket(process: &OwnedFd, part: FilePart) -> Result<OwnedFd, Failure> {
    let socket = descriptors::copy(process.as_fd(), part.fd as ForeignRawFd)
        .map_err(|error| format!("descriptor {} of the worker cannot be had: {error}", part.fd))?;
    let is_stream = sockopt::socket_type(&socket) == Ok(SocketType::STREAM);
    if is_stream && sockopt::socket_domain(&socket) == Ok(AddressFamily::UNIX) {
        Ok(socket)
    } else {
        Err("what the worker wants to be handed the connection is no Unix socket".into())
    }
}

/// Reason why a connection of this version cannot be taken over, for the log.
pub(crate) fn refusal_reason(version: Version) -> &'static str {
    match version {
        Version::Http2 => "it wants to take over a connection of HTTP/2, which other requests share",
        Version::Http3 => "it wants to take over a connection of HTTP/3, which other requests share",
        _ => "it took a connection over before it had read the request",
    }
}

/// Whether the request is an extended CONNECT that the application answers with the handshake of HTTP/1.1.
pub(crate) fn may_switch(exchange: &Exchange<'_>) -> bool {
    exchange.can_switch() && lacks_handshake(&exchange.request())
}

/// Relays until both sides have closed, or nothing was transferred for `idle_timeout`. At most 64 KiB are buffered
/// per direction. A stream of HTTP/2 is switched first, by the HTTP/1.1 response that the application writes
/// within `head_timeout`.
///
/// # Errors
/// Fails if either side is gone.
pub(crate) async fn relay(
    exchange: &mut Exchange<'_>,
    socket: OwnedFd,
    head_timeout: Millis,
    idle_timeout: Millis,
) -> Result<(), Fault> {
    let mut link = Link::Plain(Stream::adopt(exchange.core(), socket)?);
    let mut early = Vec::new();
    // HTTP/1 connections were switched already.
    if may_switch(exchange) {
        early = match switch(exchange, &mut link, head_timeout).await {
            Ok(Ok(early)) => early,
            Ok(Err(status)) => {
                return exchange.refuse(status, "the application does not accept the WebSocket").await;
            }
            Err(Fault::Timeout) => {
                return exchange
                    .refuse(Status::GATEWAY_TIMEOUT, "the application took too long to answer")
                    .await;
            }
            Err(fault) => return Err(fault),
        };
    }
    net::tunnel(exchange, TunnelEnd::Link(&mut link), &early, idle_timeout).await
}

/// Reads the application's handshake response and switches the stream if its status is 101. Returns the bytes
/// after the head, or the status that refuses the request.
async fn switch(
    exchange: &mut Exchange<'_>,
    link: &mut Link,
    head_timeout: Millis,
) -> Result<Result<Vec<u8>, Status>, Fault> {
    let deadline = exchange.core().now() + head_timeout;
    let mut head = ResponseHead::default();
    let mut bytes = Vec::new();
    let limits = Limits::default();
    loop {
        match read(link, &mut bytes)? {
            None => {
                exchange.wait_either(Interest::GONE, link, link.interest(Interest::READ), deadline).await?
            }
            Some(0) => return Ok(Err(Status::BAD_GATEWAY)),
            Some(_) => match head.parse(&bytes, Method::Get, &limits) {
                Ok(true) => break,
                Ok(false) => {}
                Err(_) => return Ok(Err(Status::BAD_GATEWAY)),
            },
        }
        if exchange.is_gone() {
            return Err(Fault::Disconnected);
        }
    }
    if head.status != Status::SWITCHING_PROTOCOLS {
        let refuses = (400..600).contains(&head.status.code());
        return Ok(Err(if refuses { head.status } else { Status::BAD_GATEWAY }));
    }
    exchange.upgrade(|lines| {
        for field in &head.fields {
            let name = field.name.of(&bytes);
            let value = field.value.of(&bytes);
            if !field.id.is_hop_by_hop() && field.id != Name::ContentLength {
                lines.line(name, value);
            }
        }
    });
    Ok(Ok(bytes.split_off(head.len)))
}

/// Appends the available bytes. Returns their number, 0 at the end, `None` if none are available.
fn read(link: &mut Link, bytes: &mut Vec<u8>) -> Result<Option<usize>, Fault> {
    let mut piece = [0; 4096];
    let read = link.try_read(&mut piece)?;
    bytes.extend_from_slice(&piece[..read.unwrap_or(0)]);
    Ok(read)
}
