//! Calls of [`Exchange`] for handlers that relay: heads from encoded lines, and non-blocking calls, with which
//! data is transferred in both directions.

use std::future::{Future, poll_fn};
use std::os::fd::BorrowedFd;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::encode::FieldWriter;
use http::{BodySize, Length, Status};
use times::{Millis, Moment};

use crate::body_copy::{BodyCopy, BodyCopyCallback};
use crate::compress::{COMPRESSED_BYTES, COMPRESSED_WEIGHT};
use crate::exchange::Exchange;
use crate::fault::Fault;
use crate::filters::{DefaultFields, fields_of};
use crate::inbound::BodyChunk;
use crate::lane::Lane;
use crate::link::Link;
use crate::memory::Pressure;
use crate::mux_client::MuxRequestStream;
use crate::replace::{REPLACED_BYTES, REPLACED_WEIGHT};
use crate::request_state::ReplyState;
use crate::source::HALF_CLOSED;
use crate::spill::{SpillError, SpillQuota};
use crate::wait::{self, Interest};

/// Limit of buffered data for a slow client under memory pressure.
const BUFFERED_BYTES_MAX_LOW_MEMORY: usize = 8 * 1024;
/// Time that a slow client gets to make room before a temporary file is created, so that clients which read
/// at full speed cause no disk writes.
const GRACE_TIME: Millis = Millis(5);

/// Available data of a request body.
#[derive(Debug)]
pub enum BodyPiece<'x> {
    /// A piece of the body.
    Data(&'x [u8]),
    /// The end of the body; its trailers are in [`Exchange::trailers`].
    End,
    /// No data until the client sends more.
    Pending,
}

