//! The law of the machine: where the bytes of streams are cut never matters, and what they make it hold is
//! bounded.

use http3::error::ErrorScope;
use http3::{Connection, Http3Error, MessageEvent, MessageStream, Options, OwnStream, UnidirectionalStream};

/// Number of request streams, with the identifiers 0, 4 and so on.
const REQUESTS: usize = 5;
/// Memory that a connection of this law may hold, in bytes.
const HELD_BYTES_MAX: usize = 512 * 1024;

/// Interprets the input as records: the number of a stream (with 8 added for its last record), a length, and
/// bytes that the stream receives. A server reads them whole and byte by byte.
pub(crate) fn http3(input: &[u8]) {
    let mut whole = Run::new().all(input, usize::MAX);
    let mut single = Run::new().all(input, 1);
    if is_closed(&whole) && is_closed(&single) {
        // Entries before an invalid instruction unblock requests only if they are received apart from it.
        let len = (whole.len() - 1).min(single.len() - 1);
        whole.truncate(len);
        single.truncate(len);
    }
    assert_eq!(whole, single, "whole and byte by byte");
}

fn is_closed(trace: &[String]) -> bool {
    trace.last().is_some_and(|last| last.starts_with("closed: "))
}

struct Run {
    connection: Connection,
    unidirectional: [UnidirectionalStream; 3],
    requests: Vec<Request>,
    trace: Vec<String>,
}

struct Request {
    stream: MessageStream,
    /// Bytes that were received while the stream was blocked.
    waiting: Vec<u8>,
    has_end: bool,
    is_over: bool,
    content: Vec<u8>,
}

impl Run {
    fn new() -> Run {
        let mut options = Options { connect_protocol: true, ..Options::default() };
        options.head.head_bytes_max = 2_000;
        options.head.fields_max = 20;
        let request = |number: usize| Request {
            stream: MessageStream::new(number as u64 * 4),
            waiting: Vec::new(),
            has_end: false,
            is_over: false,
            content: Vec::new(),
        };
        Run {
            connection: Connection::server(options),
            unidirectional: Default::default(),
            requests: (0..REQUESTS).map(request).collect(),
            trace: Vec::new(),
        }
    }

    /// Returns what happened, up to the first error of the connection.
    fn all(mut self, input: &[u8], piece: usize) -> Vec<String> {
        let mut rest = input;
        while let [which, len, after @ ..] = rest {
            let (record, after) = after.split_at(after.len().min(usize::from(*len)));
            rest = after;
            let is_last = which & 8 != 0;
            let number = usize::from(which & 7);
            let pieces = record.chunks(piece.min(record.len().max(1)));
            let count = pieces.len();
            let mut done = if record.is_empty() { self.receive(number, b"", is_last) } else { Ok(()) };
            for (at, bytes) in pieces.enumerate() {
                done = done.and_then(|()| self.receive(number, bytes, is_last && at + 1 == count));
            }
            if let Err(error) = done {
                self.trace.push(format!("closed: {} {}", error.code.text(), error.reason));
                break;
            }
            let held: usize = self.requests.iter().map(|request| request.stream.held_bytes()).sum();
            let own = self.connection.held_bytes();
            assert!(own + held < HELD_BYTES_MAX, "{own} and {held} bytes are held");
            OwnStream::ALL.into_iter().for_each(|own| self.connection.output(own).clear());
        }
        self.trace
    }

    fn receive(&mut self, number: usize, bytes: &[u8], is_last: bool) -> Result<(), Http3Error> {
        let Some(request) = number.checked_sub(3) else {
            return self.receive_unidirectional(number, bytes, is_last);
        };
        let request = &mut self.requests[request];
        if request.has_end || request.is_over {
            return Ok(());
        }
        request.waiting.extend_from_slice(bytes);
        request.has_end = is_last;
        self.advance(number - 3)
    }

    fn receive_unidirectional(
        &mut self,
        number: usize,
        bytes: &[u8],
        is_last: bool,
    ) -> Result<(), Http3Error> {
        let mut at = 0;
        loop {
            let stream = &mut self.unidirectional[number];
            let (consumed, event) = self.connection.feed_unidirectional(stream, &bytes[at..], is_last)?;
            at += consumed;
            match event {
                Some(http3::ConnectionEvent::Unblocked) => {
                    (0..REQUESTS).try_for_each(|request| self.advance(request))?;
                }
                Some(http3::ConnectionEvent::StopReading(_)) | None => {}
                Some(event) => self.trace.push(format!("{event:?}")),
            }
            if at == bytes.len() {
                return Ok(());
            }
        }
    }

    /// Reads what a request stream has received, unless it is blocked.
    fn advance(&mut self, number: usize) -> Result<(), Http3Error> {
        let request = &mut self.requests[number];
        while !request.is_over {
            let is_retry = request.stream.is_blocked();
            let ended = request.has_end && request.waiting.is_empty();
            let fed = if is_retry {
                self.connection.retry(&mut request.stream, ended).map(|event| (0, event))
            } else {
                self.connection.feed(&mut request.stream, &request.waiting, request.has_end)
            };
            let (consumed, event) = match fed {
                Ok(fed) => fed,
                Err(error) if error.scope == ErrorScope::Connection => return Err(error),
                Err(error) => {
                    self.trace.push(format!("{number} reset: {} {}", error.code.text(), error.reason));
                    request.is_over = true;
                    self.connection.abandon(&mut request.stream)?;
                    break;
                }
            };
            match event {
                MessageEvent::Data(span) => request.content.extend_from_slice(span.of(&request.waiting)),
                MessageEvent::Head { .. } => {
                    let connection = &self.connection;
                    let count = connection.head.fields.len();
                    let bytes = connection.head_bytes().escape_ascii();
                    self.trace.push(format!("{number} head: {:?} {count} {bytes}", connection.head.method));
                }
                MessageEvent::Refused(reject) => {
                    self.trace.push(format!("{number} refused: {}", reject.reason))
                }
                MessageEvent::Trailers => self.trace.push(format!("{number} trailers")),
                MessageEvent::NeedMore | MessageEvent::Blocked => {}
            }
            request.waiting.drain(..consumed);
            if event == MessageEvent::Blocked {
                break;
            }
            if request.waiting.is_empty() {
                if request.has_end {
                    request.is_over = true;
                    let content = request.content.escape_ascii();
                    match self.connection.finish(&request.stream) {
                        Ok(()) => self.trace.push(format!("{number} ends: {content}")),
                        Err(error) if error.scope == ErrorScope::Connection => return Err(error),
                        Err(error) => self.trace.push(format!("{number} ends: {}", error.reason)),
                    }
                }
                break;
            }
        }
        Ok(())
    }
}
