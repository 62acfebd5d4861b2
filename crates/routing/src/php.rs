//! Routes with PHP scripts, run by a FastCGI server or a hosted application: selects the script or file of a
//! request.

use std::io;
use std::path::{Component, Path, PathBuf};

use config::{Action, Config};
use files::{FileOptions, FileOutcome, Files, FoundScript};
use hosting::workers::MountedApp;
use net::{Exchange, Fault};
use proxy::options::ProxyOptions;
use proxy::{Proxy, Script};

/// Backend that runs the scripts of a route.
pub(crate) enum ScriptRunner {
    /// A FastCGI server.
    Server(Proxy),
    /// A hosted application.
    App(MountedApp),
}

/// Files of a route, and the backend that runs the scripts among them.
pub struct PhpRoute {
    pub(crate) files: Box<Files>,
    pub(crate) runner: ScriptRunner,
    /// Front controller: the script for paths without a file.
    pub(crate) front_controller: Option<Vec<u8>>,
    /// Root of the scripts as seen by the FastCGI server, if it differs.
    pub(crate) root: Option<Vec<u8>>,
    /// Prefix removed from paths.
    pub(crate) prefix: Vec<u8>,
}

/// Outcome of [`PhpRoute::find`].
pub(crate) enum PhpTarget {
    /// A file has been sent.
    Done,
    /// A script is to be run.
    Script(Script),
    /// There is neither a file nor a script, for this reason.
    Missing(&'static str),
}

/// Returns the FastCGI server of the scripts among a route's files, if there is one.
pub fn script_server(route: &config::Route) -> Option<&ProxyOptions> {
    match &route.otherwise {
        Some(Action::Proxy(proxy)) if proxy.is_php => Some(proxy),
        _ => None,
    }
}

/// Returns the PHP application that serves a route, and the route's reference to it.
pub fn php_app<'c>(
    config: &'c Config,
    route: &'c config::Route,
) -> Option<(&'c apps::Mounted, &'c apps::PhpApp)> {
    let mut actions = std::iter::once(&route.action).chain(&route.otherwise);
    let mounted = actions.find_map(|action| match action {
        Action::App(mounted) => Some(mounted),
        _ => None,
    })?;
    let (_, app) = config.apps.iter().find(|(name, _)| *name == mounted.name)?;
    Some((mounted, app.php()?))
}

/// Returns the files of a route that an application serves: those of the route and those of the application.
pub fn files_of(route: &config::Route, app: &apps::PhpApp) -> FileOptions {
    let mut files = match &route.action {
        Action::Files(files) => (**files).clone(),
        _ => FileOptions::default(),
    };
    if !files.root.contains(&app.root) {
        files.root.push(app.root.clone());
    }
    files
}

/// Returns the prefix removed from paths, as configured by `files` or else `app`. `stripped` evaluates a
/// `strip_prefix` of the route.
pub fn prefix_of(
    route: &config::Route,
    app: &apps::Mounted,
    stripped: impl Fn(&config::Route, &shapes::prefix::StripPrefix) -> Vec<u8>,
) -> Vec<u8> {
    match &route.action {
        Action::Files(files) if files.strip_prefix != shapes::prefix::StripPrefix::None => {
            stripped(route, &files.strip_prefix)
        }
        _ => stripped(route, &app.strip_prefix),
    }
}

/// Changes file options for directories that contain scripts. `index.php` is the first index, unless `index` names a
/// script or is empty.
///
/// # Errors
/// The working directory, to which a root is relative, cannot be determined.
pub fn configure_for_scripts(options: &mut files::Options) -> io::Result<()> {
    options.scripts = true;
    let index = &options.files.index;
    if !index.is_empty() && !index.iter().any(|name| name.ends_with(".php")) {
        options.files.index.insert(0, "index.php".into());
    }
    for root in &mut options.files.root {
        // Another process opens the scripts, so roots must be absolute.
        *root = without_parents(root)?;
    }
    Ok(())
}

