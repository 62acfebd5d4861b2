//! The user that a server started as root switches to, and the irrevocable loss of root's privileges.

use std::path::Path;
use std::{fs, io};

use failure::Failure;
use nix::unistd::{Gid, Group, Uid, User, getgrouplist, setgroups, setresgid, setresuid};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, remove_capability_from_bounding_set, set_capabilities,
    set_no_new_privs,
};

/// Default users of a server that was started as root; the first that exists is used. `www-data` is the user
/// of Debian's web server packages.
const USERS: [&str; 2] = ["www-data", "nobody"];
/// User id of `nobody` if there is no `/etc/passwd`, as in a container that holds only this program.
const NOBODY: u32 = 65_534;

/// Looks up a user by name or number; `None` for a number without an entry.
///
/// # Errors
/// There is no such user, or the lookup failed.
pub fn find_user(user: &str) -> Result<Option<User>, Failure> {
    let failed = |error: nix::Error| Failure::new(format!("cannot look up user {user}: {error}"));
    match (User::from_name(user).map_err(failed)?, user.parse()) {
        (Some(known), _) => Ok(Some(known)),
        (None, Ok(uid)) => User::from_uid(Uid::from_raw(uid)).map_err(failed),
        (None, Err(_)) => Err(Failure::new(format!("there is no user {user}"))),
    }
}

/// Returns the id of a group given by name or number.
///
/// # Errors
/// There is no such group.
pub fn group_id(group: &str) -> Result<u32, Failure> {
    match Group::from_name(group) {
        Ok(Some(group)) => Ok(group.gid.as_raw()),
        _ => group.parse().map_err(|_| Failure::new(format!("there is no group {group}"))),
    }
}

/// The environment variables `HOME`, `USER` and `LOGNAME` of a user; `None` if the user has no entry.
pub fn account_environment(uid: u32) -> Option<[(&'static str, std::ffi::OsString); 3]> {
    let account = User::from_uid(uid.into()).ok()??;
    let name = || std::ffi::OsString::from(&account.name);
    Some([("HOME", account.dir.into()), ("USER", name()), ("LOGNAME", name())])
}

/// The user and the groups of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The user's name, or its number in decimal.
    pub name: String,
    /// User id.
    pub uid: u32,
    /// Primary group id.
    pub gid: u32,
    /// All groups of the process, starting with `gid`.
    pub groups: Vec<u32>,
}

impl Identity {
    /// Looks up a user and its supplementary groups. `user` and `group` are names or numbers; without `group`
    /// the user's primary group is used.
    ///
    /// # Errors
    /// The user or the group does not exist.
    pub fn named(user: &str, group: Option<&str>) -> Result<Identity, Failure> {
        let known = find_user(user)?;
        let gid = match (group, &known) {
            (Some(group), _) => group_id(group)?,
            (None, Some(known)) => known.gid.as_raw(),
            (None, None) => {
                return Err(Failure::new(format!("user {user} has no entry: name a `group` too")));
            }
        };
        let mut groups = vec![gid];
        if let Some(known) = &known {
            let name = std::ffi::CString::new(known.name.as_str()).map_err(Failure::new)?;
            let member = getgrouplist(&name, Gid::from_raw(gid)).unwrap_or_default();
            groups.extend(member.into_iter().map(Gid::as_raw).filter(|other| *other != gid));
        }
        let uid = match &known {
            Some(known) => known.uid.as_raw(),
            None => user.parse().unwrap_or(NOBODY),
        };
        Ok(Identity { name: user.to_owned(), uid, gid, groups })
    }

    /// Serializes the identity for [`Identity::parse`]: ids, groups and the name.
    pub fn text(&self) -> String {
        let groups: Vec<String> = self.groups.iter().map(u32::to_string).collect();
        format!("{} {} {} {}", self.uid, self.gid, groups.join(","), self.name)
    }

