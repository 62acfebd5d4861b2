//! Streams: TCP connections that are relayed to upstream servers.

pub mod limits;
pub mod route;
