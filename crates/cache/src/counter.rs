//! A counter that every core increments for a request.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Number of cells. Threads beyond this number share cells, which is correct and only slower.
const CELLS: usize = 64;

/// A cell of a pair of cache lines of its own; processors fetch lines in pairs.
#[repr(align(128))]
#[derive(Debug, Default)]
struct CounterCell(AtomicU64);

/// A counter without a cache line that two cores write: each thread has its own cell.
#[derive(Debug)]
pub struct SplitCounter {
    cells: Box<[CounterCell]>,
}

impl Default for SplitCounter {
    fn default() -> SplitCounter {
        SplitCounter { cells: (0..CELLS).map(|_| CounterCell::default()).collect() }
    }
}

impl SplitCounter {
    /// Adds one.
    pub fn increment(&self) {
        if let Some(cell) = self.cells.get(own_cell()) {
            cell.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The count: the sum of all cells, each read at its own time.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.cells.iter().map(|cell| cell.0.load(Ordering::Relaxed)).sum()
    }
}

/// Returns the index of this thread's cell.
fn own_cell() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static OWN: Cell<Option<usize>> = const { Cell::new(None) });
    OWN.get().unwrap_or_else(|| {
        let own = NEXT.fetch_add(1, Ordering::Relaxed) % CELLS;
        OWN.set(Some(own));
        own
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_more_threads_than_cells_are_summed() {
        let counter = SplitCounter::default();
        std::thread::scope(|scope| {
            for _ in 0..CELLS + 6 {
                scope.spawn(|| (0..100).for_each(|_| counter.increment()));
            }
        });
        assert_eq!(counter.get(), (CELLS as u64 + 6) * 100);
    }
}
