//! Configurations of other servers, translated to Komainu's: `komainu import`.
//!
//! This crate owns the parsers of foreign formats, the translation of their directives, and the report of
//! what was translated and what was not. It reads only the given files and those that they include; it never
//! opens a socket, starts a program or writes a file.
//!
//! Modules, from low to high; each imports only from those above it.

mod findings;

pub mod scratch;

mod draft;

mod regex_tokens;

mod expressions;

mod conditions;

mod paths;

mod data;

mod yaml;

pub mod nginx;

pub mod unit;

pub mod caddy;

pub mod ingress;

mod kind;

pub mod hosting;

pub use data::open_file;

pub use kind::{ImportKind, UntranslatedServer};

pub use findings::{ImportError, ImportRemark, ImportResult, ImportVerdict};
