//! Users, groups and what they may do with files.
//!
//! It gives up rights, never takes any, and knows nothing of HTTP.
//!
//! Modules, from low to high; a module uses only those above it.

pub(crate) mod process_status;
pub(crate) mod privilege;
pub(crate) mod file_rights;
