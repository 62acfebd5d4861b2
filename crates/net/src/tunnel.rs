//! A tunnel: an upgraded connection and another one, joined until both have ended. Either may be a stream of a shared connection.

use http::Fields;

use crate::exchange::Exchange;
use crate::fault::Fault;
use crate::h2_client::{H2Stream, StreamStep};
use crate::link::Link;
use crate::progress::SendProgress;
use crate::pump::Outbox;
use crate::wait::Interest;

/// Bytes moved in one go; they stand on the stack only while they move.
const MOVED_BYTES: usize = 16 * 1024;
/// Rounds of both directions before others on the core have their turn.
const TURNS_MAX: u32 = 64;
/// Bytes that one side may be ahead of the other.
const AHEAD_BYTES_MAX: usize = 64 * 1024;

/// How far one direction is.
#[derive(Default)]
struct Direction {
    /// The sender has closed its side.
    ended: bool,
    /// The end has been passed on to the receiver.
    reported: bool,
}

/// Where a tunnel leads.
pub enum TunnelEnd<'e> {
    /// A connection, all of it.
    Link(&'e mut Link),
    /// A stream of a shared connection.
    Stream(&'e mut H2Stream),
}

impl TunnelEnd<'_> {
    /// Sends; what it does not take now waits in `out`, or with the connection that carries the stream.
    fn send(&mut self, out: &mut Outbox, bytes: &[u8]) -> Result<(), Fault> {
        match self {
            TunnelEnd::Link(link) => {
                let (_, sent) = out.try_send(link, bytes, false)?;
                out.keep(&bytes[sent..]);
            }
            TunnelEnd::Stream(stream) if stream.is_cut() => return Err(Fault::Gone),
            TunnelEnd::Stream(stream) => stream.offer(bytes),
        }
        Ok(())
    }

    /// Bytes that wait to be sent.
    fn backlog(&self, out: &Outbox) -> usize {
        match self {
            TunnelEnd::Link(_) => out.backlog(),
            TunnelEnd::Stream(stream) => stream.backlog(),
        }
    }

    /// Sends what it takes now; true where nothing is left.
    fn try_flush(&mut self, out: &mut Outbox) -> Result<bool, Fault> {
        match self {
            TunnelEnd::Link(link) => out.try_flush(link),
            TunnelEnd::Stream(stream) if stream.is_cut() => Err(Fault::Gone),
            TunnelEnd::Stream(stream) => Ok(!stream.is_behind()),
        }
    }

    /// Closes its sending side, once all has been sent.
    fn end(&mut self) {
        match self {
            TunnelEnd::Link(link) => link.shutdown_write(),
            TunnelEnd::Stream(stream) => stream.finish(Fields::new()),
        }
    }

    /// Passes what has come to the client: how many bytes, 0 at the end, `None` where there are none now.
    fn pass_on(&mut self, x: &mut Exchange<'_>) -> Result<Option<usize>, Fault> {
        match self {
            TunnelEnd::Link(link) => {
                let mut buffer = [0; MOVED_BYTES];
                let read = link.try_read(&mut buffer)?;
                x.offer(&buffer[..read.unwrap_or(0)])?;
                Ok(read)
            }
            TunnelEnd::Stream(stream) => match stream.step().map_err(|_| Fault::Gone)? {
                StreamStep::Pending => Ok(None),
                StreamStep::End => Ok(Some(0)),
                StreamStep::Head => Err(Fault::Broken("another head in a tunnel")),
                StreamStep::Data => {
                    x.offer(stream.data())?;
                    Ok(Some(stream.data().len()))
                }
            },
        }
    }

    /// Whether it has taken anything since the last call.
    fn has_taken(&mut self, progress: &mut SendProgress) -> bool {
        match self {
            TunnelEnd::Link(link) => progress.look(link.stream()),
            TunnelEnd::Stream(stream) => stream.has_taken(),
        }
    }

    /// Whether it is closed in both directions, or has failed.
    fn is_gone(&self) -> bool {
        match self {
            TunnelEnd::Link(link) => link.stream().source().is_gone(),
            TunnelEnd::Stream(stream) => stream.is_cut(),
        }
    }

    /// What to wait for; `is_behind` says that the client has sent more than it has taken.
    fn interest(&self, reads: bool, is_behind: bool) -> Interest {
        match self {
            TunnelEnd::Link(link) => link.interest(reads, is_behind),
            TunnelEnd::Stream(stream) => Interest::of(reads, stream.is_behind()),
        }
    }

    async fn wait(
        &self,
        x: &Exchange<'_>,
        client: Interest,
        theirs: Interest,
        deadline_ms: u64,
    ) -> Result<(), Fault> {
        match self {
            TunnelEnd::Link(link) => x.either(client, (&**link, theirs), deadline_ms).await,
            TunnelEnd::Stream(stream) => x.either_stream(client, (&**stream, theirs), deadline_ms).await,
        }
    }
}

