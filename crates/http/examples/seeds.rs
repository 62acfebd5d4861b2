//! Writes the seeds of this crate's fuzz targets, one file each: `seeds FOLDER` fills `FOLDER/request` and
//! others.

#[path = "../tests/support/mod.rs"]
mod support;

use std::path::{Path, PathBuf};

use support::seeds;

fn main() -> std::io::Result<()> {
    let folder = std::env::args_os().nth(1).map_or_else(|| PathBuf::from("fuzz/corpus"), PathBuf::from);
    let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors");
    for target in ["request", "response", "chunked", "target"] {
        let target_folder = folder.join(target);
        std::fs::create_dir_all(&target_folder)?;
        for (index, bytes) in seeds::of(target, &vectors).iter().enumerate() {
            std::fs::write(target_folder.join(format!("vector-{index:03}")), bytes)?;
        }
    }
    Ok(())
}
