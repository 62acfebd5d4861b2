//! HTTPS and certificates with the real binary.
#![allow(clippy::unwrap_used, missing_docs)] // test helpers are test code too

#[path = "../certified/mod.rs"]
mod certified;
#[path = "../hosted/mod.rs"]
mod hosted;
#[path = "../../../certificates/tests/pebble/mod.rs"]
mod pebble;
#[path = "../../../certificates/tests/responder/mod.rs"]
mod responder;
#[path = "../rig/mod.rs"]
mod rig;

mod apps;
mod certificates;
mod expired;
mod ocsp;
mod tls;
