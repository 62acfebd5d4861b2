//! The cache behind the real binary.
#![allow(clippy::unwrap_used)] // test helpers are test code too

#[path = "../delta/mod.rs"]
mod delta;
#[path = "../hosted/mod.rs"]
mod hosted;
#[path = "../origin/mod.rs"]
mod origin;
#[path = "../rig/mod.rs"]
mod rig;

mod apps;
mod coded;
mod disk;
mod hits;
mod leaks;
mod origins;
mod poisoning;
mod policy;
mod purge;
mod threads;
