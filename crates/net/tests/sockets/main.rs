//! Tests of the server on real sockets, for behaviour that the simulation only assumes.
#![allow(clippy::unwrap_used)]

mod rig;
mod bandwidth;
mod bind;
mod drain;
mod ending;
mod laws;
mod limits;
mod slow;
#[path = "../support/slow_client.rs"]
mod slow_client;
mod spill;
mod traffic;
