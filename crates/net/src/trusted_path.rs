//! Opens, creates and removes configured paths as root, so that no other user decides where they lead.
//!
//! A directory is trusted if only root can rename its entries. Below the first untrusted directory, symbolic
//! links are not followed and files with several hard links are refused, because the owner of that directory
//! could otherwise make root read or write any file.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::DirBuilder;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, PROC_SUPER_MAGIC, Stat, fstat, fstatfs, mkdirat, openat, readlinkat,
    statat, unlinkat,
};
use rustix::io::Errno;

/// Maximum number of symbolic links on a path, as in the kernel.
pub const LINKS_MAX: usize = 40;
/// Mode of missing parent directories that are created, modified by the umask.
const PARENT_MODE: Mode = Mode::from_raw_mode(0o755);

/// Users who can change the entries of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FolderControl {
    /// Only root.
    Root,
    /// All users can add entries and remove their own: a sticky directory of root, such as `/tmp`.
    Sticky,
    /// Users other than root.
    Others,
}

impl FolderControl {
    /// Returns the control of a subdirectory.
    fn of_subfolder(self, folder: &Stat) -> FolderControl {
        if self == FolderControl::Others || folder.st_uid != 0 {
            return FolderControl::Others;
        }
        let by_group = folder.st_mode & 0o020 != 0 && folder.st_gid != 0;
        let others_write = folder.st_mode & 0o002 != 0 || by_group;
        if !others_write {
            FolderControl::Root
        } else if folder.st_mode & 0o1000 != 0 {
            FolderControl::Sticky
        } else {
            FolderControl::Others
        }
    }
}

/// A directory and the name of an entry, resolved from a path; nobody else can change what they refer to.
#[derive(Debug)]
pub struct TrustedEntry {
    folder: OwnedFd,
    control: FolderControl,
    /// `.` if the path is that of the directory itself.
    name: OsString,
    /// Whether the name is a link in `/proc` that only the kernel can follow.
    is_kernel_link: bool,
}

impl TrustedEntry {
    /// Resolves a path, without following a symbolic link at its end. If the process does not run as root,
    /// the kernel resolves it.
    ///
    /// # Errors
    /// System errors; a symbolic link in a directory that users other than root can change.
    pub fn resolve(path: &Path) -> io::Result<TrustedEntry> {
        if is_root() {
            return TrustedEntry::walk(path, false, None);
        }
        let name = path.file_name().ok_or(Errno::INVAL)?.to_owned();
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(parent.unwrap_or(Path::new(".")), flags, Mode::empty())?;
        Ok(TrustedEntry { folder, control: FolderControl::Root, name, is_kernel_link: false })
    }

    /// Resolves a path by the rules of this module. Follows a link at its end only if `follows`. Creates
    /// missing directories if `makes` is set, the last one with that mode.
    fn walk(path: &Path, follows: bool, makes: Option<Mode>) -> io::Result<TrustedEntry> {
        let mut rest = components(&std::path::absolute(path)?);
        let mut way = vec![root()?];
        let mut links = 0;
        while let Some(name) = rest.pop_front() {
            if name == ".." {
                way.truncate(way.len().saturating_sub(1).max(1));
                continue;
            }
            let Some((folder, control)) = way.last() else { break };
            let control = *control;
            let is_last = rest.is_empty();
            let found =
                match openat(folder, &name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
                {
                    Ok(found) => Some(found),
                    Err(Errno::NOENT) if makes.is_some() || is_last => None,
                    Err(error) => return Err(error.into()),
                };
            let Some(found) = found else {
                let Some(mode) = makes else { return TrustedEntry::from_last_folder(way, name, false) };
                links += 1;
                match mkdirat(folder, &name, if is_last { mode } else { PARENT_MODE }) {
                    Err(error) if error != Errno::EXIST || links > LINKS_MAX => return Err(error.into()),
                    _ => rest.push_front(name),
                }
                continue;
            };
            let stat = fstat(&found)?;
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Symlink if is_last && (!follows || is_in_procfs(folder)) => {
                    return TrustedEntry::from_last_folder(way, name, follows);
                }
                FileType::Symlink => {
                    if control == FolderControl::Others
                        || (control == FolderControl::Sticky && stat.st_uid != 0)
                    {
                        return Err(refused("a symbolic link", &name));
                    }
                    links += 1;
                    if links > LINKS_MAX {
                        return Err(Errno::LOOP.into());
                    }
                    let target = link_target(&found)?;
                    if target.is_absolute() {
                        way = vec![root()?];
                    }
                    components(&target).into_iter().rev().for_each(|part| rest.push_front(part));
                }
                _ if is_last => return TrustedEntry::from_last_folder(way, name, false),
                FileType::Directory => way.push((found, control.of_subfolder(&stat))),
                _ => return Err(Errno::NOTDIR.into()),
            }
        }
        // The path ends with a known directory: `/`, or `..` at its end.
        TrustedEntry::from_last_folder(way, ".".into(), false)
    }

