//! The cache in front of a handler: requests, rules, fills and responses.
//!
//! This crate owns the path of a request through the cache. It never decides itself which responses may be
//! stored: `cache` does.
//!
//! | Module | Owns |
//! |---|---|
//! | `removals` | when this server has removed responses |
//! | `request`, `rules`, `urls` | the key of a request, and the rules that match it |
//! | `commands`, `purge_method` | `komainu cache …`, and purges by request |
//! | `fill` | the response that is fetched for all who wait for it |
//! | `coded`, `responses` | a stored response as it is sent: coding, ranges, `Age`, `Cache-Status` |
//! | `peers` | other servers of a set, which are asked before the origin |
//! | `handler` | the decision for a request: stored response, fill, or neither |
//!
//! Modules are ordered from low to high; a module uses only those above it.

mod removals;
pub mod request;
pub mod rules;
pub mod urls;
pub mod purge_order;
pub mod commands;
pub mod fill;
pub mod purge_method;
pub mod coded;
pub mod responses;
pub mod peers;
pub mod handler;
