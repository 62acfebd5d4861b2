//! What moves the bytes of one exchange: the closed list of lanes.

use std::cell::Cell;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::sync::Arc;

use http::encode::Lines;
use http::framing::Framing;
use http::{BodySize, Fields, Head, Length, Reject, Status};

use crate::bandwidth::Bandwidth;
use crate::conn::Conn;
use crate::core::Core;
use crate::detached::DetachedLane;
use crate::fault::Fault;
use crate::file::FileSpan;
use crate::filters::DefaultFields;
use crate::inbound::BodyChunk;
use crate::mux::StreamLane;
use crate::page::ErrorPages;
use crate::permit::Context;
use crate::source::Source;
use crate::spill::{SpillError, SpillQuota, SpilledOutput};
use crate::wait::Interest;

/// Nobody asks that of a lane that cannot switch.
const NO_SWITCH: Fault = Fault::Broken("a request without a client carries nothing but HTTP");

/// What carries one request and its response.
pub(crate) enum Lane<'c> {
    /// An HTTP/1 connection, for as long as this request takes.
    H1(&'c mut Conn),
    /// A stream of a multiplexed connection.
    Stream(&'c mut StreamLane),
    /// No client: a request whose response somebody else takes.
    Detached(&'c mut DetachedLane),
}

/// Waiting: the source of a lane, and what of it is known otherwise.
impl Lane<'_> {
    pub(crate) fn core(&self) -> &Core {
        match self {
            Lane::H1(conn) => conn.link.core(),
            Lane::Stream(stream) => &stream.conn().core,
            Lane::Detached(lane) => &lane.request.context.core,
        }
    }

    /// What a task waits for.
    pub(crate) fn source(&self) -> &Source {
        match self {
            Lane::H1(conn) => conn.link.stream().source(),
            Lane::Stream(stream) => stream.source(),
            Lane::Detached(lane) => lane.source(),
        }
    }

    /// Whether this is met already by what the source does not know: bytes that TLS has decrypted, or that have been loaded
    /// from a disk.
    pub(crate) fn holds(&self, interest: Interest) -> bool {
        self.overflow().has_loaded() || matches!(self, Lane::H1(conn) if conn.link.holds(interest))
    }

    /// What of an interest the source can be waited for: while bytes to send come from a disk, that it could take more is no
    /// news.
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

    /// Counts bytes moved; after many of them others get their turn, however fast this client is.
    pub(crate) async fn moved(&mut self, bytes: usize) {
        match self {
            Lane::H1(conn) => conn.moved(bytes).await,
            Lane::Stream(stream) => stream.moved(bytes).await,
            Lane::Detached(lane) => lane.moved(bytes).await,
        }
    }

    /// Counts work against the turn, as if so many bytes had been moved.
    pub(crate) fn count_moved(&mut self, bytes: usize) {
        match self {
            Lane::H1(conn) => conn.moved_bytes += bytes,
            Lane::Stream(stream) => stream.count_moved(bytes),
            Lane::Detached(lane) => lane.count_moved(bytes),
        }
    }
}

/// The connection and its limits.
impl Lane<'_> {
    /// The address that the client connected to.
    pub(crate) fn local_address(&self) -> Option<SocketAddr> {
        match self {
            Lane::H1(conn) => conn.local_address(),
            Lane::Stream(stream) => stream.conn().ends.local,
            Lane::Detached(lane) => lane.request.local,
        }
    }

    /// The Unix socket of a connection of HTTP/1.
    pub(crate) fn unix_socket(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Lane::H1(conn) => conn.link.stream().unix_socket(),
            Lane::Stream(_) | Lane::Detached(_) => None,
        }
    }

    /// The port of that address. Cheap.
    pub(crate) fn local_port(&self) -> Option<u16> {
        match self {
            Lane::H1(conn) => conn.local_port(),
            Lane::Stream(stream) => stream.conn().ends.local.map(|local| local.port()),
            Lane::Detached(lane) => lane.request.local.map(|local| local.port()),
        }
    }

    /// Sets what the request holds beside the lane's own buffers; called before a wait that may be long.
    pub(crate) fn hold(&mut self, bytes: usize) {
        match self {
            Lane::H1(conn) => {
                conn.request_bytes = bytes;
                conn.settle();
            }
            Lane::Stream(stream) => stream.hold(bytes),
            Lane::Detached(lane) => lane.hold(bytes),
        }
    }

    /// Counts the streams that the core compresses.
    pub(crate) fn encoders(&self) -> &Rc<Cell<usize>> {
        match self {
            Lane::H1(conn) => &conn.context().encoders,
            Lane::Stream(stream) => &stream.conn().context().encoders,
            Lane::Detached(lane) => &lane.request.context.encoders,
        }
    }

    /// The pages of errors for requests whose site is not known.
    pub(crate) fn error_pages(&self) -> &Rc<dyn ErrorPages> {
        match self {
            Lane::H1(conn) => &conn.context().pages,
            Lane::Stream(stream) => &stream.conn().context().pages,
            Lane::Detached(lane) => &lane.request.context.pages,
        }
    }

    /// Whether the server is stopping.
    pub(crate) fn is_draining(&self) -> bool {
        match self {
            Lane::H1(conn) => conn.context().draining.get(),
            Lane::Stream(stream) => stream.conn().context().draining.get(),
            Lane::Detached(lane) => lane.request.context.draining.get(),
        }
    }

    pub(crate) fn set_timeouts(&mut self, body_ms: u64, write_ms: u64) {
        match self {
            Lane::H1(conn) => (conn.body_ms, conn.write_ms) = (body_ms, write_ms),
            Lane::Stream(stream) => stream.set_timeouts(body_ms, write_ms),
            Lane::Detached(lane) => (lane.request.body_ms, lane.request.write_ms) = (body_ms, write_ms),
        }
    }

    /// Limits how fast the response is sent. One that nobody waits for is not limited.
    pub(crate) fn limit_bandwidth(&mut self, bandwidth: Bandwidth) {
        match self {
            Lane::H1(conn) => conn.limit_bandwidth(bandwidth),
            Lane::Stream(stream) => stream.limit_bandwidth(bandwidth),
            Lane::Detached(_) => {}
        }
    }

    pub(crate) fn body_ms(&self) -> u64 {
        match self {
            Lane::H1(conn) => conn.body_ms,
            Lane::Stream(stream) => stream.body_ms(),
            Lane::Detached(lane) => lane.request.body_ms,
        }
    }

    /// Milliseconds that the client may take no byte of the response.
    pub(crate) fn patience_ms(&self) -> u64 {
        match self {
            Lane::H1(conn) => conn.patience_ms(),
            Lane::Stream(stream) => stream.patience_ms(),
            Lane::Detached(lane) => lane.request.write_ms,
        }
    }

    /// What the connections of the core share.
    pub(crate) fn context(&self) -> &Rc<Context> {
        match self {
            Lane::H1(conn) => conn.context(),
            Lane::Stream(stream) => stream.conn().context(),
            Lane::Detached(lane) => &lane.request.context,
        }
    }

    /// The response that begins next is an error that this server answers itself.
    pub(crate) fn expect_own_error(&self) {
        if let Lane::Detached(lane) = self {
            lane.is_own_error.set(true);
        }
    }

    /// No further request is taken from this client.
    pub(crate) fn close_after(&mut self) {
        match self {
            Lane::H1(conn) => conn.keep_alive = false,
            Lane::Stream(_) | Lane::Detached(_) => {}
        }
    }
}

