//! The `proxy` action: which upstream servers, and how requests travel to them and responses back.

use crate::check::{Checker, InvalidValue};
use crate::files::{StripPrefix, rooted, strip_text};
use crate::header;
use crate::node::{Entry, Node};
use crate::record::{brief, directives, table};
use crate::shape::{
    Count, Flag, List, Map, Maybe, OneOrMore, PathShape, Size, Text, Time, Toggle, Unlimited, Word,
};
use crate::template::template;
use crate::units::{KIB, MIB, SPILL_MAX};
use crate::upstream::{Balance, Origin, UrlShape, group_name};
use http::Template;
use std::path::PathBuf;
use std::time::Duration;

/// What stands in `Host`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UpstreamHost {
    /// What the client sent.
    Pass,
    /// The server's own.
    Upstream,
    /// This.
    Text(String),
}

/// A version of the PROXY protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyProtocol {
    /// None.
    Off,
    /// The line of text.
    V1,
    /// The binary header.
    V2,
}

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);
const WAIT: Time = Time { min: Duration::from_millis(10), max: DAY };

const BALANCE: Text<Balance> =
    Text { what: "a way of balancing such as \"least-requests\"", parse: Balance::parse };
const STATUSES: List<Count<u16>> = List(Count { min: 400, max: 599 });
const PROTOCOLS: List<Text<String>> =
    List(Text { what: "a protocol such as \"websocket\"", parse: protocol });
const NAMES: List<Text<String>> = List(Text { what: "a header name", parse: rule_name });
/// What a header value may name.
const VARIABLES: &[&str] = &[
    "client_ip",
    "remote_addr",
    "client_port",
    "scheme",
    "host",
    "method",
    "path",
    "query",
    "args",
    "uri",
    "upstream",
    "http_NAME",
    "cookie_NAME",
];
const FIELDS: Map<String, Text<Template>> = Map {
    what: "header names",
    key: rule_name,
    value: Text { what: "a header value", parse: value_template },
};
const DOMAINS: Map<String, Text<String>> =
    Map { what: "cookie domains", key: domain, value: Text { what: "a domain", parse: domain } };

