//! The plan of a run: servers, requests and load.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use failure::{Failure, FailureContext};
use fastrand::Rng;
use http::Version;
use net::{ConnectAddress, TlsClient, TlsClientOptions, TlsHttp};

use crate::request::{self, BenchRequest, RequestSettings, WireRequest};

/// All options of a run.
#[derive(Clone, Debug)]
pub struct LoadPlan {
    /// The version of HTTP.
    pub version: Version,
    /// Serialized requests; at least one.
    pub requests: Vec<WireRequest>,
    /// Servers; at least one.
    pub origins: Vec<LoadTarget>,
    /// Order of requests: indexes into [`LoadPlan::request_batch`], each as often as its weight; repeated from the
    /// start at the end.
    pub request_order: Vec<u32>,
    /// Whether requests are picked from the walk at random instead of in order.
    pub is_random: bool,
    /// Seed of the request order and of Poisson arrivals.
    pub seed: u64,
    /// Concurrent connections; at least one for each origin.
    pub connections: usize,
    /// Engine threads; at least 1.
    pub threads: usize,
    /// Whether connections are kept after a response. The requests must be rendered accordingly.
    pub keep_alive: bool,
    /// Maximum concurrent requests per connection: pipelined over HTTP/1, streams over HTTP/2 (limited by the
    /// server). At least 1.
    pub pipeline: usize,
    /// Rule for when the next request is sent.
    pub pace: Pace,
    /// Duration without the warm-up; `None` continues until [`LoadPlan::requests_max`].
    pub duration: Option<Duration>,
    /// Number of requests after which the run stops, without those of the warm-up.
    pub requests_max: Option<u64>,
    /// Length of the warm-up.
    pub warm_up: Duration,
    /// Time over which the connections are opened at even intervals; zero opens all at once.
    pub ramp: Duration,
    /// Timeout from sending a request to the end of its response; accurate to a tenth of a second.
    pub timeout: Duration,
    /// Timeout for making a connection, including TLS.
    pub connect_timeout: Duration,
    /// Whether each response's content, not only its length, is compared with the first one's.
    pub verify: bool,
}

/// A server address and its connection settings.
#[derive(Clone, Debug)]
pub struct LoadTarget {
    /// Address to connect to.
    pub address: ConnectAddress,
    /// TLS settings, if the scheme is `https`.
    pub tls: Option<TlsClient>,
    /// Host and port, for display.
    pub name: String,
}

/// Rule for when the next request is sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// Closed loop: when the last response is complete, after a pause.
    Closed {
        /// Pause; zero for none.
        think: Duration,
    },
    /// Open loop: at scheduled times, regardless of responses; latency counts from the scheduled time.
    Open {
        /// Requests per second over all connections; above zero.
        rate: f64,
        /// Distribution of the arrivals.
        arrivals: Arrivals,
    },
}

/// Distribution of the arrivals of an open loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrivals {
    /// Even intervals.
    Constant,
    /// Independent arrivals, like those of many users.
    Poisson,
}

/// Connection options that are not part of a URL.
#[derive(Clone, Debug, Default)]
pub struct ConnectOptions {
    /// Path of a Unix socket to connect to instead of the URL's host and port.
    pub unix: Option<PathBuf>,
    /// Whether any certificate is accepted.
    pub insecure: bool,
    /// File of certificates to trust instead of the system's (PEM).
    pub ca: Option<PathBuf>,
    /// Name for SNI and certificate verification instead of the URL's host.
    pub server_name: Option<String>,
    /// Whether every handshake is a full one.
    pub no_resumption: bool,
    /// Only TLS version to offer, `1.2` or `1.3`; `None` offers both.
    pub tls_version: Option<String>,
    /// Key exchange groups to offer, in order of preference; empty offers all.
    pub tls_groups: Vec<String>,
}

/// Maximum length of [`LoadPlan::walk`]; weights are reduced if it would be longer.
const REQUEST_ORDER_MAX: u64 = 100_000;

impl LoadPlan {
    /// Creates a plan for these requests with all other settings at their defaults: 50 connections, one
    /// thread, keep-alive, closed loop, 10 s after 1 s of warm-up, timeouts of 10 s.
    ///
    /// # Errors
    /// Fails for a request that cannot be rendered or a host that cannot be resolved.
    pub fn new(
        asks: &[BenchRequest],
        settings: &RequestSettings,
        connect_options: &ConnectOptions,
    ) -> Result<LoadPlan, Failure> {
        let mut origins: Vec<LoadTarget> = Vec::new();
        let mut keys: Vec<(bool, String, u16)> = Vec::new();
        let mut requests = Vec::new();
        for ask in asks {
            let key = (ask.url.tls, ask.url.host.clone(), ask.url.port);
            let number = match keys.iter().position(|other| *other == key) {
                Some(number) => number,
                None => {
                    origins.push(resolve_origin(ask, connect_options, settings.version)?);
                    keys.push(key);
                    keys.len() - 1
                }
            };
            requests.push(request::render(ask, settings, number)?);
        }
        if requests.is_empty() {
            return Err(Failure::new("there is nothing to ask: name a URL"));
        }
        Ok(LoadPlan {
            requests,
            origins,
            request_order: build_request_order(asks),
            version: settings.version,
            is_random: false,
            seed: 1,
            connections: 50,
            threads: 1,
            keep_alive: settings.keep_alive,
            pipeline: 1,
            pace: Pace::Closed { think: Duration::ZERO },
            duration: Some(Duration::from_secs(10)),
            requests_max: None,
            warm_up: Duration::from_secs(1),
            ramp: Duration::ZERO,
            timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(10),
            verify: false,
        })
    }

