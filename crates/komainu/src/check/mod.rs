//! Checks of a configuration and of the machine, made by `komainu check` and at each start.
//!
//! Modules, from low to high; a module uses only those above it.

pub(crate) mod named_paths;
pub(crate) mod path_warnings;
pub(crate) mod start_rights;
pub(crate) mod start_checks;
pub(crate) mod reading;
pub(crate) mod named_resources;