/// The request.
impl Lane<'_> {
    /// The head, and the bytes that its spans refer to.
    pub(crate) fn head(&self) -> (&Head, &[u8]) {
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

    /// The place of the next piece of the body in the input; `None` at its end. `has_begun` says that a response is under
    /// way: then no `100 Continue` is sent.
    pub(crate) async fn body_piece(&mut self, has_begun: bool) -> Result<Option<(usize, usize)>, Fault> {
        match self {
            Lane::H1(conn) => conn.body_piece(has_begun).await,
            Lane::Stream(stream) => stream.body_piece(has_begun).await,
            Lane::Detached(_) => Ok(None),
        }
    }

    /// The same without waiting.
    pub(crate) fn try_body_piece(&mut self, has_begun: bool) -> Result<BodyChunk, Fault> {
        match self {
            Lane::H1(conn) => conn.try_body_piece(has_begun),
            Lane::Stream(stream) => stream.try_body_piece(has_begun),
            Lane::Detached(_) => Ok(BodyChunk::End),
        }
    }

    /// The bytes of a piece.
    pub(crate) fn slice(&self, start: usize, end: usize) -> &[u8] {
        match self {
            Lane::H1(conn) => conn.work.input.slice(start, end),
            Lane::Stream(stream) => stream.slice(start, end),
            Lane::Detached(_) => &[],
        }
    }

    pub(crate) fn trailers(&self) -> Option<&Fields> {
        match self {
            Lane::H1(conn) => conn.work.machine.body().map(http::body::Body::trailers),
            Lane::Stream(stream) => stream.trailers(),
            Lane::Detached(_) => None,
        }
    }

    /// Whether the client still waits for `100 Continue`, and has not begun to send the body all the same.
    pub(crate) fn awaits_continue(&mut self) -> Result<bool, Fault> {
        match self {
            Lane::H1(conn) => conn.awaits_continue(),
            Lane::Stream(stream) => stream.awaits_continue(),
            Lane::Detached(_) => Ok(false),
        }
    }
}

