//! The server on real sockets: what a simulation has to take on trust.
#![allow(clippy::unwrap_used)]

mod rig;
mod bind;
mod drain;
mod limits;
mod slow;
mod spill;
mod traffic;
