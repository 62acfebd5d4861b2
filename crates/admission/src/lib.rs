//! Admission control: rate limits, concurrency limits, authentication and cross-origin rules of requests.
//!
//! This crate owns the decisions and the state that they need: quotas as pure arithmetic, a bounded
//! table of keys shared by all cores, rate limit fields, password files, tokens, signed URLs, CORS rules, and the
//! directives of crawlers and of maintenance.
//! The crate never opens sockets, reads clocks or opens files: callers pass the key and the
//! time, and carry out the decision.
//!
//! Modules, from low to high; a module uses only those listed before it.

mod quota;
mod table;
mod unreported;
mod limiter;
mod concurrent;
mod rate_limit_fields;
mod seen;
mod expiring_cache;
mod split;
mod basic;
mod passwords;
pub mod cors;
pub mod limits;
pub mod queue;
pub mod crawlers;
pub mod maintenance;
mod auth_server;
mod auth_token;
pub mod auth;
mod signed;
mod jwt;

pub use auth_server::{AuthServer, SignInPart};
pub use auth_token::{JwtAuth, SignedAuth};
pub use basic::Credentials;
pub use concurrent::{ConcurrencyLimiter, ConcurrencyPermit, LimitReached};
pub use expiring_cache::{ExpiringCache, ExpiringCacheKey};
pub use jwt::{JwtKeys, JwtRefusal, TOKEN_BYTES_MAX, VerifiedToken};
pub use limiter::{DelayPermit, KeyHasher, LimitCounters, LimitVerdict, Limiter, LimiterOptions};
pub use passwords::{PasswordCheck, PasswordFile};
pub use quota::{Decision, Quota};
pub use rate_limit_fields::{LimitState, policy_item, state_item};
pub use seen::SeenKeys;
pub use signed::{EXPIRES, SIGNATURE, SignedRefusal, UrlKeys};
pub use split::{ShareSampler, WeightedChoice, point};
pub use table::{KeyTable, TableAccount};
pub use unreported::{LimitKey, Unreported};
