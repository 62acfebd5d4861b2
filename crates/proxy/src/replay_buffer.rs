//! A buffer that keeps the request body for a retry.

use net::SpillFile;

/// The request body, kept for a retry.
#[derive(Debug, Default)]
pub(crate) struct ReplayBuffer {
    pub(crate) bytes: Vec<u8>,
    /// The whole body, if it was read before a server was chosen and is too long for memory.
    pub(crate) file: Option<Box<SpillFile>>,
    /// Maximum bytes kept.
    pub(crate) bytes_max: usize,
    /// Whether the body exceeded `bytes_max`, so that nothing is kept.
    pub(crate) has_overflowed: bool,
    /// Whether the client has sent the whole body.
    pub(crate) ended: bool,
}

impl ReplayBuffer {
    /// Creates a buffer of at most `bytes_max` bytes.
    pub(crate) fn new(bytes_max: usize) -> ReplayBuffer {
        ReplayBuffer { bytes_max, ..ReplayBuffer::default() }
    }

    /// Whether another attempt can send the body from its beginning.
    pub(crate) fn is_whole(&self) -> bool {
        !self.has_overflowed
    }

    /// Returns the length of the body if the client has sent all of it and all of it is kept.
    pub(crate) fn length(&self) -> Option<u64> {
        let stored = self.file.as_ref().map_or(0, |file| file.len());
        (self.ended && !self.has_overflowed).then_some(stored + self.bytes.len() as u64)
    }

    /// Appends bytes that were read before a server was chosen; the caller limits them.
    pub(crate) fn append_unlimited(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Marks the body as completely received.
    pub(crate) fn end(&mut self) {
        self.ended = true;
    }

    /// Appends a piece of the body. If the body exceeds `bytes_max`, discards all of it.
    pub(crate) fn append(&mut self, bytes: &[u8]) {
        if self.bytes.len() + bytes.len() > self.bytes_max {
            self.has_overflowed = true;
            self.bytes = Vec::new();
        }
        if !self.has_overflowed {
            self.bytes.extend_from_slice(bytes);
        }
    }
}
