//! Options of the engine: addresses, threads, limits and the number of file descriptors.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::{fs, io};

use bench::procfs;
use config::{Action, Config, listener_key};
use net::{BindAddress, ConfiguredListener, Listen, ListenOptions, Listener, PeerSet, StreamListener};
use process::sockets::InheritedSockets;
use rustix::process::{Resource, getrlimit};

use crate::clients::proxies::peer_set;
use crate::memory;
use crate::stream_listen::{stream_listener, stream_only_listeners, udp_listeners};

/// Maximum number of descriptors reserved for other uses than connections: listeners, logs, epoll instances,
/// workers, files being sent. An eighth of a small limit is reserved, but at least the number computed by
/// [`Descriptors::new`].
const DESCRIPTORS_RESERVED_MAX: u64 = 256;
/// Number of these descriptors that every server needs.
const DESCRIPTORS_BASE: u64 = 24;
/// Descriptors needed per core, and per process of an application.
const DESCRIPTORS_PER_CORE: u64 = 2;
const DESCRIPTORS_PER_PROCESS: u64 = 6;
/// A limit that allows fewer connections than this causes a warning.
const CONNECTIONS_WARNING_BELOW: u64 = 1024;

/// Division of the limit on open files between uses.
#[derive(Debug, PartialEq, Eq)]
pub struct Descriptors {
    /// The limit on open files.
    limit: u64,
    /// Minimum that the server and its applications need to start.
    needed: u64,
    /// Reserved for the server itself.
    reserved: u64,
    /// Reserved for the cache of open files.
    files: u64,
    /// Descriptors per connection: two if requests are proxied.
    per_connection: u64,
}

impl Descriptors {
    /// Divides `limit` descriptors.
    pub fn new(config: &Config, limit: u64) -> Descriptors {
        let routes = || config.sites.iter().flat_map(|site| &site.routes);
        let of_files = routes().filter(|route| matches!(route.action, Action::Files(_))).count() as u64;
        let files_open = u64::from(config.open_files.entries_max).saturating_mul(of_files);
        let cores = thread_count(config) as u64;
        let processes = |app: &apps::AppSettings| {
            app.workers.as_ref().map_or(cores.max(2), |workers| u64::from(workers.max)) + 1
        };
        let fewest =
            |app: &apps::AppSettings| app.workers.as_ref().map_or(1, |workers| u64::from(workers.min)) + 1;
        let of_processes = |count: &dyn Fn(&apps::AppSettings) -> u64| {
            config.apps.iter().map(|(_, app)| count(app)).sum::<u64>() * DESCRIPTORS_PER_PROCESS
        };
        let own = DESCRIPTORS_BASE + cores * (DESCRIPTORS_PER_CORE + listen_options(config).len() as u64);
        // A proxied request needs a second connection.
        let passes_on = |action: &Action| matches!(action, Action::Proxy(_));
        let passing_on = !config.streams.is_empty()
            || routes().any(|route| passes_on(&route.action) || route.otherwise.iter().any(passes_on));
        Descriptors {
            limit,
            needed: own + of_processes(&fewest),
            reserved: (own + of_processes(&processes)).max((limit / 8).min(DESCRIPTORS_RESERVED_MAX)),
            files: files_open.min(limit / 8),
            per_connection: if passing_on { 2 } else { 1 },
        }
    }

    /// The number of connections that the limit allows.
    fn connections(&self) -> u64 {
        (self.limit.saturating_sub(self.reserved + self.files) / self.per_connection).max(1)
    }

    /// Checks that the limit covers what the server itself needs.
    ///
    /// # Errors
    /// The limit is too low; the message contains the number needed, and how to raise the limit.
    pub fn check_sufficient(&self) -> io::Result<()> {
        let needed = self.needed + self.per_connection;
        if self.limit >= needed {
            Ok(())
        } else {
            Err(io::Error::other(format!(
                "the limit on open files is {}, and this server needs at least {needed}: \
                 raise it with `ulimit -n`, or `LimitNOFILE=` in the systemd unit",
                self.limit
            )))
        }
    }

