//! Measuring other processes: what they cost and what they answer. Knows no scenario and no server by name.

pub(crate) mod stats;
pub(crate) mod procfs;
pub(crate) mod children;
pub(crate) mod client;
pub(crate) mod wrk;

/// What any command of this crate may fail with: shown to a person, never matched on.
pub(crate) type Outcome<T> = Result<T, Box<dyn std::error::Error>>;
