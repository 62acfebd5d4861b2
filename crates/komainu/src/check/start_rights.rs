//! Warnings for rights that the user of this process lacks for a start: unwritable directories of files and
//! sockets, privileged ports, a foreign group. They are not errors, because another user, or systemd, may
//! start the server.

use std::collections::BTreeSet;
use std::path::Path;

use config::Config;
use net::Listen;
use rights::file_rights::{FileRight, describe, inaccessible_folder, lacks_right};
use rights::privilege::{Identity, group_id};
use rustix::thread::{CapabilitySet, capabilities};

/// First unprivileged port, used if the kernel's setting cannot be read.
const UNPRIVILEGED_PORT: u16 = 1024;

/// Returns the warnings for a configuration; none for root.
pub(crate) fn rights_warnings(config: &Config) -> Vec<String> {
    let user = Identity::of_process();
    if user.uid == 0 {
        return Vec::new();
    }
    let logs = config.log_files();
    let logs = logs.iter().filter_map(|path| unwritable_warning("the log", path, true, &user));
    let of_sites = config.sites.iter().flat_map(|site| &site.listen);
    let listens = config.listen.iter().chain(of_sites).map(|listener| &listener.address);
    let sockets = listens.clone().chain(&config.control.listen).filter_map(|address| match address {
        Listen::Unix(path) if !path.to_string_lossy().starts_with('@') => Some(path),
        _ => None,
    });
    let sockets = sockets.filter_map(|path| unwritable_warning("the socket", path, false, &user));
    let ports: BTreeSet<u16> =
        listens.clone().flat_map(|address| address.sockets()).map(|socket| socket.port()).collect();
    let mut all: Vec<String> = logs.chain(sockets).collect();
    all.extend(privileged_port_warning(ports, &user));
    all.extend(config.control.group.as_deref().and_then(|group| group_warning(group, &user)));
    all
}

/// Returns a warning if the user cannot write or create a file. `is_kept` is whether an existing file is
/// opened rather than replaced.
fn unwritable_warning(what: &str, path: &Path, is_kept: bool, user: &Identity) -> Option<String> {
    let path = std::path::absolute(path).ok()?;
    let folder = path.parent()?;
    let (place, verb, letter) = match inaccessible_folder(&path, user) {
        Some(closed) => (closed, "enter", 'x'),
        None if is_kept && path.exists() => (path.clone(), "write to", 'w'),
        None => (folder.to_owned(), "make files in", 'w'),
    };
    let right = if letter == 'x' { FileRight::Enter } else { FileRight::Write };
    lacks_right(&place, user, right).then(|| {
        let name = &user.name;
        let shown = describe(&place);
        let path = path.display();
        let place = place.display();
        format!(
            "user {name} may not {verb} {place} ({shown}): a start by this user cannot open {what} {path}; give the right to a group of \
             {name} (`chgrp`, `chmod g+{letter}`), name another folder, or start as another user"
        )
    })
}

fn privileged_port_warning(ports: BTreeSet<u16>, user: &Identity) -> Option<String> {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    let first = text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(UNPRIVILEGED_PORT);
    let closed: Vec<String> =
        ports.range(1..).take_while(|port| **port < first).map(u16::to_string).collect();
    let may_bind =
        capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::NET_BIND_SERVICE));
    (!closed.is_empty() && !may_bind).then(|| {
        format!(
            "`listen`: user {} may not listen on port {}, below {first}: start as root, with the capability \
             CAP_NET_BIND_SERVICE (systemd: `AmbientCapabilities`), or with a socket of systemd",
            user.name,
            closed.join(", ")
        )
    })
}

fn group_warning(group: &str, user: &Identity) -> Option<String> {
    let id = group_id(group).ok()?;
    (!user.groups.contains(&id)).then(|| {
        format!(
            "`control.group`: user {name} is not in the group {group}, and cannot give it the control socket: `usermod -aG {group} {name}`, \
             or start as root",
            name = user.name
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(uid: u32) -> Identity {
        Identity { name: "web".into(), uid, gid: uid, groups: vec![uid] }
    }

    #[test]
    fn missing_rights_for_a_start_are_reported() {
        let folder = std::env::temp_dir().join(format!("komainu-start-rights-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let log = folder.join("x.log");
        let said = unwritable_warning("the log", &log, true, &user(54_321)).unwrap();
        assert!(
            said.starts_with(&format!("user web may not make files in {} (mode ", folder.display())),
            "{said}"
        );
        assert_eq!(
            unwritable_warning("the log", &log, true, &user(rustix::process::geteuid().as_raw())),
            None
        );
        std::fs::write(&log, "").unwrap();
        let said = unwritable_warning("the log", &log, true, &user(54_321)).unwrap();
        assert!(said.starts_with(&format!("user web may not write to {} (mode ", log.display())), "{said}");
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(group_warning("0", &user(54_321)).is_some() && group_warning("0", &user(0)).is_none());
    }
}
