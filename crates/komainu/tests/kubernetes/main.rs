//! `komainu kubernetes` against an API server of the tests, with local servers as endpoints.
#![allow(clippy::print_stderr, clippy::unwrap_used)] // test helpers are test code too

#[path = "../origin/mod.rs"]
mod origin;
#[path = "../rig/mod.rs"]
mod rig;

mod api_server;
mod cluster;

mod changes;
mod gateways;
mod figures;
mod hostile_api;
mod ingresses;
mod policies;
mod statuses;
