//! The clocks that measurements are taken with.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of a clock that never steps back; its zero is arbitrary.
pub(crate) fn now_ns() -> u64 {
    read(ClockId::Monotonic)
}

/// CPU time that this thread has used, in nanoseconds.
pub(crate) fn thread_cpu_ns() -> u64 {
    read(ClockId::ThreadCPUTime)
}

/// CPU time that this process has used, in nanoseconds.
pub(crate) fn process_cpu_ns() -> u64 {
    read(ClockId::ProcessCPUTime)
}

fn read(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
