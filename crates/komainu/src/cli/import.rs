//! `komainu import`: translates the configuration of another server, and compares the result with that
//! server.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use clap::Args;
use failure::{Failure, FailureContext};
use import::{ImportKind, ImportResult, ImportVerdict, UntranslatedServer};
use other_servers::OtherServer;

use crate::cli::values::parse_verify_time;
use crate::terminal::sanitize;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    komainu import /etc/nginx/nginx.conf > komainu.toml\n  \
    komainu import nginx /etc/nginx/nginx.conf --verify > komainu.toml\n  \
    komainu import unit config.json > komainu.toml\n  \
    komainu import starman -- --workers 10 app.psgi > komainu.toml\n")]
pub(crate) struct ImportArguments {
    /// Kind of the configuration (nginx, unit, caddy, ingress, gunicorn, puma, starman, passenger; guessed if it is not given), and its
    /// file; files that it includes are read too
    #[arg(num_args = 1..=2, required = true, value_names = ["KIND", "FILE"])]
    pub(crate) source: Vec<PathBuf>,
    /// The arguments of a command, in place of a file
    #[arg(last = true, value_name = "ARGUMENT")]
    pub(crate) command: Vec<String>,
    /// The folder of nginx's configuration on the machine that serves, for names of files in it [default: that of the file]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) prefix: Option<PathBuf>,
    /// Write something else than a configuration: `gateway`, objects of Gateway API for Ingresses
    #[arg(long, value_name = "FORM", value_parser = ["gateway"], conflicts_with = "verify")]
    pub(crate) to: Option<String>,
    /// Run the old server and the result side by side on loopback, and show every difference; exits 1 if the report does not name one
    #[arg(long)]
    pub(crate) verify: bool,
    /// Write the comparison to this file as JSON
    #[arg(long, value_name = "FILE", requires = "verify")]
    pub(crate) verify_json: Option<PathBuf>,
    /// The program of the old server [default: the one that is found]
    #[arg(long, value_name = "PROGRAM", requires = "verify")]
    pub(crate) old_server: Option<PathBuf>,
    /// The most requests of a comparison
    #[arg(long, value_name = "NUMBER", default_value = "3000", requires = "verify", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) requests: u32,
    /// The most time for the requests of a comparison, 1s to 1h
    #[arg(long, value_name = "TIME", default_value = "2m", requires = "verify", value_parser = parse_verify_time)]
    pub(crate) time: Duration,
}

/// Maximum bytes of a file that are read to detect its kind.
const GUESS_BYTES_MAX: u64 = 4 << 20;

/// The configuration to translate.
struct ImportSource<'a> {
    kind: ImportKind,
    file: Option<&'a Path>,
}

/// Writes the configuration to stdout and the report to stderr; with `--verify` also the differences. Returns
/// false if the result is invalid, or there is a difference that the report does not mention.
///
/// # Errors
/// Nothing could be translated, or the comparison failed.
pub(crate) fn run_import(arguments: &ImportArguments) -> Result<bool, Failure> {
    let source = find_source(arguments)?;
    let imported = translate(&source, arguments)?;
    if let (Some(file), false) = (source.file, has_translations(&source, &imported)) {
        return Err(Failure::new(format!(
            "{}: there is nothing in it that could be translated",
            file.display()
        )));
    }
    let written = io::stdout().write_all(imported.toml.as_bytes());
    match written {
        // The reader has closed the pipe.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        done => done?,
    }
    let _ = io::stderr().write_all(sanitize(&imported.report()).as_bytes());
    if arguments.to.is_some() {
        return Ok(true);
    }
    let is_valid = is_valid(&imported);
    if arguments.verify && is_valid { verify(&source, &imported, arguments) } else { Ok(is_valid) }
}

/// Whether the result is a valid configuration. Errors are written to stderr; they result from the source and
/// must be resolved by hand.
fn is_valid(imported: &ImportResult) -> bool {
    let parsed =
        config::Config::parse_with(&imported.toml, "the result", Path::new("."), &|_| Some(String::new()));
    let Err(report) = parsed else { return true };
    let _ = writeln!(
        io::stderr(),
        "\nThe result is not valid; what the source says here has to be written by hand:\n\n{report}"
    );
    false
}

/// Whether any directive was translated. Configurations of applications may consist of defaults only.
fn has_translations(source: &ImportSource<'_>, imported: &ImportResult) -> bool {
    let is_server =
        matches!(source.kind, ImportKind::Nginx | ImportKind::Caddy | ImportKind::Unit | ImportKind::Ingress);
    !is_server || imported.remarks.iter().any(|remark| remark.verdict != ImportVerdict::Impossible)
}

