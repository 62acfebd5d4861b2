//! Reasons for which datagrams are dropped.

use std::io;

use rustix::io::Errno;

/// Reason for which datagrams are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// The number of sessions is at its limit.
    Full,
    /// Memory is short.
    Memory,
    /// The client is not allowed.
    Denied,
    /// The stream or its client has as many sessions as it may.
    Limit,
    /// No stream is configured at the address.
    NoStream,
    /// There is no header of the PROXY protocol.
    NoHeader,
    /// No upstream server can be used.
    NoUpstream,
    /// More datagrams wait for a server to be chosen than may.
    Waiting,
    /// A socket has no room.
    NoRoom,
    /// The datagram is too large for the network.
    TooLarge,
    /// The network reports another error.
    Failed,
}

impl DropReason {
    /// Names in metrics, in the order of the variants.
    pub const NAMES: [&'static str; 11] = [
        "full",
        "memory",
        "denied",
        "limit",
        "no_stream",
        "no_header",
        "no_upstream",
        "waiting",
        "no_room",
        "too_large",
        "failed",
    ];

    /// Returns the index in [`DropReason::NAMES`].
    #[must_use]
    pub fn index(self) -> usize {
        self as usize
    }

    pub(super) fn of_error(error: &io::Error) -> DropReason {
        DropReason::of(Errno::from_io_error(error).unwrap_or(Errno::IO))
    }

    pub(super) fn of(errno: Errno) -> DropReason {
        match errno {
            Errno::AGAIN | Errno::NOBUFS => DropReason::NoRoom,
            Errno::MSGSIZE => DropReason::TooLarge,
            _ => DropReason::Failed,
        }
    }
}