/// Returns the absolute path without `..`, which PHP-FPM refuses in names of scripts. Symbolic links after
/// the last `..` are not resolved, because a deployment may switch releases by changing one.
fn without_parents(path: &Path) -> io::Result<PathBuf> {
    let absolute = std::path::absolute(path)?;
    let parts: Vec<Component<'_>> = absolute.components().collect();
    let Some(last) = parts.iter().rposition(|part| *part == Component::ParentDir) else {
        return Ok(absolute);
    };
    let (until, rest) = parts.split_at(last + 1);
    Ok(until.iter().collect::<PathBuf>().canonicalize()?.join(rest.iter().collect::<PathBuf>()))
}

impl PhpRoute {
    /// Creates a route whose scripts are run by a FastCGI server.
    pub fn new(php: &ProxyOptions, files: Box<Files>, proxy: Proxy, prefix: &[u8]) -> PhpRoute {
        let bytes = |text: &Option<String>| text.clone().map(String::into_bytes);
        let front = bytes(&php.scripts.front);
        let root = bytes(&php.scripts.root);
        PhpRoute {
            files,
            runner: ScriptRunner::Server(proxy),
            front_controller: front,
            root,
            prefix: prefix.to_vec(),
        }
    }

    /// Creates a route whose scripts are run by an application.
    pub fn of_app(php: &apps::PhpApp, files: Box<Files>, app: MountedApp, prefix: &[u8]) -> PhpRoute {
        let front = php.front.clone().map(String::into_bytes);
        PhpRoute {
            files,
            runner: ScriptRunner::App(app),
            front_controller: front,
            root: None,
            prefix: prefix.to_vec(),
        }
    }

    /// Runs a script, which answers the request.
    ///
    /// # Errors
    /// Errors of [`Proxy::serve_script`] and [`MountedApp::serve_script`].
    pub(crate) async fn run(
        &self,
        exchange: &mut Exchange<'_>,
        script: Option<&Script>,
    ) -> Result<(), Fault> {
        match (&self.runner, script) {
            (ScriptRunner::Server(proxy), script) => proxy.serve_script(exchange, script).await,
            (ScriptRunner::App(app), Some(script)) => app.serve_script(exchange, script).await,
            (ScriptRunner::App(_), None) => Err(Fault::Failed("a request for PHP without a script")),
        }
    }

    /// Sends the file at `path`, which is relative to the prefix, or returns the script at it, else the front
    /// controller. `has_file` is false if no file or script can have such a path.
    pub(crate) async fn find(
        &self,
        exchange: &mut Exchange<'_>,
        path: &[u8],
        has_file: bool,
    ) -> Result<PhpTarget, Fault> {
        let mut why = "there is no such file";
        if has_file {
            let core = exchange.core().clone();
            let script =
                if path.is_empty() && exchange.request().path().ends_with(b"/") { b"/" } else { path };
            if let Some(found) = self.files.script(script, &core).await? {
                return Ok(PhpTarget::Script(self.script(&found)));
            }
            // A rewritten path of a directory is not redirected to the one with a slash, so try its index
            // here.
            if exchange.request().target() != exchange.request().sent_target()
                && !script.ends_with(b"/")
                && let Some(found) = self.files.script(&[script, b"/"].concat(), &core).await?
            {
                return Ok(PhpTarget::Script(self.script(&found)));
            }
            match self.files.serve(exchange, path).await? {
                FileOutcome::Done => return Ok(PhpTarget::Done),
                FileOutcome::Declined(reason) => why = reason,
            }
        }
        let Some(front) = &self.front_controller else { return Ok(PhpTarget::Missing(why)) };
        let core = exchange.core().clone();
        Ok(match self.files.script(front, &core).await? {
            Some(found) => PhpTarget::Script(self.script(&found)),
            None => PhpTarget::Missing(why),
        })
    }

    fn script(&self, found: &FoundScript) -> Script {
        let root = match &self.root {
            Some(root) => root.clone(),
            None => found.root.as_os_str().as_encoded_bytes().to_vec(),
        };
        Script { root, prefix: self.prefix.clone(), name: found.name.clone(), info: found.info.clone() }
    }
}