    /// The log line about the limit at startup, with its level.
    pub fn startup_message(&self, config: &Config) -> (logging::Level, String) {
        let Descriptors { limit, reserved: kept, files, .. } = self;
        let room = self.connections();
        let twice = if self.per_connection == 2 { ", two for each connection that is passed on" } else { "" };
        let wanted = config.limits.connections_max.map(u64::from);
        let room_for = match wanted {
            Some(wanted) if wanted > room => {
                format!("has room for {room} connections, fewer than `limits.connections` = {wanted}")
            }
            _ => format!("has room for {room} connections"),
        };
        let text = format!(
            "the limit on open files, {limit}, {room_for} ({kept} are kept for the server, {files} for files{twice})"
        );
        if room >= wanted.unwrap_or(CONNECTIONS_WARNING_BELOW) {
            return (logging::Level::Info, text);
        }
        let remedy = "raise it with `LimitNOFILE=` in the systemd unit, or `ulimit -n`";
        (logging::Level::Warn, format!("{text}: {remedy}"))
    }
}

/// Translates the configuration to the engine's options.
pub fn engine_options(config: &Config, descriptors: &Descriptors) -> net::Options {
    let limits = &config.limits;
    let room = descriptors.connections() as usize;
    let connections_max = limits.connections_max.map_or(room, |max| max as usize);
    net::Options {
        threads: thread_count(config),
        limits: net::Limits {
            connections_max,
            requests_per_connection_max: limits.requests_per_connection_max.unwrap_or(0),
            streams_max: net::Limits::default().streams_max,
            head: http::Limits {
                head_bytes_max: limits.head_bytes_max as usize,
                start_line_bytes_max: limits.request_line_bytes_max as usize,
                fields_max: limits.headers_max as usize,
                bare_lf: config.lenient_bare_lf,
                lenient_heads: false,
            },
            body_bytes_max: limits.body_bytes_max.unwrap_or(http::body::NO_LIMIT),
        },
        timeouts: net::Timeouts {
            head: config.timeouts.head.into(),
            body: config.timeouts.body.into(),
            write: config.timeouts.write.into(),
            idle: config.timeouts.idle.into(),
            drain: config.timeouts.drain.into(),
        },
        hints_over_http1: config.early_hints == net::EarlyHints::All,
        memory: memory::budget(limits.memory_bytes_max),
        release_memory: Some(memory::release_cached),
        ..net::Options::default()
    }
}

/// Checks the limit on descriptors, before anything is opened.
///
/// # Errors
/// The error of [`Descriptors::check_sufficient`].
pub fn check_descriptors(config: &Config) -> io::Result<()> {
    let limit = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    Descriptors::new(config, limit).check_sufficient()
}

/// First port that does not require root.
const UNPRIVILEGED_PORT_MIN: u16 = 1_024;

/// Opens the listeners of a configuration, from inherited sockets or by binding.
///
/// # Errors
/// The system's error, with a remedy.
pub fn open(config: &Config, inherited: &mut InheritedSockets, threads: usize) -> io::Result<Vec<Listener>> {
    let listens = listen_options(config);
    // The process that passed these sockets listens on them until this one serves.
    let ours = inherited.addresses();
    let taken = inherited.take(&listens);
    let each = listens.into_iter().zip(taken);
    each.map(|(listen, taken)| match taken {
        Some(taken) => taken.adopt(listen),
        None => bind(listen, threads, &ours),
    })
    .collect()
}

/// Binds an address. `open` are the addresses on which this server already listens.
///
/// # Errors
/// The system's error, with a remedy.
pub fn bind(listen: ListenOptions, threads: usize, open: &[BindAddress]) -> io::Result<Listener> {
    let at = listen.address.clone();
    let port = listen.address.port();
    Listener::bind_alongside(listen, threads, open).map_err(|error| {
        let remedy = match (error.kind(), port) {
            (io::ErrorKind::PermissionDenied, Some(port @ 1..UNPRIVILEGED_PORT_MIN)) => format!(
                "start as root with `user` set; or give the program CAP_NET_BIND_SERVICE (`AmbientCapabilities=` in the \
                 systemd unit, or `setcap cap_net_bind_service=+ep FILE`); or let everybody use such ports \
                 (`sysctl net.ipv4.ip_unprivileged_port_start={port}`); or take a port from 1024 on"
            ),
            (io::ErrorKind::AddrInUse, Some(port)) => match listening_program(&at) {
                Some((name, pid)) => format!("{name} (process {pid}) listens there"),
                None => {
                    let kind = if at.is_udp() { "lunp" } else { "ltnp" };
                    format!("another program listens there: `ss -{kind} 'sport = :{port}'` shows which")
                }
            },
            (io::ErrorKind::AddrNotAvailable, Some(port)) => format!(
                "no interface of this machine has this address (`ip addr` shows theirs); \":{port}\" listens on all of them"
            ),
            _ => return error,
        };
        io::Error::new(error.kind(), format!("{error}: {remedy}"))
    })
}

