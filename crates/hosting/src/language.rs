//! Languages of applications, and the commands of their workers.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::{fs, io};

use apps::{AppKind, AppSettings, PhpApp, PythonInterface};
use failure::Failure;

/// A language for applications.
pub(crate) struct Language {
    /// Name of the language, and directory of its worker module.
    name: &'static str,
    /// Default interpreter; the configuration may name another.
    pub(crate) interpreter: Option<&'static str>,
    /// Worker script in the module's directory, which precedes the application's arguments; the program
    /// itself if there is no interpreter.
    pub(crate) script: &'static str,
}

const PERL: Language = Language { name: "perl", interpreter: Some("perl"), script: "worker.pl" };
const RUBY: Language = Language { name: "ruby", interpreter: Some("ruby"), script: "worker.rb" };
const PYTHON: Language = Language { name: "python", interpreter: Some("python3"), script: "worker.py" };
const PHP: Language = Language { name: "php", interpreter: None, script: "worker" };
const NATIVE: Language = Language { name: "native", interpreter: None, script: "worker" };

/// Finds the directory of a language's module: in `KOMAINU_WORKERS`, or in `workers` next to this program, or
/// in `../lib/komainu` relative to it. Python's module may also be installed in the application's virtual
/// environment.
pub(crate) fn find_module(language: &Language) -> io::Result<PathBuf> {
    let given = std::env::var_os("KOMAINU_WORKERS").map(PathBuf::from);
    let program = std::env::current_exe()?.canonicalize()?;
    let beside = program.parent().unwrap_or(Path::new("/"));
    let folders = match given {
        Some(folder) => vec![folder],
        None => vec![beside.join("workers"), beside.join("../lib/komainu")],
    };
    let found = folders.iter().map(|folder| folder.join(language.name));
    found.clone().find(|folder| folder.join(language.script).exists()).ok_or_else(|| {
        let looked: Vec<String> = found.map(|folder| folder.display().to_string()).collect();
        let text = format!(
            "the worker module for {} is missing: looked in {} (`make build` builds it if {0} and its headers are installed)",
            language.name,
            looked.join(" and ")
        );
        io::Error::new(io::ErrorKind::NotFound, text)
    })
}

/// Command of an application, without its interpreter.
pub(crate) struct AppTarget {
    pub(crate) language: &'static Language,
    /// Arguments of the worker.
    pub(crate) arguments: Vec<OsString>,
    /// Directory of the application; `None` if its name does not contain one.
    pub(crate) folder: Option<PathBuf>,
}

pub(crate) fn app_target(app: &AppSettings) -> Result<AppTarget, Failure> {
    let file = |directive: &str, language: &'static Language, file: &Path| {
        let file = std::path::absolute(file).map_err(Failure::new)?;
        if file.is_file() {
            Ok(AppTarget {
                language,
                folder: file.parent().map(Path::to_owned),
                arguments: vec![file.into()],
            })
        } else {
            Err(Failure::new(format!("`{directive}`: there is no file {}", file.display())))
        }
    };
    let named = |interface: &str, named: &str| {
        let (place, name) = named.split_once(':').unwrap_or((named, ""));
        if !place.ends_with(".py") {
            let arguments = vec![interface.into(), named.into()];
            return Ok(AppTarget { language: &PYTHON, arguments, folder: None });
        }
        let directive = if interface == "auto" { "python" } else { interface };
        let mut target = file(directive, &PYTHON, Path::new(place))?;
        if !name.is_empty() {
            target.arguments[0].push(format!(":{name}"));
        }
        target.arguments.insert(0, interface.into());
        Ok(target)
    };
    let several = |mut target: AppTarget| {
        target.arguments.extend(app.targets.iter().map(|(name, place)| format!("{name}={place}").into()));
        target
    };
    match &app.kind {
        Some(AppKind::Psgi(psgi)) => file("psgi", &PERL, psgi),
        Some(AppKind::Rack(rack)) => file("rack", &RUBY, rack),
        Some(AppKind::Python { interface, callable }) => {
            let interface = match interface {
                PythonInterface::Auto => "auto",
                PythonInterface::Wsgi => "wsgi",
                PythonInterface::Asgi => "asgi",
            };
            named(interface, callable).map(several)
        }
        Some(AppKind::Php(php)) => php_target(app, php),
        Some(AppKind::Native(handler)) => file("handler", &NATIVE, handler),
        None => {
            Err("it has no kind: add `psgi`, `rack`, `python`, `wsgi`, `asgi`, `php` or `handler`".into())
        }
    }
}

/// The script directory and the PHP settings.
fn php_target(app: &AppSettings, php: &PhpApp) -> Result<AppTarget, Failure> {
    let root = std::path::absolute(&php.root).map_err(Failure::new)?;
    let front = php.front.as_ref().filter(|_| php.names_front).map(|front| root.join(&front[1..]));
    match front {
        _ if !root.is_dir() => {
            return Err(Failure::new(format!("`php`: there is no folder {}", root.display())));
        }
        Some(front) if !front.is_file() => {
            return Err(Failure::new(format!("`php`: there is no file {}", front.display())));
        }
        _ => {}
    }
    let settings = [("--ini", &php.ini), ("--admin-ini", &php.admin_ini)];
    let settings = settings.iter().flat_map(|(option, pairs)| {
        pairs.iter().flat_map(|(name, value)| [(*option).into(), format!("{name}={value}").into()])
    });
    let variables = app.env.iter().flat_map(|(name, _)| ["--variable".into(), name.into()]);
    Ok(AppTarget { language: &PHP, arguments: settings.chain(variables).collect(), folder: Some(root) })
}

/// The worker module installed by `pip install` in a virtual environment.
pub(crate) fn installed_module(environment: &Path) -> Option<PathBuf> {
    let versions = fs::read_dir(environment.join("lib")).ok()?;
    let mut packages = versions.flatten().map(|version| version.path().join("site-packages/komainu_worker"));
    packages.find(|package| package.join(PYTHON.script).exists())
}
