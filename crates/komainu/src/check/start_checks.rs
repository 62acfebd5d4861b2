//! System requirements of a start: users, access to directories, logs and addresses.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::path::Path;

use apps::AppKind;
use certificates::managed;
use config::{Action, Config};
use failure::{Failure, FailureContext};
use hosting::virtualenv::is_inaccessible;
use hosting::workers;
use net::tls::directives::SiteTls;
use rights::file_rights::{inaccessible_folder, is_in_procfs};
use rights::privilege::{self, Identity, RightsDecision};

use crate::check::start_rights;
use crate::terminal;

/// Checks that the configured users and groups exist, and that the serving user can use the applications'
/// environments.
///
/// # Errors
/// The user, or the path that is inaccessible.
pub(crate) fn check_users(config: &Config) -> Result<(), Failure> {
    let look = |user: &Option<String>, group: &Option<String>| {
        user.iter().try_for_each(|user| Identity::named(user, group.as_deref()).map(drop))
    };
    look(&config.user, &config.group)?;
    // Root can access paths that the serving user cannot.
    if let Ok(RightsDecision::Drop(user)) =
        privilege::decide_rights(config.user.as_deref(), config.group.as_deref(), false)
    {
        check_file_access(config, &user)?;
        for (name, app) in config.apps.iter().filter(|(_, app)| app.user.is_none()) {
            workers::check_as(name, app, &user)?;
            if let Some(text) = workers::warning(name, app, Some(&user)) {
                terminal::print_error_line(&format!("warning: {text}"));
            }
        }
    }
    config.apps.iter().try_for_each(|(name, app)| {
        look(&app.user, &app.group).with_context(|| format!("the application {name}"))
    })
}

/// Checks that the serving user can enter the parent directories of served files, which root can always
/// enter.
///
/// # Errors
/// The inaccessible directory and the remedies.
pub(crate) fn check_file_access(config: &Config, user: &Identity) -> Result<(), Failure> {
    let routes = config.sites.iter().flat_map(|site| &site.routes);
    let roots = routes.filter_map(|route| match &route.action {
        Action::Files(files) => Some(&files.root),
        _ => None,
    });
    let site_pages = config.sites.iter().map(|site| &site.error_pages);
    let pages = std::iter::once(&config.error_pages)
        .chain(site_pages)
        .flat_map(|pages| pages.iter().map(|(_, path)| path));
    roots.flatten().chain(pages).try_for_each(|path| check_ancestors(path, 1, user))?;
    for (_, app) in &config.apps {
        // The application's own user is looked up, and reported if missing, when the application is started.
        let own = app.user.as_ref().map(|user| Identity::named(user, app.group.as_deref()));
        let Ok(user) = own.as_ref().map_or(Ok(user), Result::as_ref) else { continue };
        let file = match &app.kind {
            Some(AppKind::Psgi(file) | AppKind::Rack(file) | AppKind::Native(file)) => Some(file.as_path()),
            Some(AppKind::Python { callable, .. }) => {
                callable.split(':').next().filter(|place| place.ends_with(".py")).map(Path::new)
            }
            Some(AppKind::Php(_)) | None => None,
        };
        file.map_or(Ok(()), |file| check_ancestors(file, 1, user))?;
        let folders = app.php().map(|php| &php.root).into_iter().chain(&app.folder);
        folders.into_iter().try_for_each(|folder| check_ancestors(folder, 0, user))?;
    }
    Ok(())
}

/// Checks that the user can enter the ancestors of `path`, beginning `skipped` levels above it.
fn check_ancestors(path: &Path, skipped: usize, user: &Identity) -> Result<(), Failure> {
    let Ok(path) = std::path::absolute(path) else { return Ok(()) };
    // From the root down, because the topmost closed directory must be opened first.
    let folders: Vec<&Path> = path.ancestors().skip(skipped).collect();
    let Some(closed) = folders.into_iter().rev().find(|folder| is_inaccessible(folder, Some(user))) else {
        return Ok(());
    };
    let closed = closed.display();
    let name = &user.name;
    let remedy = format!(
        "keep the files where {name} may read them, as in /srv or /var/www; or name a `user` at the top of the file who may; \
         or let others enter: chmod o+x {closed}"
    );
    let title = format!(
        "user {name}, who is to serve, cannot read {}: others may not enter {closed}",
        path.display()
    );
    Err(Failure::new(title).help(remedy).about(path))
}

/// Checks that the logs can be opened, as far as possible without creating files.
///
/// # Errors
/// The log, and why it cannot be opened.
pub(crate) fn check_logs(config: &Config) -> Result<(), Failure> {
    config.log_files().into_iter().try_for_each(|path| {
        let folder = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
        let fault = match std::fs::metadata(folder) {
            Ok(found) if !found.is_dir() => format!("{} is not a folder", folder.display()),
            Ok(_) if !path.exists() && is_in_procfs(folder) => {
                format!("no file can be made in {}, which is the kernel's", folder.display())
            }
            Ok(_) if path.is_dir() => "it is a folder; name a file in it".to_owned(),
            // The directory cannot be examined as this user, but perhaps as the server's user.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(()),
            Err(error) => format!("its folder: {error}"),
            Ok(_) => return Ok(()),
        };
        Err(Failure::new(format!("cannot open the log {}: {fault}", path.display())).about(path))
    })
}

/// Returns warnings about failures to expect at or after a start.
pub(crate) fn start_warnings(config: &Config) -> Vec<String> {
    let of_sites = config.sites.iter().flat_map(|site| &site.listen);
    let listeners = config.listen.iter().chain(of_sites);
    let addresses: BTreeSet<IpAddr> =
        listeners.flat_map(|listener| listener.address.sockets()).map(|socket| socket.ip()).collect();
    // Any port will do: the configured one may be in use by the running server.
    let is_absent = |address: &IpAddr| {
        UdpSocket::bind((*address, 0)).is_err_and(|error| error.kind() == io::ErrorKind::AddrNotAvailable)
    };
    let absent = addresses.into_iter().filter(is_absent).map(|address| {
        format!(
            "`listen`: no interface of this machine has the address {address}: a start fails until one has it"
        )
    });
    absent.chain(state_folder_warning(config)).chain(start_rights::rights_warnings(config)).collect()
}

/// Returns a warning if the serving user cannot enter an ancestor of the certificate state directory.
fn state_folder_warning(config: &Config) -> Option<String> {
    let Ok(RightsDecision::Drop(user)) =
        privilege::decide_rights(config.user.as_deref(), config.group.as_deref(), false)
    else {
        return None;
    };
    if !config.sites.iter().any(|site| site.tls.as_ref().is_some_and(SiteTls::is_automatic)) {
        return None;
    }
    let state = std::path::absolute(managed::state_folder(&config.acme, true)).ok()?;
    let closed = inaccessible_folder(&state, &user)?;
    let name = &user.name;
    let closed = closed.display();
    let state = state.display();
    Some(format!(
        "user {name}, who is to serve, may not enter {closed}: there are no certificates of `tls = \"auto\"`, which are kept in \
         {state}; name another folder (`[acme] state`), or let others enter: chmod o+x {closed}"
    ))
}
