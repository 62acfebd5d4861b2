//! How much clients get at a time.

pub(crate) mod connections;
