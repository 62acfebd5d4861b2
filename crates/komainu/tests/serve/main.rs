//! Requests and responses, as seen by clients: files, paths, limits, compression, HTTP/2.
#![allow(clippy::print_stderr, clippy::unwrap_used)] // test helpers are test code too

#[path = "../delta/mod.rs"]
mod delta;
#[path = "../hosted/mod.rs"]
mod hosted;
#[path = "../mmdb/mod.rs"]
mod mmdb;
#[path = "../origin/mod.rs"]
mod origin;
#[path = "../rig/mod.rs"]
mod rig;
#[allow(dead_code, clippy::expect_used, clippy::panic)] // the vectors' own runner uses the rest
#[path = "../../../http/tests/support"]
mod support {
    pub(crate) mod case;
    pub(crate) mod drive;
}

mod admission;
mod auth;
mod bandwidth;
mod clients;
mod compress;
mod concurrent;
mod conditions;
mod dictionary;
mod error_pages;
mod error_server;
mod files;
mod geo;
mod guards;
mod half_closed;
mod http2;
mod http2_peers;
mod limit;
mod limits;
mod paths;
mod queue;
mod refusals;
mod replace;
mod rewrite;
mod shared_limits;
mod slow;
mod vectors;
