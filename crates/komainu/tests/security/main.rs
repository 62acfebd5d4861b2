//! What one client can make the server hold and do: memory and CPU time of the real binary. Nothing runs beside these tests.
#![allow(clippy::unwrap_used)] // helpers of tests are tests too

#[path = "../bounds/mod.rs"]
mod bounds;
#[path = "../hosted/mod.rs"]
mod hosted;
#[path = "../rig/mod.rs"]
mod rig;

mod beside;
mod h2;
mod http1;
mod sockets;
mod tls;
mod work;