directives! {
    /// Passes requests on to upstream servers. Just a URL, or a list of such, stands for `to` alone; connections
    /// are kept for the next request as a matter of course.
    ///
    /// ```toml
    /// [[route]]
    /// path  = "/api/*"
    /// proxy = { to = ["http://127.0.0.1:3000", "unix:/run/api.sock"], balance = "least-requests" }
    ///
    /// [[route]]
    /// proxy = "http://127.0.0.1:8000"
    /// ```
    ///
    /// Komainu writes each request to the upstream server from what it has parsed, and fields that concern one
    /// connection alone (RFC 9110 section 7.6.1) are not passed on. With `files` in the same route, files come
    /// first, and upstream servers get what no file answers.
    ///
    /// Routes that ask the same servers share them under a name: their connections, limits, health and turns. What a
    /// route says itself takes the place of what the group says, as a whole.
    ///
    /// ```toml
    /// [upstreams.shop]
    /// to      = ["http://10.0.0.1:3000", "http://10.0.0.2:3000"]
    /// balance = "least-requests"
    /// health  = "/up"
    ///
    /// [[route]]
    /// path  = "/reports/*"
    /// proxy = { upstream = "shop", timeouts = { head = "10m" } }
    ///
    /// [[route]]
    /// proxy = { upstream = "shop" }
    /// ```
    Proxy in "`proxy` and `[upstreams.NAME]`", check proxy_agrees {
        /// The upstream server, or several: URLs, or tables with more to say.
        "to" to: Vec<Upstream> = absent("the servers of `upstream`"), OneOrMore(brief::<Upstream>("url"));
        /// The `[upstreams.NAME]` whose servers these are.
        "upstream" upstream: Option<String> = absent("servers of its own, in `to`"),
            Maybe(Text { what: "the name of an `[upstreams.NAME]`", parse: group_name });
        /// Who of several gets a request: `"round-robin"`, each in turn; `"least-requests"`, the one with the fewest
        /// under way; `"two-choices"`, the less busy of two picked at random; `"hash:client"`, `"hash:uri"`,
        /// `"hash:header:NAME"` and `"hash:cookie:NAME"`, the same one for the same client address, path and query,
        /// field or cookie; `"sticky"`, the one that a cookie set by the proxy names (`"sticky:COOKIE"` names the
        /// cookie).
        "balance" balance: Balance = "round-robin", BALANCE;
        /// Connections kept for the next request; `false` keeps none.
        "keep_alive" keep_alive: KeepAlive = {}, Toggle { on: None, off: KeepAlive::none, shape: table() };
        /// How long things may take.
        "timeouts" timeouts: ProxyTimeouts = {}, table();
        /// When a request is sent again; `false` never.
        "retry" retry: Retry = {}, Toggle { on: None, off: Retry::none, shape: table() };
        /// When a server that fails is ejected: it gets no requests for a time. `false` ejects none.
        "eject" eject: Option<Eject> = {}, Toggle { on: None, off: || None, shape: Maybe(table::<Eject>()) };
        /// Requests of the proxy's own that find out which servers are well. Just a path asks for that path; `true`
        /// only connects.
        "health" health: Option<Health> = false,
            Toggle { on: Some(|| Some(Health::default())), off: || None, shape: Maybe(brief::<Health>("path")) };
        /// A server that comes back gets its full share only after this time.
        "slow_start" slow_start: Duration = "0s", Time { min: Duration::ZERO, max: HOUR };
        /// Requests that wait when every server is at its `connections`; more are answered 503.
        "queue" queue_max: u32 = 1000, Count { min: 0, max: 1_000_000 };
        /// How often names are resolved again.
        "resolve" resolve: Duration = "30s", Time { min: SECOND, max: DAY };
        /// TLS to servers with `https` URLs.
        "tls" tls: ProxyTls = {}, table();
        /// What stands in `Host`: `"pass"`, what the client sent, also where that is empty; `"upstream"`, the server's own; or a text.
        "host" host: UpstreamHost = "pass",
            Text { what: "\"pass\", \"upstream\" or a host", parse: upstream_host };
        /// Fields that tell who the client is.
        "forwarded" forwarded: Forwarded = {}, table();
        /// Changes to the header fields of requests.
        "request_headers" request_headers: ProxyHeaders = {}, table();
        /// Changes to the header fields of the upstream's responses; those of the route come after.
        "response_headers" response_headers: ProxyHeaders = {}, table();
        /// Whether fields with `_` in their names are passed on, which applications cannot tell from those with `-`.
        "underscores" underscores: bool = false, Flag;
        /// Taken off the start of the path: `true` takes off what the route's `path` says before its final `/*`, a
        /// text takes off that text.
        "strip_prefix" strip_prefix: StripPrefix = false,
            Toggle {
                on: Some(|| StripPrefix::OfRoute),
                off: || StripPrefix::None,
                shape: Text { what: "the start of a path, such as \"/api\"", parse: strip_text },
            };
        /// Put at the start of the path, after `strip_prefix`.
        "add_prefix" add_prefix: Option<String> = absent("nothing is"),
            Maybe(Text { what: "the start of a path, such as \"/app\"", parse: prefix });
        /// Whether `Location`, `Content-Location` and `Refresh` that name an upstream server, or a path as it sees it,
        /// and the paths of cookies, become what the client sees.
        "rewrite" rewrite: bool = true, Flag;
        /// Domains of cookies to replace; an empty one takes the domain away.
        "cookie_domains" cookie_domains: Vec<(String, String)> = {}, DOMAINS;
        /// Tells servers who the client is ahead of everything else, by the PROXY protocol: `"v1"` is a line of text,
        /// `"v2"` binary. Connections then serve one client each and are not kept.
        "proxy_protocol" proxy_protocol: ProxyProtocol = "off",
            Word(&[("off", ProxyProtocol::Off), ("v1", ProxyProtocol::V1), ("v2", ProxyProtocol::V2)]);
        /// Protocols that clients may switch to with `Upgrade`.
        "upgrades" upgrades: Vec<String> = ["websocket"], PROTOCOLS;
        /// Bytes of a response read ahead of a slow client. A response that fits frees its upstream connection at
        /// once, and a request whose announced length fits takes one only when its body is here.
        "read_ahead" read_ahead_bytes: u64 = "64KiB", Size { min: 4 * KIB, max: 64 * MIB };
        /// Bytes of temporary files (`temp_path`) for what is beyond `read_ahead` of responses, of all clients of the route
        /// together, so that a slow client holds no upstream connection; `spill` of `[limits]` bounds those of all routes.
        /// 0 turns it off. Where it does not suffice, the upstream server waits for slow clients.
        "spill" spill_bytes_max: u64 = "1GiB", Size { min: 0, max: SPILL_MAX };
        /// Limits on the heads of responses; one beyond them is answered 502.
        "limits" limits: ProxyLimits = {}, table();
    }
}

