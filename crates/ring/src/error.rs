//! Errors between the two sides.

use std::fmt;

/// The index of a worker slot in the generation: one claimant of requests, a worker process or one of its
/// threads.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct WorkerSlot(pub usize);

/// A violation of the channel's protocol by the other side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProtocolViolation {
    /// A stream position that no valid peer can reach.
    Position,
    /// A frame of unknown kind, or longer than what was published.
    Frame,
    /// Frames out of order: a body before its head, a second head, anything after the trailers.
    Order,
    /// A notice about a request that this worker slot does not hold.
    Tag,
    /// An invalid state word.
    SlotState,
}

impl fmt::Display for ProtocolViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ProtocolViolation::Position => "a stream position out of bounds",
            ProtocolViolation::Frame => "a malformed frame",
            ProtocolViolation::Order => "frames out of order",
            ProtocolViolation::Tag => "a notice about a request it does not hold",
            ProtocolViolation::SlotState => "a slot state out of order",
        })
    }
}

/// A worker that violated the protocol. The server ignores it from now on; kill it and call
/// [`ServerSide::worker_died`](crate::ServerSide::worker_died).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WorkerFault {
    /// The worker's slot, if the memory still shows it; `None` if any worker may be responsible.
    pub worker_slot: Option<WorkerSlot>,
    /// The violation.
    pub violation: ProtocolViolation,
}

impl fmt::Display for WorkerFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.worker_slot {
            Some(WorkerSlot(worker_slot)) => {
                write!(f, "the worker in slot {worker_slot} wrote {}", self.violation)
            }
            None => write!(f, "a worker wrote {}", self.violation),
        }
    }
}

/// The reason that the server cannot use a ticket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TicketError {
    /// The ticket's request is over: completely received, cancelled, or lost with its worker.
    Void,
    /// The response is invalid; the ticket is void from now on.
    WorkerFault(WorkerFault),
}

impl fmt::Display for TicketError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TicketError::Void => f.write_str("the request is over"),
            TicketError::WorkerFault(fault) => fault.fmt(f),
        }
    }
}

impl std::error::Error for TicketError {}

/// The reason that a request was not accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SubmitError {
    /// Every slot of this thread is queued or held by a worker.
    Full,
    /// The head does not fit into a slot's request area (`Options::request_bytes` less 4).
    HeadTooLarge,
}

impl fmt::Display for SubmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SubmitError::Full => "every request slot is taken",
            SubmitError::HeadTooLarge => "the request head is larger than its slot",
        })
    }
}

impl std::error::Error for SubmitError {}

/// The reason that a worker cannot continue a request; it should then end or abort it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StopReason {
    /// The server cancelled the request; the number is the reason passed to
    /// [`ServerSide::cancel`](crate::ServerSide::cancel).
    Cancelled(u32),
    /// A frame out of order: a body before its head, a second head, anything after the trailers.
    Order,
    /// A head, trailers or log line that does not fit into the response area.
    TooLarge,
    /// The memory contains an invalid value: another worker has overwritten it.
    Broken,
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StopReason::Cancelled(reason) => write!(f, "the request was cancelled ({reason})"),
            StopReason::Order => f.write_str("the response's parts are out of order"),
            StopReason::TooLarge => f.write_str("a part of the response is larger than its slot"),
            StopReason::Broken => f.write_str("the channel's memory is damaged"),
        }
    }
}

impl std::error::Error for StopReason {}
