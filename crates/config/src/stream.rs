//! Streams: connections and datagrams that are relayed to upstream servers as they are, without HTTP.

use net::ProxyProtocol;
use net::tls::directives::SiteTls;
use net::{ConfiguredListener, Listen};
use proxy::directives::{PROXY_PROTOCOL, duration};
use proxy::options::{Balance, Eject, HashKey, HealthCheck, Origin};
use serde_json::json;
use settings::checker::{Checker, InvalidValue};
use settings::directive_table::{brief, table};
use settings::directives;
use settings::node::Node;
use settings::shape::{
    Count, Flag, Mapped, Maybe, OneOrMore, Shape, ShapeKind, Text, Time, Toggle, Unlimited, Word,
};
use shapes::host::HostPattern;
use shapes::network::{SOURCE, TrustedSource};
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;
use times::Millis;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);
const WAIT: Time = Time { min: Duration::from_millis(10), max: DAY };

const NAMES: OneOrMore<Text<HostPattern>> = OneOrMore(Text {
    what: "a name such as \"git.example.com\" or \"*.example.com\"",
    parse: parse_server_name,
});
const PROTOCOL: Word<StreamProtocol> = Word(&[("tcp", StreamProtocol::Tcp), ("udp", StreamProtocol::Udp)]);
const BALANCE: Mapped<Word<BalanceWord>, Balance> = Mapped { shape: BALANCE_WORDS, map: Balance::from };
const BALANCE_WORDS: Word<BalanceWord> = Word(&[
    ("round-robin", BalanceWord::RoundRobin),
    ("least-connections", BalanceWord::LeastConnections),
    ("two-choices", BalanceWord::TwoChoices),
    ("hash:client", BalanceWord::HashClient),
]);

