//! Reference server for load generators: one nginx worker that answers from memory.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;

use crate::measure::Fallible;
use bench::child_processes::ProcessTree;
use bench::job::free_port;

/// Core of the server, in taskset's format.
pub(crate) const SERVER_CORE: &str = "0";
/// Core of the load generators, in taskset's format.
pub(crate) const GENERATOR_CORE: &str = "1";
const READY_MS_MAX: u64 = 10_000;

/// Server that is stopped when this value is dropped.
pub(crate) struct PeerServer {
    pub(crate) address: SocketAddr,
    /// Stops the server when dropped.
    _tree: ProcessTree,
}

/// Starts nginx with its files in `folder`.
pub(crate) fn nginx(folder: &Path) -> Fallible<PeerServer> {
    let port = free_port()?;
    let own = folder.display();
    let conf = format!(
        "daemon off; worker_processes 1; pid {own}/nginx.pid; error_log {own}/error.log crit;\n\
         events {{ worker_connections 4096; }}\n\
         http {{ access_log off; keepalive_requests 1000000000; keepalive_timeout 600s;\n\
         server {{ listen 127.0.0.1:{port} backlog=4096; location / {{ return 200 \"Hello, world\\n\"; }} }} }}\n"
    );
    fs::write(folder.join("nginx.conf"), conf)?;
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new("taskset");
    command.env("PATH", format!("{path}:/usr/sbin")).args(["-c", SERVER_CORE, "nginx"]);
    command.args(["-p", "."]).arg("-e").arg(folder.join("error.log"));
    command.arg("-c").arg(folder.join("nginx.conf")).current_dir(folder);
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut tree = ProcessTree::start(&mut command, &folder.join("server.log"))?;
    match tree.wait_until(READY_MS_MAX, |_| TcpStream::connect(address).ok()) {
        Some(_) => Ok(PeerServer { address, _tree: tree }),
        None => Err(format!("nginx does not start (the package nginx brings it): {}", tree.output()).into()),
    }
}
