//! What can go wrong between the two sides, as values.

use std::fmt;

/// Which seat of the generation: one claimant of requests, a worker process or a thread of one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Seat(pub usize);

/// How the other side broke the channel's rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Breach {
    /// A stream position that no honest side can reach.
    Position,
    /// A frame of unknown kind, or longer than what was published.
    Frame,
    /// Frames out of order: a body before its head, a second head, anything after the trailers.
    Order,
    /// A notice about a request that this seat does not hold.
    Tag,
    /// A state word that no honest side writes.
    State,
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Breach::Position => "a stream position out of bounds",
            Breach::Frame => "a malformed frame",
            Breach::Order => "frames out of order",
            Breach::Tag => "a notice about a request it does not hold",
            Breach::State => "a slot state out of order",
        })
    }
}

/// A worker that broke the rules. It is heard no more; kill it and call [`Server::worker_died`](crate::Server::worker_died).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// Who, where the memory still tells; `None` if any worker may have done it.
    pub seat: Option<Seat>,
    /// What it did.
    pub breach: Breach,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.seat {
            Some(Seat(seat)) => write!(f, "the worker in seat {seat} wrote {}", self.breach),
            None => write!(f, "a worker wrote {}", self.breach),
        }
    }
}

/// Why the server cannot use a ticket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Error {
    /// The ticket's request is over: answered whole, cancelled, or lost with its worker.
    Void,
    /// The answer cannot be believed; the ticket is void from now on.
    Fault(Fault),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Void => f.write_str("the request is over"),
            Error::Fault(fault) => fault.fmt(f),
        }
    }
}

impl std::error::Error for Error {}

/// Why a request was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// Every slot of this thread is queued or in a worker's hands.
    Full,
    /// The head does not fit into a slot's request area (`Options::request_bytes` less 4).
    HeadTooLarge,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refused::Full => "every request slot is taken",
            Refused::HeadTooLarge => "the request head is larger than its slot",
        })
    }
}

impl std::error::Error for Refused {}

/// Why a worker cannot go on with a request; end or abort it then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// The server lost interest; the number is the reason it gave to [`Server::cancel`](crate::Server::cancel).
    Cancelled(u32),
    /// A frame out of order: a body before its head, a second head, anything after the trailers.
    Order,
    /// A head, trailers or log line that does not fit into the response area.
    TooLarge,
    /// The memory holds what no server writes: another worker scribbled over it.
    Broken,
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stop::Cancelled(reason) => write!(f, "the request was cancelled ({reason})"),
            Stop::Order => f.write_str("the response's parts are out of order"),
            Stop::TooLarge => f.write_str("a part of the response is larger than its slot"),
            Stop::Broken => f.write_str("the channel's memory is damaged"),
        }
    }
}

impl std::error::Error for Stop {}
