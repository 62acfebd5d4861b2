//! `komainu check`: errors of a configuration, and the route that answers a URL.

use std::io::{self, Write};
use std::net::IpAddr;
use std::path::PathBuf;

use cache_handler::urls::listener_key_for;
use clap::Args;
use config::matcher::{RouteId, RouteRequest, Routes};
use config::{Action, Config, EncodedSlashes};
use engine::clients::access::ClientAccess;
use failure::Failure;
use http::path::{has_encoded_slash, matched_path};
use net::Peer;
use routing::path_rules::{MapValues, PathRules, ROUNDS_MAX, route_prefix};
use routing::php;
use routing::route::ProgramFolder;

use crate::assemble::routes::convert_merge_slashes;
use crate::check::reading::read;
use crate::check::start_checks;
use crate::terminal;

#[derive(Debug, Args)]
pub(crate) struct CheckArguments {
    /// The configuration file
    #[arg(long, short, value_name = "FILE", default_value = "komainu.toml")]
    pub(crate) config: PathBuf,
    /// Show, route by route, how a request for this URL is answered
    #[arg(long, value_name = "URL")]
    pub(crate) explain: Option<String>,
    /// The method of the request to explain
    #[arg(long, value_name = "METHOD", default_value = "GET", requires = "explain")]
    pub(crate) method: String,
    /// A header field of the request to explain. May be repeated
    #[arg(long, short = 'H', value_name = "NAME: VALUE", requires = "explain")]
    pub(crate) header: Vec<String>,
    /// The address of the client of the request to explain; without one, conditions of clients are not met
    #[arg(long, value_name = "ADDRESS", requires = "explain")]
    pub(crate) client: Option<std::net::IpAddr>,
}

/// Checks a configuration and, with `--explain`, prints the route that answers a URL.
///
/// # Errors
/// The errors, rendered for the user.
pub(crate) fn run_check(arguments: &CheckArguments) -> Result<(), Failure> {
    let (config, mut warned) = read(&arguments.config)?;
    // Errors that need the file system, such as missing directories and error pages.
    let plan = crate::assemble::routes::ServerPlan::new(config, None, 1, None)?;
    let config = &plan.config;
    let tls = plan.tls();
    let of_files = tls.iter().flat_map(|tls| tls.warnings()).cloned();
    let of_files = of_files.chain(plan.control_access.warnings().iter().cloned());
    let of_system = start_checks::start_warnings(config);
    for text in
        of_files.chain(certificates::managed::warnings(&config.certificate_settings())).chain(of_system)
    {
        terminal::print_error_line(&format!("warning: {text}"));
        warned += 1;
    }
    if let Some(dns) = &config.acme.dns {
        certificates::managed::dns_server(dns, &process::config_files::ConfigFiles::default())?;
    }
    certificates::managed::files_exist(&config.acme)?;
    start_checks::check_users(config)?;
    start_checks::check_logs(config)?;
    let text = match &arguments.explain {
        Some(url) => explain(config, url, arguments)?,
        None => {
            let written =
                |site: &config::Site| site.routes.iter().filter(|route| route.part_of.is_none()).count();
            let routes: usize = config.sites.iter().map(|site| written(site)).sum();
            let mut counts = vec![format_count(config.sites.len(), "site"), format_count(routes, "route")];
            if !config.streams.is_empty() {
                counts.push(format_count(config.streams.len(), "stream"));
            }
            let verdict = match warned {
                0 => "fine".to_owned(),
                count => format!("valid, with {}", format_count(count, "warning")),
            };
            format!("{}: {verdict}: {}\n", arguments.config.display(), counts.join(", "))
        }
    };
    io::stdout().write_all(terminal::sanitize(&text).as_bytes()).map_err(Failure::from)
}

