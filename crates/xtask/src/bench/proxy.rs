//! The reverse proxy: what a hop costs beside nginx, HAProxy and h2o, one thread each, before one backend for all.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use serde_json::json;

use crate::bench::files::{Sample, sample};
use crate::bench::options::Options;
use crate::bench::subjects::{free_port, last_lines, printed_address};
use crate::measure::children::{Scratch, Tree};
use crate::measure::client::Connection;
use crate::measure::wrk::Wrk;
use crate::measure::{Outcome, procfs, stats};
use crate::report::{Table, keep, thousands, time_us};

const READY_MS_MAX: u64 = 10_000;
const PEERS: [&str; 3] = ["nginx", "haproxy", "h2o"];

/// A way to the backend, and how many clients take it.
struct Row {
    name: &'static str,
    title: &'static str,
    path: &'static str,
    connections: usize,
    /// The most that ours may cost, as a part of what the best peer costs.
    aim: Option<f64>,
}

const ROWS: [Row; 6] = [
    Row { name: "16", title: "16 connections, TCP", path: "/tcp", connections: 16, aim: None },
    Row { name: "100", title: "100 connections, TCP", path: "/tcp", connections: 100, aim: Some(0.75) },
    Row { name: "1000", title: "1000 connections, TCP", path: "/tcp", connections: 1000, aim: Some(0.6) },
    Row { name: "unix", title: "100 connections, Unix socket", path: "/unix", connections: 100, aim: None },
    Row { name: "tls", title: "100 connections, TLS kept", path: "/tls", connections: 100, aim: Some(0.8) },
    Row {
        name: "tls-close",
        title: "100 connections, TLS closed",
        path: "/once",
        connections: 100,
        aim: None,
    },
];

/// Where the backend is, in each way.
struct Ways {
    tcp: u16,
    tls: u16,
    once: u16,
    socket: PathBuf,
}

/// A proxy that runs, or why it does not.
struct Entry {
    name: &'static str,
    state: Result<(Tree, SocketAddr), String>,
    /// By row, by round.
    samples: Vec<Vec<Sample>>,
}

