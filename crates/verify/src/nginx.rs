//! Comparison of nginx and Komainu.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use failure::{Failure, FailureContext};
use import::nginx::{ExplainingRemarks, LocatedRequest, NginxScratch};
use import::scratch::{
    Aspect, DifferingResponses, ScratchListener, ScratchOptions, SourcePosition, VerifyRequest,
};
use import::{ImportError, ImportResult};

use crate::client::{REJECTED_HANDSHAKE, VerifyClient};
use crate::compare::{ResponseComparison, ServerOutcome, UnexplainedDifference};
use crate::options::VerifyOptions;
use crate::outcome::{ReportedDifference, Verification};
use crate::server::{ComparedProcess, NEW_ADDRESS, OLD_ADDRESS, VerifyFolder, free_port};
use crate::stub::Stubs;
use crate::tls::ScratchCertificate;

/// Maximum number of lines of its own configuration that nginx may refuse; each refused line is dropped.
const REFUSALS_MAX: usize = 200;
/// Timeout for nginx to write the log lines of the last requests.
const TRACE_TIMEOUT: Duration = Duration::from_millis(500);

/// Runs nginx with a scratch copy of its configuration and Komainu with the translation of that copy, and
/// compares them. `imported` is the translation of the original configuration.
///
/// # Errors
/// Returns the reason why one of them could not be run.
pub fn verify_nginx(
    file: &Path,
    prefix: Option<&Path>,
    imported: &ImportResult,
    options: &VerifyOptions,
) -> Result<Verification, Failure> {
    let folder = VerifyFolder::new()?;
    let certificate = ScratchCertificate::new()?;
    let mut ports = BTreeSet::new();
    let mut port = || {
        loop {
            let port = free_port().map_err(|failure| ImportError::from(failure.to_string()))?;
            if ports.insert(port) {
                return Ok(port);
            }
        }
    };
    let scratch_options = ScratchOptions {
        folder: folder.path().to_owned(),
        old_address: OLD_ADDRESS.to_owned(),
        new_address: NEW_ADDRESS.to_owned(),
        port: &mut port,
        password: bcrypt::hash("verify", 4).map_err(Failure::new)?,
        requests_max: options.requests_max,
        only_paths: options.only_paths,
    };
    let mut scratch = NginxScratch::read(file, prefix, scratch_options).map_err(Failure::new)?;
    if scratch.requests.is_empty() {
        return Err(Failure::new(
            "there is no `server` in this configuration, so there is nothing to compare",
        ));
    }
    let listener_ports: Vec<u16> = scratch.listeners.iter().map(|one| one.port).collect();
    folder.write("certificate.pem", certificate.certificate_pem.as_bytes())?;
    folder.write("key.pem", certificate.key_pem.as_bytes())?;
    std::fs::create_dir_all(folder.path().join("roots"))?;
    for one in &scratch.files {
        folder.write(&one.path, &one.content)?;
    }
    let addresses = |host: &str| -> Result<Vec<SocketAddr>, Failure> {
        let all = listener_ports.iter().map(|port| format!("{host}:{port}").parse());
        all.collect::<Result<_, _>>().map_err(Failure::new).context(host)
    };
    let old_addresses = addresses(OLD_ADDRESS)?;
    let new_addresses = addresses(NEW_ADDRESS)?;
    let old = start_accepted_config(&mut scratch, &folder, options, &old_addresses)?;
    let stubs = Stubs::start(&scratch.stubs, &certificate.server)?;
    let (toml, copy) = write_translation(&mut scratch, &folder)?;
    let mut imported = imported.clone();
    scratch.add_remarks_of_copy(&mut imported, &copy);
    let mut new_command = Command::new(&options.komainu_path);
    new_command.args(["start", "-c"]).arg(&toml);
    let mut new = ComparedProcess::start("komainu", new_command, folder.path())?;
    new.wait_until_listening(&new_addresses)?;
    stubs.take_received();
    let mut servers = ComparedServers {
        old: (old, create_clients(&scratch, &old_addresses, &certificate)),
        new: (new, create_clients(&scratch, &new_addresses, &certificate)),
        stubs,
    };
    let mut comparison = ResponseComparison { not_compared: scratch.not_compared.clone() };
    let mut verification =
        Verification { omitted_requests: scratch.omitted_requests, ..Verification::default() };
    let deadline = Instant::now() + options.total_timeout;
    let mut all: Vec<DifferingRequest> = Vec::new();
    for at in 0..scratch.requests.len() {
        if Instant::now() > deadline {
            verification.omitted_requests += scratch.requests.len() - at;
            break;
        }
        all.extend(servers.compare_request(&scratch, at, &mut comparison)?);
        verification.requests += 1;
    }
    let places = read_trace(&folder.path().join("trace.log"), verification.requests)?;
    let remarks = ExplainingRemarks::new(&imported);
    for DifferingRequest { request_index: at, statuses, differences: found } in all {
        let request = &scratch.requests[at];
        let traced = places.get(&at).cloned().unwrap_or_default();
        if !scratch.is_compared(&traced) {
            continue;
        }
        let place = scratch.responding_location(&traced);
        verification.differences.extend(explain_differences(
            found,
            request,
            statuses,
            place,
            |found, differing| {
                let answers = DifferingResponses { statuses, old: &found.old, new: &found.new };
                scratch
                    .find_explanation(&remarks, &traced, request, &found.aspect, (answers, differing))
                    .or_else(|| certificate_remark(&scratch.listeners[request.listener_index], statuses))
            },
        ));
    }
    verification.not_compared = comparison.not_compared.into_iter().collect();
    Ok(verification)
}

