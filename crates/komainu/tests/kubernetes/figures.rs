//! Figures of `docs/kubernetes.md`: how fast changes reach the data plane, and what many objects cost. Nothing here is held against
//! a bound: run it by hand, alone on the machine, with the binary of a release.
//!
//! ```text
//! KOMAINU_TEST_BINARY=$PWD/target/release/komainu cargo test --test kubernetes -- --ignored --nocapture --test-threads 1 figures
//! ```

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::api_server::ApiServer;
use crate::cluster::metric;
use crate::rig::{Folder, Rig, komainu, nobody};

/// Time after which a measurement is given up.
const PATIENCE: Duration = Duration::from_secs(120);

/// Objects of a measurement.
struct Objects {
    gateways: usize,
    routes: usize,
    services: usize,
    endpoints_of_service: usize,
    /// Whether each Gateway has an address of its own.
    has_addresses: bool,
}

struct Measured {
    api: ApiServer,
    rig: Rig,
    objects: Objects,
    port: u16,
    origins: [SocketAddr; 2],
    /// Time from the start of the program to the last route.
    start: Duration,
}

fn host(route: usize) -> String {
    format!("r{route}.example.com")
}

impl Objects {
    fn gateway(&self, index: usize, port: u16) -> Value {
        let mut listener = json!({ "name": "http", "port": port, "protocol": "HTTP", "allowedRoutes": { "namespaces": { "from": "All" } } });
        if !self.has_addresses {
            listener["hostname"] = json!(format!("*.g{index}.example.com"));
        }
        if self.gateways == 1 {
            listener["hostname"] = json!("*.example.com");
        }
        json!({
            "kind": "Gateway", "metadata": { "name": format!("g{index}"), "namespace": "infra" },
            "spec": { "gatewayClassName": "komainu", "listeners": [listener] },
        })
    }

    /// A route, whose path is new in each round.
    fn route(&self, index: usize, round: usize) -> Value {
        let reference =
            json!([{ "name": format!("s{}", index % self.services), "namespace": "shop", "port": 80 }]);
        let mut rules = vec![json!({ "matches": [{ "path": { "value": "/" } }], "backendRefs": reference })];
        if round > 0 {
            let moved = json!({ "type": "RequestRedirect", "requestRedirect": { "path": { "type": "ReplaceFullPath", "replaceFullPath": format!("/to/{round}") } } });
            rules.push(json!({ "matches": [{ "path": { "value": "/round" } }], "filters": [moved] }));
        }
        json!({
            "kind": "HTTPRoute", "metadata": { "name": format!("r{index}"), "namespace": "shop", "creationTimestamp": "2026-01-01T00:00:00Z" },
            "spec": {
                "parentRefs": [{ "name": format!("g{}", index % self.gateways), "namespace": "infra" }],
                "hostnames": [host(index)],
                "rules": rules,
            },
        })
    }

    /// Endpoints of a Service, all at the same server.
    fn slice(&self, service: usize, server: SocketAddr, count: usize) -> Value {
        let endpoint = |at: usize| json!({ "addresses": [format!("127.0.{}.{}", 1 + at / 250, 1 + at % 250)], "conditions": { "ready": true } });
        json!({
            "kind": "EndpointSlice",
            "metadata": { "name": format!("s{service}-0"), "namespace": "shop", "labels": { "kubernetes.io/service-name": format!("s{service}") } },
            "addressType": "IPv4", "ports": [{ "port": server.port() }],
            "endpoints": (0..count).map(endpoint).collect::<Vec<_>>(),
        })
    }
}

impl Measured {
    fn start(objects: Objects) -> Measured {
        let origins = [anywhere("one"), anywhere("two")];
        let (api, port) = (ApiServer::start(), nobody().port());
        api.apply(json!({ "kind": "GatewayClass", "metadata": { "name": "komainu" }, "spec": { "controllerName": "komainu.dev/gateway-controller" } }));
        (0..objects.gateways).for_each(|at| api.apply(objects.gateway(at, port)));
        for service in 0..objects.services {
            api.apply(json!({ "kind": "Service", "metadata": { "name": format!("s{service}"), "namespace": "shop" }, "spec": { "ports": [{ "port": 80 }] } }));
            api.apply(objects.slice(service, origins[0], objects.endpoints_of_service));
        }
        (0..objects.routes).for_each(|at| api.apply(objects.route(at, 0)));
        let folder = Folder::new();
        folder.write(
            "config",
            format!(
                "current-context: t\ncontexts: [{{name: t, context: {{cluster: t, user: t}}}}]\nclusters: [{{name: t, cluster: {{server: 'http://{}'}}}}]\nusers: [{{name: t, user: {{token: x}}}}]\n",
                api.address
            ),
        );
        let mut command = komainu();
        command.args(["kubernetes", "--ready", "127.0.0.1:0", "--loopback-endpoints", "--log-level", "warn"]);
        if objects.has_addresses {
            command.args(["--addresses", "127.1.0.1-127.1.3.255"]);
        } else {
            command.args(["--addresses", "127.0.0.1"]);
        }
        command.arg("--kubeconfig").arg(folder.at("config"));
        command.arg("--control").arg(format!("unix:{}", folder.at("control.sock").display()));
        command.env("RUNTIME_DIRECTORY", folder.at("run"));
        let began = Instant::now();
        let rig = Rig::start(command, folder);
        let mut measured = Measured { api, rig, objects, port, origins, start: Duration::ZERO };
        let last = measured.objects.routes - 1;
        measured.until("the last route is served", || measured.ask(last, "/").0 == 200);
        measured.start = began.elapsed();
        measured
    }

