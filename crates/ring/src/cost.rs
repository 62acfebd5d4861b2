//! The cost of a request to its worker: measured by the worker if the server asks for it, validated by the
//! server.

/// The measurements that a worker makes for a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u32)]
pub enum Measure {
    /// Only the time of the claim.
    #[default]
    Claim = 0,
    /// Also the CPU time of its thread: two system calls.
    Cpu = 1,
    /// Also the memory growth of its process: two reads of `/proc/self/statm`.
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

/// The cost reported by a worker. The worker is not trusted: figures may be wrong, but nothing depends on
/// them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WorkerCost {
    /// Time of the claim: the low 32 bits of `CLOCK_MONOTONIC` in microseconds.
    pub claimed_us: Option<u32>,
    /// CPU time of the worker's thread in microseconds, if requested and if the thread had no other request
    /// at the same time.
    pub cpu_us: Option<u32>,
    /// Growth (or decrease) of the resident memory of the worker's process in KiB, under the same conditions.
    pub memory_kib: Option<i32>,
}

/// Value of a slot's word that means "not measured".
pub(crate) const UNKNOWN: u32 = 0;

impl WorkerCost {
    /// Decodes a slot's words. CPU time and memory are written before the end of the response, so they are
    /// valid only once that is seen.
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

    /// A measurement in progress.
    #[derive(Clone, Copy)]
    pub(crate) struct Meter {
        /// CPU time of the thread at the claim, in nanoseconds.
        cpu_ns: u64,
        resident_kib: Option<u32>,
        /// Number of requests that the thread had claimed, including this one.
        claims: u32,
    }

    impl Meter {
        /// Begins measuring, if requested: `claims` requests were claimed, including this one.
        pub(crate) fn new(measure: Measure, claims: u32) -> Option<Meter> {
            let resident_kib = match measure {
                Measure::Claim => return None,
                Measure::Cpu => None,
                Measure::All => resident_kib(),
            };
            Some(Meter { cpu_ns: cpu_ns(), resident_kib, claims })
        }

        /// The words for CPU time and memory, each one greater than the figure, if no other request was
        /// claimed at the same time.
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

    /// The current time in the format of the slot's word.
    pub(crate) fn claimed_us() -> u32 {
        let now = clock_gettime(ClockId::Monotonic);
        // Only the low bits are used; 0 means unknown.
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
