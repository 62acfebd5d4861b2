//! Requests that compare a translation with nginx, generated from nginx's configuration.

use std::collections::BTreeSet;

use super::addresses::complete_address;
use super::conditions::front_script;
use super::nginx_scratch::ScratchBuilder;
use super::probe_fields::{forwarded_addresses, tested_fields};
use super::probe_hosts::{PartialNames, server_hosts};
use super::probe_paths::{PATHS_MAX, is_target, paths_for_prefix, paths_for_regex, shorten_path};
use super::scope::{Scope, replace_constants};
use super::tree::NginxDirective;
use crate::scratch::{CREDENTIALS, RequestContent, ScratchFile, VerifyRequest};

/// Kind of response of a location, which determines the useful requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ResponseKind {
    Files,
    Proxy,
    Fixed,
}

/// A location with paths that it matches, and similar paths that it does not match.
struct ProbedLocation {
    response_kind: ResponseKind,
    paths: Vec<String>,
    other_paths: Vec<String>,
    /// Directories of its files: the prefix that is removed from the path, and the scratch directory.
    folders: Vec<(String, String)>,
    index: String,
}

/// Maximum number of paths of a server that are requested at each address of other servers.
const PATHS_ELSEWHERE: usize = 3;

/// A server with a host and some of its paths.
struct ProbedServer {
    listeners: Vec<usize>,
    host: String,
    paths: Vec<String>,
}

/// Returns requests for the hosts of servers at addresses of others, with which they share other addresses.
fn requests_elsewhere(servers: &[ProbedServer]) -> Vec<VerifyRequest> {
    let mut found = Vec::new();
    let shares = |one: &ProbedServer, other: &ProbedServer| {
        one.listeners.iter().any(|listener| other.listeners.contains(listener))
    };
    for server in servers {
        let mut listeners: Vec<usize> = servers
            .iter()
            .filter(|other| shares(server, other))
            .flat_map(|other| other.listeners.iter().copied())
            .filter(|listener| !server.listeners.contains(listener))
            .collect();
        listeners.sort_unstable();
        listeners.dedup();
        for listener_index in listeners {
            for target in ["/".to_owned()].iter().chain(&server.paths) {
                found.push(VerifyRequest {
                    listener_index,
                    method: "GET".to_owned(),
                    target: target.clone(),
                    version: "1.1",
                    host: Some(server.host.clone()),
                    fields: Vec::new(),
                    content: RequestContent::Absent,
                    purpose: "a name at an address of other servers".to_owned(),
                });
            }
        }
    }
    found
}

