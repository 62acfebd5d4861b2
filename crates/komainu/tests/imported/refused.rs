//! Configurations whose access restrictions are easily lost in a translation: requests that nginx refuses are
//! refused here, and marked requests get the same status.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

/// Test cases.
const CASES: &str = include_str!("refused.txt");
/// Number of cases that run concurrently.
const RUNNERS: usize = 3;
/// Time limit for the start of a server, generous for slow machines.
const PATIENCE: Duration = Duration::from_secs(60);

/// An nginx configuration and requests.
struct RefusedCase {
    name: &'static str,
    servers: &'static str,
    requests: Vec<&'static str>,
}

fn cases() -> Vec<RefusedCase> {
    let of = |text: &'static str| {
        let mut lines = text.lines();
        let name = lines.next().unwrap();
        let servers = lines.next().unwrap();
        let requests = lines.filter_map(|line| line.strip_prefix("> ")).collect();
        RefusedCase { name, servers, requests }
    };
    CASES.split("\n# ").skip(1).map(of).collect()
}

struct RunningServer(Child);

impl Drop for RunningServer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An address of this process: a port that is free at one that all tests share may be taken a moment later.
fn host() -> Ipv4Addr {
    let id = std::process::id();
    Ipv4Addr::new(127, 64 + (id >> 16) as u8 % 64, (id >> 8) as u8, id as u8)
}

/// Another address of this process.
fn other_host() -> Ipv4Addr {
    let [first, second, third, fourth] = host().octets();
    Ipv4Addr::new(first, second + 64, third, fourth)
}

