//! WebSocket sessions: frames to and from the client, records to and from the worker.
//!
//! The server, not the worker, reads and writes frames. Therefore pings and idle clients wake no worker, a
//! message that is too long or not UTF-8 never reaches an application, a half-open connection occupies no
//! worker, and all languages share one implementation. The cost is one more copy of each message to the
//! client.
//!
//! The memory of one socket is bounded, whatever its client sends or does not read:
//!
//! - from the client: one message (`message_bytes_max`), or the one before it on its way to the worker; the bytes read
//!   after it (at most [`READ_BYTES_LONG`]); one inflater while a compressed message is incomplete;
//! - to the client: `answer_ahead_bytes`, one more part of a record, and one pong: only the last ping is answered, as
//!   RFC 6455 section 5.5.3 allows. While a client has such a backlog, nothing is read from it, and its worker waits;
//! - the messages of all sockets together: `limits.memory`. Growth is charged as it happens; if all of it is used, a
//!   message that grows closes its socket;
//! - work: after [`BYTES_PER_TURN`] other tasks run, and frames without content are counted ([`FrameBudget`]).

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use net::{Exchange, Fault, Interest, Pressure};
use ring::ResponsePart;
use times::{Millis, Moment};

use crate::deflate::DeflateParameters;
use crate::directives::AppWebSockets;
use crate::dispatcher::{Completion, Deadline, PendingRequest};
use crate::frame::{self, FIN};
use crate::inbound::{Inbound, ReceivedFrame, Violation};
use crate::log::{AppLog, AppLogLevel};
use crate::outbound::{MessagePiece, Outbound};
use crate::websocket_record::{self, RecordReader, WorkerRecord};

mod phase;

use phase::{ClientInput, ClientOutput, WorkerInput, WorkerOutput};

/// Bytes read from a client at once; more while a long message is incomplete.
const READ_BYTES: usize = 4 * 1024;
const READ_BYTES_LONG: usize = 16 * 1024;
/// Bytes that a socket moves before other tasks of the core run; a frame counts as at least [`FRAME_BYTES`].
const BYTES_PER_TURN: usize = 256 * 1024;
const FRAME_BYTES: usize = 64;
/// While a client's backlog is larger than this (or than `answer_ahead`, if that is more), nothing is read from it.
const BACKLOG_BYTES_MIN: usize = 16 * 1024;
/// Milliseconds for the client to answer a close.
const CLOSE_TIMEOUT: Millis = Millis(5_000);
/// Bytes that are read and discarded after the end, before the client is disconnected.
const DISCARDED_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Close codes that are sent to the client.
const NORMAL: u16 = 1000;
const GOING_AWAY: u16 = 1001;
const POLICY_VIOLATION: u16 = 1008;
const INTERNAL_ERROR: u16 = 1011;
const SERVICE_RESTART: u16 = 1012;
const TRY_AGAIN: u16 = 1013;
/// Close codes that only the application gets.
const NO_CODE: u16 = 1005;
const ABNORMAL_CLOSURE: u16 = 1006;

/// Frames without content (pings, pongs, empty fragments): this number at once, and in each second the number below.
const IDLE_FRAMES_MAX: u64 = 1_000;
const IDLE_FRAMES_PER_S: u64 = 100;

/// Remaining number of frames without content.
struct FrameBudget {
    /// Budget in thousandths of a frame.
    thousandths: u64,
    counted_at: Moment,
}

impl FrameBudget {
    fn new(now: Moment) -> FrameBudget {
        FrameBudget { thousandths: IDLE_FRAMES_MAX * 1_000, counted_at: now }
    }

    /// Deducts one frame; false if the budget is exhausted.
    fn spend(&mut self, now: Moment) -> bool {
        let earned = (now - self.counted_at).0.saturating_mul(IDLE_FRAMES_PER_S);
        let left = self.thousandths.saturating_add(earned).min(IDLE_FRAMES_MAX * 1_000).checked_sub(1_000);
        self.counted_at = now;
        self.thousandths = left.unwrap_or(0);
        left.is_some()
    }
}

