//! The temporary directory of a sandboxed application whose sandbox grants none.
//!
//! Language runtimes, frameworks and workers store uploads and long request bodies in the directory named by
//! TMPDIR, `/tmp` by default. An application whose sandbox does not grant it gets a directory of its own
//! there. The directory is kept between starts: no event marks the end of all processes of an application at
//! which it could be removed as their user.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, mkdir, openat};
use rustix::io::Errno;
use rustix::process::geteuid;

/// A directory that no other user can access.
pub(crate) struct TemporaryFolder {
    /// Path, for TMPDIR.
    pub(crate) path: PathBuf,
    opened: OwnedFd,
}

impl TemporaryFolder {
    /// Opens the directory `name` below `base`, and creates it if it is missing. If that fails, because it
    /// belongs to another user for example, the process id is appended to the name.
    ///
    /// # Errors
    /// The directory cannot be created.
    pub(crate) fn below(base: &Path, name: &str) -> io::Result<TemporaryFolder> {
        TemporaryFolder::at(base.join(name))
            .or_else(|_| TemporaryFolder::at(base.join(format!("{name}-{}", std::process::id()))))
    }

    fn at(path: PathBuf) -> io::Result<TemporaryFolder> {
        match mkdir(&path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = openat(CWD, &path, flags, Mode::empty())?;
        let found = fstat(&opened)?;
        let is_own = found.st_uid == geteuid().as_raw() && found.st_mode & 0o077 == 0;
        if is_own && FileType::from_raw_mode(found.st_mode) == FileType::Directory {
            Ok(TemporaryFolder { path, opened })
        } else {
            Err(io::Error::other("the folder is not this user's alone"))
        }
    }

    /// A path that refers to the directory while `self` exists, even if it is renamed.
    pub(crate) fn granted(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.opened.as_raw_fd()).into()
    }
}

/// The name of an application's temporary directory.
pub(crate) fn folder_name(app: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    let app: String = app.chars().take(64).map(plain).collect();
    format!("komainu-app-{}-{app}", geteuid().as_raw())
}
