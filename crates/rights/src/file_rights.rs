//! File permissions of a user by the file's mode, for warnings before a start and for messages after a
//! failure.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::privilege::{Identity, name_in};

/// A permission on a file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileRight {
    /// Reading a file, or listing a directory.
    Read,
    /// Writing a file, or creating entries in a directory.
    Write,
    /// Looking up entries of a directory (execute permission).
    Enter,
}

impl FileRight {
    /// The permission bit for others (chmod(2)).
    fn bit(self) -> u32 {
        match self {
            FileRight::Read => 0o4,
            FileRight::Write => 0o2,
            FileRight::Enter => 0o1,
        }
    }
}

/// Whether `user` lacks the permission on an existing file. Returns `false` for a missing file and where an
/// access control list may grant more than the mode.
pub fn lacks_right(path: &Path, user: &Identity, right: FileRight) -> bool {
    let Ok(found) = fs::metadata(path) else { return false };
    let place = if found.uid() == user.uid {
        6
    } else if user.groups.contains(&found.gid()) {
        3
    } else {
        0
    };
    user.uid != 0 && found.mode() & (right.bit() << place) == 0 && !has_access_list(path)
}

/// Returns the topmost parent directory of `path` that the user cannot enter.
pub fn inaccessible_folder(path: &Path, user: &Identity) -> Option<PathBuf> {
    let mut folders: Vec<&Path> = path.ancestors().skip(1).collect();
    folders.reverse();
    folders.into_iter().find(|folder| lacks_right(folder, user, FileRight::Enter)).map(Path::to_owned)
}

/// Mode and owner for messages: `mode 0750, of root:www-data`.
pub fn describe(path: &Path) -> String {
    let Ok(found) = fs::metadata(path) else { return "mode unknown".to_owned() };
    describe_metadata(&found)
}

fn describe_metadata(found: &Metadata) -> String {
    let name = |list: &str, id: u32| {
        let list = fs::read_to_string(list).unwrap_or_default();
        name_in(&list, id).unwrap_or_else(|| id.to_string())
    };
    let user = name("/etc/passwd", found.uid());
    let group = name("/etc/group", found.gid());
    format!("mode {:04o}, of {user}:{group}", found.mode() & 0o7777)
}

/// Explains why a user cannot connect to an existing Unix socket, and the remedy. `None` if the mode allows
/// it.
pub fn socket_refusal(path: &Path, user: &Identity) -> Option<String> {
    let name = &user.name;
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    if let Some(folder) = inaccessible_folder(&path, user) {
        return Some(format!(
            "user {name} may not enter {} ({}): `chmod o+x` that folder, or put the socket into another one",
            folder.display(),
            describe(&folder)
        ));
    }
    lacks_right(&path, user, FileRight::Write).then(|| {
        format!(
            "user {name} may not write to {} ({}): let the program that listens there make it with mode 0660 and a group that {name} \
             is in (PHP-FPM: `listen.group`, gunicorn: `--umask 007 --group`), or name another `user`",
            path.display(),
            describe(&path)
        )
    })
}

/// Whether a directory belongs to proc(5), where not even root can create files.
pub fn is_in_procfs(folder: &Path) -> bool {
    rustix::fs::statfs(folder).is_ok_and(|found| found.f_type == rustix::fs::PROC_SUPER_MAGIC)
}

/// Whether the file has an access control list besides its mode.
fn has_access_list(path: &Path) -> bool {
    let asked = rustix::fs::getxattr(path, c"system.posix_acl_access", &mut [0; 256][..]);
    !matches!(asked, Err(Errno::NODATA | Errno::NOTSUP))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn refused_socket_access_is_explained() {
        let folder = std::env::temp_dir().join(format!("komainu-rights-{}", std::process::id()));
        fs::create_dir_all(folder.join("run")).unwrap();
        let socket = folder.join("run/app.sock");
        let _listener = UnixListener::bind(&socket).unwrap();
        let set = |path: &Path, mode: u32| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        for path in [&folder, &folder.join("run")] {
            set(path, 0o755);
        }
        let found = fs::metadata(&socket).unwrap();
        let user =
            |uid: u32, group: u32| Identity { name: "web".into(), uid, gid: group, groups: vec![group] };
        let other = user(found.uid() + 7, found.gid() + 7);
        set(&socket, 0o755);
        let said = socket_refusal(&socket, &other).unwrap();
        let path = socket.display();
        let owner = describe_metadata(&fs::metadata(&socket).unwrap());
        assert!(said.starts_with(&format!("user web may not write to {path} ({owner}): ")), "{said}");
        assert!(owner.starts_with("mode 0755, of "), "{owner}");
        assert!(said.contains("mode 0660 and a group that web is in"), "{said}");
        assert_eq!(socket_refusal(&socket, &user(0, 0)), None, "root may");
        set(&socket, 0o770);
        assert_eq!(socket_refusal(&socket, &user(found.uid() + 7, found.gid())), None, "the group may");
        set(&socket, 0o777);
        assert_eq!(socket_refusal(&socket, &other), None);
        set(&folder.join("run"), 0o700);
        let said = socket_refusal(&socket, &other).unwrap();
        let closed = folder.join("run").display().to_string();
        assert!(said.starts_with(&format!("user web may not enter {closed} (mode 0700, of ")), "{said}");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn user_names_are_found_by_id() {
        let list = "root:x:0:0:root:/root:/bin/sh\nbad\nweb:x:33:33::/var/www:/bin/false\n";
        assert_eq!(name_in(list, 33).as_deref(), Some("web"));
        assert_eq!((name_in(list, 3), name_in("", 0)), (None, None));
    }
}
