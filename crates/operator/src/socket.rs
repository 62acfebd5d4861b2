//! The control socket, used by `komainu status`, `reload`, `upgrade` and `cache` to reach a running server.
//!
//! Each server has its own socket, `PID.sock`, in a directory that belongs to its user. A client sends one
//! line and reads one JSON document, up to the end of the stream; until the document is ready the server
//! sends an empty line every second. Clients have 2 s to send the line and 2 s to read the document. Each
//! client has its own thread, so that a slow one does not delay others.

use std::fs::{self, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant, SystemTime};

use apps::Usage;
use certificates::CertificateStatus;
use certificates::managed::RunningCertificates;
use certificates::tls::FileCertificate;
use cluster::StoreStatus;
use hosting::workers::AppLoading;
use logging::access::rfc3339;
use logging::events::LogEvent;
use logging::notice::ErrorLog;
use process::link::SupervisorLink;
use rights::process_status::ProcessStatus;
use rustix::fs::Mode;
use rustix::net::sockopt::socket_peercred;
use rustix::process::getuid;
use serde_json::{Value, json};
use telemetry::gauges::KubernetesStatus;
use times::Millis;

use crate::overview;
use crate::peer::PeerRefusal;
use crate::server_info::{ReloadEffect, ServerInfo};

/// Time for a client to send its line, and again to read the document.
pub const CLIENT_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of clients.
const CLIENTS_MAX: usize = 64;
/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
const LINE_BYTES_MAX: usize = 4096;
/// Maximum length of an API request line, which may contain a whole configuration.
const API_LINE_BYTES_MAX: usize = 4 << 20;
/// Interval of the empty lines sent while a command is executed.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(1);
/// Lines of the error log in the status.
const EVENTS_SHOWN_MAX: usize = 50;

/// Returns the directory for sockets of this user's servers: the unit's `RuntimeDirectory` under systemd;
/// `/run/komainu` for root; otherwise `komainu` in `XDG_RUNTIME_DIR` or `/run/user/UID`, or `komainu-UID` in
/// the directory for temporary files.
pub fn socket_folder() -> PathBuf {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    // systemd passes several directories as one list; use the first.
    if let Some(folders) = variable("RUNTIME_DIRECTORY")
        && let Some(first) = std::env::split_paths(&folders).next()
    {
        return first;
    }
    let uid = getuid();
    if uid.is_root() {
        return "/run/komainu".into();
    }
    let of_session = Path::new("/run/user").join(uid.to_string());
    let is_own = |folder: &PathBuf| {
        fs::symlink_metadata(folder)
            .is_ok_and(|found| found.is_dir() && found.uid() == uid.as_raw() && found.mode() & 0o077 == 0)
    };
    match variable("XDG_RUNTIME_DIR").map(PathBuf::from).or(Some(of_session).filter(is_own)) {
        Some(folder) => folder.join("komainu"),
        None => temporary_folder(uid.as_raw()),
    }
}

fn temporary_folder(uid: u32) -> PathBuf {
    std::env::temp_dir().join(format!("komainu-{uid}"))
}

/// Returns the directories that [`socket_folder`] may return for another user.
pub fn user_socket_folders(uid: u32) -> Vec<PathBuf> {
    let of_session = Path::new("/run/user").join(uid.to_string()).join("komainu");
    vec![of_session, temporary_folder(uid), Path::new("/tmp").join(format!("komainu-{uid}"))]
}

/// Returns the socket directory, created if missing. A directory that others can write to is rejected: they
/// could impersonate a server.
fn create_socket_folder() -> io::Result<PathBuf> {
    let folder = socket_folder();
    let named =
        |error: io::Error| io::Error::new(error.kind(), format!("cannot make {}: {error}", folder.display()));
    let made = net::trusted_path::make_folder(&folder, Mode::RWXU);
    let found = match fs::symlink_metadata(&folder) {
        Ok(found) => found,
        Err(error) => return Err(named(made.err().unwrap_or(error))),
    };
    let owner = found.uid();
    let fault = if !found.is_dir() {
        "is not a folder".to_owned()
    } else if owner != getuid().as_raw() {
        format!("belongs to user {owner}, who could pose as a server there")
    } else if found.mode() & 0o022 != 0 {
        "can be written to by others, who could pose as a server there: `chmod go-w` it".to_owned()
    } else {
        made.map_err(named)?;
        return if net::trusted_path::TrustedEntry::resolve(&folder)?.is_root_controlled() {
            Ok(folder)
        } else {
            Err(io::Error::other(format!(
                "{} is in a folder that others than root can change: name another one in RUNTIME_DIRECTORY",
                folder.display()
            )))
        };
    };
    Err(io::Error::other(format!(
        "{} {fault}; have it removed, or name a folder of your own in RUNTIME_DIRECTORY, for the server and for the commands",
        folder.display()
    )))
}

