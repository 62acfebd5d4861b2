//! Certificates that the server presents: files, managed certificates, OCSP responses.
//!
//! This crate owns the choice of a certificate for a name. It never talks to an authority: `control` does.
//!
//! Modules, from low to high; a module uses only those above it.

pub mod staples;
pub mod tls;
pub mod managed;
