//! The server on real sockets: what a simulation has to take on trust.
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
