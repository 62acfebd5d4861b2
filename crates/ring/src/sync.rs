//! The atomics that the channel uses: the standard ones, or loom's, which explores every interleaving.

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicU32, fence};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, fence};

pub(crate) use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
