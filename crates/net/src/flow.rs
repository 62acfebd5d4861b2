//! An exchange for handlers that carry bytes both ways at once and so cannot wait for one side alone: the calls of
//! [`Exchange`] that never wait, and one that waits for either side.

use std::future::{Future, poll_fn};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::encode::Lines;
use http::{BodySize, Length, Status};

use crate::body_copy::{BodyCopied, BodyCopy};
use crate::compress::{COMPRESSED_BYTES, COMPRESSED_WEIGHT};
use crate::exchange::Exchange;
use crate::fault::Fault;
use crate::filters::{DefaultFields, fields_of};
use crate::h2_client::H2Stream;
use crate::inbound::BodyChunk;
use crate::lane::Lane;
use crate::link::Link;
use crate::memory::Pressure;
use crate::replace::{REPLACED_BYTES, REPLACED_WEIGHT};
use crate::source::HALF_CLOSED;
use crate::spill::{SpillError, SpillQuota};
use crate::state::ReplyState;
use crate::wait::{self, Interest};

/// What is offered ahead of a client that does not read while memory is short.
const AHEAD_BYTES_SHORT: usize = 8 * 1024;
/// A client that is behind gets so long to make room before a temporary file is begun: one that reads as fast as it can
/// costs no disk.
const GRACE_MS: u64 = 5;

/// What there is of a request's body now.
#[derive(Debug)]
pub enum BodyPiece<'x> {
    /// Some of it.
    Data(&'x [u8]),
    /// It has ended; its trailers are in [`Exchange::trailers`].
    End,
    /// Nothing until the client sends more.
    Pending,
}

