//! `komainu top`: the figures of a running server in a terminal, from the documents that `/v1/status` gives.
//!
//! A [`Sample`] is what two documents say of the time between them: rates, percentiles, shares of a core. [`text`] and
//! [`json`] print one, [`screen`] follows the server. All text comes from elsewhere: [`Sample`] holds it without anything that
//! could steer a terminal.
//!
//! Modules, from low to high; a module uses only those above it.

pub mod figures;
mod sample;
mod tables;
mod text;
mod view;
mod screen;

pub use sample::Sample;
pub use screen::screen;
pub use text::{json, text};
