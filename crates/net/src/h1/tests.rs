//! Tests of connections over a simulated network and clock.

mod rig;
mod script;
mod answers;
mod endings;
mod clock;
mod announced;
mod fairness;
mod secure;
mod tunnels;
mod seeds;
mod streams;
