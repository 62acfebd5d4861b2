//! The reverse proxy: upstream groups, kept connections, balancing, health, retries, and the rules for what
//! passes from one side to the other.
//!
//! This crate owns connections to upstream servers: it forwards a request and returns the response. Forwarded messages are
//! always encoded from the parsed message, so that no ambiguous bytes pass. Parsing is left to the `http`
//! crate; this one never listens and never knows configuration files: it is built from [`GroupOptions`]
//! and [`RouteOptions`].
//!
//! Modules, from low to high; a module uses only those listed before it.

mod hash;
pub mod template;
pub mod origin;
pub mod cgi_program;
pub mod scripts;
pub mod directives;
pub mod upstream_group;
pub mod options;
pub mod path;
pub mod reverse;
pub mod request;
pub mod response;
pub mod balance;
pub mod health;
pub mod connection_limiter;
mod failure;
mod counts;
mod retry;
mod server_addresses;
mod upstream_connection;
mod cgi_side;
mod upstream_side;
mod pool;
mod shared;
mod group_reload;
mod dial;
mod mux_pool;
mod upstream_request;
mod check;
mod replay_buffer;
mod relay;
mod selection;
mod group;
mod current_group;
mod proxy;
mod stream;

pub use counts::{FAILURE_REASONS, UpstreamCounters};
pub use current_group::{CoreGroup, CurrentGroup};
pub use dial::SOCKET_FORBIDDEN;
pub use group::{EventSink, Group, HealthChange, UpstreamError, UpstreamEvent};
pub use group_reload::{GroupReload, KnownServers};
pub use options::{GroupOptions, RouteOptions};
pub use proxy::{BoundProxy, FetchError, FetchLimits, FetchRequest, FetchResponse, Proxy};
pub use request::{SOFTWARE, Script};
pub use shared::GroupShared;
pub use stream::{DATAGRAM_REFUSED, OpenStreamError, UpstreamDatagrams, UpstreamStream};
