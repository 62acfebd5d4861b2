//! Scripts of simulated clients, the responses that they must get, and their verification.

use http::framing::Framing;
use http::machine::{ClientMachine, Step};
use http::{Limits, Method};

use super::rig::{BIG_BYTES, FILE_BYTES, pattern_bytes};
use crate::sim::{Dice, End};

/// An action of a client.
#[derive(Clone, Debug)]
pub(super) enum ClientAction {
    Send(Vec<u8>),
    Wait(u64),
    /// Sets the room in the client's socket.
    Room(usize),
    HalfClose,
    Close,
    Reset,
    /// The server begins to stop.
    Drain,
}

/// State of the connection after a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionAfter {
    Stays,
    Closes,
    /// The response cannot be completed, which its framing shows.
    Breaks,
    /// The response cannot be completed, which only a reset shows; the reset may discard responses that the
    /// client has not read.
    Resets,
}

/// The response that a request must get.
#[derive(Clone)]
pub(super) struct Expected {
    pub(super) method: Method,
    pub(super) status: u16,
    /// `None` accepts any body, for error pages.
    pub(super) body: Option<Vec<u8>>,
    pub(super) after: ConnectionAfter,
}

impl std::fmt::Debug for Expected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let bytes = self.body.as_ref().map(Vec::len);
        write!(f, "{:?} {} {bytes:?} {:?}", self.method, self.status, self.after)
    }
}

/// The actions of a client, and the responses that it must get as long as the connection lives.
#[derive(Clone, Debug, Default)]
pub(super) struct Script {
    pub(super) actions: Vec<ClientAction>,
    pub(super) expected: Vec<Expected>,
}

const HOST: &str = "Host: zoo\r\n";

/// Malformed requests, and the status of their responses.
fn malformed() -> Vec<(Vec<u8>, u16)> {
    let get = |line: &str, fields: &str| format!("{line}\r\n{fields}\r\n").into_bytes();
    let host = |line: &str| get(line, HOST);
    let fields = |more: &str| get("POST /fixed HTTP/1.1", &format!("{HOST}{more}"));
    vec![
        (get("GET /fixed HTTP/1.1", ""), 400),
        (host("GET /fixed HTTP/2.0"), 505),
        (host("GET  /fixed HTTP/1.1"), 400),
        (host("GET /fi\u{1}xed HTTP/1.1"), 400),
        (host("G(T /fixed HTTP/1.1"), 400),
        (host("GET /fixed"), 400),
        (host(&format!("GET /{} HTTP/1.1", "long".repeat(3_000))), 414),
        (fields(&format!("X-Long: {}\r\n", "long".repeat(5_000))), 431),
        (fields(&"X: y\r\n".repeat(101)), 431),
        (fields("Content-Length: 4\r\nTransfer-Encoding: chunked\r\n"), 400),
        (fields("Content-Length: +4\r\n"), 400),
        (fields("Transfer-Encoding: gzip, chunked\r\n"), 501),
        (fields("Expect: the worst\r\n"), 417),
        (fields("X : y\r\n"), 400),
        (fields("X: y\rz\r\n"), 400),
        (fields("X: y\r\n folded\r\n"), 400),
        (b"GET /fixed HTTP/1.1\nHost: zoo\n\n".to_vec(), 400),
        (b"\x16\x03\x01\x02\x00\x01\x00".to_vec(), 400),
    ]
}

/// A request under construction.
struct Request {
    method: Method,
    path: &'static str,
    n: u64,
    is_1_0: bool,
    body: Option<Vec<u8>>,
    chunked: bool,
    expects: bool,
    fields: String,
}

impl Script {
    /// Creates a script from a seed.
    pub(super) fn from_seed(dice: &Dice) -> Script {
        let mut script = Script::default();
        let count = 1 + dice.below(7);
        for index in 0..count {
            let last = index + 1 == count;
            let added =
                if last && dice.once_in(2) { script.add_ending(dice) } else { script.add_plain(dice) };
            // A client that asked to close the connection sends nothing more.
            if added == Some(ConnectionAfter::Closes) {
                break;
            }
        }
        script
    }

