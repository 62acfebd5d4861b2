//! A certificate renewer without a server; the certificates and log lines that it produces are recorded.
#![allow(dead_code, clippy::unwrap_used, reason = "support of several tests")]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use certificates::directives::{AcmeChallenge, AcmeDirectory};
use certificates::{
    CertificateRenewer, CertificateSink, CertificateStatus, HttpChallenges, Intervals, Options,
    RenewerEnvironment, Subject,
};
use failure::Failure;

use crate::pebble::{Pebble, PebbleOptions};

/// Sink that records certificates and log lines.
#[derive(Default)]
pub(crate) struct Served {
    installed: Mutex<Vec<String>>,
    log: Mutex<Vec<String>>,
    /// Whether no certificate can be served.
    pub(crate) refuses: AtomicBool,
}

impl Served {
    pub(crate) fn installs(&self, name: &str) -> usize {
        self.installed.lock().unwrap().iter().filter(|one| *one == name).count()
    }

    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().join("\n")
    }
}

impl CertificateSink for Served {
    fn install(&self, name: &str, pem: &str) -> Result<(), Failure> {
        assert!(pem.contains("PRIVATE KEY"));
        if self.refuses.load(Ordering::Relaxed) {
            return Err("no certificate is served in this test".into());
        }
        self.installed.lock().unwrap().push(name.to_owned());
        Ok(())
    }

    fn remove(&self, name: &str) {
        self.installed.lock().unwrap().retain(|one| one != name);
    }

    fn set_challenge(&self, _: &str, _: &str) -> Result<(), Failure> {
        Err("no TLS in this test".into())
    }

    fn remove_challenge(&self, _: &str) {}

    fn info(&self, text: &str) {
        self.log.lock().unwrap().push(format!("info {text}"));
    }

    fn warn(&self, text: &str) {
        self.log.lock().unwrap().push(format!("warn {text}"));
    }

    fn error(&self, text: &str) {
        self.log.lock().unwrap().push(format!("error {text}"));
    }
}

/// Temporary folder of a test, removed when it is dropped.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Scratch {
        let folder = std::env::temp_dir().join(format!("komainu-acme-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        Scratch(folder)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Answers HTTP-01 challenges on a free port with alternating tables: `tables[request number % len]`.
pub(crate) fn answer_challenges(tables: Vec<HttpChallenges>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for (number, client) in listener.incoming().enumerate() {
            let mut client = client.unwrap();
            let mut line = String::new();
            let _ = BufReader::new(&client).read_line(&mut line);
            let path = line.split(' ').nth(1).unwrap_or_default();
            let (status, body) = match tables[number % tables.len()].response(path.as_bytes()) {
                Some(body) => ("200 OK", body),
                None => ("404 Not Found", String::new()),
            };
            let _ = write!(
                client,
                "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            );
        }
    });
    port
}

/// Returns an environment with short waits and the system's clock, shifted by `moved_s` seconds.
pub(crate) fn environment(moved_s: &Arc<AtomicU64>) -> RenewerEnvironment {
    let moved_s = moved_s.clone();
    let short = Duration::from_millis(100);
    RenewerEnvironment {
        now: Arc::new(move || SystemTime::now() + Duration::from_secs(moved_s.load(Ordering::Relaxed))),
        random: Arc::new(|| 0),
        intervals: Intervals {
            check_interval: Duration::from_millis(50),
            retry_first: short,
            retry_max: 4 * short,
            refused_first: short,
            refused_max: 4 * short,
            poll: short,
            order_max: Duration::from_secs(30),
            request_max: Duration::from_secs(10),
            hook_max: Duration::from_secs(10),
            token_read_time: Duration::from_millis(600),
            renewal_info: short..=Duration::from_secs(3_600),
        },
        host: "test".into(),
    }
}

pub(crate) fn options(scratch: &Scratch, pebbles: &[&Pebble]) -> Options {
    Options {
        directories: pebbles.iter().map(|pebble| AcmeDirectory::at(&pebble.directory)).collect(),
        email: Some("admin@komainu-test.com".into()),
        challenges: vec![AcmeChallenge::Http01],
        dns: None,
        ask: None,
        state_folder: scratch.0.join("state"),
        cluster: None,
        roots_pem: pebbles
            .first()
            .map(|pebble| fs::read(pebble.directory_root()).unwrap())
            .unwrap_or_default(),
    }
}

/// A renewer with its recording sink.
pub(crate) struct Rig {
    pub(crate) renewer: CertificateRenewer,
    pub(crate) served: Arc<Served>,
    pub(crate) moved_s: Arc<AtomicU64>,
}

impl Rig {
    pub(crate) fn start(options: Options, names: &[&str], challenges: &HttpChallenges) -> Rig {
        let served = Arc::new(Served::default());
        let moved_s = Arc::new(AtomicU64::new(0));
        let subjects = names.iter().map(|name| Subject::parse(name).unwrap()).collect();
        let environment = environment(&moved_s);
        let renewer =
            CertificateRenewer::start(options, subjects, environment, served.clone(), challenges.clone())
                .unwrap();
        Rig { renewer, served, moved_s }
    }

    /// Waits until `done` returns true for the status of a name.
    pub(crate) fn until(
        &self,
        name: &str,
        what: &str,
        done: impl Fn(&CertificateStatus) -> bool,
    ) -> CertificateStatus {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let statuses = self.renewer.statuses();
            let status = statuses.iter().find(|status| status.name == name);
            if let Some(status) = status.filter(|status| done(status)) {
                return status.clone();
            }
            assert!(Instant::now() < until, "{what}: {status:#?}\n{}", self.served.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn obtained(&self, name: &str) -> CertificateStatus {
        self.until(name, "a certificate", |status| status.info.is_some())
    }
}

/// Starts a Pebble that fetches challenge responses from these tables; `None` if Pebble is not built.
pub(crate) fn pebble(
    scratch: &Scratch,
    tables: Vec<HttpChallenges>,
    options: PebbleOptions,
) -> Option<Pebble> {
    Pebble::start(
        &scratch.0.join("pebble"),
        &PebbleOptions { http_port: answer_challenges(tables), ..options },
    )
}
