//! Content codings: gzip, Brotli and Zstandard encoders, for whole contents and for streams.
//!
//! This crate owns the parameters of the compression libraries: levels, window sizes, flushing. It never decides
//! whether a response is compressed, and never reads or writes a file or a socket.
//!
//! Modules, from low to high; a module uses only those above it.

pub mod effort;
pub mod whole;
pub mod stream;

pub use effort::Effort;
pub use stream::Encoder;
pub use whole::compress;