/// A server's control socket. Dropping it removes its file.
pub struct ControlSocket {
    /// The listening control socket.
    pub listener: UnixListener,
    path: PathBuf,
}

impl ControlSocket {
    /// Binds the socket of this process, and removes stale sockets of this user's killed servers.
    ///
    /// # Errors
    /// The directory cannot be used, or the socket cannot be created.
    pub fn bind() -> io::Result<ControlSocket> {
        let folder = create_socket_folder()?;
        // Sockets of running servers are not probed: the predecessor would take this process for an
        // application.
        for (_, path) in
            list_sockets(&folder).into_iter().filter(|(pid, _)| ProcessStatus::of(*pid).is_none())
        {
            remove_if_stale(&path);
        }
        let path = folder.join(format!("{}.sock", std::process::id()));
        // Left behind by an earlier process with the same id.
        let _ = fs::remove_file(&path);
        let listener = UnixListener::bind(&path)?;
        fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        Ok(ControlSocket { listener, path })
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        // The file may have been removed already.
        let _ = fs::remove_file(&self.path);
    }
}

/// Answers an API request line, `{ "method", "path", … }`, sent by the user with this id.
pub type ApiLine = Arc<dyn Fn(&str, u32) -> Value + Send + Sync>;

/// Answers clients of `listener` on a separate thread until the process ends. Only root and `user` are
/// accepted.
///
/// # Errors
/// The thread cannot be started.
pub fn serve(
    listener: UnixListener,
    user: u32,
    info: Arc<ServerInfo>,
    api: ApiLine,
    clients: ControlClientCount,
    notices: ErrorLog,
) -> io::Result<()> {
    std::thread::Builder::new().name("control".into()).spawn(move || {
        for client in listener.incoming() {
            let Ok(client) = client else {
                // Without free file descriptors every accept fails at once, whether or not a client is
                // waiting.
                std::thread::sleep(ACCEPT_PAUSE);
                continue;
            };
            if let Err(error) = accept_client(client, user, &info, &api, &clients, &notices) {
                notices.debug(&format!("control socket: {error}"));
            }
        }
    })?;
    Ok(())
}

/// Checks a client and starts its thread.
fn accept_client(
    client: UnixStream,
    user: u32,
    info: &Arc<ServerInfo>,
    api: &ApiLine,
    clients: &ControlClientCount,
    notices: &ErrorLog,
) -> io::Result<()> {
    client.set_write_timeout(Some(CLIENT_TIMEOUT))?;
    let uid = socket_peercred(&client)?.uid.as_raw();
    if uid != 0 && uid != user {
        return send_document(client, &json!({ "error": format!("user {uid} may not control this server") }));
    }
    if let Some(PeerRefusal { text, is_identified: is_known }) = info.peer_refusal(&client) {
        let line = format!("control socket: {text}");
        if is_known {
            notices.warn(&line)
        } else {
            notices.debug(&line)
        };
        return send_document(client, &json!({ "error": text }));
    }
    let counted = clients.add();
    if clients.0.load(Ordering::Relaxed) > CLIENTS_MAX {
        let error = format!("{CLIENTS_MAX} clients are connected to the control socket: try again");
        return send_document(client, &json!({ "error": error }));
    }
    let info = info.clone();
    let api = api.clone();
    let notices = notices.clone();
    std::thread::Builder::new().name("control-client".into()).spawn(move || {
        let _counted = counted;
        if let Err(error) = answer_client(client, uid, info, &api) {
            notices.debug(&format!("control socket: {error}"));
        }
    })?;
    Ok(())
}

/// Count of the clients being served. Cheap to clone.
#[derive(Clone, Default)]
pub struct ControlClientCount(Arc<AtomicUsize>);

