//! Transport of one exchange: the fixed set of lanes.

use std::cell::Cell;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::sync::Arc;

use http::encode::FieldWriter;
use http::framing::Framing;
use http::{BodySize, Fields, HeadRef, Length, Reject, Status, Version};
use times::Millis;

use crate::bandwidth::BandwidthLimit;
use crate::conn::Conn;
use crate::core::Core;
use crate::detached::DetachedLane;
use crate::fault::Fault;
use crate::file::FileSpan;
use crate::filters::DefaultFields;
use crate::inbound::BodyChunk;
use crate::mux::StreamLane;
use crate::page::ErrorPages;
use crate::permit::ServingContext;
use crate::source::Source;
use crate::spill::{SpillError, SpillQuota, SpilledOutput};
use crate::wait::Interest;

/// Unreachable: raw reads require a lane that can switch protocols.
const NO_SWITCH: Fault = Fault::Failed("a request without a client carries nothing but HTTP");

/// The transport of one request and its response.
pub(crate) enum Lane<'c> {
    /// An HTTP/1 connection, borrowed for the duration of the request.
    H1(&'c mut Conn),
    /// A stream of a multiplexed connection.
    Stream(&'c mut StreamLane),
    /// A request without a client, whose response a [`ResponseSink`](crate::detached::ResponseSink) receives.
    Detached(&'c mut DetachedLane),
}

/// Waiting and scheduling.
impl Lane<'_> {
    pub(crate) fn core(&self) -> &Core {
        match self {
            Lane::H1(conn) => conn.link.core(),
            Lane::Stream(stream) => &stream.conn().core,
            Lane::Detached(lane) => &lane.request.context.core,
        }
    }

    /// Returns the source that tasks wait for.
    pub(crate) fn source(&self) -> &Source {
        match self {
            Lane::H1(conn) => conn.link.stream().source(),
            Lane::Stream(stream) => stream.source(),
            Lane::Detached(lane) => lane.source(),
        }
    }

    /// Whether the interest is met by data that the source does not report: bytes that TLS has decrypted, or
    /// that were loaded from disk.
    pub(crate) fn is_met_by_buffers(&self, interest: Interest) -> bool {
        self.overflow().has_loaded()
            || matches!(self, Lane::H1(conn) if conn.link.is_met_by_buffers(interest))
    }

    /// Returns the part of an interest for which the source can be waited. While output is being loaded from
    /// disk, writability is irrelevant.
    pub(crate) fn waitable(&self, interest: Interest) -> Interest {
        if self.overflow().is_loading() { interest.without_write() } else { interest }
    }

    fn overflow(&self) -> &SpilledOutput {
        match self {
            Lane::H1(conn) => &conn.overflow,
            Lane::Stream(stream) => &stream.overflow,
            Lane::Detached(lane) => &lane.overflow,
        }
    }

    /// Counts moved bytes and yields to other connections when the turn is used up, however fast this client
    /// is.
    pub(crate) async fn consume_budget(&mut self, bytes: usize) {
        match self {
            Lane::H1(conn) => conn.consume_budget(bytes).await,
            Lane::Stream(stream) => stream.consume_budget(bytes).await,
            Lane::Detached(lane) => lane.consume_budget(bytes).await,
        }
    }

    /// Charges work to the turn as if `bytes` had been moved.
    pub(crate) fn count_moved(&mut self, bytes: usize) {
        match self {
            Lane::H1(conn) => conn.moved_bytes += bytes,
            Lane::Stream(stream) => stream.count_moved(bytes),
            Lane::Detached(lane) => lane.count_moved(bytes),
        }
    }
}

/// Properties of the connection, and limits.
impl Lane<'_> {
    /// Returns the address that the client connected to.
    pub(crate) fn local_address(&self) -> Option<SocketAddr> {
        match self {
            Lane::H1(conn) => conn.local_address(),
            Lane::Stream(stream) => stream.conn().endpoints.local_address,
            Lane::Detached(lane) => lane.request.local_address,
        }
    }

    /// Returns the Unix socket of an HTTP/1 connection.
    pub(crate) fn unix_socket(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Lane::H1(conn) => conn.link.stream().unix_socket(),
            Lane::Stream(_) | Lane::Detached(_) => None,
        }
    }

    /// Returns the port of the local address without building the whole address.
    pub(crate) fn local_port(&self) -> Option<u16> {
        match self {
            Lane::H1(conn) => conn.local_port(),
            Lane::Stream(stream) => stream.conn().endpoints.local_address.map(|local| local.port()),
            Lane::Detached(lane) => lane.request.local_address.map(|local| local.port()),
        }
    }

    /// Sets the memory of the request without the lane's buffers; called before a wait that may be long.
    pub(crate) fn hold(&mut self, bytes: usize) {
        match self {
            Lane::H1(conn) => {
                conn.request_bytes = bytes;
                conn.trim_buffers();
            }
            Lane::Stream(stream) => stream.hold(bytes),
            Lane::Detached(lane) => lane.hold(bytes),
        }
    }

    /// Returns the number of encoders in use on the core.
    pub(crate) fn encoders(&self) -> &Rc<Cell<usize>> {
        match self {
            Lane::H1(conn) => &conn.context().encoders,
            Lane::Stream(stream) => &stream.conn().context().encoders,
            Lane::Detached(lane) => &lane.request.context.encoders,
        }
    }

    /// Returns the error pages for requests whose site is not known.
    pub(crate) fn error_pages(&self) -> &Rc<dyn ErrorPages> {
        match self {
            Lane::H1(conn) => &conn.context().error_pages,
            Lane::Stream(stream) => &stream.conn().context().error_pages,
            Lane::Detached(lane) => &lane.request.context.error_pages,
        }
    }

    /// Whether the server is stopping.
    pub(crate) fn is_draining(&self) -> bool {
        match self {
            Lane::H1(conn) => conn.context().is_draining.get(),
            Lane::Stream(stream) => stream.conn().context().is_draining.get(),
            Lane::Detached(lane) => lane.request.context.is_draining.get(),
        }
    }

    pub(crate) fn set_timeouts(&mut self, body_timeout: Millis, write_timeout: Millis) {
        match self {
            Lane::H1(conn) => (conn.body_timeout, conn.write_timeout) = (body_timeout, write_timeout),
            Lane::Stream(stream) => stream.set_timeouts(body_timeout, write_timeout),
            Lane::Detached(lane) => {
                (lane.request.body_timeout, lane.request.write_timeout) = (body_timeout, write_timeout)
            }
        }
    }

    /// Limits the rate of the response. Detached requests are not limited.
    pub(crate) fn limit_bandwidth(&mut self, bandwidth: &BandwidthLimit) {
        match self {
            Lane::H1(conn) => conn.limit_bandwidth(bandwidth),
            Lane::Stream(stream) => stream.limit_bandwidth(bandwidth),
            Lane::Detached(_) => {}
        }
    }

    pub(crate) fn body_timeout(&self) -> Millis {
        match self {
            Lane::H1(conn) => conn.body_timeout,
            Lane::Stream(stream) => stream.body_timeout(),
            Lane::Detached(lane) => lane.request.body_timeout,
        }
    }

    /// Returns the time for which the client may accept no bytes of the response, in milliseconds.
    pub(crate) fn stall_timeout(&self) -> Millis {
        match self {
            Lane::H1(conn) => conn.stall_timeout(),
            Lane::Stream(stream) => stream.stall_timeout(),
            Lane::Detached(lane) => lane.request.write_timeout,
        }
    }

    /// Returns the state shared by the core's connections.
    pub(crate) fn context(&self) -> &Rc<ServingContext> {
        match self {
            Lane::H1(conn) => conn.context(),
            Lane::Stream(stream) => stream.conn().context(),
            Lane::Detached(lane) => &lane.request.context,
        }
    }

    /// Declares the next response to be an error page of this server.
    pub(crate) fn mark_own_error(&self) {
        if let Lane::Detached(lane) = self {
            lane.is_own_error.set(true);
        }
    }

    /// Closes an HTTP/1 connection after the response.
    pub(crate) fn close_after_response(&mut self) {
        match self {
            Lane::H1(conn) => conn.keep_alive = false,
            Lane::Stream(_) | Lane::Detached(_) => {}
        }
    }
}

