//! Orderly shutdown of connections.
//!
//! If a socket is closed while its peer still sends, the kernel resets the connection, and the peer loses
//! what it has not read. So this side sends its end of stream first, then reads and discards input until the
//! peer is done.

use crate::fault::Fault;
use crate::link::Link;
use crate::progress::SendProgress;
use crate::stream::Stream;

/// Time that a peer which has received everything may be silent before its connection is closed.
const SILENCE_MS_MAX: u64 = 2_000;
/// Maximum time to discard input after the peer has received everything.
const LINGER_MS: u64 = 30_000;
/// [`LINGER_MS`] while the server stops, for a connection on which little was sent.
const LINGER_STOPPING_MS: u64 = 1_000;
/// Bytes that a client program reads at once. Of more, part may still be in its kernel's receive buffer.
const SMALL_BYTES_MAX: u32 = 64 * 1024;
/// Interval for asking the kernel whether the peer has received everything, and for checking whether the
/// server stops.
const CHECK_INTERVAL_MS: u64 = 500;
/// Bytes discarded before the task yields to other connections.
const TURN_BYTES_MAX: usize = 256 * 1024;
/// Bytes discarded at full speed, for uploads that their sender does not abort. Beyond this, pauses limit the
/// rate to at most 26 MB/s, to save CPU time.
const UNPACED_BYTES_MAX: usize = 4 << 20;
const TURN_PAUSE_MS: u64 = 10;

/// Whether at most [`SMALL_BYTES_MAX`] were sent on the connection.
pub(crate) fn has_sent_little(stream: &Stream) -> bool {
    stream.sent() <= SMALL_BYTES_MAX
}

/// Sends buffered output and TLS's close_notify. Returns false if the peer does not accept it.
pub(crate) async fn finish_sending(link: &mut Link, patience_ms: u64) -> bool {
    link.send_close_notify();
    let mut progress = SendProgress::default();
    loop {
        match link.try_flush() {
            Ok(true) => return true,
            Ok(false) if progress.wait_for_room(link.stream(), patience_ms).await.is_ok() => {}
            Ok(false) | Err(_) => return false,
        }
    }
}

/// Shuts a connection down while its peer may still send. Returns when the peer has received everything and
/// has closed too, has accepted nothing for `patience_ms`, has exceeded its time, or has sent `bytes_max`.
/// The caller must then drop the connection.
pub(crate) async fn linger(link: &mut Link, patience_ms: u64, bytes_max: usize) {
    if !finish_sending(link, patience_ms).await {
        return;
    }
    let stream = link.stream();
    let core = link.core();
    // Read below TLS: decrypting discarded input is useless.
    stream.shutdown_write();
    let mut progress = SendProgress::default();
    let mut heard_ms = core.now_ms();
    let mut taken_ms = None;
    let mut dropped_total = 0;
    while dropped_total < bytes_max {
        let dropped = match discard_input(stream) {
            Ok(Some(dropped)) => dropped,
            Ok(None) | Err(_) => return,
        };
        dropped_total = dropped_total.saturating_add(dropped);
        let now_ms = core.now_ms();
        if dropped > 0 {
            heard_ms = now_ms;
        }
        progress.check(stream);
        if progress.queued() == 0 {
            taken_ms.get_or_insert(now_ms);
        }
        let deadline_ms = match taken_ms {
            None => progress.since_ms(stream).saturating_add(patience_ms),
            Some(taken_ms) if core.is_draining() && has_sent_little(stream) => taken_ms + LINGER_STOPPING_MS,
            Some(taken_ms) => (heard_ms.max(taken_ms) + SILENCE_MS_MAX).min(taken_ms + LINGER_MS),
        };
        if now_ms >= deadline_ms {
            return;
        }
        if dropped >= TURN_BYTES_MAX {
            if dropped_total > UNPACED_BYTES_MAX {
                core.sleep(TURN_PAUSE_MS).await
            } else {
                core.yield_now().await
            }
            continue;
        }
        // An expired deadline is handled above.
        let _ = stream.readable(deadline_ms.min(now_ms + CHECK_INTERVAL_MS)).await;
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
