//! Sharing: what several servers count together, in a Redis or Valkey server.
//!
//! This crate owns the exchange of counts: its thread reports to Redis what was spent since the last exchange, and gets what all servers have spent.
//! Each server decides by its own table, at once; what they let pass in excess meanwhile is a debt of the key, which is paid before anything else
//! passes. So a limit is exceeded by what passes in one exchange's time, once, and not by a share of it. It never sees a request, and knows
//! no limit.

mod connection;
mod exchange;

pub use exchange::{SharedChange, SharedTable, Sharing, SharingEvent, SharingOptions};