    fn expect(&mut self, method: Method, status: u16, body: Option<Vec<u8>>, after: ConnectionAfter) {
        self.expected.push(Expected { method, status, body, after });
    }

    /// Adds a request that gets a response. Returns whether the client asked to close the connection.
    fn add_plain(&mut self, dice: &Dice) -> Option<ConnectionAfter> {
        let n = dice.below(1_000);
        let path = [
            "/fixed", "/empty", "/204", "/304", "/echo", "/limited", "/chunked", "/big", "/file", "/offload",
        ]
        .into_iter()
        .chain(["/slow", "/nowhere", "/fixed", "/echo", "/echo"])
        .nth(dice.below(15) as usize)
        .expect("so many paths");
        let reads = matches!(path, "/echo" | "/limited");
        let is_1_0 = dice.once_in(6);
        let has_body = reads || dice.once_in(5);
        let len = match (path, dice.below(8)) {
            ("/limited", _) => dice.below(11),
            ("/echo", 0) => 100_000,
            _ => dice.below(3_000),
        };
        let chunked = has_body && !is_1_0 && dice.once_in(2);
        let mut request = Request {
            method: if has_body {
                Method::Post
            } else if dice.once_in(4) {
                Method::Head
            } else {
                Method::Get
            },
            path,
            n,
            is_1_0,
            body: has_body.then(|| pattern_bytes(n, len as usize)),
            chunked,
            expects: reads && !is_1_0 && (chunked || len > 0) && dice.once_in(4),
            fields: String::new(),
        };
        let stays = match (is_1_0, dice.below(6)) {
            (true, 0) => false,
            (true, _) => {
                request.fields = "Connection: Keep-Alive\r\n".into();
                true
            }
            (false, 0) => {
                request.fields = "Connection: close\r\n".into();
                false
            }
            (false, _) => true,
        };
        let (status, body) = request.answer();
        let until_close = is_1_0 && request.method != Method::Head && matches!(path, "/echo" | "/chunked");
        let after = if stays && !until_close { ConnectionAfter::Stays } else { ConnectionAfter::Closes };
        self.expect(request.method, status, body, after);
        request.send(dice, &mut self.actions);
        (!stays).then_some(ConnectionAfter::Closes)
    }

    /// Adds a request after which the server ends the connection.
    fn add_ending(&mut self, dice: &Dice) -> Option<ConnectionAfter> {
        if dice.once_in(2) {
            let messages = malformed();
            let (bytes, status) = &messages[dice.below(messages.len() as u64) as usize];
            self.actions.push(ClientAction::Send(bytes.clone()));
            self.expect(Method::Post, *status, None, ConnectionAfter::Closes);
            return None;
        }
        let n = dice.below(1_000);
        let mut request = Request {
            method: Method::Post,
            path: "",
            n,
            is_1_0: dice.once_in(4),
            body: dice.once_in(2).then(|| pattern_bytes(n, 200)),
            chunked: false,
            expects: false,
            fields: "Connection: keep-alive\r\n".into(),
        };
        let cut = if request.is_1_0 { ConnectionAfter::Resets } else { ConnectionAfter::Breaks };
        let (path, status, body, after) = match dice.below(12) {
            0 => ("/panic", 500, None, ConnectionAfter::Closes),
            1 => ("/fail", 500, None, ConnectionAfter::Closes),
            2 => ("/silent", 500, None, ConnectionAfter::Closes),
            3 => ("/cut", 200, Some(b"part".to_vec()), cut),
            4 => ("/late-panic", 200, Some(b"part".to_vec()), cut),
            5 => ("/short", 200, Some(b"part".to_vec()), ConnectionAfter::Breaks),
            6 => ("/long", 200, Some(Vec::new()), ConnectionAfter::Breaks),
            7 => ("/late-fail", 200, Some(pattern_bytes(n, 20)), ConnectionAfter::Closes),
            8 => {
                // The unread rest is too long to be discarded.
                request.body = Some(pattern_bytes(n, 100_000));
                ("/fixed", 200, Some(pattern_bytes(n, 20)), ConnectionAfter::Closes)
            }
            9 => {
                request.body = Some(pattern_bytes(n, 11));
                request.chunked = !request.is_1_0 && dice.once_in(2);
                ("/limited", 413, None, ConnectionAfter::Closes)
            }
            10 => {
                (request.is_1_0, request.body, request.expects) = (false, Some(pattern_bytes(n, 30)), true);
                ("/fixed", 200, Some(pattern_bytes(n, 20)), ConnectionAfter::Closes)
            }
            _ => {
                request.is_1_0 = false;
                let head = format!("POST /echo HTTP/1.1\r\n{HOST}Transfer-Encoding: chunked\r\n\r\n");
                self.actions.push(ClientAction::Send([head.as_bytes(), b"-1\r\nx\r\n"].concat()));
                self.expect(Method::Post, 400, None, ConnectionAfter::Closes);
                return None;
            }
        };
        request.path = path;
        self.expect(Method::Post, status, body, after);
        request.send(dice, &mut self.actions);
        None
    }

