//! Experiments as files: subjects, factors swept as a matrix, repetitions in a random but seeded order.

pub mod template;
pub mod file;
pub mod change;
pub mod matrix;
pub mod stage;
pub mod result;
mod aim;
pub mod report;
pub mod run;