/// Creates a client for each listener of one server.
fn create_clients(
    scratch: &NginxScratch,
    addresses: &[SocketAddr],
    certificate: &ScratchCertificate,
) -> Vec<VerifyClient> {
    let client = |(listener, address): (&ScratchListener, &SocketAddr)| {
        VerifyClient::new(*address, listener.tls.then(|| Arc::clone(&certificate.client)))
    };
    scratch.listeners.iter().zip(addresses).map(client).collect()
}

/// Both servers with their clients, and the stubs that act as upstream servers.
struct ComparedServers {
    old: (ComparedProcess, Vec<VerifyClient>),
    new: (ComparedProcess, Vec<VerifyClient>),
    stubs: Stubs,
}

impl ComparedServers {
    /// Sends a request to both servers; returns `None` if nothing differs.
    fn compare_request(
        &mut self,
        scratch: &NginxScratch,
        at: usize,
        comparison: &mut ResponseComparison,
    ) -> Result<Option<DifferingRequest>, Failure> {
        let request = &scratch.requests[at];
        let outcome = |clients: &mut Vec<VerifyClient>| {
            let answer = clients[request.listener_index].exchange(request, at);
            ServerOutcome { response: answer, upstream_requests: self.stubs.take_received() }
        };
        let old = outcome(&mut self.old.1);
        let new = outcome(&mut self.new.1);
        let found =
            comparison.find_differences(request, &scratch.listeners[request.listener_index], &old, &new);
        let statuses = (old.response.status, new.response.status);
        if statuses.0 == 0 || statuses.1 == 0 {
            for (process, name) in [(&mut self.old.0, "nginx"), (&mut self.new.0, "komainu")] {
                if !process.is_running() {
                    return Err(Failure::new(format!(
                        "{name} ended at {request:?}:\n{}",
                        process.output_tail()
                    )));
                }
            }
        }
        Ok((!found.is_empty()).then_some(DifferingRequest {
            request_index: at,
            statuses,
            differences: found,
        }))
    }
}

/// Returns the differences of a request, which the configuration line at `place` answered, with their explanations: a
/// general statement of the report, or a remark, which `find_remark` finds.
fn explain_differences(
    found: Vec<UnexplainedDifference>,
    request: &VerifyRequest,
    statuses: (u16, u16),
    place: Option<SourcePosition>,
    find_remark: impl Fn(&UnexplainedDifference, &[Aspect]) -> Option<String>,
) -> Vec<ReportedDifference> {
    let differing: Vec<Aspect> = found.iter().map(|one| one.aspect.clone()).collect();
    let difference = |found: UnexplainedDifference| {
        // A general statement does not justify a successful response to a request that the old server
        // refuses.
        let is_opened = matches!(statuses.0, 401 | 403)
            && (200..300).contains(&statuses.1)
            // Requests for `//a` are answered with the content of `/a`.
            && !request.target.starts_with("//");
        let in_any_case = |sentence: &str| (!is_opened).then(|| format!("in any case: {sentence}"));
        let remark = request_remark(request, &found, statuses)
            .and_then(in_any_case)
            .or_else(|| find_remark(&found, &differing))
            .or_else(|| general_remark(request, &found, statuses).and_then(in_any_case));
        ReportedDifference {
            request: request.clone(),
            aspect: found.aspect,
            old: found.old,
            new: found.new,
            place: place.clone(),
            remark,
        }
    };
    found.into_iter().map(difference).collect()
}

/// Returns the remark on a client without a certificate, which nginx refuses before it chooses a location.
fn certificate_remark(listener: &ScratchListener, statuses: (u16, u16)) -> Option<String> {
    let remark = "in any case: clients without a certificate are refused in the handshake, not with 400";
    (listener.tls && statuses == (400, 0)).then(|| remark.to_owned())
}

/// Whether the difference concerns one of these fields.
fn is_field(found: &UnexplainedDifference, names: &[&str]) -> bool {
    match &found.aspect {
        Aspect::Field(name) | Aspect::UpstreamField(name) => names.contains(&name.as_str()),
        _ => false,
    }
}

