//! Drives the machines as a connection does: unconsumed bytes are fed again together with those that follow.

use http::framing::Framing;
use http::machine::{ClientMachine, FeedResult, ServerMachine, Step};
use http::{Limits, Method, Reject, RequestHead, ResponseHead, Span, Status, TargetForm};

use super::case::escape;

/// The machine that reads the bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Role {
    /// The server side: the bytes are requests.
    #[default]
    Request,
    /// The client side: the bytes are responses to requests of this method.
    Response(Method),
}

/// The settings that determine an outcome besides the bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) role: Role,
    pub(crate) limits: Limits,
    /// Limit of a request's content.
    pub(crate) body_bytes_max: u64,
    /// Whether the sender closes after its last byte.
    pub(crate) close: bool,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup { role: Role::Request, limits: Limits::default(), body_bytes_max: u64::MAX, close: false }
    }
}

pub(crate) type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// A message, as far as received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    /// The meaning of the head, in the notation of the vectors.
    pub(crate) summary: String,
    /// The start line in normal form, without its line end.
    pub(crate) start_line: Vec<u8>,
    pub(crate) fields: Pairs,
    pub(crate) framing: Framing,
    pub(crate) content: Vec<u8>,
    pub(crate) trailers: Pairs,
    pub(crate) complete: bool,
}

/// The state after the last byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Between two messages.
    Idle,
    /// Within an incomplete message.
    More,
    /// After a message that closes the connection, with this many bytes unread.
    Left(usize),
    Reject(Reject),
}

/// The result of feeding all bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) messages: Vec<Message>,
    pub(crate) ending: Ending,
}

/// Feeds the pieces one after the other.
pub(crate) fn run<'b>(setup: &Setup, pieces: impl IntoIterator<Item = &'b [u8]>) -> Outcome {
    let mut connection = Connection::new(*setup);
    for piece in pieces {
        connection.feed(piece);
    }
    connection.finish()
}

enum Machine {
    ServerMachine(ServerMachine),
    ClientMachine(ClientMachine, Method),
}

impl Machine {
    fn feed(&mut self, bytes: &[u8], limits: &Limits) -> Result<FeedResult, Reject> {
        match self {
            Machine::ServerMachine(server) => server.feed(bytes, limits),
            Machine::ClientMachine(client, method) => client.feed(bytes, *method, limits),
        }
    }

    fn body(&self) -> Option<&http::body::Body> {
        match self {
            Machine::ServerMachine(server) => server.body(),
            Machine::ClientMachine(client, _) => client.body(),
        }
    }

    fn message(&self, head_bytes: &[u8]) -> Message {
        match self {
            Machine::ServerMachine(server) => request_message(&server.head, head_bytes),
            Machine::ClientMachine(client, _) => response_message(&client.head, head_bytes),
        }
    }

    /// Whether another message may follow a complete one.
    fn continues(&self) -> bool {
        match self {
            Machine::ServerMachine(server) => server.head.keep_alive,
            Machine::ClientMachine(client, _) => is_interim(client) || client.is_reusable(),
        }
    }

    fn next(&mut self) {
        match self {
            Machine::ServerMachine(server) => server.next(),
            Machine::ClientMachine(client, _) => client.next(),
        }
    }
}

fn is_interim(client: &ClientMachine) -> bool {
    client.head.status.is_informational() && client.head.status != Status::SWITCHING_PROTOCOLS
}

struct Connection {
    setup: Setup,
    machine: Machine,
    buffer: Vec<u8>,
    messages: Vec<Message>,
    ending: Option<Ending>,
}

impl Connection {
    fn new(setup: Setup) -> Connection {
        let machine = match setup.role {
            Role::Request => Machine::ServerMachine(ServerMachine::default()),
            Role::Response(method) => Machine::ClientMachine(ClientMachine::default(), method),
        };
        Connection { setup, machine, buffer: Vec::new(), messages: Vec::new(), ending: None }
    }

    fn feed(&mut self, piece: &[u8]) {
        if let Some(Ending::Left(bytes)) = &mut self.ending {
            *bytes += piece.len();
        }
        if self.ending.is_some() {
            return;
        }
        self.buffer.extend_from_slice(piece);
        let mut at = 0;
        loop {
            match self.step(&mut at) {
                Ok(true) => {}
                Ok(false) => break,
                Err(reject) => self.ending = Some(Ending::Reject(reject)),
            }
            if self.ending.is_some() {
                break;
            }
        }
        self.buffer.drain(..at);
    }

