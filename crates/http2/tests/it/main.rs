//! Tests of the HTTP/2 machine.
#![allow(clippy::print_stderr, clippy::unwrap_used)] // helpers of tests are tests too

#[path = "../support/mod.rs"]
mod support;

mod attacks;
mod differential;
mod frames;
mod growth;
mod hpack;
mod laws;
mod oracle;
mod requests;
mod speed;