impl Exchange<'_> {
    /// Begins the response like [`Exchange::begin`], writing field lines directly into the buffer. They must
    /// not contain framing fields.
    ///
    /// # Panics
    /// Panics if a response has already begun.
    pub fn begin_lines(
        &mut self,
        status: Status,
        length: Length,
        own: DefaultFields,
        lines: impl FnOnce(&mut FieldWriter<'_>),
    ) {
        if self.state.filters.may_change_head() || self.intercepts(status) {
            // Filters need [`Fields`]; this slower path is only taken by routes that have filters.
            let mut block = Vec::new();
            lines(&mut FieldWriter::new(&mut block));
            let fields = fields_of(&block);
            return self.begin_filtered(status, &fields, length, own);
        }
        self.send_head(status, length, own, lines);
    }

    /// Sends an interim response (1xx except 101). HTTP/1.0 clients do not understand these and get none.
    ///
    /// # Panics
    /// Panics if the status is not an interim one, or if a response has already begun.
    pub fn send_interim(&mut self, status: Status, lines: impl FnOnce(&mut FieldWriter<'_>)) {
        let interim = status.is_informational() && status != Status::SWITCHING_PROTOCOLS;
        assert!(
            interim && self.state.reply == ReplyState::Unsent,
            "an interim response comes before the final one"
        );
        self.lane.send_interim(status, lines);
    }

    /// Sets the reason phrase of the next response if it has this status (HTTP/1, RFC 9112 section 4).
    #[cold]
    pub fn set_reason(&mut self, status: Status, reason: &[u8]) {
        if let Lane::H1(conn) = &mut self.lane {
            conn.status_and_reason = Some(Box::new((status, reason.to_vec())));
        }
    }

    /// Whether the connection can switch protocols after this request ([`Exchange::upgrade`]): an HTTP/1
    /// connection once the request body was read, an HTTP/2 stream if its request is an extended CONNECT.
    #[must_use]
    pub fn can_switch(&self) -> bool {
        self.state.reply == ReplyState::Unsent && self.lane.can_switch()
    }

    /// Switches protocols: answers 101 with these lines (`Connection`, `Upgrade`, …); on a stream, 200 with
    /// the lines permitted there. Afterwards, the connection carries raw bytes: [`Exchange::try_read_raw`],
    /// [`Exchange::offer`]; see also [`crate::tunnel`].
    ///
    /// # Panics
    /// Panics if [`Exchange::can_switch`] is false.
    pub fn upgrade(&mut self, lines: impl FnOnce(&mut FieldWriter<'_>)) {
        assert!(self.can_switch(), "an upgrade follows the request");
        let status = self.lane.upgrade(lines);
        let now_us = self.core().now_us();
        self.state.record_switch(now_us, status);
    }

    /// Takes over the connection without sending a response; the new owner of the connection responds.
    /// Returns false if a response has begun or the request body was not read.
    pub fn take_over(&mut self) -> bool {
        let can = self.can_switch() && self.lane.take_over();
        if can {
            let now_us = self.core().now_us();
            self.state.record_switch(now_us, Status::SWITCHING_PROTOCOLS);
        }
        can
    }

    /// Reads from an upgraded connection: `None` if no bytes are available, 0 at the end.
    ///
    /// # Errors
    /// Fails if the client is gone.
    pub fn try_read_raw(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, Fault> {
        let read = self.lane.try_read_raw(buffer)?;
        self.state.body_read += read.unwrap_or(0) as u64;
        Ok(read)
    }

    /// Releases memory before a wait that may be long. Only for upgraded connections.
    pub fn release_buffers(&mut self) {
        self.lane.release_buffers();
    }

    /// Whether the server is stopping, so that responses without an end (tunnels, event streams) must end.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.lane.is_draining()
    }

    /// Closes the sending side of an upgraded connection. Everything must have been flushed.
    pub fn shutdown_write(&mut self) {
        self.lane.shutdown_write();
    }

    /// Marks the other end of the tunnel as failed, so that an HTTP/2 stream is reset.
    pub(crate) fn abort_tunnel(&mut self) {
        self.lane.abort_tunnel();
    }

    /// Whether the client has closed both directions.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.lane.source().is_gone()
    }

    /// Returns the next piece of the request body without waiting. Flush before waiting for more: the first
    /// call may have buffered the `100 Continue` that the client waits for.
    ///
    /// # Errors
    /// See [`Exchange::read`].
    pub fn try_read(&mut self) -> Result<BodyPiece<'_>, Fault> {
        match self.lane.try_body_piece(self.state.reply != ReplyState::Unsent)? {
            BodyChunk::Data(start, end) => {
                let piece = self.lane.slice(start, end);
                self.state.count_read(piece);
                Ok(BodyPiece::Data(piece))
            }
            BodyChunk::End => {
                self.state.finish_body_copy();
                Ok(BodyPiece::End)
            }
            BodyChunk::Pending => Ok(BodyPiece::Pending),
        }
    }

    /// Copies up to `bytes_max` bytes of the request body while the handler reads it; they count as memory of
    /// the request. `callback` is called at the end of the body, and dropped without a call if the handler does
    /// not read that far.
    pub fn copy_body(&mut self, bytes_max: usize, callback: BodyCopyCallback) {
        let announced = match self.request().body() {
            BodySize::Known(len) => Some(len),
            BodySize::None | BodySize::Unknown => None,
        };
        self.state.body_copy = Some(Box::new(BodyCopy::new(bytes_max, announced, callback)));
        self.update_memory();
    }

    /// Whether the client still waits for `100 Continue` and has sent no body bytes. The first read sends it.
    ///
    /// # Errors
    /// See [`Exchange::read`].
    pub fn awaits_continue(&mut self) -> Result<bool, Fault> {
        self.lane.awaits_continue()
    }

    /// Writes a piece of the response body without waiting. Data that the client does not accept is kept in
    /// memory, so check [`Exchange::backlog`] before writing more.
    ///
    /// # Errors
    /// Fails if the client has disconnected, or if more is written than announced.
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

    /// Writes body bytes that have passed the replacement filter, without waiting.
    fn offer_replaced(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        if self.state.filters.compressing.is_none() {
            return self.offer_filtered(bytes);
        }
        for piece in bytes.chunks(COMPRESSED_BYTES) {
            self.lane.count_moved(piece.len() * COMPRESSED_WEIGHT);
            let compressed = self.state.filters.compress_piece(piece)?;
            self.offer_filtered(compressed.as_deref().unwrap_or(piece))?;
        }
        Ok(())
    }

    /// Writes body bytes that have passed all filters, without waiting.
    fn offer_filtered(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        if let Some(after) = self.state.count_body(bytes.len() as u64)? {
            self.lane.offer(bytes)?;
            self.state.reply = ReplyState::Body(after);
        }
        Ok(())
    }

    /// Flushes the filters, for a response whose data must reach the client before the handler waits.
    pub(crate) fn flush_filters(&mut self) -> Result<(), Fault> {
        match &mut self.state.filters.compressing {
            None => Ok(()),
            Some(compressing) => {
                let compressed = compressing.flush()?;
                self.offer_filtered(&compressed)
            }
        }
    }

    /// Ends the filters and sends their last bytes.
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

    /// Returns the limit of buffered data for a slow client: `bytes_max`, or less under memory pressure.
    #[must_use]
    pub fn buffered_bytes_max(&self, bytes_max: usize) -> usize {
        if self.core().memory().pressure() >= Pressure::High {
            bytes_max.min(BUFFERED_BYTES_MAX_LOW_MEMORY)
        } else {
            bytes_max
        }
    }

    /// Returns the number of buffered bytes to send; at least 1 while TLS holds encrypted bytes.
    #[must_use]
    pub fn backlog(&self) -> usize {
        self.lane.backlog()
    }

    /// Sends as much as the client accepts; returns true if nothing is left.
    ///
    /// # Errors
    /// Fails if the client is gone.
    pub fn try_flush(&mut self) -> Result<bool, Fault> {
        self.flush_filters()?;
        self.lane.try_flush()
    }

    /// Whether the client has accepted data since the last call, even if [`Exchange::unsent`] is unchanged:
    /// the kernel reports room only when a third of its send buffer is free. Call it only at the end of a
    /// wait, because it costs a system call.
    pub fn has_progressed(&mut self) -> bool {
        self.lane.has_progressed()
    }

    /// Whether the client has closed its sending side; most such clients have disconnected.
    #[must_use]
    pub fn is_half_closed(&self) -> bool {
        self.lane.source().ready() & HALF_CLOSED != 0
    }

    /// Returns the events that mean that the client has left: the connection is closed, or only its sending
    /// side and the client did not ask to close the connection after the response. A client that did
    /// (`Connection: close`, HTTP/1.0) may still wait for the response.
    #[must_use]
    pub fn disconnect_interest(&self) -> Interest {
        let closes = matches!(&self.lane, Lane::H1(conn) if !conn.buffers.machine.head.keep_alive);
        if closes { Interest::GONE } else { Interest::END }
    }

    /// Whether the client has left; see [`Exchange::disconnect_interest`].
    #[must_use]
    pub fn has_disconnected(&self) -> bool {
        self.lane.source().ready() & self.disconnect_interest().0 != 0
    }

    /// Whether the client has left. If not, registers the waker of `cx` for that event.
    #[must_use]
    pub fn poll_disconnected(&self, cx: &Context<'_>) -> bool {
        self.poll_client(self.disconnect_interest(), cx)
    }

    /// Waits for a future, and no longer than the client does.
    ///
    /// # Errors
    /// [`Fault::Disconnected`]: the client has left.
    pub async fn unless_disconnected<T>(&self, future: impl Future<Output = T>) -> Result<T, Fault> {
        let mut future = pin!(future);
        poll_fn(|cx| {
            if self.poll_disconnected(cx) {
                return Poll::Ready(Err(Fault::Disconnected));
            }
            future.as_mut().poll(cx).map(Ok)
        })
        .await
    }

    /// Passes the path to handlers with all empty segments that the client has sent. Rules that match the
    /// decoded path ([`crate::Request::route_path`]) are not affected.
    pub fn preserve_empty_segments(&mut self) {
        self.state.preserves_empty_segments = true;
    }

    /// Returns the address that the client connected to: this server's, or the one that the PROXY protocol
    /// reports. `None` for a Unix socket.
    #[must_use]
    pub fn local_address(&self) -> Option<std::net::SocketAddr> {
        self.lane.local_address()
    }

    /// Returns the connection's Unix socket, to query its peer's credentials. `None` over TCP and HTTP/2.
    #[must_use]
    pub fn unix_socket(&self) -> Option<BorrowedFd<'_>> {
        self.lane.unix_socket()
    }

    /// Returns the port of the local address without a system call for most requests.
    #[must_use]
    pub fn local_port(&self) -> Option<u16> {
        self.lane.local_port()
    }

    /// Returns the maximum time between two pieces of the request body, in milliseconds.
    #[must_use]
    pub fn body_timeout(&self) -> Millis {
        self.lane.body_timeout()
    }

    /// Returns the time for which the client may accept no bytes of the response, in milliseconds; shorter
    /// under memory pressure.
    #[must_use]
    pub fn write_timeout(&self) -> Millis {
        self.lane.stall_timeout()
    }
}

