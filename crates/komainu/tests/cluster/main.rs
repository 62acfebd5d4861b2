//! A set of servers with the real binary, a real Redis server and Pebble.
#![allow(clippy::unwrap_used, missing_docs)] // test helpers are test code too

#[path = "../origin/mod.rs"]
mod origin;
#[path = "../../../certificates/tests/pebble/mod.rs"]
mod pebble;
#[path = "../rig/mod.rs"]
mod rig;

mod certificates;
mod peers;
mod purges;
mod store;
