//! What a worker's part of a request costs: measured by the worker where the server asks for it, checked by the server.

/// What a worker is to measure of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u32)]
pub enum Measure {
    /// Only when it has claimed the request.
    #[default]
    Claim = 0,
    /// The CPU time of its thread too: two system calls.
    Cpu = 1,
    /// And how much memory its process has grown: two readings of `/proc/self/statm`.
    All = 2,
}

impl Measure {
    #[cfg_attr(loom, expect(dead_code, reason = "nothing is measured under loom"))]
    pub(crate) fn of(word: u32) -> Measure {
        match word {
            0 => Measure::Claim,
            1 => Measure::Cpu,
            _ => Measure::All,
        }
    }
}

/// What a worker has reported of a request. The worker is not trusted: figures may be wrong, but nothing depends on them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WorkerCost {
    /// When it claimed the request: the low 32 bits of the microseconds of `CLOCK_MONOTONIC`.
    pub claimed_us: Option<u32>,
    /// CPU time of its thread, in microseconds, if it was asked for and the thread had no other request meanwhile.
    pub cpu_us: Option<u32>,
    /// How much the resident memory of its process has grown (or shrunk), in KiB; under the same conditions.
    pub memory_kib: Option<i32>,
}

/// In a slot's words: nothing was measured.
pub(crate) const UNKNOWN: u32 = 0;

impl WorkerCost {
    /// What a slot's words say. CPU time and memory are written before the end is: they count once that is seen.
    pub(crate) fn read([claimed_us, cpu_us, memory_kib]: [u32; 3], is_over: bool) -> WorkerCost {
        let known = |word: u32, is_meant: bool| (is_meant && word != UNKNOWN).then_some(word);
        WorkerCost {
            claimed_us: known(claimed_us, true),
            cpu_us: known(cpu_us, is_over).map(|word| word - 1),
            memory_kib: known(memory_kib, is_over).map(|word| word.wrapping_sub(1).cast_signed()),
        }
    }
}

#[cfg(not(loom))]
mod meter {
    use rustix::time::{ClockId, clock_gettime};

    use super::{Measure, UNKNOWN};

    /// A request that is measured.
    #[derive(Clone, Copy)]
    pub(crate) struct Meter {
        /// CPU time of the thread when it was claimed, in nanoseconds.
        cpu_ns: u64,
        resident_kib: Option<u32>,
        /// How many requests the thread had claimed, this one among them.
        claims: u32,
    }

    impl Meter {
        /// Begins, if there is something to measure: `claims` requests were claimed, this one among them.
        pub(crate) fn new(measure: Measure, claims: u32) -> Option<Meter> {
            let resident_kib = match measure {
                Measure::Claim => return None,
                Measure::Cpu => None,
                Measure::All => resident_kib(),
            };
            Some(Meter { cpu_ns: cpu_ns(), resident_kib, claims })
        }

        /// The words for CPU time and memory, each one more than the figure, if no other request was claimed meanwhile.
        pub(crate) fn words(self, claims: u32) -> (u32, u32) {
            if claims != self.claims {
                return (UNKNOWN, UNKNOWN);
            }
            let cpu_us = cpu_ns().saturating_sub(self.cpu_ns) / 1_000;
            let grown = self
                .resident_kib
                .zip(self.resident_kib.and_then(|_| resident_kib()))
                .map(|(before, now)| now.wrapping_sub(before));
            let cpu_word = u32::try_from(cpu_us).unwrap_or(u32::MAX).saturating_add(1);
            (cpu_word, grown.map_or(UNKNOWN, |kib| kib.wrapping_add(1)))
        }
    }

    /// When a request is claimed, as its word says it.
    pub(crate) fn claimed_us() -> u32 {
        let now = clock_gettime(ClockId::Monotonic);
        // The low bits are meant; and 0 says that nothing is known.
        ((now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1_000) as u32).max(1)
    }

    fn cpu_ns() -> u64 {
        let used = clock_gettime(ClockId::ThreadCPUTime);
        used.tv_sec as u64 * 1_000_000_000 + used.tv_nsec as u64
    }

    /// Resident memory of this process, in KiB.
    fn resident_kib() -> Option<u32> {
        let text = std::fs::read_to_string("/proc/self/statm").ok()?;
        let pages: u64 = text.split(' ').nth(1)?.parse().ok()?;
        u32::try_from(pages * rustix::param::page_size() as u64 / 1024).ok()
    }
}

#[cfg(not(loom))]
pub(crate) use meter::{Meter, claimed_us};
