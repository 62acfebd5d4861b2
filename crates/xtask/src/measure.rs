//! Checks of the measuring tools: the load generator compared with others, and `komainu bench` with servers
//! of known behaviour.

mod options;
mod peer;
pub(crate) mod known_server;
pub(crate) mod generator;
pub(crate) mod bench_checks;

use std::fs;
use std::path::{Path, PathBuf};

pub(crate) use options::MeasureOptions;

/// Result with any error: errors are printed, never matched on.
pub(crate) type Fallible<T> = Result<T, Box<dyn std::error::Error>>;

/// Saves a result as NAME.md and NAME.json in `folder`, and returns the path of the Markdown file.
fn save_result(folder: &Path, name: &str, markdown: &str, json: &serde_json::Value) -> Fallible<PathBuf> {
    fs::create_dir_all(folder)?;
    let path = folder.join(format!("{name}.md"));
    fs::write(&path, markdown)?;
    fs::write(folder.join(format!("{name}.json")), format!("{json:#}\n"))?;
    Ok(path)
}
