//! Why a connection ended early.

use http::Reject;

/// What went wrong on a connection. Handlers pass it up with `?`; the connection ends by it.
#[derive(Debug)]
pub enum Fault {
    /// The peer broke the protocol; it gets this status if nothing was answered yet.
    Reject(Reject),
    /// The peer was too slow: a timeout of [`crate::Timeouts`] ran out.
    Timeout,
    /// The peer closed or reset the connection.
    Gone,
    /// The peer broke a rule of a multiplexed protocol, or made this side hold or do too much: the stream or the connection was ended with
    /// this code.
    Ended {
        /// The name of the code (RFC 9113 section 7).
        code: &'static str,
        /// Why, in a few words.
        reason: &'static str,
    },
    /// The handler could not give the body that it announced: the response ends visibly broken.
    Broken(&'static str),
    /// The operating system refused.
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
                Fault::Gone
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
            Fault::Gone => f.write_str("connection closed by the peer"),
            Fault::Ended { code, reason } => write!(f, "ended by the server with {code}: {reason}"),
            Fault::Broken(reason) => f.write_str(reason),
            Fault::Io(error) => error.fmt(f),
        }
    }
}