/// Returns the report's statement about such a request, independent of the configuration: it explains more
/// than a directive could.
fn request_remark(
    request: &VerifyRequest,
    found: &UnexplainedDifference,
    (old, new): (u16, u16),
) -> Option<&'static str> {
    let path = request.target.split('?').next().unwrap_or("").to_ascii_lowercase();
    let is_hidden = |segment: &str| {
        segment.starts_with('.') && segment != "." && segment != ".." && !segment.starts_with("..%")
    };
    Some(match () {
        () if path.contains("%2f") || path.contains("%5c") => {
            "paths with an encoded slash are matched with it, and answered 400 by most routes"
        }
        () if path.replace("%2e", ".").split('/').any(is_hidden) => {
            "files and folders with a leading dot are not served"
        }
        () if path.contains("%0a") => "paths with a line feed are 404 where a server has expressions",
        () if path.contains('#') => "a target with a fragment is answered 400",
        () if request.host.as_deref() == Some("") => "no site has an empty Host",
        () if is_field(found, &["x-forwarded-for", "x-forwarded-proto", "x-forwarded-host"])
            || is_field(
                found,
                &["http_x_forwarded_for", "http_x_forwarded_proto", "http_x_forwarded_host"],
            ) =>
        {
            "X-Forwarded-* fields of clients are replaced"
        }
        () if is_field(found, &["remote_user", "http_expect"]) => {
            "REMOTE_USER is a user that `auth` knows, and Expect is answered by Komainu itself"
        }
        () if is_field(found, &["path_info", "path_translated", "auth_type"])
            || is_field(found, &["script_name", "script_filename"])
                && (path.contains('%') || path.contains(".php/")) =>
        {
            "variables of scripts are those of RFC 3875"
        }
        () if path.contains(".php") && new == 404 && old < 400 => "scripts that do not exist are 404",
        () if path.ends_with(".php") && !request.target.split('?').next().unwrap_or("").ends_with(".php") => {
            "files with the name of a script are never sent beside `php`"
        }
        () if request.method == "TRACE" => "TRACE is for the route, which answers 405 unless it passes it on",
        () if old == 400 && new == 400 => {
            "a request that is not valid HTTP has no route, and no fields of one"
        }
        () if (old, new) == (416, 416) => "nginx sends the fields of `add_header` twice in a 416",
        () if is_field(found, &["cache-control", "www-authenticate"]) && new == 401 => {
            "refusals of `auth` have Cache-Control, and a charset in WWW-Authenticate"
        }
        () if has_dot_segments(&path)
            && (found.aspect == Aspect::UpstreamTarget || is_field(found, &["location", "request_uri"])) =>
        {
            "paths are passed on without empty segments and those of dots"
        }
        () => return None,
    })
}

/// Returns the report's statement that applies to every configuration.
fn general_remark(
    request: &VerifyRequest,
    found: &UnexplainedDifference,
    (old, new): (u16, u16),
) -> Option<&'static str> {
    let has = |name: &str| request.fields.iter().any(|(known, _)| known.eq_ignore_ascii_case(name));
    let path = request.target.split('?').next().unwrap_or("");
    Some(match () {
        () if is_field(found, &["http_host", "server_name"]) => {
            "HTTP_HOST and SERVER_NAME are `Host` as the client sent it"
        }
        () if path.contains("//") => {
            "slashes at the start of a path are always merged, and no file has a path with `//`"
        }
        () if request.host.is_none() => "a request without Host is for the name of the upstream server",
        () if (old >= 400 || found.old == REJECTED_HANDSHAKE) && new >= 400 => {
            "a request that neither server answers may be refused with another status"
        }
        () if (old, new) == (301, 404) => "a folder without a page is 404, also without a final slash",
        () if new == 413 || old == 413 => {
            "the limit of contents is that of the location that answers, and counts before redirects and fixed responses"
        }
        () if is_field(found, &["vary"]) && found.new.contains("accept-encoding") => {
            "Vary has Accept-Encoding wherever compression is on"
        }
        () if is_field(found, &["vary"]) && found.new == "accept" => {
            "listings of folders are HTML or JSON, and say so in Vary"
        }
        () if matches!(&found.aspect, Aspect::UpstreamField(_))
            && found.old == "-"
            && found.new.is_empty() =>
        {
            "a field of `request_headers` with an empty value is sent"
        }
        () if is_field(found, &["age"]) && found.old == "-" => "cached responses have Age",
        () if is_field(found, &["content-type"]) => "media types of files are those of Komainu's list",
        () if request.method == "OPTIONS" && found.new == "204" => {
            "OPTIONS of a file is answered 204 with Allow"
        }
        () if !matches!(request.method.as_str(), "GET" | "HEAD") && (old == 405 || new == 405) => {
            "other methods than GET and HEAD are answered 405 for files, and go to `proxy` beside them"
        }
        () if has("Range") && request.fields.iter().any(|(_, value)| value.contains(',')) => {
            "ranges that are close to each other are sent as one"
        }
        () if has("If-Modified-Since") && found.new == "304" => {
            "If-Modified-Since later than the change of the file is answered 304"
        }
        () if (has("If-None-Match") || has("If-Match") || has("If-Unmodified-Since"))
            && matches!(old, 304 | 412) =>
        {
            "conditions of requests count for files, not for fixed responses"
        }
        () => return None,
    })
}

