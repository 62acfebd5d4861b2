//! Start of a server or its supervisor, shared by `komainu run` and `komainu start`.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;

use config::Config;
use link::LinkRequest;
use process::inherited::Inherited;
use process::sockets::GivenSockets;
use process::upgrade::Predecessor;
use process::{systemd, upgrade};
use rights::privilege::Identity;
use signal_hook::consts::SIGXFSZ;

use crate::run::start::Start;
use crate::run::{start, supervisor};
use crate::terminal;

/// State that this process takes over when it starts.
pub(crate) struct TakenOver {
    pub(super) inherited: Option<Inherited>,
    pub(super) predecessor: Option<Predecessor>,
    pub(super) given: GivenSockets,
}

/// Calls `serve` with the state taken over. If it fails, the reason is reported to the predecessor.
pub(crate) fn taking_over(serve: impl FnOnce(TakenOver) -> Result<(), String>) -> Result<(), String> {
    net::sys::keep_descriptors_from_programs().map_err(failed)?;
    upgrade::program().map_err(failed)?;
    // Exceeding the file size limit (`LimitFSIZE`) becomes a write error, like a full disk, instead of ending
    // the process.
    signal_hook::flag::register(SIGXFSZ, Arc::default()).map_err(failed)?;
    if let Some(inherited) = Inherited::take().map_err(failed)? {
        let given = GivenSockets::default();
        return serve(TakenOver { inherited: Some(inherited), predecessor: None, given });
    }
    let Some((predecessor, given)) = Predecessor::take().map_err(failed)? else {
        let given = systemd::sockets().map_err(failed)?;
        return serve(TakenOver { inherited: None, predecessor: None, given });
    };
    let done = serve(TakenOver { inherited: None, predecessor: Some(predecessor.clone()), given });
    done.inspect_err(|error| predecessor.report_failure(error.strip_prefix("error: ").unwrap_or(error)))
}

/// Runs the supervisor of a server that runs as another user, and exits with that server's status if it is
/// not 0.
pub(super) fn supervised(
    config: Config,
    file: Option<(PathBuf, String)>,
    identity: Identity,
    taken: (Option<Predecessor>, GivenSockets),
) -> Result<(), String> {
    match supervisor::supervise(config, file, identity, taken).map_err(failed)? {
        0 => Ok(()),
        status => std::process::exit(status.into()),
    }
}

pub(super) fn failed(error: io::Error) -> String {
    format!("error: {error}")
}

/// Runs the server; failures are also reported to the supervisor, if there is one.
pub(super) fn served(start: Start) -> Result<(), String> {
    let link = start.inherited.as_ref().map(|given| given.link.clone());
    start::serve(start, announce).map_err(|error| {
        link.iter().for_each(|link| link.report(&LinkRequest::Failed(&error.to_string())));
        failed(error)
    })
}

/// Prints the addresses of the server and its dashboard once connections are accepted.
fn announce(urls: &[net::ListenUrl], control: &[net::ListenUrl]) {
    let mut out = io::stdout();
    for url in urls {
        let scheme = match url.is_tls {
            _ if url.is_stream => "tcp",
            true => "https",
            false => "http",
        };
        let shown = match &url.at {
            net::Bind::Any(port) => format!("{scheme}://localhost:{port} (every address)"),
            net::Bind::Tcp(address) if address.ip().is_unspecified() && address.is_ipv6() => {
                format!("{scheme}://[::1]:{} (every IPv6 address)", address.port())
            }
            net::Bind::Tcp(address) if address.ip().is_unspecified() => {
                format!("{scheme}://localhost:{} (every IPv4 address)", address.port())
            }
            _ => url.to_string(),
        };
        let _ = writeln!(out, "komainu serves {}", terminal::printable(&shown));
    }
    for url in control {
        let _ = match url.at {
            net::Bind::Unix(_) => writeln!(out, "the control listener is {url}"),
            _ => writeln!(out, "the dashboard is at {url}"),
        };
    }
    if out.is_terminal() {
        let _ = writeln!(out, "Ctrl-C stops it.");
    }
    let _ = out.flush();
}
