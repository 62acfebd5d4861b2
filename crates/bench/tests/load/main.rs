//! The load generator against servers that do as they are told.

mod common;
mod known;
mod traffic;