/// Name and process id of the program that listens on an address, if this user can see it.
fn listening_program(at: &BindAddress) -> Option<(String, u32)> {
    let port = at.port().filter(|_| !at.is_udp())?;
    let everywhere = [Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    // A wildcard bind fails if any address is in use, most often a local one.
    let addresses = match at {
        BindAddress::Tcp(address) if !address.ip().is_unspecified() => vec![*address],
        _ => everywhere.map(|ip: IpAddr| SocketAddr::new(ip, port)).to_vec(),
    };
    let pid = addresses
        .into_iter()
        .find_map(|address| procfs::listening_processes(address, false).first().copied())?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some((name.trim().to_owned(), pid))
}

/// Number of serving threads: by default one per processor, with applications too. On two processors a single
/// thread was measured to need no less CPU time per request, and to answer fewer requests.
pub fn thread_count(config: &Config) -> usize {
    match config.threads {
        0 => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        threads => threads as usize,
    }
}

/// Key of the listener for other servers of the set.
pub const PEER_LISTENER_KEY: u64 = u64::MAX;

/// Addresses to listen on.
pub fn listen_options(config: &Config) -> Vec<ListenOptions> {
    let of_sites: HashSet<&Listen> = config.site_listeners.iter().map(|listener| &listener.address).collect();
    let proxies = |listener: &ConfiguredListener| {
        listener.proxy_protocol.as_ref().map(|from| PeerSet {
            // The permissions of the socket's file decide who may connect.
            includes_unix: matches!(listener.address, Listen::Unix(_)),
            ..peer_set(from)
        })
    };
    let listens = |listener: &ConfiguredListener| {
        let sources = proxies(listener);
        let tls = listener.is_tls();
        let h2c = listener.h2c;
        let http3 = tls && listener.http3.unwrap_or(config.tls.http3);
        let streams = stream_listener(config, &listener.address);
        let key = listener_key(&listener.address, of_sites.contains(&listener.address));
        let listen = move |at| ListenOptions {
            address: at,
            proxy_protocol: sources.clone(),
            is_tls: tls,
            allows_h2c: h2c,
            allows_http3: http3,
            streams: streams.clone(),
            key,
        };
        listener.address.bind_addresses().into_iter().map(listen)
    };
    let over_udp = |(listener, streams): (&ConfiguredListener, StreamListener)| {
        let proxy_protocol = proxies(listener);
        let addresses = listener.address.bind_addresses().into_iter();
        addresses.map(move |address| ListenOptions {
            proxy_protocol: proxy_protocol.clone(),
            streams: Some(streams.clone()),
            ..address.over_udp().into()
        })
    };
    let of_tcp = stream_only_listeners(config);
    let of_udp = udp_listeners(config).into_iter().flat_map(over_udp);
    let peers = config.cluster.as_ref().and_then(|cluster| cluster.peers).map(|address| ListenOptions {
        is_tls: true,
        key: PEER_LISTENER_KEY,
        ..BindAddress::Tcp(address).into()
    });
    config.listeners().chain(&of_tcp).flat_map(listens).chain(of_udp).chain(peers).collect()
}

/// Returns warnings about addresses whose clients get no HTTP/3, since the last call.
pub fn http3_warnings(listeners: &net::Listeners) -> Vec<String> {
    let mut warnings = Vec::new();
    listeners.visit(|listener| {
        let port = listener.address().port().unwrap_or_default();
        if let Some(error) = listener.take_datagram_error() {
            let remedy = match error.kind() {
                io::ErrorKind::PermissionDenied => {
                    "the right to bind it is that of the start: run `komainu upgrade` or restart; with systemd sockets, add `ListenDatagram=`".to_owned()
                }
                _ => format!("free it (`ss -lunp 'sport = :{port}'` shows who has it) and reload"),
            };
            warnings.push(format!(
                "HTTP/3 is not served at {}: UDP port {port}: {error}; {remedy}, or set `http3 = false`",
                listener.url()
            ));
        }
    });
    warnings
}

/// Returns a warning if packets of HTTP/3 and of streams over UDP are lost in bursts.
pub fn receive_buffer_warning(listeners: &net::Listeners) -> Option<&'static str> {
    let mut has_small_buffers = false;
    listeners.visit(|listener| {
        has_small_buffers |= listener.has_small_datagram_buffers();
    });
    has_small_buffers.then_some(
        "HTTP/3 and streams over UDP may lose packets in bursts: the kernel grants receive buffers of less than 1 MiB; \
         `sysctl -w net.core.rmem_max=8388608` allows more",
    )
}

