//! How much clients get at a time, and limits that servers share.

pub(crate) mod connections;
pub(crate) mod queue;
pub(crate) mod shared;
