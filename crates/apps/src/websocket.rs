//! A WebSocket: frames on the client's side, records on the worker's.
//!
//! Frames are read and written here, on the server's side, and not by the workers: so a ping is answered and an idle
//! client is looked after without waking anybody, a message that is too long or no UTF-8 never reaches an application, a
//! half-open connection costs a worker nothing, and every language gets all of it for a five-byte head. The price is one
//! more copy of each message. The protocol itself is `tungstenite`'s, which needs no socket and no runtime: it is fed from
//! and writes into the exchange's buffers.
//!
//! In both directions the next piece is taken when the last one is gone: a client or a worker that is slow holds up the
//! other, and memory is bounded by one message from the client and `answer_ahead_bytes` to it.

use std::future::poll_fn;
use std::io::{self, Read, Write};
use std::pin::pin;
use std::task::Poll;

use net::{Exchange, Fault, Interest};
use ring::Part;
use tungstenite::protocol::frame::coding::{CloseCode, Data, OpCode};
use tungstenite::protocol::frame::{CloseFrame, Frame};
use tungstenite::protocol::{Role, WebSocketConfig, WebSocketContext};
use tungstenite::{Error, Message, error::ProtocolError};

use crate::desk::{Errand, Expect, Fate};
use crate::log::{Teller, Urgency};
use crate::options::WebSockets;
use crate::record::{self, Records, Said};

/// Bytes that are read from a client together.
const READ_BYTES: usize = 4 * 1024;
/// Milliseconds for the client's answer to a close.
const CLOSE_MS: u64 = 5_000;
/// How often a silent socket is looked at, at least.
const LOOK_MS_MAX: u64 = 5_000;
/// Messages before others on the core have their turn.
const TURNS_MAX: u32 = 64;

/// What a client is told at the end.
const NORMAL: u16 = 1000;
const GOING_AWAY: u16 = 1001;
const PROTOCOL: u16 = 1002;
const NO_TEXT: u16 = 1007;
const TOO_LONG: u16 = 1009;
const FAILED: u16 = 1011;
const RESTART: u16 = 1012;
/// And what only the application is told.
const NO_CODE: u16 = 1005;
const VANISHED: u16 = 1006;

/// The client's connection, as `tungstenite` wants it: nothing ever waits.
struct Wire<'w, 'x> {
    x: &'w mut Exchange<'x>,
    read: bool,
}

impl Read for Wire<'_, '_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.x.try_raw(buffer).map_err(|_| io::ErrorKind::ConnectionReset)?;
        self.read |= read.is_some();
        read.ok_or_else(|| io::ErrorKind::WouldBlock.into())
    }
}

impl Write for Wire<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.x.offer(bytes).map_err(|_| io::ErrorKind::ConnectionReset)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A socket, from its acceptance to its end.
pub(crate) struct Socket<'s> {
    context: WebSocketContext,
    limits: WebSockets,
    ahead_bytes: usize,
    teller: &'s Teller,
    /// To the worker: records, and what of them it has.
    up: Vec<u8>,
    up_at: usize,
    /// From the worker.
    records: Records,
    /// The last record is in `up`.
    told: bool,
    /// And the worker's side has all of it.
    given: bool,
    /// The worker's answer has ended.
    worker_done: bool,
    /// The worker's time to end has begun.
    limited: bool,
    /// A close was sent, or nobody is there to get one.
    said_all: bool,
    /// The client sends no more, or is not listened to any more.
    heard_all: bool,
    /// What the client sends makes no sense any more: it is read and left.
    deaf: bool,
    /// Nothing can be sent to the client any more.
    unsendable: bool,
    heard_ms: u64,
    pinged: bool,
    closed_ms: u64,
}

