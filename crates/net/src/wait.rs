//! Waits for event sources, which are fed by a descriptor or by the task of a multiplexed connection.

use std::pin::Pin;
use std::task::{Context, Poll};

use times::Moment;

use crate::core::Core;
use crate::fault::Fault;
use crate::source::{GONE, HALF_CLOSED, READ, Source, WRITE};

/// A set of events to wait for on a source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interest(pub(crate) u8);

impl Interest {
    /// The peer has closed its sending side, or is gone.
    pub const END: Interest = Interest(HALF_CLOSED | GONE);

    /// Readability.
    pub const READ: Interest = Interest(READ);

    /// Writability.
    pub const WRITE: Interest = Interest(WRITE);

    /// The peer is gone in both directions.
    pub const GONE: Interest = Interest(GONE);

    /// Readability, writability, both or neither.
    #[must_use]
    pub const fn of(read: bool, write: bool) -> Interest {
        Interest(if read { READ } else { 0 } | if write { WRITE } else { 0 })
    }

    /// Whether the set contains readability.
    #[must_use]
    pub(crate) const fn includes_read(self) -> bool {
        self.0 & READ != 0
    }

    /// Adds the event that the peer is gone in both directions, if `is_wanted`.
    #[must_use]
    pub(crate) const fn or_gone(self, is_wanted: bool) -> Interest {
        Interest(self.0 | if is_wanted { GONE } else { 0 })
    }

    /// Returns the union of both sets.
    #[must_use]
    pub const fn or(self, other: Interest) -> Interest {
        Interest(self.0 | other.0)
    }

    /// Removes writability.
    #[must_use]
    pub(crate) const fn without_write(self) -> Interest {
        Interest(self.0 & !WRITE)
    }

    fn is_met(self, source: &Source) -> bool {
        source.ready() & self.0 != 0
    }

    /// Registers the waker of `cx` for these events.
    fn wait(self, core: &Core, source: &Source, cx: &Context<'_>) {
        if self.0 & (READ | HALF_CLOSED | GONE) != 0 {
            core.wait_read(source, cx);
        }
        if self.0 & WRITE != 0 {
            core.wait_write(source, cx);
        }
    }
}

/// Waits until the source meets the interest.
///
/// # Errors
/// [`Fault::Timeout`] at the deadline.
pub(crate) fn ready<'s>(
    core: &'s Core,
    source: &'s Source,
    interest: Interest,
    deadline: Moment,
) -> impl Future<Output = Result<(), Fault>> + 's {
    any_ready(core, [(source, interest)], deadline, || false)
}

/// Waits until one of the sources meets its interest, with one deadline for all, or until `is_done` returns
/// true, for which the task must be woken by other means.
///
/// # Errors
/// [`Fault::Timeout`] at the deadline.
pub(crate) fn any_ready<'s, const SOURCES: usize, D: Fn() -> bool + Unpin>(
    core: &'s Core,
    sources: [(&'s Source, Interest); SOURCES],
    deadline: Moment,
    is_done: D,
) -> AnyReady<'s, SOURCES, D> {
    AnyReady { core, sources, deadline, is_done, waits: false }
}

/// Future of [`any_ready`]. Not an `async fn`, whose future would hold its arguments twice.
pub(crate) struct AnyReady<'s, const SOURCES: usize, D> {
    core: &'s Core,
    sources: [(&'s Source, Interest); SOURCES],
    deadline: Moment,
    is_done: D,
    /// Whether the future was polled and had to wait.
    waits: bool,
}

impl<const SOURCES: usize, D: Fn() -> bool> AnyReady<'_, SOURCES, D> {
    fn poll_sources(&self, cx: &Context<'_>) -> Poll<Result<(), Fault>> {
        if (self.is_done)() || self.sources.iter().any(|(source, interest)| interest.is_met(source)) {
            return Poll::Ready(Ok(()));
        }
        for (source, interest) in self.sources {
            // An expiry left over from an earlier wait, or reported late, must not end this one.
            if source.take_expired() && self.waits && self.core.now() >= self.deadline {
                return Poll::Ready(Err(Fault::Timeout));
            }
            source.set_deadline(self.deadline);
            interest.wait(self.core, source, cx);
        }
        Poll::Pending
    }
}

impl<const SOURCES: usize, D: Fn() -> bool + Unpin> Future for AnyReady<'_, SOURCES, D> {
    type Output = Result<(), Fault>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        let polled = self.poll_sources(cx);
        if polled.is_ready() && self.waits {
            self.sources.iter().for_each(|(source, _)| source.set_deadline(Moment::NEVER));
        }
        self.waits = true;
        polled
    }
}

/// Whether `source` meets the interest; if not, registers the waker of `cx`, without a deadline.
pub(crate) fn check_or_register(core: &Core, source: &Source, interest: Interest, cx: &Context<'_>) -> bool {
    let met = interest.is_met(source);
    if !met {
        interest.wait(core, source, cx);
    }
    met
}
