//! The task of a session: passes answers to the client until the session ends.

use std::rc::Rc;

use times::Millis;

use super::link::DatagramLink;
use super::session::DatagramClient;
use crate::source::{GONE, READ};
use crate::wait::{self, Interest};

/// Bytes that a session receives before other tasks run.
const TURN_BYTES_MAX: usize = 256 * 1024;
/// Answers from which a session is expected to get many.
const MANY_ANSWERS: u64 = 32;

/// Settings of a session.
#[derive(Clone, Copy, Debug)]
pub struct DatagramRelayOptions {
    /// Time without a datagram in either direction after which the session ends.
    pub idle: Millis,
    /// Answers to each datagram of the client, after which the session ends. `None`: not known.
    pub responses: Option<u32>,
}

/// Reason why the relay of a session has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatagramEnd {
    /// The server has sent as many responses as are configured for each datagram.
    Answered,
    /// There was no datagram for the permitted time.
    Idle,
    /// The server cannot be reached: ICMP reports that its port, or the server, is unreachable.
    Refused,
    /// The session was given up for that of another client.
    GivenUp,
    /// The listener was closed, or memory is short.
    Closed,
    /// The configuration has no place for the session any more.
    Replaced,
}

impl DatagramClient {
    /// Returns the number of datagrams that servers have sent.
    #[must_use]
    pub fn answers(&self) -> u64 {
        self.0.answers.get()
    }

    /// Returns why the session must end before a server was chosen.
    #[must_use]
    pub fn early_end(&self) -> DatagramEnd {
        if self.0.is_given_up.get() { DatagramEnd::GivenUp } else { DatagramEnd::Closed }
    }

    /// Relays datagrams in both directions until the session ends or the server refuses them. `on_answer` is called
    /// once, at the server's first datagram; `is_valid` whenever the task is woken: if it returns false, only answers are
    /// passed on from then on, for a moment.
    pub async fn relay(
        &self,
        link: &Rc<DatagramLink>,
        options: DatagramRelayOptions,
        on_answer: impl Fn(),
        is_valid: impl Fn() -> bool,
    ) -> DatagramEnd {
        self.attach(link);
        let end = self.pass_answers(link, options, on_answer, is_valid).await;
        self.detach();
        end
    }

    async fn pass_answers(
        &self,
        link: &DatagramLink,
        options: DatagramRelayOptions,
        on_answer: impl Fn(),
        is_valid: impl Fn() -> bool,
    ) -> DatagramEnd {
        let session = &*self.0;
        let core = self.core();
        let before = session.answers.get();
        let mut is_answered = false;
        loop {
            session.source.clear(READ);
            if session.must_end() {
                return self.early_end();
            }
            if !session.is_retired.get() && !is_valid() {
                self.retire();
            }
            let is_answered_fully = || {
                let expected = |count: u32| session.requests.get().saturating_mul(count.into());
                options.responses.is_some_and(|count| session.answers.get() >= expected(count))
            };
            let received = self.receive(link, is_answered_fully);
            let answers = session.answers.get();
            if answers > before && !std::mem::replace(&mut is_answered, true) {
                on_answer();
                self.release_answered();
            }
            if answers >= MANY_ANSWERS {
                link.expect_many();
            }
            if is_answered_fully() {
                return DatagramEnd::Answered;
            }
            if received.is_err() || session.is_refused.get() {
                return DatagramEnd::Refused;
            }
            if received.is_ok_and(|is_all| !is_all) {
                core.yield_now().await;
                continue;
            }
            let deadline = session.ends_at(options.idle);
            if deadline <= core.now() {
                return if session.is_retired.get() { DatagramEnd::Replaced } else { DatagramEnd::Idle };
            }
            let readable = Interest::READ;
            let sources = [(link.source(), readable), (&*session.source, readable)];
            let must_check = || {
                session.must_end() || session.is_refused.get() || (!session.is_retired.get() && !is_valid())
            };
            // At the deadline, the session ends unless datagrams have moved that.
            let _ = wait::any_ready(core, sources, deadline, must_check).await;
        }
    }

    /// Passes on what the server has sent. Returns false if there may be more.
    fn receive(&self, link: &DatagramLink, is_enough: impl Fn() -> bool) -> std::io::Result<bool> {
        let session = &*self.0;
        let (buffers, joined) = &mut *session.endpoint.buffers.borrow_mut();
        let mut received = 0;
        while received < TURN_BYTES_MAX {
            if is_enough() {
                return Ok(true);
            }
            let (has_more, len) =
                link.receive(buffers, joined, |bytes, stride| session.answer(bytes, stride))?;
            received += len;
            if !has_more {
                link.source().clear(READ | GONE);
                return Ok(true);
            }
        }
        Ok(false)
    }
}
