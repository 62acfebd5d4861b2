//! How much memory the real binary has while clients want it to have a great deal, and afterwards.
#![allow(clippy::unwrap_used)] // helpers of tests are tests too

#[path = "../hosted/mod.rs"]
mod hosted;
#[path = "../origin/mod.rs"]
mod origin;
#[path = "../rig/mod.rs"]
mod rig;

mod budget;
mod hoard;
