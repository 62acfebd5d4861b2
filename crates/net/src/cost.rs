//! CPU time that the thread spends in a request's handler.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;

use rustix::time::{ClockId, clock_gettime};

/// The CPU time of a request's handler, measured as the thread's CPU time while the handler runs. Parsing the
/// head and the output at the end of the engine's turn are not included.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct CpuMeter {
    spent_ns: Cell<u64>,
    /// Thread CPU time at which the handler was resumed.
    resumed_ns: Cell<Option<u64>>,
}

impl CpuMeter {
    /// Runs a future to its end and measures its CPU time.
    pub async fn run<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        poll_fn(|context| {
            self.resumed_ns.set(Some(thread_ns()));
            let polled = future.as_mut().poll(context);
            self.spent_ns.set(self.spent_ns());
            self.resumed_ns.set(None);
            polled
        })
        .await
    }

    /// Returns the CPU time used so far, in microseconds.
    #[must_use]
    pub fn spent_us(&self) -> u64 {
        self.spent_ns() / 1_000
    }

    fn spent_ns(&self) -> u64 {
        let now = self.resumed_ns.get().map_or(0, |since_ns| thread_ns().saturating_sub(since_ns));
        self.spent_ns.get() + now
    }
}

fn thread_ns() -> u64 {
    let used = clock_gettime(ClockId::ThreadCPUTime);
    used.tv_sec as u64 * 1_000_000_000 + used.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_meter_counts_only_time_inside_the_future() {
        let meter = CpuMeter::default();
        let mut turns = 0;
        let work = poll_fn(|_| {
            let since_ns = thread_ns();
            while thread_ns() - since_ns < 2_000_000 {}
            turns += 1;
            if turns < 3 { std::task::Poll::Pending } else { std::task::Poll::Ready(turns) }
        });
        let mut run = pin!(meter.run(work));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        while run.as_mut().poll(&mut context).is_pending() {
            let since_ns = thread_ns();
            while thread_ns() - since_ns < 20_000_000 {}
        }
        let spent_us = meter.spent_us();
        assert!((6_000..40_000).contains(&spent_us), "{spent_us} us");
    }
}
