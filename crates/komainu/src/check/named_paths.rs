//! Errors for files, directories, users and groups that a configuration names but that do not exist, reported
//! all at once with their positions.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use config::{ConfigLine, NamedAccount, NamedPath, Report, TextSpan};
use failure::Failure;
use rights::file_rights::is_in_procfs;
use rights::privilege::{find_user, group_id};

/// Requirement on the path of a directive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PathRequirement {
    ExistingFolder,
    ExistingFile,
    Either,
    /// A file that may be created, in an existing directory.
    FileInFolder,
    /// A directory that the server creates if missing.
    CreatedFolder,
    /// A Unix socket that the server creates, in an existing directory.
    Socket,
}

/// Directives, by suffix, with the requirement on their paths at a start. Paths that may come and go are not
/// listed.
const PATH_DIRECTIVES: [(&str, PathRequirement); 36] = [
    ("files.root", PathRequirement::ExistingFolder),
    ("temp_path", PathRequirement::ExistingFolder),
    ("apps.folder", PathRequirement::ExistingFolder),
    ("error_pages", PathRequirement::ExistingFile),
    ("maintenance.page", PathRequirement::ExistingFile),
    ("apps.psgi", PathRequirement::ExistingFile),
    ("apps.rack", PathRequirement::ExistingFile),
    ("apps.handler", PathRequirement::ExistingFile),
    ("auth.basic", PathRequirement::ExistingFile),
    ("jwks_file", PathRequirement::ExistingFile),
    ("secret_file", PathRequirement::ExistingFile),
    ("geo.database", PathRequirement::ExistingFile),
    ("password_file", PathRequirement::ExistingFile),
    ("token_file", PathRequirement::ExistingFile),
    ("tls.ca", PathRequirement::ExistingFile),
    ("tls.certificate", PathRequirement::Either),
    ("tls.key", PathRequirement::ExistingFile),
    ("tls.ticket_keys", PathRequirement::ExistingFile),
    ("client.ca", PathRequirement::ExistingFile),
    ("client.crl", PathRequirement::ExistingFile),
    ("default.certificate", PathRequirement::Either),
    ("default.key", PathRequirement::ExistingFile),
    ("acme.ca", PathRequirement::ExistingFile),
    ("log.file", PathRequirement::FileInFolder),
    ("log.errors", PathRequirement::FileInFolder),
    ("logs.file", PathRequirement::FileInFolder),
    ("control.audit", PathRequirement::FileInFolder),
    ("site.tls", PathRequirement::Either),
    ("control.tls", PathRequirement::Either),
    ("headers_file", PathRequirement::ExistingFile),
    ("php.root", PathRequirement::Either),
    ("cgi.root", PathRequirement::Either),
    ("apps.virtualenv", PathRequirement::ExistingFolder),
    ("cache.disk.path", PathRequirement::CreatedFolder),
    ("listen.unix", PathRequirement::Socket),
    ("listen.address.unix", PathRequirement::Socket),
];

/// Returns the report with an error for each missing path or account; `None` if there are none.
pub(crate) fn report_missing(report: &Report) -> Option<Report> {
    let of_paths = report.named_paths().iter().filter_map(|named| path_fault(report, named));
    let errors: Vec<_> = of_paths.chain(report.named_accounts().iter().filter_map(account_fault)).collect();
    (!errors.is_empty()).then(|| report.clone().with_errors(errors))
}

/// Attaches the failure of a start to the directive that names what it is about: the file or directory, or a
/// directory that contains it. `None` if no path of the configuration does.
pub(crate) fn attach_to_path(report: &Report, failure: &Failure) -> Option<Report> {
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let subject = absolute(failure.subject()?);
    let names = |named: &&NamedPath| subject.starts_with(absolute(&named.path));
    let shortness = |named: &&NamedPath| std::cmp::Reverse(named.path.as_os_str().len());
    // Several directives may name the same path.
    let line = failure.naming_line();
    let line = line.map(|(file, number)| ConfigLine { file: file.map(str::to_owned), number });
    let at_line = line.and_then(|line| report.named_paths_from(&line).find(names));
    let found = at_line.or_else(|| report.named_paths().iter().filter(names).min_by_key(shortness))?;
    let remedy = failure.remedy().unwrap_or_default().to_owned();
    Some(report.clone().with_errors(vec![(found.span.clone(), failure.to_string(), remedy)]))
}

