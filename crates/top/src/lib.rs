//! `komainu top`: the figures of a running server in a terminal, from the documents that `/v1/status` gives.
//!
//! This crate owns what is computed from two documents, and how it looks as a screen, as text and as JSON. It never asks a server:
//! the documents come from a function that it is given.
//!
//! A [`StatusInterval`] is what two documents say of the time between them: rates, percentiles, shares of a core. [`text`] and
//! [`json`] print one, [`screen`] follows the server. All text comes from elsewhere: [`StatusInterval`] holds it without anything that
//! could steer a terminal.
//!
//! Modules, from low to high; a module uses only those above it.

pub mod figures;
mod sample;
mod tables;
mod text;
mod view;
mod screen;

pub use sample::StatusInterval;
pub use screen::screen;
pub use text::{json, text};