impl ScratchBuilder<'_, '_> {
    /// Returns the requests for all servers, and the number of omitted ones.
    pub(super) fn build_requests(&mut self, http: &Scope<'_>) -> (Vec<VerifyRequest>, usize) {
        let mut all: Vec<VerifyRequest> = Vec::new();
        let mut seen = BTreeSet::new();
        let mut made = BTreeSet::new();
        let servers = http.innermost().iter().filter(|one| one.name == "server" && one.block.is_some());
        let names = PartialNames::of_servers(servers.clone());
        let forwarded = forwarded_addresses(http);
        let mut probed: Vec<ProbedServer> = Vec::new();
        for (at, server) in servers.enumerate() {
            let crossed = names.combined_hosts(at);
            let scope = http.with_block(server.block_directives());
            let listeners = self.server_listeners(server);
            let hosts = server_hosts(server);
            let mut places = vec![self.probe_server(&scope)];
            self.collect_locations(&scope, None, &mut places);
            places.iter().for_each(|place| self.create_location_files(place, &mut made));
            let Some(&first) = listeners.first() else { continue };
            let before = all.len();
            let base = VerifyRequest {
                listener_index: first,
                method: "GET".to_owned(),
                target: "/".to_owned(),
                version: "1.1",
                host: Some(hosts[0].clone()),
                fields: Vec::new(),
                content: RequestContent::Absent,
                purpose: String::new(),
            };
            for (at, &listener) in listeners.iter().enumerate() {
                for (number, host) in hosts.iter().chain(&crossed).enumerate() {
                    let one =
                        VerifyRequest { listener_index: listener, host: Some(host.clone()), ..base.clone() };
                    all.push(VerifyRequest { purpose: "each name and address".to_owned(), ..one.clone() });
                    if at + number > 0 {
                        for place in &places {
                            let path = place.paths.first().cloned().unwrap_or_default();
                            all.push(VerifyRequest {
                                target: path,
                                purpose: "each name and address".to_owned(),
                                ..one.clone()
                            });
                        }
                    }
                }
            }
            for place in &places {
                let paths = place.paths.iter().map(|path| (path, "a path of the location"));
                let beside = place.other_paths.iter().map(|path| (path, "a path beside the location"));
                for (path, what) in paths.chain(beside) {
                    all.push(VerifyRequest {
                        target: path.clone(),
                        purpose: what.to_owned(),
                        ..base.clone()
                    });
                }
            }
            if self.options.only_paths {
                all.extend(combined_path_requests(&base, &places));
            }
            // Most variations are sent once for each kind of response, essential ones to every location.
            let mut tried = BTreeSet::new();
            let tested = tested_fields(server, http);
            for place in &places {
                let Some(path) = place.paths.first() else { continue };
                let one = VerifyRequest { target: path.clone(), ..base.clone() };
                all.extend(forwarded.iter().map(|(name, value)| with_field(&one, name, value)));
                if self.options.only_paths {
                    all.extend(basic_requests(&one));
                    tested.iter().for_each(|name| all.extend(repeated_field_requests(&one, name)));
                    continue;
                }
                if tried.insert(place.response_kind) {
                    all.extend(unusual_requests(&one, place.response_kind));
                    all.extend(spelling_requests(&one, path));
                    all.extend(host_requests(&one, &hosts[0]));
                } else {
                    all.extend(essential_requests(&one, place.response_kind))
                }
            }
            for name in tested {
                for value in ["verify", "1"] {
                    all.push(with_field(&base, &name, value));
                    if name.contains('-') {
                        all.push(with_field(&base, &name.replace('-', "_"), value));
                    }
                }
            }
            let paths = places.iter().filter_map(|place| place.paths.first().cloned()).take(PATHS_ELSEWHERE);
            probed.push(ProbedServer { listeners, host: hosts[0].clone(), paths: paths.collect() });
            let mut own = all.split_off(before);
            own.retain(|one| {
                seen.insert(format!("{:?}", VerifyRequest { purpose: String::new(), ..one.clone() }))
            });
            all.extend(own);
        }
        all.extend(requests_elsewhere(&probed));
        let max = self.options.requests_max;
        let left_out = all.len().saturating_sub(max);
        if left_out > 0 {
            // Keep a share of the requests of each server and kind.
            let count = all.len();
            let mut at = 0;
            all.retain(|_| {
                at += 1;
                at * max / count != (at - 1) * max / count
            });
        }
        (all, left_out)
    }

    fn server_listeners(&mut self, server: &NginxDirective) -> Vec<usize> {
        let names: Vec<String> = server
            .block_directives()
            .iter()
            .filter(|one| one.name == "listen")
            .map(|one| complete_address(one.first_arg()))
            .collect();
        let names = if names.is_empty() { vec!["*:80".to_owned()] } else { names };
        let mut found: Vec<usize> = names
            .iter()
            .filter_map(|name| self.listeners.iter().position(|known| known.name == *name))
            .collect();
        found.dedup();
        found
    }

    fn scope_folders(&mut self, scope: &Scope<'_>) -> Vec<(String, String)> {
        let mut found = Vec::new();
        for level in scope.levels.iter().skip(1) {
            for one in level.iter().filter(|one| one.name == "root") {
                let path = replace_constants(one.first_arg(), scope, 0);
                let fixed = self.scratch_path(path.split('$').next().unwrap_or(""), false);
                found.push((String::new(), fixed));
            }
        }
        found.reverse();
        found.truncate(1);
        if found.is_empty() {
            found.push((String::new(), format!("{}/roots/html", self.options.folder.display())));
        }
        found
    }