impl Exchange<'_> {
    /// Moves buffered output to a temporary file, from which the client is then sent. A client that was not
    /// slow so far first gets a moment to make room. Call it if [`Exchange::backlog`] exceeds what should be
    /// kept in memory.
    ///
    /// # Errors
    /// The inner error tells why the data stays in memory; for the outer one, see [`Exchange::try_flush`].
    pub async fn spill(&mut self, quota: &Arc<SpillQuota>) -> Result<Result<(), SpillError>, Fault> {
        if let Lane::Detached(lane) = &mut self.lane {
            // No slow client here: the sink tells when it has room.
            return lane.wait_for_room().await.map(Ok);
        }
        if !self.lane.has_overflow() {
            let before = self.backlog();
            if self.try_flush()? || self.backlog() < before || self.is_writable_soon().await {
                self.try_flush()?;
                return Ok(Ok(()));
            }
        }
        Ok(self.lane.spill(quota, self.state.announced_bytes()).await)
    }

    /// Yields to other tasks of the core if much was sent from a temporary file since the last time.
    pub async fn yield_after_spill(&mut self) {
        self.lane.consume_budget(0).await;
    }

    /// Whether a temporary file holds a part of the unsent output.
    #[must_use]
    pub fn is_spilling(&self) -> bool {
        self.lane.has_overflow()
    }

    /// Returns the number of unsent bytes, in memory and in a temporary file.
    #[must_use]
    pub fn unsent(&self) -> u64 {
        self.backlog() as u64 + self.lane.overflow_bytes()
    }

    async fn is_writable_soon(&self) -> bool {
        let core = self.core().clone();
        let until = core.now() + GRACE_TIME;
        let mut nap = std::pin::pin!(core.sleep(GRACE_TIME));
        poll_fn(|context| {
            if self.poll_client(Interest::WRITE, context) {
                return Poll::Ready(true);
            }
            nap.as_mut().poll(context).map(|()| core.now() < until)
        })
        .await
    }

    /// Waits until the client's side or a connection meets its interest.
    ///
    /// # Errors
    /// [`Fault::Timeout`] at the deadline.
    pub fn wait_either<'s>(
        &'s self,
        client: Interest,
        link: &'s Link,
        others: Interest,
        deadline: Moment,
    ) -> impl Future<Output = Result<(), Fault>> + 's {
        let is_done = move || self.lane.is_met_by_buffers(client) || link.is_met_by_buffers(others);
        let both = [(self.lane.source(), self.lane.waitable(client)), (link.stream().source(), others)];
        wait::any_ready(self.core(), both, deadline, is_done)
    }

    /// Like [`Exchange::wait_either`], for a stream of a shared connection.
    ///
    /// # Errors
    /// [`Fault::Timeout`] at the deadline.
    pub fn wait_either_stream<'s>(
        &'s self,
        client: Interest,
        stream: &'s MuxRequestStream,
        others: Interest,
        deadline: Moment,
    ) -> impl Future<Output = Result<(), Fault>> + 's {
        let is_done = move || self.lane.is_met_by_buffers(client);
        let both = [(self.lane.source(), self.lane.waitable(client)), (stream.source(), others)];
        wait::any_ready(self.core(), both, deadline, is_done)
    }

    /// Whether the client's side meets the interest. If not, registers the waker of `cx` for it. For futures
    /// that wait for more than streams.
    #[must_use]
    pub fn poll_client(&self, client: Interest, cx: &Context<'_>) -> bool {
        let waitable = self.lane.waitable(client);
        self.lane.is_met_by_buffers(client)
            || wait::check_or_register(self.core(), self.lane.source(), waitable, cx)
    }
}
