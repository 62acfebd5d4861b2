//! Static files over sockets.
#![allow(clippy::unwrap_used)] // helpers of tests are tests too

#[path = "../rig/mod.rs"]
mod rig;
#[path = "../../src/scratch.rs"]
mod scratch;

mod serve;
mod streams;