    fn until(&self, what: &str, mut condition: impl FnMut() -> bool) -> Duration {
        let began = Instant::now();
        while !condition() {
            assert!(began.elapsed() < PATIENCE, "{what}: {}", self.rig.reported());
            thread::sleep(Duration::from_micros(200));
        }
        began.elapsed()
    }

    /// The address of a route's Gateway: addresses are given in the order of their objects' age and name.
    fn address(&self, route: usize) -> SocketAddr {
        if !self.objects.has_addresses {
            return SocketAddr::from(([127, 0, 0, 1], self.port));
        }
        let name = format!("g{}", route % self.objects.gateways);
        let status = self.api.status("gateways", "infra", &name);
        let known = status.pointer("/addresses/0/value").and_then(Value::as_str);
        let ip = known.and_then(|text| text.parse().ok()).unwrap_or([127, 1, 0, 1].into());
        SocketAddr::new(ip, self.port)
    }

    /// Status and head of a response.
    fn ask(&self, route: usize, path: &str) -> (u16, String) {
        ask(self.address(route), &host(route), path).unwrap_or_default()
    }

    /// Time from a change of a route to the first response by it.
    fn change_route(&self, route: usize, round: usize) -> Duration {
        let (address, name) = (self.address(route), host(route));
        self.api.apply(self.objects.route(route, round));
        let wanted = format!("/to/{round}");
        self.until("the change of a route", || {
            ask(address, &name, "/round").is_some_and(|(_, head)| head.contains(&wanted))
        })
    }

    /// Time from a change of the endpoints of a route's Service to the first response of the new ones.
    fn change_endpoints(&self, route: usize, to: usize) -> Duration {
        let (address, name) = (self.address(route), host(route));
        let service = route % self.objects.services;
        let wanted = ["one", "two"][to];
        self.api.apply(self.objects.slice(service, self.origins[to], self.objects.endpoints_of_service));
        self.until("the change of endpoints", || {
            ask(address, &name, "/").is_some_and(|(_, text)| text.ends_with(wanted))
        })
    }

    fn cpu_ms(&self) -> f64 {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.rig.child.id())).unwrap();
        let fields: Vec<&str> = text.rsplit(')').next().unwrap().split_whitespace().collect();
        let ticks = fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap();
        ticks * 10.0
    }

    fn resident_mib(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.rig.child.id())).unwrap();
        let line = text.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
    }

    /// Runs clients beside `work`. Returns what that returns, with the numbers of responses and of failed requests.
    fn under_load<T>(&self, work: impl FnOnce() -> T) -> (T, u64, u64) {
        let is_over = Arc::new(AtomicBool::new(false));
        let counts = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let clients: Vec<_> = (0..8)
            .map(|at| {
                let (is_over, counts) = (is_over.clone(), counts.clone());
                let routes: Vec<(SocketAddr, String)> = (0..self.objects.routes.min(64))
                    .map(|step| (at + step * 7) % self.objects.routes)
                    .map(|route| (self.address(route), host(route)))
                    .collect();
                thread::spawn(move || {
                    let mut client = None;
                    for (address, host) in routes.iter().cycle() {
                        if is_over.load(Ordering::Relaxed) {
                            return;
                        }
                        let is_answered = keep_asking(&mut client, *address, host);
                        counts[usize::from(!is_answered)].fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        let done = work();
        is_over.store(true, Ordering::Relaxed);
        clients.into_iter().for_each(|client| client.join().unwrap());
        (done, counts[0].load(Ordering::Relaxed), counts[1].load(Ordering::Relaxed))
    }

    fn report_changes(&self, what: &str, times: Vec<Duration>) {
        eprintln!("{what}: {}", percentiles(times));
    }
}

/// Starts a server at all loopback addresses. Returns one of them.
fn anywhere(name: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || serve_plainly(stream, name));
        }
    });
    SocketAddr::from(([127, 0, 0, 1], port))
}

fn serve_plainly(mut stream: TcpStream, name: &str) -> Option<()> {
    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{name}", name.len());
    stream.set_nodelay(true).ok()?;
    let mut lines = BufReader::new(stream.try_clone().ok()?);
    let mut line = String::new();
    loop {
        line.clear();
        if lines.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if line == "\r\n" {
            stream.write_all(answer.as_bytes()).ok()?;
        }
    }
}

fn ask(address: SocketAddr, host: &str, path: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(20))).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some((text.get(9..12)?.parse().ok()?, text))
}

