//! The protocols of the CGI family: variables of a request, and how FastCGI, uwsgi and SCGI carry them; responses in CGI's form.
//!
//! This crate owns the bytes of these protocols, from the side of the web server. It never does I/O, reads no clock, and knows
//! nothing of where variables come from.
//!
//! Modules, from low to high; a module uses only those above it.

pub mod variables;
pub mod fastcgi;
pub mod packet;
pub mod response;

pub use response::ResponseHeadReader;
pub use variables::Variables;