    fn probe_server(&mut self, scope: &Scope<'_>) -> ProbedLocation {
        let returns = scope.innermost_last("return").is_some();
        let mut runs_scripts = false;
        let mut scripts: Vec<&str> = Vec::new();
        super::tree::visit(scope.innermost(), &mut |one| {
            runs_scripts |= one.name == "fastcgi_pass";
            // The front script has to be there: paths without a file are for it.
            let last = one.args.last().filter(|_| one.name == "try_files");
            scripts.extend(last.and_then(|last| front_script(last)));
        });
        if runs_scripts {
            scripts.extend([
                "/index.php",
                "/verify.php/info",
                "/index.php/info/more",
                "/folder/missing.php",
                "/folder/index.php",
            ]);
        } else {
            scripts.clear();
        }
        ProbedLocation {
            response_kind: if returns { ResponseKind::Fixed } else { ResponseKind::Files },
            paths: [
                "/verify.txt",
                "/",
                "/index.html",
                "/folder/",
                "/folder",
                "/folder/verify.css",
                "/missing",
                "/missing.php",
                "/.verify",
                "/verify.php",
            ]
            .into_iter()
            .chain(scripts)
            .map(str::to_owned)
            .collect(),
            other_paths: Vec::new(),
            folders: self.scope_folders(scope),
            index: index_file(scope),
        }
    }

    fn collect_locations(
        &mut self,
        scope: &Scope<'_>,
        within: Option<&str>,
        found: &mut Vec<ProbedLocation>,
    ) {
        for one in scope.innermost().iter().filter(|one| one.name == "location") {
            let (operator, path) = match one.args.as_slice() {
                [path] => match path.strip_prefix("^~").or(path.strip_prefix('=')) {
                    Some(rest) if !rest.is_empty() => (&path[..path.len() - rest.len()], rest),
                    _ => ("", path.as_str()),
                },
                [operator, path] => (operator.as_str(), path.as_str()),
                _ => continue,
            };
            let inner = scope.with_block(one.block_directives());
            self.collect_locations(
                &inner,
                if operator.starts_with('~') { within } else { Some(path) },
                found,
            );
            if path.starts_with('@') {
                continue;
            }
            let (paths, beside) = match operator {
                "=" => {
                    (vec![path.to_owned()], vec![format!("{path}/"), format!("{path}x"), shorten_path(path)])
                }
                "~" | "~*" => paths_for_regex(path, operator == "~*", within),
                _ => paths_for_prefix(path),
            };
            let is_prefix = !operator.starts_with('~');
            let folders = match inner.innermost_last("alias") {
                Some(alias) => {
                    let target = self.scratch_path(alias.first_arg().split('$').next().unwrap_or(""), true);
                    vec![(if is_prefix { path.to_owned() } else { String::new() }, target)]
                }
                None => self.scope_folders(&inner),
            };
            found.push(ProbedLocation {
                response_kind: response_kind_of(one),
                paths: paths.into_iter().filter(|path| is_target(path)).take(PATHS_MAX).collect(),
                other_paths: beside.into_iter().filter(|path| is_target(path)).take(PATHS_MAX).collect(),
                folders,
                index: index_file(&inner),
            });
        }
    }

    /// Creates files for the paths of a location, except those with `missing` in their name.
    fn create_location_files(&mut self, place: &ProbedLocation, made: &mut BTreeSet<String>) {
        let scratch = self.options.folder.display().to_string();
        for path in place.paths.iter().chain(&place.other_paths).filter(|path| !path.contains("missing")) {
            for (prefix, folder) in &place.folders {
                let Some(rest) = path.strip_prefix(prefix.as_str()) else { continue };
                let Some(folder) = folder.strip_prefix(&scratch) else { continue };
                let last = folder.rsplit('/').next().unwrap_or("");
                let is_alias_of_file = rest.is_empty() && !prefix.is_empty() && last.contains('.');
                let rest = if rest.is_empty() && !is_alias_of_file { "/" } else { rest };
                let is_file = is_alias_of_file || !rest.ends_with('/');
                let slash = if prefix.is_empty() || !is_file || folder.ends_with('/') { "" } else { "/" };
                let slash = if rest.starts_with('/') { "" } else { slash };
                let rest = if folder.ends_with('/') { rest.trim_start_matches('/') } else { rest };
                let mut full = format!("{folder}{slash}{rest}").trim_start_matches('/').to_owned();
                if full.split('/').any(|segment| matches!(segment, "." | ".."))
                    || full.contains("//")
                    || full.contains(['%', '?', '\0'])
                    // A folder with the name of a script.
                    || full.contains(".php/")
                {
                    continue;
                }
                let last = full.rsplit('/').next().unwrap_or("");
                if is_file && !last.contains('.') && last != ".verify" {
                    full.push('/');
                }
                let full = if full.ends_with('/') { format!("{full}{}", place.index) } else { full };
                self.add_file(&full, made);
            }
        }
    }