/// Returns the error for a user or group that does not exist.
fn account_fault(named: &NamedAccount) -> Option<(TextSpan, String, String)> {
    let name = &named.name;
    let (known, remedy) = if named.is_group {
        (
            group_id(name).map(drop),
            format!("`groupadd --system {name}` makes it; `getent group` lists those there are"),
        )
    } else {
        (
            find_user(name).map(drop),
            format!(
                "`useradd --system --no-create-home {name}` makes it; `getent passwd` lists those there are"
            ),
        )
    };
    known.err().map(|failure| (named.span.clone(), failure.to_string(), remedy))
}

/// Whether a path stands in the configuration as an absolute one.
fn is_written_absolute(report: &Report, named: &NamedPath) -> bool {
    let written = report.sources().text_of(&named.span).unwrap_or("").trim_matches(['"', '\'']);
    written.strip_prefix("unix:").unwrap_or(written).starts_with('/')
}

fn path_fault(report: &Report, named: &NamedPath) -> Option<(TextSpan, String, String)> {
    let as_written = named.path.to_string_lossy();
    // Shell syntax for directories, which is not expanded here.
    let is_shell = as_written.contains("/~") || as_written.contains('$');
    let is_it = |suffix: &str| {
        let rest = named.directive.strip_suffix(suffix);
        rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    let (_, wanted) = PATH_DIRECTIVES.iter().find(|(suffix, _)| is_it(suffix))?;
    let path = std::path::absolute(&named.path).unwrap_or_else(|_| named.path.clone());
    let shown = path.display();
    let parent = path.parent().unwrap_or(Path::new("/"));
    let title = match (wanted, path_kind(&path)) {
        // The path cannot be examined as this user, but perhaps as the server's user.
        (_, PathKind::Inaccessible) => return None,
        (PathRequirement::ExistingFolder, PathKind::Nothing) => format!("there is no folder {shown}"),
        (PathRequirement::ExistingFolder | PathRequirement::CreatedFolder, PathKind::File) => {
            format!("{shown} is a file, not a folder")
        }
        (PathRequirement::CreatedFolder, PathKind::Nothing) if is_in_procfs(parent) => {
            format!("no folder can be made in {}, which is the kernel's", parent.display())
        }
        (PathRequirement::ExistingFile, PathKind::Nothing) => format!("there is no file {shown}"),
        (PathRequirement::ExistingFile | PathRequirement::FileInFolder, PathKind::Folder) => {
            format!("{shown} is a folder, not a file")
        }
        (PathRequirement::Either, PathKind::Nothing) => format!("there is no file or folder {shown}"),
        (PathRequirement::FileInFolder, PathKind::Nothing) => match path_kind(parent) {
            PathKind::Nothing => format!("cannot open {shown}: there is no folder {}", parent.display()),
            PathKind::File => format!("cannot open {shown}: {} is a file, not a folder", parent.display()),
            PathKind::Folder | PathKind::Inaccessible => return None,
        },
        (PathRequirement::Socket, PathKind::Folder) => format!("{shown} is a folder, not a socket"),
        (PathRequirement::Socket, PathKind::File) if !is_socket(&path) => {
            format!("{shown} is there and is not a socket: the server does not replace it")
        }
        // systemd may create the directory when it starts the server.
        (PathRequirement::Socket, PathKind::Nothing) if path.starts_with("/run") => return None,
        (PathRequirement::Socket, PathKind::Nothing) if is_in_procfs(parent) => {
            format!("no socket can be made in {}, which is the kernel's", parent.display())
        }
        (PathRequirement::Socket, PathKind::Nothing) => match path_kind(parent) {
            PathKind::Nothing => format!("cannot listen on {shown}: there is no folder {}", parent.display()),
            PathKind::File => {
                format!("cannot listen on {shown}: {} is a file, not a folder", parent.display())
            }
            _ => return None,
        },
        _ => return None,
    };
    let is_parent_missing = matches!(path_kind(parent), PathKind::Nothing);
    let remedy = match (wanted, path_kind(&path)) {
        _ if is_shell => {
            "`~` and `$NAME` stand for themselves: write the whole path, or `${HOME}`, the variable of the environment".to_owned()
        }
        _ if !is_written_absolute(report, named) => {
            "a relative path begins at the folder of the configuration file".to_owned()
        }
        (PathRequirement::FileInFolder | PathRequirement::Socket, PathKind::Nothing) if is_parent_missing => {
            format!("`mkdir -p {}` makes the folder", parent.display())
        }
        (PathRequirement::ExistingFolder, PathKind::Nothing) => {
            format!("`mkdir -p {shown}` makes it, or write the path of another folder")
        }
        (PathRequirement::ExistingFile, _) => "write the path of a file that is there".to_owned(),
        (PathRequirement::Either, _) => "write the path of a file or folder that is there".to_owned(),
        _ => "write another path".to_owned(),
    };
    Some((named.span.clone(), title, remedy))
}

/// Kind of file at a path.
enum PathKind {
    Nothing,
    File,
    Folder,
    Inaccessible,
}

fn path_kind(path: &Path) -> PathKind {
    match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => PathKind::Folder,
        Ok(_) => PathKind::File,
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => PathKind::Nothing,
            _ => PathKind::Inaccessible,
        },
    }
}

