//! Servers that are found by DNS and among containers, with a DNS server and a Docker socket of their own.

use std::collections::{BTreeSet, HashMap};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::origin::{Origin, answer};
use crate::rig::{Folder, Rig, connect, eventually, listener, read_answer};

/// An answer of the DNS server.
#[derive(Clone)]
enum Records {
    /// Servers of a service: priority, port and host.
    Service(Vec<(u16, u16, &'static str)>),
    Host(Ipv4Addr),
    /// A code instead of records.
    Code(u8),
}

const SERVFAIL: u8 = 2;
const NXDOMAIN: u8 = 3;

type Zone = Arc<Mutex<HashMap<&'static str, Records>>>;

/// A DNS server over TCP, whose records last a second. Names that it does not have do not exist.
struct DnsServer {
    address: SocketAddr,
    zone: Zone,
}

impl DnsServer {
    fn start() -> DnsServer {
        let listener = listener();
        let (address, zone) = (listener.local_addr().unwrap(), Zone::default());
        let theirs = zone.clone();
        std::thread::spawn(move || serve_dns(&listener, &theirs));
        DnsServer { address, zone }
    }

    fn set(&self, name: &'static str, records: Records) {
        self.zone.lock().unwrap().insert(name, records);
    }
}

fn serve_dns(listener: &TcpListener, zone: &Zone) {
    loop {
        let mut stream = listener.accept().unwrap().0;
        let zone = zone.clone();
        std::thread::spawn(move || {
            let mut len = [0; 2];
            while stream.read_exact(&mut len).is_ok() {
                let mut query = vec![0; usize::from(u16::from_be_bytes(len))];
                stream.read_exact(&mut query).unwrap();
                let response = respond_dns(&query, &zone);
                let framed = [&(response.len() as u16).to_be_bytes()[..], &response].concat();
                if stream.write_all(&framed).is_err() {
                    return;
                }
            }
        });
    }
}

fn respond_dns(query: &[u8], zone: &Zone) -> Vec<u8> {
    let mut name = String::new();
    let mut at = 12;
    while query[at] != 0 {
        let label = &query[at + 1..at + 1 + usize::from(query[at])];
        name += &format!("{}{}", if name.is_empty() { "" } else { "." }, String::from_utf8_lossy(label));
        at += 1 + label.len();
    }
    let kind = query[at + 2];
    let records = zone.lock().unwrap().get(&*name).cloned();
    let mut response = query.to_vec();
    response[2] = 0x81;
    let mut count = 0;
    let mut add = |kind: u8, data: &[u8]| {
        count += 1;
        response.extend([0xc0, 12, 0, kind, 0, 1, 0, 0, 0, 1]);
        response.extend((data.len() as u16).to_be_bytes());
        response.extend(data);
    };
    let code = match records {
        None => NXDOMAIN,
        Some(Records::Code(code)) => code,
        Some(Records::Host(ip)) if kind == 1 => {
            add(1, &ip.octets());
            0
        }
        Some(Records::Service(servers)) if kind == 33 => {
            for (priority, port, host) in servers {
                let mut data = priority.to_be_bytes().to_vec();
                data.extend([0, 1]);
                data.extend(port.to_be_bytes());
                for label in host.split('.') {
                    data.push(label.len() as u8);
                    data.extend(label.bytes());
                }
                data.push(0);
                add(33, &data);
            }
            0
        }
        // There are no records of this kind.
        Some(_) => 0,
    };
    response[3] = code;
    response[7] = count;
    response
}

/// Docker's API at a Unix socket.
struct Docker {
    containers: Arc<Mutex<Value>>,
    events: Arc<Mutex<Vec<Sender<()>>>>,
}

impl Docker {
    fn start(socket: &Path) -> Docker {
        let listener = UnixListener::bind(socket).unwrap();
        let docker = Docker { containers: Arc::new(Mutex::new(json!([]))), events: Arc::default() };
        let (containers, events) = (docker.containers.clone(), docker.events.clone());
        std::thread::spawn(move || {
            loop {
                let stream = listener.accept().unwrap().0;
                let containers = containers.clone();
                let (event, happened) = channel();
                events.lock().unwrap().push(event);
                std::thread::spawn(move || serve_docker(stream, &containers, &happened));
            }
        });
        docker
    }

    fn set(&self, containers: Value) {
        *self.containers.lock().unwrap() = containers;
        self.events.lock().unwrap().retain(|event| event.send(()).is_ok());
    }
}

fn serve_docker(mut stream: UnixStream, containers: &Mutex<Value>, happened: &Receiver<()>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut target = String::new();
    reader.read_line(&mut target).unwrap();
    let mut line = String::new();
    while reader.read_line(&mut line).unwrap_or(0) > 2 {
        line.clear();
    }
    if target.contains("/events?") {
        let mut sent = stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        while sent.is_ok() && happened.recv().is_ok() {
            sent = stream.write_all(b"3\r\n{}\n\r\n");
        }
        return;
    }
    assert!(target.contains("/containers/json?"), "{target}");
    let list = containers.lock().unwrap().clone();
    // An endless list.
    if list.is_null() {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n[");
        while stream.write_all(&[b' '; 65_536]).is_ok() {}
        return;
    }
    let list = list.to_string();
    let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{list}", list.len());
}

fn container(name: &str, origin: &Origin, labels: Value) -> Value {
    let port: u16 = origin.url.rsplit_once(':').unwrap().1.parse().unwrap();
    json!({
        "Id": name, "Names": [format!("/{name}")], "Created": 1, "Labels": labels, "State": "running", "Status": "Up",
        "Ports": [{ "PrivatePort": port, "Type": "tcp" }],
        "NetworkSettings": { "Networks": { "bridge": { "IPAddress": "127.0.0.1" } } },
    })
}

fn origin(name: &'static str) -> Origin {
    Origin::start(move |_| answer("200 OK", "", name))
}

fn port(origin: &Origin) -> u16 {
    origin.url.rsplit_once(':').unwrap().1.parse().unwrap()
}

fn body(rig: &Rig, target: &str) -> String {
    let answer = rig.get(target);
    if answer.status() == 200 { answer.text() } else { answer.status().to_string() }
}

#[test]
fn servers_of_a_service_come_and_go() {
    let dns = DnsServer::start();
    let (release, held) = channel::<()>();
    let held = Mutex::new(held);
    let one = Origin::start(move |ask| {
        if ask.line().contains("/slow") {
            // Until the sender is dropped.
            let _ = held.lock().unwrap().recv();
        }
        answer("200 OK", "", "one")
    });
    let (two, spare) = (origin("two"), origin("spare"));
    dns.set("one.svc.test", Records::Host(Ipv4Addr::LOCALHOST));
    dns.set("two.svc.test", Records::Host(Ipv4Addr::LOCALHOST));
    let (first, second, third) =
        ((0, port(&one), "one.svc.test"), (0, port(&two), "two.svc.test"), (5, port(&spare), "one.svc.test"));
    dns.set("_web._tcp.svc.test", Records::Service(vec![first, second, third]));
    let folder = Folder::new();
    let text = format!(
        "[[route]]\nproxy = \"srv+http://_web._tcp.svc.test\"\n[discover]\ndns = \"{}\"\ntimeout = \"20s\"\n",
        dns.address
    );
    let rig = Rig::config(folder, &text);
    // From the first request on; the server of a lower priority gets none.
    let answers: BTreeSet<String> = (0..20).map(|_| body(&rig, "/")).collect();
    assert_eq!(answers, BTreeSet::from(["one", "two"].map(str::to_owned)));

    // A server that goes ends its requests.
    let mut slow = Vec::new();
    eventually("one has a slow request", || {
        let mut stream = connect(rig.address);
        stream.write_all(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        slow.push(stream);
        one.asks().iter().any(|ask| ask.line().contains("/slow"))
    });
    dns.set("_web._tcp.svc.test", Records::Service(vec![second, third]));
    eventually("one is gone", || (0..4).all(|_| body(&rig, "/") == "two"));
    drop(release);
    let statuses: Vec<u16> = slow.iter_mut().map(|stream| read_answer(stream).status()).collect();
    assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");

    // All of the first priority are gone.
    dns.set("_web._tcp.svc.test", Records::Service(vec![third]));
    eventually("the spare server is used", || body(&rig, "/") == "spare");
    // A DNS server that cannot answer changes nothing.
    dns.set("_web._tcp.svc.test", Records::Code(SERVFAIL));
    rig.expect_report("_web._tcp.svc.test: the DNS server");
    assert_eq!(body(&rig, "/"), "spare");
    dns.set("_web._tcp.svc.test", Records::Code(NXDOMAIN));
    eventually("no server is left", || body(&rig, "/") == "502");
    rig.expect_report("has no servers");
    rig.expect_report("_web._tcp.svc.test answers again");
    dns.set("_web._tcp.svc.test", Records::Service(vec![second]));
    eventually("there is one again", || body(&rig, "/") == "two");
}

#[test]
fn addresses_of_a_name_are_followed() {
    let dns = DnsServer::start();
    let one = origin("one");
    let two =
        Origin::start_at(SocketAddr::from(([127, 0, 0, 2], port(&one))), |_| answer("200 OK", "", "two"));
    let folder = Folder::new();
    let text = format!(
        "[[route]]\nproxy = \"dns+http://app.test:{}\"\n[discover]\ndns = \"{}\"\ntimeout = \"20s\"\n",
        port(&one),
        dns.address
    );
    let rig = Rig::config(folder, &text);
    assert_eq!(body(&rig, "/"), "502", "the name does not exist yet");
    dns.set("app.test", Records::Host(Ipv4Addr::LOCALHOST));
    eventually("the address is found", || body(&rig, "/") == "one");
    dns.set("app.test", Records::Host(Ipv4Addr::new(127, 0, 0, 2)));
    eventually("the address has changed", || body(&rig, "/") == "two");
    assert!(!two.asks().is_empty());
}

#[test]
fn containers_are_served_by_their_labels() {
    let folder = Folder::new();
    let docker = Docker::start(&folder.at("docker.sock"));
    let (shop, api, own) = (origin("shop"), origin("api"), origin("own"));
    let of_shop = container("shop", &shop, json!({ "komainu.host": "shop.test", "other.label": "x" }));
    docker.set(json!([of_shop, container("thief", &shop, json!({ "komainu.host": "own.test" }))]));
    let text = format!(
        "[[site]]\nhosts = [\"own.test\"]\n[[site.route]]\nproxy = \"{}\"\n\
         [discover]\ndocker = \"unix:{}\"\ntimeout = \"20s\"\n",
        own.url,
        folder.at("docker.sock").display()
    );
    let rig = Rig::config(folder, &text);
    let body = |host: &str, path: &str| {
        let head = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        let answer = rig.send(&head);
        if answer.status() == 200 { answer.text() } else { answer.status().to_string() }
    };
    // From the first request on.
    assert_eq!(body("shop.test", "/a"), "shop");
    assert_eq!(body("own.test", "/a"), "own", "a container does not get the host of a site");
    rig.expect_report("own.test is the host of a `[[site]]`");

    let labels =
        json!({ "komainu.host": "shop.test", "komainu.path": "/api/*", "komainu.strip_prefix": "true" });
    let wrong = container("wrong", &api, json!({ "komainu.host": "wrong.test", "komainu.files": "/etc" }));
    docker.set(json!([of_shop, container("api", &api, labels), wrong]));
    eventually("the container is served", || body("shop.test", "/api/x") == "api");
    assert!(api.last().line().starts_with("GET /x "));
    assert_eq!(body("shop.test", "/a"), "shop");
    assert_eq!(body("wrong.test", "/"), "404");
    rig.expect_report("the container wrong is not served: there is no label `komainu.files`");

    // Labels that the configuration refuses cost the others nothing.
    let labels = |host: &str, more: &str| json!({ "komainu.host": host, "komainu.path": more });
    let bad = container("bad", &api, labels("bad.test", "/../x"));
    let odd = container("odd", &api, labels("odd.test", "/%2e%2e/*"));
    let new = container("new", &api, json!({ "komainu.host": "new.test" }));
    docker.set(json!([of_shop, bad, odd, new]));
    eventually("the others are served", || body("new.test", "/") == "api");
    assert_eq!(
        [body("shop.test", "/a"), body("bad.test", "/"), body("odd.test", "/")],
        ["shop", "404", "404"]
    );
    rig.expect_report("the containers with the host bad.test are not served");

    // A reload keeps what was found.
    rig.signal("-HUP");
    rig.expect_report("the configuration was read again");
    assert_eq!(body("shop.test", "/a"), "shop");

    // A list without end changes nothing.
    docker.set(Value::Null);
    rig.expect_report("its list cannot be read");
    assert_eq!(body("shop.test", "/a"), "shop");
    docker.set(json!([]));
    eventually("the containers are gone", || body("shop.test", "/a") == "404");
    assert_eq!(body("own.test", "/a"), "own");
}