    fn from_last_folder(
        mut way: Vec<(OwnedFd, FolderControl)>,
        name: OsString,
        is_of_kernel: bool,
    ) -> io::Result<TrustedEntry> {
        let (folder, control) = way.pop().ok_or(Errno::NOENT)?;
        Ok(TrustedEntry { folder, control, name, is_kernel_link: is_of_kernel })
    }

    /// Whether the configured path always leads here, because every directory on it belongs to root.
    #[must_use]
    pub fn is_root_controlled(&self) -> bool {
        self.control != FolderControl::Others
    }

    /// Returns a path to this place, valid in this process and as long as `self` lives.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        Path::new("/proc/self/fd").join(self.folder.as_raw_fd().to_string()).join(&self.name)
    }

    /// Returns the metadata of the entry, without following a link.
    ///
    /// # Errors
    /// System errors.
    pub fn stat(&self) -> io::Result<Stat> {
        Ok(statat(&self.folder, &self.name, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Removes the entry, which must not be a directory.
    ///
    /// # Errors
    /// System errors.
    pub fn remove(&self) -> io::Result<()> {
        Ok(unlinkat(&self.folder, &self.name, AtFlags::empty())?)
    }

    fn open(&self, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
        let flags = if self.is_kernel_link { flags } else { flags | OFlags::NOFOLLOW };
        let opened = openat(&self.folder, &self.name, flags | OFlags::CLOEXEC, mode)?;
        let stat = fstat(&opened)?;
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if !self.is_kernel_link && self.control != FolderControl::Root && is_file && stat.st_nlink > 1 {
            return Err(refused("a file with several names", &self.name));
        }
        Ok(opened)
    }
}

/// Opens a path. If the process does not run as root, the kernel resolves it.
///
/// # Errors
/// System errors; a symbolic link or a file with several hard links in a directory that users other than root
/// can change.
pub fn open(path: &Path, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
    if !is_root() {
        return Ok(rustix::fs::open(path, flags | OFlags::CLOEXEC, mode)?);
    }
    TrustedEntry::walk(path, true, None)?.open(flags, mode)
}

/// Opens a directory. If it is missing, creates it with this mode, and its parents with the usual one.
///
/// # Errors
/// See [`open`]; fails if there is something other than a directory.
pub fn make_folder(path: &Path, mode: Mode) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    if is_root() {
        return TrustedEntry::walk(path, true, Some(mode))?.open(flags, Mode::empty());
    }
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(mode.as_raw_mode()).create(path)?;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// Returns a description if users other than root and the user of this process could replace the file;
/// otherwise `None`.
///
/// # Errors
/// System errors.
pub fn replaceable_by_others(path: &Path) -> io::Result<Option<String>> {
    let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let absolute = std::path::absolute(path)?;
    let real = path.canonicalize()?;
    for place in real.ancestors().chain(absolute.ancestors().skip(1)) {
        let found = rustix::fs::stat(place)?;
        let is_sticky_folder = found.st_mode & 0o1000 != 0 && place != real;
        let by = if found.st_uid != 0 && found.st_uid != own.0 {
            format!("belongs to user {}", found.st_uid)
        } else if is_sticky_folder {
            continue;
        } else if found.st_mode & 0o002 != 0 {
            "can be written to by everybody".to_owned()
        } else if found.st_mode & 0o020 != 0 && found.st_gid != 0 && (own.0 == 0 || found.st_gid != own.1) {
            format!("can be written to by group {}", found.st_gid)
        } else {
            continue;
        };
        return Ok(Some(format!("{} {by}", place.display())));
    }
    let is_certain = !is_root() || TrustedEntry::walk(path, true, None)?.is_root_controlled();
    Ok((!is_certain).then(|| format!("a link on the way to {} is in a folder of others", path.display())))
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn root() -> io::Result<(OwnedFd, FolderControl)> {
    let root = rustix::fs::open(c"/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let control = FolderControl::Root.of_subfolder(&fstat(&root)?);
    Ok((root, control))
}

/// Returns the target of an opened symbolic link.
///
/// # Errors
/// System errors.
pub fn link_target(link: &OwnedFd) -> io::Result<PathBuf> {
    let target = readlinkat(link, c"", Vec::new())?;
    Ok(PathBuf::from(OsStr::from_bytes(target.as_bytes())))
}

/// Returns the names in a path, including `..`.
#[must_use]
pub fn components(path: &Path) -> VecDeque<OsString> {
    let names = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    });
    names.collect()
}

/// Whether a directory is in `/proc`, whose links do not lead to paths.
fn is_in_procfs(folder: &OwnedFd) -> bool {
    fstatfs(folder).is_ok_and(|found| found.f_type == PROC_SUPER_MAGIC)
}

fn refused(what: &str, name: &OsStr) -> io::Error {
    let name = PathBuf::from(name);
    io::Error::other(format!(
        "{} is {what} in a folder that others than root can change, and is not followed: name the file itself, or give the folder to root",
        name.display()
    ))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Read;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    fn read(path: &Path) -> std::io::Result<String> {
        let file = open(path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())?;
        let mut text = String::new();
        fs::File::from(file).read_to_string(&mut text)?;
        Ok(text)
    }

    #[test]
    fn untrusted_links_are_not_followed_on_create_and_remove() {
        if !rustix::process::geteuid().is_root() {
            return eprintln!("SKIPPED: only root opens paths this way");
        }
        let base = std::env::temp_dir().join(format!("komainu-made-{}", std::process::id()));
        let own = base.join("own");
        let theirs = base.join("theirs");
        for folder in [&base, &own, &theirs] {
            fs::create_dir_all(folder).unwrap();
            fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
        }
        symlink("../own", theirs.join("link")).unwrap();
        symlink("../theirs", own.join("link")).unwrap();
        chown(&theirs, Some(65534), Some(65534)).unwrap();
        fs::write(own.join("file"), "").unwrap();
        let mode = Mode::from_raw_mode(0o700);
        for name in ["own/a/b/c", "own/link/a/b", "theirs/x/../y", "own/a/b/c"] {
            make_folder(&base.join(name), mode).unwrap();
        }
        assert_eq!(fs::metadata(own.join("a/b/c")).unwrap().permissions().mode() & 0o777, 0o700);
        assert!(theirs.join("a/b").is_dir() && theirs.join("y").is_dir());
        for name in ["theirs/link", "theirs/link/new", "theirs/link/new/deep"] {
            let error = make_folder(&base.join(name), mode).unwrap_err().to_string();
            assert!(error.contains("a symbolic link"), "{name}: {error}");
        }
        assert!(make_folder(&own.join("file"), mode).is_err());
        assert!(!own.join("new").exists());
        assert!(TrustedEntry::resolve(&theirs.join("link/file")).is_err());
        let place = |name: &str| TrustedEntry::resolve(&base.join(name)).unwrap();
        assert!(place("own/file").is_root_controlled() && !place("own/link/file").is_root_controlled());
        assert_eq!(fs::read(place("own/file").path()).unwrap(), b"");
        // Removes the link itself, not its target.
        place("theirs/link").remove().unwrap();
        place("own/file").remove().unwrap();
        assert!(place("own/file").stat().is_err() && own.exists());
        fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn links_of_root_are_followed_and_links_of_other_users_not() {
        if !rustix::process::geteuid().is_root() {
            return eprintln!("SKIPPED: only root opens paths this way");
        }
        let base = std::env::temp_dir().join(format!("komainu-trusted-{}", std::process::id()));
        let own = base.join("own");
        let theirs = base.join("theirs");
        for folder in [&own, &own.join("sub"), &theirs, &theirs.join("sub")] {
            fs::create_dir_all(folder).unwrap();
            fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
            fs::write(folder.join("file"), "text").unwrap();
        }
        fs::write(base.join("secret"), "secret").unwrap();
        fs::set_permissions(&base, fs::Permissions::from_mode(0o755)).unwrap();
        symlink("../secret", own.join("relative")).unwrap();
        symlink(base.join("own/relative"), own.join("absolute")).unwrap();
        symlink("loop", own.join("loop")).unwrap();
        symlink(theirs.join("link"), own.join("to-theirs")).unwrap();
        symlink("../secret", theirs.join("link")).unwrap();
        symlink("../own", theirs.join("folder")).unwrap();
        fs::hard_link(base.join("secret"), theirs.join("second")).unwrap();
        fs::hard_link(own.join("file"), own.join("second")).unwrap();
        chown(&theirs, Some(65534), Some(65534)).unwrap();
        for name in ["file", "sub/file", "sub/../file", "../own/file", "second"] {
            assert_eq!(read(&own.join(name)).unwrap(), "text", "{name}");
        }
        for name in ["relative", "absolute"] {
            assert_eq!(read(&own.join(name)).unwrap(), "secret", "{name}");
        }
        for name in ["file", "sub/file", "sub/../file"] {
            assert_eq!(read(&theirs.join(name)).unwrap(), "text", "{name}");
        }
        for name in ["link", "folder/file", "sub/../link"] {
            assert!(read(&theirs.join(name)).unwrap_err().to_string().contains("a symbolic link"), "{name}");
        }
        assert!(read(&own.join("to-theirs")).unwrap_err().to_string().contains("a symbolic link"));
        assert!(read(&theirs.join("second")).unwrap_err().to_string().contains("several names"));
        assert!(read(&own.join("loop")).unwrap_err().to_string().contains("symbolic links"));
        assert!(read(&own.join("none")).unwrap_err().to_string().contains("No such file"));
        assert!(read(&own.join("file/more")).is_err());
        // Missing files are created, but never through a link.
        let append = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
        symlink(own.join("planted"), theirs.join("dangling")).unwrap();
        open(&theirs.join("new"), append, Mode::RUSR | Mode::WUSR).unwrap();
        assert!(theirs.join("new").exists());
        open(&theirs.join("dangling"), append, Mode::RUSR | Mode::WUSR).unwrap_err();
        assert!(!own.join("planted").exists());
        // A directory that all users can write to, such as /tmp.
        fs::set_permissions(&own, fs::Permissions::from_mode(0o1777)).unwrap();
        std::os::unix::fs::lchown(own.join("absolute"), Some(65534), None).unwrap();
        assert_eq!(read(&own.join("relative")).unwrap(), "secret", "root's link in a sticky folder");
        assert!(read(&own.join("absolute")).is_err(), "another user's link in a sticky folder");
        assert!(open(Path::new("/dev/stderr"), OFlags::WRONLY | OFlags::APPEND, Mode::empty()).is_ok());
        fs::remove_dir_all(&base).unwrap();
    }
}