/// The response.
impl Lane<'_> {
    /// Sends the head. Returns how much body the client gets.
    pub(crate) fn begin(
        &mut self,
        status: Status,
        length: Length,
        own: DefaultFields,
        lines: impl FnOnce(&mut Lines<'_>),
    ) -> BodySize {
        match self {
            Lane::H1(conn) => conn.begin(status, length, own, lines),
            Lane::Stream(stream) => stream.begin(status, length, own, lines),
            Lane::Detached(lane) => lane.begin(status, length, own, lines),
        }
    }

    /// Sends an interim response.
    pub(crate) fn inform(&mut self, status: Status, lines: impl FnOnce(&mut Lines<'_>)) {
        match self {
            Lane::H1(conn) => conn.inform(status, lines),
            Lane::Stream(stream) => stream.inform(status, lines),
            Lane::Detached(lane) => lane.inform(status, lines),
        }
    }

    /// Body bytes, at least one.
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        match self {
            Lane::H1(conn) => conn.send(bytes).await,
            Lane::Stream(stream) => stream.send(bytes).await,
            Lane::Detached(lane) => lane.send(bytes).await,
        }
    }

    /// The same for bytes that stay where they are.
    pub(crate) async fn send_from(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        match self {
            Lane::H1(conn) if conn.framing != Framing::Chunked => conn.push_from(bytes).await,
            _ => self.send(bytes).await,
        }
    }

    /// The same as `send`, without waiting: what the client does not take now is kept in memory.
    pub(crate) fn offer(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        match self {
            Lane::H1(conn) => conn.offer_body(bytes),
            Lane::Stream(stream) => stream.offer(bytes),
            Lane::Detached(lane) => lane.offer(bytes),
        }
    }

    /// A range of a file as body bytes, counted in `sent`; with `is_last` the body ends with it.
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

    /// The body is complete.
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
            Lane::Detached(lane) => lane.room().await,
        }
    }

    /// Sends what the client takes now; true where nothing is left.
    pub(crate) fn try_flush(&mut self) -> Result<bool, Fault> {
        match self {
            Lane::H1(conn) => conn.try_flush(),
            Lane::Stream(stream) => stream.try_flush(),
            Lane::Detached(lane) => lane.try_flush(),
        }
    }

    /// Whether the client has taken anything since the last call. Costs a system call.
    pub(crate) fn has_taken(&mut self) -> bool {
        match self {
            Lane::H1(conn) => conn.progress.look(conn.link.stream()),
            Lane::Stream(stream) => stream.has_taken(),
            Lane::Detached(_) => false,
        }
    }

    /// Bytes that wait in memory to be sent.
    pub(crate) fn backlog(&self) -> usize {
        match self {
            Lane::H1(conn) => conn.backlog().max(usize::from(conn.link.is_behind())),
            Lane::Stream(stream) => stream.backlog(),
            Lane::Detached(lane) => lane.sink.backlog(),
        }
    }

    /// Moves what was collected to a temporary file; `announced` bytes are still to come.
    pub(crate) async fn spill(&mut self, quota: &Arc<SpillQuota>, announced: u64) -> Result<(), SpillError> {
        match self {
            Lane::H1(conn) => conn.spill(quota, announced).await,
            Lane::Stream(stream) => stream.spill(quota, announced).await,
            Lane::Detached(_) => Ok(()),
        }
    }

    /// Whether a temporary file holds a part of what waits to be sent.
    pub(crate) fn overflows(&self) -> bool {
        self.overflow().is_some()
    }

    /// Bytes that wait there.
    pub(crate) fn overflow_bytes(&self) -> u64 {
        self.overflow().unread_bytes()
    }
}

