//! Relaying between two connections in both directions, until both sides have ended.

use times::Millis;

use crate::fault::Fault;
use crate::io_buffers::OutputBuffer;
use crate::link::Link;
use crate::progress::SendProgress;
use crate::source::Source;
use crate::wait::{self, Interest};

/// Bytes moved at once, through a buffer on the stack.
const MOVED_BYTES: usize = 16 * 1024;
/// Rounds of both directions before the task yields to others of the core.
const ROUNDS_MAX: u32 = 64;

/// A side of a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelaySide {
    /// The client's connection.
    Client,
    /// The connection to the upstream server.
    Upstream,
}

/// Reason why a relay has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelayEnd {
    /// Both sides have closed; this one did so first.
    Closed(RelaySide),
    /// This side has reset its connection or is unreachable.
    Broken(RelaySide),
    /// Nothing was transferred for the permitted time.
    Idle,
}

/// One direction of a relay.
#[derive(Default)]
struct Direction {
    /// Data that the receiver has not accepted. Nothing more is read meanwhile.
    out: OutputBuffer,
    /// Whether the sender has closed its side.
    ended: bool,
    /// Whether the end was passed to the receiver, or the receiver accepts nothing more.
    end_forwarded: bool,
}

/// The end of a direction that has failed.
enum FailedSide {
    Sender,
    Receiver,
}

impl Direction {
    /// Transfers what is possible now; `moved` is called with the number of bytes that the receiver's socket
    /// has accepted. Returns whether anything has changed.
    fn advance(
        &mut self,
        from: &mut Link,
        to: &mut Link,
        mut moved: impl FnMut(usize),
    ) -> Result<bool, FailedSide> {
        let mut changed = false;
        if !self.out.is_empty() {
            let (sent, _) = self.out.try_send(to, b"", false).map_err(|_| FailedSide::Receiver)?;
            moved(sent);
            changed = sent > 0;
        }
        // TLS may hold encrypted bytes, at first its session tickets: nobody else sends them.
        let is_flushed = to.try_flush().map_err(|_| FailedSide::Receiver)?;
        if self.out.is_empty() && !self.ended && from.has_input() {
            changed |= self.read(from, to, moved)?;
        }
        if self.out.is_empty() && self.out.weight_bytes() > 0 {
            self.out = OutputBuffer::default();
        }
        if self.ended && self.out.is_empty() && is_flushed && !self.end_forwarded {
            self.end_forwarded = true;
            to.shutdown_write();
            changed = true;
        }
        Ok(changed)
    }

    /// Reads once and sends what the receiver accepts. Not inlined, so that the buffer is on the stack and
    /// not part of the connection's future.
    #[inline(never)]
    fn read(
        &mut self,
        from: &mut Link,
        to: &mut Link,
        mut moved: impl FnMut(usize),
    ) -> Result<bool, FailedSide> {
        let mut buffer = [0; MOVED_BYTES];
        match from.try_read(&mut buffer).map_err(|_| FailedSide::Sender)? {
            None => return Ok(false),
            Some(0) => self.ended = true,
            Some(len) => {
                let (_, sent) =
                    self.out.try_send(to, &buffer[..len], false).map_err(|_| FailedSide::Receiver)?;
                moved(sent);
                self.out.push_bytes(&buffer[sent..len]);
            }
        }
        Ok(true)
    }

    /// Ends the direction, because the receiver accepts nothing more.
    fn stop(&mut self) {
        *self = Direction { out: OutputBuffer::default(), ended: true, end_forwarded: true };
    }

    fn is_open(&self) -> bool {
        !self.end_forwarded
    }
}

