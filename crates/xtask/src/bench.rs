//! The comparisons: which servers, which rows, which aims. How a process is measured is `measure`'s business.

pub(crate) mod options;
pub(crate) mod www;
pub(crate) mod subjects;
pub(crate) mod files;
pub(crate) mod idle;
pub(crate) mod proxy;
pub(crate) mod peer;
pub(crate) mod generator;
pub(crate) mod known;
pub(crate) mod instrument;

pub(crate) use options::Options;