/// Request input.
impl Lane<'_> {
    /// Returns the head and the bytes that its spans refer to.
    pub(crate) fn head(&self) -> HeadRef<'_> {
        match self {
            Lane::H1(conn) => conn.head(),
            Lane::Stream(stream) => stream.head(),
            Lane::Detached(lane) => lane.request.head(),
        }
    }

    pub(crate) fn limit_body(&mut self, bytes_max: u64) -> Result<(), Reject> {
        match self {
            Lane::H1(conn) => conn.limit_body(bytes_max),
            Lane::Stream(stream) => stream.limit_body(bytes_max),
            Lane::Detached(_) => Ok(()),
        }
    }

    /// Returns start and end of the next piece of the body in the input; `None` at its end. If a response
    /// `has_begun`, `100 Continue` is not sent.
    pub(crate) async fn body_piece(&mut self, has_begun: bool) -> Result<Option<(usize, usize)>, Fault> {
        match self {
            Lane::H1(conn) => conn.body_piece(has_begun).await,
            Lane::Stream(stream) => stream.body_piece(has_begun).await,
            Lane::Detached(_) => Ok(None),
        }
    }

    /// Like [`Lane::body_piece`], without waiting.
    pub(crate) fn try_body_piece(&mut self, has_begun: bool) -> Result<BodyChunk, Fault> {
        match self {
            Lane::H1(conn) => conn.try_body_piece(has_begun),
            Lane::Stream(stream) => stream.try_body_piece(has_begun),
            Lane::Detached(_) => Ok(BodyChunk::End),
        }
    }

    /// Returns the bytes of a piece.
    pub(crate) fn slice(&self, start: usize, end: usize) -> &[u8] {
        match self {
            Lane::H1(conn) => conn.buffers.input.slice(start, end),
            Lane::Stream(stream) => stream.slice(start, end),
            Lane::Detached(_) => &[],
        }
    }

    pub(crate) fn trailers(&self) -> Option<&Fields> {
        match self {
            Lane::H1(conn) => conn.buffers.machine.body().map(http::body::Body::trailers),
            Lane::Stream(stream) => stream.trailers(),
            Lane::Detached(_) => None,
        }
    }

    /// Whether the client still waits for `100 Continue` and has not begun to send the body.
    pub(crate) fn awaits_continue(&mut self) -> Result<bool, Fault> {
        match self {
            Lane::H1(conn) => conn.awaits_continue(),
            Lane::Stream(stream) => stream.awaits_continue(),
            Lane::Detached(_) => Ok(false),
        }
    }
}