fn is_socket(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.file_type().is_socket())
}

#[cfg(test)]
mod tests {
    use config::Config;

    use super::*;

    #[test]
    fn start_error_is_placed_at_the_path_that_it_names() {
        let text = "[[route]]\nfiles = \"/srv/www\"\nauth = { basic = \"/srv/www/users\" }\n";
        let (_, report) = Config::parse(text, "k.toml", Path::new(".")).unwrap();
        let place = |failure: Failure| {
            attach_to_path(&report, &failure).map(|report| report.position(&report.findings()[0]))
        };
        let failure = Failure::new("/srv/www/users: line 2 has no password");
        assert_eq!(place(failure.clone()), None);
        assert_eq!(place(failure.about("/srv/www/users")), Some((3, 18)));
        assert_eq!(place(Failure::new("cannot open /srv/www: refused").about("/srv/www")), Some((2, 9)));
        assert_eq!(place(Failure::new("cannot open it: refused").about("/srv/www/a/b")), Some((2, 9)));
        assert_eq!(place(Failure::new("cannot open it: refused").about("/srv")), None);
        let text = "[[site]]\nhosts = \"a.test\"\n[[site.route]]\nfiles = \"/srv/www\"\n[[site]]\nhosts = \"b.test\"\n[[site.route]]\nfiles = \"/srv/www\"\n";
        let (_, report) = Config::parse(text, "k.toml", Path::new(".")).unwrap();
        let title = "`files` (the route in line 7): cannot serve /srv/www: Too many open files";
        let failure = Failure::new(title).about("/srv/www").named_at(None, 7);
        let report = attach_to_path(&report, &failure).unwrap();
        assert_eq!(report.position(&report.findings()[0]).0, 8);
    }

