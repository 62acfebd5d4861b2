//! Tunnels: an upgraded connection joined with another one until both have ended. Either may be a stream of a
//! shared connection.

use http::Fields;

use crate::exchange::Exchange;
use crate::fault::Fault;
use crate::h2_client::{H2Stream, StreamStep};
use crate::link::Link;
use crate::progress::SendProgress;
use crate::pump::Outbox;
use crate::wait::Interest;

/// Bytes moved at once, through a buffer on the stack.
const MOVED_BYTES: usize = 16 * 1024;
/// Rounds of both directions before the task yields to others of the core.
const TURNS_MAX: u32 = 64;
/// Buffered bytes at which reading from the sender stops.
const AHEAD_BYTES_MAX: usize = 64 * 1024;

/// State of one direction.
#[derive(Default)]
struct Direction {
    /// Whether the sender has closed its side.
    ended: bool,
    /// Whether the end was passed to the receiver.
    reported: bool,
}

/// The other end of a tunnel.
pub enum TunnelEnd<'e> {
    /// A connection.
    Link(&'e mut Link),
    /// A stream of a shared connection.
    Stream(&'e mut H2Stream),
}

impl TunnelEnd<'_> {
    /// Sends bytes. Data that is not accepted is buffered in `out`, or in the stream's connection.
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

    /// Returns the number of buffered bytes.
    fn backlog(&self, out: &Outbox) -> usize {
        match self {
            TunnelEnd::Link(_) => out.backlog(),
            TunnelEnd::Stream(stream) => stream.backlog(),
        }
    }

    /// Sends as much as possible; returns true if nothing is left.
    fn try_flush(&mut self, out: &mut Outbox) -> Result<bool, Fault> {
        match self {
            TunnelEnd::Link(link) => out.try_flush(link),
            TunnelEnd::Stream(stream) if stream.is_cut() => Err(Fault::Gone),
            TunnelEnd::Stream(stream) => Ok(!stream.is_behind()),
        }
    }

    /// Closes the sending side. Everything must have been sent.
    fn end(&mut self) {
        match self {
            TunnelEnd::Link(link) => link.shutdown_write(),
            TunnelEnd::Stream(stream) => stream.finish(Fields::new()),
        }
    }

    /// Passes received bytes to the client; returns their number, 0 at the end, `None` if none are available.
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

    /// Whether the other end has accepted data since the last call.
    fn has_taken(&mut self, progress: &mut SendProgress) -> bool {
        match self {
            TunnelEnd::Link(link) => progress.look(link.stream()),
            TunnelEnd::Stream(stream) => stream.has_taken(),
        }
    }

    /// Whether the other end is closed in both directions, or has failed.
    fn is_gone(&self) -> bool {
        match self {
            TunnelEnd::Link(link) => link.stream().source().is_gone(),
            TunnelEnd::Stream(stream) => stream.is_cut(),
        }
    }

    /// Returns the events to wait for; `is_behind` means that data for this end is buffered.
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

/// Transfers data in both directions between the client of an upgraded exchange and `other`, until both have
/// closed or nothing was transferred for `idle_ms`. The end of one side is passed on while the other still
/// sends. `early` are bytes that `other` has already sent.
///
/// # Errors
/// Fails if either side is gone.
pub async fn tunnel(
    x: &mut Exchange<'_>,
    mut other: TunnelEnd<'_>,
    early: &[u8],
    idle_ms: u64,
) -> Result<(), Fault> {
    x.offer(early)?;
    let (mut up, mut down) = (Direction::default(), Direction::default());
    // Data that `other` has not accepted. An idle tunnel holds no buffer.
    let mut out = Outbox::default();
    let (mut turns, mut progress) = (0, SendProgress::default());
    loop {
        if up.ended && !down.reported && x.is_gone() {
            return Err(Fault::Gone);
        }
        let moved_up = !up.reported
            && match move_up(x, &mut other, &mut up, &mut out) {
                // `other` has ended and reads nothing more; data that it sent before is still delivered.
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
            // Ciphertext left in TLS can no longer be sent.
            true => Interest::of(reads, false),
            false => other.interest(reads, !out.is_empty()),
        };
        // A side that has ended and is sent nothing at the moment may be gone.
        let client = client.or_gone(up.ended && !down.reported);
        let theirs = theirs.or_gone(down.ended && !up.reported);
        let deadline_ms = x.core().now_ms().saturating_add(idle_ms);
        x.shed();
        match other.wait(x, client, theirs, deadline_ms).await {
            // A slow receiver may still be accepting data. Otherwise, silence is the normal end of tunnels.
            Err(Fault::Timeout) if x.has_taken() | other.has_taken(&mut progress) => {}
            Err(Fault::Timeout) => return Ok(()),
            other => other?,
        }
    }
}

/// Transfers data from the client; returns true if something was transferred.
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

/// Transfers data to the client; the exchange buffers what the client does not accept.
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
    // There is room again. TLS may hold decrypted bytes, which the socket does not report, so read again.
    moved |= x.backlog() < backlog;
    if flushed && down.ended && !down.reported {
        down.reported = true;
        x.shutdown_write();
    }
    Ok(moved)
}