/// Response output.
impl Lane<'_> {
    /// Sends the head. Returns the size of the body that the client gets.
    pub(crate) fn begin(
        &mut self,
        status: Status,
        length: Length,
        own: DefaultFields,
        lines: impl FnOnce(&mut FieldWriter<'_>),
    ) -> BodySize {
        match self {
            Lane::H1(conn) => conn.begin(status, length, own, lines),
            Lane::Stream(stream) => stream.begin(status, length, own, lines),
            Lane::Detached(lane) => lane.begin(status, length, own, lines),
        }
    }

    /// Whether the client of an HTTP/1 or HTTP/2 connection could use HTTP/3 with the listener of this key.
    pub(crate) fn may_switch_to_http3(&self, key: u64) -> bool {
        let (context, is_http3) = match self {
            Lane::H1(conn) => (conn.context(), false),
            Lane::Stream(stream) => (stream.conn().context(), stream.head().version == Version::Http3),
            Lane::Detached(_) => return false,
        };
        !is_http3 && context.http3_listeners.borrow().contains(&key)
    }

    /// Sends an interim response.
    pub(crate) fn send_interim(&mut self, status: Status, lines: impl FnOnce(&mut FieldWriter<'_>)) {
        match self {
            Lane::H1(conn) => conn.send_interim(status, lines),
            Lane::Stream(stream) => stream.send_interim(status, lines),
            Lane::Detached(lane) => lane.send_interim(status, lines),
        }
    }

    /// Sends body bytes, at least one.
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        match self {
            Lane::H1(conn) => conn.send(bytes).await,
            Lane::Stream(stream) => stream.send(bytes).await,
            Lane::Detached(lane) => lane.send(bytes).await,
        }
    }

    /// Like [`Lane::send`], for bytes that can be sent without copying.
    pub(crate) async fn send_in_place(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        match self {
            Lane::H1(conn) if conn.framing != Framing::Chunked => conn.push_in_place(bytes).await,
            _ => self.send(bytes).await,
        }
    }

    /// Like [`Lane::send`], without waiting: data that the client does not accept is kept in memory.
    pub(crate) fn offer(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        match self {
            Lane::H1(conn) => conn.offer_body(bytes),
            Lane::Stream(stream) => stream.offer(bytes),
            Lane::Detached(lane) => lane.offer(bytes),
        }
    }

    /// Sends a range of a file as body bytes, counted in `sent`. `is_last` means that the body ends with it.
    pub(crate) async fn send_file(
        &mut self,
        span: FileSpan<'_>,
        is_last: bool,
        sent: &mut u64,
    ) -> Result<(), Fault> {
        match self {
            Lane::H1(conn) => conn.send_file(span.file.as_fd(), span.at, span.len, sent).await,
            Lane::Stream(stream) => stream.send_file(span, is_last, sent).await,
            Lane::Detached(lane) => lane.send_file(span, sent).await,
        }
    }

    /// Completes the body.
    pub(crate) fn finish(&mut self, trailers: &Fields) {
        match self {
            Lane::H1(conn) => conn.finish(trailers),
            Lane::Stream(stream) => stream.finish(trailers),
            Lane::Detached(lane) => lane.finish(trailers),
        }
    }

    pub(crate) async fn flush(&mut self) -> Result<(), Fault> {
        match self {
            Lane::H1(conn) => conn.flush().await,
            Lane::Stream(stream) => stream.flush().await,
            Lane::Detached(lane) => lane.wait_for_room().await,
        }
    }

    /// Sends as much as the client accepts; returns true if nothing is left.
    pub(crate) fn try_flush(&mut self) -> Result<bool, Fault> {
        match self {
            Lane::H1(conn) => conn.try_flush(),
            Lane::Stream(stream) => stream.try_flush(),
            Lane::Detached(lane) => lane.try_flush(),
        }
    }

    /// Whether the client has accepted data since the last call. Costs a system call.
    pub(crate) fn has_progressed(&mut self) -> bool {
        match self {
            Lane::H1(conn) => conn.progress.check(conn.link.stream()),
            Lane::Stream(stream) => stream.has_progressed(),
            Lane::Detached(_) => false,
        }
    }

    /// Returns the number of unsent bytes in memory.
    pub(crate) fn backlog(&self) -> usize {
        match self {
            Lane::H1(conn) => conn.backlog().max(usize::from(conn.link.has_pending_output())),
            Lane::Stream(stream) => stream.backlog(),
            Lane::Detached(lane) => lane.sink.backlog(),
        }
    }

    /// Moves buffered output to a temporary file; `announced` bytes are still to be written.
    pub(crate) async fn spill(&mut self, quota: &Arc<SpillQuota>, announced: u64) -> Result<(), SpillError> {
        match self {
            Lane::H1(conn) => conn.spill(quota, announced).await,
            Lane::Stream(stream) => stream.spill(quota, announced).await,
            Lane::Detached(_) => Ok(()),
        }
    }

    /// Whether a temporary file holds a part of the unsent output.
    pub(crate) fn has_overflow(&self) -> bool {
        self.overflow().is_some()
    }

    /// Returns the number of unsent bytes in the temporary file.
    pub(crate) fn overflow_bytes(&self) -> u64 {
        self.overflow().unread_bytes()
    }
}

