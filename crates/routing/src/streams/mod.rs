//! Streams: connections that are relayed to upstream servers as they are.

pub mod limits;
pub mod route;
