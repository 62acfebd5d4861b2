//! Clocks used for measurements.

use rustix::time::{ClockId, clock_gettime};

/// Returns the time of the monotonic clock in nanoseconds; its zero is arbitrary.
pub(crate) fn now_ns() -> u64 {
    read_clock(ClockId::Monotonic)
}

/// Returns the CPU time of this thread in nanoseconds.
pub(crate) fn thread_cpu_ns() -> u64 {
    read_clock(ClockId::ThreadCPUTime)
}

/// Returns the CPU time of this process in nanoseconds.
pub(crate) fn process_cpu_ns() -> u64 {
    read_clock(ClockId::ProcessCPUTime)
}

fn read_clock(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