directives! {
    /// An upstream server. Just its URL stands for `url` alone.
    ///
    /// ```toml
    /// [[route]]
    /// [route.proxy]
    /// to = [
    ///     { url = "http://10.0.0.1:3000", weight = 2 },
    ///     { url = "http://10.0.0.2:3000" },
    ///     { url = "http://10.0.1.1:3000", backup = true },
    /// ]
    /// ```
    Upstream in "`to` of `proxy`" {
        /// Where it is: `http://HOST:PORT`, `https://HOST:PORT`, or `unix:PATH` for a Unix socket. Without a port it is
        /// 80, or 443.
        "url" url: Origin = required(""), UrlShape;
        /// Its share of the requests; 0 takes it out.
        "weight" weight: u32 = 1, Count { min: 0, max: 1000 };
        /// Whether it is asked only when no other server can be.
        "backup" backup: bool = false, Flag;
        /// Requests that it gets at once; more wait, as `queue` and `timeouts` say.
        "connections" connections_max: Option<u32> = "unlimited", Unlimited(Count { min: 1, max: 1_000_000 });
        /// TLS to this server, in place of the group's.
        "tls" tls: Option<ProxyTls> = absent("as the group has it"), Maybe(table::<ProxyTls>());
    }
}

directives! {
    /// Connections kept for the next request. The numbers are for one server. What idles belongs to all of Komainu's threads and
    /// to all routes that ask the server: none is opened while one idles, and while a new one gets no answer for several times
    /// as long as the server usually takes, others are closed instead of kept, because some servers give a process to each
    /// connection.
    KeepAlive in "`keep_alive` of `proxy`" {
        /// Idle connections kept, over all threads.
        "connections" connections_max: u32 = 1024, Count { min: 0, max: 100_000 };
        /// How long one may lie idle; less, where the server announces less.
        "idle" idle: Duration = "60s", WAIT;
        /// Requests after which a connection is closed.
        "requests" requests_max: Option<u32> = "unlimited", Unlimited(Count { min: 1, max: 1_000_000_000 });
    }
}

directives! {
    /// How long the proxy waits.
    ProxyTimeouts in "`timeouts` of `proxy`" {
        /// To connect, name resolution and TLS handshake included.
        "connect" connect: Duration = "5s", WAIT;
        /// How long the server may take from the request's last byte to the whole head of the response.
        "head" head: Duration = "60s", WAIT;
        /// How long the server may send or take nothing of a body.
        "between" between: Duration = "60s", WAIT;
        /// How long the whole request may take, retries and body included.
        "total" total: Option<Duration> = "unlimited", Unlimited(WAIT);
        /// How long a request may wait in the queue while every server is at its `connections`.
        "queue" queue: Duration = "10s", WAIT;
        /// How long an upgraded connection (a WebSocket) may carry no byte either way before it is closed.
        "tunnel" tunnel: Duration = "1h", WAIT;
        /// How long Komainu waits for the server's `100 Continue`; then it sends the body without. It does not wait for
        /// clients that send the body at once.
        "continue" expect: Duration = "1s", WAIT;
    }
}

directives! {
    /// When a request is sent again, to another server where there is one: only before the client has been
    /// answered, and only where nothing was sent or the method is idempotent (RFC 9110 section 9.2.2). A kept
    /// connection that turns out to be closed does not count.
    Retry in "`retry` of `proxy`" {
        /// Attempts in all.
        "attempts" attempts_max: u32 = 3, Count { min: 1, max: 100 };
        /// Retries for each 100 requests, so that retries cannot drown what is left of a failing group.
        "budget" budget_percent: u32 = 20, Count { min: 0, max: 1000 };
        /// Statuses of responses that count as failures, such as 502, 503 and 429.
        "statuses" statuses: Vec<u16> = [], STATUSES;
        /// Whether other methods are repeated too, as if they were idempotent. An order may then be placed twice.
        "non_idempotent" non_idempotent: bool = false, Flag;
        /// Bytes of a request body kept for it; there is none for a longer body.
        "body" body_bytes_max: u64 = "64KiB", Size { min: 0, max: 64 * MIB };
    }
}

