//! HTTP cache: decides which responses may be stored and how long they are fresh (RFC 9111), and stores them
//! in memory and on disk.
//!
//! This crate owns the decisions, functions without I/O and clocks; the store, which all cores share, with a thread
//! for its files (`disk_thread`); responses that are being received, for which many requests can wait; and the
//! directives of `cache`. It never opens sockets or knows upstream servers and applications: `cache_handler` puts
//! it in front of handlers.
//!
//! Modules, from low to high; a module uses only those listed before it.

mod held;
pub mod stores;
mod purge_clients;
mod content_file;
mod counter;
mod structured_fields;
pub mod cache_control;
pub mod vary;
pub mod rules;
pub mod route_policy;
pub mod tags;
pub mod query;
pub mod uses;
pub mod policy;
pub mod not_stored;
pub mod freshness;
pub mod key;
pub mod outcomes;
pub mod no_vary_search;
mod coded;
pub mod object;
pub mod answer;
pub mod cache_status;
pub mod purge;
pub mod fill;
mod file_format;
mod disk_index;
mod disk_folder;
mod disk_thread;
pub mod disk;
mod loads;
pub mod store;
pub mod purging;

pub use answer::{Selected, select};
pub use cache_status::ForwardReason;
pub use coded::{CodedLookup, CodingJob};
pub use content_file::FILED_BYTES_MIN;
pub use disk::{Disk, DiskLookup, DiskOptions, DiskResponse, DiskStats};
pub use disk_thread::{DiskEvent, DiskReport};
pub use fill::{Fill, FillHead, FillReader, FillResponse, IncompleteResponse, InterimResponse, Validated};
pub use freshness::{DECIDED_BY_CONFIGURATION, Freshness, RequestFacts, ResponseTimes, assess, decided_by};
pub use loads::{DiskLoad, LoadGuard, LoadWaiter};
pub use no_vary_search::{SearchRule, SearchRules};
pub use not_stored::NotStored;
pub use object::{Object, StoredBody, stored_fields, validated_leader_fields};
pub use outcomes::Outcome;
pub use policy::{Policy, RulePolicy};
pub use purge::Purge;
pub use purge_clients::CachePurge;
pub use purging::Purged;
pub use route_policy::CachePolicy;
pub use rules::{CacheKey, CacheRule, IgnoredField, QueryKey, StripCookies};
pub use store::{Cache, CacheCounters, CacheEntry, CacheStats, FillStart, StoreLimits};
pub use stores::{CacheDisk, CacheStore};
pub use tags::{Tags, TooManyTags};
pub use uses::UseCounts;
pub use vary::{KeyFields, RequestVariant};
