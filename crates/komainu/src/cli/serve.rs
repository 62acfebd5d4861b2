//! Start of a server or its supervisor, shared by `komainu run` and `komainu start`.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;

use config::Config;
use failure::Failure;
use link::LinkRequest;
use process::inherited::SupervisorHandover;
use process::sockets::InheritedSockets;
use process::upgrade::Predecessor;
use process::{systemd, upgrade};
use rights::privilege::Identity;
use signal_hook::consts::SIGXFSZ;

use crate::run::start::ServerStart;
use crate::run::{start, supervisor};
use crate::terminal;

/// State that this process takes over when it starts.
pub(crate) struct InheritedState {
    pub(super) inherited: Option<SupervisorHandover>,
    pub(super) predecessor: Option<Predecessor>,
    pub(super) inherited_sockets: InheritedSockets,
}

/// Calls `serve` with the state taken over. If it fails, the reason is reported to the predecessor.
pub(crate) fn with_inherited_state(
    serve: impl FnOnce(InheritedState) -> Result<(), Failure>,
) -> Result<(), Failure> {
    net::sys::set_cloexec_on_inherited()?;
    upgrade::program()?;
    // Exceeding the file size limit (`LimitFSIZE`) becomes a write error, like a full disk, instead of ending
    // the process.
    signal_hook::flag::register(SIGXFSZ, Arc::default())?;
    if let Some(inherited) = SupervisorHandover::receive()? {
        let given = InheritedSockets::default();
        return serve(InheritedState {
            inherited: Some(inherited),
            predecessor: None,
            inherited_sockets: given,
        });
    }
    let Some((predecessor, given)) = Predecessor::receive()? else {
        let given = systemd::take_sockets()?;
        return serve(InheritedState { inherited: None, predecessor: None, inherited_sockets: given });
    };
    let done = serve(InheritedState {
        inherited: None,
        predecessor: Some(predecessor.clone()),
        inherited_sockets: given,
    });
    done.inspect_err(|failure| predecessor.report_failure(&failure.with_remedy()))
}

/// Runs the supervisor of a server that runs as another user, and exits with that server's status if it is
/// not 0.
pub(super) fn run_supervisor(
    config: Config,
    file: Option<(PathBuf, String)>,
    identity: Identity,
    predecessor: Option<Predecessor>,
    given: InheritedSockets,
) -> Result<(), Failure> {
    match supervisor::supervise(config, file, identity, predecessor, given)? {
        0 => Ok(()),
        status => std::process::exit(status.into()),
    }
}

/// Runs the server; failures are also reported to the supervisor, if there is one.
pub(super) fn run_server(start: ServerStart) -> Result<(), Failure> {
    let link = start.inherited.as_ref().map(|given| given.link.clone());
    start::run_server(start, print_addresses).map_err(|error| {
        let failure = Failure::from(error);
        link.iter().for_each(|link| link.send_without_reply(&LinkRequest::Failed(&failure.with_remedy())));
        failure
    })
}

/// Prints the addresses of the server and its dashboard once connections are accepted.
fn print_addresses(urls: &[net::ListenUrl], control: &[net::ListenUrl]) {
    let mut out = io::stdout();
    for url in urls {
        let scheme = match url.is_tls {
            _ if url.address.is_udp() => "udp",
            _ if url.is_stream => "tcp",
            true => "https",
            false => "http",
        };
        let shown = match &url.address {
            net::BindAddress::Any(port) | net::BindAddress::AnyUdp(port) => {
                format!("{scheme}://localhost:{port} (every address)")
            }
            net::BindAddress::Tcp(address) | net::BindAddress::Udp(address)
                if address.ip().is_unspecified() && address.is_ipv6() =>
            {
                format!("{scheme}://[::1]:{} (every IPv6 address)", address.port())
            }
            net::BindAddress::Tcp(address) | net::BindAddress::Udp(address)
                if address.ip().is_unspecified() =>
            {
                format!("{scheme}://localhost:{} (every IPv4 address)", address.port())
            }
            _ => url.to_string(),
        };
        let _ = writeln!(out, "komainu serves {}", terminal::sanitize(&shown));
    }
    for url in control {
        let _ = match url.address {
            net::BindAddress::Unix(_) => writeln!(out, "the control listener is {url}"),
            _ => writeln!(out, "the dashboard is at {url}"),
        };
    }
    if out.is_terminal() {
        let _ = writeln!(out, "Ctrl-C stops it.");
    }
    let _ = out.flush();
}
