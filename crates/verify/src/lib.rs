//! `komainu import --verify`: the old server and Komainu side by side on loopback.
//!
//! This crate owns the scratch folder, the processes of both servers, stubs in the place of their upstream servers, the requests
//! that both get, and the list of what differs. It never connects to anything but loopback addresses that it chose itself,
//! and it knows no format of configuration: `import` makes the scratch copies and the requests.
//!
//! The modules, from low to high; each imports only from those above it.

mod message;

mod tls;

mod stub;

mod client;

mod server;

mod compare;

mod outcome;

mod options;

mod nginx;

pub use nginx::nginx;

pub use options::Options;

pub use outcome::{Difference, Verification};
