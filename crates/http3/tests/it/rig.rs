//! Two connections whose streams are buffers.

use http3::{
    Connection, ConnectionEvent, Http3Error, MessageEvent, MessageStream, Options, OwnStream,
    UnidirectionalStream,
};

/// Field lines by name and value.
pub(crate) type Lines<'a> = &'a [(&'a str, &'a str)];

pub(crate) const GET: Lines<'static> =
    &[(":method", "GET"), (":scheme", "https"), (":authority", "a.test"), (":path", "/")];

/// A client and a server, and what each one's unidirectional streams have received.
pub(crate) struct Pair {
    pub(crate) client: Connection,
    pub(crate) server: Connection,
    to_client: [UnidirectionalStream; 3],
    to_server: [UnidirectionalStream; 3],
}

impl Pair {
    pub(crate) fn new(options: Options) -> Pair {
        let mut pair = Pair {
            client: Connection::client(options),
            server: Connection::server(options),
            to_client: Default::default(),
            to_server: Default::default(),
        };
        pair.exchange();
        pair
    }

    /// Delivers what both sides have to send on their own streams.
    pub(crate) fn exchange(&mut self) -> Vec<ConnectionEvent> {
        let mut events = deliver(&mut self.client, &mut self.server, &mut self.to_server);
        events.extend(deliver(&mut self.server, &mut self.client, &mut self.to_client));
        events
    }

    /// The HEADERS frame of a request.
    pub(crate) fn request(&mut self, stream: u64, lines: Lines<'_>) -> Vec<u8> {
        headers(&mut self.client, stream, lines)
    }
}

fn deliver(
    from: &mut Connection,
    to: &mut Connection,
    streams: &mut [UnidirectionalStream; 3],
) -> Vec<ConnectionEvent> {
    let mut events = Vec::new();
    for own in OwnStream::ALL {
        let bytes = std::mem::take(from.output(own));
        events.extend(feed_all(to, &mut streams[own as usize], &bytes).unwrap());
    }
    events
}

/// Feeds all bytes of a unidirectional stream.
pub(crate) fn feed_all(
    to: &mut Connection,
    stream: &mut UnidirectionalStream,
    bytes: &[u8],
) -> Result<Vec<ConnectionEvent>, Http3Error> {
    let mut events = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let (consumed, event) = to.feed_unidirectional(stream, &bytes[at..], false)?;
        at += consumed;
        events.extend(event);
        assert!(consumed > 0 || event.is_some(), "no progress");
    }
    Ok(events)
}

/// The HEADERS frame of a message.
pub(crate) fn headers(from: &mut Connection, stream: u64, lines: Lines<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    from.write_section(stream, &mut out, |section| {
        for (name, value) in lines {
            if name.starts_with(':') {
                section.pseudo(name.as_bytes(), value.as_bytes());
            } else {
                section.field(name.as_bytes(), value.as_bytes());
            }
        }
    });
    out
}

/// A frame of any type.
pub(crate) fn frame(kind: u64, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    http3::frame::Http3FrameHeader { kind, len: payload.len() as u64 }.write(&mut out);
    out.extend_from_slice(payload);
    out
}

/// Parts of a message that a request stream has delivered.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Received {
    /// Head, as lines.
    pub(crate) head: Vec<String>,
    pub(crate) ended_with_head: bool,
    pub(crate) content: Vec<u8>,
    pub(crate) trailers: Vec<String>,
    pub(crate) refused: Option<u16>,
    pub(crate) is_blocked: bool,
}

/// Feeds a request stream in pieces, and its end.
pub(crate) fn receive(to: &mut Connection, id: u64, pieces: &[&[u8]]) -> Result<Received, Http3Error> {
    let mut stream = MessageStream::new(id);
    let mut received = Received::default();
    let last = pieces.len().saturating_sub(1);
    for (number, piece) in pieces.iter().enumerate() {
        let mut at = 0;
        loop {
            let (consumed, event) = to.feed(&mut stream, &piece[at..], number == last)?;
            let bytes = &piece[at..];
            at += consumed;
            match event {
                MessageEvent::NeedMore => {}
                MessageEvent::Head { ended } => {
                    received.ended_with_head = ended;
                    received.head = lines(to);
                }
                MessageEvent::Refused(reject) => received.refused = Some(reject.status.code()),
                MessageEvent::Data(span) => received.content.extend_from_slice(span.of(bytes)),
                MessageEvent::Trailers => {
                    let text = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
                    let trailers = to.trailers.iter();
                    received.trailers =
                        trailers.map(|(name, value)| text(name) + ": " + &text(value)).collect();
                }
                MessageEvent::Blocked => {
                    received.is_blocked = true;
                    return Ok(received);
                }
            }
            if at == piece.len() {
                break;
            }
        }
    }
    to.finish(&stream)?;
    Ok(received)
}

/// The fields of the last head, with the method of a request or the status of a response.
pub(crate) fn lines(connection: &Connection) -> Vec<String> {
    let bytes = connection.head_bytes();
    let text = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
    let fields = connection.head.fields.iter();
    fields.map(|field| text(field.name.of(bytes)) + ": " + &text(field.value.of(bytes))).collect()
}
