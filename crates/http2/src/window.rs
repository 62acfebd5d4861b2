//! Flow control (RFC 9113 section 5.2).

use crate::frame::MAX_31_BITS;

/// What the peer may still send, and what it is owed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiveWindow {
    /// The window when nothing is unread.
    size: u32,
    /// Bytes that the peer may send now. Negative where the window was made smaller.
    left: i64,
    /// Bytes that were consumed and not yet announced to the peer.
    owed: u32,
}

impl ReceiveWindow {
    /// A window of which `left` is announced.
    pub(crate) const fn new(size: u32, left: u32) -> ReceiveWindow {
        ReceiveWindow { size, left: left as i64, owed: 0 }
    }

    /// Takes bytes that came. False where they are more than was allowed.
    pub(crate) fn take(&mut self, len: usize) -> bool {
        let fits = len as i64 <= self.left;
        self.left -= len as i64;
        fits
    }

    /// Gives back bytes that were consumed; the peer learns of them from [`ReceiveWindow::update`].
    pub(crate) fn give_back(&mut self, len: usize) {
        self.owed = self.owed.saturating_add(len as u32).min(MAX_31_BITS);
    }

    /// Makes the window larger.
    pub(crate) fn grow(&mut self, size: u32) {
        let size = size.min(MAX_31_BITS);
        self.give_back(size.saturating_sub(self.size) as usize);
        self.size = self.size.max(size);
    }

    /// The increment that is due: once half of the window is owed, so that one frame announces many reads.
    pub(crate) fn update(&mut self) -> Option<u32> {
        if self.owed < self.size / 2 { None } else { self.update_now() }
    }

    /// All that is owed.
    pub(crate) fn update_now(&mut self) -> Option<u32> {
        let room = i64::from(MAX_31_BITS) - self.left;
        let increment = i64::from(self.owed).min(room) as u32;
        (self.left, self.owed) = (self.left + i64::from(increment), self.owed - increment);
        (increment > 0).then_some(increment)
    }
}

/// What we may still send. Negative where the peer made its initial window smaller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendWindow(pub(crate) i64);

impl SendWindow {
    /// Bytes that may be sent now.
    pub(crate) fn left(self) -> usize {
        self.0.max(0) as usize
    }

    /// Takes an increment of the peer; `None` where the window would grow beyond its largest, else whether it was
    /// exhausted and is not any more.
    pub(crate) fn open(&mut self, increment: i64) -> Option<bool> {
        let before = self.0;
        self.0 += increment;
        (self.0 <= i64::from(MAX_31_BITS)).then_some(before <= 0 && self.0 > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_announced_by_halves() {
        let mut window = ReceiveWindow::new(100, 100);
        assert!(window.take(60));
        window.give_back(49);
        assert_eq!(window.update(), None);
        window.give_back(11);
        assert_eq!(window.update(), Some(60));
        assert!(window.take(100) && !window.take(1));
        let mut window = ReceiveWindow::new(100, 100);
        window.grow(300);
        assert_eq!(window.update(), Some(200));
        assert!(window.take(300) && !window.take(1));
    }

    #[test]
    fn a_window_that_opens_is_noticed_once() {
        let mut window = SendWindow(0);
        assert_eq!((window.open(5), window.open(5)), (Some(true), Some(false)));
        let mut window = SendWindow(-10);
        assert_eq!((window.open(10), window.open(1)), (Some(false), Some(true)));
        assert_eq!(window.open(i64::from(MAX_31_BITS)), None);
    }
}
