//! Configuration files that are written again: all are there beside the old ones before the first of them takes its place.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

/// Why files cannot be written.
#[derive(Debug)]
pub(crate) enum StageError {
    /// Somebody else has changed one.
    Changed(String),
    /// There is no right, or no room.
    Unwritable(String),
}

/// New files, each with the one that it replaces. Those that take nobody's place are removed.
#[derive(Debug, Default)]
pub(crate) struct StagedFiles(Vec<(PathBuf, PathBuf)>);

impl StagedFiles {
    /// Writes those of `after` that differ from `before`, which has the same files, beside them.
    ///
    /// # Errors
    /// A file that is no longer as it was `before`, or cannot be written.
    pub(crate) fn stage(
        before: &[(PathBuf, String)],
        after: &[(PathBuf, String)],
    ) -> Result<StagedFiles, StageError> {
        let mut staged = StagedFiles::default();
        for ((path, old), (_, new)) in before.iter().zip(after) {
            let found = fs::read(path).map_err(|error| unwritable(path, &error))?;
            if found != old.as_bytes() {
                return Err(StageError::Changed(format!(
                    "{} has changed since the server has read it: reload first",
                    path.display()
                )));
            }
            if old != new {
                let place = staged.write(path, new).map_err(|error| unwritable(path, &error))?;
                staged.0.push(place);
            }
        }
        Ok(staged)
    }

    fn write(&self, path: &Path, text: &str) -> io::Result<(PathBuf, PathBuf)> {
        // A link stays a link.
        let target = path.canonicalize()?;
        // A file that is not to be written to is not replaced either.
        OpenOptions::new().append(true).open(&target)?;
        let name = target.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let new = target.with_file_name(format!(".{name}.{}-{}.new", std::process::id(), self.0.len()));
        // Of a server that has died in between.
        let _ = fs::remove_file(&new);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        let written = write_as(&mut file, &target, &new, text);
        written.inspect_err(|_| _ = fs::remove_file(&new))?;
        Ok((new, target))
    }

    /// Puts them in place.
    ///
    /// # Errors
    /// The system's; some may be in place then.
    pub(crate) fn commit(mut self) -> io::Result<()> {
        for (new, target) in std::mem::take(&mut self.0) {
            fs::rename(&new, &target).inspect_err(|_| _ = fs::remove_file(&new))?;
        }
        Ok(())
    }
}

impl Drop for StagedFiles {
    fn drop(&mut self) {
        // What cannot be removed is overwritten the next time.
        self.0.iter().for_each(|(new, _)| _ = fs::remove_file(new));
    }
}

/// Writes a file that is to replace another one, whose permissions it gets.
fn write_as(file: &mut File, target: &Path, new: &Path, text: &str) -> io::Result<()> {
    let found = fs::metadata(target)?;
    file.write_all(text.as_bytes())?;
    // Another user's file becomes this user's, who could write to it before.
    let _ = chown(new, Some(found.uid()), Some(found.gid()));
    fs::set_permissions(new, Permissions::from_mode(found.mode() & 0o777))?;
    file.sync_all()
}

fn unwritable(path: &Path, error: &io::Error) -> StageError {
    StageError::Unwritable(format!("{} cannot be written: {error}", path.display()))
}
