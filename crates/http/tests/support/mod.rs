//! Code shared by the runner of the vectors, the replay of the laws and the fuzz targets.
//! Each of them uses only a part.
#![allow(dead_code)]

pub(crate) mod case;
pub(crate) mod drive;
pub(crate) mod laws;
pub(crate) mod seeds;
