//! What the vectors' runner, the replay of the laws and the fuzz targets share.
//! Each of them uses a part only.
#![allow(dead_code)]

pub(crate) mod case;
pub(crate) mod drive;
pub(crate) mod laws;
pub(crate) mod seeds;