directives! {
    /// Relays connections to upstream servers: TCP without HTTP, TLS that is decrypted or not, and UDP.
    ///
    /// ```toml
    /// [[stream]]
    /// listen = ":5432"
    /// to     = ["10.0.0.1:5432", "10.0.0.2:5432"]
    ///
    /// [[stream]]
    /// listen = ":443"
    /// names  = ["git.example.com", "*.k8s.example.com"]
    /// to     = "10.0.0.5:443"
    /// ```
    ///
    /// Several streams may have the same address. A connection goes to the stream with the name that the
    /// client requests by TLS (SNI), exactly or else by the longest wildcard; otherwise to the one without
    /// `names`. If no stream matches and the address is in `listen` at the top of the file too, the
    /// connection is for the sites; otherwise it is closed. If a stream has `names`, the client must send
    /// first: its first message is limited by `head` in `[timeouts]`, and to 16 KiB.
    ///
    /// With `protocol = "udp"`, the datagrams of a client, by its address and port, are a session, which counts as a
    /// connection:
    ///
    /// ```toml
    /// [[stream]]
    /// protocol  = "udp"
    /// listen    = ":53"
    /// to        = ["10.0.0.2:53", "10.0.0.3:53"]
    /// responses = 1
    /// ```
    Stream in "`[[stream]]`", check stream_agrees {
        /// Addresses to listen on, or tables with more settings: only `address` and `proxy_protocol`. An
        /// address that is in `listen` at the top of the file has its settings there.
        "listen" listen: Vec<ConfiguredListener> = required(""), OneOrMore(brief::<ConfiguredListener>("address").number("address"));
        /// `"tcp"` for connections, `"udp"` for datagrams: of clients, and to servers. Streams of both may have the same port.
        "protocol" protocol: StreamProtocol = "tcp", PROTOCOL;
        /// Names that clients ask for by TLS: a name, or `*.example.com` for every name below `example.com`, at any depth.
        "names" names: Vec<HostPattern> = absent("every connection that no other stream takes"), NAMES;
        /// TLS that is decrypted here, so that servers get what it carries: files in PEM, as in `tls` of a site. Clients are not
        /// asked for an application protocol (ALPN).
        ///
        /// ```toml
        /// [[stream]]
        /// listen = ":8883"
        /// names  = "mqtt.example.com"
        /// tls    = { certificate = "mqtt.pem", key = "mqtt.key" }
        /// to     = "10.0.0.1:1883"
        /// ```
        "tls" tls: Option<SiteTls> = absent("bytes are relayed as they are"), Maybe(brief::<SiteTls>("certificate"));
        /// The upstream server, or several: addresses, or tables with more settings.
        "to" to: Vec<StreamServer> = required(""), OneOrMore(brief::<StreamServer>("address"));
        /// Name in logs and metrics.
        "name" name: Option<String> = absent("the first of `names`, or the first address"),
            Maybe(Text { what: "a name", parse: label });
        /// Load-balancing method. `"round-robin"`: each server in turn. `"least-connections"`: the server
        /// with the fewest connections. `"two-choices"`: the less busy of two random servers.
        /// `"hash:client"`: the same server for the same client address.
        "balance" balance: Balance = "round-robin", BALANCE;
        /// The version of the PROXY protocol that sends the client's address to servers at the start of a connection: `"v1"` is a
        /// text line, `"v2"` is binary. With UDP, a header of `"v2"` begins each datagram.
        "proxy_protocol" proxy_protocol: Option<ProxyProtocol> = "off", PROXY_PROTOCOL;
        /// Timeouts.
        "timeouts" timeouts: StreamTimeouts = {}, table();
        /// With UDP: the number of responses of a server to each datagram, after which the session ends. If a session ends
        /// by `idle` without a response, its server has failed. With 0 each datagram begins a session, which does not
        /// wait for a response.
        "responses" responses: Option<u32> = absent("not known: sessions end by `idle`"), Maybe(Count { min: 0, max: 1_000_000 });
        /// Conditions for ejecting a server that cannot be connected to, or with UDP is unreachable by ICMP, so that it
        /// gets no connections for a time. `false` ejects none.
        "eject" eject: Option<Eject> = {}, Toggle { on: None, off: || None, shape: Maybe(table::<Eject>()) };
        /// Health checks: `true` only connects; a path asks for it over HTTP. With UDP, both use TCP at the same port.
        "health" health: Option<HealthCheck> = false,
            Toggle { on: Some(|| Some(HealthCheck::default())), off: || None, shape: Maybe(brief::<HealthCheck>("path")) };
        /// The time after which a server that is back in service gets its full share of connections.
        "slow_start" slow_start: Millis = "0s", duration(Duration::ZERO, HOUR);
        /// Interval at which names of servers are resolved again.
        "resolve" resolve: Millis = "30s", duration(SECOND, DAY);
        /// Connections of the stream at the same time; more are closed at once. They count as `connections` of `[limits]` too.
        "connections" connections_max: Option<u32> = "unlimited", Unlimited(Count { min: 1, max: 10_000_000 });
        /// Connections of one client at the same time: an IPv4 address, or an IPv6 network of 64 bits. More are closed at once.
        /// 0 for no limit.
        "connections_per_client" connections_per_client_max: u32 = 0, Count { min: 0, max: 1_000_000 };
        /// Clients whose connections are relayed, by address: networks, addresses and `"unix"`. Connections
        /// of all others are closed.
        "allow" allow: Option<Vec<TrustedSource>> = absent("every client"), Maybe(OneOrMore(SOURCE));
        /// Clients whose connections are closed, even if they are in `allow`.
        "deny" deny: Vec<TrustedSource> = absent("none"), OneOrMore(SOURCE);
        /// Whether each connection has a line in the access logs when it ends.
        "log" log: bool = true, Flag;
    }
}