directives! {
    /// When a server is ejected, so that it gets no requests for a time. Failures are connections that are refused, close
    /// before the response, time out, or bring no valid response. A server without another beside it is never ejected;
    /// where all servers are, they get requests all the same.
    Eject in "`eject` of `proxy`", check eject_agrees {
        /// Failures in a row.
        "failures" failures_max: u32 = 3, Count { min: 1, max: 1000 };
        /// How long a server is ejected the first time. Each further time doubles it. Afterwards one request tests whether
        /// the server answers again.
        "first" first: Duration = "5s", WAIT;
        /// The longest time that a server is ejected.
        "max" max: Duration = "5m", WAIT;
    }
}

directives! {
    /// Requests of the proxy's own that find out which servers are well.
    ///
    /// ```toml
    /// [[route]]
    /// proxy = { to = ["http://10.0.0.1:3000", "http://10.0.0.2:3000"], health = { path = "/up", interval = "2s" } }
    /// ```
    Health in "`health` of `proxy`", check health_agrees {
        /// The path to ask for.
        "path" path: Option<String> = absent("a connection that comes about is enough"),
            Maybe(Text { what: "a path such as \"/up\"", parse: asked_path });
        /// What stands in `Host`.
        "host" host: Option<String> = absent("the server's own"),
            Maybe(Text { what: "a host", parse: host_text });
        /// Statuses of a healthy server: one, or a range.
        "expect" expect: (u16, u16) = "200-399",
            Text { what: "a status such as \"200\", or a range such as \"200-399\"", parse: statuses };
        /// How often.
        "interval" interval: Duration = "5s", Time { min: Duration::from_millis(100), max: DAY };
        /// How long an answer may take.
        "timeout" timeout: Duration = "2s", WAIT;
        /// Good answers in a row that bring a server back.
        "rise" rise: u32 = 2, Count { min: 1, max: 1000 };
        /// Bad ones in a row that take it out.
        "fall" fall: u32 = 3, Count { min: 1, max: 1000 };
    }
}

directives! {
    /// TLS to upstream servers.
    ProxyTls in "`tls` of `proxy`", check tls_agrees {
        /// The name to ask for (SNI) and to verify.
        "name" name: Option<String> = absent("the URL's host"),
            Maybe(Text { what: "a host name", parse: host_text });
        /// Whether the server's certificate is verified. Without it, anybody on the way can read and change
        /// everything.
        "verify" verify: bool = true, Flag;
        /// Certificates (PEM) to trust.
        "ca" ca: Option<PathBuf> = absent("those that the system trusts"), Maybe(PathShape("a file"));
        /// Our own certificate chain (PEM), for servers that ask who we are.
        "certificate" certificate: Option<PathBuf> = absent("none"), Maybe(PathShape("a file"));
        /// Its key (PEM).
        "key" key: Option<PathBuf> = absent("none"), Maybe(PathShape("a file"));
    }
}

directives! {
    /// Fields that tell upstream servers who the client is. What those of `trusted_proxies` say in them is believed and
    /// added to; anybody else's claims are replaced.
    Forwarded in "`forwarded` of `proxy`" {
        /// Whether `X-Forwarded-For`, `X-Forwarded-Proto` and `X-Forwarded-Host` are written.
        "x_forwarded" x_forwarded: bool = true, Flag;
        /// Whether `Forwarded` (RFC 7239) is written.
        "standard" standard: bool = false, Flag;
        /// Our name in `Via`; `false` for no `Via`. A mark of this route and process follows it, by which a request that comes
        /// back is known: it is answered 508.
        "via" via: Option<String> = "komainu",
            Toggle { on: None, off: || None, shape: Maybe(Text { what: "a name", parse: token }) };
    }
}

directives! {
    /// Changes to header fields on their way: `remove`, then `set`, then `add`.
    ProxyHeaders in "`request_headers` and `response_headers` of `proxy`" {
        /// Fields to write in place of those of the same name. A value may name the variables of the site's `response_headers`,
        /// and `$upstream`, the `host:port` of the server that gets the request.
        "set" set: Vec<(String, Template)> = {}, FIELDS;
        /// Fields to write besides those of the same name. Values as in `set`.
        "add" add: Vec<(String, Template)> = {}, FIELDS;
        /// Names of fields to leave out.
        "remove" remove: Vec<String> = [], NAMES;
    }
}

