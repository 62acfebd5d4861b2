//! Tests of the proxy on real sockets.
#![allow(clippy::unwrap_used)] // helpers of tests are tests too

#[path = "../h2rig/mod.rs"]
mod h2rig;
#[path = "../rig/mod.rs"]
mod rig;
#[path = "../../../net/tests/support/slow_client.rs"]
mod slow_client;

mod bodies;
mod cgi;
mod failures;
mod fetch;
mod groups;
mod h2;
mod h2_ending;
mod h2_sharing;
mod kept;
mod prefork;
mod replaced;
mod slow;
mod smuggling;
mod spill;
mod streams;
mod tls;
mod upgrade;
mod upgrade_h2;