directives! {
    /// An upstream server of a stream. An address alone is shorthand for `address`.
    StreamServer in "`to` of `[[stream]]`" {
        /// `"HOST:PORT"`, or `"unix:PATH"` for a Unix socket.
        "address" address: Origin = required(""), ServerAddressShape;
        /// Share of the connections; 0 for none.
        "weight" weight: u32 = 1, Count { min: 0, max: 1000 };
        /// Whether it is used only if no other server is available.
        "backup" backup: bool = false, Flag;
        /// Connections that it gets at once; further ones wait for as long as connecting may take.
        "connections" connections_max: Option<u32> = "unlimited", Unlimited(Count { min: 1, max: 1_000_000 });
    }
}

directives! {
    /// Timeouts of a stream.
    StreamTimeouts in "`timeouts` of `[[stream]]`" {
        /// Maximum time to connect to a server, including name resolution. Then another server is tried, up
        /// to three in all.
        "connect" connect: Duration = "5s", WAIT;
        /// Maximum time without a byte or datagram in either direction before a connection is closed, or a session ends.
        "idle" idle: Duration = "10m", WAIT;
    }
}

/// Protocol of a stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum StreamProtocol {
    /// Connections.
    #[default]
    Tcp,
    /// Datagrams.
    Udp,
}

/// Load-balancing method of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BalanceWord {
    /// Each in turn.
    RoundRobin,
    /// The one with the fewest connections.
    LeastConnections,
    /// The less busy of two random ones.
    TwoChoices,
    /// The same for the same client address.
    HashClient,
}

impl From<BalanceWord> for Balance {
    fn from(word: BalanceWord) -> Balance {
        match word {
            BalanceWord::RoundRobin => Balance::RoundRobin,
            BalanceWord::LeastConnections => Balance::LeastRequests,
            BalanceWord::TwoChoices => Balance::TwoChoices,
            BalanceWord::HashClient => Balance::Hash(HashKey::Client),
        }
    }
}

impl Stream {
    /// Whether datagrams are relayed.
    pub fn is_udp(&self) -> bool {
        self.protocol == StreamProtocol::Udp
    }

    /// Returns the name for logs and metrics.
    pub fn label(&self) -> String {
        let protocol = if self.is_udp() { "udp://" } else { "" };
        let listen = || self.listen.first().map(|listener| format!("{protocol}{}", listener.address));
        let first = || self.names.first().map(ToString::to_string);
        self.name.clone().or_else(first).or_else(listen).unwrap_or_default()
    }
}

fn label(text: &str) -> Result<String, InvalidValue> {
    match text.chars().find(|c| !c.is_ascii_graphic() || matches!(c, '"' | '\\')) {
        Some(wrong) => Err(InvalidValue::new(format!("a name must not contain {wrong:?}"), "")),
        None if text.is_empty() => Err(InvalidValue::new("an empty name", "")),
        None if text.len() > 64 => Err(InvalidValue::new("a name has at most 64 characters", "")),
        None => Ok(text.to_owned()),
    }
}

/// The address of a server of a stream: `HOST:PORT`, `tcp://HOST:PORT` or `unix:PATH`.
fn parse_server_address(text: &str) -> Result<Origin, InvalidValue> {
    if text.starts_with("unix:") {
        return Origin::parse(text);
    }
    let (start, authority) = match text.strip_prefix("tcp://") {
        Some(rest) => (6, rest),
        None => (0, text),
    };
    if text.starts_with("udp:") {
        return Err(InvalidValue::new(
            "a server's address has no protocol",
            "write `protocol = \"udp\"` in the stream, and \"HOST:PORT\" here",
        ));
    }
    if let Some((scheme, rest)) = text.split_once("://").filter(|_| start == 0) {
        let fault = InvalidValue::new(
            "a stream relays connections whatever they carry: its servers have no scheme",
            format!("write \"{rest}\" with the port, such as \"10.0.0.1:443\""),
        );
        return Err(fault.within(0..scheme.len() + 3));
    }
    if text.starts_with(['/', '.']) {
        return Err(InvalidValue::new("a path without `unix:`", format!("write \"unix:{text}\"")));
    }
    let has_port = authority.rsplit_once(':').is_some_and(|(host, port)| {
        !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) && !host.is_empty()
    });
    if !has_port {
        return Err(InvalidValue::new(
            "the port is missing",
            "write \"HOST:PORT\", such as \"10.0.0.1:5432\"",
        ));
    }
    Origin::parse(&format!("http://{authority}")).map_err(|fault| {
        let at = fault.span.map(|at| at.start - 7 + start..at.end - 7 + start);
        let remedy = "write \"HOST:PORT\", such as \"10.0.0.1:5432\" or \"[2001:db8::1]:5432\"".to_owned();
        InvalidValue { span: at, remedy, ..fault }
    })
}