    /// Parses the output of [`Identity::text`]; `None` if it is malformed.
    pub fn parse(text: &str) -> Option<Identity> {
        let mut words = text.splitn(4, ' ');
        let mut word = || words.next();
        let uid = word()?.parse().ok()?;
        let gid = word()?.parse().ok()?;
        let groups = word()?.split(',').map(|group| group.parse().ok()).collect::<Option<_>>()?;
        Some(Identity { name: word()?.to_owned(), uid, gid, groups })
    }

    /// The user of this process. Without an entry in `/etc/passwd` the name is the number.
    pub fn of_process() -> Identity {
        let uid = rustix::process::geteuid().as_raw();
        let gid = rustix::process::getegid().as_raw();
        let mut groups = vec![gid];
        groups.extend(nix::unistd::getgroups().unwrap_or_default().into_iter().map(Gid::as_raw));
        let list = fs::read_to_string("/etc/passwd").unwrap_or_default();
        Identity { name: name_in(&list, uid).unwrap_or_else(|| uid.to_string()), uid, gid, groups }
    }

    /// Creates a directory owned by this user; requires root. An existing directory is given to the user only
    /// if it belongs to root and is empty.
    ///
    /// # Errors
    /// The directory cannot be created or opened.
    pub fn create_folder(&self, path: &Path) -> io::Result<()> {
        // fchown changes the directory that was opened, even if the path is replaced meanwhile.
        let folder = net::trusted_path::make_folder(path, Mode::RWXU)?;
        let is_roots = rustix::fs::fstat(&folder)?.st_uid == 0;
        let is_entry = |name: &std::ffi::CStr| name != c"." && name != c"..";
        let is_empty = !rustix::fs::Dir::read_from(&folder)?
            .any(|entry| entry.map_or(true, |entry| is_entry(entry.file_name())));
        if is_roots && is_empty {
            let user = rustix::fs::Uid::from_raw(self.uid);
            let group = rustix::fs::Gid::from_raw(self.gid);
            rustix::fs::fchown(&folder, Some(user), Some(group))?;
        }
        Ok(())
    }

    /// The default user of a server that was started as root.
    fn default_for_root() -> Identity {
        USERS.iter().find_map(|user| Identity::named(user, None).ok()).unwrap_or_else(|| Identity {
            name: NOBODY.to_string(),
            uid: NOBODY,
            gid: NOBODY,
            groups: vec![NOBODY],
        })
    }
}

/// Finds the name of a user or group in the text of passwd(5) or group(5). getpwuid(3) may query the network,
/// which would block a serving thread.
pub(crate) fn name_in(list: &str, id: u32) -> Option<String> {
    list.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let number = fields.nth(1)?;
        (number.parse() == Ok(id)).then(|| name.to_owned())
    })
}

/// The outcome of [`decide_rights`]: change the user, or keep it.
#[derive(Debug, PartialEq, Eq)]
pub enum RightsDecision {
    /// Another process serves, as this user.
    Drop(Identity),
    /// This process serves, as the user that started it; with a warning for the log where one is due.
    Keep(Option<String>),
}

