//! Accounting of the memory that the server holds for its peers.
//!
//! Each core adds up the memory of its connections in a cell of its own, and adds the difference to the total
//! of all cores from time to time. No request costs an atomic operation for this.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use crate::heavy::HeavyConnections;

/// Change that a core adds to the total at once; smaller ones are added within a tenth of a second.
const STEP_BYTES: usize = 256 * 1024;
/// Decrease of the total after which memory is returned to the system.
const RELEASE_FALL_BYTES: usize = 4 * 1024 * 1024;
/// Maximum growth of the receive windows of one HTTP/2 connection: 400 Mbit/s at a round-trip time of 80 ms.
const WINDOW_GROWTH_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Divisor of the budget: the part that a pool of unused buffers may keep on one core.
const POOL_SHARE: u64 = 32;

/// Memory budget of the server for its peers, over all cores. Clones share the same budget.
#[derive(Clone, Debug)]
pub struct MemoryBudget(Arc<Total>);

#[derive(Debug)]
struct Total {
    bytes_max: AtomicU64,
    held: AtomicI64,
    refused: AtomicU64,
}

/// Utilization of the budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pressure {
    /// Less than half of the budget.
    #[default]
    Low,
    /// Half of the budget: buffers stay small, and the server stops reading from a peer that does not read.
    High,
    /// Seven eighths of the budget: new requests are refused, and a client that reads nothing of its response
    /// for some seconds is disconnected. After five seconds, the connections that hold the most memory are
    /// closed.
    Critical,
    /// The whole budget: new connections are not accepted.
    Exhausted,
}

impl MemoryBudget {
    /// Creates a budget, in bytes.
    #[must_use]
    pub fn new(bytes_max: u64) -> MemoryBudget {
        MemoryBudget(Arc::new(Total {
            bytes_max: AtomicU64::new(bytes_max),
            held: AtomicI64::new(0),
            refused: AtomicU64::new(0),
        }))
    }

    /// Returns the size of the budget, in bytes.
    #[must_use]
    pub fn bytes_max(&self) -> u64 {
        self.0.bytes_max.load(Ordering::Relaxed)
    }

    /// Sets the size of the budget. Memory held in excess of it stays until its owners release it.
    pub fn set_bytes_max(&self, bytes_max: u64) {
        self.0.bytes_max.store(bytes_max, Ordering::Relaxed);
    }

    /// Returns the bytes held. Changes that cores have not added yet are missing.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        u64::try_from(self.0.held.load(Ordering::Relaxed)).unwrap_or(0)
    }

    /// Returns the number of requests refused for lack of memory.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.0.refused.load(Ordering::Relaxed)
    }

    /// Accounts for memory held by the process and not by a core: `before` bytes become `after` bytes.
    pub fn change(&self, before: u64, after: u64) {
        let delta = i64::try_from(after).unwrap_or(i64::MAX) - i64::try_from(before).unwrap_or(i64::MAX);
        self.0.held.fetch_add(delta, Ordering::Relaxed);
    }

    fn pressure(&self) -> Pressure {
        let held = self.held_bytes();
        let max = self.bytes_max();
        if held >= max {
            return Pressure::Exhausted;
        }
        if held >= max / 8 * 7 {
            return Pressure::Critical;
        }
        if held >= max / 2 { Pressure::High } else { Pressure::Low }
    }
}

impl Default for MemoryBudget {
    /// No limit.
    fn default() -> MemoryBudget {
        MemoryBudget::new(u64::MAX)
    }
}

/// The memory accounting of one core.
#[derive(Debug, Default)]
pub struct Memory {
    budget: MemoryBudget,
    held_bytes: Cell<usize>,
    /// Bytes that the total already includes.
    added_bytes: Cell<usize>,
    pressure: Cell<Pressure>,
    /// Maximum of `held_bytes` since memory was last returned to the system.
    peak_bytes: Cell<usize>,
    /// Connections to close while memory is critically short.
    pub(crate) heavy: HeavyConnections,
}

impl Memory {
    pub(crate) fn new(budget: MemoryBudget) -> Memory {
        let mut memory = Memory::default();
        memory.budget = budget;
        memory
    }

    /// Returns the utilization of the budget, as last seen by this core.
    #[must_use]
    pub fn pressure(&self) -> Pressure {
        self.pressure.get()
    }

    /// Returns the budget.
    #[must_use]
    pub fn budget(&self) -> &MemoryBudget {
        &self.budget
    }

    /// Returns the bytes that a pool of this core may keep in unused buffers, at most `bytes_max`. The budget
    /// does not include them, so the limit is low if the budget is small, and 0 under memory pressure.
    #[must_use]
    pub fn pool_bytes_max(&self, bytes_max: usize) -> usize {
        let share = usize::try_from(self.budget.bytes_max() / POOL_SHARE).unwrap_or(usize::MAX);
        if self.pressure() >= Pressure::High { 0 } else { bytes_max.min(share) }
    }