struct ServerAddressShape;

impl Shape for ServerAddressShape {
    type Out = Origin;

    fn kind(&self) -> ShapeKind {
        let text = "an address: \"HOST:PORT\" or \"unix:PATH\"";
        ShapeKind::new(text, json!({ "type": "string", "pattern": "^(unix:.+|(tcp://)?.+:[0-9]+)$" }))
    }

    fn read(&self, node: &Node, check: &mut Checker) -> Option<Origin> {
        let shape = Text { what: "an address such as \"10.0.0.1:5432\"", parse: parse_server_address };
        match shape.read(node, check)? {
            Origin::Unix(path) => Some(Origin::Unix(check.resolve_path(&path.to_string_lossy()))),
            origin => Some(origin),
        }
    }
}

fn stream_agrees(stream: &mut Stream, node: &Node, check: &mut Checker) {
    for item in node.one_or_more("listen") {
        for key in ["tls", "h2c", "http3"] {
            if let Some(entry) = item.entry(key) {
                let title = format!("`{key}` in `listen` of `[[stream]]`");
                let finding = check.error(&entry.key_span, title, "a stream relays whatever clients speak");
                finding.help("remove it; addresses of sites are in `listen` at the top of the file");
            }
        }
    }
    if let (Some(tls), Some(entry)) = (&stream.tls, node.entry("tls")) {
        if tls.is_automatic() {
            let title = "`tls = \"auto\"` of a stream".to_owned();
            let finding = check.error(&entry.value.span, title, "certificates are obtained for sites");
            finding.help("name the files: `tls = { certificate = \"…\", key = \"…\" }`");
        }
        if let Some(entry) = entry.value.entry("scope") {
            let title = "`scope` in `tls` of a stream".to_owned();
            check.error(&entry.key_span, title, "streams answer no requests").help("remove it");
        }
        if stream.is_udp() {
            let title = "`tls` of a stream over UDP".to_owned();
            let finding = check.error(&entry.key_span, title, "TLS needs connections");
            finding.help("remove it: DTLS is not supported");
        }
    }
    check_protocol(stream, node, check);
    let items = node.one_or_more("to");
    if items.len() != stream.to.len() {
        return;
    }
    for (index, server) in stream.to.iter().enumerate() {
        let same = |earlier: &StreamServer| earlier.address == server.address;
        if server.address != Origin::default()
            && let Some(earlier) = stream.to[..index].iter().position(same)
        {
            let finding =
                check.error(&items[index].span, "one upstream server twice".to_owned(), "again here");
            finding
                .related(items[earlier].span.clone(), "first given here")
                .help("give one a `weight` instead");
        }
    }
    let Some(to) = node.entry("to") else { return };
    if !stream.to.is_empty() && stream.to.iter().all(|server| server.backup || server.weight == 0) {
        let title = "no server gets connections".to_owned();
        let finding = check.error(&to.value.span, title, "only backups and servers of the weight 0");
        finding.help("set the `weight` of at least one above 0, and remove its `backup`");
    }
}

