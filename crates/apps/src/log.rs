//! What applications and their processes have to say.

use std::sync::Arc;

/// How urgent a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// Something failed.
    Error,
    /// Something is odd.
    Warn,
    /// Something happened.
    Info,
    /// The application's own output.
    Output,
}

/// One line for the log.
#[derive(Clone, Copy, Debug)]
pub struct Line<'l> {
    /// The application's name.
    pub app: &'l str,
    /// Whose output it is; `None` for the server's own words about the application.
    pub pid: Option<u32>,
    /// How urgent.
    pub urgency: Urgency,
    /// The text, without a line end; of an application it may be any bytes.
    pub text: &'l [u8],
}

/// Takes lines, from any thread; never blocks for long.
pub type Log = Arc<dyn Fn(&Line<'_>) + Send + Sync>;

/// An output that is not at a line's end yet is cut into lines of this size.
const LINE_BYTES_MAX: usize = 16 * 1024;

/// The server's own words about an application.
#[derive(Clone)]
pub(crate) struct Teller {
    pub(crate) app: Arc<str>,
    pub(crate) log: Log,
}

impl Teller {
    pub(crate) fn tell(&self, urgency: Urgency, text: &str) {
        (self.log)(&Line { app: &self.app, pid: None, urgency, text: text.as_bytes() });
    }

    pub(crate) fn output(&self, pid: Option<u32>, text: &[u8]) {
        (self.log)(&Line { app: &self.app, pid, urgency: Urgency::Output, text });
    }
}

/// Bytes of a process's output, made into lines.
#[derive(Debug, Default)]
pub(crate) struct Lines(Vec<u8>);

impl Lines {
    /// Adds bytes; `each` is called for every line that is whole.
    pub(crate) fn feed(&mut self, bytes: &[u8], mut each: impl FnMut(&[u8])) {
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            match piece.strip_suffix(b"\n") {
                Some(end) if self.0.is_empty() => each(end),
                Some(end) => {
                    self.0.extend_from_slice(end);
                    each(&self.0);
                    self.0.clear();
                }
                None => self.0.extend_from_slice(piece),
            }
            while self.0.len() >= LINE_BYTES_MAX {
                each(&self.0[..LINE_BYTES_MAX]);
                self.0.drain(..LINE_BYTES_MAX);
            }
        }
    }

    /// What is left when nothing more comes.
    pub(crate) fn finish(&mut self, mut each: impl FnMut(&[u8])) {
        if !self.0.is_empty() {
            each(&std::mem::take(&mut self.0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_wherever_the_bytes_are_cut() {
        let text = b"one\n\ntwo three\nlast";
        for cut in 0..=text.len() {
            let (mut lines, mut seen) = (Lines::default(), Vec::new());
            for piece in [&text[..cut], &text[cut..]] {
                lines.feed(piece, |line| seen.push(line.to_vec()));
            }
            lines.finish(|line| seen.push(line.to_vec()));
            assert_eq!(seen, [&b"one"[..], b"", b"two three", b"last"], "cut at {cut}");
        }
    }

    #[test]
    fn a_line_without_end_does_not_grow_without_end() {
        let (mut lines, mut bytes) = (Lines::default(), 0);
        for _ in 0..100 {
            lines.feed(&[b'x'; 1000], |line| bytes += line.len());
        }
        assert!(lines.0.len() < LINE_BYTES_MAX);
        assert_eq!(bytes + lines.0.len(), 100_000);
    }
}
