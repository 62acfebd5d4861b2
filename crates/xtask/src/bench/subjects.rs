//! The servers under comparison: how each is tuned, started and checked.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::bench::options::Options;
use crate::bench::www::Row;
use crate::measure::Outcome;
use crate::measure::children::Tree;
use crate::measure::client::Connection;

const READY_MS_MAX: u64 = 10_000;

/// Which server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A build of ours.
    Komainu(PathBuf),
    Nginx,
    H2o,
    Lighttpd,
}

/// A server that could be measured.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    pub(crate) name: String,
    pub(crate) kind: Kind,
}

/// A server that runs.
pub(crate) struct Running {
    pub(crate) tree: Tree,
    pub(crate) address: SocketAddr,
}

/// The places and numbers with which every subject is started.
pub(crate) struct Stage<'a> {
    /// Where configurations and logs go.
    pub(crate) folder: &'a Path,
    /// What is served.
    pub(crate) root: &'a Path,
    /// Threads or workers.
    pub(crate) threads: usize,
}

/// The subjects that `options` ask for: ours first, then the peers.
pub(crate) fn chosen(options: &Options) -> Vec<Subject> {
    let ours =
        std::iter::once(("komainu".to_string(), options.binary.clone())).chain(options.also.iter().cloned());
    let peers = [("nginx", Kind::Nginx), ("h2o", Kind::H2o), ("lighttpd", Kind::Lighttpd)];
    ours.map(|(name, path)| Subject { name, kind: Kind::Komainu(path) })
        .chain(peers.map(|(name, kind)| Subject { name: name.to_string(), kind }))
        .filter(|subject| Options::chooses(&options.only, &subject.name))
        .collect()
}

impl Subject {
    /// Whether this is the server that the aims are about, or another build of it.
    pub(crate) fn is_ours(&self) -> bool {
        matches!(self.kind, Kind::Komainu(_))
    }

    /// Its program, when it is on this machine; else the remedy.
    pub(crate) fn program(&self) -> Result<PathBuf, String> {
        let named = match &self.kind {
            Kind::Komainu(path) => {
                let missing = || format!("no program at {}: build it with `make build`", path.display());
                return fs::canonicalize(path).map_err(|_| missing());
            }
            Kind::Nginx => "nginx",
            Kind::H2o => "h2o",
            Kind::Lighttpd => "lighttpd",
        };
        // Debian keeps servers in /usr/sbin, which not everybody's PATH names.
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path)
            .chain([PathBuf::from("/usr/sbin")])
            .map(|folder| folder.join(named))
            .find(|program| program.is_file())
            .ok_or_else(|| format!("not installed: the package `{named}` brings it"))
    }

    /// The first line of what it says of its version.
    pub(crate) fn version(&self) -> String {
        let flag = if self.is_ours() { "--version" } else { "-v" };
        let Ok(program) = self.program() else { return String::new() };
        let Ok(output) = Command::new(program).arg(flag).output() else { return String::new() };
        let said = [output.stdout, output.stderr].concat();
        String::from_utf8_lossy(&said).lines().next().unwrap_or_default().to_string()
    }

    /// Starts it and waits until it listens. The error says why it does not.
    pub(crate) fn start(&self, stage: &Stage<'_>) -> Outcome<Running> {
        let own = stage.folder.join(&self.name);
        fs::create_dir_all(&own)?;
        let port = free_port()?;
        let mut command = Command::new(self.program()?);
        match &self.kind {
            Kind::Komainu(_) => {
                command.args(["run", "--listen", "127.0.0.1:0", "--threads", &stage.threads.to_string()]);
                command.arg(stage.root);
            }
            Kind::Nginx => {
                fs::write(own.join("nginx.conf"), nginx_conf(stage, &own, port))?;
                command.arg("-e").arg(own.join("error.log"));
                command.arg("-p").arg(&own).arg("-c").arg(own.join("nginx.conf"));
            }
            Kind::H2o => {
                fs::write(own.join("h2o.conf"), h2o_conf(stage, port))?;
                command.args(["-m", "worker", "-c"]).arg(own.join("h2o.conf"));
            }
            Kind::Lighttpd => {
                fs::write(own.join("lighttpd.conf"), lighttpd_conf(stage, &own, port))?;
                command.args(["-D", "-f"]).arg(own.join("lighttpd.conf"));
            }
        }
        let mut tree = Tree::start(&mut command, &own.join("output.log"))?;
        let listens = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let address = tree.wait_until(READY_MS_MAX, |tree| match self.kind {
            Kind::Komainu(_) => printed_address(&tree.output()),
            _ => Connection::open(listens).is_ok().then_some(listens),
        });
        match address {
            Some(address) => Ok(Running { tree, address }),
            None => Err(format!("does not start: {}", last_lines(&tree.output())).into()),
        }
    }
}

impl Running {
    /// Asks twice over one connection: the right status, the right bytes, and the connection kept.
    pub(crate) fn verify(&self, row: &Row) -> Result<(), String> {
        let mut connection = Connection::open(self.address).map_err(|e| format!("cannot be reached: {e}"))?;
        let content = row.content();
        for turn in ["first", "second"] {
            let answer =
                connection.ask(row.target).map_err(|e| format!("{turn} answer to {}: {e}", row.target))?;
            if answer.status != 200 {
                return Err(format!("{turn} answer to {}: status {}", row.target, answer.status));
            }
            if answer.body != content {
                return Err(format!("{turn} answer to {}: {} wrong bytes", row.target, answer.body.len()));
            }
        }
        Ok(())
    }

