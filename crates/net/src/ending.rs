//! The end of a connection, whatever it has carried.
//!
//! A socket that is closed before its peer is done is reset by the kernel at the peer's next byte, and what the peer has not read is lost.
//! So this side announces its end and closes its sending side first. Then it reads, and drops, what the peer still sends.

use crate::fault::Fault;
use crate::link::Link;
use crate::progress::SendProgress;
use crate::stream::Stream;

/// How long a peer that has taken everything may be silent before its connection is closed.
const SILENT_MS: u64 = 2_000;
/// How long it is listened to at most once it has taken everything, however much it sends.
const LINGER_MS: u64 = 30_000;
/// The same in a server that stops, for a connection on which little was sent: its client has surely read that.
const LINGER_STOPPING_MS: u64 = 1_000;
/// Bytes that a client reads at once. Of more, its kernel may have taken what its program has not read yet.
const LITTLE_BYTES: u32 = 64 * 1024;
/// How often the kernel is asked whether it has taken everything, and whether the server stops.
const LOOK_MS: u64 = 500;
/// Bytes dropped before other connections get their turn.
const TURN_BYTES_MAX: usize = 256 * 1024;
/// Bytes dropped as fast as they come: an upload that its sender does not break off. A peer that sends more is read in turns with pauses,
/// at most 26 MB/s, so that it costs little CPU.
const FREE_BYTES_MAX: usize = 4 << 20;
const TURN_PAUSE_MS: u64 = 10;

/// Whether nothing was sent on a connection that its client may read slowly.
pub(crate) fn has_sent_little(stream: &Stream) -> bool {
    stream.sent() <= LITTLE_BYTES
}

/// Sends what the link holds, and TLS's announcement that nothing follows. False where the peer does not take it.
pub(crate) async fn announce(link: &mut Link, patience_ms: u64) -> bool {
    link.announce_end();
    let mut progress = SendProgress::default();
    loop {
        match link.try_flush() {
            Ok(true) => return true,
            Ok(false) if progress.room(link.stream(), patience_ms).await.is_ok() => {}
            Ok(false) | Err(_) => return false,
        }
    }
}

/// Ends a connection whose peer may still send: returns when the peer has taken everything and has closed too, or has taken nothing for
/// `patience_ms`, or has had its time, or has sent `bytes_max` meanwhile. The connection is to be dropped next.
pub(crate) async fn linger(link: &mut Link, patience_ms: u64, bytes_max: usize) {
    if !announce(link, patience_ms).await {
        return;
    }
    let (stream, core) = (link.stream(), link.core());
    // TLS is not asked: nobody reads what it would decrypt.
    stream.shutdown_write();
    let (mut progress, mut heard_ms, mut taken_ms) = (SendProgress::default(), core.now_ms(), None);
    let mut dropped_total = 0;
    while dropped_total < bytes_max {
        let dropped = match drop_input(stream) {
            Ok(Some(dropped)) => dropped,
            Ok(None) | Err(_) => return,
        };
        dropped_total = dropped_total.saturating_add(dropped);
        let now_ms = core.now_ms();
        if dropped > 0 {
            heard_ms = now_ms;
        }
        progress.look(stream);
        if progress.queued() == 0 {
            taken_ms.get_or_insert(now_ms);
        }
        let deadline_ms = match taken_ms {
            None => progress.since_ms(stream).saturating_add(patience_ms),
            Some(taken_ms) if core.is_draining() && has_sent_little(stream) => taken_ms + LINGER_STOPPING_MS,
            Some(taken_ms) => (heard_ms.max(taken_ms) + SILENT_MS).min(taken_ms + LINGER_MS),
        };
        if now_ms >= deadline_ms {
            return;
        }
        if dropped >= TURN_BYTES_MAX {
            match dropped_total > FREE_BYTES_MAX {
                true => core.sleep(TURN_PAUSE_MS).await,
                false => core.yield_now().await,
            }
            continue;
        }
        // A deadline that has passed is seen above.
        let _ = stream.readable(deadline_ms.min(now_ms + LOOK_MS)).await;
    }
}

/// Reads what is there, up to [`TURN_BYTES_MAX`]: how many bytes; `None` at the end. The buffer is on the stack for one call, not in a
/// connection's future.
#[inline(never)]
fn drop_input(stream: &Stream) -> Result<Option<usize>, Fault> {
    let (mut buffer, mut dropped) = ([0; 16 * 1024], 0);
    while dropped < TURN_BYTES_MAX {
        match stream.try_read(&mut buffer)? {
            Some(0) => return Ok(None),
            Some(len) => dropped += len,
            None => break,
        }
    }
    Ok(Some(dropped))
}
