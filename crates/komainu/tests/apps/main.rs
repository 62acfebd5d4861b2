//! Applications behind the real binary.
#![allow(clippy::print_stderr, clippy::unwrap_used)] // test helpers are test code too

#[path = "../hosted/mod.rs"]
mod hosted;
#[path = "../rig/mod.rs"]
mod rig;

mod apps;
mod arena;
mod children;
mod forwarded;
mod hangs;
mod heads;
mod ids;
mod kept;
mod leavers;
mod lives;
mod loops;
mod misbehaving;
mod php;
mod plack;
mod python;
mod rack;
mod remains;
mod shown;
mod signals;
mod queues;
mod uploads;