directives! {
    /// Limits on the heads of responses.
    ProxyLimits in "`limits` of `proxy`" {
        /// Bytes of a head, the status line included.
        "head" head_bytes_max: u64 = "32KiB", Size { min: KIB, max: MIB };
        /// Bytes of a status line.
        "status_line" status_line_bytes_max: u64 = "8KiB", Size { min: 256, max: MIB };
        /// Header fields.
        "headers" headers_max: u32 = 200, Count { min: 1, max: 10_000 };
        /// Whether a lone LF ends a line.
        "lenient_bare_lf" lenient_bare_lf: bool = false, Flag;
    }
}

impl KeepAlive {
    fn none() -> Self {
        Self { connections_max: 0, ..Self::default() }
    }
}

impl Retry {
    fn none() -> Self {
        Self { attempts_max: 1, ..Self::default() }
    }
}

impl Proxy {
    /// The defaults, for these servers.
    pub fn to(urls: impl IntoIterator<Item = Origin>) -> Self {
        let upstream = |url| Upstream { url, ..Upstream::default() };
        Self { to: urls.into_iter().map(upstream).collect(), ..Self::default() }
    }
}

fn proxy_agrees(proxy: &mut Proxy, node: &Node, check: &mut Checker) {
    if proxy.upstream.is_some() {
        return; // what the group says was looked at with the group
    }
    let Some(to) = node.entry("to") else {
        if node.entry("upstream").is_none() {
            let title = format!("`{}.to` is missing", check.here());
            let finding = check.error(&node.at, title, "no `to` here");
            finding.help("name the upstream servers, or with `upstream` a group of such");
        }
        return;
    };
    let items = match node.items("to") {
        [] => std::slice::from_ref(&to.value),
        items => items,
    };
    if items.len() != proxy.to.len() {
        return;
    }
    for (index, upstream) in proxy.to.iter().enumerate() {
        if upstream.url == Origin::default() {
            continue; // reported already: it could not be read
        }
        let earlier = proxy.to[..index].iter().position(|earlier| earlier.url == upstream.url);
        if let Some(earlier) = earlier {
            let finding = check.error(&items[index].at, "one upstream server twice".to_owned(), "again here");
            finding
                .related(items[earlier].at.clone(), "first given here")
                .help("give one a `weight` instead");
        }
    }
    if proxy.to.iter().all(|upstream| upstream.backup) {
        let finding = check.error(&to.value.at, "only backup servers".to_owned(), "for whom?");
        finding.help("leave `backup` out: a backup is asked when no other server can be");
    } else if proxy.to.iter().all(|upstream| upstream.weight == 0) {
        let finding = check.error(&to.value.at, "no server has any weight".to_owned(), "who shall answer?");
        finding.help("give at least one a `weight` above 0");
    }
    for (upstream, item) in proxy.to.iter().zip(items) {
        if let Some(tls) = item.entry("tls").filter(|_| !upstream.url.is_tls()) {
            useless_tls(tls, check);
        }
    }
    if let Some(tls) = node.entry("tls").filter(|_| !proxy.to.iter().any(|upstream| upstream.url.is_tls())) {
        useless_tls(tls, check);
    }
    match node.entry("keep_alive") {
        Some(entry) if proxy.proxy_protocol != ProxyProtocol::Off && proxy.keep_alive.connections_max > 0 => {
            let title = "`keep_alive` beside `proxy_protocol`".to_owned();
            check.warning(&entry.value.at, title, "has no effect").help("each connection serves one client");
        }
        _ => {}
    }
}

fn useless_tls(entry: &Entry, check: &mut Checker) {
    let finding = check.error(&entry.key_at, "`tls` without an `https` URL".to_owned(), "to which server?");
    finding.help("write the server's URL as \"https://HOST:PORT\"");
}

fn eject_agrees(eject: &mut Eject, node: &Node, check: &mut Checker) {
    if eject.first <= eject.max {
        return;
    }
    let at =
        ["first", "max"].iter().find_map(|key| node.entry(key)).map_or(&node.at, |entry| &entry.value.at);
    check.error(at, format!("`first` is above `max` in `{}`", check.here()), "longer than the longest");
}

