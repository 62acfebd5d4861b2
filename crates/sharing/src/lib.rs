//! Sharing: what several servers count together, in a Redis or Valkey server.
//!
//! Each server decides by its own table, at once. A thread of this crate tells Redis what was spent since the last exchange, and learns what all
//! servers have spent: what they let pass in excess meanwhile is a debt of the key, which is paid before anything else passes. So a limit is
//! exceeded by what passes in one exchange's time, once, and not by a share of it. This crate never sees a request and knows no limit.

mod exchange;

pub use exchange::{SharedChange, SharedTable, Sharing, SharingEvent, SharingOptions};
