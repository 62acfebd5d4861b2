//! Certificates that the server presents: files, managed certificates, OCSP responses.
//!
//! The `control` crate obtains them.
//!
//! Modules, from low to high; a module uses only those above it.

pub(crate) mod staples;
pub(crate) mod tls;
pub(crate) mod managed;