/// Carries bytes both ways between the client of an upgraded exchange and `other`, until both have closed or nothing
/// has moved for `idle_ms`. One side's end is passed on while the other still sends. `early` are bytes that `other`
/// has sent already.
///
/// # Errors
/// Either side is gone.
pub async fn tunnel(
    x: &mut Exchange<'_>,
    mut other: TunnelEnd<'_>,
    early: &[u8],
    idle_ms: u64,
) -> Result<(), Fault> {
    x.offer(early)?;
    let (mut up, mut down) = (Direction::default(), Direction::default());
    // What `other` has not taken. An idle tunnel holds none.
    let mut out = Outbox::default();
    let (mut turns, mut progress) = (0, SendProgress::default());
    loop {
        if up.ended && !down.reported && x.is_gone() {
            return Err(Fault::Gone);
        }
        let moved_up = !up.reported
            && match move_up(x, &mut other, &mut up, &mut out) {
                // `other` has sent its last byte and reads nothing more; bytes that it sent before are still delivered.
                result if down.ended && (result.is_err() || !up.reported && other.is_gone()) => {
                    x.break_off();
                    (up, out) = (Direction { ended: true, reported: true }, Outbox::default());
                    false
                }
                moved => moved?,
            };
        let moved = moved_up | move_down(x, &mut other, &mut down)?;
        if up.reported && down.reported {
            return Ok(());
        }
        if moved && turns < TURNS_MAX {
            turns += 1;
            continue;
        }
        if std::mem::take(&mut turns) == TURNS_MAX {
            x.core().yield_now().await;
            continue;
        }
        let client = Interest::of(!up.ended && other.backlog(&out) == 0, x.backlog() > 0);
        let reads = !down.ended && x.backlog() < AHEAD_BYTES_MAX;
        let theirs = match up.reported {
            // What is left in TLS goes nowhere any more.
            true => Interest::of(reads, false),
            false => other.interest(reads, !out.is_empty()),
        };
        // Who has ended its own side, and is sent nothing just now, may be gone all the same.
        let client = client.or_gone(up.ended && !down.reported);
        let theirs = theirs.or_gone(down.ended && !up.reported);
        let deadline_ms = x.core().now_ms().saturating_add(idle_ms);
        x.shed();
        match other.wait(x, client, theirs, deadline_ms).await {
            // A slow receiver may take what was sent before. Else silence for so long is how most tunnels end.
            Err(Fault::Timeout) if x.has_taken() | other.has_taken(&mut progress) => {}
            Err(Fault::Timeout) => return Ok(()),
            other => other?,
        }
    }
}

/// From the client; true where something moved.
fn move_up(
    x: &mut Exchange<'_>,
    other: &mut TunnelEnd<'_>,
    up: &mut Direction,
    out: &mut Outbox,
) -> Result<bool, Fault> {
    let mut moved = false;
    if other.backlog(out) == 0 && !up.ended {
        let mut buffer = [0; MOVED_BYTES];
        match x.try_raw(&mut buffer)? {
            None => {}
            Some(0) => up.ended = true,
            Some(len) => {
                moved = true;
                other.send(out, &buffer[..len])?;
            }
        }
    }
    let backlog = other.backlog(out);
    let flushed = other.try_flush(out)?;
    moved |= other.backlog(out) < backlog;
    if out.is_empty() {
        *out = Outbox::default();
    }
    if flushed && up.ended {
        up.reported = true;
        other.end();
    }
    Ok(moved)
}

/// To the client; what it does not take waits in the exchange.
fn move_down(x: &mut Exchange<'_>, other: &mut TunnelEnd<'_>, down: &mut Direction) -> Result<bool, Fault> {
    let mut moved = false;
    if !down.ended && x.backlog() < AHEAD_BYTES_MAX {
        match other.pass_on(x)? {
            None => {}
            Some(0) => down.ended = true,
            Some(_) => moved = true,
        }
    }
    let backlog = x.backlog();
    let flushed = x.try_flush()?;
    // Room for more: what TLS has decrypted already is no news of the socket's, so it is asked for again.
    moved |= x.backlog() < backlog;
    if flushed && down.ended && !down.reported {
        down.reported = true;
        x.shutdown_write();
    }
    Ok(moved)
}
