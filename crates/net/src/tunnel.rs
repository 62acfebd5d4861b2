//! Tunnels: an upgraded connection joined with another one until both have ended. Either may be a stream of a
//! shared connection.

use http::Fields;
use times::{Millis, Moment};

use crate::exchange::Exchange;
use crate::fault::Fault;
use crate::io_buffers::OutputBuffer;
use crate::link::Link;
use crate::mux_client::{MuxRequestStream, StreamStep};
use crate::progress::SendProgress;
use crate::wait::Interest;

/// Bytes moved at once, through a buffer on the stack.
const MOVED_BYTES: usize = 16 * 1024;
/// Rounds of both directions before the task yields to others of the core.
const ROUNDS_MAX: u32 = 64;
/// Buffered bytes at which reading from the sender stops.
const BUFFERED_BYTES_MAX: usize = 64 * 1024;

/// State of one direction.
#[derive(Default)]
struct Direction {
    /// Whether the sender has closed its side.
    ended: bool,
    /// Whether the end was passed to the receiver.
    end_forwarded: bool,
}

/// The other end of a tunnel.
pub enum TunnelEnd<'e> {
    /// A connection.
    Link(&'e mut Link),
    /// A stream of a shared connection.
    Stream(&'e mut MuxRequestStream),
}

impl TunnelEnd<'_> {
    /// Sends bytes. Data that is not accepted is buffered in `out`, or in the stream's connection.
    fn send(&mut self, out: &mut OutputBuffer, bytes: &[u8]) -> Result<(), Fault> {
        match self {
            TunnelEnd::Link(link) => {
                let (_, sent) = out.try_send(link, bytes, false)?;
                out.push_bytes(&bytes[sent..]);
            }
            TunnelEnd::Stream(stream) if stream.is_send_closed() => return Err(Fault::Disconnected),
            TunnelEnd::Stream(stream) => stream.offer(bytes),
        }
        Ok(())
    }

    /// Returns the number of buffered bytes.
    fn backlog(&self, out: &OutputBuffer) -> usize {
        match self {
            TunnelEnd::Link(_) => out.backlog(),
            TunnelEnd::Stream(stream) => stream.backlog(),
        }
    }

    /// Sends as much as possible; returns true if nothing is left.
    fn try_flush(&mut self, out: &mut OutputBuffer) -> Result<bool, Fault> {
        match self {
            TunnelEnd::Link(link) => out.try_flush(link),
            TunnelEnd::Stream(stream) if stream.is_send_closed() => Err(Fault::Disconnected),
            TunnelEnd::Stream(stream) => Ok(!stream.has_pending_output()),
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
    fn forward_to_client(&mut self, exchange: &mut Exchange<'_>) -> Result<Option<usize>, Fault> {
        match self {
            TunnelEnd::Link(link) => {
                let mut buffer = [0; MOVED_BYTES];
                let read = link.try_read(&mut buffer)?;
                exchange.offer(&buffer[..read.unwrap_or(0)])?;
                Ok(read)
            }
            TunnelEnd::Stream(stream) => match stream.step().map_err(|_| Fault::Disconnected)? {
                StreamStep::Pending => Ok(None),
                StreamStep::End => Ok(Some(0)),
                StreamStep::Head => Err(Fault::Failed("another head in a tunnel")),
                StreamStep::Data => {
                    exchange.offer(stream.data())?;
                    Ok(Some(stream.data().len()))
                }
            },
        }
    }

    /// Whether the other end has accepted data since the last call.
    fn has_progressed(&mut self, progress: &mut SendProgress) -> bool {
        match self {
            TunnelEnd::Link(link) => progress.check(link.stream()),
            TunnelEnd::Stream(stream) => stream.has_progressed(),
        }
    }

    /// Whether the other end is closed in both directions, or has failed.
    fn is_gone(&self) -> bool {
        match self {
            TunnelEnd::Link(link) => link.stream().source().is_gone(),
            TunnelEnd::Stream(stream) => stream.is_send_closed(),
        }
    }

    /// Whether the other end reads nothing more, although it may still send.
    fn is_stopped(&self) -> bool {
        matches!(self, TunnelEnd::Stream(stream) if stream.is_send_closed())
    }

    /// Returns the events to wait for; writability is wanted if data for this end is buffered.
    fn interest(&self, wanted: Interest) -> Interest {
        match self {
            TunnelEnd::Link(link) => link.interest(wanted),
            TunnelEnd::Stream(stream) => Interest::of(wanted.includes_read(), stream.has_pending_output()),
        }
    }

    async fn wait(
        &self,
        exchange: &Exchange<'_>,
        client: Interest,
        theirs: Interest,
        deadline: Moment,
    ) -> Result<(), Fault> {
        match self {
            TunnelEnd::Link(link) => exchange.wait_either(client, link, theirs, deadline).await,
            TunnelEnd::Stream(stream) => exchange.wait_either_stream(client, stream, theirs, deadline).await,
        }
    }
}

/// Transfers data in both directions between the client of an upgraded exchange and `other`, until both have
/// closed or nothing was transferred for `idle_timeout`. The end of one side is passed on while the other still
/// sends. `early` are bytes that `other` has already sent.
///
/// # Errors
/// Fails if either side is gone.
pub async fn tunnel(
    exchange: &mut Exchange<'_>,
    mut other: TunnelEnd<'_>,
    early_bytes: &[u8],
    idle_timeout: Millis,
) -> Result<(), Fault> {
    exchange.offer(early_bytes)?;
    let mut up = Direction::default();
    let mut down = Direction::default();
    // Data that `other` has not accepted. An idle tunnel holds no buffer.
    let mut out = OutputBuffer::default();
    let mut turns = 0;
    let mut progress = SendProgress::default();
    loop {
        if up.ended && !down.end_forwarded && exchange.is_gone() {
            return Err(Fault::Disconnected);
        }
        let moved_up = !up.end_forwarded
            && match transfer_from_client(exchange, &mut other, &mut up, &mut out) {
                // `other` reads nothing more; data that it has sent is still delivered.
                result
                    if down.ended && (result.is_err() || !up.end_forwarded && other.is_gone())
                        || other.is_stopped() =>
                {
                    exchange.abort_tunnel();
                    (up, out) = (Direction { ended: true, end_forwarded: true }, OutputBuffer::default());
                    false
                }
                moved => moved?,
            };
        let moved = moved_up | transfer_to_client(exchange, &mut other, &mut down)?;
        if up.end_forwarded && down.end_forwarded {
            return Ok(());
        }
        if moved && turns < ROUNDS_MAX {
            turns += 1;
            continue;
        }
        if std::mem::take(&mut turns) == ROUNDS_MAX {
            exchange.core().yield_now().await;
            continue;
        }
        let client = Interest::of(!up.ended && other.backlog(&out) == 0, exchange.backlog() > 0);
        let reads = !down.ended && exchange.backlog() < BUFFERED_BYTES_MAX;
        let theirs = match up.end_forwarded {
            // Ciphertext left in TLS can no longer be sent.
            true => Interest::of(reads, false),
            false => other.interest(Interest::of(reads, !out.is_empty())),
        };
        // A side that has ended and is sent nothing at the moment may be gone.
        let client = client.or_gone(up.ended && !down.end_forwarded);
        let theirs = theirs.or_gone(down.ended && !up.end_forwarded);
        let deadline = exchange.core().now() + idle_timeout;
        exchange.release_buffers();
        match other.wait(exchange, client, theirs, deadline).await {
            // A slow receiver may still be accepting data. Otherwise, silence is the normal end of tunnels.
            Err(Fault::Timeout) if exchange.has_progressed() | other.has_progressed(&mut progress) => {}
            Err(Fault::Timeout) => return Ok(()),
            other => other?,
        }
    }
}

/// Transfers data from the client; returns true if something was transferred.
fn transfer_from_client(
    exchange: &mut Exchange<'_>,
    other: &mut TunnelEnd<'_>,
    up: &mut Direction,
    out: &mut OutputBuffer,
) -> Result<bool, Fault> {
    let mut moved = false;
    if other.backlog(out) == 0 && !up.ended {
        let mut buffer = [0; MOVED_BYTES];
        match exchange.try_read_raw(&mut buffer)? {
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
        *out = OutputBuffer::default();
    }
    if flushed && up.ended {
        up.end_forwarded = true;
        other.end();
    }
    Ok(moved)
}

/// Transfers data to the client; the exchange buffers what the client does not accept.
fn transfer_to_client(
    exchange: &mut Exchange<'_>,
    other: &mut TunnelEnd<'_>,
    down: &mut Direction,
) -> Result<bool, Fault> {
    let mut moved = false;
    if !down.ended && exchange.backlog() < BUFFERED_BYTES_MAX {
        match other.forward_to_client(exchange)? {
            None => {}
            Some(0) => down.ended = true,
            Some(_) => moved = true,
        }
    }
    let backlog = exchange.backlog();
    let flushed = exchange.try_flush()?;
    // There is room again. TLS may hold decrypted bytes, which the socket does not report, so read again.
    moved |= exchange.backlog() < backlog;
    if flushed && down.ended && !down.end_forwarded {
        down.end_forwarded = true;
        exchange.shutdown_write();
    }
    Ok(moved)
}
