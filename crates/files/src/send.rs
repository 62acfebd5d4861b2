//! Sending of files without blocking a core on a disk.

use std::cell::Cell;
use std::fs::File;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use net::offload::BlockingKind;
use net::{Exchange, Fault};
use rustix::fs::Advice;
use times::{Millis, Moment};

use crate::entry::Variant;
use crate::open::read_cached;
use crate::tree::Content;

/// Bytes of a file that are checked, and if necessary read ahead, at a time.
const WINDOW_BYTES: u64 = 2 * 1024 * 1024;
/// Interval at which the page cache is probed, in bytes: the size of one read-ahead of the kernel.
const STRIDE_BYTES: u64 = 128 * 1024;
/// Time for which a file that was in memory is assumed to stay there.
const WARM_TIME: Millis = Millis(1000);
/// Bytes that a thread reads at a time to load a window into memory.
const SCRATCH_BYTES: usize = 256 * 1024;

/// Writes a range of a representation as the next part of the response's body.
///
/// # Errors
/// See [`Exchange::write`] and [`Exchange::write_file`].
pub async fn send(exchange: &mut Exchange<'_>, variant: &Variant, range: Range<u64>) -> Result<(), Fault> {
    match &variant.content {
        Content::Memory(bytes) => exchange.write(&bytes[range.start as usize..range.end as usize]).await,
        Content::File(file) => send_file(exchange, file, range, &variant.warm_until).await,
    }
}

async fn send_file(
    exchange: &mut Exchange<'_>,
    file: &Arc<File>,
    range: Range<u64>,
    warm_until: &Cell<Moment>,
) -> Result<(), Fault> {
    let now = exchange.core().now();
    if warm_until.get() > now {
        return exchange.write_file(file, range).await;
    }
    let mut window = range.start..range.start;
    while window.end < range.end {
        window = window.end..range.end.min(window.end + WINDOW_BYTES);
        if is_cached(file, &window) {
            // The beginning of a longer file may have been evicted from the page cache before its end is
            // sent.
            if window == range && range.start == 0 {
                warm_until.set(now + WARM_TIME);
            }
        } else {
            // Send the data written so far before waiting for the disk.
            exchange.flush().await?;
            let file = file.clone();
            let window = window.clone();
            exchange.core().offload_as(BlockingKind::Files, move || read_ahead(&file, window)).await;
        }
        exchange.write_file(file, window.clone()).await?;
    }
    Ok(())
}

/// Whether a window is probably in memory: reads one byte of each stride, and the last byte.
fn is_cached(file: &File, window: &Range<u64>) -> bool {
    let mut byte = [0];
    let last = window.end.saturating_sub(1);
    // Reading past the end of a truncated file returns 0; sending the file reports that error.
    let strides = window.clone().step_by(STRIDE_BYTES as usize);
    strides.chain([last]).all(|at| read_cached(file, &mut byte, at).is_ok())
}

/// Reads a window into memory and makes the kernel start reading the next one.
fn read_ahead(file: &File, window: Range<u64>) {
    // Errors are ignored, because they occur again when the file is sent.
    let _ = rustix::fs::fadvise(file, window.start, NonZeroU64::new(WINDOW_BYTES * 2), Advice::WillNeed);
    let mut scratch = vec![0; SCRATCH_BYTES.min((window.end - window.start) as usize)];
    let mut at = window.start;
    while at < window.end {
        match file.read_at(&mut scratch, at) {
            Ok(0) | Err(_) => return,
            Ok(read) => at += read as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::ScratchFolder;

    #[test]
    fn recently_written_file_is_cached() {
        let scratch = ScratchFolder::new();
        scratch.write("a", vec![1; 3 * STRIDE_BYTES as usize + 1]);
        let file = File::open(scratch.path("a")).unwrap();
        for window in [0..1, 0..3 * STRIDE_BYTES + 1, 5..STRIDE_BYTES, 0..10 * STRIDE_BYTES] {
            read_ahead(&file, window.clone());
            assert!(is_cached(&file, &window), "{window:?}");
        }
    }

    #[test]
    fn unreadable_file_is_not_cached() {
        let scratch = ScratchFolder::new();
        let folder = File::open(scratch.path("root")).unwrap();
        read_ahead(&folder, 0..10);
        assert!(!is_cached(&folder, &(0..10)));
    }
}
