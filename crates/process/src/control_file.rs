//! Mode and group of the control listener's Unix socket.

use std::fs::{self, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use link::LinkRequest;
use net::trusted_path;
use rights::privilege::group_id;
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags};

use crate::link::{SupervisorLink, path_text};

/// Applies the configured mode and group to the socket at `path`, through the supervisor if there is one: the
/// server's user may not give a file to an arbitrary group.
///
/// # Errors
/// The system or the supervisor refused the change.
pub fn apply(
    path: &Path,
    mode: Option<u32>,
    group: Option<&str>,
    link: Option<&SupervisorLink>,
) -> io::Result<()> {
    if mode.is_none() && group.is_none() {
        return Ok(());
    }
    match link {
        Some(link) => link.ask(&LinkRequest::ControlFile(path_text(path)?), &[]).map(drop),
        None => set(path, mode, group, rustix::process::geteuid().as_raw()),
    }
}

/// Applies mode and group to a socket that belongs to `owner`; any other file is left unchanged, even if the
/// path was replaced.
///
/// # Errors
/// The system refused the change, or `path` is not a socket of that user.
pub fn set(path: &Path, mode: Option<u32>, group: Option<&str>, owner: u32) -> io::Result<()> {
    let named = |what: &str, error: &dyn std::fmt::Display| {
        io::Error::other(format!("`control.{what}` of {}: {error}", path.display()))
    };
    let opened = trusted_path::open(path, OFlags::PATH | OFlags::NOFOLLOW, Mode::empty());
    let file = opened.map_err(|error| named("listen", &error))?;
    let found = rustix::fs::fstat(&file).map_err(|error| named("listen", &error))?;
    if FileType::from_raw_mode(found.st_mode) != FileType::Socket || found.st_uid != owner {
        return Err(named("listen", &"this is not a socket of the user who serves"));
    }
    if let Some(group) = group {
        let gid = Gid::from_raw(group_id(group).map_err(|error| named("group", &error))?);
        rustix::fs::chownat(&file, c"", None, Some(gid), AtFlags::EMPTY_PATH).map_err(|error| {
            let text = format!("\"{group}\": {error}: name a group that the user who serves belongs to");
            named("group", &text)
        })?;
    }
    if let Some(mode) = mode {
        // An O_PATH descriptor cannot be used with fchmod(2).
        let itself = format!("/proc/self/fd/{}", file.as_raw_fd());
        fs::set_permissions(itself, Permissions::from_mode(mode)).map_err(|error| named("mode", &error))?;
    }
    Ok(())
}
