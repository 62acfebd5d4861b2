//! Files and directories that a sandbox grants, resolved so that the application cannot redirect them.
//!
//! A sandboxed application can create symbolic links below a directory that it may write to. A path of its
//! sandbox that leads through such a link would grant the link's target. Paths are therefore resolved
//! component by component, and the files found are granted. A path through such a link grants nothing, and is
//! an error unless its target lies below another granted path.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use failure::Failure;
use net::trusted_path::{LINKS_MAX, components, link_target};
use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat};
use rustix::io::Errno;

/// Device and inode number, which identify a file independently of its path.
type FileId = (u64, u64);

/// Paths of a sandbox.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SandboxPaths<'a> {
    /// Readable in every sandbox.
    pub(crate) system: &'a [PathBuf],
    pub(crate) read: &'a [PathBuf],
    /// Interpreter whose directory and parent are readable: `/opt/python` for `/opt/python/bin/python`.
    pub(crate) interpreter: Option<&'a Path>,
    pub(crate) write: &'a [PathBuf],
    /// Paths that other applications may write to.
    pub(crate) written_by_others: &'a [PathBuf],
}

/// Granted files, as paths to open descriptors of this process.
#[derive(Debug, Default)]
pub(crate) struct GrantedPaths {
    pub(crate) read: Vec<PathBuf>,
    pub(crate) write: Vec<PathBuf>,
    writable: Vec<FileId>,
    /// Descriptors that keep the paths valid.
    opened: Vec<OwnedFd>,
}

impl GrantedPaths {
    /// Resolves and opens the paths; paths that are missing or not reachable by this process grant nothing.
    ///
    /// # Errors
    /// A path leads through a symbolic link that this or another application can replace.
    pub(crate) fn open(paths: SandboxPaths<'_>) -> Result<GrantedPaths, Failure> {
        let found = |paths: &[PathBuf]| -> Vec<ResolvedPath> {
            paths.iter().filter_map(|path| ResolvedPath::of(path).ok()).collect()
        };
        let system = found(paths.system);
        let mut read = found(paths.read);
        let write = found(paths.write);
        read.extend(paths.interpreter.and_then(interpreter_folder));
        let others = found(paths.written_by_others);
        let writable: Vec<FileId> = write.iter().chain(&others).filter_map(ResolvedPath::id).collect();
        let is_led = |path: &ResolvedPath| path.links.iter().flatten().any(|id| writable.contains(id));
        let (led_write, write): (Vec<_>, Vec<_>) = write.into_iter().partition(is_led);
        let (led_read, read): (Vec<_>, Vec<_>) = read.into_iter().partition(is_led);
        let ids = |paths: &[ResolvedPath]| paths.iter().filter_map(ResolvedPath::id).collect::<Vec<_>>();
        let writable = ids(&write);
        let readable = [ids(&system), ids(&read), writable.clone()].concat();
        let covered = |path: &ResolvedPath, by: &[FileId]| path.folders.iter().any(|(_, id)| by.contains(id));
        let foreign = led_write.iter().find(|path| !covered(path, &writable));
        match foreign.or(led_read.iter().find(|path| !covered(path, &readable))) {
            Some(path) => Err(refusal(&path.path).into()),
            None => {
                let mut granted = GrantedPaths { writable, ..GrantedPaths::default() };
                granted.read = read.into_iter().filter_map(|path| granted.grant(path)).collect();
                granted.write = write.into_iter().filter_map(|path| granted.grant(path)).collect();
                Ok(granted)
            }
        }
    }

    /// Whether the application may create files in a directory.
    pub(crate) fn may_write(&self, folder: &Path) -> bool {
        ResolvedPath::of(folder)
            .is_ok_and(|found| found.folders.iter().any(|(_, id)| self.writable.contains(id)))
    }

    fn grant(&mut self, mut path: ResolvedPath) -> Option<PathBuf> {
        let (opened, _) = path.folders.pop()?;
        let name = format!("/proc/self/fd/{}", opened.as_raw_fd());
        self.opened.push(opened);
        Some(name.into())
    }
}

/// The installation directory of an interpreter, with its libraries; `None` if that is the root directory.
fn interpreter_folder(program: &Path) -> Option<ResolvedPath> {
    let mut path = ResolvedPath::of(program).ok()?;
    path.folders.truncate(path.folders.len().saturating_sub(2));
    (path.folders.len() > 1).then_some(path)
}

fn refusal(path: &Path) -> String {
    format!(
        "sandbox: {} leads through a symbolic link that an application can replace, because `write` of its sandbox grants a folder above the \
         link: name what the link leads to instead, or leave the path out",
        path.display()
    )
}

/// A resolved path.
#[derive(Debug)]
struct ResolvedPath {
    path: PathBuf,
    /// Directories from the root to the target, and the target.
    folders: Vec<(OwnedFd, FileId)>,
    /// Directories from the root to each symbolic link that was followed, by link.
    links: Vec<Vec<FileId>>,
}

impl ResolvedPath {
    fn of(path: &Path) -> io::Result<ResolvedPath> {
        let root = rustix::fs::openat(CWD, c"/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let root_id = id_of(&root)?.0;
        let mut rest = components(&std::path::absolute(path)?);
        let mut resolved =
            ResolvedPath { path: path.into(), folders: vec![(root, root_id)], links: Vec::new() };
        while let Some(name) = rest.pop_front() {
            if name == ".." {
                resolved.folders.truncate(resolved.folders.len().saturating_sub(1).max(1));
                continue;
            }
            let Some((folder, _)) = resolved.folders.last() else { break };
            let found =
                openat(folder, &name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
            let (id, kind) = id_of(&found)?;
            if kind != FileType::Symlink {
                resolved.folders.push((found, id));
                continue;
            }
            resolved.links.push(resolved.folders.iter().map(|(_, id)| *id).collect());
            if resolved.links.len() > LINKS_MAX {
                return Err(Errno::LOOP.into());
            }
            let target = link_target(&found)?;
            if target.is_absolute() {
                resolved.folders.truncate(1);
            }
            components(&target).into_iter().rev().for_each(|part| rest.push_front(part));
        }
        Ok(resolved)
    }

    fn id(&self) -> Option<FileId> {
        self.folders.last().map(|(_, id)| *id)
    }
}

fn id_of(file: &OwnedFd) -> io::Result<(FileId, FileType)> {
    let stat = fstat(file)?;
    Ok(((stat.st_dev, stat.st_ino), FileType::from_raw_mode(stat.st_mode)))
}
