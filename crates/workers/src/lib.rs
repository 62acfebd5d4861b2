//! The library that the language modules link: the channel's C ABI, and the life cycle of a worker process.
//!
//! This crate owns the process's side of the protocol in `workers/README.md`: the environment that a
//! process receives, the report that it is ready, the fork orders to a prototype, and the exit of every
//! process with the server. It never inspects a request; the channel's functions come from [`ring`] and are
//! re-exported.
//!
//! Modules, from low to high; a module uses only those above it.

mod signals;
mod server_control;
mod abi;

pub use abi::*;
pub use ring::abi::*;
pub use server_control::{Role, ServerControl, ServerOrder};
