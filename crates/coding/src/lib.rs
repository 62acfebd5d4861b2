//! Content codings: gzip, Brotli and Zstandard encoders, for whole contents and for streams, and the
//! dictionaries that clients may have (RFC 9842).
//!
//! This crate owns the parameters of the compression libraries: levels, window sizes, flushing. It never
//! decides whether a response is compressed, and never reads or writes a file or a socket.
//!
//! Modules, from low to high; a module uses only those above it.

pub mod effort;
pub mod one_shot;
pub mod stream;
pub mod dictionary;
pub mod dictionaries;

pub use dictionaries::{Delta, DeltaJob, Dictionaries, DictionaryLimits, DictionaryUrl, HashedContent};
pub use dictionary::{DICTIONARY_BYTES_MAX, DictionaryCoding, DictionaryHash, compress_with};
pub use effort::Effort;
pub use one_shot::compress;
pub use stream::Encoder;
