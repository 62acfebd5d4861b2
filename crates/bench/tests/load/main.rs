//! The load generator against servers that do as they are told.

#![allow(clippy::unwrap_used)] // tests all of it

mod common;
mod known;
mod traffic;