impl Exchange<'_> {
    /// Begins the response like [`Exchange::begin`], with field lines written straight into the buffer.
    /// They must not hold what frames a message.
    ///
    /// # Panics
    /// Where a response has begun already.
    pub fn begin_lines(
        &mut self,
        status: Status,
        length: Length,
        own: DefaultFields,
        lines: impl FnOnce(&mut Lines<'_>),
    ) {
        if self.state.filters.see_heads() || self.intercepts(status) {
            // Filters need a block to work on: the slower way, only for routes that have them.
            let mut block = Vec::new();
            lines(&mut Lines::new(&mut block));
            let fields = fields_of(&block);
            return self.begin_fields(status, &fields, length, own);
        }
        self.open(status, length, own, lines);
    }

    /// Sends an interim response (1xx, but not 101) ahead of the response. A 1.0 client knows none, and gets none.
    ///
    /// # Panics
    /// Where the status is not an interim one, or a response has begun already.
    pub fn inform(&mut self, status: Status, lines: impl FnOnce(&mut Lines<'_>)) {
        let interim = status.is_informational() && status != Status::SWITCHING_PROTOCOLS;
        assert!(
            interim && self.state.reply == ReplyState::Unsent,
            "an interim response comes before the final one"
        );
        self.lane.inform(status, lines);
    }

    /// Sets the reason phrase of the response that begins next, if it has this status. Only HTTP/1 has any (RFC 9112 section 4).
    #[cold]
    pub fn set_reason(&mut self, status: Status, reason: &[u8]) {
        if let Lane::H1(conn) = &mut self.lane {
            conn.reason = Some(Box::new((status, reason.to_vec())));
        }
    }

    /// Whether the connection can carry something else after this request: [`Exchange::upgrade`]. HTTP/1's can, once the
    /// request's body has been read, and a stream can where its request asks for a protocol.
    #[must_use]
    pub fn can_switch(&self) -> bool {
        self.state.reply == ReplyState::Unsent && self.lane.can_switch()
    }

    /// Switches protocols: answers 101 with these lines (`Connection`, `Upgrade`, …), and on a stream 200 with those that it can have. From
    /// here on the connection carries what both ends make of it: [`Exchange::try_raw`], [`Exchange::offer`]; see also [`crate::tunnel`].
    ///
    /// # Panics
    /// Where [`Exchange::can_switch`] is false.
    pub fn upgrade(&mut self, lines: impl FnOnce(&mut Lines<'_>)) {
        assert!(self.can_switch(), "an upgrade follows the request");
        let status = self.lane.upgrade(lines);
        let now_us = self.core().now_us();
        self.state.switched(now_us, status);
    }

    /// Takes the connection from HTTP without a response of the server's own: whoever gets it answers. False where that
    /// cannot be: a response has begun, or the request's body is not read.
    pub fn take_over(&mut self) -> bool {
        let can = self.can_switch() && self.lane.take_over();
        if can {
            let now_us = self.core().now_us();
            self.state.switched(now_us, Status::SWITCHING_PROTOCOLS);
        }
        can
    }

    /// Bytes of an upgraded connection, copied into `buffer`: `None` where there are none now, 0 at the end.
    ///
    /// # Errors
    /// The client is gone.
    pub fn try_raw(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, Fault> {
        self.lane.try_raw(buffer)
    }

    /// Gives memory back before a wait that may be long; only an upgraded connection does without it.
    pub fn shed(&mut self) {
        self.lane.shed();
    }

    /// Whether the server is stopping: responses without an end (tunnels, event streams) have to end now.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.lane.is_draining()
    }

    /// Closes the sending side of an upgraded connection, once all has been flushed.
    pub fn shutdown_write(&mut self) {
        self.lane.shutdown_write();
    }

    /// The tunnel's other end is gone, and nothing more of the client's is wanted.
    pub(crate) fn break_off(&mut self) {
        self.lane.break_off();
    }

    /// Whether the client is gone in both directions.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.lane.source().is_gone()
    }

    /// The next piece of the request's body without waiting. Before a wait for more, flush: the client may be
    /// waiting for the `100 Continue` that the first call has prepared.
    ///
    /// # Errors
    /// As [`Exchange::read`].
    pub fn try_read(&mut self) -> Result<BodyPiece<'_>, Fault> {
        match self.lane.try_body_piece(self.state.reply != ReplyState::Unsent)? {
            BodyChunk::Data(start, end) => {
                let piece = self.lane.slice(start, end);
                self.state.read_piece(piece);
                Ok(BodyPiece::Data(piece))
            }
            BodyChunk::End => {
                self.state.body_ended();
                Ok(BodyPiece::End)
            }
            BodyChunk::Pending => Ok(BodyPiece::Pending),
        }
    }

    /// Has the request's body copied while the handler reads it, up to so many bytes, which the request holds meanwhile. `copied` gets
    /// it at its end, and is dropped where the handler does not read to the end.
    pub fn copy_body(&mut self, bytes_max: usize, copied: BodyCopied) {
        let announced = match self.request().body() {
            BodySize::Known(len) => Some(len),
            BodySize::None | BodySize::Unknown => None,
        };
        self.state.body_copy = Some(Box::new(BodyCopy::new(bytes_max, announced, copied)));
        self.weigh();
    }

    /// Whether the client still waits for `100 Continue`, and has sent nothing of the body: the first read answers it.
    ///
    /// # Errors
    /// As [`Exchange::read`].
    pub fn awaits_continue(&mut self) -> Result<bool, Fault> {
        self.lane.awaits_continue()
    }

    /// More of the response's body without waiting: what the client does not take now is kept in memory, so
    /// look at [`Exchange::backlog`] before giving more.
    ///
    /// # Errors
    /// The client has disconnected, or more was written than announced.
    pub fn offer(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        if self.state.filters.replacing.is_none() {
            return self.offer_replaced(bytes);
        }
        for piece in bytes.chunks(REPLACED_BYTES) {
            let Some(replacing) = &mut self.state.filters.replacing else { break };
            let replaced = replacing.write(piece)?;
            self.lane.count_moved(piece.len() * REPLACED_WEIGHT);
            self.offer_replaced(&replaced)?;
        }
        Ok(())
    }

    /// Body bytes behind the first filter, without waiting.
    fn offer_replaced(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        if self.state.filters.compressing.is_none() {
            return self.offer_filtered(bytes);
        }
        for piece in bytes.chunks(COMPRESSED_BYTES) {
            self.lane.count_moved(piece.len() * COMPRESSED_WEIGHT);
            let compressed = self.state.filters.body(piece)?;
            self.offer_filtered(compressed.as_deref().unwrap_or(piece))?;
        }
        Ok(())
    }

    /// Body bytes behind the filters, without waiting.
    fn offer_filtered(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        if let Some(after) = self.state.take(bytes.len() as u64)? {
            self.lane.offer(bytes)?;
            self.state.reply = ReplyState::Body(after);
        }
        Ok(())
    }

    /// Sends on what filters hold back, where the client must get it before the handler waits.
    pub(crate) fn flush_filters(&mut self) -> Result<(), Fault> {
        match &mut self.state.filters.compressing {
            None => Ok(()),
            Some(compressing) => {
                let compressed = compressing.flush()?;
                self.offer_filtered(&compressed)
            }
        }
    }

    /// The last bytes that filters hold back.
    pub(crate) fn finish_filters(&mut self) -> Result<(), Fault> {
        if let Some(replacing) = self.state.filters.replacing.take() {
            let last = replacing.finish()?;
            self.offer_replaced(&last)?;
        }
        match self.state.filters.compressing.take() {
            None => Ok(()),
            Some(compressing) => self.offer_filtered(&compressing.finish()?),
        }
    }

    /// How much may be offered ahead of a client that does not read, where a handler would keep up to `bytes_max`: little
    /// while memory is short.
    #[must_use]
    pub fn ahead_bytes_max(&self, bytes_max: usize) -> usize {
        if self.core().memory().pressure() >= Pressure::High {
            bytes_max.min(AHEAD_BYTES_SHORT)
        } else {
            bytes_max
        }
    }

    /// Bytes that wait in memory to be sent; at least 1 while TLS holds encrypted bytes that the kernel has not taken.
    #[must_use]
    pub fn backlog(&self) -> usize {
        self.lane.backlog()
    }

    /// Sends what the client takes now; true where nothing is left.
    ///
    /// # Errors
    /// The client is gone.
    pub fn try_flush(&mut self) -> Result<bool, Fault> {
        self.flush_filters()?;
        self.lane.try_flush()
    }

    /// Whether the client has taken anything since the last call, also where [`Exchange::unsent`] is the same: the kernel reports room
    /// only when a third of its send buffer is free. To be asked at the end of a wait for room, because it costs a system call.
    pub fn has_taken(&mut self) -> bool {
        self.lane.has_taken()
    }

    /// Whether the client has closed its sending side: most clients that do so have disconnected.
    #[must_use]
    pub fn is_half_closed(&self) -> bool {
        self.lane.source().ready() & HALF_CLOSED != 0
    }

    /// What shows that the client has left: its connection is gone, or its sending side is closed and it has not asked to close the
    /// connection after the response. A client that has asked for that (`Connection: close`, HTTP/1.0) may still wait for it.
    #[must_use]
    pub fn leaving(&self) -> Interest {
        let closes = matches!(&self.lane, Lane::H1(conn) if !conn.work.machine.head.keep_alive);
        if closes { Interest::GONE } else { Interest::END }
    }

    /// Whether the client has left: see [`Exchange::leaving`].
    #[must_use]
    pub fn has_left(&self) -> bool {
        self.lane.source().ready() & self.leaving().0 != 0
    }

    /// Whether the client has left. If not, whoever polls with `cx` runs again when it leaves.
    #[must_use]
    pub fn poll_left(&self, cx: &Context<'_>) -> bool {
        self.poll_client(self.leaving(), cx)
    }

    /// Has handlers get the path with all empty segments that the client has sent. Rules that look at the decoded path
    /// ([`crate::Request::route_path`]) see it as before.
    pub fn pass_as_sent(&mut self) {
        self.state.passes_as_sent = true;
    }

    /// The address that the client connected to: this server's, or the one that the PROXY protocol reports. `None` over a
    /// Unix socket.
    #[must_use]
    pub fn local_address(&self) -> Option<std::net::SocketAddr> {
        self.lane.local_address()
    }

    /// The Unix socket of the connection, by HTTP/1, for questions about the other end. `None` over TCP.
    #[must_use]
    pub fn unix_socket(&self) -> Option<BorrowedFd<'_>> {
        self.lane.unix_socket()
    }

    /// The port of that address. Cheap for every request.
    #[must_use]
    pub fn local_port(&self) -> Option<u16> {
        self.lane.local_port()
    }

    /// Milliseconds that may pass between two pieces of the request's body.
    #[must_use]
    pub fn body_ms(&self) -> u64 {
        self.lane.body_ms()
    }

    /// Milliseconds that the client may take no byte of the response: fewer while memory is short.
    #[must_use]
    pub fn write_ms(&self) -> u64 {
        self.lane.patience_ms()
    }
}

