//! Flow control (RFC 9113 section 5.2).

use crate::frame::MAX_31_BITS;

/// A receive window: the credit of the peer, and the credit to be announced.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiveWindow {
    /// The window if nothing is unread.
    size: u32,
    /// Bytes that the peer may send now. Negative after the window was reduced.
    available: i64,
    /// Bytes that were consumed but not yet announced to the peer.
    unannounced: u32,
    /// Bytes in flight or unread beyond a reduced window: they are not replenished.
    withheld: u32,
}

impl ReceiveWindow {
    /// Creates a window of which `left` bytes are announced.
    pub(crate) const fn new(size: u32, left: u32) -> ReceiveWindow {
        ReceiveWindow { size, available: left as i64, unannounced: 0, withheld: 0 }
    }

    /// Counts received bytes. Returns false if they exceed the window.
    pub(crate) fn take(&mut self, len: usize) -> bool {
        let fits = len as i64 <= self.available;
        self.available -= len as i64;
        fits
    }

    /// Returns consumed bytes to the window; the peer is notified by [`ReceiveWindow::update`].
    pub(crate) fn return_bytes(&mut self, len: usize) {
        let withheld = (len as u32).min(self.withheld);
        self.withheld -= withheld;
        self.unannounced = self.unannounced.saturating_add(len as u32 - withheld).min(MAX_31_BITS);
    }

    /// The window if nothing is unread.
    pub(crate) fn size(&self) -> u32 {
        self.size
    }

    /// The maximum number of unread bytes: more than the size for a while after the window was reduced.
    pub(crate) fn unread_max(&self) -> u32 {
        self.size.saturating_add(self.withheld)
    }

    /// Reduces the window: credit already granted stays valid and is not replenished.
    pub(crate) fn shrink(&mut self, size: u32) {
        let less = self.size.saturating_sub(size);
        self.size -= less;
        let from_owed = less.min(self.unannounced);
        self.unannounced -= from_owed;
        self.withheld = self.withheld.saturating_add(less - from_owed);
    }

    /// Enlarges the window.
    pub(crate) fn grow(&mut self, size: u32) {
        let size = size.min(MAX_31_BITS);
        self.return_bytes(size.saturating_sub(self.size) as usize);
        self.size = self.size.max(size);
    }

    /// The increment that is due: once half of the window is owed, so that one frame covers many reads.
    pub(crate) fn due_increment(&mut self) -> Option<u32> {
        if self.unannounced < self.size / 2 { None } else { self.full_increment() }
    }

    /// The increment of all owed bytes.
    pub(crate) fn full_increment(&mut self) -> Option<u32> {
        let room = i64::from(MAX_31_BITS) - self.available;
        let increment = i64::from(self.unannounced).min(room) as u32;
        (self.available, self.unannounced) =
            (self.available + i64::from(increment), self.unannounced - increment);
        (increment > 0).then_some(increment)
    }
}

/// Payload of the ping that measures the bytes consumed until its answer arrives.
pub(crate) const GROWTH_PING: [u8; 8] = *b"windows?";
/// Bytes consumed before the first measurement, so that connections with small messages are not measured.
const FIRST_MEASUREMENT_BYTES: usize = 32 * 1024;

/// Bytes consumed since a ping was sent, or since the answer to the preceding one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GrowthProbe {
    /// Whether the ping follows the answer to another one.
    pub(crate) is_second: bool,
    /// The measured stream.
    pub(crate) stream: u32,
    /// Bytes of content consumed on that stream.
    pub(crate) stream_bytes: usize,
    /// Bytes consumed on all streams.
    pub(crate) connection_bytes: usize,
}

/// Growth of windows with the measured rate. Between a ping and its answer, a peer limited by a window can
/// send that window once: if at least two thirds of a window were consumed meanwhile, the window is the
/// bottleneck and is enlarged to twice the bytes consumed. Many clients answer a ping before they send the
/// data allowed by the preceding window update. Therefore, if less was consumed before an answer, a second
/// ping follows, and the bytes until its answer count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowGrowth {
    /// Bytes by which the connection's window may grow, and the windows of all streams together.
    pub(crate) bytes_max: u32,
    /// Bytes by which the stream windows have grown.
    pub(crate) stream_bytes_grown: u32,
    pub(crate) probe: Option<GrowthProbe>,
    /// Bytes to be consumed before the next ping.
    pub(crate) wait_bytes: usize,
}

impl Default for WindowGrowth {
    fn default() -> WindowGrowth {
        WindowGrowth { bytes_max: 0, stream_bytes_grown: 0, probe: None, wait_bytes: FIRST_MEASUREMENT_BYTES }
    }
}

impl WindowGrowth {
    /// The size of a window after `consumed` bytes in one round trip; `None` if the window is large enough.
    pub(crate) fn target(size: u32, consumed: usize) -> Option<u32> {
        (consumed >= size as usize / 3 * 2).then(|| (consumed * 2).min(MAX_31_BITS as usize) as u32)
    }
}

/// The send window. Negative after the peer has reduced its initial window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendWindow(pub(crate) i64);

impl SendWindow {
    /// Bytes that may be sent now.
    pub(crate) fn available(self) -> usize {
        self.0.max(0) as usize
    }

    /// Adds a window increment.
    pub(crate) fn increase(&mut self, increment: i64) -> WindowIncrease {
        let before = self.0;
        self.0 += increment;
        match self.0 {
            now if now > i64::from(MAX_31_BITS) => WindowIncrease::TooLarge,
            now if before <= 0 && now > 0 => WindowIncrease::HasRoomAgain,
            _ => WindowIncrease::Unchanged,
        }
    }
}

/// Effect of a window increment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WindowIncrease {
    /// The window would exceed its maximum.
    TooLarge,
    /// The window was exhausted, and has room again.
    HasRoomAgain,
    /// The window is exhausted still, or had room before.
    Unchanged,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_update_is_due_once_half_the_window_is_consumed() {
        let mut window = ReceiveWindow::new(100, 100);
        assert!(window.take(60));
        window.return_bytes(49);
        assert_eq!(window.due_increment(), None);
        window.return_bytes(11);
        assert_eq!(window.due_increment(), Some(60));
        assert!(window.take(100) && !window.take(1));
        let mut window = ReceiveWindow::new(100, 100);
        window.grow(300);
        assert_eq!(window.due_increment(), Some(200));
        assert!(window.take(300) && !window.take(1));
        // Reduced again: bytes consumed beyond the new size are not replenished.
        window.available = 0;
        window.shrink(100);
        assert_eq!((window.size(), window.unread_max()), (100, 300));
        window.return_bytes(200);
        assert_eq!((window.unread_max(), window.full_increment()), (100, None));
        window.return_bytes(100);
        assert_eq!(window.due_increment(), Some(100));
        window.return_bytes(10);
        window.shrink(50);
        window.grow(100);
        assert_eq!((window.available, window.unannounced, window.withheld), (100, 10, 0));
    }

    #[test]
    fn opening_send_window_is_reported_once() {
        let mut window = SendWindow(0);
        let (opened, same) = (WindowIncrease::HasRoomAgain, WindowIncrease::Unchanged);
        assert_eq!((window.increase(5), window.increase(5)), (opened, same));
        let mut window = SendWindow(-10);
        assert_eq!((window.increase(10), window.increase(1)), (same, opened));
        assert_eq!(window.increase(i64::from(MAX_31_BITS)), WindowIncrease::TooLarge);
    }
}
