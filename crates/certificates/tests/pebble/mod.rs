//! Pebble, the ACME test server of Let's Encrypt, and its DNS server, on free local ports.
//!
//! `scripts/setup test` builds them if Go is installed. Without them, tests are skipped with a message.
#![allow(dead_code, clippy::unwrap_used, clippy::print_stderr, reason = "support of several tests")]

use std::collections::hash_map::RandomState;
use std::fs;
use std::hash::{BuildHasher, Hasher};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

/// Options of Pebble.
#[derive(Clone, Debug)]
pub(crate) struct PebbleOptions {
    /// Environment variables, such as `PEBBLE_WFE_NONCEREJECT`.
    pub(crate) env: Vec<(&'static str, &'static str)>,
    /// Lifetime of certificates in seconds.
    pub(crate) validity_s: u32,
    /// Ports for HTTP-01 and TLS-ALPN-01 validation.
    pub(crate) http_port: u16,
    pub(crate) tls_port: u16,
    /// Port of the local DNS server that it queries; `None` for its own.
    pub(crate) dns_port: Option<u16>,
    /// Key identifiers and base64url keys of external accounts; if there are any, accounts require one.
    pub(crate) external: Vec<(&'static str, &'static str)>,
}

impl Default for PebbleOptions {
    fn default() -> Self {
        PebbleOptions {
            env: Vec::new(),
            validity_s: 7_776_000,
            http_port: 1,
            tls_port: 1,
            dns_port: None,
            external: Vec::new(),
        }
    }
}

/// A running Pebble with its DNS server, stopped when it is dropped.
pub(crate) struct Pebble {
    children: Vec<Child>,
    folder: PathBuf,
    pub(crate) directory: String,
    management: u16,
    dns_management: u16,
}

/// Returns an unused port, reserved for this process until it ends. The ports are below those that the
/// kernel gives to connections and to listeners on port 0 (`net.ipv4.ip_local_port_range`), so none of them
/// is taken before the program for which it is meant listens.
pub(crate) fn free_port() -> u16 {
    static RESERVED: Mutex<Vec<UnixListener>> = Mutex::new(Vec::new());
    let first = RandomState::new().build_hasher().finish();
    for offset in 0..12_000 {
        let port = 20_000 + ((first + offset) % 12_000) as u16;
        let name = SocketAddr::from_abstract_name(format!("komainu-test-port-{port}")).unwrap();
        let Ok(reservation) = UnixListener::bind_addr(&name) else { continue };
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            RESERVED.lock().unwrap().push(reservation);
            return port;
        }
    }
    panic!("no port from 20000 to 31999 is free");
}

/// Waits until something listens on a port.
pub(crate) fn wait_for_port(port: u16) {
    let until = Instant::now() + Duration::from_secs(30);
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(Instant::now() < until, "nobody listens on port {port}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn program(name: &str) -> Option<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let target = target.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"));
    let path = target.join("pebble").join(name);
    path.is_file().then_some(path)
}

