//! The crate from outside: files in, configurations and errors out.

mod defaults;
mod documents;
mod errors;
mod examples;
mod hostile;
#[path = "../support/laws.rs"]
mod laws;

use std::path::{Path, PathBuf};

/// A file or folder of this crate.
fn place(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Compares with what is kept in a file, or, if `KOMAINU_BLESS` is set, keeps it there.
#[track_caller]
fn compare(kept: &Path, now: &str) {
    if std::env::var_os("KOMAINU_BLESS").is_some() {
        std::fs::write(kept, now).expect("the file can be written");
    }
    let before = std::fs::read_to_string(kept).unwrap_or_default();
    let name = kept.display();
    assert!(before == now, "{name} differs; KOMAINU_BLESS=1 keeps what is now:\n{now}");
}
