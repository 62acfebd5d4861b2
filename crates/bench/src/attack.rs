//! `komainu bench attack`: known attacks against a server of one's own, with an ordinary client beside each of them.

pub mod wire;
pub mod attacks;
pub mod ends;
mod attacker;
pub mod report;
pub mod run;
