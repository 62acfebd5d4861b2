//! A tunnel: an upgraded connection and another one, joined until both have ended.

use crate::exchange::Exchange;
use crate::fault::Fault;
use crate::link::Link;
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

/// Carries bytes both ways between the client of an upgraded exchange and `other`, until both have closed or nothing
/// has moved for `idle_ms`. One side's end is passed on while the other still sends. `early` are bytes that `other`
/// has sent already.
///
/// # Errors
/// Either side is gone.
pub async fn tunnel(x: &mut Exchange<'_>, other: &mut Link, early: &[u8], idle_ms: u64) -> Result<(), Fault> {
    x.offer(early)?;
    let (mut up, mut down) = (Direction::default(), Direction::default());
    // What `other` has not taken. An idle tunnel holds none.
    let mut out = Outbox::default();
    let mut turns = 0;
    loop {
        let moved_up = !up.reported
            && match move_up(x, other, &mut up, &mut out) {
                // `other` has sent its last byte and reads nothing more; bytes that it sent before are still delivered.
                Err(_) if down.ended => {
                    (up, out) = (Direction { ended: true, reported: true }, Outbox::default());
                    false
                }
                moved => moved?,
            };
        let moved = moved_up | move_down(x, other, &mut down)?;
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
        let client = Interest::of(!up.ended && out.is_empty(), x.backlog() > 0);
        let reads = !down.ended && x.backlog() < AHEAD_BYTES_MAX;
        let theirs = match up.reported {
            // What is left in TLS goes nowhere any more.
            true => Interest::of(reads, false),
            false => other.interest(reads, !out.is_empty()),
        };
        let deadline_ms = x.core().now_ms().saturating_add(idle_ms);
        x.shed();
        match x.either(client, (other, theirs), deadline_ms).await {
            // Silence for so long is how most tunnels end.
            Err(Fault::Timeout) => return Ok(()),
            other => other?,
        }
    }
}

/// From the client; true where something moved.
fn move_up(
    x: &mut Exchange<'_>,
    other: &mut Link,
    up: &mut Direction,
    out: &mut Outbox,
) -> Result<bool, Fault> {
    let mut moved = false;
    if out.is_empty() && !up.ended {
        let mut buffer = [0; MOVED_BYTES];
        match x.try_raw(&mut buffer)? {
            None => {}
            Some(0) => up.ended = true,
            Some(len) => {
                moved = true;
                let (_, sent) = out.try_send(other, &buffer[..len], false)?;
                out.keep(&buffer[sent..len]);
            }
        }
    }
    let backlog = out.backlog();
    let flushed = out.try_flush(other)?;
    moved |= out.backlog() < backlog;
    if out.is_empty() {
        *out = Outbox::default();
    }
    if flushed && up.ended {
        up.reported = true;
        other.shutdown_write();
    }
    Ok(moved)
}

/// To the client; what it does not take waits in the exchange.
fn move_down(x: &mut Exchange<'_>, other: &mut Link, down: &mut Direction) -> Result<bool, Fault> {
    let mut moved = false;
    if !down.ended && x.backlog() < AHEAD_BYTES_MAX {
        let mut buffer = [0; MOVED_BYTES];
        match other.try_read(&mut buffer)? {
            None => {}
            Some(0) => down.ended = true,
            Some(len) => {
                moved = true;
                x.offer(&buffer[..len])?;
            }
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
