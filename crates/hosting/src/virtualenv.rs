//! Virtual environments of Python applications: lookup, and access by the application's user.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use apps::AppSettings;
use failure::Failure;
use rights::file_rights::{FileRight, lacks_right};
use rights::privilege::Identity;

/// Maximum number of symbolic links followed from an environment's interpreter.
const LINKS_MAX: usize = 8;

/// Finds the virtual environment of a Python application, if it has one. `folder` is the application's
/// directory; `user` is the application's user, if that is not the user of this process.
///
/// # Errors
/// The configured directory is not a virtual environment, or `user` cannot enter the only one found; with the
/// remedy.
pub(crate) fn virtual_environment(
    app: &AppSettings,
    folder: Option<&Path>,
    user: Option<&Identity>,
) -> Result<Option<PathBuf>, Failure> {
    let is_one = |environment: &Path| environment.join("bin/python").exists();
    if let Some(environment) = &app.virtualenv {
        let environment = std::path::absolute(environment).map_err(Failure::new)?;
        return match (access_problem(&environment, user), is_one(&environment)) {
            (Some(text), _) => Err(text.into()),
            (None, true) => Ok(Some(environment)),
            (None, false) => Err(Failure::new(format!(
                "{} is not a virtual environment: it has no bin/python",
                environment.display()
            ))),
        };
    }
    let active = active_environment(app).filter(|active| access_problem(active, user).is_none());
    let here = folder.map_or_else(std::env::current_dir, |folder| Ok(folder.to_owned()));
    let beside = here.into_iter().flat_map(|here| [here.join(".venv"), here.join("venv")]);
    // The environment in which `pip` has installed this program.
    let own = std::env::current_exe().ok().and_then(|program| Some(program.ancestors().nth(2)?.to_owned()));
    let mut fault = None;
    for environment in active.into_iter().chain(beside).chain(own) {
        // Whether an inaccessible directory contains an environment is unknown.
        let is_there = fs::symlink_metadata(&environment).is_ok();
        match access_problem(&environment, user).filter(|_| is_there) {
            Some(text) => fault = fault.or(Some(text)),
            None if environment.join("pyvenv.cfg").exists() && is_one(&environment) => {
                return Ok(Some(environment));
            }
            None => {}
        }
    }
    fault.map_or(Ok(None), |text| Err(text.into()))
}

/// The active environment of the user who started the server, if the configuration names none.
fn active_environment(app: &AppSettings) -> Option<PathBuf> {
    std::env::var_os("VIRTUAL_ENV").map(PathBuf::from).filter(|_| app.virtualenv.is_none())
}

/// Explains why the active environment is skipped, if it is. This is not an error, because the environment may be
/// intended for other programs.
pub(crate) fn skip_reason(app: &AppSettings, user: Option<&Identity>) -> Option<String> {
    active_environment(app)
        .and_then(|active| access_problem(&active, user))
        .map(|text| format!("{text}; it is passed over"))
}

/// Explains which directory on the way to the interpreter is not accessible to the user, and the remedy.
fn access_problem(environment: &Path, user: Option<&Identity>) -> Option<String> {
    let mut path = environment.join("bin/python");
    for _ in 0..LINKS_MAX {
        let mut folders: Vec<&Path> = path.ancestors().skip(1).collect();
        folders.reverse();
        if let Some(folder) = folders.into_iter().find(|folder| is_inaccessible(folder, user)) {
            let mode = fs::metadata(folder).map_or(0, |found| found.mode() & 0o7777);
            let name = user
                .map_or_else(|| rustix::process::geteuid().as_raw().to_string(), |user| user.name.clone());
            // Resolve symbolic links for the message.
            let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
            let folder = folder.display();
            return Some(format!(
                "user {name} cannot use the virtual environment {}, because {folder} has mode {mode:04o}: let the user \
                 enter it (`chmod o+rx {folder}`), make the environment in another folder, or name another `user`",
                environment.display()
            ));
        }
        // The interpreter of an environment is a symbolic link, for example to the home directory of its
        // creator.
        let target = fs::read_link(&path).ok()?;
        path = path.parent().unwrap_or(Path::new("/")).join(target);
    }
    None
}

/// Whether a directory exists and the user cannot enter it.
pub fn is_inaccessible(folder: &Path, user: Option<&Identity>) -> bool {
    let Some(user) = user else {
        return fs::metadata(folder.join("."))
            .is_err_and(|error| error.kind() == ErrorKind::PermissionDenied);
    };
    lacks_right(folder, user, FileRight::Enter)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn directory_the_user_cannot_enter_is_named() {
        let folder = std::env::temp_dir().join(format!("komainu-virtualenv-{}", std::process::id()));
        let set = |name: &str, mode: u32| {
            fs::set_permissions(folder.join(name), fs::Permissions::from_mode(mode)).unwrap();
        };
        for name in ["env/bin", "home/bin"] {
            fs::create_dir_all(folder.join(name)).unwrap();
        }
        fs::write(folder.join("home/bin/python3"), "").unwrap();
        symlink("../../home/bin/python3", folder.join("env/bin/python")).unwrap();
        ["", "env", "env/bin", "home", "home/bin"].iter().for_each(|name| set(name, 0o755));
        let found = fs::metadata(&folder).unwrap();
        let user = |uid: u32, groups: &[u32]| Identity {
            name: "web".into(),
            uid,
            gid: uid,
            groups: groups.to_vec(),
        };
        let other = user(found.uid() + 7, &[found.gid() + 7]);
        let said = |user: &Identity| access_problem(&folder.join("env"), Some(user));
        assert_eq!(said(&other), None);
        for name in ["env", "home"] {
            set(name, 0o750);
            let text = said(&other).unwrap();
            let place = folder.join(name).canonicalize().unwrap();
            let place = format!("because {} has mode 0750", place.display());
            assert!(text.contains(&place) && text.starts_with("user web cannot use"), "{text}");
            assert_eq!(said(&user(found.uid() + 7, &[found.gid()])), None, "the group may");
            assert_eq!(said(&user(0, &[])), None, "root may");
            set(name, 0o755);
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
