//! Content of a request body kept for another attempt.

/// Content of a request body kept for another attempt.
#[derive(Debug, Default)]
pub(crate) struct ReplayBuffer {
    pub(crate) bytes: Vec<u8>,
    /// Bytes that may be kept.
    pub(crate) bytes_max: usize,
    /// More came than may be kept.
    pub(crate) lost: bool,
    /// The client has sent all of it.
    pub(crate) ended: bool,
}

impl ReplayBuffer {
    /// Keeps at most so many bytes.
    pub(crate) fn new(bytes_max: usize) -> ReplayBuffer {
        ReplayBuffer { bytes_max, ..ReplayBuffer::default() }
    }

    /// Whether another attempt can send the body from its beginning.
    pub(crate) fn is_whole(&self) -> bool {
        !self.lost
    }

    /// Takes what was read before a server was asked, which is little.
    pub(crate) fn take_in(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// All of the body is here.
    pub(crate) fn end(&mut self) {
        self.ended = true;
    }

    /// Another piece was read; of more than may be kept, nothing is.
    pub(crate) fn keep(&mut self, bytes: &[u8]) {
        if self.bytes.len() + bytes.len() > self.bytes_max {
            self.lost = true;
            self.bytes = Vec::new();
        }
        if !self.lost {
            self.bytes.extend_from_slice(bytes);
        }
    }
}
