//! HTTP/3 with the real binary.
#![allow(clippy::unwrap_used, missing_docs)] // test helpers are test code too

#[path = "../certified/mod.rs"]
mod certified;
#[path = "../hosted/mod.rs"]
mod hosted;
#[path = "../line/mod.rs"]
mod line;
#[path = "../origin/mod.rs"]
mod origin;
#[path = "../rig/mod.rs"]
mod rig;

mod connections;
mod endings;
mod floods;
mod guards;
mod h3_origin;
mod hostile;
mod hostile_quic;
mod leaving;
mod raw;
mod requests;
mod tunnels;
mod upgrades;
mod upstream;
mod weather;

use rig::h3_client;
