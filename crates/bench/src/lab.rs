//! Experiments defined by files: subjects, a matrix of factors, and repetitions in a random order with a
//! fixed seed.

pub mod template;
pub mod file;
pub mod change;
pub mod matrix;
pub mod stage;
pub mod result;
mod aim;
pub mod report;
pub mod run;