/// A port of [`host`] that no other case gets.
fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(20_000);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn await_start(server: &mut RunningServer, port: u16, what: &str) -> Result<(), String> {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        if TcpStream::connect((host(), port)).is_ok() {
            return Ok(());
        }
        if server.0.try_wait().unwrap().is_some() {
            return Err(format!("{what} ended"));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Err(format!("{what} does not listen"))
}

/// Returns the status of a request over TLS, which curl sends.
fn tls_status(address: IpAddr, port: u16, request: &str) -> Result<u16, String> {
    let (target, host) = request.split_once("|Host: ").unwrap_or((request, "h"));
    let mut command = Command::new("curl");
    command.args(["-sk", "-o", "/dev/null", "-w", "%{http_code}", "--max-time", "60", "--resolve"]);
    command.args([format!("{host}:{port}:{address}"), format!("https://{host}:{port}{target}")]);
    let output = command.output().map_err(|error| format!("curl: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.parse().map_err(|_| format!("port {port}, {request}: curl wrote {text:?}"))
}

/// Returns the status of a request written as `[tls ][@ADDRESS ][METHOD ]TARGET|Field: value|…`; the defaults are the
/// address of the case, GET and `Host: h`. `1.0` in place of the method is GET by HTTP/1.0, without Host. 0 stands for a connection that ends without a response.
fn status(port: u16, request: &str) -> Result<u16, String> {
    let (request, is_tls) = request.strip_prefix("tls ").map_or((request, false), |rest| (rest, true));
    let (address, request) = match request.strip_prefix('@').and_then(|rest| rest.split_once(' ')) {
        Some(("OTHER", request)) => (IpAddr::V4(other_host()), request),
        Some((address, request)) => (address.parse().unwrap(), request),
        None => (IpAddr::V4(host()), request),
    };
    if is_tls {
        return tls_status(address, port, request);
    }
    let mut parts = request.split('|');
    let first = parts.next().unwrap();
    let (method, target) = first.split_once(' ').unwrap_or(("GET", first));
    let (method, version) = if method == "1.0" { ("GET", "1.0") } else { (method, "1.1") };
    let mut head = format!("{method} {target} HTTP/{version}\r\n");
    let fields: Vec<&str> = parts.collect();
    if version == "1.1" && !fields.iter().any(|field| field.starts_with("Host:")) {
        head.push_str("Host: h\r\n");
    }
    fields.iter().for_each(|field| head.push_str(&format!("{field}\r\n")));
    if method == "POST" {
        head.push_str("Content-Length: 0\r\n");
    }
    head.push_str("Connection: close\r\n\r\n");
    let connected = TcpStream::connect(SocketAddr::from((address, port)));
    let mut stream = connected.map_err(|error| format!("port {port}, {request}: {error}"))?;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = Vec::new();
    if let Err(error) = stream.read_to_end(&mut answer)
        && error.kind() == ErrorKind::WouldBlock
    {
        return Err(format!("port {port}, {request}: no end after {PATIENCE:?}"));
    }
    Ok(answer.get(9..12).and_then(|code| std::str::from_utf8(code).ok()?.parse().ok()).unwrap_or(0))
}

fn written(folder: &Path, case: &RefusedCase, port: u16) -> PathBuf {
    let own = folder.display();
    let address = format!("{}:{port}", host());
    let certificate = format!("ssl_certificate {own}/cert.pem; ssl_certificate_key {own}/key.pem;");
    let servers = case
        .servers
        .replace("LISTEN", &format!("listen {address};"))
        .replace("OWN_ADDRESS", &address)
        .replace("OTHER_ADDRESS", &format!("{}:{port}", other_host()))
        .replace("PORT", &port.to_string())
        .replace("CERTIFICATE", &certificate)
        .replace("FOLDER", &format!("{own}/www"));
    let text = format!(
        r"daemon off;
master_process off;
pid {own}/nginx.pid;
error_log {own}/nginx.log;
events {{}}
http {{
access_log off;
proxy_temp_path {own}/a; client_body_temp_path {own}/b; fastcgi_temp_path {own}/c; uwsgi_temp_path {own}/d; scgi_temp_path {own}/e;
root {own}/www;
{servers}
}}
"
    );
    let path = folder.join(format!("{port}.conf"));
    std::fs::write(&path, text).unwrap();
    path
}

/// Returns the faults of the translation of a case.
fn faults(folder: &Path, case: &RefusedCase) -> Result<Vec<String>, String> {
    let old = free_port();
    let new = free_port();
    let nginx = Command::new("/usr/sbin/nginx").arg("-c").arg(written(folder, case, old)).spawn();
    let mut nginx = RunningServer(nginx.unwrap());
    let imported =
        import::nginx::import(&written(folder, case, new), None).map_err(|error| error.to_string())?;
    let config = folder.join("komainu.toml");
    let toml =
        imported.toml.replace("/var/log/nginx/access.log", &folder.join("access.log").display().to_string());
    std::fs::write(&config, &toml).unwrap();
    let komainu = Command::new(env!("CARGO_BIN_EXE_komainu"))
        .args(["start", "-c"])
        .arg(&config)
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(folder.join("komainu.log")).unwrap())
        .spawn();
    let mut komainu = RunningServer(komainu.unwrap());
    await_start(&mut nginx, old, "nginx")?;
    let log = || std::fs::read_to_string(folder.join("komainu.log")).unwrap();
    await_start(&mut komainu, new, "komainu").map_err(|error| format!("{error}: {}\n{toml}", log()))?;
    let mut found = Vec::new();
    for request in &case.requests {
        let (request, is_alike) = request.strip_prefix('=').map_or((*request, false), |rest| (rest, true));
        let before = status(old, request)?;
        let after = status(new, request).map_err(|error| {
            format!("{error}; its process: {:?}; its log: {}\n{toml}", komainu.0.try_wait(), log())
        })?;
        let is_opened = (before >= 400 || before == 0) && (1..400).contains(&after);
        if is_opened || is_alike && before != after {
            found.push(format!("{request}: nginx {before}, komainu {after}"));
        }
    }
    if !found.is_empty() {
        found.push(toml);
    }
    Ok(found)
}

#[test]
fn requests_refused_by_nginx_are_refused_after_import() {
    let filter = std::env::var("KOMAINU_CASE").unwrap_or_default();
    let cases: Vec<RefusedCase> = cases().into_iter().filter(|case| case.name.contains(&filter)).collect();
    let certificate = rcgen::generate_simple_self_signed(["h".to_owned()]).unwrap();
    let key = |one: &rcgen::CertifiedKey<rcgen::KeyPair>| one.signing_key.serialize_pem();
    let next = Mutex::new(cases.iter().enumerate());
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..RUNNERS {
            scope.spawn(|| {
                loop {
                    let Some((at, case)) = next.lock().unwrap().next() else { return };
                    let folder =
                        std::env::temp_dir().join(format!("komainu-refused-{}-{at}", std::process::id()));
                    std::fs::create_dir_all(folder.join("www/sub")).unwrap();
                    for name in [
                        "index.html",
                        "page.html",
                        "page.php",
                        "index.php",
                        "sub/index.html",
                        "sub/index.php",
                    ] {
                        std::fs::write(folder.join("www").join(name), "page").unwrap();
                    }
                    let user = "u:$2y$05$GCLoBDaDVIxLT7kZCPDwHOKgyBEGbJBlY2IxyfHWzgmoMjmCsXCFK\n";
                    for (name, content) in [
                        ("cert.pem", certificate.cert.pem()),
                        ("key.pem", key(&certificate)),
                        ("www/.htpasswd", user.to_owned()),
                    ] {
                        std::fs::write(folder.join(name), content).unwrap();
                    }
                    let outcome = faults(&folder, case);
                    let _ = std::fs::remove_dir_all(&folder);
                    let faults = outcome.unwrap_or_else(|error| vec![error]);
                    if !faults.is_empty() {
                        failed.lock().unwrap().push(format!("{}:\n  {}", case.name, faults.join("\n  ")));
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "{} of {}:\n{}", failed.len(), cases.len(), failed.join("\n"));
}
