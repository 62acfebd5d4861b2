//! Opening of files below a root, subject to the policy on symbolic links.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use failure::IoFailure;
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::{Errno, ReadWriteFlags};

use crate::open_folder::{FolderId, OpenFolder};
use crate::options::Symlinks;

/// Maximum number of symbolic links in a path; the kernel has the same limit.
const LINKS_MAX: usize = 40;
/// Maximum number of retries if a component is renamed during the lookup.
const RETRIES_MAX: usize = 8;
/// Reason of a refusal because this process lacks read permission.
pub const NO_PERMISSION: &str = "no permission to read";
/// Opening never blocks on a FIFO's writer and never makes a terminal the controlling one.
const READ_ONLY: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);
const PATH_ONLY: OFlags = OFlags::PATH.union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

/// A served folder: its path, and an open descriptor of the folder that the path named when it was last
/// checked.
#[derive(Debug)]
pub struct Root {
    path: PathBuf,
    /// Descriptor of the folder; `None` if the path named no folder.
    folder: Option<Arc<OpenFolder>>,
    symlinks: Symlinks,
}

/// Result of checking a root's path again.
#[derive(Debug)]
pub enum RootChange {
    /// The folder that is served already.
    Same,
    /// Another folder, or a folder after there was none.
    Replaced(Root),
    /// The path names no folder.
    Missing(Root, io::Error),
    /// The state could not be determined. The open folder is served as before.
    Unknown(io::Error),
}

/// Permission of a call to block on a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockingMode {
    /// The call may use only cached data; otherwise it returns [`OpenError::WouldBlock`].
    CacheOnly,
    /// The call may block.
    Blocking,
}

/// Result of opening a path.
#[derive(Debug)]
pub enum OpenResult {
    /// A regular file.
    File(File, Stamp),
    /// A folder.
    Folder(File),
    /// The path does not exist.
    Missing,
    /// An object that is not served, with the reason.
    Refused(&'static str),
}

/// The reason why a path could not be looked up.
#[derive(Debug)]
pub enum OpenError {
    /// Try again with [`BlockingMode::Blocking`].
    WouldBlock,
    /// The process or the system is out of descriptors.
    NoDescriptors,
    /// Another error of the operating system.
    Failed(io::Error),
}

impl From<OpenError> for io::Error {
    fn from(trouble: OpenError) -> io::Error {
        match trouble {
            OpenError::WouldBlock => Errno::AGAIN.into(),
            OpenError::NoDescriptors => Errno::MFILE.into(),
            OpenError::Failed(error) => error,
        }
    }
}

/// Identifier of a file's state: a file that has changed has a different stamp.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    device: u64,
    inode: u64,
    /// Length in bytes.
    pub size: u64,
    /// Modification time in seconds since 1970.
    pub modified_s: i64,
    /// Nanosecond part of the modification time.
    pub modified_ns: i64,
    changed_s: i64,
    changed_ns: i64,
}

impl Stamp {
    /// Returns the stamp of an open file.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn of(file: &File) -> io::Result<Stamp> {
        file.metadata().map(|metadata| Stamp::from(&metadata))
    }
}

impl From<&std::fs::Metadata> for Stamp {
    fn from(metadata: &std::fs::Metadata) -> Stamp {
        Stamp {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified_s: metadata.mtime(),
            modified_ns: metadata.mtime_nsec(),
            changed_s: metadata.ctime(),
            changed_ns: metadata.ctime_nsec(),
        }
    }
}

