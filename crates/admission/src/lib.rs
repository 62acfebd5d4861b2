//! Admission: whether a request may be answered now, later or not at all, by how often its key has asked, by how much it has under way and by who sends it.
//!
//! This crate owns the decision and what is remembered for it: a quota as pure arithmetic, a bounded table of keys that all cores
//! share, the fields that state it, the users and passwords of a file, tokens, signed URLs, and which origins may read responses. It never opens a socket, reads a clock or knows a
//! configuration file: `komainu` passes the key and the time, and does what is decided.
//!
//! Modules, from low to high; a module uses only those above it.

mod quota;
mod table;
mod unreported;
mod limiter;
mod concurrent;
mod fields;
mod seen;
mod remembered;
mod split;
mod basic;
mod passwords;
mod cors;
mod signed;
mod jwt;

pub use basic::Credentials;
pub use concurrent::{ConcurrencyLimiter, ConcurrencyPlace, TooMany};
pub use cors::{CorsRules, OriginPattern, PreflightRefusal};
pub use fields::{LimitState, policy_item, state_item};
pub use jwt::{JwtKeys, JwtRefusal, JwtRules, TOKEN_BYTES_MAX, VerifiedToken};
pub use limiter::{DelayPlace, KeyHasher, LimitCounters, LimitVerdict, Limiter, LimiterOptions};
pub use passwords::{PasswordCheck, PasswordFile};
pub use quota::{Decision, Quota};
pub use remembered::{Remembered, RememberedKey};
pub use seen::SeenKeys;
pub use signed::{EXPIRES, SIGNATURE, SignedRefusal, UrlKeys};
pub use split::{ShareDraw, WeightedChoice, point};
pub use table::{KeyTable, TableAccount};
pub use unreported::{LimitKey, Unreported};
