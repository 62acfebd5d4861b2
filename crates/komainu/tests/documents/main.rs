//! The documents: every configuration, command and message in them is valid for the program, and their
//! examples are run.
#![allow(clippy::print_stderr, clippy::unwrap_used, missing_docs)] // test helpers are test code too

#[path = "../hosted/mod.rs"]
mod hosted;
#[path = "../mmdb/mod.rs"]
mod mmdb;
#[path = "../../../certificates/tests/pebble/mod.rs"]
mod pebble;
#[path = "../rig/mod.rs"]
mod rig;

mod pages;

mod commands;
mod configurations;
mod demo;
mod examples;
mod https;
mod imports;
mod in_front;
mod messages;
mod walks;
