//! Tests of connections over a simulated network and clock.

mod rig;
mod script;
mod answers;
mod endings;
mod clock;
mod proxy_header;
mod fairness;
mod tls_connections;
mod tunnels;
mod seeds;
mod streams;