    /// Returns the maximum growth of the receive windows of one HTTP/2 connection, in bytes: at most 4 MiB
    /// and a part of the budget; 0 under memory pressure.
    #[must_use]
    pub(crate) fn window_growth_max(&self) -> usize {
        self.pool_bytes_max(WINDOW_GROWTH_BYTES_MAX)
    }

    /// Accounts for bytes that belong to no connection, until the returned value is dropped.
    #[must_use]
    pub fn charge(self: &Rc<Self>, bytes: usize) -> MemoryCharge {
        self.change(0, bytes);
        MemoryCharge { memory: self.clone(), bytes }
    }

    /// Accounts for a change from `before` to `after` bytes.
    pub(crate) fn change(&self, before: usize, after: usize) {
        let held = (self.held_bytes.get() + after).saturating_sub(before);
        self.held_bytes.set(held);
        if held.abs_diff(self.added_bytes.get()) >= STEP_BYTES {
            self.publish_changes();
        }
    }

    /// Adds the difference to the total, and updates the pressure.
    pub(crate) fn publish_changes(&self) {
        let held = self.held_bytes.get();
        let before = self.added_bytes.replace(held);
        if held != before {
            self.budget.0.held.fetch_add(held as i64 - before as i64, Ordering::Relaxed);
        }
        self.peak_bytes.set(self.peak_bytes.get().max(held));
        self.pressure.set(self.budget.pressure());
    }

    /// Counts a request that was refused for lack of memory.
    pub(crate) fn count_refused(&self) {
        self.budget.0.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether memory has fallen so far that it should be returned to the system. True once.
    pub(crate) fn take_release_due(&self) -> bool {
        let peak = self.peak_bytes.get();
        let held = self.held_bytes.get();
        let has_fallen = peak - held.min(peak) >= RELEASE_FALL_BYTES && held < peak / 2;
        if has_fallen {
            self.peak_bytes.set(held);
        }
        has_fallen
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.held_bytes.set(0);
        self.publish_changes();
    }
}

/// Bytes accounted for until this is dropped.
#[derive(Debug)]
pub struct MemoryCharge {
    memory: Rc<Memory>,
    bytes: usize,
}

impl MemoryCharge {
    /// Sets the number of bytes held.
    pub fn set(&mut self, bytes: usize) {
        self.memory.change(std::mem::replace(&mut self.bytes, bytes), bytes);
    }
}

impl Drop for MemoryCharge {
    fn drop(&mut self) {
        self.memory.change(self.bytes, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1024 * 1024;

    #[test]
    fn cores_share_one_memory_budget_in_steps() {
        let budget = MemoryBudget::new(16 * MIB as u64);
        let one = Memory::new(budget.clone());
        let other = Memory::new(budget.clone());
        one.change(0, 1_000);
        assert_eq!(budget.held_bytes(), 0, "little is added later");
        one.change(1_000, 9 * MIB);
        assert_eq!((budget.held_bytes(), one.pressure()), (9 * MIB as u64, Pressure::High));
        assert_eq!(other.pressure(), Pressure::Low, "not looked yet");
        other.publish_changes();
        assert_eq!(other.pressure(), Pressure::High);
        other.change(0, 5 * MIB);
        assert_eq!(other.pressure(), Pressure::Critical);
        other.change(0, 2 * MIB);
        assert_eq!(other.pressure(), Pressure::Exhausted);
        drop(other);
        one.change(9 * MIB, 0);
        assert_eq!((budget.held_bytes(), one.pressure()), (0, Pressure::Low));
        assert!(one.take_release_due() && !one.take_release_due());
    }

    #[test]
    fn memory_pressure_follows_the_limit_and_held_bytes() {
        let memory = Memory::default();
        memory.change(0, 1 << 40);
        assert_eq!(memory.pressure(), Pressure::Low);
        let memory = Rc::new(Memory::new(MemoryBudget::new(1 << 20)));
        let held = memory.charge(1 << 20);
        assert_eq!(memory.pressure(), Pressure::Exhausted);
        drop(held);
        assert_eq!((memory.pressure(), memory.budget().held_bytes()), (Pressure::Low, 0));
    }

    #[test]
    fn pools_keep_nothing_while_memory_is_short() {
        assert_eq!(Memory::default().pool_bytes_max(8 * MIB), 8 * MIB);
        let memory = Rc::new(Memory::new(MemoryBudget::new(16 * MIB as u64)));
        assert_eq!(memory.pool_bytes_max(8 * MIB), MIB / 2);
        let _held = memory.charge(8 * MIB);
        assert_eq!(memory.pool_bytes_max(8 * MIB), 0);
    }
}
