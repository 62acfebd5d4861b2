//! Tests of the load generator with servers of known behaviour.

#![allow(clippy::unwrap_used)] // only tests

mod common;
mod known;
mod streams;
mod traffic;