fn health_agrees(health: &mut Health, node: &Node, check: &mut Checker) {
    for key in ["host", "expect"] {
        if let Some(entry) = node.entry(key).filter(|_| health.path.is_none() && node.entry("path").is_none())
        {
            let title = format!("`{key}` without `path` in `{}`", check.here());
            check
                .error(&entry.key_at, title, "of which answer?")
                .help("without `path`, nothing is asked for");
        }
    }
}

fn tls_agrees(tls: &mut ProxyTls, node: &Node, check: &mut Checker) {
    for (one, other) in [("certificate", "key"), ("key", "certificate")] {
        if let Some(entry) = node.entry(one).filter(|_| node.entry(other).is_none()) {
            let title = format!("`{one}` without `{other}` in `{}`", check.here());
            check.error(&entry.key_at, title, format!("where is its `{other}`?"));
        }
    }
    if let Some(entry) = node.entry("ca").filter(|_| !tls.verify) {
        let title = format!("`ca` beside `verify = false` in `{}`", check.here());
        check
            .error(&entry.key_at, title, "nothing is verified")
            .help("leave `verify` out: `ca` makes it work");
    }
}

fn protocol(text: &str) -> Result<String, InvalidValue> {
    match token(text)?.to_ascii_lowercase().as_str() {
        "h2c" => Err(InvalidValue::new("`h2c` would carry requests past every rule", "leave it out")),
        lower => Ok(lower.to_owned()),
    }
}

fn token(text: &str) -> Result<String, InvalidValue> {
    match text.chars().all(header::is_token) && !text.is_empty() {
        true => Ok(text.to_owned()),
        false => Err(InvalidValue::new("a word of letters, digits and hyphens belongs here", "")),
    }
}

/// A field that rules may change.
fn rule_name(text: &str) -> Result<String, InvalidValue> {
    match text.to_ascii_lowercase().as_str() {
        "host" => Err(InvalidValue::new("`host` of `proxy` says what stands in `Host`", "")),
        _ => header::rule_name(text),
    }
}

fn value_template(text: &str) -> Result<Template, InvalidValue> {
    template(&header::value(text)?, VARIABLES)
}

fn domain(text: &str) -> Result<String, InvalidValue> {
    match text.chars().find(|c| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'))) {
        Some(wrong) => Err(InvalidValue::new(format!("a domain holds no {wrong:?}"), "")),
        None => Ok(text.to_ascii_lowercase()),
    }
}

fn host_text(text: &str) -> Result<String, InvalidValue> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '[' | ']');
    match text.char_indices().find(|(_, c)| !fits(*c)) {
        Some((at, wrong)) => {
            let fault = InvalidValue::new(
                format!("a host holds no {wrong:?}"),
                "write a name such as \"example.com\"",
            );
            Err(fault.within(at..at + wrong.len_utf8()))
        }
        None if text.is_empty() => Err(InvalidValue::new("the host is missing", "")),
        None => Ok(text.to_owned()),
    }
}

fn upstream_host(text: &str) -> Result<UpstreamHost, InvalidValue> {
    match text {
        "pass" => Ok(UpstreamHost::Pass),
        "upstream" => Ok(UpstreamHost::Upstream),
        _ => host_text(text).map(UpstreamHost::Text),
    }
}

fn prefix(text: &str) -> Result<String, InvalidValue> {
    match strip_text(text)? {
        StripPrefix::Text(path) => asked_path(&path),
        _ => Ok(text.to_owned()),
    }
}

/// A path as it stands in a request.
fn asked_path(text: &str) -> Result<String, InvalidValue> {
    let path = rooted(text)?;
    match path.char_indices().find(|(_, c)| !c.is_ascii_graphic() || *c == '#') {
        Some((at, wrong)) => {
            let fault = InvalidValue::new(format!("a URL holds no {wrong:?}"), "percent-encode it");
            Err(fault.within(at..at + wrong.len_utf8()))
        }
        None => Ok(path),
    }
}

/// `200`, or `200-399`.
fn statuses(text: &str) -> Result<(u16, u16), InvalidValue> {
    let status =
        |text: &str| text.parse::<u16>().ok().filter(|code| text.len() == 3 && (100..=599).contains(code));
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (status(first), status(last)) {
        (Some(first), Some(last)) if first <= last => Ok((first, last)),
        _ => Err(InvalidValue::new("neither a status nor a range of such", "write \"200\" or \"200-399\"")),
    }
}
