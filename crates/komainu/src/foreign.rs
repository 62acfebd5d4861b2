//! `komainu import`: the configuration of another server, translated.

use std::io::{self, Write};

use crate::cli::{ImportArguments, ImportFormat};

/// Writes the configuration to stdout and the report to stderr.
///
/// # Errors
/// Why nothing was translated.
pub(crate) fn import(arguments: &ImportArguments) -> Result<(), String> {
    let imported = match arguments.format {
        ImportFormat::Nginx => import::nginx::import(&arguments.file, arguments.prefix.as_deref()),
        ImportFormat::Caddy => import::caddy::import(&arguments.file),
        ImportFormat::Ingress => import::ingress::import(&arguments.file),
        ImportFormat::Unit => import::unit::import(&arguments.file),
    }
    .map_err(|error| format!("error: {error}"))?;
    let written = io::stdout().write_all(imported.toml.as_bytes());
    match written {
        // The reader has closed the pipe.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        done => done.map_err(|error| format!("error: {error}"))?,
    }
    let _ = io::stderr().write_all(imported.report().as_bytes());
    Ok(())
}
