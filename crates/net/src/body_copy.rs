//! Copies of request bodies, made while the handler reads them.

/// Receiver of the copy: the whole body, or `None` if it is longer than the limit.
pub type BodyCopyCallback = Box<dyn FnOnce(Option<Vec<u8>>)>;

/// A copy in progress. Dropped without calling the receiver if the body does not end.
pub(crate) struct BodyCopy {
    bytes: Vec<u8>,
    bytes_max: usize,
    /// Remaining bytes if the length is known: the handler may stop reading before it sees the end.
    remaining_bytes: Option<u64>,
    callback: BodyCopyCallback,
}

impl BodyCopy {
    pub(crate) fn new(bytes_max: usize, announced: Option<u64>, copied: BodyCopyCallback) -> BodyCopy {
        BodyCopy { bytes: Vec::new(), bytes_max, remaining_bytes: announced, callback: copied }
    }

    /// Upper bound of the copy's size, in bytes.
    pub(crate) fn bytes_max(&self) -> usize {
        self.remaining_bytes
            .map_or(self.bytes_max, |left| self.bytes.len() + usize::try_from(left).unwrap_or(self.bytes_max))
    }

    /// Adds bytes that the handler has read; returns true if the copy is complete or has become too long.
    pub(crate) fn add(&mut self, piece: &[u8]) -> bool {
        let is_too_long = self.bytes.len() + piece.len() > self.bytes_max;
        if is_too_long {
            self.bytes_max = 0;
            self.bytes = Vec::new();
            return true;
        }
        self.bytes.extend_from_slice(piece);
        self.remaining_bytes = self.remaining_bytes.map(|left| left.saturating_sub(piece.len() as u64));
        self.remaining_bytes == Some(0)
    }

    /// Passes the copy to the receiver.
    pub(crate) fn finish(self) {
        let is_too_long = self.bytes_max == 0;
        (self.callback)((!is_too_long).then_some(self.bytes));
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;

    #[test]
    fn body_copy_is_delivered_only_within_its_size_limit() {
        let got = Rc::new(RefCell::new(Vec::new()));
        let copied = || -> BodyCopyCallback {
            let got = got.clone();
            Box::new(move |body| got.borrow_mut().push(body))
        };
        let mut copy = BodyCopy::new(8, Some(5), copied());
        assert!(!copy.add(b"ab") && copy.add(b"cde"));
        copy.finish();
        let mut copy = BodyCopy::new(8, None, copied());
        assert!(!copy.add(b"12345678") && copy.add(b"9"));
        copy.finish();
        drop(BodyCopy::new(8, None, copied()));
        assert_eq!(*got.borrow(), [Some(b"abcde".to_vec()), None]);
    }
}
