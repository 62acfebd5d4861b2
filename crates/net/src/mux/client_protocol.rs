//! Interface between a shared client connection and its protocol.

use http::Method;

use super::protocol::ContentFrames;

/// A request head.
#[derive(Clone, Copy, Debug)]
pub struct MuxRequest<'a> {
    /// The method.
    pub method: Method,
    /// The name of the method.
    pub method_name: &'a [u8],
    /// `http` or `https`.
    pub scheme: &'a [u8],
    /// `host[:port]`.
    pub authority: &'a [u8],
    /// Path and query, or `*`.
    pub path: &'a [u8],
    /// Field lines in HTTP/1 syntax. Connection-specific fields are left out.
    pub lines: &'a [u8],
    /// Whether the request has no body.
    pub has_no_body: bool,
    /// Protocol of an extended CONNECT (RFC 8441, RFC 9220); the server must support this: see
    /// [`crate::MuxLink::supports_connect`]. `method` must be CONNECT.
    pub protocol: Option<&'a [u8]>,
}

/// The requests of a client on one connection, without I/O and clocks. Calls for streams that it does not know, because
/// the server has reset them, have no effect.
pub(crate) trait ClientProtocol: ContentFrames {
    /// Whether a request can begin now.
    fn can_request(&mut self) -> bool;

    /// Begins a request; returns its stream, or `None` if none can begin now. Stream numbers ascend.
    fn request(&mut self, request: &MuxRequest<'_>) -> Option<u32>;

    /// Whether the server has said that it supports extended CONNECT.
    fn supports_connect(&self) -> bool;

    /// Updates the receive window after `bytes` bytes of content were read.
    fn grant(&mut self, id: u32, bytes: usize);

    /// Forgets a stream; cancels it if the exchange is incomplete. Returns whether it was cancelled, by either side.
    fn release(&mut self, id: u32) -> bool;

    /// Whether the server's window for all streams together has room for content of a further request.
    fn has_send_room(&self) -> bool;

    /// Cancels a stream whose server sends too much that has no effect.
    fn cancel_flood(&mut self, id: u32);

    /// Asks the server whether it is alive.
    fn ping(&mut self);

    /// Returns the number of framed bytes that wait to be sent.
    fn unsent_bytes(&self) -> usize;

    /// Returns the memory held, in bytes.
    fn held_bytes(&self) -> usize;
}