impl ControlClientCount {
    fn add(&self) -> ControlClientGuard {
        self.0.fetch_add(1, Ordering::Relaxed);
        ControlClientGuard(self.0.clone())
    }

    /// Waits until all clients have received their documents, at most [`CLIENT_TIMEOUT`].
    pub fn wait(&self) {
        let until = Instant::now() + CLIENT_TIMEOUT;
        while self.0.load(Ordering::Relaxed) > 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A client being served, counted until dropped.
struct ControlClientGuard(Arc<AtomicUsize>);

impl Drop for ControlClientGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn answer_client(mut client: UnixStream, uid: u32, info: Arc<ServerInfo>, api: &ApiLine) -> io::Result<()> {
    let line = match read_line(&mut client) {
        Ok(line) => line,
        Err(error) => return send_document(client, &json!({ "error": error.to_string() })),
    };
    let (done, document) = channel();
    let api = api.clone();
    std::thread::Builder::new().name("control-command".into()).spawn(move || {
        let document = match line.strip_prefix("api ") {
            Some(request) => api(request, uid),
            None => execute_command(&line, &info),
        };
        // Fails only if the client has disconnected.
        let _ = done.send(document);
    })?;
    loop {
        match document.recv_timeout(KEEP_ALIVE_INTERVAL) {
            Ok(document) => return send_document(client, &document),
            // White space before the JSON document shows the client that the server is alive.
            Err(RecvTimeoutError::Timeout) => client.write_all(b"\n")?,
            Err(RecvTimeoutError::Disconnected) => {
                return send_document(client, &json!({ "error": "the command failed: see the error log" }));
            }
        }
    }
}

/// Executes a command line and returns the document for the client.
pub(crate) fn execute_command(line: &str, info: &ServerInfo) -> Value {
    match line.trim_end().split_once(' ').unwrap_or((line.trim_end(), "")) {
        ("ping", "") => json!({
            "pid": std::process::id(),
            "state": serving_state(info),
            "listen": listener_urls(info),
            "file": (info.active_text)().map(|text| text.path.display().to_string()),
        }),
        ("status", "") => status_document(info),
        ("upgrade", "") => match (info.upgrade_server)() {
            Ok(done) => json!({ "done": done }),
            Err(failure) => json!({ "error": failure.with_remedy() }),
        },
        ("reload", "") => {
            let outcome = (info.reload_config)();
            let loading = if outcome.is_active() { info.hosting.loading() } else { Vec::new() };
            let is_done = outcome.effect == ReloadEffect::Active;
            let document = reload_document(is_done, outcome.message, &loading);
            let mut document = with_warnings(document, &outcome.warnings);
            if outcome.effect == ReloadEffect::NotBegun {
                document["later"] = true.into();
            }
            document
        }
        ("reload", app) => match info.hosting.reload(app) {
            Some(loading) => {
                reload_document(true, format!("application {app}: the new code is in force"), &[loading])
            }
            None => json!({ "error": format!("there is no application {app}") }),
        },
        ("cache", command) => (info.run_cache_command)(command),
        ("config", "") => json!({
            "text": (info.active_text)().map(|text| text.joined.to_string()),
            "awaiting_restart": (info.awaiting_restart)(),
        }),
        ("certificates", "") => json!({ "certificates": all_certificates(info) }),
        ("renew", name) => match info.certificates.get().map(|certificates| certificates.renew(name)) {
            Some(Ok(())) => json!({ "done": format!("{name}: the certificate is being renewed") }),
            Some(Err(error)) => json!({ "error": error.to_string() }),
            None => json!({ "error": "the server obtains no certificates: no site has `tls = \"auto\"`" }),
        },
        (other, _) => {
            json!({ "error": format!("unknown command {other:?}: send \"status\", \"reload\" or \"upgrade\"") })
        }
    }
}

/// Returns whether the server accepts requests or is draining.
fn serving_state(info: &ServerInfo) -> &'static str {
    if info.stop_handle.is_draining() { DRAINING } else { "serving" }
}

/// State of a server that finishes its requests before it ends.
pub const DRAINING: &str = "draining";

/// Returns the result of a reload once the applications have loaded or failed. `is_done` is whether it has succeeded
/// otherwise.
fn reload_document(is_done: bool, message: String, loading: &[AppLoading]) -> Value {
    let failures: Vec<String> = loading.iter().filter_map(AppLoading::wait_for_failure).collect();
    match loading.len() {
        _ if !is_done => {
            let errors: Vec<String> = [message].into_iter().chain(failures).collect();
            json!({ "error": errors.join("\n") })
        }
        _ if !failures.is_empty() => json!({ "error": failures.join("\n") }),
        0 => json!({ "done": message }),
        count => json!({ "done": format!("{message}; applications loaded again: {count}") }),
    }
}

/// Adds the warnings of the active configuration. In an error they are appended to its text, the only part
/// that is shown.
fn with_warnings(mut document: Value, warnings: &[String]) -> Value {
    let text = document["error"].as_str().map(|error| {
        let warnings = warnings.iter().map(|text| format!("\nwarning: {text}"));
        std::iter::once(error.to_owned()).chain(warnings).collect::<String>()
    });
    match text {
        Some(text) => document["error"] = text.into(),
        None => document["warnings"] = json!(warnings),
    }
    document
}

/// Reads up to a newline or the end of the stream.
fn read_line(client: &mut UnixStream) -> io::Result<String> {
    let until = Instant::now() + CLIENT_TIMEOUT;
    let mut bytes = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let late = || io::Error::other(format!("no line within {} s", CLIENT_TIMEOUT.as_secs()));
        if left.is_zero() {
            return Err(late());
        }
        client.set_read_timeout(Some(left))?;
        let len = match client.read(&mut piece) {
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(late()),
            Err(error) => return Err(error),
        };
        let before = bytes.len();
        bytes.extend_from_slice(&piece[..len]);
        let end = piece[..len].iter().position(|byte| *byte == b'\n').map(|at| before + at);
        let bytes_max = if bytes.starts_with(b"api ") { API_LINE_BYTES_MAX } else { LINE_BYTES_MAX };
        if end.unwrap_or(bytes.len()) > bytes_max {
            return Err(io::Error::other(format!("the line is longer than {bytes_max} bytes")));
        }
        if end.is_some() || len == 0 {
            bytes.truncate(end.unwrap_or(bytes.len()));
            return String::from_utf8(bytes).map_err(|_| io::Error::other("the line is not UTF-8"));
        }
    }
}

