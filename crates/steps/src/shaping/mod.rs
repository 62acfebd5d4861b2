//! Limits of connections and of concurrent requests, and limits shared between servers.

pub mod connections;
pub mod queue;
pub mod shared_limits;
