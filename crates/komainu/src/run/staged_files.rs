//! Replacement of configuration files: all new files are written next to the old ones before the first is
//! replaced.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

/// Reason that files cannot be written.
#[derive(Debug)]
pub(crate) enum StageError {
    /// A file was changed by another process.
    Changed(String),
    /// Permission is missing, or the disk is full.
    Unwritable(String),
}

/// New files, each with the file that it replaces, and warnings. Files that are not committed are removed on
/// drop.
#[derive(Debug, Default)]
pub(crate) struct StagedFiles(Vec<(PathBuf, PathBuf)>, Vec<String>);

impl StagedFiles {
    /// Writes the files of `after` that differ from `before` next to the originals. Both have the same paths.
    ///
    /// # Errors
    /// A file that no longer has the content in `before`, or cannot be written.
    pub(crate) fn stage(
        before: &[(PathBuf, String)],
        after: &[(PathBuf, String)],
    ) -> Result<StagedFiles, StageError> {
        let mut staged = StagedFiles::default();
        for ((path, old), (_, new)) in before.iter().zip(after) {
            let found = fs::read(path).map_err(|error| unwritable_error(path, &error))?;
            if found != old.as_bytes() {
                return Err(StageError::Changed(format!(
                    "{} has changed since the server has read it: reload first",
                    path.display()
                )));
            }
            if old != new {
                let place = staged.write(path, new).map_err(|error| unwritable_error(path, &error))?;
                staged.0.push(place);
            }
        }
        Ok(staged)
    }

    /// Attributes of the old files that could not be preserved.
    pub(crate) fn warnings(&self) -> &[String] {
        &self.1
    }

    fn write(&mut self, path: &Path, text: &str) -> io::Result<(PathBuf, PathBuf)> {
        // Symbolic links are kept: their target is replaced.
        let target = path.canonicalize()?;
        // A read-only file must not be replaced either.
        OpenOptions::new().append(true).open(&target)?;
        let name = target.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let new = target.with_file_name(format!(".{name}.{}-{}.new", std::process::id(), self.0.len()));
        // Left behind by a server that died while writing.
        let _ = fs::remove_file(&new);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        let written = write_as(&mut file, &target, &new, text);
        let lost = written.inspect_err(|_| _ = fs::remove_file(&new))?;
        let warning = |what: String| {
            format!(
                "{}: {what} could not be kept: this server has no right to; set it by `chown`",
                path.display()
            )
        };
        self.1.extend(lost.map(warning));
        Ok((new, target))
    }

    /// Replaces the old files.
    ///
    /// # Errors
    /// The system's error; some files may have been replaced by then.
    pub(crate) fn commit(mut self) -> io::Result<()> {
        for (new, target) in std::mem::take(&mut self.0) {
            fs::rename(&new, &target).inspect_err(|_| _ = fs::remove_file(&new))?;
        }
        Ok(())
    }
}

impl Drop for StagedFiles {
    fn drop(&mut self) {
        // A file that cannot be removed is overwritten the next time.
        self.0.iter().for_each(|(new, _)| _ = fs::remove_file(new));
    }
}

/// Writes a new file with the owner, group and permissions of `target`. Returns those that could not be set.
fn write_as(file: &mut File, target: &Path, new: &Path, text: &str) -> io::Result<Option<String>> {
    let found = fs::metadata(target)?;
    file.write_all(text.as_bytes())?;
    file.set_permissions(Permissions::from_mode(found.mode() & 0o777))?;
    let given = file.metadata()?;
    let uid = given.uid() != found.uid();
    let gid = given.gid() != found.gid();
    // The group can be set to one of this process's groups even if the owner cannot be changed.
    let keeps_group = !gid || chown(new, None, Some(found.gid())).is_ok();
    let keeps_owner = !uid || chown(new, Some(found.uid()), None).is_ok();
    let lost = match (keeps_owner, keeps_group) {
        (true, true) => None,
        (false, true) => Some(format!("its owner (uid {})", found.uid())),
        (true, false) => Some(format!("its group (gid {})", found.gid())),
        (false, false) => Some(format!("its owner and group (uid {}, gid {})", found.uid(), found.gid())),
    };
    file.sync_all()?;
    Ok(lost)
}

fn unwritable_error(path: &Path, error: &io::Error) -> StageError {
    StageError::Unwritable(format!("{} cannot be written: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replacement_keeps_owner_group_and_permissions() {
        let folder = std::env::temp_dir().join(format!("komainu-staged-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("k.toml");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        let is_root = rustix::process::geteuid().is_root();
        if is_root {
            chown(&path, Some(1), Some(2)).unwrap();
        }
        let found = fs::metadata(&path).unwrap();
        let files = |text: &str| vec![(path.clone(), text.to_owned())];
        let staged = StagedFiles::stage(&files("old"), &files("new")).unwrap();
        assert!(staged.warnings().is_empty());
        staged.commit().unwrap();
        let now = fs::metadata(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!((now.uid(), now.gid(), now.mode()), (found.uid(), found.gid(), found.mode()));
        fs::remove_dir_all(&folder).unwrap();
    }
}
