//! `komainu bench attack`: known attacks against the user's own server, each with an ordinary client running
//! beside it.

pub mod wire;
pub mod attacks;
pub mod outcomes;
mod attacker;
pub mod quic_wire;
pub mod quic_attacks;
mod quic_connection;
mod quic_datagrams;
mod quic_run;
pub mod selection;
pub mod report;
pub mod run;
