//! Requests waiting for a worker: one queue per server thread, shared by all workers.
//!
//! A claim is a compare-and-swap on the slot's own state word. Head, tail and cells are only hints: a cell
//! may name a slot that was claimed or cancelled long ago, and a worker that finds one advances the head.
//! Thus a worker that dies between its claim and advancing the head does not block the others.

use crate::shared::SharedMemory;
use crate::sync::{AcqRel, Acquire, AtomicU32, Relaxed, Release};
use crate::words::{SlotPhase, SlotState, Tag};

/// The queue of one thread, in the shared memory.
#[derive(Clone, Copy)]
pub(crate) struct Queue<'a> {
    shared: &'a SharedMemory,
    thread: usize,
    head: &'a AtomicU32,
    tail: &'a AtomicU32,
    cells: &'a [AtomicU32],
}

impl<'a> Queue<'a> {
    pub(crate) fn new(shared: &'a SharedMemory, thread: usize) -> Queue<'a> {
        let (head, tail, cells) = shared.geometry.queue(thread);
        let words = shared.region.words();
        let cells = &words[cells..cells + shared.geometry.cells];
        Queue { shared, thread, head: &words[head], tail: &words[tail], cells }
    }

    fn cell(&self, position: u32) -> &'a AtomicU32 {
        &self.cells[position as usize & (self.cells.len() - 1)]
    }

    fn is_ready(&self, tag: Tag) -> bool {
        tag.slot() < self.shared.geometry.slots
            && self.shared.slot(self.thread, tag.slot()).load_state() == SlotState::ready(tag.generation())
    }

    /// The position of the oldest tag and the number of tags: 0 if the words are invalid, which the server
    /// repairs.
    fn span(&self) -> (u32, u32) {
        loop {
            let head = self.head.load(Acquire);
            let waiting = self.tail.load(Acquire).wrapping_sub(head);
            if waiting as usize <= self.cells.len() {
                return (head, waiting);
            }
            // The head advanced between the two reads; otherwise it was overwritten.
            if self.head.load(Acquire) == head {
                return (head, 0);
            }
        }
    }

    /// Whether the queue is empty. A non-empty queue does not guarantee a ready slot.
    pub(crate) fn is_empty(&self) -> bool {
        self.span().1 == 0
    }

    /// Number of tags: those of unclaimed requests, and of some cancelled ones.
    pub(crate) fn len(&self) -> usize {
        self.span().1 as usize
    }

    /// Worker's side: claims the oldest ready slot for `worker_slot`.
    pub(crate) fn claim(&self, worker_slot: usize) -> Option<Tag> {
        loop {
            let (head, waiting) = self.span();
            if waiting == 0 {
                return None;
            }
            let tag = Tag(self.cell(head).load(Relaxed));
            let won = tag.slot() < self.shared.geometry.slots && {
                let claimed = SlotState::new(SlotPhase::Claimed, worker_slot, tag.generation());
                self.shared
                    .slot(self.thread, tag.slot())
                    .state()
                    .compare_exchange(SlotState::ready(tag.generation()).0, claimed.0, AcqRel, Relaxed)
                    .is_ok()
            };
            // Claims before advancing the head, so that dying in between loses no request.
            let _ = self.head.compare_exchange(head, head.wrapping_add(1), AcqRel, Relaxed);
            if won {
                return Some(tag);
            }
        }
    }

    /// Server's side: adds `tag`, whose slot is ready, at the server's private `tail`.
    pub(crate) fn push(&self, tail: &mut u32, tag: Tag) {
        if tail.wrapping_sub(self.head.load(Acquire)) as usize >= self.cells.len() {
            self.rebuild(tail);
        } else {
            self.add(tail, tag);
            self.tail.store(*tail, Release);
        }
    }

    fn add(&self, tail: &mut u32, tag: Tag) {
        self.cell(*tail).store(tag.0, Relaxed);
        *tail = tail.wrapping_add(1);
    }

    /// Server's side: drops the tags of slots that are no longer ready and restores all ready ones, oldest
    /// first. Used if the queue is full of cancelled requests, or if a dead worker may have overwritten its
    /// words.
    pub(crate) fn rebuild(&self, tail: &mut u32) {
        let slots = self.shared.geometry.slots;
        let mut listed = vec![false; slots];
        let start = *tail;
        let mut tags = Vec::new();
        for back in (1..=self.cells.len() as u32).rev() {
            let tag = Tag(self.cell(start.wrapping_sub(back)).load(Relaxed));
            if self.is_ready(tag) && !std::mem::replace(&mut listed[tag.slot()], true) {
                tags.push(tag);
            }
        }
        for (slot, listed) in listed.iter().enumerate() {
            let state = self.shared.slot(self.thread, slot).load_state();
            if !listed && state.phase() == Some(SlotPhase::Ready) {
                tags.push(Tag::new(slot, state.generation()));
            }
        }
        for tag in tags {
            self.add(tail, tag);
        }
        // In this order, a concurrent reader sees an empty queue rather than an invalid one.
        self.head.store(start, Release);
        self.tail.store(*tail, Release);
    }
}
