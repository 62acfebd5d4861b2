//! Orderly shutdown of connections.
//!
//! If a socket is closed while its peer still sends, the kernel resets the connection, and the peer loses
//! what it has not read. So this side sends its end of stream first, then reads and discards input until the
//! peer is done.

use times::Millis;

use crate::fault::Fault;
use crate::link::Link;
use crate::progress::SendProgress;
use crate::stream::Stream;

/// Time that a peer which has received everything may be silent before its connection is closed.
const SILENCE_MAX: Millis = Millis(2_000);
/// Maximum time to discard input after the peer has received everything.
const LINGER_TIME: Millis = Millis(30_000);
/// [`LINGER_TIME`] while the server stops, for a connection on which little was sent.
const LINGER_TIME_STOPPING: Millis = Millis(1_000);
/// Bytes that a client program reads at once. Of more, part may still be in its kernel's receive buffer.
const SMALL_BYTES_MAX: u32 = 64 * 1024;
/// Interval for asking the kernel whether the peer has received everything, and for checking whether the
/// server stops.
const CHECK_INTERVAL: Millis = Millis(500);
/// Bytes discarded before the task yields to other connections.
const TURN_BYTES_MAX: usize = 256 * 1024;
/// Bytes discarded at full speed, for uploads that their sender does not abort. Beyond this, pauses limit the
/// rate to at most 26 MB/s, to save CPU time.
const UNPACED_BYTES_MAX: usize = 4 << 20;
const TURN_PAUSE: Millis = Millis(10);

/// Whether at most [`SMALL_BYTES_MAX`] were sent on the connection.
pub(crate) fn has_sent_little(stream: &Stream) -> bool {
    stream.sent() <= SMALL_BYTES_MAX
}

/// Sends buffered output and TLS's close_notify. Returns false if the peer does not accept it.
pub(crate) async fn finish_sending(link: &mut Link, patience: Millis) -> bool {
    link.send_close_notify();
    let mut progress = SendProgress::default();
    loop {
        match link.try_flush() {
            Ok(true) => return true,
            Ok(false) if progress.wait_for_room(link.stream(), patience).await.is_ok() => {}
            Ok(false) | Err(_) => return false,
        }
    }
}

/// Shuts a connection down while its peer may still send. Returns when the peer has received everything and
/// has closed too, has accepted nothing for `patience`, has exceeded its time, or has sent `bytes_max`.
/// The caller must then drop the connection.
pub(crate) async fn linger(link: &mut Link, patience: Millis, bytes_max: usize) {
    if !finish_sending(link, patience).await {
        return;
    }
    let stream = link.stream();
    let core = link.core();
    // Read below TLS: decrypting discarded input is useless.
    stream.shutdown_write();
    let mut progress = SendProgress::default();
    let mut heard_at = core.now();
    let mut taken_at = None;
    let mut dropped_total = 0;
    while dropped_total < bytes_max {
        let dropped = match discard_input(stream) {
            Ok(Some(dropped)) => dropped,
            Ok(None) | Err(_) => return,
        };
        dropped_total = dropped_total.saturating_add(dropped);
        let now = core.now();
        if dropped > 0 {
            heard_at = now;
        }
        progress.check(stream);
        if progress.queued() == 0 {
            taken_at.get_or_insert(now);
        }
        let deadline = match taken_at {
            None => progress.since(stream) + patience,
            Some(taken_at) if core.is_draining() && has_sent_little(stream) => {
                taken_at + LINGER_TIME_STOPPING
            }
            Some(taken_at) => (heard_at.max(taken_at) + SILENCE_MAX).min(taken_at + LINGER_TIME),
        };
        if now >= deadline {
            return;
        }
        if dropped >= TURN_BYTES_MAX {
            if dropped_total > UNPACED_BYTES_MAX {
                core.sleep(TURN_PAUSE).await
            } else {
                core.yield_now().await
            }
            continue;
        }
        // An expired deadline is handled above.
        let _ = stream.readable(deadline.min(now + CHECK_INTERVAL)).await;
    }
}

/// Reads and discards up to [`TURN_BYTES_MAX`] available bytes; returns their number, or `None` at the end.
/// Not inlined, so that the buffer is on the stack and not part of the connection's future.
#[inline(never)]
fn discard_input(stream: &Stream) -> Result<Option<usize>, Fault> {
    let mut buffer = [0; 16 * 1024];
    let mut dropped = 0;
    while dropped < TURN_BYTES_MAX {
        match stream.try_read(&mut buffer)? {
            Some(0) => return Ok(None),
            Some(len) => dropped += len,
            None => break,
        }
    }
    Ok(Some(dropped))
}