/// Formats a count with its noun: `1 site`, `2 sites`.
fn format_count(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

fn explain(config: &Config, url: &str, arguments: &CheckArguments) -> Result<String, Failure> {
    let (host, target) = split_url(url)?;
    let mut text = String::new();
    let mut target = target.to_owned();
    for round in 0..=ROUNDS_MAX {
        let (said, next) = explain_route(config, url, host, &target, arguments)?;
        text.push_str(&said);
        let Some(next) = next else { break };
        if round == ROUNDS_MAX {
            text.push_str("more than 10 routes have rewritten the path: 500\n");
            break;
        }
        text.push_str(&format!("the search begins again with {next}\n"));
        target = next;
    }
    Ok(text)
}

/// Explains the route for a target. If the route rewrites the path and searches again, returns the new target
/// as well.
fn explain_route(
    config: &Config,
    url: &str,
    host: &str,
    target: &str,
    arguments: &CheckArguments,
) -> Result<(String, Option<String>), Failure> {
    let (raw_path, query) = target.split_once('?').unwrap_or((target, ""));
    let raw_path = if raw_path.is_empty() { "/" } else { raw_path };
    let routes = Routes::compile(config);
    let listener_key = listener_key_for(config, host.as_bytes(), url.starts_with("https://"));
    let site = routes.site(host.as_bytes(), listener_key);
    let empty_segments = convert_merge_slashes(config.settings(site, None).merge_slashes);
    let path = matched_path(raw_path.as_bytes(), empty_segments).map_err(|reject| {
        format!(
            "{url}: this is answered {} without looking at routes: {}",
            reject.status.code(),
            reject.reason
        )
    })?;
    let mut headers = Vec::new();
    for header in &arguments.header {
        let (name, value) =
            header.split_once(':').ok_or(format!("{header:?}: a header field is NAME: VALUE"))?;
        headers.push((name.trim().to_ascii_lowercase(), value.trim()));
    }
    let request = RouteRequest {
        host: host.as_bytes(),
        listener_key,
        method: arguments.method.as_bytes(),
        path: &path,
        query: query.as_bytes(),
        client: arguments.client.map(|address| address.to_canonical()),
        country: None,
    };
    if !headers.iter().any(|(name, _)| name == "host") {
        headers.push(("host".to_owned(), host));
    }
    let fields = || ExplainedFields(&headers);
    let mut text = routes.explain_match(&request, fields()).text(&config.sites);
    if *path != *raw_path.as_bytes() {
        text = format!("routes match {:?}\n{text}", String::from_utf8_lossy(&path));
    }
    let route = routes.find(&request, fields());
    if let Some(found) = route {
        if config.sites[found.site].routes[found.route].internal {
            text.push_str("  but clients get 404 (`internal`)\n");
            return Ok((text, None));
        }
        text.extend(explain_guards(config, found));
    }
    text.extend(
        route.zip(arguments.client).and_then(|(route, client)| explain_client_refusal(config, route, client)),
    );
    text.extend(route.and_then(|own| {
        explain_script_route(config, own, &path, &mut |script| {
            routes.find(&RouteRequest { path: script, ..request }, fields())
        })
    }));
    if let Some(refusal) = route.and_then(|route| explain_path_refusal(config, route, raw_path.as_bytes())) {
        text.push_str(&refusal);
    }
    let found = route.map(|found| &config.sites[found.site].routes[found.route]);
    let rules =
        found.and_then(|route| PathRules::new(route, MapValues::new(config, None).as_ref()).zip(Some(route)));
    let Some((rules, route)) = rules else { return Ok((text, None)) };
    let target = if target.starts_with('/') { target.to_owned() } else { format!("/{target}") };
    match rules.explain(host, &target, &path, empty_segments, &route_prefix(route)) {
        Ok(None) => {}
        Ok(Some(next)) if rules.rewrites_only => {
            return Ok((text, Some(String::from_utf8_lossy(&next).into_owned())));
        }
        Ok(Some(next)) => {
            text.push_str(&format!("  it gets the path {}\n", String::from_utf8_lossy(&next)));
        }
        Err(reject) => {
            text.push_str(&format!("  but the answer is {}: {}\n", reject.status.code(), reject.reason));
        }
    }
    Ok((text, None))
}

/// Header fields of the request to explain.
struct ExplainedFields<'a>(&'a [(String, &'a str)]);

impl config::matcher::ConditionFields for ExplainedFields<'_> {
    fn any_value(&self, name: &str, fits: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        self.0.iter().any(|(other, value)| other == name && fits(value.as_bytes()))
    }
}

/// Names the directives of a route that may refuse a request, in the order of their steps.
fn explain_guards(config: &Config, found: RouteId) -> Option<String> {
    let (site, route) = (&config.sites[found.site], config.route(found));
    let settings = config.route_settings(found);
    let asked = [
        ("`allow`", !settings.allow.is_empty()),
        ("`deny`", !settings.deny.is_empty()),
        ("`maintenance`", settings.maintenance.is_some()),
        ("`crawlers`", settings.crawlers.is_some()),
        ("`header_limit`", settings.headers_max.is_some()),
        ("`limit`", !site.limit.is_empty() || !route.limit.is_empty()),
        ("`auth`", settings.auth.is_some()),
        ("`fault`", !route.faults.is_empty()),
        ("`queue`", route.queue.is_some()),
    ];
    let names: Vec<&str> = asked.iter().filter(|(_, has)| *has).map(|(name, _)| *name).collect();
    (!names.is_empty()).then(|| format!("  before it answers: {}\n", names.join(", ")))
}

/// Explains that a script or program on the path (`/a.php/b`) has a route of its own, whose guards count too. `find` returns the
/// route of a path.
fn explain_script_route(
    config: &Config,
    own: RouteId,
    path: &[u8],
    find: &mut dyn FnMut(&[u8]) -> Option<RouteId>,
) -> Option<String> {
    let route = config.route(own);
    let (script, other, kind) = if let Some(programs) = ProgramFolder::of(route) {
        let program = programs.program_within(path)?;
        (program, find(program).filter(|other| *other != own)?, "program")
    } else if php::php_app(config, route).is_some() || php::script_server(route).is_some() {
        let mut found =
            files::scripts_within(path).filter_map(|script| Some((script, find(script)?, "script")));
        found.find(|(_, other, _)| *other != own)?
    } else {
        return None;
    };
    let place = config.route(other).line.as_ref().map_or_else(String::new, |line| format!(" ({line})"));
    let script = String::from_utf8_lossy(script);
    let guards = explain_guards(config, other).unwrap_or_default();
    Some(format!(
        "  if {script} is a {kind}, the guards of its route{place} count too: of the two routes the one that has the guards \
         of both answers, and if none has, the answer is 404\n{guards}"
    ))
}

/// Explains that the site or route refuses the client.
fn explain_client_refusal(config: &Config, found: RouteId, client: IpAddr) -> Option<String> {
    let access = ClientAccess::of_route(&config.route_settings(found));
    let is_admitted = access.admits(Peer::Tcp((client, 0).into()));
    (!is_admitted).then(|| format!("  but the client {client} gets 403 (`allow`, `deny`)\n"))
}

/// Explains that the route refuses an encoded slash.
fn explain_path_refusal(config: &Config, id: RouteId, raw_path: &[u8]) -> Option<String> {
    if !has_encoded_slash(raw_path) {
        return None;
    }
    let found = config.route(id);
    let kept = config.route_settings(id).encoded_slashes == EncodedSlashes::Keep;
    let why = match (kept, &found.action, &found.otherwise) {
        (false, ..) => "`encoded_slashes` is \"refuse\"",
        (true, Action::Files(_), None) => "no file has a slash in its name",
        _ => return None,
    };
    Some(format!("  but there is an encoded slash or backslash in the path: 400 ({why})\n"))
}

/// Splits a URL or bare path into host and target; the target may be empty, or only a query.
fn split_url(url: &str) -> Result<(&str, &str), Failure> {
    if url.starts_with('/') {
        return Ok(("", url));
    }
    let rest = match url.split_once("://") {
        Some(("http" | "https" | "ws" | "wss", rest)) => rest,
        Some(_) => return Err(Failure::new(format!("{url:?}: the scheme of a URL here is http or https"))),
        None => url,
    };
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (host, target) = rest.split_at(end);
    if !http::target::is_authority(host.as_bytes()) {
        return Err(Failure::new(format!(
            "{url:?}: write a URL such as http://example.com/path, or a path such as /path"
        )));
    }
    Ok((host, target))
}
