//! FastCGI 1.0, the web server's side: reading and writing records. One request at a time per connection,
//! because applications do not support multiplexing.

use crate::variables::Variables;

/// Length of a record header in bytes.
const HEADER_BYTES: usize = 8;
/// Maximum content of one record in bytes: a multiple of 8, so that no padding is needed.
const CONTENT_BYTES_MAX: usize = 65_528;
const VERSION: u8 = 1;
/// The id of the only request on a connection.
const REQUEST_ID: u16 = 1;
const RESPONDER: u16 = 1;
const KEEP_CONNECTION: u8 = 1;
/// Length of the content of an END_REQUEST record in bytes.
const END_BYTES: usize = 8;

const BEGIN_REQUEST: u8 = 1;
const END_REQUEST: u8 = 3;
const PARAMS: u8 = 4;
const STDIN: u8 = 5;
const STDOUT: u8 = 6;
const STDERR: u8 = 7;

/// Writes the start of a request: its variables. `keep` asks the application to keep the connection open
/// afterwards.
pub fn begin(out: &mut Vec<u8>, variables: &Variables, keep_connection: bool) {
    header(out, BEGIN_REQUEST, END_BYTES);
    out.extend_from_slice(&RESPONDER.to_be_bytes());
    out.extend_from_slice(&[if keep_connection { KEEP_CONNECTION } else { 0 }, 0, 0, 0, 0, 0]);
    for part in variables.block().chunks(CONTENT_BYTES_MAX) {
        header(out, PARAMS, part.len());
        out.extend_from_slice(part);
    }
    header(out, PARAMS, 0);
}

/// Writes the header of a record of the body, and returns the number of the `len` bytes that must follow it.
/// `len` must not be 0.
pub fn body_header(out: &mut Vec<u8>, len: usize) -> usize {
    let len = len.min(CONTENT_BYTES_MAX);
    header(out, STDIN, len);
    len
}

/// Writes the end of the body.
pub fn end_body(out: &mut Vec<u8>) {
    header(out, STDIN, 0);
}

fn header(out: &mut Vec<u8>, kind: u8, len: usize) {
    let [id_high, id_low] = REQUEST_ID.to_be_bytes();
    let [len_high, len_low] = u16::try_from(len).expect("a record's content is short").to_be_bytes();
    out.extend_from_slice(&[VERSION, kind, id_high, id_low, len_high, len_low, 0, 0]);
}

/// The next part of the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordStep {
    /// More bytes are needed.
    NeedMore,
    /// This many bytes of the response follow.
    Output(usize),
    /// This many bytes of error messages follow.
    Errors(usize),
    /// The request has completed successfully; nothing of it follows.
    End,
    /// The application is overloaded and has not processed the request.
    Overloaded,
}

/// Reads the records of a response. Content is not copied: the caller reads it from its own buffer.
#[derive(Debug, Default)]
pub struct FastCgiReader {
    /// A header, or the content of an END_REQUEST record, as far as received.
    gathered: [u8; HEADER_BYTES],
    gathered_len: usize,
    /// The type of the record being read; 0 while reading a header.
    kind: u8,
    content_left: usize,
    padding_left: usize,
    output_ended: bool,
    errors_ended: bool,
    /// The final step, once the request has ended.
    ended: Option<RecordStep>,
}

impl FastCgiReader {
    /// Processes bytes, and returns the number of bytes consumed and the step. The bytes of
    /// [`RecordStep::Output`] and [`RecordStep::Errors`] follow; the caller consumes them.
    ///
    /// # Errors
    /// The reason that the bytes are not records of a response to the request.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(usize, RecordStep), &'static str> {
        if let Some(ended) = self.ended {
            return Ok((0, ended));
        }
        let mut at = 0;
        loop {
            let rest = &bytes[at..];
            if self.kind == 0 && self.padding_left > 0 {
                let skipped = self.padding_left.min(rest.len());
                self.padding_left -= skipped;
                at += skipped;
            } else if self.kind == 0 || self.kind == END_REQUEST {
                at += self.gather(rest);
                if self.gathered_len == HEADER_BYTES {
                    self.gathered_len = 0;
                    match self.kind {
                        0 => self.begin_record()?,
                        _ => return self.end().map(|step| (at, step)),
                    }
                    continue;
                }
            } else if !rest.is_empty() {
                let len = self.content_left.min(rest.len());
                self.content_left -= len;
                let step =
                    if self.kind == STDOUT { RecordStep::Output(len) } else { RecordStep::Errors(len) };
                if self.content_left == 0 {
                    self.kind = 0;
                }
                return Ok((at, step));
            }
            if at == bytes.len() {
                return Ok((at, RecordStep::NeedMore));
            }
        }
    }

    fn gather(&mut self, bytes: &[u8]) -> usize {
        let len = bytes.len().min(HEADER_BYTES - self.gathered_len);
        self.gathered[self.gathered_len..][..len].copy_from_slice(&bytes[..len]);
        self.gathered_len += len;
        len
    }

    fn begin_record(&mut self) -> Result<(), &'static str> {
        let [version, kind, id_high, id_low, len_high, len_low, padding, _] = self.gathered;
        if version != VERSION {
            return Err("the upstream does not speak FastCGI 1");
        }
        if u16::from_be_bytes([id_high, id_low]) != REQUEST_ID {
            return Err("the upstream sends FastCGI records of another request");
        }
        self.content_left = usize::from(u16::from_be_bytes([len_high, len_low]));
        self.padding_left = usize::from(padding);
        let ended = match kind {
            STDOUT => &mut self.output_ended,
            STDERR => &mut self.errors_ended,
            END_REQUEST if self.content_left == END_BYTES => {
                self.kind = kind;
                return Ok(());
            }
            END_REQUEST => return Err("the upstream ends a FastCGI request with a record of another length"),
            _ => return Err("the upstream sends a FastCGI record of a kind that no response has"),
        };
        if *ended {
            return Err("the upstream sends FastCGI records of a stream that it has ended");
        }
        match self.content_left {
            // A record without content ends its stream.
            0 => *ended = true,
            _ => self.kind = kind,
        }
        Ok(())
    }

    fn end(&mut self) -> Result<RecordStep, &'static str> {
        // The application's exit status is irrelevant to a client; the protocol status is the fifth byte.
        let step = match self.gathered[4] {
            0 => RecordStep::End,
            2 => RecordStep::Overloaded,
            1 => return Err("the upstream takes no FastCGI request beside others on a connection"),
            3 => return Err("the upstream is no FastCGI responder"),
            _ => return Err("the upstream ends a FastCGI request with a status that there is not"),
        };
        self.kind = 0;
        self.ended = Some(step);
        Ok(step)
    }

    /// Whether the last record is complete, including its padding.
    #[must_use]
    pub fn is_record_complete(&self) -> bool {
        self.ended.is_some() && self.padding_left == 0
    }

    /// Skips the padding of the last record, and returns the number of bytes skipped.
    pub fn skip_padding(&mut self, bytes: &[u8]) -> usize {
        let skipped = self.padding_left.min(bytes.len());
        self.padding_left -= skipped;
        skipped
    }
}

#[cfg(test)]
mod tests;
