//! A range of a buffer that may move.

/// A range of bytes in some buffer, by offset, so that the buffer may move or grow. Offsets have 32 bits, far
/// more than any limit of a head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    at: u32,
    len: u32,
}

impl Span {
    /// The empty span at offset 0.
    pub const EMPTY: Span = Span { at: 0, len: 0 };

    /// The span `start..end`. Both must fit 32 bits and `start <= end`, which the head limits guarantee.
    #[must_use]
    pub const fn new(start: usize, end: usize) -> Span {
        debug_assert!(start <= end && end <= u32::MAX as usize);
        Span { at: start as u32, len: (end - start) as u32 }
    }

    /// The bytes of this span in `buffer`, which must be the buffer that it refers to.
    #[must_use]
    pub fn of(self, buffer: &[u8]) -> &[u8] {
        &buffer[self.start()..self.end()]
    }

    /// Offset of the first byte.
    #[must_use]
    pub const fn start(self) -> usize {
        self.at as usize
    }

    /// Offset after the last byte.
    #[must_use]
    pub const fn end(self) -> usize {
        self.at as usize + self.len as usize
    }

    /// Length in bytes.
    #[must_use]
    pub const fn len(self) -> usize {
        self.len as usize
    }

    /// Whether the span holds no byte.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }
}
