//! Interface between a multiplexed connection and its protocol.

use http::{BodySize, Field, Fields, Head, Limits, Method, Name, Reject, Span, Status};
use times::{Millis, Moment};

use crate::fault::Fault;

/// Time for which the rest of a request is usually read and discarded after its response. Clients that are still
/// sending discard the response if their stream is reset at once.
const DISCARD_TIME: Millis = Millis(1_000);
/// Usual maximum number of discarded bytes.
const DISCARD_BYTES_MAX: usize = 256 * 1024;

/// Priority of a stream's data (RFC 9218).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamPriority {
    /// 0 (most urgent) to 7; the default is 3.
    pub(crate) urgency: u8,
    /// Whether streams with the same urgency are sent in turn; otherwise the oldest is sent first.
    pub(crate) is_incremental: bool,
}

impl From<sections::Priority> for StreamPriority {
    fn from(priority: sections::Priority) -> StreamPriority {
        StreamPriority { urgency: priority.urgency, is_incremental: priority.is_incremental }
    }
}

/// A request received by the state machine.
pub(crate) struct StreamRequest {
    pub(crate) head: Head,
    /// Bytes that the head's spans refer to.
    pub(crate) bytes: Vec<u8>,
    pub(crate) priority: StreamPriority,
    /// Error response with which the request is refused; the head may then be incomplete.
    pub(crate) rejection: Option<Reject>,
    /// Whether nothing follows the head.
    pub(crate) ended: bool,
}

/// An event produced from received bytes.
pub(crate) enum MuxEvent<'b> {
    /// A new stream with its request. Stream IDs ascend.
    Request(u32, Box<StreamRequest>),
    /// Body bytes within the receive window, and whether the request ends with them.
    Data(u32, &'b [u8], bool),
    /// The request is complete, with these trailers.
    End(u32, Fields),
    /// The client has changed the priority of a response.
    Priority(u32, StreamPriority),
    /// The stream has ended early: the peer has reset it, or has violated the protocol on it.
    Reset(u32, AbortReason),
    /// The send window of this stream, or of all streams, has grown.
    Writable(Option<u32>),
}

/// Reason why a stream ends early, as logged with its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AbortReason {
    /// The peer has reset the stream or has disconnected.
    Peer,
    /// The peer accepted nothing for too long.
    Timeout,
    /// This side has ended the stream or connection, with this code and reason: see [`Fault::MuxError`].
    Error(&'static str, &'static str),
}

impl AbortReason {
    /// Returns the reason for the streams of a connection that ended with `fault`.
    pub(crate) fn of(fault: &Fault) -> AbortReason {
        match *fault {
            Fault::Timeout => AbortReason::Timeout,
            Fault::MuxError { code, reason } => AbortReason::Error(code, reason),
            Fault::Reject(reject) => AbortReason::Error("an error", reject.reason),
            Fault::Disconnected | Fault::Failed(_) | Fault::Io(_) => AbortReason::Peer,
        }
    }

    /// Returns the fault that ended a request whose task only knows that the stream is gone.
    pub(crate) fn explain(self, fault: Fault) -> Fault {
        match (fault, self) {
            (Fault::Disconnected, AbortReason::Timeout) => Fault::Timeout,
            (Fault::Disconnected, AbortReason::Error(code, reason)) => Fault::MuxError { code, reason },
            (fault, _) => fault,
        }
    }
}

/// Reason for resetting a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResetReason {
    /// The request was not processed and may be sent again.
    Refused,
    /// The response is complete, and the rest of the request is not needed.
    Answered,
    /// The response cannot be completed.
    Failed,
    /// The other end of a tunnel has failed.
    Tunnel,
}

/// Converts an extended CONNECT to the GET request that asks for the same protocol in HTTP/1.1.
pub(crate) fn convert_extended_connect(protocol: Span, head: &mut Head, bytes: &mut Vec<u8>) {
    let mut write = |text: &[u8]| {
        let at = bytes.len();
        bytes.extend_from_slice(text);
        Span::new(at, bytes.len())
    };
    (head.method, head.method_name) = (Method::Get, write(b"GET"));
    (head.protocol, head.body) = (protocol, BodySize::None);
    // Lets conditions on these fields match in all versions; HTTP/2 and HTTP/3 have none of them.
    let upgrade = write(b"Upgrade");
    let connection = write(b"Connection");
    head.fields.push(Field { id: Name::Upgrade, name: upgrade, value: protocol });
    head.fields.push(Field { id: Name::Connection, name: connection, value: upgrade });
}

/// Framing of the content of streams.
pub(crate) trait ContentFrames {
    /// Returns the position of the stream's last bytes in the connection's output, of a protocol that takes more than
    /// flow control permits. `None`: streams have the positions of their frames.
    fn position(&self, _id: u32) -> Option<u64> {
        None
    }