    #[test]
    fn missing_paths_and_accounts_are_reported_with_lines() {
        let folder = std::env::temp_dir().join(format!("komainu-named-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("public")).unwrap();
        std::fs::write(folder.join("file"), "").unwrap();
        let of = |text: &str| {
            let report = match Config::parse(text, "k.toml", &folder) {
                Ok((_, report)) | Err(report) => report,
            };
            let report = report_missing(&report)?;
            Some(
                report
                    .findings()
                    .iter()
                    .map(|one| (one.title.clone(), report.position(one).0))
                    .collect::<Vec<_>>(),
            )
        };
        let at = |name: &str| folder.join(name).display().to_string();
        let remedy = |text: &str| {
            let (_, report) = Config::parse(text, "k.toml", &folder).unwrap();
            let report = report_missing(&report).unwrap();
            let error = report.findings().iter().find(|one| one.severity == config::Severity::Error);
            error.unwrap().help.join(" ")
        };
        let relative = "a relative path begins at the folder of the configuration file";
        for (text, expected) in [
            ("[[route]]\nfiles = \"none\"\n", relative),
            (
                "[[route]]\nfiles = \"/none/a\"\n",
                "`mkdir -p /none/a` makes it, or write the path of another folder",
            ),
            ("listen = \"unix:/none/x.sock\"\n", "`mkdir -p /none` makes the folder"),
            ("listen = \"unix:none/x.sock\"\n", relative),
            ("[log]\nfile = '/none/a.log'\n", "`mkdir -p /none` makes the folder"),
            (
                "[[route]]\nfiles = \".\"\nauth = { basic = \"/none/users\" }\n",
                "write the path of a file that is there",
            ),
        ] {
            assert_eq!(remedy(text), expected, "{text}");
        }
        assert_eq!(of("[[route]]\nfiles = \"public\"\n[log]\nfile = \"new.log\"\n"), None);
        let socket = |path: &str| of(&format!("listen = \"unix:{path}\"\n[[route]]\nfiles = \"public\"\n"));
        assert_eq!(socket("public/x.sock"), None);
        let kernels = "no socket can be made in /proc, which is the kernel's";
        assert_eq!(socket("/proc/x.sock"), Some(vec![(kernels.to_owned(), 1)]));
        let in_file =
            format!("cannot listen on {}: {} is a file, not a folder", at("file/x.sock"), at("file"));
        assert_eq!(socket("file/x.sock"), Some(vec![(in_file, 1)]));
        let disk = |path: &str| {
            of(&format!("[cache]\ndisk = {{ path = \"{path}\" }}\n[[route]]\nfiles = \"public\"\n"))
        };
        assert_eq!((disk("public"), disk("new")), (None, None));
        assert_eq!(
            disk("/proc/c"),
            Some(vec![("no folder can be made in /proc, which is the kernel's".to_owned(), 2)])
        );
        assert_eq!(disk("file"), Some(vec![(format!("{} is a file, not a folder", at("file")), 2)]));
        assert_eq!(
            of(
                "error_pages = { 404 = \"x.html\" }\n[log]\nerrors = \"no/e.log\"\n[[route]]\nfiles = [\"public\", \"none\", \"file\"]\n\
                [apps.a]\npsgi = \"a.psgi\"\n[[site]]\nhosts = \"a.test\"\ntls = { certificate = \"c.pem\", key = \"public\" }\n\
                [[site.route]]\nproxy = { upstream = \"none\" }\n"
            ),
            Some(vec![
                (format!("there is no file {}", at("x.html")), 1),
                (format!("cannot open {}: there is no folder {}", at("no/e.log"), at("no")), 3),
                (format!("there is no folder {}", at("none")), 5),
                (format!("{} is a file, not a folder", at("file")), 5),
                ("no route uses `[apps.a]`".to_owned(), 6),
                (format!("there is no file {}", at("a.psgi")), 7),
                (format!("there is no file or folder {}", at("c.pem")), 10),
                (format!("{} is a folder, not a file", at("public")), 10),
                ("there is no `[upstreams.none]`".to_owned(), 12),
            ])
        );
        assert_eq!(
            of(
                "listen = [\":80\", \"unix:none/k.sock\", \"unix:file\", { address = \"unix:public\" }]\nuser = \"no-such-user\"\n\
                group = \"no-such-group\"\n[control]\nlisten = \"unix:/run/none/c.sock\"\ngroup = \"0\"\n[[route]]\ncgi = \"none\"\n"
            ),
            Some(vec![
                (format!("cannot listen on {}: there is no folder {}", at("none/k.sock"), at("none")), 1),
                (format!("{} is there and is not a socket: the server does not replace it", at("file")), 1),
                (format!("{} is a folder, not a socket", at("public")), 1),
                ("there is no user no-such-user".to_owned(), 2),
                ("there is no group no-such-group".to_owned(), 3),
                (format!("there is no file or folder {}", at("none")), 8),
            ])
        );
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