    fn add_file(&mut self, path: &str, made: &mut BTreeSet<String>) {
        let below = format!("{path}/");
        let has_files_below = made.range(below.clone()..).next().is_some_and(|next| next.starts_with(&below));
        let mut parents = path.match_indices('/').map(|(at, _)| &path[..at]);
        if has_files_below || parents.any(|parent| made.contains(parent)) || !made.insert(path.to_owned()) {
            return;
        }
        let line = format!("{path}\n");
        let content = line.repeat(2048 / line.len() + 1).into_bytes();
        self.files.push(ScratchFile { path: path.to_owned(), content });
    }
}

fn response_kind_of(location: &NginxDirective) -> ResponseKind {
    let has =
        |test: &dyn Fn(&str) -> bool| location.block_directives().iter().any(|one| test(one.name.as_str()));
    match () {
        () if has(&|name| name.ends_with("_pass")) => ResponseKind::Proxy,
        () if has(&|name| matches!(name, "return" | "deny")) => ResponseKind::Fixed,
        () => ResponseKind::Files,
    }
}

/// Returns the first static file name of `index`.
fn index_file(scope: &Scope<'_>) -> String {
    let names = scope.effective_all("index").into_iter().flat_map(|one| one.args.iter());
    let mut plain = names.filter(|name| !name.contains(['$', '/']) && !name.ends_with(".php"));
    plain.next().map_or_else(|| "index.html".to_owned(), Clone::clone)
}

fn with_field(request: &VerifyRequest, name: &str, value: &str) -> VerifyRequest {
    let fields = vec![(name.to_owned(), value.to_owned())];
    VerifyRequest { fields, purpose: format!("{name}: {value}"), ..request.clone() }
}

/// Returns requests with a field once and with two values of it.
fn repeated_field_requests(request: &VerifyRequest, name: &str) -> Vec<VerifyRequest> {
    const VALUES: [&[&str]; 5] =
        [&["verify"], &["verify", "x"], &["x", "verify"], &["", "verify"], &["1", ""]];
    let of_values = |values: &&[&str]| VerifyRequest {
        fields: values.iter().map(|value| (name.to_owned(), (*value).to_owned())).collect(),
        purpose: format!("{name}: {}", values.join(" and ")),
        ..request.clone()
    };
    VALUES.iter().map(of_values).collect()
}

fn with_method(request: &VerifyRequest, method: &str, content: RequestContent) -> VerifyRequest {
    let what = match &content {
        RequestContent::Absent => format!("method {method}"),
        RequestContent::Sized(_) => format!("method {method} with content"),
        RequestContent::Chunked(_) => format!("method {method} with chunked content"),
    };
    VerifyRequest { method: method.to_owned(), content, purpose: what, ..request.clone() }
}

fn with_target(request: &VerifyRequest, target: String, what: &str) -> VerifyRequest {
    VerifyRequest { target, purpose: what.to_owned(), ..request.clone() }
}

/// Returns paths of locations appended to those of other locations.
fn combined_path_requests(base: &VerifyRequest, places: &[ProbedLocation]) -> Vec<VerifyRequest> {
    let mut all = Vec::new();
    for place in places {
        let Some(path) = place.paths.iter().find(|path| path.ends_with('/')) else { continue };
        for other in places.iter().filter_map(|other| other.paths.first()) {
            all.push(with_target(
                base,
                format!("{path}{}", other.trim_start_matches('/')),
                "a path below another",
            ));
        }
    }
    all
}

