//! Experiments defined by files: subjects, a matrix of factors, and repetitions in a random order with a
//! fixed seed.

pub mod template;
pub mod file;
pub mod overrides;
pub mod peers;
pub mod matrix;
pub mod environment;
pub mod results_file;
mod aim;
pub mod report;
pub mod run_progress;
pub mod run;
pub mod row_file;
pub mod row_figures;
pub mod row_table;
pub mod row_run;