impl Root {
    /// Opens the folder. Requires Linux 5.12 for `openat2` with `RESOLVE_CACHED`.
    ///
    /// # Errors
    /// Fails if the folder does not exist, permission is denied, or the kernel or a sandbox does not support
    /// `openat2`.
    pub fn open(path: &Path, symlinks: Symlinks) -> io::Result<Root> {
        let explain = |errno: Errno| {
            let error = io::Error::from(errno);
            let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
            error.attempting(format_args!("cannot serve {}", path.display())).about(path)
        };
        let folder =
            open_folder(path, BlockingMode::Blocking).and_then(OpenFolder::shared).map_err(explain)?;
        let root = Root { path: path.to_path_buf(), folder: Some(folder), symlinks };
        match root.open_beneath(b".", OFlags::PATH, BlockingMode::CacheOnly) {
            Ok(_) | Err(Errno::AGAIN) => Ok(root),
            Err(errno) => Err(explain(errno)),
        }
    }

    /// Path of the root.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Device and inode number of the open folder; `None` if the path names none.
    #[must_use]
    pub fn id(&self) -> Option<FolderId> {
        self.folder.as_ref().map(|folder| folder.id())
    }

    /// Checks whether the path still names the folder that is open.
    ///
    /// # Errors
    /// [`OpenError::WouldBlock`].
    pub fn recheck(&self, mode: BlockingMode) -> Result<RootChange, OpenError> {
        let with = |folder| Root { path: self.path.clone(), folder, symlinks: self.symlinks };
        if mode == BlockingMode::CacheOnly && self.folder.as_ref().is_some_and(|folder| folder.is_remote()) {
            return Err(OpenError::WouldBlock);
        }
        Ok(match open_folder(&self.path, mode) {
            Ok(found) if self.folder.as_ref().is_some_and(|own| own.is_same_as(&found)) => RootChange::Same,
            Ok(_) if mode == BlockingMode::CacheOnly => return Err(OpenError::WouldBlock),
            Ok(found) => match OpenFolder::shared(found) {
                Ok(folder) => RootChange::Replaced(with(Some(folder))),
                Err(errno) => RootChange::Unknown(errno.into()),
            },
            Err(Errno::AGAIN) if mode == BlockingMode::CacheOnly => return Err(OpenError::WouldBlock),
            Err(errno @ (Errno::NOENT | Errno::NOTDIR | Errno::LOOP)) => match self.folder {
                Some(_) => RootChange::Missing(with(None), errno.into()),
                None => RootChange::Same,
            },
            Err(errno) => RootChange::Unknown(errno.into()),
        })
    }

