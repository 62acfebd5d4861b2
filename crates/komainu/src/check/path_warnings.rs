//! Warnings for existing files and directories with unsuitable permissions or content, with their positions.
//!
//! Checked are access of the server's user to directories and pages, secrets that every user can read,
//! secrets and logs in served directories, and empty user lists.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use config::{Config, NamedPath, Report, TextSpan};
use process::config_files::{self, FILE_BYTES_MAX};
use proxy::options::Origin;
use rights::file_rights::{FileRight, describe, inaccessible_folder, lacks_right, socket_refusal};
use rights::privilege::{self, Identity, RightsDecision};

/// Directives, by suffix, whose files are accessed by the serving process itself rather than by the
/// supervisor.
const SERVED_DIRECTIVES: [(&str, FileRight); 5] = [
    ("files.root", FileRight::Enter),
    ("php.root", FileRight::Enter),
    ("cgi.root", FileRight::Enter),
    ("error_pages", FileRight::Read),
    ("maintenance.page", FileRight::Read),
];
/// Directives, by suffix, whose files contain secrets.
const SECRET_DIRECTIVES: [&str; 11] = [
    "tls.key",
    "default.key",
    "cluster.key",
    "cluster.certificate_key",
    "tls.ticket_keys",
    "auth.basic",
    "dns.secret_file",
    "signed.secret_file",
    "password_file",
    "token_file",
    "headers_file",
];

/// Directives, by suffix, whose files are written by the server and not intended for clients.
const WRITTEN_DIRECTIVES: [&str; 5] = ["log.file", "log.errors", "logs.file", "control.audit", "acme.state"];

