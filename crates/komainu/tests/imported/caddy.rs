//! `import caddy` compared with Caddy itself: generated Caddyfiles run in Caddy and, imported, in Komainu. Requests that
//! Caddy refuses must not be answered, and every difference must be named in the report.
//!
//! `KOMAINU_CADDY_SEEDS=from..to` runs other seeds than the default ones; `KOMAINU_CADDY_SEED_TEXT=N` prints the site of
//! one seed and its translation; `KOMAINU_CADDY=PROGRAM` runs another Caddy than that of `scripts/setup test`.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use import::ImportVerdict;

use crate::caddy_grammar::site;

/// Seeds run by default.
const SEEDS: std::ops::Range<u64> = 0..60;
/// Further seeds, each of which has revealed a fault.
const SAMPLES: [u64; 8] = [88, 120, 122, 157, 415, 445, 452, 556];
/// Number of sites that one pair of servers serves.
const BATCH: usize = 20;
/// Number of pairs of servers that run concurrently.
const PAIRS: usize = 3;
/// Maximum number of differences printed for each seed.
const SHOWN_MAX: usize = 4;
/// Time limit for the start of a server and for an answer, generous for slow machines.
const PATIENCE: Duration = Duration::from_secs(60);

/// Targets of requests.
const TARGETS: [&str; 34] = [
    "/",
    "/a",
    "/a/",
    "/a/b.txt",
    "/A/b.txt",
    "/a/b",
    "/a/missing",
    "/ab",
    "/a.txt",
    "/private",
    "/private/",
    "/private/keys.json",
    "/PRIVATE/keys.json",
    "/private/keys.json/",
    "/privatex",
    "/public/x.txt",
    "/sub",
    "/sub/",
    "/sub/x.txt",
    "/secret.txt",
    "/sub/secret.txt",
    "/Secret.TXT",
    "/api/x?token=1",
    "/api/a/b.txt",
    "/api/private/keys.json",
    "/api",
    "/missing",
    "/page",
    "/index.html",
    "/%70rivate/keys.json",
    "/private%2Fkeys.json",
    "//private/keys.json",
    "/a/../private/keys.json",
    "/maintenance.html?token=2",
];
/// Methods, fields and contents of requests.
const KINDS: [(&str, &str, &str); 5] = [
    ("GET", "", ""),
    ("GET", "X-Auth: yes\r\nX-Key: k\r\n", ""),
    ("POST", "X-Key: no\r\nUser-Agent: a bot\r\n", "12345678901234567890"),
    ("HEAD", "User-Agent: x\r\n", ""),
    ("DELETE", "X-Auth: no\r\n", ""),
];
/// Files that sites serve.
const FILES: [&str; 12] = [
    "index.html",
    "a.txt",
    "a/b.txt",
    "a/page.txt",
    "private/keys.json",
    "public/x.txt",
    "sub/index.html",
    "sub/x.txt",
    "sub/secret.txt",
    "secret.txt",
    "page.html",
    "public/private/keys.json",
];

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An answer, as far as it is compared.
#[derive(Clone, Debug, Default, PartialEq)]
struct Answer {
    /// 0 for a connection that ends without one.
    status: u16,
    fields: Vec<(String, String)>,
    content: String,
}

fn answer(address: SocketAddr, request: &str) -> Result<Answer, String> {
    let fault = |error: std::io::Error| format!("{address}: {error}");
    let mut stream = TcpStream::connect(address).map_err(fault)?;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let _ = stream.write_all(request.as_bytes());
    let mut bytes = Vec::new();
    if let Err(error) = stream.read_to_end(&mut bytes)
        && error.kind() == std::io::ErrorKind::WouldBlock
    {
        return Err(fault(error));
    }
    let text = String::from_utf8_lossy(&bytes);
    let Some((head, content)) = text.split_once("\r\n\r\n") else { return Ok(Answer::default()) };
    let status = head.get(9..12).and_then(|code| code.parse().ok()).unwrap_or(0);
    const COMPARED: [&str; 5] = ["location", "x-a", "x-down", "x-path", "cache-control"];
    let fields = head.lines().filter_map(|line| line.split_once(':'));
    let mut fields: Vec<(String, String)> = fields
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .filter(|(name, _)| COMPARED.contains(&name.as_str()))
        .collect();
    fields.sort();
    Ok(Answer { status, fields, content: content.to_owned() })
}

/// Starts an upstream server that answers with what it received, and 401 at `/auth` without `X-Auth: yes`.
fn upstream() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else { continue };
            std::thread::spawn(move || serve_upstream(stream));
        }
    });
    address
}