fn has_dot_segments(path: &str) -> bool {
    let plain = path.replace("%2e", ".");
    plain.contains("//") || plain.split('/').any(|segment| matches!(segment, "." | ".."))
}

/// Starts nginx with the copy, without the lines that the installed nginx does not accept.
fn start_accepted_config(
    scratch: &mut NginxScratch,
    folder: &VerifyFolder,
    options: &VerifyOptions,
    addresses: &[SocketAddr],
) -> Result<ComparedProcess, Failure> {
    let path = folder.path().join("nginx.conf");
    // Dropping a line can cause the next line to be refused, so all reasons are kept.
    let mut reasons: Vec<String> = Vec::new();
    for _ in 0..REFUSALS_MAX {
        folder.write("nginx.conf", scratch.nginx_config().as_bytes())?;
        let mut command = Command::new(&options.old_server_path);
        command.arg("-c").arg(&path).arg("-p").arg(folder.path());
        let mut server = ComparedProcess::start("nginx", command, folder.path())?;
        let Err(failure) = server.wait_until_listening(addresses) else { return Ok(server) };
        if server.is_running() {
            return Err(failure);
        }
        let text = server.output();
        let Some(line) = text.lines().find(|line| line.contains("[emerg]")) else {
            return Err(Failure::new(format!("nginx does not accept its configuration:\n{text}")));
        };
        let message = line.split("[emerg]").nth(1).unwrap_or(line);
        let message = message.split_once(": ").map_or(message, |(_, message)| message).trim();
        let (reason, place) = message.rsplit_once(" in ").unwrap_or((message, ""));
        // Lines of included files cannot be dropped.
        let own = place.rsplit_once(':').filter(|(file, _)| Path::new(file) == path);
        let number = own.and_then(|(_, number)| number.parse().ok());
        let unknown = reason.strip_prefix("unknown directive \"").and_then(|rest| rest.strip_suffix('"'));
        let is_dropped = match (unknown, number) {
            (Some(name), _) => scratch.drop_name(name),
            (None, Some(number)) => scratch.drop_line(number, reason),
            (None, None) => false,
        };
        reasons.push(reason.trim().to_owned());
        if !is_dropped {
            return Err(Failure::new(format!(
                "nginx does not accept its configuration: {}",
                reasons.join("; then: ")
            )));
        }
    }
    Err(Failure::new(format!("nginx refuses more than {REFUSALS_MAX} lines of its configuration")))
}

/// Writes Komainu's configuration, the translation of the copy. Returns its path and the translation.
fn write_translation(
    scratch: &mut NginxScratch,
    folder: &VerifyFolder,
) -> Result<(std::path::PathBuf, ImportResult), Failure> {
    let source = "new/nginx.conf";
    folder.write(source, scratch.translation_source().as_bytes())?;
    let imported = import::nginx::import(&folder.path().join(source), None).map_err(Failure::new)?;
    let mut text = imported.toml.clone();
    if scratch.listeners.iter().any(|one| one.tls) && !text.contains("\n[tls]\n") {
        let files =
            ["certificate", "key"].map(|name| format!("{name} = \"{}/{name}.pem\"", folder.path().display()));
        text = format!("{text}\n[tls]\ndefault = {{ {} }}\n", files.join(", "));
    }
    folder.write("komainu.toml", text.as_bytes())?;
    Ok((folder.path().join("komainu.toml"), imported))
}

/// A request with differing responses.
struct DifferingRequest {
    request_index: usize,
    statuses: (u16, u16),
    differences: Vec<UnexplainedDifference>,
}

/// Returns the location that answered each request, from nginx's access log; waits up to [`TRACE_TIMEOUT`]
/// for the last lines.
fn read_trace(path: &Path, requests: usize) -> Result<HashMap<usize, LocatedRequest>, Failure> {
    let deadline = Instant::now() + TRACE_TIMEOUT;
    loop {
        let text = std::fs::read_to_string(path).with_context(|| path.display())?;
        let located: HashMap<usize, LocatedRequest> =
            text.lines().filter_map(LocatedRequest::parse).collect();
        if located.contains_key(&requests.saturating_sub(1)) || Instant::now() > deadline {
            return Ok(located);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