    /// Checks the consistency of the plan.
    ///
    /// # Errors
    /// Describes the first inconsistency.
    pub fn check(&self) -> Result<(), Failure> {
        let fault: String = match self {
            LoadPlan { connections, origins, .. } if *connections < origins.len() => {
                format!("{} origins need at least as many connections (-c)", origins.len())
            }
            LoadPlan { duration: None, requests_max: None, .. } => "there is no end: give -d or -n".into(),
            LoadPlan { duration: Some(duration), .. } if duration.is_zero() => "-d must be above zero".into(),
            LoadPlan { requests_max: Some(0), .. } => "-n must be above zero".into(),
            LoadPlan { pipeline: 0, .. } => "the pipeline's depth is at least 1".into(),
            LoadPlan { pipeline: 2.., keep_alive: false, .. } => {
                "several requests at once on a connection need keep-alive".into()
            }
            LoadPlan { pace: Pace::Open { rate, .. }, .. } if *rate <= 0.0 => {
                "--rate must be above zero".into()
            }
            LoadPlan { pace: Pace::Open { .. }, origins, .. } if origins.len() > 1 => {
                "an open loop (--rate) loads one host: the list has several".into()
            }
            _ => return Ok(()),
        };
        Err(Failure::new(fault))
    }

    /// Whether the load is an open loop.
    #[must_use]
    pub fn is_open(&self) -> bool {
        matches!(self.pace, Pace::Open { .. })
    }

    /// Whether a connection carries many requests, each a stream: HTTP/2 and HTTP/3.
    #[must_use]
    pub fn is_multiplexed(&self) -> bool {
        matches!(self.version, Version::Http2 | Version::Http3)
    }

    /// Returns the number of engine threads, at most one per connection: a thread without a connection could
    /// not send its share of the requests.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.threads.min(self.connections).max(1)
    }

    /// Returns the part of the walk that goes to one origin.
    pub(crate) fn request_order_to(&self, origin: usize) -> Vec<u32> {
        self.request_order.iter().copied().filter(|&at| self.requests[at as usize].origin == origin).collect()
    }

    /// Returns the number of connections for each origin, proportional to its share of the requests; at least
    /// one.
    pub(crate) fn connections_by_origin(&self) -> Vec<usize> {
        let shares: Vec<usize> =
            (0..self.origins.len()).map(|origin| self.request_order_to(origin).len()).collect();
        let mut counts: Vec<usize> =
            shares.iter().map(|share| (self.connections * share / self.request_order.len()).max(1)).collect();
        // Correct rounding errors: add to the origins with the most requests per connection, or remove from
        // those with the most connections.
        while counts.iter().sum::<usize>() < self.connections {
            let most = most_loaded_origin(&counts, &shares);
            counts[most] += 1;
        }
        while counts.iter().sum::<usize>() > self.connections {
            let fullest = (0..counts.len()).max_by_key(|&at| counts[at]).expect("at least one origin");
            counts[fullest] -= 1;
        }
        counts
    }
}

/// Returns the origin with the most requests per connection.
fn most_loaded_origin(counts: &[usize], shares: &[usize]) -> usize {
    let load = |at: usize| shares[at] as f64 / counts[at] as f64;
    (0..counts.len()).max_by(|&a, &b| load(a).total_cmp(&load(b))).expect("at least one origin")
}

fn build_request_order(requests: &[BenchRequest]) -> Vec<u32> {
    let total: u64 = requests.iter().map(|ask| u64::from(ask.weight)).sum();
    let reduce = total.div_ceil(REQUEST_ORDER_MAX).max(1);
    let mut walk = Vec::new();
    for (at, ask) in requests.iter().enumerate() {
        let times = u64::from(ask.weight).div_ceil(reduce);
        walk.extend((0..times).map(|_| at as u32));
    }
    if requests.iter().any(|ask| ask.weight > 1) {
        // Shuffled with a fixed seed, so that requests with a large weight are not sent in a row.
        Rng::with_seed(0x006b_6f6d_6169_6e75).shuffle(&mut walk);
    }
    walk
}

fn resolve_origin(
    request: &BenchRequest,
    connect_options: &ConnectOptions,
    version: Version,
) -> Result<LoadTarget, Failure> {
    let url = &request.url;
    if version == Version::Http3 && (!url.tls || connect_options.unix.is_some()) {
        return Err(Failure::new(format!("{url}: HTTP/3 needs an https:// URL, and no Unix socket")));
    }
    let tls = if url.tls { Some(tls_client(&url.host, connect_options, version)?) } else { None };
    let name = url.authority();
    if let Some(path) = &connect_options.unix {
        return Ok(LoadTarget {
            address: ConnectAddress::Unix(path.clone()),
            tls,
            name: format!("unix:{}", path.display()),
        });
    }
    Ok(LoadTarget { address: ConnectAddress::Tcp(resolve(&url.host, url.port)?), tls, name })
}