fn serve_upstream(mut stream: TcpStream) {
    let mut bytes = Vec::new();
    let mut chunk = [0; 4096];
    let _ = stream.set_read_timeout(Some(PATIENCE));
    let head_end = loop {
        if let Some(at) = bytes.windows(4).position(|part| part == b"\r\n\r\n") {
            break at;
        }
        match stream.read(&mut chunk) {
            Ok(count) if count > 0 => bytes.extend(&chunk[..count]),
            _ => return,
        }
    };
    let head = String::from_utf8_lossy(&bytes[..head_end]).into_owned();
    let field = |name: &str| {
        head.lines()
            .filter_map(|line| line.split_once(": "))
            .find(|(own, _)| own.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.to_owned())
    };
    // The rest of the content, so that the connection is not reset.
    let length: usize = field("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    while bytes.len() < head_end + 4 + length {
        match stream.read(&mut chunk) {
            Ok(count) if count > 0 => bytes.extend(&chunk[..count]),
            _ => break,
        }
    }
    let start = head.lines().next().unwrap_or("").to_owned();
    let is_auth = start.contains(" /auth ");
    let may_pass = field("x-auth").as_deref() == Some("yes");
    let status = if is_auth && !may_pass { "401 Unauthorized" } else { "200 OK" };
    let content = format!("{start} {:?} {:?} {:?}", field("x-key"), field("x-up"), field("x-user"));
    let length = content.len();
    let content = if start.starts_with("HEAD") { "" } else { &content };
    let _ = write!(
        stream,
        "HTTP/1.1 {status}\r\nX-Down: up\r\nX-User: u\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{content}"
    );
}

/// Path of Caddy: `KOMAINU_CADDY`, or what `scripts/setup test` installs.
fn program() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("KOMAINU_CADDY") {
        return Some(PathBuf::from(path));
    }
    let path = Path::new(env!("CARGO_BIN_EXE_komainu")).ancestors().nth(2).unwrap().join("venv/bin/caddy");
    if path.is_file() {
        return Some(path);
    }
    let missing = "caddy is not installed; scripts/setup test brings it";
    assert!(std::env::var_os("KOMAINU_TEST_ALL").is_none(), "{missing}");
    eprintln!("SKIPPED: {missing}");
    None
}