    /// Splits the sent bytes at random places, with harmless pauses between some of the pieces.
    pub(super) fn split_sends(&mut self, dice: &Dice) {
        let mut pauses = 8;
        let mut acts: Vec<ClientAction> = Vec::new();
        for act in self.actions.drain(..) {
            let ClientAction::Send(mut bytes) = act else {
                acts.push(act);
                continue;
            };
            while pauses > 0 && bytes.len() > 1 && dice.once_in(2) {
                let rest = bytes.split_off(1 + dice.below(bytes.len() as u64 - 1) as usize);
                acts.push(ClientAction::Send(std::mem::replace(&mut bytes, rest)));
                acts.push(ClientAction::Wait(if dice.once_in(2) { 0 } else { dice.below(300) }));
                pauses -= 1;
            }
            // Pieces without a pause between them may be sent together.
            match acts.last_mut() {
                Some(ClientAction::Send(before)) if dice.once_in(2) => before.extend(bytes),
                _ => acts.push(ClientAction::Send(bytes)),
            }
        }
        self.actions = acts;
    }
}

impl Request {
    fn answer(&self) -> (u16, Option<Vec<u8>>) {
        let n = self.n;
        let file = || [pattern_bytes(n, 100), pattern_bytes(0, FILE_BYTES)[n as usize..].to_vec()].concat();
        let (status, body) = match self.path {
            "/fixed" => (200, Some(pattern_bytes(n, 20))),
            "/empty" => (200, Some(Vec::new())),
            "/204" => (204, Some(Vec::new())),
            "/304" => (304, Some(Vec::new())),
            "/echo" => (200, self.body.clone()),
            "/limited" => (200, Some(b"small".to_vec())),
            "/chunked" => (200, Some([1, 10, 5_000].map(|len| pattern_bytes(n, len)).concat())),
            "/big" => (200, Some(pattern_bytes(n, BIG_BYTES))),
            "/file" => (200, Some(file())),
            "/offload" => (200, Some(pattern_bytes(n, 50))),
            "/slow" => (200, Some(pattern_bytes(n, 30))),
            _ => (404, None),
        };
        (status, if self.method == Method::Head { Some(Vec::new()) } else { body })
    }

    fn send(&self, dice: &Dice, acts: &mut Vec<ClientAction>) {
        let version = if self.is_1_0 { "1.0" } else { "1.1" };
        let method = match self.method {
            Method::Head => "HEAD",
            Method::Post => "POST",
            _ => "GET",
        };
        let mut text = format!("{method} {}?{} HTTP/{version}\r\n{HOST}{}", self.path, self.n, self.fields);
        let body = self.body.as_deref().unwrap_or_default();
        match (&self.body, self.chunked) {
            (None, _) => {}
            (Some(_), true) => text += "Transfer-Encoding: chunked\r\n",
            (Some(_), false) => text += &format!("Content-Length: {}\r\n", body.len()),
        }
        if self.expects {
            text += "Expect: 100-continue\r\n";
        }
        let mut bytes = (text + "\r\n").into_bytes();
        if self.expects {
            acts.push(ClientAction::Send(std::mem::take(&mut bytes)));
            acts.push(ClientAction::Wait(400));
        }
        if self.chunked {
            bytes.extend(chunks(dice, body))
        } else {
            bytes.extend_from_slice(body)
        }
        if !bytes.is_empty() {
            acts.push(ClientAction::Send(bytes));
        }
    }
}

