//! Memory of the real binary during and after attempts of clients to exhaust it.
#![allow(clippy::unwrap_used)] // test helpers are test code too

#[path = "../hosted/mod.rs"]
mod hosted;
#[path = "../origin/mod.rs"]
mod origin;
#[path = "../rig/mod.rs"]
mod rig;

mod budget;
mod hoard;
