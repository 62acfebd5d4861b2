//! Streams: connections and datagrams that are relayed to upstream servers.

pub mod limits;
pub(crate) mod configured;
mod report;
pub mod route;
pub(crate) mod datagrams;
