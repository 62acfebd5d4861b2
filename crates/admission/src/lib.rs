//! Admission: whether a request may be answered now, later or not at all, by how often its key has asked and by who sends it.
//!
//! This crate owns the decision and what is remembered for it: a quota as pure arithmetic, a bounded table of keys that all cores
//! share, the fields that state it, and the users and passwords of a file. It never opens a socket, reads a clock or knows a
//! configuration file: `komainu` passes the key and the time, and does what is decided.
//!
//! Modules, from low to high; a module uses only those above it.

mod quota;
mod table;
mod limiter;
mod fields;
mod seen;
mod remembered;
mod split;
mod basic;
mod passwords;

pub use basic::Credentials;
pub use fields::{LimitState, policy_item, state_item};
pub use limiter::{DelayPlace, KeyHasher, LimitCounters, LimitVerdict, Limiter, LimiterOptions};
pub use passwords::{PasswordCheck, PasswordFile};
pub use quota::{Decision, Quota};
pub use remembered::{Remembered, RememberedKey};
pub use seen::SeenKeys;
pub use split::{ShareDraw, WeightedChoice, point};
pub use table::{KeyTable, TableAccount};
