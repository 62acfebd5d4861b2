//! The temporary folder of a sandboxed application, where its sandbox grants none.
//!
//! Languages, their frameworks and workers keep uploads and long request bodies in files of the folder that TMPDIR names, `/tmp` by default.
//! A sandbox that does not grant it gets a folder there that is its own. It stays from start to start: the processes of an application have
//! no common end that could remove it as their user.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, mkdir, openat};
use rustix::io::Errno;
use rustix::process::geteuid;

/// A folder that no other user can reach.
pub(crate) struct TemporaryFolder {
    /// Its path, for TMPDIR.
    pub(crate) path: PathBuf,
    opened: OwnedFd,
}

impl TemporaryFolder {
    /// The folder `name` below `base`, made where it is missing. Where another user has made it, one with the number of this process behind its
    /// name.
    ///
    /// # Errors
    /// Where this process may make no folder there.
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
        match is_own && FileType::from_raw_mode(found.st_mode) == FileType::Directory {
            true => Ok(TemporaryFolder { path, opened }),
            false => Err(io::Error::other("the folder is not this user's alone")),
        }
    }

    /// A path that leads to the folder as long as this lives, whatever becomes of its name.
    pub(crate) fn granted(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.opened.as_raw_fd()).into()
    }
}

/// The name of an application's folder.
pub(crate) fn folder_name(app: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    let app: String = app.chars().take(64).map(plain).collect();
    format!("komainu-app-{}-{app}", geteuid().as_raw())
}
