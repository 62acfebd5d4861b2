//! Routes whose scripts a PHP server or an application of PHP runs: which request is for a script, which for a file.

use std::io;
use std::path::{Component, Path, PathBuf};

use config::{Action, Config};
use files::{FileOutcome, Files, FoundScript};
use net::{Exchange, Fault};
use proxy::{Proxy, Script};

use hosting::workers::Mounted;

/// What runs the scripts of a route.
pub(crate) enum ScriptRunner {
    /// A server that speaks FastCGI.
    Server(Proxy),
    /// An application.
    App(Mounted),
}

/// Files, and what runs the scripts among them.
pub struct PhpRoute {
    pub(crate) files: Box<Files>,
    pub(crate) runner: ScriptRunner,
    /// The script for all other paths.
    pub(crate) front: Option<Vec<u8>>,
    /// The root of the scripts as the server sees it, where that is another one.
    pub(crate) root: Option<Vec<u8>>,
    /// What is taken from the front of paths.
    pub(crate) prefix: Vec<u8>,
}

/// What a request is for.
pub(crate) enum PhpTarget {
    /// A file, which has been sent.
    Done,
    /// A script.
    Script(Script),
    /// Nothing, and why.
    Missing(&'static str),
}

/// The server of the scripts among a route's files.
pub fn of(route: &config::Route) -> Option<&config::Proxy> {
    match &route.otherwise {
        Some(Action::Proxy(proxy)) if proxy.is_php => Some(proxy),
        _ => None,
    }
}

/// The application of PHP that answers a route, and how the route names it.
pub fn app_of<'c>(
    config: &'c Config,
    route: &'c config::Route,
) -> Option<(&'c config::Mounted, &'c config::PhpApp)> {
    let mut actions = std::iter::once(&route.action).chain(&route.otherwise);
    let mounted = actions.find_map(|action| match action {
        Action::App(mounted) => Some(mounted),
        _ => None,
    })?;
    let (_, app) = config.apps.iter().find(|(name, _)| *name == mounted.name)?;
    Some((mounted, app.php.as_ref()?))
}

/// The files of a route that an application answers: those that the route names, and those of the application.
pub fn files_of(route: &config::Route, app: &config::PhpApp) -> config::Files {
    let mut files = match &route.action {
        Action::Files(files) => (**files).clone(),
        _ => config::Files::default(),
    };
    if !files.root.contains(&app.root) {
        files.root.push(app.root.clone());
    }
    files
}

/// What is taken from the front of paths, as `files` or `app` says. `stripped` reads a route's `strip_prefix`.
pub fn prefix_of(
    route: &config::Route,
    app: &config::Mounted,
    stripped: impl Fn(&config::Route, &config::StripPrefix) -> Vec<u8>,
) -> Vec<u8> {
    match &route.action {
        Action::Files(files) if files.strip_prefix != config::StripPrefix::None => {
            stripped(route, &files.strip_prefix)
        }
        _ => stripped(route, &app.strip_prefix),
    }
}

/// Makes options of files those of files with scripts among them.
pub fn scripts_among(options: &mut files::Options) -> io::Result<()> {
    options.scripts = true;
    if !options.index.iter().any(|name| name.ends_with(".php")) {
        options.index.insert(0, "index.php".into());
    }
    for root in &mut options.roots {
        // Another process opens them.
        *root = without_parents(root)?;
    }
    Ok(())
}

/// The absolute path without `..`, which PHP-FPM refuses in names of scripts. Links behind the last `..` stay links: a release is
/// switched by one.
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
    /// A route's, whose scripts among `files` a server runs.
    pub fn new(php: &config::Proxy, files: Box<Files>, proxy: Proxy, prefix: &[u8]) -> PhpRoute {
        let bytes = |text: &Option<String>| text.clone().map(String::into_bytes);
        let (front, root) = (bytes(&php.scripts.front), bytes(&php.scripts.root));
        PhpRoute { files, runner: ScriptRunner::Server(proxy), front, root, prefix: prefix.to_vec() }
    }

    /// A route's, whose scripts among `files` an application runs.
    pub fn of_app(php: &config::PhpApp, files: Box<Files>, app: Mounted, prefix: &[u8]) -> PhpRoute {
        let front = php.front.clone().map(String::into_bytes);
        PhpRoute { files, runner: ScriptRunner::App(app), front, root: None, prefix: prefix.to_vec() }
    }

    /// Lets a script answer.
    ///
    /// # Errors
    /// Those of [`Proxy::serve_script`] and [`Mounted::serve_script`].
    pub(crate) async fn run(&self, x: &mut Exchange<'_>, script: Option<&Script>) -> Result<(), Fault> {
        match (&self.runner, script) {
            (ScriptRunner::Server(proxy), script) => proxy.serve_script(x, script).await,
            (ScriptRunner::App(app), Some(script)) => app.serve_script(x, script).await,
            (ScriptRunner::App(_), None) => Err(Fault::Broken("a request for PHP without a script")),
        }
    }

    /// Sends the file that a request is for, or finds the script: at `path`, which is below the prefix, or the one for all others.
    /// `has_file` says that files and scripts may have such a path.
    pub(crate) async fn find(
        &self,
        x: &mut Exchange<'_>,
        path: &[u8],
        has_file: bool,
    ) -> Result<PhpTarget, Fault> {
        let mut why = "there is no such file";
        if has_file {
            let core = x.core().clone();
            let script = if path.is_empty() && x.request().path().ends_with(b"/") { b"/" } else { path };
            if let Some(found) = self.files.script(script, &core).await? {
                return Ok(PhpTarget::Script(self.script(&found)));
            }
            // A folder of a rewritten path has no redirect to its slash.
            if x.request().target() != x.request().sent_target()
                && !script.ends_with(b"/")
                && let Some(found) = self.files.script(&[script, b"/"].concat(), &core).await?
            {
                return Ok(PhpTarget::Script(self.script(&found)));
            }
            match self.files.serve(x, path).await? {
                FileOutcome::Done => return Ok(PhpTarget::Done),
                FileOutcome::Declined(reason) => why = reason,
            }
        }
        let Some(front) = &self.front else { return Ok(PhpTarget::Missing(why)) };
        let core = x.core().clone();
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