/// Checks that a stream has only directives of its protocol.
fn check_protocol(stream: &Stream, node: &Node, check: &mut Checker) {
    if !stream.is_udp() {
        if let Some(entry) = node.entry("responses") {
            let title = "`responses` of a stream of connections".to_owned();
            let finding = check.error(&entry.key_span, title, "connections end when a side closes them");
            finding.help("remove it, or write `protocol = \"udp\"`");
        }
        return;
    }
    if let Some(entry) = node.entry("names") {
        let title = "`names` of a stream over UDP".to_owned();
        let finding = check.error(&entry.key_span, title, "datagrams name no host");
        finding.help("remove it, and give each stream an address of its own");
    }
    if let (Some(ProxyProtocol::V1), Some(entry)) = (stream.proxy_protocol, node.entry("proxy_protocol")) {
        let title = "version 1 of the PROXY protocol over UDP".to_owned();
        let finding = check.error(&entry.value.span, title, "it is for connections only");
        finding.help("write \"v2\"");
    }
    for (listener, item) in stream.listen.iter().zip(node.one_or_more("listen")) {
        if matches!(listener.address, Listen::Unix(_)) {
            let title = "a Unix socket for a stream over UDP".to_owned();
            check
                .error(&item.span, title, "clients of UDP have an address and a port")
                .help("write \":PORT\"");
        }
    }
    for (server, item) in stream.to.iter().zip(node.one_or_more("to")) {
        if matches!(&server.address, Origin::Unix(path) if !path.as_os_str().is_empty()) {
            let title = "a Unix socket of a server over UDP".to_owned();
            check
                .error(&item.span, title, "servers of UDP have an address and a port")
                .help("write \"HOST:PORT\"");
        }
    }
}

/// Checks that no stream over UDP has the port of a listener for HTTP/3. `listen` are the addresses of sites, and
/// `http3` whether they serve HTTP/3 by default.
pub(crate) fn check_http3_ports(
    streams: &[Stream],
    listen: &[ConfiguredListener],
    http3: bool,
    node: &Node,
    check: &mut Checker,
) {
    let serves_http3 = |listener: &&ConfiguredListener| {
        let is_stream = |stream: &Stream| {
            !stream.is_udp() && stream.listen.iter().any(|own| own.address == listener.address)
        };
        listener.is_tls()
            && listener.http3.unwrap_or(http3)
            && listener.proxy_protocol.is_none()
            && !streams.iter().any(is_stream)
    };
    for (stream, item) in streams.iter().zip(node.items("stream")).filter(|(stream, _)| stream.is_udp()) {
        for (own, item) in stream.listen.iter().zip(item.one_or_more("listen")) {
            let mut sites = listen.iter().filter(serves_http3);
            if let Some(sites) = sites.find(|sites| sites.address.overlaps(&own.address)) {
                let title = format!("a stream over UDP on `{}`, where the sites serve HTTP/3", own.address);
                let finding = check.error(&item.span, title, "both would receive from the port");
                finding.help(format!(
                    "write {{ address = \"{}\", http3 = false }} in `listen` at the top of the file, or `http3 = false` in \
                     `[tls]`; or give the stream another port",
                    sites.address
                ));
            }
        }
    }
}

/// Checks that streams and sites share addresses only if each connection can be assigned to one of them.
/// `listen` are the addresses of sites.
pub(crate) fn check_streams(
    streams: &[Stream],
    listen: &[ConfiguredListener],
    node: &Node,
    check: &mut Checker,
) {
    let nodes = node.items("stream");
    if nodes.len() != streams.len() || check.report.error_count() > 0 {
        return;
    }
    // Addresses of TCP and of UDP have nothing to do with each other.
    let mut seen: Vec<(Listen, usize)> = Vec::new();
    for (index, stream) in streams.iter().enumerate() {
        let items = nodes[index].one_or_more("listen");
        for (listener, item) in stream.listen.iter().zip(items) {
            let address = &listener.address;
            let mut sites = listen.iter().filter(|_| !stream.is_udp());
            if let Some(other) = sites.find(|other| other.address.overlaps(address)) {
                check_shared_with_sites(stream, listener, &other.address, item, check);
            }
            let is_same_protocol = |(_, earlier): &&(Listen, usize)| {
                let earlier = &streams[*earlier];
                earlier.protocol == stream.protocol
            };
            for (other, earlier) in seen.iter().filter(is_same_protocol) {
                let at = &nodes[*earlier].one_or_more("listen")[0].span;
                if other != address && other.overlaps(address) {
                    let title = format!("`listen` of streams has `{address}` beside `{other}`");
                    let finding = check.error(&item.span, title, format!("taken by `{other}` already"));
                    finding.related(at.clone(), "given here").help("write the same address in both");
                } else if other == address {
                    check_names_differ(stream, &streams[*earlier], item, &nodes[*earlier], check);
                }
            }
            seen.push((address.clone(), index));
        }
    }
    check_no_loop(streams, nodes, check);
}

