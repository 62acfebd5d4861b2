//! The atomics the channel is written over: the machine's, or loom's, which tries every order of them.

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicU32, fence};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, fence};

pub(crate) use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
