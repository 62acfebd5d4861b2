//! The cache behind the real binary.
#![allow(clippy::unwrap_used)] // helpers of tests are tests too

#[path = "../hosted/mod.rs"]
mod hosted;
#[path = "../origin/mod.rs"]
mod origin;
#[path = "../rig/mod.rs"]
mod rig;

mod apps;
mod disk;
mod hits;
mod origins;
mod poisoning;
mod policy;
mod purge;
