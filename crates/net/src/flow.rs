//! An exchange for handlers that carry bytes both ways at once and so cannot wait for one side alone: the calls of
//! [`Exchange`] that never wait, and one that waits for either side.

use http::encode::{Lines, Outgoing};
use http::framing::Framing;
use http::{Fields, Length, Status, Version};

use crate::conn::ResponseState;
use crate::exchange::{DefaultFields, Exchange};
use crate::fault::Fault;
use crate::inbound::BodyChunk;
use crate::memory::Pressure;
use crate::source::HALF_CLOSED;

/// An output buffer larger than this is not kept while nothing moves.
const SHED_BYTES: usize = 1024;

/// What is offered ahead of a client that does not read while memory is short.
const AHEAD_BYTES_SHORT: usize = 8 * 1024;

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
        if self.conn.edits.is_some() || self.conn.compression.is_some() {
            // Filters need a block to work on: the slower way, only for routes that have them.
            let mut block = Vec::new();
            lines(&mut Lines::new(&mut block));
            let fields = fields_of(&block);
            return self.begin_fields(status, &fields, length, own);
        }
        self.open(status, length, own);
        let out = &mut self.conn.work.out;
        lines(&mut Lines::new(out));
        out.extend_from_slice(b"\r\n");
    }

    /// Sends an interim response (1xx, but not 101) ahead of the response. A 1.0 client knows none, and gets none.
    ///
    /// # Panics
    /// Where the status is not an interim one, or a response has begun already.
    pub fn inform(&mut self, status: Status, lines: impl FnOnce(&mut Lines<'_>)) {
        let interim = status.is_informational() && status != Status::SWITCHING_PROTOCOLS;
        assert!(
            interim && self.conn.reply == ResponseState::Unsent,
            "an interim response comes before the final one"
        );
        if self.conn.version() == Version::Http10 {
            return;
        }
        let out = &mut self.conn.work.out;
        let outgoing = Outgoing { framing: Framing::None, length: None, keep_alive: true };
        outgoing.open(out, Version::Http11, status, b"");
        lines(&mut Lines::new(out));
        out.extend_from_slice(b"\r\n");
    }

    /// Switches protocols: answers 101 with these lines (`Connection`, `Upgrade`, …). From here on the connection
    /// carries what both ends make of it: [`Exchange::try_raw`], [`Exchange::offer`]; see also [`crate::tunnel`].
    ///
    /// # Panics
    /// Where a response has begun already, or the request has a body that was not read.
    pub fn upgrade(&mut self, lines: impl FnOnce(&mut Lines<'_>)) {
        let conn = &mut *self.conn;
        assert!(
            conn.reply == ResponseState::Unsent && conn.work.machine.body_ended(),
            "an upgrade follows the request"
        );
        let out = &mut conn.work.out;
        let outgoing = Outgoing { framing: Framing::None, length: None, keep_alive: true };
        outgoing.open(out, Version::Http11, Status::SWITCHING_PROTOCOLS, b"");
        lines(&mut Lines::new(out));
        out.extend_from_slice(b"\r\n");
        self.switch();
    }

    /// Takes the connection from HTTP without a response of the server's own: whoever gets it answers. False where that
    /// cannot be: a response has begun, or the request's body is not read.
    pub fn take_over(&mut self) -> bool {
        let fits = self.conn.reply == ResponseState::Unsent && self.conn.work.machine.body_ended();
        if fits {
            self.switch();
        }
        fits
    }

    fn switch(&mut self) {
        let conn = &mut *self.conn;
        // It may be idle for hours from here on.
        conn.work.input.shrink();
        conn.keep_alive = false;
        conn.status = Status::SWITCHING_PROTOCOLS;
        conn.reply = ResponseState::Body(Framing::UntilClose);
    }

    /// Bytes of an upgraded connection, copied into `buffer`: `None` where there are none now, 0 at the end.
    ///
    /// # Errors
    /// The client is gone.
    pub fn try_raw(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, Fault> {
        let input = &mut self.conn.work.input;
        if input.is_empty() {
            return self.conn.stream.try_read(buffer);
        }
        let len = input.rest().len().min(buffer.len());
        buffer[..len].copy_from_slice(&input.rest()[..len]);
        input.at += len;
        Ok(Some(len))
    }

    /// Gives memory back before a wait that may be long; only an upgraded connection does without it.
    pub fn shed(&mut self) {
        if self.conn.backlog() == 0 && self.conn.work.out.capacity() > SHED_BYTES {
            self.conn.work.out = Vec::new();
            self.conn.weigh();
        }
    }

    /// Whether the server is stopping: responses without an end (tunnels, event streams) have to end now.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.conn.context().draining.get()
    }

    /// Closes the sending side of an upgraded connection, once all has been flushed.
    pub fn shutdown_write(&mut self) {
        self.conn.stream.shutdown_write();
    }

    /// The next piece of the request's body without waiting. Before a wait for more, flush: the client may be
    /// waiting for the `100 Continue` that the first call has prepared.
    ///
    /// # Errors
    /// As [`Exchange::read`].
    pub fn try_read(&mut self) -> Result<BodyPiece<'_>, Fault> {
        match self.conn.try_body_piece()? {
            BodyChunk::Data(start, end) => Ok(BodyPiece::Data(self.conn.work.input.slice(start, end))),
            BodyChunk::End => Ok(BodyPiece::End),
            BodyChunk::Pending => Ok(BodyPiece::Pending),
        }
    }

    /// Whether the client still waits for `100 Continue`, and has sent nothing of the body: the first read answers it.
    ///
    /// # Errors
    /// As [`Exchange::read`].
    pub fn awaits_continue(&mut self) -> Result<bool, Fault> {
        self.conn.awaits_continue()
    }

    /// More of the response's body without waiting: what the client does not take now is kept in memory, so
    /// look at [`Exchange::backlog`] before giving more.
    ///
    /// # Errors
    /// The client has disconnected, or more was written than announced.
    pub fn offer(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        self.conn.offer_body(bytes)
    }

    /// How much may be offered ahead of a client that does not read, where a handler would keep up to `bytes_max`: little
    /// while memory is short.
    #[must_use]
    pub fn ahead_bytes_max(&self, bytes_max: usize) -> usize {
        if self.conn.pressure() >= Pressure::High { bytes_max.min(AHEAD_BYTES_SHORT) } else { bytes_max }
    }

    /// Bytes that wait in memory to be sent.
    #[must_use]
    pub fn backlog(&self) -> usize {
        self.conn.backlog()
    }

    /// Sends what the client takes now; true where nothing is left.
    ///
    /// # Errors
    /// The client is gone.
    pub fn try_flush(&mut self) -> Result<bool, Fault> {
        self.conn.flush_encoder()?;
        self.conn.try_flush()
    }

    /// Whether the client has closed its sending side: most clients that do so have disconnected.
    #[must_use]
    pub fn is_half_closed(&self) -> bool {
        self.conn.stream.source().ready() & HALF_CLOSED != 0
    }

    /// The address that the client connected to: this server's, or the one that the PROXY protocol reports. `None` over a
    /// Unix socket.
    #[must_use]
    pub fn local_address(&self) -> Option<std::net::SocketAddr> {
        let reported = self.conn.reported.as_ref().and_then(|reported| reported.ends);
        reported.map_or_else(|| self.conn.stream.local_address(), |ends| Some(ends.destination))
    }

    /// The port of that address. Cheap for every request.
    #[must_use]
    pub fn local_port(&self) -> Option<u16> {
        let reported = self.conn.reported.as_ref().and_then(|reported| reported.ends);
        reported.map_or_else(|| self.conn.stream.local_port(), |ends| Some(ends.destination.port()))
    }

    /// Milliseconds that may pass between two pieces of the request's body.
    #[must_use]
    pub fn body_ms(&self) -> u64 {
        self.conn.body_ms
    }

    /// Milliseconds that the client may take no byte of the response: fewer while memory is short.
    #[must_use]
    pub fn write_ms(&self) -> u64 {
        self.conn.patience_ms()
    }
}

/// A block of lines as fields; lines come from [`Lines`] and are valid.
fn fields_of(block: &[u8]) -> Fields {
    let mut fields = Fields::new();
    for line in block.split(|&byte| byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if let Some(colon) = line.iter().position(|&byte| byte == b':') {
            fields.try_push(&line[..colon], &line[colon + 1..]).expect("lines under way are valid");
        }
    }
    fields
}
