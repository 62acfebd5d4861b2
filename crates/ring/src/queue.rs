//! Requests waiting for a worker: one queue per server thread, from which any worker takes.
//!
//! The claim is a compare-and-swap on the slot's own state word. Head, tail and cells only say where to look: a cell may
//! name a slot that was claimed or cancelled long ago, and whoever finds that moves the head on. So a worker that dies
//! between its claim and moving the head leaves nothing behind that stops the others.

use crate::shared::SharedMemory;
use crate::sync::{AcqRel, Acquire, AtomicU32, Relaxed, Release};
use crate::words::{SlotPhase, SlotState, Tag};

/// One thread's queue, in the shared memory.
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

    /// Where the oldest tag stands, and how many there are: none where the words are wild, which the server mends.
    fn span(&self) -> (u32, u32) {
        loop {
            let head = self.head.load(Acquire);
            let waiting = self.tail.load(Acquire).wrapping_sub(head);
            if waiting as usize <= self.cells.len() {
                return (head, waiting);
            }
            // The head moved on between the two looks; or else someone scribbled on it.
            if self.head.load(Acquire) == head {
                return (head, 0);
            }
        }
    }

    /// Whether there is nothing to look at. Not empty does not promise that a slot is ready.
    pub(crate) fn is_empty(&self) -> bool {
        self.span().1 == 0
    }

    /// How many tags there are: those of requests that no worker has claimed, and of some that were cancelled.
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
            // First the claim, then the head: dying in between loses no request.
            let _ = self.head.compare_exchange(head, head.wrapping_add(1), AcqRel, Relaxed);
            if won {
                return Some(tag);
            }
        }
    }

    /// Server's side: adds `tag`, whose slot is ready, at the server's own `tail`.
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

    /// Server's side: drops the tags of slots no longer ready and puts every ready one back, the longest in the queue
    /// first. For a queue full of cancelled requests, and for one whose words a dead worker may have scribbled on.
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
        // In this order the queue is empty, not wild, to whoever looks in between.
        self.head.store(start, Release);
        self.tail.store(*tail, Release);
    }
}
