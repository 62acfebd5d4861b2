//! Code shared by the tests of the machine, the laws and the fuzz target. Each of them uses only a part.
#![allow(dead_code)]

pub(crate) mod wire;
pub(crate) mod drive;
pub(crate) mod laws;
