//! The files that every subject serves.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// One file, and how much CPU ours may take for it.
pub(crate) struct Row {
    /// How it is chosen on the command line.
    pub(crate) name: &'static str,
    /// How it is shown.
    pub(crate) title: &'static str,
    /// Its request target.
    pub(crate) target: &'static str,
    /// Its length in bytes.
    pub(crate) length: usize,
    /// Our CPU per request as a share of the best peer's.
    pub(crate) aim: f64,
}

/// The rows, in the order in which they are measured. 36,907 bytes is the page of a field report.
pub(crate) const ROWS: [Row; 3] = [
    Row { name: "1k", title: "1 KiB file", target: "/1k.txt", length: 1024, aim: 0.95 },
    Row { name: "page", title: "36,907-byte page", target: "/page.html", length: 36_907, aim: 1.0 },
    Row { name: "1m", title: "1 MiB file", target: "/1m.bin", length: 1 << 20, aim: 1.0 },
];

impl Row {
    /// What the file holds: no two rows begin alike, so that a wrong file is noticed.
    pub(crate) fn content(&self) -> Vec<u8> {
        let line = format!("{}: the quick guardian barks, the other keeps its mouth shut.\n", self.title);
        line.bytes().cycle().take(self.length).collect()
    }
}

/// Writes every row's file into `folder`/www and returns that folder.
pub(crate) fn write(folder: &Path) -> io::Result<PathBuf> {
    let root = folder.join("www");
    fs::create_dir_all(&root)?;
    for row in &ROWS {
        fs::write(root.join(row.target.trim_start_matches('/')), row.content())?;
    }
    Ok(root)
}
