//! Experiments defined by files: subjects, a matrix of factors, and repetitions in a random order with a
//! fixed seed.

pub mod template;
pub mod file;
pub mod overrides;
pub mod matrix;
pub mod environment;
pub mod results_file;
mod aim;
pub mod report;
pub mod run;
