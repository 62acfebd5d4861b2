//! Certificates, tested with Pebble, BIND, OpenSSL and a hostile authority.
#![allow(clippy::unwrap_used, missing_docs)] // helpers of tests are tests too

#[path = "../authority/mod.rs"]
mod authority;
#[path = "../named/mod.rs"]
mod named;
#[path = "../pebble/mod.rs"]
mod pebble;
#[path = "../responder/mod.rs"]
mod responder;
#[path = "../rig/mod.rs"]
mod rig;

mod acme;
mod dns_update;
mod hostile;
mod staple;
