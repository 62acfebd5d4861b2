//! The protocols of the CGI family: the variables of a request, their encodings in FastCGI, uwsgi and SCGI,
//! and CGI responses.
//!
//! This crate owns the encodings of these protocols, for the web server's side. It never does I/O and
//! reads no clock; the caller provides the variables.
//!
//! Modules, from low to high; a module uses only those above it.

pub mod variables;
pub mod fastcgi;
pub mod packet;
pub mod response;

pub use response::{HeadRules, ResponseHeadReader};
pub use variables::Variables;
