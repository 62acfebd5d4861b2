//! Notices from one worker slot to one server thread: a ring of cells, each with a tag or 0.
//!
//! The producer need not check the consumer's position: a slot has at most one unread notice (guarded by its
//! `NOTICED` word) and one unread final tag, and a lane has room for both of every slot. The consumer needs
//! no head word: a non-zero cell is a tag. Thus a notice transfers one cache line.

use crate::shared::SharedMemory;
use crate::sync::{Acquire, AtomicU32, Relaxed, Release};
use crate::words::Tag;

fn cell(shared: &SharedMemory, thread: usize, worker_slot: usize, position: u32) -> &AtomicU32 {
    let mask = shared.geometry.cells as u32 - 1;
    shared.word(shared.geometry.lane(thread, worker_slot) + (position & mask) as usize)
}

/// Worker's side: stores `tag` at `position`.
pub(crate) fn push(shared: &SharedMemory, thread: usize, worker_slot: usize, position: &mut u32, tag: Tag) {
    cell(shared, thread, worker_slot, *position).store(tag.0, Release);
    *position = position.wrapping_add(1);
}

/// Server's side: takes the tag at `position`, if there is one.
pub(crate) fn pop(
    shared: &SharedMemory,
    thread: usize,
    worker_slot: usize,
    position: &mut u32,
) -> Option<Tag> {
    let cell = cell(shared, thread, worker_slot, *position);
    let tag = cell.load(Acquire);
    if tag == 0 {
        return None;
    }
    cell.store(0, Relaxed);
    *position = position.wrapping_add(1);
    Some(Tag(tag))
}

/// Server's side: whether there is no tag at `position`.
pub(crate) fn is_empty(shared: &SharedMemory, thread: usize, worker_slot: usize, position: u32) -> bool {
    cell(shared, thread, worker_slot, position).load(Acquire) == 0
}

/// Server's side, once the producer is dead: resets the lane for the next worker in the slot.
pub(crate) fn clear(shared: &SharedMemory, thread: usize, worker_slot: usize) {
    for position in 0..shared.geometry.cells as u32 {
        cell(shared, thread, worker_slot, position).store(0, Relaxed);
    }
}