    /// Whether `path` names a regular file below the root. The file need not be readable.
    ///
    /// # Errors
    /// [`OpenError`], if this could not be determined.
    pub fn has_file(&self, path: &[u8], mode: BlockingMode) -> Result<bool, OpenError> {
        let start = path.iter().position(|&byte| byte != b'/').unwrap_or(path.len());
        if self.folder.is_none() || start == path.len() {
            return Ok(false);
        }
        loop {
            match self.open_beneath(&path[start..], OFlags::PATH, mode) {
                Ok(fd) => {
                    let stat = rustix::fs::fstat(&fd).map_err(|errno| OpenError::Failed(errno.into()))?;
                    return Ok(FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if mode == BlockingMode::CacheOnly => return Err(OpenError::WouldBlock),
                Err(Errno::XDEV) if self.symlinks == Symlinks::OwnerMatch => {
                    return Ok(matches!(self.open_path(path, mode)?, OpenResult::File(..)));
                }
                Err(errno) => return interpret_error(errno).map(|_| false),
            }
        }
    }

    /// Opens `path` below the root. The path is decoded and has no `..`; leading slashes are ignored.
    ///
    /// # Errors
    /// [`OpenError`], if this could not be determined.
    pub fn open_path(&self, path: &[u8], mode: BlockingMode) -> Result<OpenResult, OpenError> {
        let Some(folder) = &self.folder else { return Ok(OpenResult::Missing) };
        let start = path.iter().position(|&byte| byte != b'/').unwrap_or(path.len());
        let relative = if start == path.len() { b"." } else { &path[start..] };
        let mut retries = 0;
        loop {
            let found = match self.open_beneath(relative, READ_ONLY, mode) {
                Err(Errno::XDEV) if self.symlinks == Symlinks::OwnerMatch => {
                    walk(folder.descriptor(), relative)
                }
                found => found,
            };
            match found {
                Ok(fd) => return classify(File::from(fd)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if mode == BlockingMode::CacheOnly => return Err(OpenError::WouldBlock),
                // A component was renamed during the lookup.
                Err(Errno::AGAIN) if retries < RETRIES_MAX => retries += 1,
                Err(errno) => return interpret_error(errno),
            }
        }
    }

    /// Opens `path` below the root. [`BlockingMode::CacheOnly`] yields `AGAIN` also for remote file systems, for what is
    /// mounted below the root, which may be remote, and for links that lead out.
    fn open_beneath(&self, path: &[u8], flags: OFlags, patience: BlockingMode) -> Result<OwnedFd, Errno> {
        let is_cached_only = patience == BlockingMode::CacheOnly;
        let folder = self.folder.as_ref().ok_or(Errno::NOENT)?;
        if is_cached_only && folder.is_remote() {
            return Err(Errno::AGAIN);
        }
        let mut resolve = ResolveFlags::NO_MAGICLINKS;
        resolve.set(ResolveFlags::BENEATH, self.symlinks != Symlinks::Follow);
        resolve.set(ResolveFlags::CACHED | ResolveFlags::NO_XDEV, is_cached_only);
        let opened =
            rustix::fs::openat2(folder.descriptor(), path, flags | OFlags::CLOEXEC, Mode::empty(), resolve);
        match opened {
            Err(Errno::XDEV) if is_cached_only => Err(Errno::AGAIN),
            opened => opened,
        }
    }
}

/// Opens the folder at `path`. Links in it may lead anywhere, because the path comes from the configuration.
fn open_folder(path: &Path, patience: BlockingMode) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut resolve = ResolveFlags::empty();
    resolve.set(ResolveFlags::CACHED, patience == BlockingMode::CacheOnly);
    rustix::fs::openat2(rustix::fs::CWD, path, flags, Mode::empty(), resolve)
}

fn classify(file: File) -> Result<OpenResult, OpenError> {
    let metadata = file.metadata().map_err(OpenError::Failed)?;
    if metadata.is_file() {
        return Ok(OpenResult::File(file, Stamp::from(&metadata)));
    }
    Ok(if metadata.is_dir() { OpenResult::Folder(file) } else { OpenResult::Refused("not a regular file") })
}

fn interpret_error(errno: Errno) -> Result<OpenResult, OpenError> {
    match errno {
        // INVAL: a name with a NUL, or one that the file system does not allow.
        Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG | Errno::INVAL => Ok(OpenResult::Missing),
        Errno::XDEV => Ok(OpenResult::Refused("a symbolic link leads out of the root")),
        Errno::LOOP => Ok(OpenResult::Refused("symbolic links without end")),
        Errno::ACCESS | Errno::PERM => Ok(OpenResult::Refused(NO_PERMISSION)),
        // A socket, or a device without a driver.
        Errno::NXIO | Errno::NODEV => Ok(OpenResult::Refused("not a regular file")),
        Errno::MFILE | Errno::NFILE => Err(OpenError::NoDescriptors),
        errno => Err(OpenError::Failed(errno.into())),
    }
}

enum OpenStep {
    Enter(Vec<u8>),
    /// The owner of the link, who must also own its target.
    OwnedBy(u32),
}

/// Opens `path` component by component. Links may lead anywhere if each has the same owner as its final
/// target. Every check is made on a descriptor, so that no link can be swapped between check and use.
fn walk(root: &OwnedFd, path: &[u8]) -> Result<OwnedFd, Errno> {
    let mut steps = Vec::new();
    push_reversed(&mut steps, path);
    let mut parent = rustix::fs::openat(root, ".", PATH_ONLY, Mode::empty())?;
    let mut here = rustix::fs::openat(root, ".", PATH_ONLY, Mode::empty())?;
    let mut here_name = b".".to_vec();
    let mut links = 0;
    while let Some(step) = steps.pop() {
        let name = match step {
            OpenStep::Enter(name) => name,
            OpenStep::OwnedBy(owner) if rustix::fs::fstat(&here)?.st_uid == owner => continue,
            OpenStep::OwnedBy(_) => return Err(Errno::XDEV),
        };
        let object = rustix::fs::openat(&here, &name[..], PATH_ONLY, Mode::empty())?;
        let stat = rustix::fs::fstat(&object)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
            parent = std::mem::replace(&mut here, object);
            here_name = name;
            continue;
        }
        links += 1;
        if links > LINKS_MAX {
            return Err(Errno::LOOP);
        }
        let target = rustix::fs::readlinkat(&object, "", Vec::new())?.into_bytes();
        steps.push(OpenStep::OwnedBy(stat.st_uid));
        push_reversed(&mut steps, &target);
        if target.starts_with(b"/") {
            here = rustix::fs::open("/", PATH_ONLY, Mode::empty())?;
        }
    }
    reopen(&parent, &here, &here_name)
}

fn push_reversed(steps: &mut Vec<OpenStep>, path: &[u8]) {
    let names = path.split(|&byte| byte == b'/').filter(|name| !matches!(*name, b"" | b"."));
    steps.extend(names.rev().map(|name| OpenStep::Enter(name.to_vec())));
}

/// Opens the object behind `here` for reading. A file is opened by its name again and must still be the same
/// file.
fn reopen(parent: &OwnedFd, here: &OwnedFd, here_name: &[u8]) -> Result<OwnedFd, Errno> {
    let checked = rustix::fs::fstat(here)?;
    if FileType::from_raw_mode(checked.st_mode) == FileType::Directory {
        return rustix::fs::openat(here, ".", READ_ONLY, Mode::empty());
    }
    let opened = rustix::fs::openat(parent, here_name, READ_ONLY | OFlags::NOFOLLOW, Mode::empty())?;
    let stat = rustix::fs::fstat(&opened)?;
    let same = (stat.st_dev, stat.st_ino) == (checked.st_dev, checked.st_ino);
    if same { Ok(opened) } else { Err(Errno::AGAIN) }
}

/// Reads the first `len` bytes of a file, fewer if it is shorter.
///
/// # Errors
/// [`OpenError::WouldBlock`] if not all of them are in memory; errors of the system.
pub fn read(file: &File, len: u64, mode: BlockingMode) -> Result<Vec<u8>, OpenError> {
    let len = usize::try_from(len).map_err(|_| OpenError::Failed(io::ErrorKind::OutOfMemory.into()))?;
    let mut bytes = vec![0; len];
    let mut at = 0;
    while at < len {
        let read = match mode {
            BlockingMode::CacheOnly => {
                read_cached(file, &mut bytes[at..], at as u64).map_err(io::Error::from)
            }
            BlockingMode::Blocking => file.read_at(&mut bytes[at..], at as u64),
        };
        match read {
            // A short read may mean that the rest is not in memory, and does not imply the end of the file.
            Ok(0) if mode == BlockingMode::CacheOnly => return Err(OpenError::WouldBlock),
            Ok(0) => break,
            Ok(read) => at += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) if mode == BlockingMode::CacheOnly => return Err(OpenError::WouldBlock),
            Err(error) => return Err(OpenError::Failed(error)),
        }
    }
    bytes.truncate(at);
    Ok(bytes)
}

/// Reads from the page cache only.
///
/// # Errors
/// `AGAIN` if the bytes are not in the page cache; other errors if the file system does not support such
/// reads.
pub fn read_cached(file: &impl AsFd, bytes: &mut [u8], at: u64) -> Result<usize, Errno> {
    rustix::io::preadv2(file, &mut [io::IoSliceMut::new(bytes)], at, ReadWriteFlags::NOWAIT)
}

#[cfg(test)]
mod tests;
