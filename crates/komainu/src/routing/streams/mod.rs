//! Streams: connections that are relayed to upstream servers as they are.

pub(crate) mod limits;
pub(crate) mod route;
