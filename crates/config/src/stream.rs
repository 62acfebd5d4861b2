//! Streams: connections that are relayed to upstream servers as they are, without HTTP.

use net::ProxyProtocol;
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
const BALANCE: Mapped<Word<BalanceWord>, Balance> = Mapped { shape: BALANCE_WORDS, map: Balance::from };
const BALANCE_WORDS: Word<BalanceWord> = Word(&[
    ("round-robin", BalanceWord::RoundRobin),
    ("least-connections", BalanceWord::LeastConnections),
    ("two-choices", BalanceWord::TwoChoices),
    ("hash:client", BalanceWord::HashClient),
]);

directives! {
    /// Relays connections to upstream servers unchanged: TCP without HTTP, and TLS that is not decrypted.
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
    Stream in "`[[stream]]`", check stream_agrees {
        /// Addresses to listen on, or tables with more settings: only `address` and `proxy_protocol`. An
        /// address that is in `listen` at the top of the file has its settings there.
        "listen" listen: Vec<ConfiguredListener> = required(""), OneOrMore(brief::<ConfiguredListener>("address").number("address"));
        /// Names that clients ask for by TLS: a name, or `*.example.com` for every name below `example.com`, at any depth.
        "names" names: Vec<HostPattern> = absent("every connection that no other stream takes"), NAMES;
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
        /// text line, `"v2"` is binary.
        "proxy_protocol" proxy_protocol: Option<ProxyProtocol> = "off", PROXY_PROTOCOL;
        /// Timeouts.
        "timeouts" timeouts: StreamTimeouts = {}, table();
        /// Conditions for ejecting a server that cannot be connected to, so that it gets no connections for a
        /// time. `false` ejects none.
        "eject" eject: Option<Eject> = {}, Toggle { on: None, off: || None, shape: Maybe(table::<Eject>()) };
        /// Health checks: `true` only connects; a path asks for it over HTTP.
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
    /// An upstream server of a stream. An address alone stands for `address`.
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
        /// Maximum time without a byte in either direction before a connection is closed.
        "idle" idle: Duration = "10m", WAIT;
    }
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
    /// Returns the name for logs and metrics.
    pub fn label(&self) -> String {
        let listen = || self.listen.first().map(|listener| listener.address.to_string());
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
        return Err(InvalidValue::new("datagrams are not relayed", "streams are connections of TCP and TLS"));
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
        for key in ["tls", "h2c"] {
            if let Some(entry) = item.entry(key) {
                let title = format!("`{key}` in `listen` of `[[stream]]`");
                let finding = check.error(&entry.key_span, title, "a stream relays whatever clients speak");
                finding.help("remove it; addresses of sites are in `listen` at the top of the file");
            }
        }
    }
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
    let mut seen: Vec<(Listen, usize)> = Vec::new();
    for (index, stream) in streams.iter().enumerate() {
        let items = nodes[index].one_or_more("listen");
        for (listener, item) in stream.listen.iter().zip(items) {
            let address = &listener.address;
            if let Some(other) = listen.iter().find(|other| other.address.overlaps(address)) {
                check_shared_with_sites(stream, listener, &other.address, item, check);
            }
            for (other, earlier) in &seen {
                let at = &nodes[*earlier].one_or_more("listen")[0].span;
                if other != address && other.overlaps(address) {
                    let title = format!("`listen` of streams has `{address}` beside `{other}`");
                    let finding = check.error(&item.span, title, format!("taken by `{other}` already"));
                    finding.related(at.clone(), "given here").help("write the same address in both");
                } else if other == address {
                    check_names_differ(stream, &streams[*earlier], (item, &nodes[*earlier]), check);
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
        to.flat_map(|to| {
            let port = if let Origin::Tcp { port, .. } = to { *port } else { 0 };
            let own = by_port.get(&port).into_iter().flatten().copied();
            own.filter(move |&other| {
                streams[other].listen.iter().any(|own| reaches_listener(&own.address, to))
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

/// A name as clients ask for it by TLS (RFC 6066 section 3), which is no address.
fn parse_server_name(text: &str) -> Result<HostPattern, InvalidValue> {
    match text.parse::<IpAddr>() {
        Ok(_) => Err(InvalidValue::new(
            "this is an address, and clients name none when they begin TLS",
            "write the name that they ask for, or `listen` with this address",
        )),
        Err(_) => HostPattern::parse(text),
    }
}

fn check_names_differ(
    stream: &Stream,
    earlier: &Stream,
    (item, before): (&Node, &Node),
    check: &mut Checker,
) {
    let same = stream.names.iter().find(|name| earlier.names.contains(name));
    let title = match (same, stream.names.is_empty() && earlier.names.is_empty()) {
        (Some(name), _) => format!("two streams on one address have the name `{name}`"),
        (None, true) => "two streams without `names` on one address".to_owned(),
        (None, false) => return,
    };
    let finding = check.error(&item.span, title, "which of them gets the connection?");
    finding
        .related(before.span.clone(), "the other one")
        .help("give them different `names`, or one stream both servers in `to`");
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