fn chunks(dice: &Dice, mut body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    while !body.is_empty() {
        let (chunk, rest) = body.split_at(1 + dice.below(body.len() as u64) as usize);
        let extension = if dice.once_in(3) { ";name=\"value\"" } else { "" };
        bytes.extend(format!("{:x}{extension}\r\n", chunk.len()).bytes());
        bytes.extend_from_slice(chunk);
        bytes.extend_from_slice(b"\r\n");
        body = rest;
    }
    let trailer = if dice.once_in(3) { "X-Trailer: t\r\n" } else { "" };
    bytes.extend(format!("0\r\n{trailer}\r\n").bytes());
    bytes
}

/// Result of verifying the received bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Verification {
    /// Number of complete responses.
    pub(super) complete_responses: usize,
    /// Whether the last response is one after which a server closes the connection: 400, 408.
    pub(super) was_refused: bool,
}

/// Parses `got` as the responses to `expected`. Panics if they differ, if a truncated one looks complete, or
/// if the connection continues after a response that ends it.
pub(super) fn verify(got: &[u8], end: Option<End>, expected: &[Expected]) -> Verification {
    let mut rest = got;
    let mut verdict = Verification { complete_responses: 0, was_refused: false };
    for expected in expected {
        if rest.is_empty() {
            break;
        }
        let (taken, whole, given_up) = response(rest, end, expected);
        rest = &rest[taken..];
        verdict.was_refused = given_up;
        if !whole {
            break;
        }
        verdict.complete_responses += 1;
        let cut = matches!(expected.after, ConnectionAfter::Breaks | ConnectionAfter::Resets);
        assert!(!cut || given_up, "a response looks whole that is not: {expected:?}");
        if given_up || expected.after == ConnectionAfter::Closes {
            break;
        }
    }
    assert!(rest.is_empty(), "more than was asked for: {:?}", String::from_utf8_lossy(rest));
    verdict
}

/// Parses one response at the beginning of `got`. Returns its length, whether it is complete, and whether it
/// is a refusal instead.
fn response(got: &[u8], end: Option<End>, expected: &Expected) -> (usize, bool, bool) {
    let mut client = ClientMachine::default();
    let limits = Limits::default();
    let mut at = 0;
    let mut body = Vec::new();
    let mut given_up = false;
    let mut began = false;
    loop {
        let fed = client.feed(&got[at..], expected.method, &limits).expect("valid responses");
        at += fed.consumed;
        match fed.step {
            Step::Head if client.head.status.code() == 100 => client.next(),
            Step::Head => {
                began = true;
                let status = client.head.status.code();
                given_up = status != expected.status && matches!(status, 400 | 408);
                assert!(given_up || status == expected.status, "{status} instead of {expected:?}");
            }
            Step::Data(span) => {
                let base = at - fed.consumed;
                body.extend_from_slice(&got[base + span.start()..base + span.end()]);
            }
            Step::End => break,
            Step::NeedMore => {
                let until_close = began && client.head.framing == Framing::UntilClose;
                if until_close && end == Some(End::Fin) {
                    client.eof().expect("an end by closing");
                    break;
                }
                assert_prefix(&body, expected, given_up);
                return (got.len(), false, given_up);
            }
        }
    }
    if given_up {
        // The server may not have parsed the method, so even a response to HEAD may have a body.
        return (got.len(), true, true);
    }
    assert_prefix(&body, expected, given_up);
    let length = expected.body.as_ref().map(Vec::len);
    assert!(length.is_none_or(|length| length == body.len()), "{} bytes of {expected:?}", body.len());
    (at, true, false)
}

fn assert_prefix(body: &[u8], expected: &Expected, given_up: bool) {
    if let Some(whole) = &expected.body
        && !given_up
    {
        assert!(whole.starts_with(body), "another body than that of {expected:?}");
    }
}