/// A WebSocket, from its acceptance to its end.
pub(crate) struct WebSocketSession<'s> {
    /// Time without a byte from the client after which the socket is closed; a ping is sent after half of it.
    idle_timeout: Millis,
    ahead_bytes: usize,
    app_log: &'s AppLog,
    inbound: Inbound,
    outbound: Outbound,
    budget: FrameBudget,
    /// Bytes read from the client, and the position up to which they are parsed.
    input: Vec<u8>,
    input_at: usize,
    /// The reply to the last ping.
    pong: Option<Vec<u8>>,
    /// Records for the worker, and the number of bytes that it has received.
    to_worker: Vec<u8>,
    to_worker_at: usize,
    /// Records from the worker.
    records: RecordReader,
    /// Bytes moved since other tasks ran.
    moved_bytes: usize,
    /// Bytes written to the client's connection, the number of them read by the client at the last check, and
    /// the time of that.
    written_bytes: u64,
    read_bytes: u64,
    read_at: Moment,
    client_input: ClientInput,
    client_output: ClientOutput,
    worker_input: WorkerInput,
    worker_output: WorkerOutput,
    /// Bytes discarded after the end.
    discarded_bytes: usize,
    received_at: Moment,
    is_ping_sent: bool,
    closed_at: Moment,
}