impl<'s> Socket<'s> {
    pub(crate) fn new(errand: &Errand, limits: WebSockets, teller: &'s Teller) -> Socket<'s> {
        let config = WebSocketConfig::default()
            .read_buffer_size(READ_BYTES)
            .write_buffer_size(0)
            .max_message_size(Some(limits.message_bytes_max))
            .max_frame_size(Some(limits.message_bytes_max));
        Socket {
            context: WebSocketContext::new(Role::Server, Some(config)),
            limits,
            ahead_bytes: errand.desk.generation.options.answer_ahead_bytes,
            teller,
            up: Vec::new(),
            up_at: 0,
            records: Records::default(),
            told: false,
            given: false,
            worker_done: false,
            limited: false,
            said_all: false,
            heard_all: false,
            deaf: false,
            unsendable: false,
            heard_ms: errand.desk.core.now_ms(),
            pinged: false,
            closed_ms: 0,
        }
    }

    /// Carries messages both ways until both sides have ended. `body` is what the worker has sent with its head already;
    /// with `last` that was all.
    ///
    /// # Errors
    /// The client's connection.
    pub(crate) async fn run(
        mut self,
        x: &mut Exchange<'_>,
        errand: &mut Errand,
        body: &[u8],
        last: bool,
    ) -> Result<(), Fault> {
        self.say(x, body);
        self.worker_done = last;
        let mut turns = 0;
        loop {
            let before = (self.told, self.said_all);
            let mut moved = self.hear(x) | self.give(errand) | self.take(x, errand);
            self.look_around(x, errand.desk.is_replaced());
            if !self.unsendable && x.try_flush().is_err() {
                self.unsendable = true;
                self.lost(true);
            }
            // The worker has to hear of an end, and what it says need not wait any more.
            moved |= before != (self.told, self.said_all);
            if self.is_over() && self.worker_done {
                return x.flush().await;
            }
            if moved && turns < TURNS_MAX {
                turns += 1;
            } else if std::mem::take(&mut turns) == TURNS_MAX {
                x.core().yield_now().await;
            } else {
                self.wait(x, errand).await;
            }
        }
    }

    /// From the client: true where something came.
    fn hear(&mut self, x: &mut Exchange<'_>) -> bool {
        if self.heard_all || !self.up.is_empty() {
            return false;
        }
        if self.deaf {
            return self.overhear(x);
        }
        let now_ms = x.core().now_ms();
        let mut wire = Wire { x, read: false };
        let heard = self.context.read(&mut wire);
        if wire.read {
            (self.heard_ms, self.pinged) = (now_ms, false);
        }
        match heard {
            Ok(Message::Text(text)) => record::put(&mut self.up, record::TEXT, [text.as_bytes(), b""]),
            Ok(Message::Binary(bytes)) => record::put(&mut self.up, record::BINARY, [&bytes, b""]),
            Ok(Message::Close(frame)) => self.heard_close(x, frame),
            Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_)) => {}
            Err(Error::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => return false,
            Err(Error::Capacity(_)) => self.fail(x, TOO_LONG, "the message is too long"),
            Err(Error::Utf8(_)) => self.fail(x, NO_TEXT, "the text is not UTF-8"),
            Err(Error::Protocol(ProtocolError::ResetWithoutClosingHandshake)) => _ = self.lost(false),
            Err(Error::Protocol(_)) => self.fail(x, PROTOCOL, "this is not how WebSocket is spoken"),
            Err(_) => _ = self.lost(false),
        }
        true
    }

    /// The client closes, or answers a close.
    fn heard_close(&mut self, x: &mut Exchange<'_>, frame: Option<CloseFrame>) {
        // The answer to it, where one is due.
        let _ = self.context.flush(&mut Wire { x, read: false });
        let (code, reason) = frame
            .map_or((NO_CODE, String::new()), |frame| (frame.code.into(), frame.reason.as_str().to_owned()));
        self.tell(code, &reason);
        self.heard_all = true;
        self.said_all = true;
    }

    fn overhear(&mut self, x: &mut Exchange<'_>) -> bool {
        let mut buffer = [0; READ_BYTES];
        match x.try_raw(&mut buffer) {
            Ok(None) => false,
            Ok(Some(len)) => {
                self.heard_all = len == 0;
                true
            }
            Err(_) => self.lost(true),
        }
    }

    /// The last record for the worker.
    fn tell(&mut self, code: u16, reason: &str) {
        if !std::mem::replace(&mut self.told, true) {
            record::put(&mut self.up, record::CLOSE, [&code.to_le_bytes(), reason.as_bytes()]);
        }
    }

    /// The client is at fault: it is told so, and not listened to any more.
    fn fail(&mut self, x: &mut Exchange<'_>, code: u16, reason: &'static str) {
        self.close(x, code, reason);
        self.tell(code, reason);
        self.deaf = true;
    }

    /// The client is gone; returns `outcome`.
    fn lost(&mut self, outcome: bool) -> bool {
        self.tell(VANISHED, "");
        self.heard_all = true;
        self.said_all = true;
        outcome
    }

    /// Nobody is there any more.
    fn is_over(&self) -> bool {
        self.said_all && self.heard_all
    }

    /// Sends a close, once.
    fn close(&mut self, x: &mut Exchange<'_>, code: u16, reason: &str) {
        if std::mem::replace(&mut self.said_all, true) {
            return;
        }
        self.closed_ms = x.core().now_ms();
        // A code that no frame may carry is the application's fault.
        let code = Some(CloseCode::from(code)).filter(|code| code.is_allowed()).unwrap_or(CloseCode::Error);
        let frame = CloseFrame { code, reason: reason.to_owned().into() };
        let _ = self.context.close(&mut Wire { x, read: false }, Some(frame));
    }

    /// To the worker: true where something moved.
    fn give(&mut self, errand: &Errand) -> bool {
        if self.up.is_empty() || self.given {
            return false;
        }
        let rest = &self.up[self.up_at..];
        // Nobody takes it any more where the answer has ended.
        let taken =
            if self.worker_done { rest.len() } else { errand.push(rest, self.told).unwrap_or(rest.len()) };
        self.up_at += taken;
        if self.up_at == self.up.len() {
            self.up = Vec::new();
            self.up_at = 0;
            self.given = self.told;
            // Nobody listened to the client meanwhile.
            (self.heard_ms, self.pinged) = (errand.desk.core.now_ms(), false);
        }
        taken > 0
    }