fn tls_client(host: &str, connect_options: &ConnectOptions, version: Version) -> Result<TlsClient, Failure> {
    let ca = match &connect_options.ca {
        Some(path) => Some(std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?),
        None => None,
    };
    let groups: Vec<&str> = connect_options.tls_groups.iter().map(String::as_str).collect();
    TlsClient::new(&TlsClientOptions {
        name: connect_options.server_name.as_deref().unwrap_or(host),
        roots_pem: ca.as_deref(),
        insecure: connect_options.insecure,
        disables_resumption: connect_options.no_resumption,
        version: connect_options.tls_version.as_deref(),
        groups: &groups,
        http: match version {
            Version::Http2 => TlsHttp::Http2,
            Version::Http3 => TlsHttp::Http3,
            _ => TlsHttp::Http1,
        },
        ..TlsClientOptions::default()
    })
}

/// Returns the first address of a name that accepts a connection, or the first address if none does.
fn resolve(host: &str, port: u16) -> Result<SocketAddr, Failure> {
    let found: Vec<SocketAddr> =
        (host, port).to_socket_addrs().with_context(|| format!("{host} is not known"))?.collect();
    match found.as_slice() {
        [] => Err(Failure::new(format!("{host} has no address"))),
        [only] => Ok(*only),
        several => {
            let answers =
                |to: &&SocketAddr| std::net::TcpStream::connect_timeout(to, Duration::from_secs(2)).is_ok();
            Ok(*several.iter().find(answers).unwrap_or(&several[0]))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::url::Url;

    fn plan(urls: &[(&str, u32)]) -> LoadPlan {
        let asks: Vec<BenchRequest> = urls
            .iter()
            .map(|&(url, weight)| BenchRequest { weight, ..BenchRequest::get(Url::parse(url).unwrap()) })
            .collect();
        LoadPlan::new(
            &asks,
            &RequestSettings { keep_alive: true, ..RequestSettings::default() },
            &ConnectOptions::default(),
        )
        .unwrap()
    }

    #[test]
    fn requests_to_one_host_share_an_origin_and_weights_apply() {
        let plan =
            plan(&[("http://127.0.0.1:81/a", 3), ("http://127.0.0.1:82/", 1), ("http://127.0.0.1:81/b", 1)]);
        assert_eq!(
            plan.origins.iter().map(|o| o.name.as_str()).collect::<Vec<_>>(),
            ["127.0.0.1:81", "127.0.0.1:82"]
        );
        assert_eq!(plan.requests.iter().map(|r| r.origin).collect::<Vec<_>>(), [0, 1, 0]);
        let mut walk = plan.request_order.clone();
        walk.sort_unstable();
        assert_eq!(walk, [0, 0, 0, 1, 2]);
        assert_eq!(plan.request_order_to(1), [1]);
    }

    #[test]
    fn connections_are_distributed_by_request_weight() {
        for (connections, expected) in [(10, vec![8, 2]), (2, vec![1, 1]), (51, vec![40, 11])] {
            let plan =
                LoadPlan { connections, ..plan(&[("http://127.0.0.1:81/", 4), ("http://127.0.0.1:82/", 1)]) };
            assert_eq!(plan.connections_by_origin(), expected);
        }
    }

    #[test]
    fn invalid_plans_are_rejected_with_the_reason() {
        let good = plan(&[("http://127.0.0.1:81/", 1)]);
        assert_eq!(good.check(), Ok(()));
        let two = plan(&[("http://127.0.0.1:81/", 1), ("http://127.0.0.1:82/", 1)]);
        let open = Pace::Open { rate: 0.0, arrivals: Arrivals::Constant };
        for (plan, what) in [
            (LoadPlan { connections: 1, ..two.clone() }, "-c"),
            (LoadPlan { duration: None, ..good.clone() }, "no end"),
            (LoadPlan { requests_max: Some(0), ..good.clone() }, "-n"),
            (LoadPlan { pipeline: 0, ..good.clone() }, "depth"),
            (LoadPlan { pipeline: 4, keep_alive: false, ..good.clone() }, "keep-alive"),
            (LoadPlan { pace: open, ..good.clone() }, "--rate"),
            (LoadPlan { pace: Pace::Open { rate: 9.0, arrivals: Arrivals::Poisson }, ..two }, "several"),
        ] {
            assert!(plan.check().unwrap_err().to_string().contains(what), "{what}");
        }
    }

    #[test]
    fn an_unknown_host_is_named() {
        let ask = BenchRequest::get(Url::parse("http://no-such-host.invalid/").unwrap());
        let error =
            LoadPlan::new(&[ask], &RequestSettings::default(), &ConnectOptions::default()).unwrap_err();
        assert!(error.to_string().contains("no-such-host.invalid"), "{error}");
    }
}
