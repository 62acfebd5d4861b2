//! What a multiplexed protocol has to do for its connection.

use http::{Fields, Head, Limits, Reject, Status};

use crate::fault::Fault;

/// How soon a stream's data is sent among others (RFC 9218).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamPriority {
    /// 0 to 7; 0 is the most urgent, 3 the default.
    pub(crate) urgency: u8,
    /// Whether streams of the same urgency take turns; else the oldest is sent first.
    pub(crate) incremental: bool,
}

/// A request as a machine has read it.
pub(crate) struct StreamRequest {
    pub(crate) head: Head,
    /// What the head's spans refer to.
    pub(crate) bytes: Vec<u8>,
    pub(crate) priority: StreamPriority,
    /// Why it is refused with a response, if it is: the head may be incomplete then.
    pub(crate) refused: Option<Reject>,
    /// Whether nothing follows the head.
    pub(crate) ended: bool,
}

/// What the machine made of bytes received.
pub(crate) enum MuxEvent<'b> {
    /// A new stream, and its request. Streams have rising numbers.
    Request(u32, Box<StreamRequest>),
    /// Body bytes, within the window that was granted; and whether the request ends with them.
    Data(u32, &'b [u8], bool),
    /// The request is complete, with these trailers.
    End(u32, Fields),
    /// The client wants a response sooner or later than before.
    Priority(u32, StreamPriority),
    /// The stream is over: the peer gives it up, or has broken a rule on it.
    Reset(u32, CutReason),
    /// More may be sent: on this stream, or on all of them.
    Writable(Option<u32>),
}

/// Why a stream ends before its time, as its request's log line says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CutReason {
    /// The peer has given it up, or disconnected.
    Peer,
    /// The peer took nothing for too long.
    Timeout,
    /// This side has ended it or its connection, with this code and for this reason: see [`Fault::Ended`].
    Error(&'static str, &'static str),
}

impl CutReason {
    /// What a connection that ended with `fault` is to its streams.
    pub(crate) fn of(fault: &Fault) -> CutReason {
        match *fault {
            Fault::Timeout => CutReason::Timeout,
            Fault::Ended { code, reason } => CutReason::Error(code, reason),
            Fault::Reject(reject) => CutReason::Error("an error", reject.reason),
            Fault::Gone | Fault::Broken(_) | Fault::Io(_) => CutReason::Peer,
        }
    }

    /// What a request was ended by, where its task knows only that the stream is gone.
    pub(crate) fn explain(self, fault: Fault) -> Fault {
        match (fault, self) {
            (Fault::Gone, CutReason::Timeout) => Fault::Timeout,
            (Fault::Gone, CutReason::Error(code, reason)) => Fault::Ended { code, reason },
            (fault, _) => fault,
        }
    }
}

/// Why a stream is reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResetReason {
    /// The request was not looked at: it may be sent again.
    Refused,
    /// The response is complete, and the rest of the request is not wanted.
    Answered,
    /// The response cannot be completed.
    Failed,
    /// What the stream carries in place of HTTP has broken off.
    Tunnel,
}

/// What frames the content of streams.
pub(crate) trait ContentFrames {
    /// Bytes of data that the windows allow on a stream now.
    fn capacity(&self, id: u32) -> usize;

    /// Body bytes, at most [`ContentFrames::capacity`].
    fn data(&mut self, id: u32, bytes: &[u8], ends: bool);

    /// Body bytes that `read` puts into place, at most `len` and what the windows allow. It is called at most once, fills its slices from
    /// the first one on, and returns how many bytes it has filled, which this returns too. With `ends` the message ends where that is
    /// all of `len`.
    fn data_read(
        &mut self,
        id: u32,
        len: usize,
        ends: bool,
        read: &mut dyn FnMut(&mut [&mut [u8]]) -> usize,
    ) -> usize;

    /// Trailers, which end the message.
    fn trailers(&mut self, id: u32, trailers: &Fields);
}

/// A protocol without I/O and clocks. It owns framing, both ends of each window and its own account of cheap frames; calls for
/// streams that it does not know, because the peer has reset them, do nothing.
pub(crate) trait MuxProtocol: ContentFrames {
    /// Takes bytes received; says how many of them are done with, and what they were. Without progress and event it needs
    /// more. `now_ms` is the core's time.
    ///
    /// # Errors
    /// The connection is over; what the peer is to know of it stands in [`MuxProtocol::out`].
    fn feed<'b>(
        &mut self,
        bytes: &'b [u8],
        limits: &Limits,
        now_ms: u64,
    ) -> Result<(usize, Option<MuxEvent<'b>>), Fault>;

    /// A response head, interim ones too. `lines` are field lines as HTTP/1 writes them. With `ends` nothing follows it.
    fn head(&mut self, id: u32, status: Status, lines: &[u8], ends: bool);

    /// So many body bytes were read: the peer may send as many more.
    fn grant(&mut self, id: u32, bytes: usize);

    /// Ends a stream before its time. It is forgotten.
    fn reset(&mut self, id: u32, reason: ResetReason);

    /// Both sides of the stream have ended. It is forgotten.
    fn close(&mut self, id: u32);

    /// Announces that no further stream will be taken: soon, so that requests on their way arrive, or with `is_now` from here on.
    fn go_away(&mut self, is_now: bool);

    /// Whether the peer takes no further part: nothing but what is under way will come.
    fn is_peer_leaving(&self) -> bool;

    /// Whether the peer owes the rest of a head, or the acknowledgement of settings. It has the time of a head for either.
    fn owes(&self) -> bool {
        false
    }

    /// Ends the connection of a peer that owes either for too long; what it is to know of that stands in [`MuxProtocol::out`].
    fn give_up(&mut self) -> Fault {
        Fault::Timeout
    }

    /// Sets how many bytes windows may grow by beyond their first sizes where the measured rate wants it, and shrinks larger ones.
    fn limit_growth(&mut self, _bytes_max: usize) {}

    /// Whether an answer of the peer is awaited, before which it may read nothing.
    fn is_measuring(&self) -> bool {
        false
    }

    /// Releases memory that a connection without streams does not need.
    fn shrink(&mut self) {}

    /// Bytes to send.
    fn out(&mut self) -> &mut Vec<u8>;

    /// Bytes of memory that it holds.
    fn held_bytes(&self) -> usize;
}