fn find_source(arguments: &ImportArguments) -> Result<ImportSource<'_>, Failure> {
    let names = || ImportKind::ALL.map(|(name, _)| name).join(", ");
    match arguments.source.as_slice() {
        [kind, file] => {
            let name = kind.to_string_lossy();
            let kind =
                ImportKind::from_name(&name).ok_or_else(|| match UntranslatedServer::from_name(&name) {
                    Some(server) => untranslated_server_message(&server),
                    None => format!("`{name}` is none of: {}", names()),
                })?;
            Ok(ImportSource { kind, file: Some(file) })
        }
        [one] => {
            if let Some(kind) = ImportKind::from_name(&one.to_string_lossy())
                && !one.exists()
            {
                let has_command = !arguments.command.is_empty() && takes_command(kind);
                return if !has_command {
                    Err(Failure::new(format!("the file is missing: komainu import {} FILE", one.display())))
                } else {
                    Ok(ImportSource { kind, file: None })
                };
            }
            if let Some(server) =
                UntranslatedServer::from_name(&one.to_string_lossy()).filter(|_| !one.exists())
            {
                return Err(Failure::new(untranslated_server_message(&server)));
            }
            let text = read_beginning(one)?;
            let kind =
                ImportKind::detect(one, &text).ok_or_else(|| match UntranslatedServer::detect(&text) {
                    Some(server) => format!("{}: {}", one.display(), untranslated_server_message(&server)),
                    None => format!(
                        "{}: whose configuration this is cannot be seen: write one of {} before it",
                        one.display(),
                        names()
                    ),
                })?;
            Ok(ImportSource { kind, file: Some(one) })
        }
        _ => Err(Failure::new("the file is missing")),
    }
}

/// Returns the message for a server whose configuration cannot be translated.
fn untranslated_server_message(server: &UntranslatedServer) -> String {
    let OtherServer { name, page, .. } = server.server;
    format!("{name}'s configuration is not translated: docs/{page} shows how each part of it is written here")
}

/// Whether the server can be configured entirely by its command line.
fn takes_command(kind: ImportKind) -> bool {
    matches!(kind, ImportKind::Gunicorn | ImportKind::Puma | ImportKind::Starman)
}

fn read_beginning(path: &Path) -> Result<String, Failure> {
    use std::io::Read;
    let mut bytes = Vec::new();
    let file = import::open_file(path).map_err(Failure::new).with_context(|| path.display())?;
    file.take(GUESS_BYTES_MAX).read_to_end(&mut bytes).with_context(|| path.display())?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn translate(source: &ImportSource<'_>, arguments: &ImportArguments) -> Result<ImportResult, Failure> {
    let file = source.file.unwrap_or(Path::new(""));
    if arguments.to.is_some() && source.kind != ImportKind::Ingress {
        return Err(Failure::new("--to gateway is for Ingresses: komainu import ingress FILE --to gateway"));
    }
    match source.kind {
        ImportKind::Ingress if arguments.to.is_some() => import::ingress::import_to_gateway(file),
        ImportKind::Nginx => import::nginx::import(file, arguments.prefix.as_deref()),
        ImportKind::Caddy => import::caddy::import(file),
        ImportKind::Ingress => import::ingress::import(file),
        ImportKind::Unit => import::unit::import(file),
        kind => import::hosting::import(kind, source.file, &arguments.command),
    }
    .map_err(Failure::new)
}

fn verify(
    source: &ImportSource<'_>,
    imported: &ImportResult,
    arguments: &ImportArguments,
) -> Result<bool, Failure> {
    let (name, file) = match (source.kind, source.file) {
        (ImportKind::Nginx, Some(file)) => ("nginx", file),
        _ => return Err(Failure::new("--verify compares with nginx")),
    };
    let old = match &arguments.old_server {
        Some(program) => program.clone(),
        None => find_program(name).ok_or_else(|| {
            format!("there is no `{name}` on this machine to compare with: install it, or name it with --old-server")
        })?,
    };
    let options = verify::VerifyOptions {
        komainu_path: std::env::current_exe()?,
        old_server_path: old,
        requests_max: usize::try_from(arguments.requests).unwrap_or(usize::MAX),
        only_paths: false,
        total_timeout: arguments.time,
    };
    let verification = verify::verify_nginx(file, arguments.prefix.as_deref(), imported, &options)?;
    let _ = io::stderr().write_all(format!("\n{}", sanitize(&verification.table(name))).as_bytes());
    if let Some(path) = &arguments.verify_json {
        let text = format!("{:#}\n", verification.json());
        std::fs::write(path, text).with_context(|| path.display())?;
    }
    Ok(verification.unexplained_count() == 0)
}

/// Finds a program in `PATH` or the usual directories.
fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders =
        std::env::split_paths(&path).chain(["/usr/sbin", "/usr/local/sbin", "/usr/bin"].map(PathBuf::from));
    folders.map(|folder| folder.join(name)).find(|path| Command::new(path).arg("-v").output().is_ok())
}