/// Returns the requests for every location if many configurations are compared.
fn basic_requests(request: &VerifyRequest) -> Vec<VerifyRequest> {
    let path = request.target.as_str();
    let (folder, name) = path.split_at(path.rfind('/').unwrap_or(0) + 1);
    let encoded: String = name.bytes().take(1).map(|b| format!("%{b:02x}")).collect();
    vec![
        with_target(request, format!("{path}?a=1&b=%20c"), "a query"),
        with_method(request, "HEAD", RequestContent::Absent),
        with_method(request, "POST", RequestContent::Sized(b"verify=1".to_vec())),
        with_method(request, "DELETE", RequestContent::Absent),
        with_field(request, "Authorization", CREDENTIALS),
        with_target(
            request,
            format!("{folder}{encoded}{}", name.get(1..).unwrap_or("")),
            "an encoded letter",
        ),
        with_target(request, format!("{folder}x/../{name}"), "a segment of two dots"),
        with_target(request, format!("{folder}/{name}"), "two slashes"),
        with_target(request, format!("{}%2F{name}", folder.trim_end_matches('/')), "an encoded slash"),
        with_target(request, format!("{path}%0A"), "an encoded line feed"),
    ]
}

/// Returns the requests for every location.
fn essential_requests(request: &VerifyRequest, answer: ResponseKind) -> Vec<VerifyRequest> {
    let content = || RequestContent::Sized(b"verify=1&text=content".to_vec());
    let mut all = vec![
        with_target(request, format!("{}?a=1&b=%20c", request.target), "a query"),
        with_method(request, "HEAD", RequestContent::Absent),
        with_method(request, "POST", content()),
        with_field(request, "Authorization", CREDENTIALS),
    ];
    if answer == ResponseKind::Files {
        all.push(with_field(request, "Accept-Encoding", "gzip"));
        all.push(with_field(request, "Range", "bytes=2-9"));
    }
    if answer == ResponseKind::Proxy {
        for wanted in ["status 404", "status 500", "status 503", "redirect"] {
            all.push(with_field(request, "X-Stub", wanted));
        }
    }
    all
}

/// Returns the requests for one location of each kind.
fn unusual_requests(request: &VerifyRequest, answer: ResponseKind) -> Vec<VerifyRequest> {
    let content = || b"verify=1&text=content".to_vec();
    let mut all = essential_requests(request, answer);
    for name in ["PUT", "DELETE", "PATCH"] {
        all.push(with_method(request, name, RequestContent::Sized(content())));
    }
    for name in ["OPTIONS", "TRACE", "PROPFIND", "VERIFY"] {
        all.push(with_method(request, name, RequestContent::Absent));
    }
    all.push(with_method(request, "POST", RequestContent::Chunked(content())));
    all.push(with_method(request, "POST", RequestContent::Sized(Vec::new())));
    all.push(with_method(request, "POST", RequestContent::Sized(vec![b'a'; 40_000])));
    all.push(with_method(request, "POST", RequestContent::Sized(vec![b'a'; 1_100_000])));
    for (name, value) in [
        ("Accept-Encoding", "br, gzip;q=0.5"),
        ("Accept-Encoding", "gzip;q=0"),
        ("Accept-Encoding", "gzip"),
        ("Range", "bytes=-5"),
        ("Range", "bytes=0-0,5-6"),
        ("Range", "bytes=99999999-"),
        ("Range", "items=1-2"),
        ("If-None-Match", "*"),
        ("If-None-Match", "\"verify\""),
        ("If-Match", "\"verify\""),
        ("If-Modified-Since", "Fri, 01 Jan 2100 00:00:00 GMT"),
        ("If-Modified-Since", "Mon, 01 Jan 1990 00:00:00 GMT"),
        ("If-Unmodified-Since", "Mon, 01 Jan 1990 00:00:00 GMT"),
        ("X-Forwarded-For", "192.0.2.1"),
        ("X-Forwarded-Proto", "https"),
        ("X-Forwarded-Host", "forged.example"),
        ("X_Underscore", "1"),
        ("Cookie", "a=1; session=verify"),
        ("Origin", "https://other.example"),
        ("Referer", "https://other.example/page"),
        ("User-Agent", "Mozilla/5.0 (verify)"),
        ("Authorization", "Basic d3Jvbmc6d3Jvbmc="),
        ("Connection", "X-Hop"),
        ("TE", "trailers"),
        ("Expect", "100-continue"),
        ("Upgrade-Insecure-Requests", "1"),
        ("Accept", "application/json"),
        ("Accept-Language", "de"),
    ] {
        all.push(with_field(request, name, value));
    }
    let both = [("Range", "bytes=2-9"), ("If-Range", "\"verify\"")];
    all.push(VerifyRequest {
        fields: both.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        purpose: "If-Range".to_owned(),
        ..request.clone()
    });
    if answer == ResponseKind::Proxy {
        for wanted in [
            "status 201",
            "status 401",
            "status 403",
            "status 502",
            "cookie",
            "redirect path",
            "headers",
            "empty",
        ] {
            all.push(with_field(request, "X-Stub", wanted));
        }
    }
    all
}

