//! The library that the languages' modules link: the channel's C ABI, and the life of a worker process.
//!
//! This crate owns the process's side of the protocol in `workers/README.md`: what a process receives when it starts, how
//! it says that it is ready, how a prototype is asked to fork, and that nobody outlives the server. It never looks into
//! a request; the channel is [`ring`]'s, whose functions are passed on.
//!
//! Modules, from low to high; a module uses only those above it.

mod signals;
mod life;
mod abi;

pub use abi::*;
pub use life::{Life, Role, ServerOrder};
pub use ring::abi::*;