/// Sends the document. The timeout bounds the whole transfer, so that a client cannot prolong it by reading
/// slowly.
fn send_document(mut client: UnixStream, document: &Value) -> io::Result<()> {
    let until = Instant::now() + CLIENT_TIMEOUT;
    let text = format!("{document}\n");
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::other("the client does not take its document"));
        }
        client.set_write_timeout(Some(left))?;
        match client.write(rest) {
            Ok(len) => rest = &rest[len..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Returns the status of the server, for `komainu status --json`.
pub(crate) fn status_document(info: &ServerInfo) -> Value {
    let pid = std::process::id();
    let apps = info.hosting.snapshots();
    let apps: Vec<Value> = apps.iter().map(|(name, app)| overview::application(name, app)).collect();
    let supervisor = |(pid, link): &(u32, SupervisorLink)| json!({ "pid": pid, "usage": link.supervisor_usage().map(overview::usage) });
    json!({
        "pid": pid,
        "supervisor": info.supervisor.as_ref().map(supervisor),
        "version": env!("CARGO_PKG_VERSION"),
        "age_ms": Millis::of(info.started_at.elapsed()).0,
        "state": serving_state(info),
        "sandbox": info.sandbox,
        "listen": listener_urls(info),
        "usage": Usage::of(pid).map(overview::usage),
        "memory": {
            "held_bytes": info.memory.held_bytes(),
            "budget_bytes": info.memory.bytes_max(),
            "refused": info.memory.refused(),
        },
        "certificates": all_certificates(info),
        "apps": apps,
        "connections": overview::connections(&info.counters.cores),
        "class_bounds_ms": overview::duration_bounds_ms(),
        "routes": overview::routes(&info.counters.metrics),
        "upstreams": overview::upstreams(&(info.groups)()),
        "cluster": (info.cluster_status)().map(cluster_document),
        "kubernetes": (info.kubernetes_status)().map(kubernetes_document),
        "cache": Some((info.run_cache_command)("stats")).filter(|stats| stats["error"].is_null()),
        "events": info.counters.events.after(0, EVENTS_SHOWN_MAX).iter().map(LogEvent::json).collect::<Vec<_>>(),
    })
}

/// Formats the state of the store of the set of servers.
fn cluster_document(status: StoreStatus) -> Value {
    json!({
        "store": status.store,
        "name": status.name,
        "up": status.is_up,
        "last_error": status.last_error,
        "servers": status.servers,
        "files_received": status.files_received,
        "files_sent": status.files_sent,
        "refused": status.refused,
        "purges_applied": status.purges_applied,
        "purges_unsent": status.purges_unsent,
    })
}

/// Formats the state of `komainu kubernetes`.
fn kubernetes_document(status: KubernetesStatus) -> Value {
    json!({
        "up": status.fault.is_none(),
        "fault": status.fault,
        "away_since": status.away_since_unix_s.map(rfc3339),
        "failures": status.failures,
        "applied": status.applied_unix_ms.map(|ms| rfc3339(ms / 1_000)),
        "changes": {
            "routes": status.whole_changes,
            "servers": status.server_changes,
            "certificates": status.certificate_changes,
            "failed": status.failed_changes,
        },
        "sites": status.sites,
        "sites_read": status.sites_read,
        "objects": status.objects,
        "leader": status.is_leader,
    })
}

/// Returns the URLs of the listening sockets.
fn listener_urls(info: &ServerInfo) -> Vec<String> {
    info.listeners.urls().iter().map(ToString::to_string).collect()
}

/// Returns the certificates that the server obtains itself, and those loaded from files.
pub(crate) fn all_certificates(info: &ServerInfo) -> Vec<Value> {
    let statuses = info.certificates.get().map(RunningCertificates::statuses).unwrap_or_default();
    let mut all: Vec<Value> = statuses.iter().map(certificate_document).collect();
    all.extend((info.file_certificates)().iter().map(file_certificate_document));
    all
}

/// Returns the seconds until a Unix timestamp; negative if it has passed.
fn expires_in_s(not_after_unix_s: i64) -> i64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    not_after_unix_s.saturating_sub(i64::try_from(now).unwrap_or(i64::MAX))
}

/// Formats a certificate from a file like [`certificate_document`], with `file`.
fn file_certificate_document((path, certificate): &FileCertificate) -> Value {
    let info = certificate.info();
    json!({
        "name": info.names.first().unwrap_or(&info.subject),
        "names": info.names,
        "issuer": info.issuer,
        "serial": info.serial,
        "not_before": info.not_before_unix_s,
        "not_after": info.not_after_unix_s,
        "expires_in_s": expires_in_s(info.not_after_unix_s),
        "file": path.display().to_string(),
    })
}

/// Formats a certificate for `komainu cert`; times are seconds since 1970.
pub fn certificate_document(status: &CertificateStatus) -> Value {
    let unix_s =
        |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let facts = status.info.as_ref();
    json!({
        "name": status.name,
        "names": facts.map(|facts| facts.subjects.iter().map(ToString::to_string).collect::<Vec<_>>()),
        "issuer": facts.map(|facts| &facts.issuer),
        "serial": facts.map(|facts| &facts.serial),
        "not_before": facts.map(|facts| unix_s(facts.not_before)),
        "not_after": facts.map(|facts| unix_s(facts.not_after)),
        "expires_in_s":
            facts.map(|facts| expires_in_s(i64::try_from(unix_s(facts.not_after)).unwrap_or(i64::MAX))),
        "directory": status.directory,
        "renew_at": status.renew_at.map(unix_s),
        "retry_at": status.retry_at.map(unix_s),
        "last_error": status.last_error.as_ref().map(|(_, text)| text),
        "last_error_at": status.last_error.as_ref().map(|(at, _)| unix_s(*at)),
    })
}

/// Returns the sockets in a directory, each with its server's process id.
pub fn list_sockets(folder: &Path) -> Vec<(u32, PathBuf)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let socket = |entry: fs::DirEntry| {
        let pid = entry.file_name().to_str()?.strip_suffix(".sock")?.parse().ok()?;
        Some((pid, entry.path()))
    };
    entries.filter_map(socket).collect()
}

/// Removes a socket that no process listens on.
pub fn remove_if_stale(path: &Path) {
    let refused =
        UnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
    if refused {
        // Another process may remove it at the same time.
        let _ = fs::remove_file(path);
    }
}
