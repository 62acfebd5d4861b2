//! Drives a machine that is fed in pieces, and records its events.

use http2::{ConnectionError, ErrorCode, Event, Machine, Options, Priority};

pub(crate) type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// An event with the data it refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    Head { stream: u32, status: u16, fields: Pairs, ended: bool },
    Refused { stream: u32, status: u16 },
    Data { stream: u32, content: Vec<u8>, ended: bool },
    Trailers { stream: u32, fields: Pairs },
    Reset { stream: u32, code: ErrorCode },
    Aborted { stream: u32, code: ErrorCode, reason: &'static str },
    Writable { stream: u32 },
    Reprioritized { stream: u32, priority: Priority },
    Settings,
    GoAway { last_stream: u32, code: ErrorCode },
    Pong,
}

/// The reaction of the machine's user to events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Conduct {
    /// None: every stream stays open, and no content is consumed.
    Keeps,
    /// Consumes content; answers each request that has ended and releases its stream, and releases streams
    /// that were reset.
    Serves,
    /// Answers and releases each request as soon as its head is complete.
    Hurries,
}

/// A machine with its simulated user.
pub(crate) struct Driven {
    pub(crate) machine: Machine,
    pub(crate) conduct: Conduct,
    pub(crate) seen: Vec<Seen>,
    pub(crate) error: Option<ConnectionError>,
    /// Output of the machine.
    pub(crate) out: Vec<u8>,
    /// Bytes that were fed but not consumed.
    rest: Vec<u8>,
    pub(crate) now_ms: u64,
}

impl Driven {
    pub(crate) fn server(options: Options, conduct: Conduct) -> Driven {
        Driven::new(Machine::server(options), conduct)
    }

    pub(crate) fn client(options: Options) -> Driven {
        Driven::new(Machine::client(options), Conduct::Keeps)
    }

    fn new(machine: Machine, conduct: Conduct) -> Driven {
        Driven { machine, conduct, seen: vec![], error: None, out: vec![], rest: vec![], now_ms: 0 }
    }

    /// Feeds a piece after the unconsumed bytes of earlier ones.
    pub(crate) fn feed(&mut self, piece: &[u8]) -> &mut Driven {
        self.rest.extend_from_slice(piece);
        while self.error.is_none() {
            match self.machine.feed(&self.rest, self.now_ms) {
                Ok((consumed, event)) => {
                    assert!(consumed <= self.rest.len());
                    let is_done = event == Event::NeedMore;
                    assert!(is_done || consumed > 0, "an event comes from bytes");
                    self.take(event);
                    self.rest.drain(..consumed);
                    if is_done {
                        break;
                    }
                }
                Err(error) => {
                    self.error = Some(error);
                    assert_eq!(self.machine.feed(&self.rest, self.now_ms), Err(error), "an error stays");
                }
            }
        }
        self.machine.flush(&mut self.out);
        self
    }

    fn take(&mut self, event: Event) {
        let seen = match event {
            Event::NeedMore => return,
            Event::Head { stream, ended } => {
                let fields = self.fields();
                let status = self.machine.status.code();
                Seen::Head { stream, status, fields, ended }
            }
            Event::Refused { stream, reject } => Seen::Refused { stream, status: reject.status.code() },
            Event::Data { stream, data, ended } => {
                let content = data.of(&self.rest).to_vec();
                if self.conduct == Conduct::Serves {
                    self.machine.grant(stream, content.len());
                }
                Seen::Data { stream, content, ended }
            }
            Event::Trailers { stream } => {
                let fields =
                    self.machine.trailers.iter().map(|(name, value)| (name.into(), value.into())).collect();
                Seen::Trailers { stream, fields }
            }
            Event::Reset { stream, code } => Seen::Reset { stream, code },
            Event::Aborted { stream, code, reason } => Seen::Aborted { stream, code, reason },
            Event::Writable { stream } => Seen::Writable { stream },
            Event::Reprioritized { stream, priority } => Seen::Reprioritized { stream, priority },
            Event::Settings => Seen::Settings,
            Event::GoAway { last_stream, code } => Seen::GoAway { last_stream, code },
            Event::Pong { .. } => Seen::Pong,
        };
        self.act(event);
        self.remember(seen);
    }

    fn fields(&self) -> Pairs {
        let bytes = self.machine.head_bytes();
        let fields = self.machine.head.fields.iter();
        fields.map(|field| (field.name.of(bytes).to_vec(), field.value.of(bytes).to_vec())).collect()
    }

    fn act(&mut self, event: Event) {
        let is_ended = matches!(
            event,
            Event::Head { ended: true, .. } | Event::Data { ended: true, .. } | Event::Trailers { .. }
        );
        match (self.conduct, event) {
            (Conduct::Keeps, _) => {}
            (_, Event::Reset { stream, .. } | Event::Aborted { stream, .. }) => {
                self.machine.release(stream);
            }
            (_, Event::Refused { stream, .. }) | (Conduct::Hurries, Event::Head { stream, .. }) => {
                self.answer(stream);
            }
            (
                Conduct::Serves,
                Event::Head { stream, .. } | Event::Data { stream, .. } | Event::Trailers { stream },
            ) if is_ended => self.answer(stream),
            _ => {}
        }
    }

    /// Answers with 200 and two bytes, and releases the stream.
    pub(crate) fn answer(&mut self, stream: u32) {
        if let Some(mut head) = self.machine.respond(stream, http::Status::OK, false, &mut self.out) {
            head.content_length(2);
            head.field(b"Content-Type", b"text/plain");
        }
        self.machine.data(stream, b"ok", true, &mut self.out);
        self.machine.release(stream);
    }

    /// Records an event; merges consecutive pieces of content.
    fn remember(&mut self, seen: Seen) {
        if let (
            Some(Seen::Data { stream: before, content, ended: ended_before }),
            Seen::Data { stream, content: more, ended },
        ) = (self.seen.last_mut(), &seen)
            && before == stream
            && !*ended_before
        {
            content.extend_from_slice(more);
            *ended_before = *ended;
            return;
        }
        self.seen.push(seen);
    }

    /// Takes the frames sent so far.
    pub(crate) fn sent(&mut self) -> Vec<(u8, u8, u32, Vec<u8>)> {
        super::wire::frames(&std::mem::take(&mut self.out))
    }

    pub(crate) fn reason(&self) -> &'static str {
        self.error.map_or("", |error| error.reason)
    }
}

/// The result of feeding bytes: events, and the final error.
pub(crate) type Outcome = (Vec<Seen>, Option<ConnectionError>);

/// Runs a machine of one side with a conduct, fed piece by piece.
pub(crate) fn run<'b>(
    is_server: bool,
    options: Options,
    conduct: Conduct,
    pieces: impl IntoIterator<Item = &'b [u8]>,
) -> Outcome {
    let mut driven = if is_server { Driven::server(options, conduct) } else { Driven::client(options) };
    if !is_server {
        let line = http2::RequestLine {
            method: b"GET",
            scheme: b"http",
            authority: b"a.test",
            path: b"/",
            protocol: None,
        };
        for _ in 0..3 {
            drop(driven.machine.request(&line, true, &mut driven.out));
        }
    }
    for piece in pieces {
        driven.feed(piece);
    }
    (driven.seen, driven.error)
}
