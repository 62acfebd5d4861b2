//! `komainu ctl`: a command-line client of the control API.

mod transport;
mod answer_format;
mod command;

pub(crate) use command::run_ctl;
