//! TOML files as one tree of JSON values that can be read and changed by path, with their comments kept.
//!
//! This crate owns the paths, the merging of several files into one tree, and the edits: each is
//! applied to the file that holds the item. It never reads or writes a file, and knows no directives: the
//! keys that name the items of a list are an argument.
//!
//! Modules, from low to high; a module uses only those above it.

mod path;
mod json;
mod container;
mod config_tree;

pub use config_tree::ConfigTree;
pub use path::{TreeError, TreePath};
