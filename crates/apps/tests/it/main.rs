//! Applications in each language, with real workers.
#![allow(clippy::print_stderr, clippy::unwrap_used)] // helpers of tests are tests too

#[path = "../rig/mod.rs"]
mod rig;

mod ends;
mod hijack;
mod lives;
mod native;
mod psgi;
mod python;
mod rack;
mod rack_life;
mod spill;
mod streams;
mod websocket;
mod websocket_h2;
