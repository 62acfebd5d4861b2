//! `komainu top`: the figures of a running server in a terminal, from the documents of `/v1/status`.
//!
//! This crate owns the figures computed from two documents, and their display on a screen, as text and as
//! JSON. It never contacts a server: the documents come from a function that the caller passes.
//!
//! A [`StatusInterval`] has the figures of the time between two documents: rates, percentiles, shares of a
//! core. [`text`] and [`to_json`] format one, [`screen`] follows the server. Text in the documents is untrusted:
//! [`StatusInterval`] removes everything that could control a terminal.
//!
//! Modules, from low to high; a module uses only those above it.

pub mod formatting;
mod sample;
mod tables;
mod text;
mod view;
mod screen;

pub use sample::StatusInterval;
pub use screen::run_screen;
pub use text::{format_text, to_json};
