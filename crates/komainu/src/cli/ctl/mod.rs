//! `komainu ctl`: the control API for people.

mod transport;
mod shown;
mod command;

pub(crate) use command::ctl;