/// Transfers data in both directions until both sides have closed, one of them is gone, or nothing was
/// transferred for `idle_timeout`. The end of one side is passed on while the other still sends; a reset is passed
/// on as a reset. `early` are bytes that the client has already sent. `hold` is called with the bytes held in
/// memory, `moved` with the receiving side and the number of bytes.
pub(crate) async fn relay(
    client: &mut Link,
    upstream: &mut Link,
    early: &[u8],
    idle_timeout: Millis,
    hold: impl Fn(usize),
    moved: impl Fn(RelaySide, usize),
) -> RelayEnd {
    let core = client.core().clone();
    let mut up = Direction::default();
    let mut down = Direction::default();
    up.out.push_bytes(early);
    let mut first = None;
    let mut turns = 0;
    let mut progress = [SendProgress::default(), SendProgress::default()];
    loop {
        let was_up = up.ended;
        let was_down = down.ended;
        let mut changed = false;
        if up.is_open() {
            match up.advance(client, upstream, |len| moved(RelaySide::Upstream, len)) {
                Ok(advanced) => changed |= advanced,
                Err(FailedSide::Sender) => return reset_other_side(RelaySide::Client, client, upstream),
                // Data that the upstream server sent before is still delivered.
                Err(FailedSide::Receiver) => up.stop(),
            }
        }
        if down.is_open() {
            match down.advance(upstream, client, |len| moved(RelaySide::Client, len)) {
                Ok(advanced) => changed |= advanced,
                Err(FailedSide::Sender) => return reset_other_side(RelaySide::Upstream, client, upstream),
                Err(FailedSide::Receiver) => return reset_other_side(RelaySide::Client, client, upstream),
            }
        }
        match (up.ended && !was_up, down.ended && !was_down) {
            (_, true) if first.is_none() => first = Some(RelaySide::Upstream),
            (true, _) if first.is_none() => first = Some(RelaySide::Client),
            _ => {}
        }
        if !up.is_open() && !down.is_open() {
            return RelayEnd::Closed(first.unwrap_or(RelaySide::Client));
        }
        if changed {
            turns += 1;
            if turns == ROUNDS_MAX {
                turns = 0;
                core.yield_now().await;
            }
            continue;
        }
        turns = 0;
        // A side that has ended and is sent nothing at the moment may be gone.
        if up.ended && down.is_open() && client.stream().source().is_gone() {
            return reset_other_side(RelaySide::Client, client, upstream);
        }
        if down.ended && up.is_open() && upstream.stream().source().is_gone() {
            up.stop();
            continue;
        }
        hold(up.out.weight_bytes() + down.out.weight_bytes());
        let deadline = core.now() + idle_timeout;
        let sources = interests(client, upstream, &up, &down);
        if let Err(Fault::Timeout) = wait::any_ready(&core, sources, deadline, || false).await {
            // A slow receiver may still be accepting data sent earlier.
            let [of_client, of_upstream] = &mut progress;
            if !(of_client.check(client.stream()) | of_upstream.check(upstream.stream())) {
                return RelayEnd::Idle;
            }
        }
    }
}

/// Returns the events to wait for on both connections.
fn interests<'l>(
    client: &'l Link,
    upstream: &'l Link,
    up: &Direction,
    down: &Direction,
) -> [(&'l Source, Interest); 2] {
    let of_client = Interest::of(!up.ended && up.out.is_empty(), !down.out.is_empty());
    let of_client = if down.is_open() { client.interest(of_client) } else { of_client };
    let of_client = of_client.or_gone(up.ended && down.is_open());
    let of_upstream = Interest::of(!down.ended && down.out.is_empty(), up.is_open() && !up.out.is_empty());
    let of_upstream = if up.is_open() { upstream.interest(of_upstream) } else { of_upstream };
    let of_upstream = of_upstream.or_gone(down.ended && up.is_open());
    [(client.stream().source(), of_client), (upstream.stream().source(), of_upstream)]
}

/// Resets the other side, so that it does not mistake the failure for an orderly end.
fn reset_other_side(side: RelaySide, client: &Link, upstream: &Link) -> RelayEnd {
    let other = match side {
        RelaySide::Client => upstream,
        RelaySide::Upstream => client,
    };
    other.stream().reset_on_close(true);
    RelayEnd::Broken(side)
}
