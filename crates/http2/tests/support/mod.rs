//! What the tests of the machine, the laws and the fuzz target share. Each of them uses a part only.
#![allow(dead_code)]

pub(crate) mod wire;
pub(crate) mod drive;
pub(crate) mod laws;
