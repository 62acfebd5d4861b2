//! `komainu bench calibrate`: the figures of the report, checked against servers whose behaviour is known.

pub mod known_server;
mod bounds;
mod measured_case;
mod cases;
mod comparisons;
mod report;
pub mod run;