impl Exchange<'_> {
    /// Moves what waits to be sent to a temporary file, which the client is then sent from. A client that was not far
    /// behind until now first gets a moment to make room. Call it where [`Exchange::backlog`] is more than is to be kept in
    /// memory.
    ///
    /// # Errors
    /// Within, why it stays in memory; without, those of [`Exchange::try_flush`].
    pub async fn spill(&mut self, quota: &Arc<SpillQuota>) -> Result<Result<(), SpillError>, Fault> {
        if let Lane::Detached(lane) = &mut self.lane {
            // No client is behind: what takes the response says when it wants more.
            return lane.room().await.map(Ok);
        }
        if !self.lane.overflows() {
            let before = self.backlog();
            if self.try_flush()? || self.backlog() < before || self.is_writable_soon().await {
                self.try_flush()?;
                return Ok(Ok(()));
            }
        }
        Ok(self.lane.spill(quota, self.state.announced_bytes()).await)
    }

    /// Lets others on the core have their turn, where much was sent from a temporary file since they had it.
    pub async fn take_turns(&mut self) {
        self.lane.moved(0).await;
    }

    /// Whether a temporary file holds a part of what waits to be sent.
    #[must_use]
    pub fn is_spilling(&self) -> bool {
        self.lane.overflows()
    }

    /// Bytes that wait to be sent, in memory and in a temporary file.
    #[must_use]
    pub fn unsent(&self) -> u64 {
        self.backlog() as u64 + self.lane.overflow_bytes()
    }

    async fn is_writable_soon(&self) -> bool {
        let core = self.core().clone();
        let until_ms = core.now_ms() + GRACE_MS;
        let mut nap = std::pin::pin!(core.sleep(GRACE_MS));
        poll_fn(|context| {
            if self.poll_client(Interest::of(false, true), context) {
                return Poll::Ready(true);
            }
            nap.as_mut().poll(context).map(|()| core.now_ms() < until_ms)
        })
        .await
    }

    /// Waits until the client's side or a connection can do what is wanted of it.
    ///
    /// # Errors
    /// [`Fault::Timeout`] at the deadline.
    pub fn either<'s>(
        &'s self,
        client: Interest,
        (link, others): (&'s Link, Interest),
        deadline_ms: u64,
    ) -> impl Future<Output = Result<(), Fault>> + 's {
        let is_done = move || self.lane.holds(client) || link.holds(others);
        let both = [(self.lane.source(), self.lane.waitable(client)), (link.stream().source(), others)];
        wait::any(self.core(), both, deadline_ms, is_done)
    }

    /// The same, where the other side is a stream of a shared connection.
    ///
    /// # Errors
    /// [`Fault::Timeout`] at the deadline.
    pub fn either_stream<'s>(
        &'s self,
        client: Interest,
        (stream, others): (&'s H2Stream, Interest),
        deadline_ms: u64,
    ) -> impl Future<Output = Result<(), Fault>> + 's {
        let is_done = move || self.lane.holds(client);
        let both = [(self.lane.source(), self.lane.waitable(client)), (stream.source(), others)];
        wait::any(self.core(), both, deadline_ms, is_done)
    }

    /// Whether the client's side can do what is wanted of it now. If not, whoever polls with `cx` runs again when it
    /// can: for futures that wait for more than streams.
    #[must_use]
    pub fn poll_client(&self, client: Interest, cx: &Context<'_>) -> bool {
        let waitable = self.lane.waitable(client);
        self.lane.holds(client) || wait::is_met_or_waits(self.core(), self.lane.source(), waitable, cx)
    }
}