/// Asks on a kept connection, which may lead to another Gateway. Returns whether the response is that of a server.
fn keep_asking(client: &mut Option<(SocketAddr, TcpStream)>, address: SocketAddr, host: &str) -> bool {
    if client.as_ref().is_none_or(|(known, _)| *known != address) {
        *client = TcpStream::connect(address).ok().map(|stream| (address, stream));
    }
    let Some((_, stream)) = client else { return false };
    let mut exchange = || {
        stream.set_read_timeout(Some(Duration::from_secs(20))).ok()?;
        write!(stream, "GET / HTTP/1.1\r\nHost: {host}\r\n\r\n").ok()?;
        let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
        loop {
            let count = stream.read(&mut buffer).ok().filter(|count| *count > 0)?;
            bytes.extend_from_slice(&buffer[..count]);
            if bytes.ends_with(b"one") || bytes.ends_with(b"two") {
                return bytes.starts_with(b"HTTP/1.1 200 ").then_some(());
            }
            if bytes.len() > 12 && !bytes.starts_with(b"HTTP/1.1 200 ") {
                return None;
            }
        }
    };
    let is_answered = exchange().is_some();
    if !is_answered {
        *client = None;
    }
    is_answered
}

fn percentiles(mut times: Vec<Duration>) -> String {
    times.sort();
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e3;
    format!("median {:.1} ms, p99 {:.1} ms, longest {:.1} ms of {}", at(0.5), at(0.99), at(1.0), times.len())
}

#[test]
#[ignore = "a measurement"]
fn figures_of_a_thousand_routes() {
    let measured = Measured::start(Objects {
        gateways: 1,
        routes: 1_000,
        services: 100,
        endpoints_of_service: 10,
        has_addresses: false,
    });
    eprintln!("1,000 routes: start {:?}, {} MiB", measured.start, measured.resident_mib());
    let routes =
        |from: usize| (0..200).map(|at| measured.change_route(at * 5, from + at + 1)).collect::<Vec<_>>();
    let endpoints =
        || (0..200).map(|at| measured.change_endpoints(at % 100, 1 - at / 100)).collect::<Vec<_>>();
    measured.report_changes("a route, idle", routes(0));
    measured.report_changes("endpoints, idle", endpoints());
    let (times, answered, failed) = measured.under_load(|| routes(1_000));
    measured.report_changes("a route, under load", times);
    eprintln!("  {answered} responses, {failed} failed requests");
    let (times, answered, failed) = measured.under_load(endpoints);
    measured.report_changes("endpoints, under load", times);
    eprintln!("  {answered} responses, {failed} failed requests");
    for kind in ["routes", "servers", "failed"] {
        let label = format!("kind=\"{kind}\"");
        eprintln!(
            "  changes of {kind}: {}",
            metric(&measured.rig, "komainu_kubernetes_changes_total", &label)
        );
    }
}

#[test]
#[ignore = "a measurement"]
fn figures_of_changes_under_load() {
    let measured = Measured::start(Objects {
        gateways: 1,
        routes: 200,
        services: 100,
        endpoints_of_service: 10,
        has_addresses: false,
    });
    let (_, answered, failed) = measured.under_load(|| {
        for round in 1..=5 {
            for at in 0..100 {
                measured.api.apply(measured.objects.route(at, round));
                let to = measured.origins[round % 2];
                measured.api.apply(measured.objects.slice(at, to, 10));
                thread::sleep(Duration::from_millis(10));
            }
        }
        measured.change_route(0, 100)
    });
    eprintln!(
        "100 routes and 1,000 endpoints changed 5 times: {answered} responses, {failed} failed requests"
    );
}

#[test]
#[ignore = "a measurement"]
fn figures_of_many_gateways() {
    for (gateways, routes) in [(5, 50), (500, 5_000)] {
        let measured = Measured::start(Objects {
            gateways,
            routes,
            services: routes / 10,
            endpoints_of_service: 2,
            has_addresses: true,
        });
        let attached = || {
            let all = (0..gateways).map(|at| measured.api.status("gateways", "infra", &format!("g{at}")));
            all.filter(|status| status["listeners"][0]["attachedRoutes"] == routes / gateways).count()
        };
        let written = measured.until("statuses are written", || attached() == gateways);
        eprintln!(
            "{routes} routes, {gateways} Gateways: start {:?}, correct attachedRoutes {:?} later, {} MiB",
            measured.start,
            written,
            measured.resident_mib()
        );
        // Their writing is not a part of what a change costs.
        let is_written = |at: usize| {
            let status = measured.api.status("httproutes", "shop", &format!("r{at}"));
            status.pointer("/parents/0/conditions").is_some()
        };
        let written = measured.until("statuses of routes are written", || (0..routes).all(is_written));
        eprintln!("  statuses of routes {written:?} later");
        thread::sleep(Duration::from_secs(3));
        let count = 50;
        let before = measured.cpu_ms();
        let times: Vec<Duration> = (0..count).map(|at| measured.change_route(at % routes, at + 1)).collect();
        thread::sleep(Duration::from_secs(1));
        let cpu = (measured.cpu_ms() - before) / count as f64;
        measured.report_changes("  a route", times);
        eprintln!("  {cpu:.1} ms of CPU for each change, {} MiB", measured.resident_mib());
        assert_eq!(attached(), gateways);
    }
}
