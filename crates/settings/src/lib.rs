//! The engine of directives: tables that are declared once and read from TOML.
//!
//! This crate owns the declaration and reading of tables. A crate declares a table with [`directives!`]: names,
//! documentation, types, defaults, ranges and parsers. The reading of a file, its errors with their places, the
//! reference, the JSON Schema and the formatter follow from the declaration. This crate never knows a directive:
//! the crates that act on them declare them, and `config` gives the [`checker::Advice`].
//!
//! Modules are ordered from low to high; a module uses only those above it.

pub mod format;
pub mod joined_text;
pub mod report;
pub mod spelling;
pub mod node;
pub mod checker;
pub mod document;
pub mod units;
pub mod shape;
pub mod directive_table;
pub mod reference;
pub mod schema;
