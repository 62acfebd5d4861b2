//! Laws that hold for any input. Tests and fuzz targets use them.

pub(crate) mod laws;
