//! Configurations of other servers, translated to Komainu's: `komainu import`.
//!
//! This crate owns the parsers of foreign formats, the translation of their directives, and the report of
//! what was translated and what was not. It reads only the given files and those that they include; it never
//! opens a socket, starts a program or writes a file.
//!
//! Each importer enters every directive of its source in a ledger (`findings`) and translates it to a draft of the
//! configuration (`draft`). A directive has one outcome, the worst that was entered; one that nothing has read is
//! reported, and closes the routes that it may guard.
//!
//! `nginx` is a table with a driver:
//!
//! | Module | Owns |
//! |---|---|
//! | `tree`, `scope` | the directives that were read, and what a place inherits |
//! | `directive`, `translation` | the form of a row, and the state of a translation |
//! | `driver` | looks rows up, checks blocks and arguments, has directives translated, enters outcomes |
//! | `access` … `streams` | translations by subject: functions of rows, and parts that read several directives |
//! | `directives` | the rows |
//! | `nginx_scratch` … `explanations` | the copy that `--verify` runs, and the remark that explains a difference |
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

pub use yaml::parse_yaml;

pub use kind::{ImportKind, UntranslatedServer};

pub use findings::{ImportError, ImportRemark, ImportResult, ImportVerdict};
