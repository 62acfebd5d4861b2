//! Implements `komainu import --verify`: runs the old server and Komainu side by side on loopback addresses.
//!
//! This crate owns the scratch folder, the processes of both servers, stubs that replace their upstream
//! servers, the requests that both servers receive, and the list of differences. It never connects to
//! anything but loopback addresses that it chose itself, and it knows no configuration format: `import`
//! creates the scratch copies and the requests.
//!
//! Modules, from low to high; each imports only from those above it.

mod message;

mod tls;

mod stub;

mod client;

mod server;

mod compare;

mod outcome;

mod options;

mod nginx;

pub use nginx::verify_nginx;

pub use options::VerifyOptions;

pub use outcome::{ReportedDifference, Verification};
