//! HTTP/3 as a peer sees it. Each test of a rule names its section.
#![allow(clippy::unwrap_used, reason = "all of it is test code")]

mod control;
mod laws;
mod messages;
mod qpack;
mod rig;
#[path = "../support/mod.rs"]
mod support;