/// Runs the comparison, prints it, keeps it. Fails when ours is broken.
pub(crate) fn run(options: &Options) -> Outcome<ExitCode> {
    let scratch = Scratch::new("bench-proxy")?;
    let folder = scratch.path();
    let ways =
        Ways { tcp: free_port()?, tls: free_port()?, once: free_port()?, socket: folder.join("b.sock") };
    let _backend = backend(folder, &ways)?;
    let wrk = Wrk::new(folder, 1)?;
    let rows: Vec<&Row> = ROWS.iter().filter(|row| Options::chooses(&options.rows, row.name)).collect();
    let names = std::iter::once("komainu").chain(PEERS);
    let names = names.filter(|name| Options::chooses(&options.only, name));
    let mut entries: Vec<Entry> =
        names.map(|name| Entry::enter(name, folder, &ways, options, &rows)).collect();
    for entry in &entries {
        if let Err(why) = &entry.state {
            eprintln!("{}: out, {why}", entry.name);
        }
    }
    measure_all(&mut entries, &rows, &wrk, options);
    let (markdown, json) = report(&entries, &rows, options);
    println!("\n{markdown}");
    println!("Kept as {}", keep(&options.out, "proxy", &markdown, &json)?.display());
    let broken = entries.iter().any(|entry| entry.name == "komainu" && entry.state.is_err());
    Ok(if broken { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

impl Entry {
    fn enter(name: &'static str, folder: &Path, ways: &Ways, options: &Options, rows: &[&Row]) -> Entry {
        let started = start(name, folder, ways, options).map_err(|error| error.to_string());
        let state = started.and_then(|(tree, address)| {
            for row in rows {
                let asked = Connection::open(address).and_then(|mut connection| connection.ask(row.path));
                match asked {
                    Ok(answer) if answer.status == 200 => {}
                    Ok(answer) => return Err(format!("{}: status {}", row.path, answer.status)),
                    Err(error) => return Err(format!("{}: {error}", row.path)),
                }
            }
            Ok((tree, address))
        });
        Entry { name, state, samples: rows.iter().map(|_| Vec::new()).collect() }
    }

    fn measure(&mut self, wrk: &Wrk, at: usize, row: &Row, seconds: u64) -> Option<Sample> {
        let (tree, address) = self.state.as_ref().ok()?;
        let url = format!("http://{address}{}", row.path);
        match sample(wrk, tree.pid(), &url, row.connections, seconds) {
            Ok(taken) if taken.load.requests > 0 && taken.load.status_errors == 0 => {
                self.samples[at].push(taken);
                return Some(taken);
            }
            Ok(taken) => {
                self.state = Err(format!("{}: {} wrong answers", row.name, taken.load.status_errors))
            }
            Err(error) => self.state = Err(error.to_string()),
        }
        None
    }
}

fn measure_all(entries: &mut [Entry], rows: &[&Row], wrk: &Wrk, options: &Options) {
    let count = entries.len();
    for (at, row) in rows.iter().enumerate() {
        for round in 0..options.rounds_or(3) {
            for turn in 0..count {
                // Every round begins with another subject, so that none always follows the same one.
                let entry = &mut entries[(turn + round) % count];
                if round == 0 && entry.measure(wrk, at, row, 1).is_some() {
                    entry.samples[at].clear();
                }
                if let Some(taken) = entry.measure(wrk, at, row, options.seconds) {
                    let (name, cpu, rate) = (entry.name, taken.cpu_us(), thousands(taken.load.rate()));
                    eprintln!("{:<30} {name:<8} {cpu:>7.2} µs CPU/request {rate:>9} req/s", row.title);
                }
            }
        }
    }
}

fn program(name: &str) -> Outcome<PathBuf> {
    // Debian keeps servers in /usr/sbin, which not everybody's PATH names.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut programs = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]).map(|f| f.join(name));
    programs
        .find(|program| program.is_file())
        .ok_or_else(|| format!("not installed: the package `{name}` brings it").into())
}

fn start(name: &str, folder: &Path, ways: &Ways, options: &Options) -> Outcome<(Tree, SocketAddr)> {
    let own = folder.join(name);
    fs::create_dir_all(&own)?;
    let port = free_port()?;
    let file = own.join("configuration");
    let mut command = match name {
        "komainu" => {
            fs::write(&file, komainu_conf(ways, port))?;
            let mut command = Command::new(fs::canonicalize(&options.binary)?);
            command.args(["start", "-c"]).arg(&file);
            command
        }
        "nginx" => {
            fs::write(&file, nginx_conf(ways, &own, port))?;
            let mut command = Command::new(program(name)?);
            command.arg("-e").arg(own.join("error.log")).arg("-p").arg(&own).arg("-c").arg(&file);
            command
        }
        "haproxy" => {
            fs::write(&file, haproxy_conf(ways, port))?;
            let mut command = Command::new(program(name)?);
            command.arg("-db").arg("-f").arg(&file);
            command
        }
        _ => {
            fs::write(&file, h2o_conf(ways, port))?;
            let mut command = Command::new(program(name)?);
            command.args(["-m", "worker", "-c"]).arg(&file);
            command
        }
    };
    let mut tree = Tree::start(&mut command, &own.join("output.log"))?;
    let listens = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let address = tree.wait_until(READY_MS_MAX, |tree| match name {
        "komainu" => printed_address(&tree.output()),
        _ => Connection::open(listens).is_ok().then_some(listens),
    });
    let Some(address) = address else {
        return Err(format!("does not start: {}", last_lines(&tree.output())).into());
    };
    Ok((tree, address))
}

/// nginx that answers the same few bytes in every way; the last way closes after each answer.
fn backend(folder: &Path, ways: &Ways) -> Outcome<Tree> {
    let own = folder.join("backend");
    fs::create_dir_all(&own)?;
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"])
        .args(["-subj", "/CN=localhost", "-days", "2", "-keyout", "key.pem", "-out", "cert.pem"])
        .current_dir(&own)
        .output()?;
    if !made.status.success() {
        return Err(format!("no certificate: {}", String::from_utf8_lossy(&made.stderr)).into());
    }
    let (here, Ways { tcp, tls, once, socket }, answer) =
        (own.display(), ways, "location / { return 200 \"hello, world\"; }");
    let certificate = format!("ssl_certificate {here}/cert.pem; ssl_certificate_key {here}/key.pem;");
    let text = format!(
        "{}\n  server {{ listen 127.0.0.1:{tcp} backlog=4096; listen unix:{}; {answer} }}
  server {{ listen 127.0.0.1:{tls} ssl backlog=4096; {certificate} {answer} }}
  server {{ listen 127.0.0.1:{once} ssl backlog=4096; keepalive_timeout 0; {certificate} {answer} }}\n}}\n",
        nginx_start(&own),
        socket.display()
    );
    fs::write(own.join("nginx.conf"), text)?;
    let mut command = Command::new(program("nginx")?);
    command.arg("-e").arg(own.join("error.log")).arg("-p").arg(&own).arg("-c").arg(own.join("nginx.conf"));
    let mut tree = Tree::start(&mut command, &own.join("output.log"))?;
    let ready = |_: &Tree| Connection::open(SocketAddr::from((Ipv4Addr::LOCALHOST, *once))).ok();
    match tree.wait_until(READY_MS_MAX, ready) {
        Some(_) => Ok(tree),
        None => Err(format!("the backend does not start: {}", last_lines(&tree.output())).into()),
    }
}

fn nginx_start(own: &Path) -> String {
    let own = own.display();
    format!(
        "daemon off; worker_processes 1; worker_rlimit_nofile 20000; pid {own}/nginx.pid;
error_log {own}/error.log crit; events {{ worker_connections 19000; }}
http {{
  access_log off; tcp_nodelay on; keepalive_timeout 600s; keepalive_requests 1000000000;
  client_body_temp_path {own}/body; proxy_temp_path {own}/proxy; fastcgi_temp_path {own}/fastcgi;
  uwsgi_temp_path {own}/uwsgi; scgi_temp_path {own}/scgi;"
    )
}

fn komainu_conf(Ways { tcp, tls, once, socket }: &Ways, port: u16) -> String {
    let keep = "keep_alive = { connections = 1024 }";
    let socket = socket.display();
    let route = |path: &str, url: &str, more: &str| {
        format!("[[route]]\npath = \"{path}\"\nproxy = {{ to = \"{url}\", {keep}{more} }}\n")
    };
    format!("listen = \"127.0.0.1:{port}\"\nthreads = 1\n")
        + &route("/tcp", &format!("http://127.0.0.1:{tcp}"), "")
        + &route("/unix", &format!("unix:{socket}"), "")
        + &route("/tls", &format!("https://127.0.0.1:{tls}"), ", tls = { verify = false }")
        + &route("/once", &format!("https://127.0.0.1:{once}"), ", tls = { verify = false }")
}

fn nginx_conf(Ways { tcp, tls, once, socket }: &Ways, own: &Path, port: u16) -> String {
    let group = |name: &str, server: String| {
        format!("\n  upstream {name} {{ server {server}; keepalive 1024; keepalive_requests 1000000000; }}")
    };
    nginx_start(own)
        + &group("tcp", format!("127.0.0.1:{tcp}"))
        + &group("unix_socket", format!("unix:{}", socket.display()))
        + &group("tls", format!("127.0.0.1:{tls}"))
        + &group("once", format!("127.0.0.1:{once}"))
        + &format!(
            "\n  proxy_http_version 1.1; proxy_set_header Connection \"\"; proxy_set_header Host $host;
  server {{ listen 127.0.0.1:{port} backlog=4096;
    location /tcp {{ proxy_pass http://tcp; }}
    location /unix {{ proxy_pass http://unix_socket; }}
    location /tls {{ proxy_pass https://tls; }}
    location /once {{ proxy_pass https://once; }}
  }}\n}}\n"
        )
}

fn haproxy_conf(Ways { tcp, tls, once, socket }: &Ways, port: u16) -> String {
    format!(
        "global\n  nbthread 1\n  maxconn 9000\n
defaults
  mode http
  timeout connect 5s
  timeout client 600s
  timeout server 600s
  http-reuse always
frontend f
  bind 127.0.0.1:{port} backlog 4096
  use_backend tcp if {{ path /tcp }}
  use_backend unix if {{ path /unix }}
  use_backend tls if {{ path /tls }}
  use_backend once if {{ path /once }}
backend tcp
  server s 127.0.0.1:{tcp}
backend unix
  server s unix@{}
backend tls
  server s 127.0.0.1:{tls} ssl verify none
backend once
  server s 127.0.0.1:{once} ssl verify none\n",
        socket.display()
    )
}

fn h2o_conf(Ways { tcp, tls, once, socket }: &Ways, port: u16) -> String {
    // Asked to by root, h2o gives up root for an account that it must be told.
    let user = if rustix::process::getuid().is_root() { "user: root\n" } else { "" };
    format!(
        "{user}num-threads: 1
max-connections: 9000
http1-request-timeout: 600
proxy.timeout.keepalive: 600000
proxy.preserve-host: ON
proxy.ssl.verify-peer: OFF
listen: {{ host: 127.0.0.1, port: {port} }}
hosts:
  default:
    paths:
      /tcp: {{ proxy.reverse.url: \"http://127.0.0.1:{tcp}/tcp\" }}
      /unix: {{ proxy.reverse.url: \"http://[unix:{}]/unix\" }}
      /tls: {{ proxy.reverse.url: \"https://127.0.0.1:{tls}/tls\" }}
      /once: {{ proxy.reverse.url: \"https://127.0.0.1:{once}/once\" }}
",
        socket.display()
    )
}

fn report(entries: &[Entry], rows: &[&Row], options: &Options) -> (String, serde_json::Value) {
    let mut text = format!(
        "# Reverse proxy\n\n{}. One thread each, one nginx process as the backend of all, `wrk -t1`, {} rounds of {} s in \
         turns; medians.\n",
        procfs::machine(),
        options.rounds_or(3),
        options.seconds,
    );
    let mut kept = Vec::new();
    for (at, row) in rows.iter().enumerate() {
        let median = |entry: &Entry, of: fn(&Sample) -> f64| {
            stats::median(&entry.samples[at].iter().map(of).collect::<Vec<f64>>())
        };
        let peers = entries.iter().filter(|entry| entry.name != "komainu");
        let best = peers.filter_map(|entry| median(entry, Sample::cpu_us)).min_by(f64::total_cmp);
        let mut table = Table::new(&[
            "subject",
            "CPU µs/req",
            "of best peer",
            "req/s",
            "req/s per 1 % CPU",
            "p99",
            "errors",
            "aim",
        ]);
        for entry in entries {
            let Some(cpu) = median(entry, Sample::cpu_us) else { continue };
            let rate = median(entry, |sample| sample.load.rate()).unwrap_or_default();
            let p99 = median(entry, |sample| sample.load.p99_us as f64).unwrap_or_default();
            let errors: u64 = entry.samples[at].iter().map(|sample| sample.load.errors()).sum();
            let ratio = best.map(|best| cpu / best);
            let aim = row
                .aim
                .zip(ratio)
                .filter(|_| entry.name == "komainu")
                .map(|(aim, ratio)| format!("≤ {aim} {}", if ratio <= aim { "met" } else { "MISSED" }));
            table.row(vec![
                entry.name.to_string(),
                format!("{cpu:.2}"),
                ratio.map_or(String::new(), |ratio| format!("{ratio:.3}")),
                thousands(rate),
                // 1 % of a core is 10,000 µs in a second.
                thousands(10_000.0 / cpu),
                time_us(p99),
                errors.to_string(),
                aim.unwrap_or_default(),
            ]);
            kept.push(json!({ "row": row.name, "subject": entry.name, "cpu_us_per_request": cpu,
                "cpu_of_best_peer": ratio, "requests_per_s": rate, "p99_us": p99, "errors": errors }));
        }
        text += &format!("\n## {}\n\n{}", row.title, table.markdown());
    }
    for entry in entries {
        if let Err(why) = &entry.state {
            text += &format!("\n{}: out, {why}\n", entry.name);
        }
    }
    (
        text,
        json!({ "comparison": "proxy", "machine": procfs::machine(), "rounds": options.rounds_or(3),
        "seconds": options.seconds, "figures": kept }),
    )
}
