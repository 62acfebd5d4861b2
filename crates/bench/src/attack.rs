//! `komainu bench attack`: known attacks against the user's own server, each with an ordinary client running
//! beside it.

pub mod wire;
pub mod attacks;
pub mod outcomes;
mod attacker;
pub mod report;
pub mod run;