impl<'s> WebSocketSession<'s> {
    pub(crate) fn new(
        pending: &PendingRequest,
        limits: &AppWebSockets,
        deflate: Option<DeflateParameters>,
        app_log: &'s AppLog,
    ) -> WebSocketSession<'s> {
        let now = pending.dispatcher.core.now();
        WebSocketSession {
            idle_timeout: limits.idle.into(),
            ahead_bytes: pending.dispatcher.generation.options.settings.answer_ahead_bytes as usize,
            app_log,
            inbound: Inbound::new(limits.message_bytes_max as usize, deflate.is_some()),
            outbound: Outbound::new(deflate),
            budget: FrameBudget::new(now),
            input: Vec::new(),
            input_at: 0,
            pong: None,
            to_worker: Vec::new(),
            to_worker_at: 0,
            records: RecordReader::default(),
            moved_bytes: 0,
            written_bytes: 0,
            read_bytes: 0,
            read_at: now,
            client_input: ClientInput::Open,
            client_output: ClientOutput::Open,
            worker_input: WorkerInput::Open,
            worker_output: WorkerOutput::Open,
            discarded_bytes: 0,
            received_at: now,
            is_ping_sent: false,
            closed_at: Moment::ZERO,
        }
    }

    /// Relays messages in both directions until both sides have ended. `body` is the data that the worker
    /// sent with its head; `last` if there is no more.
    ///
    /// # Errors
    /// Errors of the client's connection.
    pub(crate) async fn run(
        &mut self,
        exchange: &mut Exchange<'_>,
        pending: &mut PendingRequest,
        body: &[u8],
        last: bool,
    ) -> Result<(), Fault> {
        self.written_bytes = exchange.backlog() as u64;
        self.send_records(exchange, pending, body);
        if last {
            self.worker_output = WorkerOutput::Ended;
        }
        loop {
            let before = (self.is_close_reported(), self.has_closed());
            let was_held = self.is_held_back(exchange);
            // Bytes written after this get a new deadline.
            self.record_progress(exchange);
            let mut moved = self.read_client(exchange, pending)
                | self.write_worker(pending)
                | self.read_worker(exchange, pending);
            self.handle_timers(exchange, pending.dispatcher.is_replaced());
            if self.client_output != ClientOutput::Broken && exchange.try_flush().is_err() {
                self.on_output_lost();
            }
            self.record_progress(exchange);
            // The worker must receive the close, and neither its records nor data held back by the client's
            // backlog need to wait any more.
            moved |= before != (self.is_close_reported(), self.has_closed())
                || (was_held && !self.is_held_back(exchange));
            if self.is_over() && self.worker_output == WorkerOutput::Ended {
                return match self.client_output {
                    ClientOutput::Broken => Err(Fault::Disconnected),
                    _ => exchange.flush().await,
                };
            }
            if !moved {
                self.wait(exchange, pending).await;
            } else if self.moved_bytes >= BYTES_PER_TURN {
                self.moved_bytes = 0;
                exchange.core().yield_now().await;
            }
        }
    }

    /// Whether the last record for the worker was enqueued.
    fn is_close_reported(&self) -> bool {
        self.worker_input != WorkerInput::Open
    }

    /// Whether a close was sent, or cannot be sent any more.
    fn has_closed(&self) -> bool {
        self.client_output != ClientOutput::Open
    }

    /// Whether the client's backlog must shrink before more is read from the client.
    fn is_held_back(&self, exchange: &Exchange<'_>) -> bool {
        exchange.backlog() > exchange.buffered_bytes_max(self.ahead_bytes).max(BACKLOG_BYTES_MIN)
    }

    /// Memory in use, in addition to the output buffered for the client.
    fn held_bytes(&self) -> usize {
        self.to_worker.capacity() + self.input.capacity() + self.inbound.held_bytes()
    }

    /// Reads from the client: true if something arrived.
    fn read_client(&mut self, exchange: &mut Exchange<'_>, pending: &PendingRequest) -> bool {
        if self.client_input == ClientInput::Ended || !self.to_worker.is_empty() {
            return false;
        }
        if self.is_held_back(exchange) {
            // The server was not reading, so the client was not idle.
            (self.received_at, self.is_ping_sent) = (exchange.core().now(), false);
            return false;
        }
        if self.inbound.frame_bytes_left() > READ_BYTES as u64 {
            self.read_piece::<READ_BYTES_LONG>(exchange, pending)
        } else {
            self.read_piece::<READ_BYTES>(exchange, pending)
        }
    }

    fn read_piece<const BYTES: usize>(
        &mut self,
        exchange: &mut Exchange<'_>,
        pending: &PendingRequest,
    ) -> bool {
        if !self.input.is_empty() {
            let rest = std::mem::take(&mut self.input);
            self.input_at += self.parse(exchange, pending, &rest[self.input_at..]);
            if self.input_at < rest.len() {
                self.input = rest;
            }
            return true;
        }
        let mut buffer = [0; BYTES];
        let len = match exchange.try_read_raw(&mut buffer) {
            Ok(None) => return false,
            Ok(Some(0)) | Err(_) => {
                self.on_disconnect();
                return true;
            }
            Ok(Some(len)) => len,
        };
        (self.received_at, self.is_ping_sent) = (exchange.core().now(), false);
        self.moved_bytes += len;
        if self.has_closed() {
            self.discarded_bytes += len;
            if self.discarded_bytes > DISCARDED_BYTES_MAX {
                self.on_disconnect();
                return true;
            }
        }
        let used = self.parse(exchange, pending, &buffer[..len]);
        (self.input, self.input_at) = (buffer[used..len].to_vec(), 0);
        true
    }

    /// Parses frames: up to a complete message, or until other tasks must run. Returns the number of bytes parsed.
    fn parse(&mut self, exchange: &mut Exchange<'_>, pending: &PendingRequest, bytes: &[u8]) -> usize {
        let mut rest = bytes;
        while !rest.is_empty() && self.to_worker.is_empty() && self.moved_bytes < BYTES_PER_TURN {
            if self.client_input != ClientInput::Open {
                rest = &[];
                break;
            }
            let message_bytes = self.inbound.message_bytes();
            let held_bytes = self.inbound.held_bytes();
            let received = self.inbound.next(&mut rest, &pending.dispatcher.codecs);
            self.moved_bytes += FRAME_BYTES.max(self.inbound.message_bytes().saturating_sub(message_bytes));
            if self.inbound.held_bytes() > held_bytes.max(READ_BYTES_LONG) {
                self.charge_growth(exchange);
            }
            match received {
                Ok(ReceivedFrame::Incomplete) => {}
                Ok(ReceivedFrame::Empty) => self.charge_idle_frame(exchange),
                Ok(ReceivedFrame::Ping) => {
                    self.pong = Some(self.inbound.control().to_vec());
                    self.charge_idle_frame(exchange);
                }
                // No record may follow the close.
                Ok(ReceivedFrame::Message(record)) if !self.is_close_reported() => self.to_worker = record,
                Ok(ReceivedFrame::Message(_)) => {}
                Ok(ReceivedFrame::Close(close)) => self.on_close(exchange, close),
                Err(Violation { code, reason }) => self.fail(exchange, code, reason),
            }
        }
        self.answer_ping(exchange);
        bytes.len() - rest.len()
    }

    /// Charges the memory of an incomplete message that has grown; fails if all memory is used.
    fn charge_growth(&mut self, exchange: &mut Exchange<'_>) {
        exchange.hold(self.held_bytes());
        if exchange.core().memory().pressure() == Pressure::Exhausted {
            self.fail(exchange, TRY_AGAIN, "the server is temporarily out of memory");
            exchange.hold(self.held_bytes());
        }
    }

    /// Charges a frame without content.
    fn charge_idle_frame(&mut self, exchange: &mut Exchange<'_>) {
        if !self.budget.spend(exchange.core().now()) {
            self.fail(exchange, POLICY_VIOLATION, "too many frames without content");
        }
    }

    fn answer_ping(&mut self, exchange: &mut Exchange<'_>) {
        if let Some(pong) = self.pong.take()
            && !self.has_closed()
        {
            self.write_frame(exchange, FIN | frame::PONG, &pong);
        }
    }

    /// Handles a close from the client, which may answer a close of the server.
    fn on_close(&mut self, exchange: &mut Exchange<'_>, close: Option<(u16, String)>) {
        self.answer_ping(exchange);
        if !self.has_closed() {
            self.client_output = ClientOutput::Closed;
            // Echo the code and reason.
            let answer = self.inbound.control().to_vec();
            self.write_frame(exchange, FIN | frame::CLOSE, &answer);
        }
        let (code, reason) = close.unwrap_or((NO_CODE, String::new()));
        self.report_close(code, &reason);
        self.client_input = ClientInput::Ended;
    }

    /// Queues the last record for the worker.
    fn report_close(&mut self, code: u16, reason: &str) {
        if !self.is_close_reported() {
            self.worker_input = WorkerInput::Closing;
            websocket_record::put(
                &mut self.to_worker,
                websocket_record::CLOSE,
                [&code.to_le_bytes(), reason.as_bytes()],
            );
        }
    }

    /// Handles a protocol violation: sends a close and discards all further input from the client.
    fn fail(&mut self, exchange: &mut Exchange<'_>, code: u16, reason: &'static str) {
        self.close(exchange, code, reason);
        self.report_close(code, reason);
        self.client_input = self.client_input.max(ClientInput::Discarded);
    }

    /// Handles a disconnect of the client.
    fn on_disconnect(&mut self) {
        self.report_close(ABNORMAL_CLOSURE, "");
        self.client_input = ClientInput::Ended;
        self.client_output = self.client_output.max(ClientOutput::Closed);
        self.inbound.discard();
    }

    /// Handles a disconnect after which nothing can be sent to the client.
    fn on_output_lost(&mut self) {
        self.client_output = ClientOutput::Broken;
        self.on_disconnect();
    }

    /// Whether both directions have ended.
    fn is_over(&self) -> bool {
        self.has_closed() && self.client_input == ClientInput::Ended
    }

    /// Sends a close frame, unless one was sent already.
    fn close(&mut self, exchange: &mut Exchange<'_>, code: u16, reason: &str) {
        if self.has_closed() {
            return;
        }
        self.client_output = ClientOutput::Closed;
        self.closed_at = exchange.core().now();
        // Invalid close codes are an error of the application.
        let code = if frame::is_close_code(code) { code } else { INTERNAL_ERROR };
        self.write_frame(exchange, FIN | frame::CLOSE, &[&code.to_be_bytes(), reason.as_bytes()].concat());
        self.inbound.discard();
    }

    /// Writes a frame to the client's connection.
    fn write_frame(&mut self, exchange: &mut Exchange<'_>, first: u8, payload: &[u8]) {
        let (head, len) = frame::encode_head(first, payload.len());
        self.written_bytes += (len + payload.len()) as u64;
        if exchange.offer(&head[..len]).and_then(|()| exchange.offer(payload)).is_err() {
            self.on_output_lost();
        }
    }

    /// Writes to the worker: true if something moved.
    fn write_worker(&mut self, pending: &PendingRequest) -> bool {
        if self.to_worker.is_empty() || self.worker_input == WorkerInput::Closed {
            return false;
        }
        let rest = &self.to_worker[self.to_worker_at..];
        // The worker reads nothing after the end of its response.
        let taken = match self.worker_output {
            WorkerOutput::Ended => rest.len(),
            _ => pending.push(rest, self.is_close_reported()).unwrap_or(rest.len()),
        };
        self.to_worker_at += taken;
        if self.to_worker_at == self.to_worker.len() {
            self.to_worker = Vec::new();
            self.to_worker_at = 0;
            if self.is_close_reported() {
                self.worker_input = WorkerInput::Closed;
            }
            // The client was not read from meanwhile.
            (self.received_at, self.is_ping_sent) = (pending.dispatcher.core.now(), false);
        }
        taken > 0
    }

    /// Reads from the worker: true if something arrived.
    fn read_worker(&mut self, exchange: &mut Exchange<'_>, pending: &mut PendingRequest) -> bool {
        // Records that cannot be sent need not wait for the client.
        if self.worker_output == WorkerOutput::Ended
            || (!self.has_closed() && exchange.backlog() > exchange.buffered_bytes_max(self.ahead_bytes))
        {
            return false;
        }
        let mut buffer = pending.dispatcher.buffer();
        let room = self.ahead_bytes.clamp(READ_BYTES, 64 * 1024);
        let received = pending.receive(&mut buffer, room);
        match &received {
            Ok(Some(received)) => {
                if received.is_last {
                    self.worker_output = WorkerOutput::Ended;
                }
                match received.part {
                    // The worker has received the close and continues to send, because it never receives. Its
                    // next send fails, because the request is cancelled.
                    ResponsePart::Data if self.is_over() && self.worker_input == WorkerInput::Closed => {
                        self.worker_output = WorkerOutput::Ended;
                    }
                    ResponsePart::Data => self.send_records(exchange, pending, &buffer),
                    ResponsePart::Log(level) => self.app_log.line(level, &buffer),
                    ResponsePart::End => {}
                    ResponsePart::Aborted(_) => {
                        self.worker_output = WorkerOutput::Ended;
                        self.close(exchange, INTERNAL_ERROR, "");
                    }
                    _ => self.on_worker_violation(exchange, "it sends an invalid WebSocket record"),
                }
            }
            Ok(None) => {}
            Err(ring::TicketError::WorkerFault(fault)) => {
                self.on_worker_violation(exchange, &fault.to_string())
            }
            Err(ring::TicketError::Void) => self.on_worker_violation(exchange, "its answer is void"),
        }
        pending.dispatcher.return_buffer(buffer);
        if self.worker_output == WorkerOutput::Ended {
            self.close(exchange, NORMAL, "");
        }
        !matches!(received, Ok(None))
    }

    /// Handles a protocol violation of the worker: nothing more is read from it.
    fn on_worker_violation(&mut self, exchange: &mut Exchange<'_>, why: &str) {
        self.app_log.report(AppLogLevel::Error, why);
        self.worker_output = WorkerOutput::Ended;
        self.close(exchange, INTERNAL_ERROR, "");
    }

    /// Sends the worker's records.
    fn send_records(&mut self, exchange: &mut Exchange<'_>, pending: &PendingRequest, mut bytes: &[u8]) {
        self.moved_bytes += bytes.len();
        while !bytes.is_empty() && !self.has_closed() {
            match self.records.take(&mut bytes) {
                Ok(Some(WorkerRecord::Data { text, first, last, payload })) => {
                    self.moved_bytes += FRAME_BYTES;
                    let mut buffer = pending.dispatcher.buffer();
                    let piece = MessagePiece { text, first, last, payload: &payload };
                    match self.outbound.encode_frame(&piece, &pending.dispatcher.codecs, &mut buffer) {
                        Some((first, true)) => self.write_frame(exchange, first, &buffer),
                        Some((first, false)) => self.write_frame(exchange, first, &payload),
                        None => {}
                    }
                    pending.dispatcher.return_buffer(buffer);
                }
                Ok(Some(WorkerRecord::Close { code, reason })) => self.close(exchange, code, &reason),
                Ok(None) => {}
                Err(why) => self.on_worker_violation(exchange, why),
            }
        }
    }

    /// Records how much the client has read.
    fn record_progress(&mut self, exchange: &Exchange<'_>) {
        let taken_bytes = self.written_bytes.saturating_sub(exchange.backlog() as u64);
        if exchange.backlog() == 0 || taken_bytes > self.read_bytes {
            (self.read_bytes, self.read_at) = (taken_bytes, exchange.core().now());
        }
    }

    /// Handles the timers: pings and timeouts.
    fn handle_timers(&mut self, exchange: &mut Exchange<'_>, replaced: bool) {
        let now = exchange.core().now();
        if self.has_closed() {
            if self.client_input != ClientInput::Ended && now >= self.closed_at + CLOSE_TIMEOUT {
                self.on_disconnect();
            }
            return;
        }
        if exchange.is_draining() || replaced {
            let code = if replaced { SERVICE_RESTART } else { GOING_AWAY };
            self.report_close(code, "");
            return self.close(exchange, code, "");
        }
        if exchange.backlog() > 0 && now - self.read_at >= self.idle_timeout {
            // The client reads nothing, so a close would not reach it. The application gets the same time to
            // end as after a close.
            self.report_close(ABNORMAL_CLOSURE, "");
            (self.client_output, self.closed_at) = (ClientOutput::Broken, now);
            return;
        }
        let silent_for = now - self.received_at;
        if self.to_worker.is_empty() && silent_for >= self.idle_timeout {
            self.report_close(ABNORMAL_CLOSURE, "");
            self.close(exchange, GOING_AWAY, "the client was silent for too long");
        } else if !self.is_ping_sent && silent_for >= self.idle_timeout / 2 {
            self.is_ping_sent = true;
            self.write_frame(exchange, FIN | frame::PING, b"");
        }
    }

    /// Waits until there is something to do.
    async fn wait(&mut self, exchange: &mut Exchange<'_>, pending: &PendingRequest) {
        let reads = self.client_input != ClientInput::Ended
            && self.to_worker.is_empty()
            && !self.is_held_back(exchange);
        let writes = exchange.backlog() > 0 && self.client_output != ClientOutput::Broken;
        // A connection with an error is always ready, although its backlog can never be sent.
        let client = Interest::of(reads, writes);
        let look_after = if self.has_closed() {
            CLOSE_TIMEOUT
        } else {
            // The end of the server or of the generation wakes the task.
            self.idle_timeout / 4
        };
        exchange.release_buffers();
        exchange.hold(self.held_bytes());
        if self.worker_output == WorkerOutput::Ended {
            return wait_for_client(exchange, client, look_after).await;
        }
        // Once nothing reaches the client any more, the application's time to end is limited, whatever it
        // sends.
        if !self.is_over() {
            pending.set_deadline(Deadline::Poll(look_after));
        } else if self.worker_output == WorkerOutput::Open {
            self.worker_output = WorkerOutput::Limited;
            pending.set_deadline(Deadline::Worker);
        }
        if let Err(completion) = pending.wait_for_event(Some((exchange, client))).await {
            self.worker_output = WorkerOutput::Ended;
            if let Completion::WorkerDied { .. } = completion {
                self.close(exchange, INTERNAL_ERROR, "");
            }
        }
    }
}

async fn wait_for_client(exchange: &Exchange<'_>, client: Interest, time_max: Millis) {
    let mut time = pin!(exchange.core().sleep(time_max));
    poll_fn(|context| {
        if exchange.poll_client(client, context) { Poll::Ready(()) } else { time.as_mut().poll(context) }
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_without_content_are_rate_limited() {
        let mut budget = FrameBudget::new(Moment(5_000));
        assert_eq!((0..2_000).filter(|_| budget.spend(Moment(5_000))).count(), 1_000);
        // The budget of 100 frames per second is never exceeded.
        assert!((1..1_000).all(|at| budget.spend(Moment(5_000 + 10 * at))));
        assert_eq!((0..2_000).filter(|_| budget.spend(Moment(3_600_000))).count(), 1_000);
    }
}