impl Pebble {
    /// Starts Pebble with its files in `folder`; `None`, with a message on stderr, if it is not built.
    pub(crate) fn start(folder: &Path, options: &PebbleOptions) -> Option<Pebble> {
        let (Some(pebble), Some(dns)) = (program("pebble"), program("pebble-challtestsrv")) else {
            eprintln!("SKIPPED: Pebble is not built: install Go, then scripts/setup test");
            return None;
        };
        fs::create_dir_all(folder).unwrap();
        let [acme, management, dns_port, dns_management] = [(); 4].map(|()| free_port());
        certificate(folder);
        let external: serde_json::Map<String, serde_json::Value> =
            options.external.iter().map(|(id, key)| ((*id).to_owned(), (*key).into())).collect();
        let profile =
            |name: &str| serde_json::json!({ "description": name, "validityPeriod": options.validity_s });
        let config = serde_json::json!({ "pebble": {
            "listenAddress": format!("127.0.0.1:{acme}"),
            "managementListenAddress": format!("127.0.0.1:{management}"),
            "certificate": folder.join("acme.pem"),
            "privateKey": folder.join("acme.key"),
            "httpPort": options.http_port,
            "tlsPort": options.tls_port,
            "externalAccountBindingRequired": !external.is_empty(),
            "externalAccountMACKeys": external,
            "domainBlocklist": ["blocked.komainu-test.com"],
            "retryAfter": { "authz": 1, "order": 1 },
            "keyAlgorithm": "ecdsa",
            "profiles": { "default": profile("default"), "shortlived": profile("shortlived") },
        }});
        fs::write(folder.join("pebble.json"), config.to_string()).unwrap();
        let log = |name: &str| Stdio::from(fs::File::create(folder.join(name)).unwrap());
        let dns = Command::new(dns)
            .args(["-http01", "", "-https01", "", "-tlsalpn01", "", "-doh", "", "-defaultIPv6", ""])
            .args(["-defaultIPv4", "127.0.0.1", "-dnsserver", &format!("127.0.0.1:{dns_port}")])
            .args(["-management", &format!("127.0.0.1:{dns_management}")])
            .stdout(log("dns.log"))
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let pebble = Command::new(pebble)
            .arg("-config")
            .arg(folder.join("pebble.json"))
            .args(["-dnsserver", &format!("127.0.0.1:{}", options.dns_port.unwrap_or(dns_port))])
            // Otherwise each validation sleeps up to 15 s; a test that needs this overrides it.
            .env("PEBBLE_VA_NOSLEEP", "1")
            .env("PEBBLE_WFE_NONCEREJECT", "0")
            .env("PEBBLE_AUTHZREUSE", "0")
            .envs(options.env.iter().copied())
            .stdout(log("pebble.log"))
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        wait_for_port(acme);
        wait_for_port(dns_management);
        Some(Pebble {
            children: vec![pebble, dns],
            folder: folder.to_owned(),
            directory: format!("https://127.0.0.1:{acme}/dir"),
            management,
            dns_management,
        })
    }

    /// Returns the root certificate for the directory's TLS certificate.
    pub(crate) fn directory_root(&self) -> PathBuf {
        self.folder.join("directory-root.pem")
    }

    /// Returns the issuing root as PEM; it differs at each start.
    pub(crate) fn issuing_root(&self) -> String {
        let output = Command::new("curl")
            // The management interface has a self-signed certificate.
            .args(["-sSfk"])
            .arg(format!("https://127.0.0.1:{}/roots/0", self.management))
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Creates a DNS hook script for Pebble's DNS server; returns its path.
    pub(crate) fn dns_hook(&self) -> PathBuf {
        let path = self.folder.join("hook");
        let port = self.dns_management;
        let script = format!(
            r#"#!/bin/sh
case $1 in add) what=set-txt;; remove) what=clear-txt;; esac
curl -sSf -d "{{\"host\":\"$2.\",\"value\":\"$3\"}}" http://127.0.0.1:{port}/$what
"#
        );
        fs::write(&path, script).unwrap();
        let mut permissions = fs::metadata(&path).unwrap().permissions();
        std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o755);
        fs::set_permissions(&path, permissions).unwrap();
        path
    }

    /// Sends a command about a name to the DNS server: `set-servfail`, `clear-servfail`.
    pub(crate) fn dns(&self, what: &str, name: &str) {
        let body = format!("{{\"host\":\"{name}.\"}}");
        let mut stream = TcpStream::connect(("127.0.0.1", self.dns_management)).unwrap();
        write!(
            stream,
            "POST /{what} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    }

    /// Returns Pebble's log.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.join("pebble.log")).unwrap()
    }

    /// Returns the number of certificates that it has issued.
    pub(crate) fn issued(&self) -> usize {
        self.log().matches("Issued certificate serial").count()
    }
}

impl Drop for Pebble {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Creates a certificate for the directory itself, and its root.
fn certificate(folder: &Path) {
    let root_key = KeyPair::generate().unwrap();
    let mut root = CertificateParams::default();
    root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let root_pem = root.self_signed(&root_key).unwrap().pem();
    let key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new(["127.0.0.1".to_owned(), "localhost".to_owned()]).unwrap();
    let leaf = leaf.signed_by(&key, &Issuer::new(root, root_key)).unwrap();
    fs::write(folder.join("directory-root.pem"), root_pem).unwrap();
    fs::write(folder.join("acme.pem"), leaf.pem()).unwrap();
    fs::write(folder.join("acme.key"), key.serialize_pem()).unwrap();
}
