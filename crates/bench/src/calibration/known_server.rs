//! Server of known behaviour, in a process of its own. The path of a request names the behaviour, and its query the run:
//! requests are numbered for each path and query.

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::pending;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use failure::{Failure, FailureContext};
use http::{Fields, Length, Status};
use net::client::PreciseTimer;
use net::{
    BindAddress, CertificateStore, Core, Exchange, Fault, ListenOptions, Options, RequestRecord, Server,
    ServerCertificate, Service, TlsAcceptor, TlsOptions, TlsSite,
};
use rcgen::{CertificateParams, KeyPair};
use rustix::process::{Signal, set_parent_process_death_signal};
use serde_json::{Value, json};

use crate::child_processes::{ProcessTree, TempFolder};
use crate::clock::{now_ns, process_cpu_ns, thread_cpu_ns};

/// Content of responses whose size does not matter.
pub(crate) const CONTENT: [u8; 100] = [b'x'; 100];
/// Number of requests of which one is answered late or never.
pub(crate) const ODD_INTERVAL: u64 = 100;
/// Timeout in milliseconds for the start.
const READY_MS_MAX: u64 = 20_000;
const QUERY_TIMEOUT: Duration = Duration::from_secs(30);

/// Arrivals of the requests of a run.
#[derive(Clone, Copy, Debug, Default)]
struct Arrivals {
    count: u64,
    first_ns: u64,
    last_ns: u64,
    /// Sum of the squares of the distances between two requests, in milliseconds squared.
    squares: f64,
}

impl Arrivals {
    /// Counts a request; returns its number, from 0.
    fn count(&mut self, now_ns: u64) -> u64 {
        if self.count == 0 {
            self.first_ns = now_ns;
        } else {
            self.squares += ((now_ns - self.last_ns) as f64 / 1e6).powi(2);
        }
        self.last_ns = now_ns;
        self.count += 1;
        self.count - 1
    }

    /// Returns the mean of the distances in milliseconds, and their standard deviation as a multiple of it.
    fn distances(&self) -> (f64, f64) {
        let count = self.count.saturating_sub(1).max(1) as f64;
        let mean = (self.last_ns - self.first_ns) as f64 / 1e6 / count;
        let variance = (self.squares / count - mean * mean).max(0.0);
        (mean, variance.sqrt() / mean.max(1e-9))
    }
}

/// The requests of all runs.
#[derive(Default)]
struct KnownBehaviour {
    runs: RefCell<HashMap<Vec<u8>, Arrivals>>,
    /// Memory taken for runs. It is kept, because a later run would use what was given back.
    held: RefCell<Vec<Vec<u8>>>,
}

