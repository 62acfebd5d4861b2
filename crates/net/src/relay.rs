//! Relaying between two connections, whatever they carry: bytes both ways until both sides have ended.

use crate::fault::Fault;
use crate::link::Link;
use crate::progress::SendProgress;
use crate::pump::Outbox;
use crate::source::Source;
use crate::wait::{self, Interest};

/// Bytes moved in one go; they stand on the stack only while they move.
const MOVED_BYTES: usize = 16 * 1024;
/// Rounds of both directions before others on the core have their turn.
const TURNS_MAX: u32 = 64;

/// One of the two connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelaySide {
    /// That of the client.
    Client,
    /// That to the upstream server.
    Upstream,
}

/// Why a relay has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelayEnd {
    /// Both sides have closed; this one first.
    Closed(RelaySide),
    /// This side has reset its connection, or cannot be reached any more.
    Broken(RelaySide),
    /// Nothing has moved for the time allowed.
    Idle,
}

/// One direction.
#[derive(Default)]
struct Direction {
    /// What the receiver has not taken yet. Nothing more is read meanwhile.
    out: Outbox,
    /// The sender has closed its side.
    ended: bool,
    /// The end has been passed on to the receiver, or the receiver takes nothing any more.
    reported: bool,
}

/// Which end of a direction has failed.
enum Failed {
    Sender,
    Receiver,
}

impl Direction {
    /// Moves what can be moved now; `moved` is called with the number of bytes that the receiver's socket has taken.
    /// Returns whether anything has changed.
    fn advance(
        &mut self,
        from: &mut Link,
        to: &mut Link,
        mut moved: impl FnMut(usize),
    ) -> Result<bool, Failed> {
        let mut changed = false;
        if !self.out.is_empty() {
            let (sent, _) = self.out.try_send(to, b"", false).map_err(|_| Failed::Receiver)?;
            moved(sent);
            changed = sent > 0;
        }
        if self.out.is_empty() && !self.ended && from.has_input() {
            changed |= self.read(from, to, moved)?;
        }
        if self.out.is_empty() && self.out.weight_bytes() > 0 {
            self.out = Outbox::default();
        }
        if self.ended && self.out.is_empty() && !self.reported {
            self.reported = true;
            to.shutdown_write();
            changed = true;
        }
        Ok(changed)
    }

    /// Reads once, and sends what the receiver takes. Its buffer is on the stack for one call, not in a connection's future.
    #[inline(never)]
    fn read(&mut self, from: &mut Link, to: &mut Link, mut moved: impl FnMut(usize)) -> Result<bool, Failed> {
        let mut buffer = [0; MOVED_BYTES];
        match from.try_read(&mut buffer).map_err(|_| Failed::Sender)? {
            None => return Ok(false),
            Some(0) => self.ended = true,
            Some(len) => {
                let (_, sent) = self.out.try_send(to, &buffer[..len], false).map_err(|_| Failed::Receiver)?;
                moved(sent);
                self.out.keep(&buffer[sent..len]);
            }
        }
        Ok(true)
    }

    /// The receiver takes nothing any more.
    fn stop(&mut self) {
        *self = Direction { out: Outbox::default(), ended: true, reported: true };
    }

    fn is_open(&self) -> bool {
        !self.reported
    }
}

/// Carries bytes both ways until both sides have closed, one of them is gone, or nothing has moved for `idle_ms`. The end of
/// one side is passed on while the other still sends; a reset is passed on as a reset. `early` are bytes that the client has sent
/// already. `hold` is called with the bytes that are held in memory, `moved` with the side that has taken bytes and how many.
pub(crate) async fn relay(
    client: &mut Link,
    upstream: &mut Link,
    early: &[u8],
    idle_ms: u64,
    hold: impl Fn(usize),
    moved: impl Fn(RelaySide, usize),
) -> RelayEnd {
    let core = client.core().clone();
    let (mut up, mut down) = (Direction::default(), Direction::default());
    up.out.keep(early);
    let (mut first, mut turns) = (None, 0);
    let mut progress = [SendProgress::default(), SendProgress::default()];
    loop {
        let (was_up, was_down) = (up.ended, down.ended);
        let mut changed = false;
        if up.is_open() {
            match up.advance(client, upstream, |len| moved(RelaySide::Upstream, len)) {
                Ok(advanced) => changed |= advanced,
                Err(Failed::Sender) => return broken(RelaySide::Client, client, upstream),
                // Bytes that it sent before are still delivered.
                Err(Failed::Receiver) => up.stop(),
            }
        }
        if down.is_open() {
            match down.advance(upstream, client, |len| moved(RelaySide::Client, len)) {
                Ok(advanced) => changed |= advanced,
                Err(Failed::Sender) => return broken(RelaySide::Upstream, client, upstream),
                Err(Failed::Receiver) => return broken(RelaySide::Client, client, upstream),
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
            if turns == TURNS_MAX {
                turns = 0;
                core.yield_now().await;
            }
            continue;
        }
        turns = 0;
        // Who has ended its own side, and is sent nothing just now, may be gone all the same.
        if up.ended && down.is_open() && client.stream().source().is_gone() {
            return broken(RelaySide::Client, client, upstream);
        }
        if down.ended && up.is_open() && upstream.stream().source().is_gone() {
            up.stop();
            continue;
        }
        hold(up.out.weight_bytes() + down.out.weight_bytes());
        let deadline_ms = core.now_ms().saturating_add(idle_ms);
        let sources = interests((client, upstream), (&up, &down));
        if let Err(Fault::Timeout) = wait::any(&core, sources, deadline_ms, || false).await {
            // A slow receiver may take what was sent before.
            let [of_client, of_upstream] = &mut progress;
            if !(of_client.look(client.stream()) | of_upstream.look(upstream.stream())) {
                return RelayEnd::Idle;
            }
        }
    }
}

/// What to wait for, on both connections.
fn interests<'l>(
    (client, upstream): (&'l Link, &'l Link),
    (up, down): (&Direction, &Direction),
) -> [(&'l Source, Interest); 2] {
    let of_client = client
        .interest(!up.ended && up.out.is_empty(), !down.out.is_empty())
        .or_gone(up.ended && down.is_open());
    let of_upstream = match up.is_open() {
        true => upstream.interest(!down.ended && down.out.is_empty(), !up.out.is_empty()),
        false => Interest::of(!down.ended && down.out.is_empty(), false),
    };
    let of_upstream = of_upstream.or_gone(down.ended && up.is_open());
    [(client.stream().source(), of_client), (upstream.stream().source(), of_upstream)]
}

/// One side is gone: the other one must not take that for the end of what was sent.
fn broken(side: RelaySide, client: &Link, upstream: &Link) -> RelayEnd {
    let other = match side {
        RelaySide::Client => upstream,
        RelaySide::Upstream => client,
    };
    other.stream().reset_on_close(true);
    RelayEnd::Broken(side)
}
