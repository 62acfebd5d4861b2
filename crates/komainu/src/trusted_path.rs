//! How a process of root opens a path that the configuration names, so that nobody else decides where it leads.
//!
//! A folder is trusted where root alone can rename what is in it. From the first other folder on, symbolic links are not followed, and a file
//! with several names is refused: whoever owns that folder could have root read or write any file.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, PROC_SUPER_MAGIC, Stat, fstat, fstatfs, openat, readlinkat};
use rustix::io::Errno;

/// Symbolic links on the way to a file, as many as the kernel follows.
pub(crate) const LINKS_MAX: usize = 40;

/// Who can change the entries of a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Control {
    /// Root alone.
    Root,
    /// Everybody can add entries, and remove their own: a sticky folder of root's, such as `/tmp`.
    Sticky,
    /// Somebody else.
    Others,
}

impl Control {
    /// That of a folder in a folder.
    fn below(self, folder: &Stat) -> Control {
        if self == Control::Others || folder.st_uid != 0 {
            return Control::Others;
        }
        let by_group = folder.st_mode & 0o020 != 0 && folder.st_gid != 0;
        match folder.st_mode & 0o002 != 0 || by_group {
            false => Control::Root,
            true if folder.st_mode & 0o1000 != 0 => Control::Sticky,
            true => Control::Others,
        }
    }
}

/// Opens a path. For processes of other users than root, as the kernel does.
///
/// # Errors
/// The system's; a symbolic link or a file with several names in a folder that others than root can change.
pub(crate) fn open(path: &Path, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
    let flags = flags | OFlags::CLOEXEC;
    if !rustix::process::geteuid().is_root() {
        return Ok(rustix::fs::open(path, flags, mode)?);
    }
    let mut rest = parts(&std::path::absolute(path)?);
    let mut way = vec![root()?];
    let mut links = 0;
    while let Some(name) = rest.pop_front() {
        if name == ".." {
            way.truncate(way.len().saturating_sub(1).max(1));
            continue;
        }
        let Some((folder, control)) = way.last() else { break };
        let looked = openat(folder, &name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
        let found = match looked {
            Ok(found) => found,
            Err(Errno::NOENT) if rest.is_empty() => {
                return Ok(openat(folder, &name, flags | OFlags::NOFOLLOW, mode)?);
            }
            Err(error) => return Err(error.into()),
        };
        let stat = fstat(&found)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink if rest.is_empty() && is_of_processes(folder) => {
                // `/dev/stdout`: the kernel follows what is no path.
                return Ok(openat(folder, &name, flags, mode)?);
            }
            FileType::Symlink => {
                if *control == Control::Others || (*control == Control::Sticky && stat.st_uid != 0) {
                    return Err(refused("a symbolic link", &name));
                }
                links += 1;
                if links > LINKS_MAX {
                    return Err(Errno::LOOP.into());
                }
                let target = text_of_link(&found)?;
                if target.is_absolute() {
                    way = vec![root()?];
                }
                parts(&target).into_iter().rev().for_each(|part| rest.push_front(part));
            }
            FileType::Directory if !rest.is_empty() || flags.contains(OFlags::DIRECTORY) => {
                if rest.is_empty() {
                    return Ok(openat(folder, &name, flags | OFlags::NOFOLLOW, mode)?);
                }
                let control = control.below(&stat);
                way.push((found, control));
            }
            _ if !rest.is_empty() => return Err(Errno::NOTDIR.into()),
            _ => {
                let opened = openat(folder, &name, flags | OFlags::NOFOLLOW, mode)?;
                let stat = fstat(&opened)?;
                let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
                if *control != Control::Root && is_file && stat.st_nlink > 1 {
                    return Err(refused("a file with several names", &name));
                }
                return Ok(opened);
            }
        }
    }
    // The path ends with a folder that is known already: `/`, or `..` at its end.
    let (folder, _) = way.pop().ok_or(Errno::NOENT)?;
    Ok(openat(&folder, c".", flags, mode)?)
}

fn root() -> io::Result<(OwnedFd, Control)> {
    let root = rustix::fs::open(c"/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let control = Control::Root.below(&fstat(&root)?);
    Ok((root, control))
}

/// Where an opened symbolic link leads.
///
/// # Errors
/// The system's.
pub(crate) fn text_of_link(link: &OwnedFd) -> io::Result<PathBuf> {
    let target = readlinkat(link, c"", Vec::new())?;
    Ok(PathBuf::from(OsStr::from_bytes(target.as_bytes())))
}

/// The names that a path consists of, `..` among them.
pub(crate) fn parts(path: &Path) -> VecDeque<OsString> {
    let names = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    });
    names.collect()
}

/// Whether a folder is one of `/proc`, whose links do not lead to paths.
fn is_of_processes(folder: &OwnedFd) -> bool {
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

    fn read(path: &Path) -> Result<String, String> {
        let file = open(path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())
            .map_err(|error| error.to_string())?;
        let mut text = String::new();
        fs::File::from(file).read_to_string(&mut text).map_err(|error| error.to_string())?;
        Ok(text)
    }

    #[test]
    fn links_of_others_are_not_followed_and_those_of_root_are() {
        if !rustix::process::geteuid().is_root() {
            return eprintln!("SKIPPED: only root opens paths this way");
        }
        let base = std::env::temp_dir().join(format!("komainu-trusted-{}", std::process::id()));
        let (own, theirs) = (base.join("own"), base.join("theirs"));
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
            assert_eq!(read(&own.join(name)).as_deref(), Ok("text"), "{name}");
        }
        for name in ["relative", "absolute"] {
            assert_eq!(read(&own.join(name)).as_deref(), Ok("secret"), "{name}");
        }
        for name in ["file", "sub/file", "sub/../file"] {
            assert_eq!(read(&theirs.join(name)).as_deref(), Ok("text"), "{name}");
        }
        for name in ["link", "folder/file", "sub/../link"] {
            assert!(read(&theirs.join(name)).unwrap_err().contains("a symbolic link"), "{name}");
        }
        assert!(read(&own.join("to-theirs")).unwrap_err().contains("a symbolic link"));
        assert!(read(&theirs.join("second")).unwrap_err().contains("several names"));
        assert!(read(&own.join("loop")).unwrap_err().contains("symbolic links"));
        assert!(read(&own.join("none")).unwrap_err().contains("No such file"));
        assert!(read(&own.join("file/more")).is_err());
        // A file that is missing is made, and never behind a link.
        let append = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
        symlink(own.join("planted"), theirs.join("dangling")).unwrap();
        open(&theirs.join("new"), append, Mode::RUSR | Mode::WUSR).unwrap();
        assert!(theirs.join("new").exists());
        open(&theirs.join("dangling"), append, Mode::RUSR | Mode::WUSR).unwrap_err();
        assert!(!own.join("planted").exists());
        // A folder that everybody can write to, as /tmp is.
        fs::set_permissions(&own, fs::Permissions::from_mode(0o1777)).unwrap();
        std::os::unix::fs::lchown(own.join("absolute"), Some(65534), None).unwrap();
        assert_eq!(read(&own.join("relative")).as_deref(), Ok("secret"), "root's link in a sticky folder");
        assert!(read(&own.join("absolute")).is_err(), "another user's link in a sticky folder");
        assert!(open(Path::new("/dev/stderr"), OFlags::WRONLY | OFlags::APPEND, Mode::empty()).is_ok());
        fs::remove_dir_all(&base).unwrap();
    }
}