/// A warning: its position, title, label and remedy.
pub(crate) type PathWarning = (TextSpan, String, &'static str, String);

/// Returns the warnings for the paths of a configuration.
pub(crate) fn path_warnings(report: &Report, config: &Config) -> Vec<PathWarning> {
    let Some((user, is_other)) = serving_user(config) else { return Vec::new() };
    let mut doubts = served_secret_warnings(report);
    doubts.extend(missing_fallback_warnings(report, config));
    for named in report.named_paths() {
        let Ok(path) = std::path::absolute(&named.path) else { continue };
        let of_right = SERVED_DIRECTIVES.iter().find(|(end, _)| is_directive(named, end));
        let closed = of_right.and_then(|(_, right)| access_warning(&path, *right, &user, is_other));
        let secret = || {
            SECRET_DIRECTIVES
                .iter()
                .any(|end| is_directive(named, end))
                .then(|| exposure_warning(&path))
                .flatten()
        };
        let empty = || is_directive(named, "auth.basic").then(|| empty_user_list_warning(&path)).flatten();
        let unwritable = unwritable_warning(named, &path, config, &user, is_other);
        let found = [closed, unwritable, secret(), empty()].into_iter().flatten();
        doubts.extend(found.map(|(title, label, help)| (named.span.clone(), title, label, help)));
    }
    doubts
}

/// Returns warnings for secrets and logs inside served directories.
fn served_secret_warnings(report: &Report) -> Vec<PathWarning> {
    let real = |named: &NamedPath| std::path::absolute(&named.path).ok();
    let roots: Vec<_> =
        report.named_paths().iter().filter(|named| is_directive(named, "files.root")).collect();
    let folders: Vec<_> = roots.into_iter().filter_map(real).collect();
    let of_kind = |named: &&NamedPath| {
        SECRET_DIRECTIVES.iter().chain(&WRITTEN_DIRECTIVES).any(|end| is_directive(named, end))
    };
    let served = |named: &NamedPath| {
        let path = real(named)?;
        let inside = |folder: &&std::path::PathBuf| {
            // Names that begin with a dot are not served.
            let below = path.strip_prefix(folder).ok();
            below.is_some_and(|rest| rest.iter().all(|name| !name.as_encoded_bytes().starts_with(b".")))
        };
        let folder = folders.iter().find(inside)?;
        let title =
            format!("clients can read {}: it is in {}, which is served", path.display(), folder.display());
        let help = "keep it outside of the folders that are served, as in /etc/komainu or /var/log/komainu"
            .to_owned();
        Some((named.span.clone(), title, "this is not meant for clients", help))
    };
    report.named_paths().iter().filter(of_kind).filter_map(served).collect()
}

/// Returns warnings for files that `fallback` of `files` names and that are in none of its folders.
fn missing_fallback_warnings(report: &Report, config: &Config) -> Vec<PathWarning> {
    let mut roots: Vec<_> =
        report.named_paths().iter().filter(|named| is_directive(named, "files.root")).collect();
    let mut doubts = Vec::new();
    for route in config.sites.iter().flat_map(|site| &site.routes) {
        let config::Action::Files(files) = &route.action else { continue };
        let Some(first) = files.root.first() else { continue };
        // Each place of a folder belongs to one route: of equal ones, the first that is left.
        let Some(place) = roots.iter().position(|named| named.path == *first) else { continue };
        let place = roots.remove(place);
        let Some(fallback) = &files.fallback else { continue };
        let paths: Vec<_> =
            files.root.iter().map(|root| root.join(fallback.trim_start_matches('/'))).collect();
        let is_missing = |path: &std::path::PathBuf| {
            fs::metadata(path).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
        };
        if files.root.iter().all(|root| root.is_dir()) && paths.iter().all(is_missing) {
            let title = format!("the file of `fallback` is missing: {}", paths[0].display());
            let help = "write the path of a file below `root`, or leave `fallback` out".to_owned();
            doubts.push((place.span.clone(), title, "paths without a file are answered 404", help));
        }
    }
    doubts
}

/// Returns messages for existing Unix sockets of upstream servers that the server's user cannot open.
pub(crate) fn socket_warnings(config: &Config) -> Vec<String> {
    let Some((user, _)) = serving_user(config) else { return Vec::new() };
    let routes = config.sites.iter().flat_map(|site| &site.routes);
    let actions = routes.flat_map(|route| std::iter::once(&route.action).chain(&route.otherwise));
    let inline = actions.filter_map(|action| match action {
        // CGI programs are started by this server and have no socket to check.
        config::Action::Proxy(proxy) => Some(&**proxy).filter(|proxy| proxy.cgi.is_none()),
        _ => None,
    });
    let servers =
        config.upstreams.iter().map(|(_, proxy)| &**proxy).chain(inline).flat_map(|proxy| &proxy.to);
    let mut said: Vec<String> = servers
        .filter_map(|server| socket_path(&server.url))
        .filter_map(|path| socket_refusal(path, &user))
        .collect();
    said.sort();
    said.dedup();
    said
}

fn socket_path(url: &Origin) -> Option<&Path> {
    match url {
        Origin::Unix(path) => Some(path),
        Origin::Cgi(_, inner) => socket_path(inner),
        Origin::Tcp { .. } | Origin::Discovered(..) => None,
    }
}

/// Returns the user who will serve, and whether it differs from the user of this process.
fn serving_user(config: &Config) -> Option<(Identity, bool)> {
    match privilege::decide_rights(config.user.as_deref(), config.group.as_deref(), false).ok()? {
        RightsDecision::Drop(user) => Some((user, true)),
        RightsDecision::Keep(_) => Some((Identity::of_process(), false)),
    }
}

fn is_directive(named: &NamedPath, end: &str) -> bool {
    named.directive.strip_suffix(end).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

/// The title, label and remedy of a warning.
type AccessWarning = (String, &'static str, String);

/// Checks access of the server's user to a directory or page. If another user serves, inaccessible parent
/// directories are reported elsewhere as errors.
fn access_warning(path: &Path, right: FileRight, user: &Identity, is_other: bool) -> Option<AccessWarning> {
    let above = inaccessible_folder(path, user).filter(|_| !is_other);
    let is_folder = path.is_dir();
    let (right, verb, letter) = match (right, is_folder) {
        (FileRight::Enter, true) => (FileRight::Enter, "enter", "x"),
        _ => (FileRight::Read, "read", "r"),
    };
    let (place, verb, letter) = match above {
        Some(folder) => (folder, "enter", "x"),
        None => (path.to_owned(), verb, letter),
    };
    let is_closed = place != path || lacks_right(path, user, right);
    let name = &user.name;
    let shown = describe(&place);
    let letters = if is_folder && letter == "x" { "rx" } else { letter };
    is_closed.then(|| {
        let place = place.display();
        let title = format!("user {name}, who is to serve, may not {verb} {place} ({shown})");
        let label = if is_folder { "requests for it are answered 403" } else { "it cannot be sent" };
        let help = format!(
            "give the right: `chmod o+{letters} {place}`, or `chgrp` to a group of {name} and `chmod g+{letters}`; or name a `user` at the \
             top of the file who has it"
        );
        (title, label, help)
    })
}

/// Checks whether the server's user can create what a start creates without root's rights: temporary files and the control
/// socket.
fn unwritable_warning(
    named: &NamedPath,
    path: &Path,
    config: &Config,
    user: &Identity,
    is_other: bool,
) -> Option<AccessWarning> {
    let folder = if is_directive(named, "temp_path") && config.limits.spill_bytes_max > 0 {
        path
    } else if is_directive(named, "control.listen.unix") && is_other {
        path.parent()?
    } else {
        return None;
    };
    (folder.is_dir() && lacks_right(folder, user, FileRight::Write)).then(|| {
        let (name, shown) = (&user.name, describe(folder));
        let folder = folder.display();
        let title = format!("user {name}, who is to serve, may not write in {folder} ({shown})");
        let help = format!(
            "give the right: `chown {name} {folder}`, or `chgrp` to a group of {name} and `chmod g+wx`; or name another folder"
        );
        (title, "a start fails", help)
    })
}

/// Checks whether every user of the machine can read a secret.
fn exposure_warning(path: &Path) -> Option<AccessWarning> {
    let has = |path: &Path, bit: u32| fs::metadata(path).is_ok_and(|found| found.mode() & bit != 0);
    // An inaccessible parent directory protects the file as well.
    let is_open = path.is_file()
        && !is_certificate(path)
        && has(path, 0o4)
        && path.ancestors().skip(1).all(|folder| has(folder, 0o1));
    is_open.then(|| {
        let shown = describe(path);
        let path = path.display();
        let title = format!("every user of this machine can read {path} ({shown})");
        let help = format!(
            "take the right away: `chmod o-r {path}`; started as root, the server reads it as root, else as the user who starts it"
        );
        (title, "this is a secret", help)
    })
}

/// Whether a file contains certificates but no key: the wrong file was named, but nothing secret is exposed.
fn is_certificate(path: &Path) -> bool {
    let mut text = Vec::new();
    let read = config_files::open(path).is_ok_and(|file| {
        std::io::Read::read_to_end(&mut std::io::Read::take(file, FILE_BYTES_MAX), &mut text).is_ok()
    });
    let has = |word: &[u8]| text.windows(word.len()).any(|found| found == word);
    read && has(b"-----BEGIN CERTIFICATE-----") && !has(b"PRIVATE KEY-----")
}

/// Checks whether a user list is empty.
fn empty_user_list_warning(path: &Path) -> Option<AccessWarning> {
    let file = config_files::open(path).ok()?;
    let mut text = String::new();
    std::io::Read::read_to_string(&mut std::io::Read::take(file, FILE_BYTES_MAX), &mut text).ok()?;
    let is_empty = text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#'));
    is_empty.then(|| {
        let path = path.display();
        (
            format!("there is no user in {path}"),
            "nobody can sign in",
            format!("`htpasswd -B {path} NAME` adds one (package apache2-utils)"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_that_a_start_cannot_write_in_are_reported() {
        let folder = std::env::temp_dir().join(format!("komainu-unwritable-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let warnings = |text: &str, uid: u32| {
            let (config, report) = Config::parse(text, "k.toml", &folder).unwrap();
            let user = Identity { name: "web".into(), uid, gid: uid, groups: vec![uid] };
            let of = |named: &NamedPath| unwritable_warning(named, &named.path, &config, &user, true);
            report.named_paths().iter().filter_map(of).map(|(title, ..)| title).collect::<Vec<_>>()
        };
        let own = rustix::process::geteuid().as_raw();
        for text in ["temp_path = \".\"\n", "[control]\nlisten = \"unix:c.sock\"\n"] {
            let said = warnings(text, 54_321);
            assert!(
                said.len() == 1 && said[0].starts_with("user web, who is to serve, may not write in "),
                "{said:?}"
            );
            assert_eq!(warnings(text, own), Vec::<String>::new());
        }
        for text in ["temp_path = \".\"\nlimits.spill = \"0B\"\n", "listen = \"unix:c.sock\"\n"] {
            assert_eq!(warnings(text, 54_321), Vec::<String>::new(), "{text}");
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