    /// From the worker: true where something came.
    fn take(&mut self, x: &mut Exchange<'_>, errand: &mut Errand) -> bool {
        // What nobody will get any more need not wait for the client.
        if self.worker_done || (!self.said_all && x.backlog() > self.ahead_bytes) {
            return false;
        }
        let mut buffer = errand.desk.buffer();
        let room = self.ahead_bytes.clamp(READ_BYTES, 64 * 1024);
        let received = errand.receive(&mut buffer, room);
        match &received {
            Ok(Some(received)) => {
                self.worker_done = received.last;
                match received.part {
                    // It was told of the end and talks on, as one that never listens does. What it says next fails: the
                    // request is given up.
                    Part::Data if self.is_over() && self.given => self.worker_done = true,
                    Part::Data => self.say(x, &buffer),
                    Part::Log(_) => self.teller.output(None, &buffer),
                    Part::End => {}
                    Part::Aborted(_) => {
                        self.worker_done = true;
                        self.close(x, FAILED, "");
                    }
                    _ => self.broke(x, "what it sends through a WebSocket is no record"),
                }
            }
            Ok(None) => {}
            Err(ring::Error::Fault(fault)) => self.broke(x, &fault.to_string()),
            Err(ring::Error::Void) => self.broke(x, "its answer is void"),
        }
        errand.desk.give_back(buffer);
        if self.worker_done {
            self.close(x, NORMAL, "");
        }
        !matches!(received, Ok(None))
    }

    /// The worker broke the rules: nothing more is taken from it.
    fn broke(&mut self, x: &mut Exchange<'_>, why: &str) {
        self.teller.tell(Urgency::Error, why);
        self.worker_done = true;
        self.close(x, FAILED, "");
    }

    /// Sends what the worker says.
    fn say(&mut self, x: &mut Exchange<'_>, mut bytes: &[u8]) {
        while !bytes.is_empty() && !self.said_all {
            match self.records.take(&mut bytes) {
                Ok(Some(Said::Data { text, first, last, payload })) => {
                    let kind = match (first, text) {
                        (false, _) => Data::Continue,
                        (true, true) => Data::Text,
                        (true, false) => Data::Binary,
                    };
                    let frame = Frame::message(payload, OpCode::Data(kind), last);
                    let sent = self.context.write(&mut Wire { x, read: false }, Message::Frame(frame));
                    if sent.is_err() {
                        self.lost(true);
                    }
                }
                Ok(Some(Said::Close { code, reason })) => self.close(x, code, &reason),
                Ok(None) => {}
                Err(why) => self.broke(x, why),
            }
        }
    }

    /// What time brings: a ping, an end.
    fn look_around(&mut self, x: &mut Exchange<'_>, replaced: bool) {
        let now_ms = x.core().now_ms();
        if self.said_all {
            if !self.heard_all && now_ms >= self.closed_ms + CLOSE_MS {
                self.lost(true);
            }
            return;
        }
        if x.is_draining() || replaced {
            let code = if replaced { RESTART } else { GOING_AWAY };
            self.tell(code, "");
            return self.close(x, code, "");
        }
        let silent_ms = now_ms.saturating_sub(self.heard_ms);
        if self.up.is_empty() && silent_ms >= self.limits.idle_ms {
            self.tell(VANISHED, "");
            self.close(x, GOING_AWAY, "nothing was heard for too long");
        } else if !self.pinged && silent_ms >= self.limits.idle_ms / 2 {
            self.pinged = true;
            let _ = self.context.write(&mut Wire { x, read: false }, Message::Ping(Vec::new().into()));
        }
    }

    /// Until there is something to do.
    async fn wait(&mut self, x: &mut Exchange<'_>, errand: &Errand) {
        let read = !self.heard_all && self.up.is_empty();
        // A connection in error is always ready, and what is kept for it will never leave.
        let client = Interest::of(read, x.backlog() > 0 && !self.unsendable);
        let look_ms = match self.said_all {
            true => CLOSE_MS,
            false => LOOK_MS_MAX.min(self.limits.idle_ms / 4),
        };
        x.shed();
        if self.worker_done {
            return client_or_time(x, client, look_ms).await;
        }
        // Once nobody hears the application, it has its time to end; not anew with all that it says meanwhile.
        if !self.is_over() {
            errand.expect(Expect::Look(look_ms));
        } else if !std::mem::replace(&mut self.limited, true) {
            errand.expect(Expect::Worker);
        }
        if let Err(fate) = errand.news(Some((x, client))).await {
            self.worker_done = true;
            if let Fate::Lost { .. } = fate {
                self.close(x, FAILED, "");
            }
        }
    }
}

async fn client_or_time(x: &Exchange<'_>, client: Interest, ms: u64) {
    let mut time = pin!(x.core().sleep(ms));
    poll_fn(|context| match x.poll_client(client) {
        true => Poll::Ready(()),
        false => time.as_mut().poll(context),
    })
    .await;
}