/// Port of the first address that uses TLS; 0 if the kernel chooses it.
pub fn https_port<'l>(mut listeners: impl Iterator<Item = &'l ConfiguredListener>) -> Option<u16> {
    listeners.find(|listener| listener.is_tls()).and_then(|listener| listener.address.port())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn descriptors_are_kept_for_the_open_files_of_every_route() {
        let route = || config::Route { action: Action::Files(Box::default()), ..config::Route::default() };
        let with = |routes: usize| {
            let routes = (0..routes).map(|_| route()).collect();
            let site = config::Site { routes, ..config::Site::default() };
            let config = Config { sites: vec![Arc::new(site)], ..Config::default() };
            engine_options(&config, &Descriptors::new(&config, 100_000)).limits.connections_max
        };
        assert_eq!([0, 1, 3].map(with), [99_744, 98_720, 96_672]);
        assert_eq!(with(1_000), 100_000 - 256 - 12_500);
    }

    #[test]
    fn descriptors_are_kept_for_connections_to_upstream_servers() {
        let with = |action: Action, otherwise: Option<Action>| {
            let route = config::Route { action, otherwise, ..config::Route::default() };
            let site = config::Site { routes: vec![route], ..config::Site::default() };
            let config = Config { sites: vec![Arc::new(site)], ..Config::default() };
            engine_options(&config, &Descriptors::new(&config, 100_256)).limits.connections_max
        };
        let proxy = || Action::Proxy(Box::default());
        assert_eq!(with(proxy(), None), 50_000);
        assert_eq!(with(Action::Files(Box::default()), Some(proxy())), 49_488);
        assert_eq!(with(Action::Files(Box::default()), None), 98_976);
    }

    #[test]
    fn small_descriptor_limit_is_divided_and_reported() {
        let route = config::Route { action: Action::Files(Box::default()), ..config::Route::default() };
        let site = config::Site { routes: vec![route], ..config::Site::default() };
        let mut config = Config { sites: vec![Arc::new(site)], threads: 1, ..Config::default() };
        let room = |config: &Config, limit| Descriptors::new(config, limit).connections();
        assert_eq!([256, 1_024, 4_096].map(|limit| room(&config, limit)), [192, 768, 3_328]);
        let notice = |config: &Config, limit| Descriptors::new(config, limit).startup_message(config);
        let (level, text) = notice(&config, 256);
        assert_eq!(level, logging::Level::Warn);
        assert!(["256", "192", "LimitNOFILE", "ulimit -n"].iter().all(|part| text.contains(part)), "{text}");
        assert_eq!(notice(&config, 4_096).0, logging::Level::Info);
        config.limits.connections_max = Some(5_000);
        let (level, text) = notice(&config, 4_096);
        assert!(level == logging::Level::Warn && text.contains("`limits.connections` = 5000"), "{text}");
        config.limits.connections_max = Some(100);
        assert_eq!(notice(&config, 256).0, logging::Level::Info);
        // A very small limit still allows one connection; below what the server itself needs, the start
        // fails.
        let of = |limit| Descriptors::new(&config, limit);
        assert_eq!((of(28).connections(), of(28).check_sufficient().is_ok()), (1, true));
        let error = of(27).check_sufficient().unwrap_err().to_string();
        assert!(["27", "28", "ulimit -n", "LimitNOFILE"].iter().all(|part| error.contains(part)), "{error}");
    }
}