/// Runs Caddy's adapter on a Caddyfile.
fn adapted(program: &Path, path: &Path) -> Result<String, String> {
    let output = Command::new(program)
        .args(["adapt", "--pretty", "--adapter", "caddyfile", "--config"])
        .arg(path)
        .output();
    let output = output.map_err(|error| format!("caddy: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    Ok(String::from_utf8(output.stdout).unwrap())
}

/// Whether Caddy takes a configuration when it starts, which is more than its adapter asks for.
fn may_start(program: &Path, json: &Path) -> bool {
    let mut command = Command::new(program);
    command.args(["validate", "--config"]).arg(json).env("HOME", json.parent().unwrap());
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

fn await_start(server: &mut Server, address: SocketAddr, log: &Path) -> Result<(), String> {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        if TcpStream::connect(address).is_ok() {
            return Ok(());
        }
        if server.0.try_wait().unwrap().is_some() {
            return Err(format!("a server ended: {}", std::fs::read_to_string(log).unwrap_or_default()));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Err("a server does not listen".to_owned())
}

/// Returns the Caddyfile of some seeds.
fn caddyfile(seeds: &[u64], address: SocketAddr, folder: &str, upstream: &str) -> String {
    let mut text = format!("{{\n\tadmin off\n\tauto_https off\n\tdefault_bind {}\n}}\n", address.ip());
    seeds.iter().for_each(|seed| text.push_str(&site(*seed, address.port(), folder, upstream)));
    text
}

/// Whether the report names a difference of each site, by the seeds in the hosts of Caddy's routes.
fn named_seeds(json: &str, imported: &import::ImportResult) -> BTreeMap<u64, bool> {
    let config: serde_json::Value = serde_json::from_str(json).unwrap();
    let servers = config["apps"]["http"]["servers"].as_object().unwrap();
    let mut found = BTreeMap::new();
    for (name, server) in servers {
        for (at, route) in server["routes"].as_array().into_iter().flatten().enumerate() {
            let host = route["match"][0]["host"][0].as_str().unwrap_or("");
            let Some(seed) = host.strip_prefix('s').and_then(|rest| rest.split('x').next()) else { continue };
            let place = format!("servers.{name}.routes[{at}].");
            let is_of_site = |remark: &import::ImportRemark| {
                remark.verdict != ImportVerdict::Translated && remark.directive.contains(&place)
            };
            *found.entry(seed.parse().unwrap()).or_default() |= imported.remarks.iter().any(is_of_site);
        }
    }
    found
}

/// Returns the seeds of a batch whose sites Caddy takes, with their configuration in JSON. Sites that it refuses are left
/// out.
fn accepted(
    program: &Path,
    seeds: &[u64],
    write: impl Fn(&[u64]) -> String,
    folder: &Path,
) -> Result<String, String> {
    let path = folder.join("Caddyfile");
    let json_path = folder.join("caddy.json");
    let adapt = |seeds: &[u64]| -> Result<String, String> {
        std::fs::write(&path, write(seeds)).unwrap();
        let json = adapted(program, &path)?;
        std::fs::write(&json_path, &json).unwrap();
        if may_start(program, &json_path) { Ok(json) } else { Err(format!("Caddy refuses {seeds:?}")) }
    };
    if let Ok(json) = adapt(seeds) {
        return Ok(json);
    }
    let taken: Vec<u64> = seeds.iter().copied().filter(|seed| adapt(&[*seed]).is_ok()).collect();
    println!("{} of {} sites are refused by Caddy", seeds.len() - taken.len(), seeds.len());
    adapt(&taken)
}

/// Whether answers may differ without a remark of the report.
fn is_general_difference(target: &str, old: &Answer, new: &Answer) -> bool {
    // Requests that no route answers are 200 without content in Caddy.
    old.status == 200 && old.content.is_empty() && new.status == 404
        // Dots and slashes in paths are removed before routes are searched.
        || target.contains("..") || target.starts_with("//") || target.contains("%2F")
        // Files answer GET and HEAD alone; Caddy sends them for POST too.
        || old.status < 400 && new.status == 405
        // A redirect has another page.
        || (300..400).contains(&old.status) && (old.status, &old.fields) == (new.status, &new.fields)
        // Escapes that need none are passed on as they came.
        || target.contains("%70") && new.content.replace("%70", "p") == old.content
        // Both redirect to the folder with the slash, by another status and form.
        || target_with_slash(target, old).is_some() && target_with_slash(target, new).is_some()
        // Caddy redirects to a file without the slash behind it.
        || old.status == 308 && target.ends_with('/') && new.status == 404
}

/// Returns the target to which an answer redirects, if that is the same one with a slash at the end of its path.
fn target_with_slash(target: &str, answer: &Answer) -> Option<String> {
    let (path, query) = target.split_once('?').map_or((target, None), |(path, query)| (path, Some(query)));
    let with_slash = query.map_or(format!("{path}/"), |query| format!("{path}/?{query}"));
    let location = answer.fields.iter().find(|(name, _)| name == "location")?;
    (matches!(answer.status, 301 | 302 | 307 | 308) && location.1.ends_with(&with_slash))
        .then_some(with_slash)
}

/// Whether Komainu sends what Caddy refuses; or a file of a protected name, or an answer of the upstream server, in place
/// of something else.
fn is_opened(old: &Answer, new: &Answer) -> bool {
    let is_refused = old.status >= 400 || old.status == 0;
    let is_sent = (200..300).contains(&old.status) && (200..300).contains(&new.status);
    let is_of_upstream = |answer: &Answer| answer.content.contains(" HTTP/1.1 ");
    let is_protected_file = new.content.starts_with("file ")
        && ["private", "secret"].iter().any(|part| new.content.contains(part));
    is_refused && (200..400).contains(&new.status)
        || is_sent && is_protected_file && old.content != new.content
        || is_sent && is_of_upstream(new) && !is_of_upstream(old)
}

type Failures = BTreeMap<u64, Vec<String>>;

fn compare_batch(
    program: &Path,
    seeds: &[u64],
    upstream: SocketAddr,
    requests: &AtomicUsize,
) -> Result<Failures, String> {
    static NEXT: AtomicU16 = AtomicU16::new(20_000);
    let id = std::process::id();
    let old = SocketAddr::from((
        [127, 64 + (id >> 16) as u8 % 64, (id >> 8) as u8, id as u8],
        NEXT.fetch_add(1, Ordering::Relaxed),
    ));
    let new = SocketAddr::from(([127, 128 + (id >> 16) as u8 % 64, (id >> 8) as u8, id as u8], old.port()));
    let folder = std::env::temp_dir().join(format!("komainu-imported-caddy-{id}-{}", old.port()));
    for name in FILES {
        let path = folder.join("www").join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, format!("file {name}\n")).unwrap();
    }
    std::fs::create_dir_all(folder.join("empty")).unwrap();
    let shown = folder.display().to_string();
    let to = upstream.to_string();
    let json = accepted(program, seeds, |seeds| caddyfile(seeds, old, &shown, &to), &folder)?;
    let old_path = folder.join("caddy.json");
    let new_path = folder.join("moved.json");
    std::fs::write(&new_path, json.replace(&old.to_string(), &new.to_string())).unwrap();
    let imported = import::caddy::import(&new_path).map_err(|error| error.to_string())?;
    let named = named_seeds(&json, &imported);
    let toml_path = folder.join("komainu.toml");
    std::fs::write(&toml_path, &imported.toml).unwrap();
    let log = |name: &str| folder.join(name);
    let output = |name: &str| Stdio::from(std::fs::File::create(log(name)).unwrap());
    let mut caddy = Command::new(program);
    caddy.args(["run", "--config"]).arg(&old_path).env("HOME", &folder).stdout(Stdio::null());
    let mut caddy = Server(caddy.stderr(output("caddy.log")).spawn().unwrap());
    let mut komainu = Command::new(env!("CARGO_BIN_EXE_komainu"));
    komainu.args(["start", "-c"]).arg(&toml_path).stdout(Stdio::null()).stderr(output("komainu.log"));
    let mut komainu = Server(komainu.spawn().unwrap());
    await_start(&mut caddy, old, &log("caddy.log"))?;
    await_start(&mut komainu, new, &log("komainu.log"))
        .map_err(|error| format!("{error}\n{}", imported.toml))?;
    let mut failed = Failures::new();
    for (seed, is_named) in &named {
        for target in TARGETS {
            for (method, fields, content) in KINDS {
                let length = if content.is_empty() {
                    String::new()
                } else {
                    format!("Content-Length: {}\r\n", content.len())
                };
                let request_of = |seed: &u64, target: &str| {
                    format!(
                        "{method} {target} HTTP/1.1\r\nHost: s{seed}x.test\r\n{fields}{length}Connection: close\r\n\r\n{content}"
                    )
                };
                let request = request_of(seed, target);
                requests.fetch_add(1, Ordering::Relaxed);
                let before = answer(old, &request)?;
                let after = answer(new, &request)?;
                if before == after {
                    continue;
                }
                // A folder's redirect is judged by what it leads to.
                let led = match target_with_slash(target, &after) {
                    Some(next) if before.status != after.status => answer(new, &request_of(seed, &next))?,
                    _ => after.clone(),
                };
                let is_opened = is_opened(&before, &led);
                let is_alike = before.status >= 400 && after.status >= 400;
                let is_known = *is_named || is_alike || is_general_difference(target, &before, &after);
                if !is_opened && is_known {
                    continue;
                }
                let why = if is_opened { "opened" } else { "not named" };
                failed.entry(*seed).or_default().push(format!(
                    "{why}: {method} {target} {fields:?}: Caddy {before:?}, Komainu {after:?}"
                ));
            }
        }
    }
    drop((caddy, komainu));
    let _ = std::fs::remove_dir_all(&folder);
    Ok(failed)
}

fn seeds() -> Vec<u64> {
    let Ok(text) = std::env::var("KOMAINU_CADDY_SEEDS") else { return SEEDS.chain(SAMPLES).collect() };
    let (from, to) = text.split_once("..").unwrap();
    (from.parse().unwrap()..to.parse().unwrap()).collect()
}

#[test]
fn generated_caddyfiles_are_answered_as_caddy_does() {
    let Some(program) = program() else { return };
    if let Ok(seed) = std::env::var("KOMAINU_CADDY_SEED_TEXT") {
        let folder = std::env::temp_dir().join(format!("komainu-imported-caddy-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let address = SocketAddr::from(([127, 0, 0, 2], 20_000));
        let text = caddyfile(&[seed.parse().unwrap()], address, "/srv", "127.0.0.1:3000");
        std::fs::write(folder.join("Caddyfile"), &text).unwrap();
        let json = adapted(&program, &folder.join("Caddyfile")).unwrap();
        std::fs::write(folder.join("caddy.json"), &json).unwrap();
        let imported = import::caddy::import(&folder.join("caddy.json")).unwrap();
        println!("{text}\n{json}\n{}\n{}", imported.toml, imported.report());
        let _ = std::fs::remove_dir_all(&folder);
        return;
    }
    let all = seeds();
    let upstream = upstream();
    let batches = Mutex::new(all.chunks(BATCH));
    let failed: Mutex<Failures> = Mutex::default();
    let requests = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..PAIRS {
            scope.spawn(|| {
                loop {
                    let Some(batch) = batches.lock().unwrap().next() else { return };
                    let found = compare_batch(&program, batch, upstream, &requests).unwrap_or_else(|error| {
                        Failures::from([(batch[0], vec![format!("seeds {batch:?}: {error}")])])
                    });
                    for (seed, all) in &found {
                        println!("seed {seed}:");
                        all.iter().take(SHOWN_MAX).for_each(|one| println!("  {one}"));
                    }
                    failed.lock().unwrap().extend(found);
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    println!("{} seeds, {} requests, {} seeds failed", all.len(), requests.into_inner(), failed.len());
    assert!(failed.is_empty(), "{} seeds failed", failed.len());
}