/// Returns requests with other spellings of the path.
fn spelling_requests(request: &VerifyRequest, path: &str) -> Vec<VerifyRequest> {
    let last = path.rfind('/').unwrap_or(0);
    let (folder, name) = path.split_at(last + 1);
    let encoded: String = name.bytes().take(1).map(|b| format!("%{b:02x}")).collect();
    [
        (format!("{folder}{encoded}{}", name.get(1..).unwrap_or("")), "an encoded letter"),
        (format!("{folder}x/%2e%2e/{name}"), "encoded dots"),
        (format!("{folder}x/../{name}"), "a segment of two dots"),
        (format!("{folder}./{name}"), "a segment of one dot"),
        (format!("{folder}/{name}"), "two slashes"),
        (format!("{}%2F{name}", folder.trim_end_matches('/')), "an encoded slash"),
        (format!("{folder}..%2f{name}"), "dots and an encoded slash"),
        ("/../../etc/passwd".to_owned(), "dots above the root"),
        ("/%2e%2e/%2e%2e/etc/passwd".to_owned(), "encoded dots above the root"),
        (format!("{folder}missing%20name"), "an encoded space"),
        (format!("{folder}missing%C3%A9"), "an encoded letter that is not ASCII"),
        (format!("{folder}missing%00"), "an encoded zero"),
        (format!("{folder}missing%zz"), "an escape that is none"),
        (format!("{folder}missing%25"), "an encoded percent sign"),
        (format!("{folder}missing;a=1"), "a parameter of a segment"),
        (format!("{folder}missing%3Fa"), "an encoded question mark"),
        (format!("{folder}missing+name"), "a plus sign"),
        (format!("{path}?"), "an empty query"),
        (format!("{path}?a=/../b//c"), "dots in the query"),
        (format!("{path}?a=%zz&b='<>\""), "odd characters in the query"),
        (format!("{path}#fragment"), "a fragment"),
        (path.to_uppercase(), "upper case"),
        ("*".to_owned(), "an asterisk"),
        (format!("{folder}{}", "a".repeat(3000)), "a long path"),
    ]
    .into_iter()
    .map(|(text, what)| with_target(request, text, what))
    .collect()
}

/// Returns requests with an unusual host or version.
fn host_requests(request: &VerifyRequest, host: &str) -> Vec<VerifyRequest> {
    let with_host = |host: Option<&str>, what: &str| VerifyRequest {
        host: host.map(str::to_owned),
        purpose: what.to_owned(),
        ..request.clone()
    };
    let mut all = vec![
        with_host(Some("unknown.invalid"), "a host that nobody names"),
        with_host(Some(&host.to_uppercase()), "the host in upper case"),
        with_host(Some(&format!("{host}.")), "the host with a final dot"),
        with_host(Some(&format!("{host}:8080")), "the host with a port"),
        with_host(Some("bad host"), "a host with a space"),
        with_host(Some("a/b"), "a host with a slash"),
        with_host(Some(""), "an empty host"),
        with_host(None, "no host"),
        with_host(Some("[::1]"), "an address as the host"),
    ];
    all.push(VerifyRequest { version: "1.0", purpose: "HTTP/1.0".to_owned(), ..request.clone() });
    all.push(VerifyRequest {
        version: "1.0",
        host: None,
        purpose: "HTTP/1.0 without a host".to_owned(),
        ..request.clone()
    });
    all.push(with_target(request, format!("http://{host}{}", request.target), "an absolute target"));
    all.push(with_field(request, "Host", "second.example"));
    all.push(with_field(request, "Content-Length", "x"));
    all
}
