//! Users, groups and their rights on files.
//!
//! This crate owns the change from root to the server's user and the check of file modes. It never gains a
//! privilege, and knows nothing of HTTP.
//!
//! Modules, from low to high; a module uses only those above it.

pub mod process_status;
pub mod privilege;
pub mod file_rights;
