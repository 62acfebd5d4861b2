//! Discovery of upstream servers while the server runs: SRV and address records of DNS, and containers of Docker.
//!
//! This crate owns the table `[discover]`, the client of DNS, the client of Docker's API, and the translation of labels
//! to sites. It never serves a request and never changes a configuration: it says that something has changed, and the
//! caller puts a configuration with it in force. DNS servers, Docker and containers are not trusted: what they send is
//! bounded in size, number and time, and decides nothing but values of a closed list of directives.
//!
//! | Module | Owns |
//! |---|---|
//! | `directives` | the table `[discover]` |
//! | `message` | queries and responses of DNS as bytes |
//! | `dns` | lookups of names |
//! | `labels` | containers with labels to sites |
//! | `docker` | the client of Docker's API |
//! | `run` | the thread, and the handle |
//!
//! Modules, from low to high; a module uses only those above it.

pub mod directives;
mod message;
mod dns;
mod labels;
mod docker;
mod run;

pub use directives::{DiscoverTable, DockerAddress};
pub use dns::{DiscoveredName, DiscoveredServer, NameKind};
pub use run::{Discovery, DiscoveryEvent, Found};
