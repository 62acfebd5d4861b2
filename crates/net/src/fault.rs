//! Errors that end a connection.

use http::Reject;

/// An error of a connection. Handlers return it with `?`; it ends the connection.
#[derive(Debug)]
pub enum Fault {
    /// The peer violated the protocol; it gets this status if no response has begun.
    Reject(Reject),
    /// The peer exceeded one of [`crate::Timeouts`].
    Timeout,
    /// The peer closed or reset the connection.
    Disconnected,
    /// The peer violated a multiplexed protocol or made this side hold or do too much; the stream or
    /// connection was ended with this code.
    MuxError {
        /// The name of the code (RFC 9113 section 7).
        code: &'static str,
        /// A short reason.
        reason: &'static str,
    },
    /// The handler could not deliver the body that it announced; the response is truncated visibly.
    Failed(&'static str),
    /// An error of the operating system.
    Io(std::io::Error),
}

impl From<Reject> for Fault {
    fn from(reject: Reject) -> Fault {
        Fault::Reject(reject)
    }
}

impl From<rustix::io::Errno> for Fault {
    fn from(errno: rustix::io::Errno) -> Fault {
        use rustix::io::Errno;
        match errno {
            Errno::PIPE | Errno::CONNRESET | Errno::CONNABORTED | Errno::NOTCONN | Errno::TIMEDOUT => {
                Fault::Disconnected
            }
            errno => Fault::Io(errno.into()),
        }
    }
}

impl From<std::io::Error> for Fault {
    fn from(error: std::io::Error) -> Fault {
        Fault::Io(error)
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Fault::Reject(reject) => write!(f, "{} {}", reject.status.code(), reject.reason),
            Fault::Timeout => f.write_str("timed out"),
            Fault::Disconnected => f.write_str("connection closed by the peer"),
            Fault::MuxError { code, reason } => write!(f, "ended by the server with {code}: {reason}"),
            Fault::Failed(reason) => f.write_str(reason),
            Fault::Io(error) => error.fmt(f),
        }
    }
}