    /// Returns the number of data bytes that flow control permits on a stream.
    fn capacity(&self, id: u32) -> usize;

    /// Frames body bytes, at most [`ContentFrames::capacity`].
    fn data(&mut self, id: u32, bytes: &[u8], ends: bool);

    /// Ends a message whose content was framed, without trailers.
    fn end(&mut self, id: u32) {
        self.data(id, b"", true);
    }

    /// Frames body bytes that `read` stores in place, at most `len` and what flow control permits. `read` is
    /// called at most once, fills its slices in order, and returns the number of bytes, which is returned. If
    /// `ends`, the message ends when this is all of `len`.
    fn data_in_place(
        &mut self,
        id: u32,
        len: usize,
        ends: bool,
        read: &mut dyn FnMut(&mut [&mut [u8]]) -> usize,
    ) -> usize;

    /// Frames trailers, which end the message.
    fn trailers(&mut self, id: u32, trailers: &Fields);
}

/// The requests and responses of a connection, without I/O and clocks: framing, flow control and limits of
/// cheap frames. Calls for streams that it does not know, because the peer has reset them, have no effect.
pub(crate) trait MuxProtocol: ContentFrames {
    /// Frames a response head, final or interim. `lines` are field lines in HTTP/1 syntax. `ends` means that
    /// nothing follows.
    fn head(&mut self, id: u32, status: Status, lines: &[u8], ends: bool);

    /// Updates the receive window after `bytes` body bytes were read.
    fn grant(&mut self, id: u32, bytes: usize);

    /// Sets the time for which the peer may accept nothing of a stream, for a protocol that sends on after
    /// [`MuxProtocol::close`] and [`MuxProtocol::reset`].
    fn set_write_timeout(&mut self, _id: u32, _timeout: Millis) {}

    /// Returns the time for which, and the number of bytes up to which, the rest of a request is read and discarded
    /// after its response, before the client is told to send no more.
    fn discard_limits(&self) -> (Millis, usize) {
        (DISCARD_TIME, DISCARD_BYTES_MAX)
    }

    /// Takes back the head of a stream that has ended, whose memory another one can use.
    fn take_back(&mut self, _head: Head, _bytes: Vec<u8>) {}

    /// Resets a stream and forgets it.
    fn reset(&mut self, id: u32, reason: ResetReason);

    /// Forgets a stream that both sides have ended.
    fn close(&mut self, id: u32);

    /// Announces that no further streams will be accepted: soon, so that requests on their way arrive, or
    /// immediately if `is_now`.
    fn go_away(&mut self, is_now: bool);

    /// Whether the peer is leaving and will send nothing but the rest of open streams.
    fn is_peer_leaving(&self) -> bool;

    /// Limits the growth of receive windows, which follows the measured rate; shrinks larger ones.
    fn limit_growth(&mut self, _bytes_max: usize) {}

    /// Releases memory that a connection without streams does not need.
    fn shrink(&mut self) {}

    /// Returns the number of framed bytes that wait to be sent.
    fn unsent_bytes(&mut self) -> usize;

    /// Returns the output buffer of a protocol that frames all streams into one.
    fn shared_out(&mut self) -> Option<&mut Vec<u8>>;

    /// Returns the memory held, in bytes.
    fn held_bytes(&self) -> usize;
}

/// A protocol whose streams share one ordered stream of bytes, such as a TCP connection.
pub(crate) trait ByteProtocol: MuxProtocol {
    /// Processes received bytes; returns the number of bytes consumed and an event. If there is neither, more
    /// bytes are needed. `now` is the time of the core's clock.
    ///
    /// # Errors
    /// The connection has ended; [`ByteProtocol::out`] contains the last frames for the peer.
    fn feed<'b>(
        &mut self,
        bytes: &'b [u8],
        limits: &Limits,
        now: Moment,
    ) -> Result<(usize, Option<MuxEvent<'b>>), Fault>;

    /// Whether the rest of a head or a SETTINGS acknowledgement is due, within the head timeout.
    fn awaits_peer(&self) -> bool {
        false
    }

    /// Ends the connection because of that timeout; [`ByteProtocol::out`] gets the last frames.
    fn close_overdue(&mut self) -> Fault {
        Fault::Timeout
    }

    /// Whether an answer of the peer is awaited; it may read nothing before sending it.
    fn is_measuring(&self) -> bool {
        false
    }

    /// Returns the output buffer.
    fn out(&mut self) -> &mut Vec<u8>;

    /// All output was sent.
    fn mark_sent(&mut self) {}
}