/// Protocol switches, of HTTP/1 connections and of streams whose request is an extended CONNECT.
impl Lane<'_> {
    /// Whether the lane can switch: the request body was read.
    pub(crate) fn can_switch(&self) -> bool {
        match self {
            Lane::H1(conn) => conn.buffers.machine.body_ended(),
            Lane::Stream(stream) => stream.can_switch(),
            Lane::Detached(_) => false,
        }
    }

    /// Sends the response that switches protocols. Returns its status.
    pub(crate) fn upgrade(&mut self, lines: impl FnOnce(&mut FieldWriter<'_>)) -> Status {
        match self {
            Lane::H1(conn) => {
                conn.send_interim(Status::SWITCHING_PROTOCOLS, lines);
                conn.switch_to_raw();
                Status::SWITCHING_PROTOCOLS
            }
            Lane::Stream(stream) => stream.upgrade(lines),
            Lane::Detached(_) => Status::NOT_IMPLEMENTED,
        }
    }

    /// Hands the connection to another owner, who responds. Returns false for streams and detached requests.
    pub(crate) fn take_over(&mut self) -> bool {
        match self {
            Lane::H1(conn) => conn.switch_to_raw(),
            Lane::Stream(_) | Lane::Detached(_) => return false,
        }
        true
    }

    /// Returns the status to send for a handler's `status`. A success would accept the tunnel of an extended
    /// CONNECT, which the handler did not intend.
    pub(crate) fn final_status(&self, status: Status) -> Status {
        match self {
            Lane::Stream(stream) if status.is_success() && stream.can_switch() => Status::NOT_IMPLEMENTED,
            _ => status,
        }
    }

    /// Reads bytes received after the switch: `None` if none are available, 0 at the end.
    pub(crate) fn try_read_raw(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, Fault> {
        match self {
            Lane::H1(conn) => conn.try_read_raw(buffer),
            Lane::Stream(stream) => stream.try_read_raw(buffer),
            Lane::Detached(_) => Err(NO_SWITCH),
        }
    }

    /// Releases memory before a wait that may be long.
    pub(crate) fn release_buffers(&mut self) {
        match self {
            Lane::H1(conn) => conn.release_buffers(),
            Lane::Stream(stream) => stream.release_buffers(),
            Lane::Detached(_) => {}
        }
    }

    pub(crate) fn shutdown_write(&mut self) {
        match self {
            Lane::H1(conn) => conn.link.shutdown_write(),
            Lane::Stream(stream) => stream.finish(&Fields::new()),
            Lane::Detached(_) => {}
        }
    }

    /// Aborts a tunnel whose other end has failed: resets the stream, unless the client has ended it too.
    pub(crate) fn abort_tunnel(&mut self) {
        if let Lane::Stream(stream) = self {
            stream.abort_tunnel();
        }
    }
}
