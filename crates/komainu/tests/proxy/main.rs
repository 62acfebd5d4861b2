//! The reverse proxy: upstream servers behind the real binary.
#![allow(clippy::print_stderr, clippy::unwrap_used)] // test helpers are test code too

#[path = "../certified/mod.rs"]
mod certified;
#[path = "../hosted/mod.rs"]
mod hosted;
#[path = "../line/mod.rs"]
mod line;
#[path = "../origin/mod.rs"]
mod origin;
#[path = "../rig/mod.rs"]
mod rig;

mod ask;
mod balancing;
mod cgi;
mod discover;
mod leaving;
mod php;
mod proof;
mod relay;
mod releases;
mod repairs;
mod streams;
mod tcp_streams;
mod udp_streams;
mod websocket;