    /// Performs one step of the machine; returns false if it needs more bytes.
    fn step(&mut self, at: &mut usize) -> Result<bool, Reject> {
        let bytes = &self.buffer[*at..];
        let FeedResult { consumed, step } = self.machine.feed(bytes, &self.setup.limits)?;
        assert!(consumed <= bytes.len(), "more consumed than fed");
        *at += consumed;
        match step {
            Step::NeedMore => {
                let in_head = self.machine.body().is_none();
                assert_eq!(consumed, if in_head { 0 } else { bytes.len() }, "a partial step");
                return Ok(false);
            }
            Step::Head => {
                assert!(consumed <= self.setup.limits.head_bytes_max, "a head above its limit");
                let message = self.machine.message(&bytes[..consumed]);
                assert!(message.fields.len() <= self.setup.limits.fields_max, "fields above their limit");
                self.messages.push(message);
                if let Machine::ServerMachine(server) = &mut self.machine {
                    server.limit_body(self.setup.body_bytes_max)?;
                }
            }
            Step::Data(span) => {
                assert!(!span.is_empty() && span.end() <= consumed, "content that was not consumed");
                let message = self.messages.last_mut().expect("content follows a head");
                message.content.extend_from_slice(span.of(bytes));
                assert!(message.content.len() as u64 <= self.setup.body_bytes_max, "content above its limit");
            }
            Step::End => {
                self.end_message();
                if self.machine.continues() {
                    self.machine.next()
                } else {
                    self.ending = Some(Ending::Left(self.buffer.len() - *at))
                }
            }
        }
        Ok(true)
    }

    fn end_message(&mut self) {
        let body = self.machine.body().expect("a message ends in its body");
        let trailers = body.trailers().iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect();
        let message = self.messages.last_mut().expect("an end follows a head");
        message.trailers = trailers;
        message.complete = true;
    }

    fn finish(mut self) -> Outcome {
        let between = self.machine.body().is_none() && self.buffer.is_empty();
        let closed = self.setup.close && self.ending.is_none();
        if closed && (!between || self.messages.is_empty()) {
            let Machine::ClientMachine(client, _) = &mut self.machine else {
                panic!("requests are not closed")
            };
            match client.eof() {
                Err(reject) => self.ending = Some(Ending::Reject(reject)),
                Ok(()) => {
                    self.end_message();
                    self.ending = Some(Ending::Left(0));
                }
            }
        }
        let open = if between { Ending::Idle } else { Ending::More };
        Outcome { messages: self.messages, ending: self.ending.unwrap_or(open) }
    }
}

/// The bytes of a span, which must lie in the head.
fn bytes_of(span: Span, head_bytes: &[u8]) -> &[u8] {
    assert!(span.end() <= head_bytes.len(), "a span outside its head");
    span.of(head_bytes)
}

fn pairs(fields: &[http::Field], head_bytes: &[u8]) -> Pairs {
    let pair = |field: &http::Field| {
        (bytes_of(field.name, head_bytes).to_vec(), bytes_of(field.value, head_bytes).to_vec())
    };
    fields.iter().map(pair).collect()
}

fn framing_word(framing: Framing) -> String {
    match framing {
        Framing::None => "none".to_owned(),
        Framing::Length(length) => format!("length={length}"),
        Framing::Chunked => "chunked".to_owned(),
        Framing::UntilClose => "until-close".to_owned(),
    }
}

fn request_message(head: &RequestHead, head_bytes: &[u8]) -> Message {
    assert_eq!(head.len, head_bytes.len(), "what is consumed is the head");
    let target = &head.target;
    let (form, path) = match target.form {
        TargetForm::Origin => ("origin", target.path(head_bytes)),
        TargetForm::Absolute => ("absolute", target.path(head_bytes)),
        TargetForm::Authority => ("authority", &b"-"[..]),
        TargetForm::Asterisk => ("asterisk", target.path(head_bytes)),
    };
    bytes_of(target.path, head_bytes);
    let query = target.query.map(|query| format!("?{}", escape(bytes_of(query, head_bytes))));
    let summary = [
        escape(bytes_of(head.method_name, head_bytes)),
        form.to_owned(),
        escape(path) + &query.unwrap_or_default(),
        head.version.text().to_owned(),
        format!("host={}", escape(bytes_of(head.authority, head_bytes))),
        (if head.keep_alive { "keep" } else { "close" }).to_owned(),
        framing_word(head.framing),
    ];
    let mut summary = summary.join(" ");
    if head.expects_continue {
        summary.push_str(" continue");
    }
    let method = bytes_of(head.method_name, head_bytes);
    let whole = bytes_of(target.whole, head_bytes);
    Message {
        summary,
        start_line: [method, b" ", whole, b" ", head.version.text().as_bytes()].concat(),
        fields: pairs(&head.fields, head_bytes),
        framing: head.framing,
        content: Vec::new(),
        trailers: Vec::new(),
        complete: false,
    }
}

fn response_message(head: &ResponseHead, head_bytes: &[u8]) -> Message {
    assert_eq!(head.len, head_bytes.len(), "what is consumed is the head");
    let reason = bytes_of(head.reason, head_bytes);
    let mut summary = format!(
        "{} {} reason={} {} {}",
        head.status.code(),
        head.version.text(),
        escape(reason),
        if head.keep_alive { "keep" } else { "close" },
        framing_word(head.framing),
    );
    if let Some(length) = head.length.filter(|&length| head.framing != Framing::Length(length)) {
        summary.push_str(&format!(" announced={length}"));
    }
    Message {
        summary,
        start_line: [head.version.text().as_bytes(), b" ", &head.status.digits(), b" ", reason].concat(),
        fields: pairs(&head.fields, head_bytes),
        framing: head.framing,
        content: Vec::new(),
        trailers: Vec::new(),
        complete: false,
    }
}
