//! The store that the servers of a set share: a Valkey or Redis server.
//!
//! This crate owns the connection to the store (TLS, users, Sentinel, deadlines, limits on replies), the table
//! `[cluster]`, and the protocols between servers that rest on it: files that all servers have
//! ([`SharedFiles`]), leases, secrets of session tickets, purges with their acknowledgements, and the addresses and the
//! identity by which servers ask each other for responses. Replies of the
//! store are not trusted to be small, timely or well-formed. Everything runs on threads of its own with tokio; a
//! serving thread never waits for the store. While the store is away, each server continues by itself.
//!
//! Modules, from low to high; a module uses only those above it.

pub mod address;
pub mod directives;
mod reply;
mod transport;
mod seal;
mod peers;
mod options;
mod connection;
mod blocking;
mod files;
mod members;
mod purges;
mod tickets;
mod store_state;
mod store_task;
mod store;

pub use blocking::BlockingConnection;
pub use connection::StoreConnection;
pub use directives::ClusterTable;
pub use files::SharedFiles;
pub use options::StoreOptions;
pub use peers::{PEER_NAME, PeerOptions, SetPeer};
pub use purges::{PurgeReceiver, PurgeReport};
pub use reply::{Reply, StoreError};
pub use store::{ClusterStore, Lease, LeaseOutcome, SentPurge};
pub use store_state::{StoreEvent, StoreStatus};
