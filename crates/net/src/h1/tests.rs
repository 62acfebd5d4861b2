//! Connections over a simulated network, under a clock that the tests own.

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