impl Service for KnownBehaviour {
    async fn serve(&self, exchange: &mut Exchange<'_>) -> Result<(), Fault> {
        let request = exchange.request();
        if request.path() == b"/seen" {
            let text = self.seen(request.query().unwrap_or_default()).to_string();
            return exchange.reply(Status::OK, &Fields::new(), text.as_bytes()).await;
        }
        let path = String::from_utf8_lossy(request.path()).into_owned();
        let mut words = path.split('/').skip(1);
        let behaviour = words.next().unwrap_or_default();
        let mut amount = || words.next().and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
        let begun_ns = now_ns();
        let (number, first_ns) = {
            let mut runs = self.runs.borrow_mut();
            let arrivals = runs.entry(request.target().to_vec()).or_default();
            (arrivals.count(begun_ns), arrivals.first_ns)
        };
        let (core, none) = (exchange.core().clone(), Fields::new());
        let mut status = Status::OK;
        match behaviour {
            // Each after so many milliseconds.
            "delay" => wait_until(&core, begun_ns + amount() * 1_000_000).await?,
            // One in a hundred after so many milliseconds.
            "slow" if number % ODD_INTERVAL == ODD_INTERVAL - 1 => {
                wait_until(&core, begun_ns + amount() * 1_000_000).await?;
            }
            // One in a hundred never.
            "never" if number % ODD_INTERVAL == ODD_INTERVAL - 1 => pending().await,
            // So many requests, and then none.
            "first" if number >= amount() => pending().await,
            // The server stands still for so many milliseconds of so many, from the first request on.
            "stall" => {
                let (stall_ns, period_ns) = (amount() * 1_000_000, amount().max(1) * 1_000_000);
                let begin_ns = begun_ns - (begun_ns - first_ns) % period_ns;
                wait_until(&core, begin_ns + stall_ns).await?;
            }
            // Every other request fails.
            "half" if number % 2 == 1 => status = Status::INTERNAL_SERVER_ERROR,
            // The head at once, and the end after so many milliseconds.
            "late-end" => {
                exchange.begin(status, &none, Length::Known(2 * CONTENT.len() as u64));
                exchange.write(&CONTENT).await?;
                exchange.flush().await?;
                wait_until(&core, begun_ns + amount() * 1_000_000).await?;
                return exchange.write(&CONTENT).await;
            }
            // So many bytes.
            "size" => return exchange.reply(status, &none, &vec![b'x'; amount() as usize]).await,
            // So many bytes, whose end is that of the connection.
            "until-close" => {
                exchange.begin(status, &none, Length::Unknown);
                return exchange.write(&vec![b'x'; amount() as usize]).await;
            }
            // So many microseconds of CPU time.
            "burn" => {
                let until_ns = thread_cpu_ns() + amount() * 1_000;
                while thread_cpu_ns() < until_ns {}
            }
            // The first request takes so many MiB of memory.
            "hold" if number == 0 => self.held.borrow_mut().push(vec![1; amount() as usize * 1024 * 1024]),
            _ => {}
        }
        exchange.reply(status, &none, &CONTENT).await
    }

    fn log(&self, _: &RequestRecord<'_>) {}
}

impl KnownBehaviour {
    /// Returns what the server knows of a run.
    fn seen(&self, target: &[u8]) -> Value {
        let arrivals = self.runs.borrow().get(target).copied().unwrap_or_default();
        let (mean_ms, deviation) = arrivals.distances();
        json!({ "requests": arrivals.count, "distance_ms": mean_ms, "deviation": deviation,
            "cpu_ns": process_cpu_ns() })
    }
}

/// Waits until the monotonic clock shows this time.
async fn wait_until(core: &Core, at_ns: u64) -> Result<(), Fault> {
    Ok(PreciseTimer::new(core)?.wait_until_ns(at_ns).await?)
}

/// Serves until the parent process ends, after a line with the ports: the first for cleartext, the second for TLS and
/// HTTP/3.
///
/// # Errors
/// The server cannot start.
pub fn serve(out: &mut dyn Write) -> Result<(), Failure> {
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(std::io::Error::from)?;
    let certify = || {
        let key = KeyPair::generate()?;
        let certificate = CertificateParams::new(["localhost".to_owned()])?.self_signed(&key)?;
        Ok((certificate.pem(), key.serialize_pem()))
    };
    let (certificate, key) = certify().map_err(|error: rcgen::Error| Failure::new(error))?;
    let own = ServerCertificate::from_pem(certificate.as_bytes(), key.as_bytes())
        .map_err(|fault| Failure::new(format!("{fault:?}")))?;
    let acceptor = TlsAcceptor::new(CertificateStore::new());
    let site = TlsSite { certificates: vec![own], ..TlsSite::default() };
    acceptor.replace(&TlsOptions::default(), |_, _| Some(0), vec![Some(site)]).map_err(Failure::new)?;
    let bind = || BindAddress::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    let listens = [
        ListenOptions { allows_h2c: true, ..ListenOptions::from(bind()) },
        ListenOptions { is_tls: true, allows_http3: true, ..ListenOptions::from(bind()) },
    ];
    let options = Options { tls: Some(acceptor), ..Options::default() };
    let server = Server::start(&options, &listens, |_| Ok(KnownBehaviour::default()))?;
    let ports: Vec<String> = server.addresses().iter().filter_map(port_of).collect();
    writeln!(out, "ports {}", ports.join(" ")).and_then(|()| out.flush()).context("cannot print")?;
    server.join()?;
    Ok(())
}

fn port_of(address: &BindAddress) -> Option<String> {
    match address {
        BindAddress::Tcp(address) => Some(address.port().to_string()),
        _ => None,
    }
}

/// A running server of known behaviour; dropping it ends it.
pub(crate) struct CalibrationServer {
    _tree: ProcessTree,
    _folder: TempFolder,
    pub(crate) clear_port: u16,
    pub(crate) tls_port: u16,
}

/// Counts and times of a run, as the server knows them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) requests: f64,
    /// Mean distance of two requests in milliseconds.
    pub(crate) distance_ms: f64,
    /// Standard deviation of the distances, as a multiple of the mean.
    pub(crate) deviation: f64,
    /// CPU time of the server so far, by its own clock.
    pub(crate) cpu_ns: f64,
}