/// To carry something else after HTTP: on HTTP/1's connection, or on a stream whose request is an extended CONNECT.
impl Lane<'_> {
    /// Whether it can now: the request's body has been read.
    pub(crate) fn can_switch(&self) -> bool {
        match self {
            Lane::H1(conn) => conn.work.machine.body_ended(),
            Lane::Stream(stream) => stream.can_switch(),
            Lane::Detached(_) => false,
        }
    }

    /// Answers that it does from here on. Returns the status that was sent.
    pub(crate) fn upgrade(&mut self, lines: impl FnOnce(&mut Lines<'_>)) -> Status {
        match self {
            Lane::H1(conn) => {
                conn.inform(Status::SWITCHING_PROTOCOLS, lines);
                conn.switch();
                Status::SWITCHING_PROTOCOLS
            }
            Lane::Stream(stream) => stream.upgrade(lines),
            Lane::Detached(_) => Status::NOT_IMPLEMENTED,
        }
    }

    /// The connection belongs to somebody else from here on, who answers by himself. False for a stream, which is none.
    pub(crate) fn take_over(&mut self) -> bool {
        match self {
            Lane::H1(conn) => conn.switch(),
            Lane::Stream(_) | Lane::Detached(_) => return false,
        }
        true
    }

    /// The status that goes out where a handler answers with this one. A success would open the tunnel that an extended CONNECT asks
    /// for, of which this handler knows nothing.
    pub(crate) fn final_status(&self, status: Status) -> Status {
        match self {
            Lane::Stream(stream) if status.is_success() && stream.can_switch() => Status::NOT_IMPLEMENTED,
            _ => status,
        }
    }

    /// Bytes received after the switch: `None` where there are none now, 0 at the end.
    pub(crate) fn try_raw(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, Fault> {
        match self {
            Lane::H1(conn) => conn.try_raw(buffer),
            Lane::Stream(stream) => stream.try_raw(buffer),
            Lane::Detached(_) => Err(NO_SWITCH),
        }
    }

    /// Gives memory back before a wait that may be long.
    pub(crate) fn shed(&mut self) {
        match self {
            Lane::H1(conn) => conn.shed(),
            Lane::Stream(stream) => stream.shed(),
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

    /// What is carried in place of HTTP has broken off at its other end: a stream ends with a reset, unless the client has ended it too.
    pub(crate) fn break_off(&mut self) {
        if let Lane::Stream(stream) = self {
            stream.break_off();
        }
    }
}
