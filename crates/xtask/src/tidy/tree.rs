//! The repository's text files in memory, so that rules are pure functions and easy to test.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::measure::Fallible;

/// Text files by their path from the root, with `/` as separator.
#[derive(Default)]
pub(crate) struct SourceTree {
    files: BTreeMap<String, String>,
}

impl SourceTree {
    /// Reads every file that is committed or could be committed; files that are not UTF-8 are left out.
    pub(crate) fn read(root: &Path) -> Fallible<SourceTree> {
        let list = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
        let output = Command::new("git").arg("-C").arg(root).args(list).output()?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
        }
        let names = String::from_utf8_lossy(&output.stdout).into_owned();
        let text = |name: &str| Some((name.to_string(), fs::read_to_string(root.join(name)).ok()?));
        Ok(SourceTree { files: names.split('\0').filter(|name| !name.is_empty()).filter_map(text).collect() })
    }

    /// Creates a tree for a test.
    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> SourceTree {
        SourceTree { files: files.iter().map(|(name, text)| (name.to_string(), text.to_string())).collect() }
    }

    /// Returns the number of files.
    pub(crate) fn len(&self) -> usize {
        self.files.len()
    }

    /// Returns the text of a file.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.files.get(name).map(String::as_str)
    }

    /// Iterates over all files, sorted by name.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().map(|(name, text)| (name.as_str(), text.as_str()))
    }

    /// Iterates over all Rust files, sorted by name.
    pub(crate) fn rust(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files().filter(|(name, _)| name.ends_with(".rs"))
    }
}

/// Whether a path belongs to tests, benches, examples or fuzz targets.
pub(crate) fn is_test_path(name: &str) -> bool {
    let folder = |part: &str| matches!(part, "tests" | "benches" | "examples" | "fuzz_targets");
    name.ends_with("/tests.rs") || name.split('/').any(folder)
}

/// Returns the crate's folder, such as `crates/http`, for a file in its `src`.
pub(crate) fn crate_of(name: &str) -> Option<&str> {
    name.find("/src/").map(|at| &name[..at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_files_are_recognized_by_path() {
        for name in
            ["crates/a/tests/x.rs", "crates/a/src/x/tests.rs", "crates/a/src/tests/x.rs", "a/examples/e.rs"]
        {
            assert!(is_test_path(name), "{name}");
        }
        assert!(!is_test_path("crates/a/src/contests.rs"));
        assert_eq!(crate_of("crates/workers/perl/src/lib.rs"), Some("crates/workers/perl"));
        assert_eq!(crate_of("docs/a.md"), None);
    }
}