impl CalibrationServer {
    /// Starts `program` with these arguments, which call [`serve`].
    pub(crate) fn start(program: &Path, arguments: &[&str]) -> Result<CalibrationServer, Failure> {
        let folder = TempFolder::new("calibrate")?;
        let mut tree =
            ProcessTree::start(Command::new(program).args(arguments), &folder.path().join("server.log"))
                .with_context(|| program.display())?;
        let ports = tree.wait_until(READY_MS_MAX, |tree| {
            let output = tree.output();
            let mut ports = output.lines().find_map(|line| line.strip_prefix("ports "))?.split(' ');
            Some((ports.next()?.parse().ok()?, ports.next()?.parse().ok()?))
        });
        let Some((clear_port, tls_port)) = ports else {
            return Err(Failure::new(format!("the server does not start: {}", tree.output())));
        };
        Ok(CalibrationServer { _tree: tree, _folder: folder, clear_port, tls_port })
    }

    /// Asks for `target` over HTTP/1.1, without the load generator. Returns the head of the response and its content.
    fn ask(&self, target: &str) -> Result<(String, Vec<u8>), Failure> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.clear_port))?;
        stream.set_read_timeout(Some(QUERY_TIMEOUT))?;
        write!(stream, "GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
        let mut stream = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") && stream.read_line(&mut head)? > 0 {}
        let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")?.parse().ok());
        let mut content = vec![0; length.ok_or("a response of the known server has no length")?];
        stream.read_exact(&mut content)?;
        Ok((head, content))
    }

    /// Returns the size of a response over HTTP/1.1 on a kept connection.
    pub(crate) fn kept_response_bytes(&self, target: &str) -> Result<f64, Failure> {
        let (head, content) = self.ask(target)?;
        Ok((head.len() + content.len()) as f64)
    }

    /// Returns what the server knows of the run with this target.
    pub(crate) fn seen(&self, target: &str) -> Result<Seen, Failure> {
        let (_, content) = self.ask(&format!("/seen?{target}"))?;
        let seen: Value = serde_json::from_slice(&content).map_err(Failure::new)?;
        let number = |name: &str| seen[name].as_f64().unwrap_or(f64::NAN);
        Ok(Seen {
            requests: number("requests"),
            distance_ms: number("distance_ms"),
            deviation: number("deviation"),
            cpu_ns: number("cpu_ns"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_of_arrivals_have_their_mean_and_deviation() {
        let mut even = Arrivals::default();
        let numbers: Vec<u64> = (0..5).map(|at| even.count(1_000_000_000 + at * 5_000_000)).collect();
        assert_eq!(numbers, [0, 1, 2, 3, 4]);
        assert_eq!(even.distances(), (5.0, 0.0));
        let mut uneven = Arrivals::default();
        [0, 2, 10, 12, 20].into_iter().for_each(|at| _ = uneven.count(at * 1_000_000));
        assert_eq!(uneven.distances(), (5.0, 0.6));
        assert_eq!(Arrivals::default().distances(), (0.0, 0.0));
    }
}