/// Rejects streams that pass connections to themselves, directly or through others: a single client would
/// exhaust all connections.
fn check_no_loop(streams: &[Stream], nodes: &[Node], check: &mut Checker) {
    // Streams by the ports of their addresses; 0 stands for Unix sockets.
    let mut by_port: HashMap<u16, Vec<usize>> = HashMap::new();
    for (index, stream) in streams.iter().enumerate() {
        for listener in &stream.listen {
            let port = listener.address.sockets().first().map_or(0, SocketAddr::port);
            by_port.entry(port).or_default().push(index);
        }
    }
    let leads = |from: usize| {
        let to = streams[from].to.iter().map(|server| &server.address);
        let protocol = streams[from].protocol;
        let by_port = &by_port;
        to.flat_map(move |to| {
            let port = if let Origin::Tcp { port, .. } = to { *port } else { 0 };
            let own = by_port.get(&port).into_iter().flatten().copied();
            own.filter(move |&other| {
                streams[other].protocol == protocol
                    && streams[other].listen.iter().any(|own| reaches_listener(&own.address, to))
            })
        })
    };
    for (index, node) in nodes.iter().enumerate() {
        let mut passed = HashSet::new();
        let mut waiting = vec![index];
        while let Some(at) = waiting.pop() {
            waiting.extend(leads(at).filter(|other| passed.insert(*other)));
        }
        if passed.contains(&index) {
            let at = &node.one_or_more("to")[0].span;
            let finding = check.error(at, "a stream that comes back to itself".to_owned(), "its own address");
            finding.help(
                "each connection would open another one without end: name the server that is to get it",
            );
            return;
        }
    }
}

/// Whether a connection to this server arrives at this address, according to the configuration.
fn reaches_listener(listen: &Listen, server: &Origin) -> bool {
    let (host, port) = match (listen, server) {
        (Listen::Unix(own), Origin::Unix(path)) => return Path::new(own) == path,
        (_, Origin::Tcp { host, port, .. }) => (host.trim_matches(['[', ']']), *port),
        _ => return false,
    };
    let address: Option<IpAddr> = host.parse().ok();
    listen.sockets().iter().filter(|own| own.port() == port).any(|own| match address {
        Some(address) => own.ip() == address || (own.ip().is_unspecified() && address.is_loopback()),
        None => host == "localhost" && (own.ip().is_unspecified() || own.ip().is_loopback()),
    })
}

fn check_shared_with_sites(
    stream: &Stream,
    listener: &ConfiguredListener,
    sites: &Listen,
    item: &Node,
    check: &mut Checker,
) {
    let address = &listener.address;
    if sites != address {
        let title = format!("a stream listens on `{address}` beside `{sites}` of the sites");
        let finding = check.error(&item.span, title, format!("taken by `{sites}` already"));
        finding.help(format!(
            "write \"{sites}\" here too: then this stream gets the connections for its `names`"
        ));
    } else if stream.names.is_empty() {
        let title = format!("a stream without `names` on `{address}`, which the sites have");
        let finding = check.error(&item.span, title, "which connections are the sites'?");
        finding.help("give the stream the `names` that clients ask for by TLS, or another address");
    } else if let Some(entry) = item.entry("proxy_protocol") {
        let title = format!("`proxy_protocol` of `{address}`, which the sites have too");
        let finding = check.error(&entry.key_span, title, "the address has its settings elsewhere");
        finding.help("write it in `listen` at the top of the file");
    }
}