/// Decides from the configured user and group and the user of this process. `keeps_root` keeps root if no user
/// is configured.
///
/// # Errors
/// The configured user does not exist, or this process may not change its user.
pub fn decide_rights(
    user: Option<&str>,
    group: Option<&str>,
    keeps_root: bool,
) -> Result<RightsDecision, Failure> {
    let root = rustix::process::geteuid().is_root();
    if !root {
        let other = |user: &str| {
            Identity::named(user, group).is_ok_and(|other| other.uid != rustix::process::getuid().as_raw())
        };
        let warning = user
            .filter(|user| other(user))
            .map(|user| format!("`user = \"{user}\"` has no effect: only root can change its user"));
        return Ok(RightsDecision::Keep(warning));
    }
    let may_change = capabilities(None)
        .is_ok_and(|sets| sets.effective.contains(CapabilitySet::SETUID | CapabilitySet::SETGID));
    let identity = match user {
        Some(user) => Identity::named(user, group)?,
        None if keeps_root => {
            let warning = "serving as root: name a user with --user, or `user` in a configuration file";
            return Ok(RightsDecision::Keep(Some(warning.into())));
        }
        None if !may_change => {
            let warning =
                "serving as root: this process may not change its user (no CAP_SETUID and CAP_SETGID)";
            return Ok(RightsDecision::Keep(Some(warning.into())));
        }
        None => Identity::default_for_root(),
    };
    match identity.uid {
        0 => {
            Ok(RightsDecision::Keep(Some("serving as root, and so do applications without a `user`".into())))
        }
        _ if may_change => Ok(RightsDecision::Drop(identity)),
        _ => Err(Failure::new(format!(
            "cannot serve as {}: this process may not change its user (no CAP_SETUID and CAP_SETGID)",
            identity.name
        ))),
    }
}

/// Changes this process to `identity` irrevocably: no capabilities, an empty bounding set, and no_new_privs,
/// so that set-user-id programs grant no privileges. Call this while the process has a single thread.
///
/// # Errors
/// A system call failed, or privileges remain.
pub fn become_user(identity: &Identity) -> io::Result<()> {
    empty_bounding_set();
    let groups: Vec<Gid> = identity.groups.iter().copied().map(Gid::from_raw).collect();
    let uid = Uid::from_raw(identity.uid);
    let gid = Gid::from_raw(identity.gid);
    setgroups(&groups)?;
    setresgid(gid, gid, gid)?;
    setresuid(uid, uid, uid)?;
    drop_capabilities()?;
    set_no_new_privs(true)?;
    let left = capabilities(None)?;
    let back = setresuid(Uid::from_raw(0), Uid::from_raw(0), Uid::from_raw(0));
    if left.permitted.is_empty() && left.effective.is_empty() && back.is_err() {
        Ok(())
    } else {
        Err(io::Error::other("root's rights are still there"))
    }
}

/// Drops the capabilities of a process that is not root, such as those of systemd's `AmbientCapabilities`:
/// workers would inherit them. Call this while the process has a single thread.
///
/// # Errors
/// The system call failed.
pub fn drop_capabilities() -> io::Result<()> {
    let none = CapabilitySet::empty();
    Ok(set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?)
}

/// Prevents processes started by this thread from gaining privileges; the thread keeps its own.
///
/// # Errors
/// The system call failed.
pub fn restrict_children() -> io::Result<()> {
    empty_bounding_set();
    Ok(set_no_new_privs(true)?)
}

/// Drops all capabilities of this process but `kept`, for programs that it executes too. Call this while the process has
/// a single thread, before or after setting no_new_privs.
///
/// # Errors
/// The system call failed.
pub fn limit_capabilities(kept: CapabilitySet) -> io::Result<()> {
    limit_bounding_set(kept);
    let held = capabilities(None)?;
    let sets = CapabilitySets {
        effective: held.effective & kept,
        permitted: held.permitted & kept,
        inheritable: CapabilitySet::empty(),
    };
    Ok(set_capabilities(None, sets)?)
}

/// Empties the capability bounding set.
fn empty_bounding_set() {
    limit_bounding_set(CapabilitySet::empty());
}

/// Removes all capabilities but `kept` from the bounding set. If that is not permitted (a container without CAP_SETPCAP),
/// no_new_privs still prevents programs from gaining the others.
fn limit_bounding_set(kept: CapabilitySet) {
    for bit in 0..64 {
        let capability = CapabilitySet::from_bits_retain(1 << bit);
        if kept.contains(capability) {
            continue;
        }
        match remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            // EINVAL: no further capabilities exist; EPERM: CAP_SETPCAP is missing.
            Err(Errno::INVAL | _) => break,
        }
    }
}
