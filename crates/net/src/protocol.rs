//! Choice of a connection's protocol by its first bytes.
//!
//! A protocol that shares its ports with others is added here. Over TLS, ALPN has decided; QUIC has ports of its
//! own, and its connections never come here.

use std::cell::RefCell;
use std::rc::Rc;

use crate::conn::Conn;
use crate::h2::{self, H2Server, PrefaceMatch};
use crate::mux::ByteProtocol;
#[cfg(any(test, feature = "sim"))]
use crate::toy;

/// Protocol of a connection according to its first bytes.
pub(crate) enum DetectedProtocol {
    Http1,
    /// More bytes are needed.
    NeedMore,
    Multiplexed(Rc<RefCell<dyn ByteProtocol>>),
}

/// Determines the protocol of a connection that has sent bytes.
pub(crate) fn detect(conn: &Conn) -> DetectedProtocol {
    #[cfg(any(test, feature = "sim"))]
    if conn.served == 0 && toy::is_enabled() {
        let input = conn.buffers.input.head();
        if input.starts_with(toy::PREFACE) {
            return DetectedProtocol::Multiplexed(Rc::new(RefCell::new(toy::ToyMachine::new())));
        }
        if toy::PREFACE.starts_with(input) {
            return DetectedProtocol::NeedMore;
        }
    }
    if conn.served > 0 || !conn.may_be_h2 {
        return DetectedProtocol::Http1;
    }
    let begin_h2 = || {
        let machine = H2Server::new(&conn.context().limits.get());
        DetectedProtocol::Multiplexed(Rc::new(RefCell::new(machine)))
    };
    match h2::preface(conn.buffers.input.head()) {
        PrefaceMatch::Whole => begin_h2(),
        PrefaceMatch::Partial => DetectedProtocol::NeedMore,
        // The client has negotiated HTTP/2 by ALPN: the state machine reports the error.
        PrefaceMatch::Other if conn.link.session().is_some() => begin_h2(),
        PrefaceMatch::Other => DetectedProtocol::Http1,
    }
}