    /// The address of a row.
    pub(crate) fn url(&self, row: &Row) -> String {
        format!("http://{}{}", self.address, row.target)
    }
}

pub(crate) fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// The first `http://HOST:PORT` of a server's output.
pub(crate) fn printed_address(output: &str) -> Option<SocketAddr> {
    output.split("http://").skip(1).find_map(|rest| {
        // Without an end in sight the line may still be in the writing, and the port cut short.
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.' && c != ':')?;
        rest[..end].parse().ok()
    })
}

pub(crate) fn last_lines(output: &str) -> String {
    let lines: Vec<&str> = output.lines().collect();
    match lines.len() {
        0 => "it says nothing".to_string(),
        count => lines[count.saturating_sub(3)..].join(" / "),
    }
}

fn nginx_conf(stage: &Stage<'_>, own: &Path, port: u16) -> String {
    let Stage { root, threads, .. } = stage;
    let (root, own) = (root.display(), own.display());
    format!(
        "daemon off;
worker_processes {threads};
worker_rlimit_nofile 20000;
pid {own}/nginx.pid;
error_log {own}/error.log crit;
events {{ worker_connections 19000; }}
http {{
  client_body_temp_path {own}/body; proxy_temp_path {own}/proxy; fastcgi_temp_path {own}/fastcgi;
  uwsgi_temp_path {own}/uwsgi; scgi_temp_path {own}/scgi;
  types {{ text/html html; text/plain txt; }}
  default_type application/octet-stream;
  access_log off;
  sendfile on;
  tcp_nopush on;
  tcp_nodelay on;
  keepalive_timeout 600s;
  keepalive_requests 1000000000;
  open_file_cache max=1000 inactive=600s;
  open_file_cache_valid 60s;
  open_file_cache_min_uses 1;
  server {{ listen 127.0.0.1:{port} reuseport backlog=4096; root {root}; }}
}}
"
    )
}

fn h2o_conf(stage: &Stage<'_>, port: u16) -> String {
    let Stage { root, threads, .. } = stage;
    let root = root.display();
    // It asks to be told, when it starts as root.
    let user = if rustix::process::geteuid().is_root() { "user: nobody\n" } else { "" };
    format!(
        "{user}num-threads: {threads}
max-connections: 19000
http1-request-timeout: 600
listen: {{ host: 127.0.0.1, port: {port} }}
hosts:
  default:
    paths:
      /: {{ file.dir: {root} }}
"
    )
}

fn lighttpd_conf(stage: &Stage<'_>, own: &Path, port: u16) -> String {
    let Stage { root, threads, .. } = stage;
    let (root, own) = (root.display(), own.display());
    // 65535 is the most that it takes.
    format!(
        "server.bind = \"127.0.0.1\"
server.port = {port}
server.document-root = \"{root}\"
server.pid-file = \"{own}/lighttpd.pid\"
server.max-worker = {threads}
server.max-fds = 20000
server.max-connections = 19000
server.listen-backlog = 4096
server.max-keep-alive-requests = 65535
server.max-keep-alive-idle = 600
server.stat-cache-engine = \"simple\"
server.network-backend = \"sendfile\"
mimetype.assign = ( \".html\" => \"text/html\", \".txt\" => \"text/plain\", \"\" => \"application/octet-stream\" )
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::www;
    use crate::measure::children::Scratch;

    #[test]
    fn the_address_is_taken_from_whole_lines_alone() {
        let found = printed_address("komainu 0.1\n  serving on http://127.0.0.1:41234 (public)\n");
        assert_eq!(found, Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 41234))));
        assert_eq!(
            printed_address("see http://example.com/\nhttp://127.0.0.1:80/\n").map(|a| a.port()),
            Some(80)
        );
        assert_eq!(printed_address("serving on http://127.0.0.1:412"), None);
    }

    #[test]
    fn a_missing_program_is_named_with_its_remedy() {
        let subject = Subject { name: "old".into(), kind: Kind::Komainu("/nowhere/komainu".into()) };
        assert!(subject.program().expect_err("nothing there").contains("make build"));
    }

    #[test]
    fn a_server_that_dies_says_why_and_one_that_answers_wrongly_is_caught() {
        let scratch = Scratch::new("subjects-test").expect("a scratch folder");
        let root = www::write(scratch.path()).expect("files");
        let stage = Stage { folder: scratch.path(), root: &root, threads: 1 };
        let program = scratch.path().join("program");
        let script = |text: &str| {
            use std::os::unix::fs::PermissionsExt;
            fs::write(&program, format!("#!/bin/sh\n{text}\n")).expect("a script");
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("executable");
            Subject { name: "broken".into(), kind: Kind::Komainu(program.clone()) }
        };
        let error = script("echo no such option; exit 2").start(&stage).err().expect("it died").to_string();
        assert!(error.contains("no such option"), "{error}");

        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let _ = io::Write::write_all(&mut &stream, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno");
            }
        });
        let running = script(&format!("echo http://{address}/; sleep 600")).start(&stage).expect("it starts");
        assert!(running.verify(&www::ROWS[0]).expect_err("two bytes").contains("2 wrong bytes"));
    }
}
