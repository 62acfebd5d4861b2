//! Sharing of rate limit counts between servers, through a Redis or Valkey server.
//!
//! A thread reports to Redis what was spent since the last exchange, and gets the total spending of all
//! servers. Each server decides by its own table without waiting; requests admitted in excess meanwhile
//! become a debt of the key, which is paid back before further requests pass. A limit is therefore exceeded
//! once, by the requests of one exchange interval, and not permanently. This crate owns the exchange of
//! counts; the connection is that of `cluster`. It never sees requests or limits.

mod shared_limits;
mod exchange;

pub use exchange::{SharedChange, SharedTable, Sharing, SharingEvent};
pub use shared_limits::SharedLimits;
