//! The HTTP/1 machine.

#[path = "../support/mod.rs"]
mod support;

mod laws;
mod vectors;
