//! Memory and CPU time of the real binary that one client can cause. These tests run exclusively.
#![allow(clippy::unwrap_used)] // test helpers are test code too

#[path = "../bounds/mod.rs"]
mod bounds;
#[path = "../hosted/mod.rs"]
mod hosted;
#[path = "../rig/mod.rs"]
mod rig;

mod beside;
mod h2;
mod http1;
mod quic;
mod sockets;
mod tls;
mod work;