/// A name as clients ask for it by TLS (RFC 6066 section 3), which is not an address.
fn parse_server_name(text: &str) -> Result<HostPattern, InvalidValue> {
    match text.parse::<IpAddr>() {
        Ok(_) => Err(InvalidValue::new(
            "this is an address, and clients name none when they begin TLS",
            "write the name that they ask for, or `listen` with this address",
        )),
        Err(_) => HostPattern::parse(text),
    }
}

fn check_names_differ(stream: &Stream, earlier: &Stream, item: &Node, before: &Node, check: &mut Checker) {
    let same = stream.names.iter().find(|name| earlier.names.contains(name));
    let title = match (same, stream.names.is_empty() && earlier.names.is_empty()) {
        (Some(name), _) => format!("two streams on one address have the name `{name}`"),
        (None, true) if stream.is_udp() => "two streams over UDP on one address".to_owned(),
        (None, true) => "two streams without `names` on one address".to_owned(),
        (None, false) => return,
    };
    let finding = check.error(&item.span, title, "which of them gets the connection?");
    let remedy = if stream.is_udp() {
        "give one stream both servers in `to`, or one of them another address"
    } else {
        "give them different `names`, or one stream both servers in `to`"
    };
    finding.related(before.span.clone(), "the other one").help(remedy);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::Config;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(text, "komainu.toml", Path::new("/etc"))
            .map(|(config, _)| config)
            .map_err(|report| report.to_string())
    }

    #[test]
    fn upstream_addresses_of_streams_are_parsed() {
        let tcp = |host: &str, port| Origin::Tcp {
            host: host.into(),
            port,
            scheme: proxy::origin::OriginScheme::Http,
        };
        for (text, want) in [
            ("10.0.0.1:5432", tcp("10.0.0.1", 5432)),
            ("db.internal:5432", tcp("db.internal", 5432)),
            ("[::1]:5432", tcp("::1", 5432)),
            ("tcp://db:1", tcp("db", 1)),
            ("unix:/run/db.sock", Origin::Unix("/run/db.sock".into())),
        ] {
            assert_eq!(parse_server_address(text).unwrap(), want, "{text}");
        }
        for (text, remedy) in [
            ("10.0.0.1", "10.0.0.1:5432"),
            ("http://a:80", "\"a:80\""),
            ("/run/db.sock", "unix:/run/db.sock"),
            ("a:0", "10.0.0.1:5432"),
            ("a:70000", "10.0.0.1:5432"),
            ("::1:5432", "[2001:db8::1]:5432"),
            (":5432", "10.0.0.1:5432"),
            ("a b:1", "10.0.0.1:5432"),
        ] {
            let fault = parse_server_address(text).unwrap_err();
            assert!(fault.remedy.contains(remedy), "{text}: {fault}");
        }
    }

    #[test]
    fn file_with_only_streams_has_no_http_listener() {
        let config = parse("[[stream]]\nlisten = \":5432\"\nto = \"10.0.0.1:5432\"\n").unwrap();
        assert!(config.listen.is_empty());
        assert_eq!(config.streams[0].label(), ":5432");
        let config =
            parse("[[stream]]\nlisten = \":5432\"\nto = \"10.0.0.1:5432\"\n[[route]]\nfiles = \"public\"\n");
        assert_eq!(config.unwrap().listen.len(), 1);
    }

    #[test]
    fn udp_streams_share_ports_with_connections_not_with_http3() {
        let udp = "[[stream]]\nprotocol = \"udp\"\nlisten = \":53\"\nto = \"10.0.0.1:53\"\n";
        let tcp = "[[stream]]\nlisten = \"127.0.0.1:53\"\nto = \"10.0.0.1:53\"\n";
        let config =
            parse(&format!("{udp}responses = 1\n{tcp}[[stream]]\nlisten = \":54\"\nto = \"[::1]:53\"\n"));
        assert_eq!(config.unwrap().streams[0].responses, Some(1));
        let site = "[[site]]\nhosts = [\"a.example\"]\ntls = { certificate = \"c\", key = \"k\" }\n";
        let sites = |listen: &str| parse(&format!("listen = [{listen}]\n{udp}{site}"));
        assert!(sites("{ address = \":53\", tls = true, http3 = false }").is_ok());
        let error = sites("{ address = \"127.0.0.1:53\", tls = true }").unwrap_err();
        assert!(error.contains("where the sites serve HTTP/3") && error.contains("http3 = false"), "{error}");
        for (text, part) in [
            (format!("{udp}names = \"a.example\"\n"), "`names` of a stream over UDP"),
            (format!("{udp}proxy_protocol = \"v1\"\n"), "write \"v2\""),
            (format!("{udp}{udp}"), "two streams over UDP on one address"),
            (format!("{tcp}responses = 1\n"), "write `protocol = \"udp\"`"),
            (udp.replace(":53\"\nto", "unix:/a\"\nto"), "a Unix socket for a stream"),
            (udp.replace("10.0.0.1:53", "unix:/a"), "a Unix socket of a server"),
            (udp.replace("10.0.0.1:53", "udp://10.0.0.1:53"), "write `protocol = \"udp\"`"),
            (udp.replace("10.0.0.1:53", "127.0.0.1:53"), "back to itself"),
            (udp.replace("\":53\"", "{ address = \":53\", tls = true }"), "`tls` in `listen`"),
        ] {
            let error = parse(&text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn stream_shares_an_address_with_sites_by_server_names() {
        let tls = "[[site]]\nhosts = [\"a.example\"]\ntls = { certificate = \"c\", key = \"k\" }\n";
        let stream = |more: &str| {
            let to = "to = \"10.0.0.5:443\"\n";
            parse(&format!("listen = [\":80\", \":443\"]\n{tls}[[stream]]\n{to}{more}"))
        };
        let config =
            stream("listen = \":443\"\nnames = [\"git.example.com\", \"*.K8s.example.com\"]\n").unwrap();
        assert_eq!((config.listen.len(), config.streams[0].label().as_str()), (2, "git.example.com"));
        for (more, part) in [
            ("listen = \":443\"\n", "a stream without `names`"),
            ("listen = \"127.0.0.1:443\"\nnames = \"a.b\"\n", "beside `:443` of the sites"),
            (
                "listen = { address = \":443\", proxy_protocol = [\"10.0.0.0/8\"] }\nnames = \"a.b\"\n",
                "which the sites have too",
            ),
            ("listen = { address = \":444\", tls = true }\n", "`tls` in `listen`"),
            (
                "listen = \":444\"\n[[stream]]\nlisten = \":444\"\nto = \"a:1\"\n",
                "without `names` on one address",
            ),
            (
                "listen = \":444\"\nnames = \"x.y\"\n[[stream]]\nlisten = \":444\"\nnames = \"X.y\"\nto = \"a:1\"\n",
                "have the name `x.y`",
            ),
            ("listen = \":444\"\n[[stream]]\nlisten = \"127.0.0.1:444\"\nto = \"a:1\"\n", "beside `:444`"),
            ("listen = \":444\"\n[[stream]]\nlisten = \":445\"\nto = \"127.0.0.1:445\"\n", "back to itself"),
            (
                "listen = \":444\"\n[[stream]]\nlisten = \":445\"\nto = \"[::1]:446\"\n\
                 [[stream]]\nlisten = \"[::1]:446\"\nto = [\"a:1\", \"localhost:445\"]\n",
                "back to itself",
            ),
        ] {
            let error = stream(more).unwrap_err();
            assert!(error.contains(part), "{more}: {error}");
        }
    }
}
