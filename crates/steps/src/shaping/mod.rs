//! How much clients get at a time, and limits that servers share.

pub mod connections;
pub mod queue;
pub mod shared;
