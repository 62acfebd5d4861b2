//! `[[stream]]` over UDP: sessions, their servers and their bounds.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use crate::certified::start;
use crate::line::Line;
use crate::rig::{Folder, PATIENCE, Rig, as_we_are, eventually, kinds, listener, text};

/// Maximum size of a datagram over IPv4.
const DATAGRAM_BYTES_MAX: usize = 65_507;

/// Starts a server whose answer to each datagram a closure gives; `None` for no answer.
fn server(answer: impl Fn(SocketAddr, &[u8]) -> Option<Vec<u8>> + Send + 'static) -> SocketAddr {
    server_at("127.0.0.1:0", answer)
}

fn server_at(at: &str, answer: impl Fn(SocketAddr, &[u8]) -> Option<Vec<u8>> + Send + 'static) -> SocketAddr {
    let socket = UdpSocket::bind(at).unwrap();
    let address = socket.local_addr().unwrap();
    thread::spawn(move || {
        let mut buffer = vec![0; 65_536];
        while let Ok((len, from)) = socket.recv_from(&mut buffer) {
            if let Some(answer) = answer(from, &buffer[..len]) {
                let _ = socket.send_to(&answer, from);
            }
        }
    });
    address
}

fn echo() -> SocketAddr {
    server(|_, datagram| Some(datagram.to_vec()))
}

/// A server that begins its answers with its name.
fn named(name: &'static str) -> SocketAddr {
    server(move |_, datagram| Some([name.as_bytes(), b":", datagram].concat()))
}

/// Returns an address that refuses datagrams, and the socket that keeps it from other tests: a connected socket
/// receives from one peer only.
fn refusing() -> (SocketAddr, UdpSocket) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect("127.0.0.1:9").unwrap();
    (socket.local_addr().unwrap(), socket)
}

fn config(to: &str, more: &str) -> String {
    format!(
        r#"
        threads = 2

        [log]
        access = "json"
        file = "access.log"

        [control]
        listen = "unix:control.sock"

        [[stream]]
        protocol = "udp"
        listen = "127.0.0.1:0"
        name = "tested"
        to = {to}
        {more}
        "#
    )
}

fn stream(to: &str, more: &str) -> Rig {
    start(Folder::new(), &config(to, more))
}

fn client(server: SocketAddr) -> UdpSocket {
    let any = if server.is_ipv6() { "[::1]:0" } else { "127.0.0.1:0" };
    let socket = UdpSocket::bind(any).unwrap();
    socket.connect(server).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

fn receive(client: &UdpSocket) -> Vec<u8> {
    let mut buffer = vec![0; 65_536];
    let len = client.recv(&mut buffer).unwrap();
    buffer.truncate(len);
    buffer
}

/// Sends a datagram until it is answered. Only for servers that may not receive yet.
fn ask(client: &UdpSocket, datagram: &str) -> String {
    client.send(datagram.as_bytes()).unwrap();
    text(&receive(client))
}

/// Whether nothing arrives for a while.
fn is_silent(client: &UdpSocket) -> bool {
    client.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let is_silent = client.recv(&mut [0; 100]).is_err();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    is_silent
}

fn ends(rig: &Rig, count: usize) -> Vec<serde_json::Value> {
    let log = || std::fs::read_to_string(rig.folder.at("access.log")).unwrap_or_default();
    eventually("the ends are logged", || log().lines().count() >= count);
    log().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Sum of the samples of a metric that have this label.
fn count(rig: &Rig, name: &str, label: &str) -> u64 {
    let text = rig.metrics();
    let samples = text.lines().filter(|line| line.starts_with(name) && line.contains(label));
    samples.map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap() as u64).sum()
}

#[test]
fn datagrams_of_any_size_go_both_ways_unchanged() {
    let rig = stream(&format!("\"{}\"", echo()), "timeouts = { idle = \"500ms\" }");
    let client = client(rig.address);
    let mut total = 0;
    let sizes = [1, 0, 512, 1_472, 1_473, 9_000, DATAGRAM_BYTES_MAX];
    for size in sizes {
        let sent: Vec<u8> = (0..size).map(|at| (at % 251) as u8).collect();
        client.send(&sent).unwrap();
        assert!(receive(&client) == sent, "a datagram of {size} bytes");
        total += size as u64;
    }
    let end = &ends(&rig, 1)[0];
    assert_eq!((&end["stream"], &end["client"]), (&"tested".into(), &"127.0.0.1".into()));
    assert_eq!((&end["received_bytes"], &end["sent_bytes"]), (&total.into(), &total.into()));
    assert_eq!((&end["received_datagrams"], &end["sent_datagrams"]), (&7.into(), &7.into()));
    assert_eq!((&end["end"], &end["status"]), (&"idle for too long".into(), &200.into()));
    assert!(end["upstream"].as_str().unwrap().starts_with("udp://127.0.0.1:"));
    assert_eq!(count(&rig, "komainu_stream_received_datagrams_total", "stream=\"tested\""), 7);
    assert_eq!(count(&rig, "komainu_stream_sent_bytes_total", "stream=\"tested\""), total);
}

/// Bursts are joined by the kernel and sent on in one call; each datagram stays by itself.
#[test]
fn bursts_keep_their_datagrams_and_order() {
    let rig = stream(&format!("\"{}\"", echo()), "");
    let client = client(rig.address);
    let datagram = |at: u32| {
        let size = if at % 16 == 15 { 700 } else { 1_200 };
        [&at.to_be_bytes()[..], &vec![at as u8; size]].concat()
    };
    for burst in 0..40 {
        let numbers = burst * 32..(burst + 1) * 32;
        numbers.clone().for_each(|at| _ = client.send(&datagram(at)).unwrap());
        for at in numbers {
            assert!(receive(&client) == datagram(at), "datagram {at}");
        }
    }
}

#[test]
fn session_ends_with_the_expected_responses() {
    let seen = server(|from, _| Some(from.port().to_string().into_bytes()));
    let rig = stream(&format!("\"{seen}\""), "responses = 1");
    let one = client(rig.address);
    let ports: Vec<String> = (0..3).map(|_| ask(&one, "query")).collect();
    assert!(ports[0] != ports[1] && ports[1] != ports[2], "a session each: {ports:?}");
    let ends = ends(&rig, 3);
    assert!(ends.iter().all(|end| end["end"] == "answered by the upstream server"), "{ends:?}");
    // Without `responses`, the session stays.
    let rig = stream(&format!("\"{seen}\""), "");
    let one = client(rig.address);
    assert_eq!(ask(&one, "query"), ask(&one, "query"));
    // None is expected: nothing is kept.
    let rig = stream(&format!("\"{seen}\""), "responses = 0");
    client(rig.address).send(b"log line").unwrap();
    assert_eq!(self::ends(&rig, 1)[0]["received_datagrams"], 1);
}

#[test]
fn sessions_are_balanced_and_refusing_servers_passed_over() {
    let (dead, _kept) = refusing();
    let to = format!("[\"{}\", \"{dead}\", \"{}\"]", named("one"), named("two"));
    let rig = stream(&to, "eject = { failures = 1 }");
    let mut names: Vec<String> = (0..12).map(|_| ask(&client(rig.address), "x")).collect();
    names.sort();
    names.dedup();
    assert_eq!(names, ["one:x", "two:x"], "every first datagram is answered");
    rig.expect_report("ejected");
    rig.expect_report("refused a datagram");
    // The same server for the same client address.
    let rig = stream(&to, "balance = \"hash:client\"");
    let mut names: Vec<String> = (0..6).map(|_| ask(&client(rig.address), "x")).collect();
    names.dedup();
    assert_eq!(names.len(), 1);
    // No server is left.
    let rig = stream(&format!("\"{dead}\""), "");
    client(rig.address).send(b"x").unwrap();
    let end = &ends(&rig, 1)[0];
    assert_eq!(end["status"], 502);
    assert!(end["end"].as_str().unwrap().contains("refused a datagram"), "{end}");
    assert_eq!(count(&rig, "komainu_stream_dropped_datagrams_total", "reason=\"no_upstream\""), 1);
}

#[test]
fn silent_server_is_ejected_if_responses_are_expected() {
    let silent = server(|_, _| None);
    let more =
        "responses = 1\neject = { failures = 1 }\ntimeouts = { idle = \"300ms\" }\nbalance = \"two-choices\"";
    let rig = stream(&format!("[\"{silent}\", \"{}\"]", named("one")), more);
    eventually("the silent one is found", || {
        client(rig.address).send(b"x").unwrap();
        rig.reported().contains("ejected")
    });
    rig.expect_report("answered no datagram in time");
}

#[test]
fn sessions_are_limited_for_each_client_and_by_access() {
    let rig = stream(&format!("\"{}\"", echo()), "connections_per_client = 2\ntimeouts = { idle = \"2s\" }");
    let clients: Vec<UdpSocket> = (0..3).map(|_| client(rig.address)).collect();
    assert_eq!([ask(&clients[0], "a"), ask(&clients[1], "b")], ["a", "b"]);
    clients[2].send(b"c").unwrap();
    assert!(is_silent(&clients[2]));
    assert_eq!(count(&rig, "komainu_stream_dropped_datagrams_total", "reason=\"limit\""), 1);
    ends(&rig, 2);
    assert_eq!(ask(&clients[2], "c"), "c", "there is room again");
    let rig = stream(&format!("\"{}\"", echo()), "deny = \"127.0.0.1\"");
    let denied = client(rig.address);
    denied.send(b"x").unwrap();
    assert!(is_silent(&denied));
    assert_eq!(count(&rig, "komainu_stream_dropped_datagrams_total", "reason=\"denied\""), 1);
}

/// Sends datagrams from many addresses, each of which looks like a client of its own.
fn flood(to: SocketAddr, senders: u32) {
    for at in 0..senders {
        let from = format!("127.{}.{}.{}:0", 1 + at / 60_000, at / 250 % 240, 1 + at % 250);
        let socket = UdpSocket::bind(from).unwrap();
        let _ = socket.send_to(b"forged", to);
    }
}

#[test]
fn flood_of_forged_clients_leaves_confirmed_sessions_alone() {
    let server = server(|from, datagram| {
        (datagram != b"forged").then(|| [from.port().to_string().as_bytes(), b":", datagram].concat())
    });
    let written = config(&format!("\"{server}\""), "")
        .replace("threads = 2", "threads = 1\n[limits]\nconnections = 200\n");
    let rig = start(Folder::new(), &written);
    let kept = client(rig.address);
    let first = ask(&kept, "a");
    // The second datagram confirms the client.
    assert_eq!(ask(&kept, "a"), first);
    let descriptors = || std::fs::read_dir(format!("/proc/{}/fd", rig.child.id())).unwrap().count();
    let before = descriptors();
    let flooded = rig.address;
    let flooding = thread::spawn(move || flood(flooded, 12_000));
    let mut most = 0;
    let mut asked = 0;
    while !flooding.is_finished() {
        kept.send(b"a").unwrap();
        kept.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        let mut buffer = [0; 100];
        // The flood may fill the socket's buffer, in which the kernel loses datagrams of everybody.
        if let Ok(len) = kept.recv(&mut buffer) {
            assert_eq!(text(&buffer[..len]), first, "the same session");
            asked += 1;
        }
        most = most.max(descriptors());
    }
    flooding.join().unwrap();
    assert!(asked > 10, "answered {asked} times during the flood");
    assert_eq!(ask(&kept, "a"), first, "the same session");
    // A quarter of the connections is for clients that may be forged, and a turn may begin 32 more.
    assert!(most <= before + 50 + 40, "{most} descriptors, {before} before");
    assert!(count(&rig, "komainu_stream_ends_total", "end=\"given_up\"") > 1_000);
    // Sessions that were given up are not logged.
    assert_eq!(std::fs::read_to_string(rig.folder.at("access.log")).unwrap_or_default(), "");
    // Another client finds a place.
    assert!(ask(&client(rig.address), "b").ends_with(":b"));
}

#[test]
fn sessions_follow_a_reload_to_other_servers() {
    let seen =
        |name: &'static str| server(move |from, _| Some(format!("{name} {}", from.port()).into_bytes()));
    let one = seen("one");
    let two = seen("two");
    let rig = stream(&format!("\"{one}\""), "");
    let kept = client(rig.address);
    let first = ask(&kept, "x");
    let reload = |text: String| {
        rig.folder.write("komainu.toml", format!("{}{text}", as_we_are()));
        rig.signal("-HUP");
    };
    // Another server beside it: the session stays.
    reload(config(&format!("[\"{one}\", \"{two}\"]"), "balance = \"two-choices\""));
    eventually("the new server is used", || ask(&client(rig.address), "x").starts_with("two"));
    thread::sleep(Duration::from_millis(1_500));
    assert_eq!(ask(&kept, "x"), first, "the session stays with its server");
    // Its server is gone: the next datagram begins a session with another one.
    reload(config(&format!("\"{two}\""), ""));
    eventually("the session has moved", || ask(&kept, "x").starts_with("two"));
    assert!(ends(&rig, 1).iter().any(|end| end["end"] == "the configuration has no such server any more"));
    // The stream is gone, and so is its socket.
    let at = rig.address;
    reload("listen = \"127.0.0.1:0\"\n[[route]]\nrespond = \"x\"\n".to_owned());
    eventually("the port is free", || UdpSocket::bind(at).is_ok());
}

#[test]
fn proxy_protocol_precedes_each_datagram() {
    let rig = stream(&format!("\"{}\"", echo()), "proxy_protocol = \"v2\"");
    let own = client(rig.address);
    for datagram in ["first", "", "second"] {
        own.send(datagram.as_bytes()).unwrap();
        let answer = receive(&own);
        assert_eq!(&answer[..16], b"\r\n\r\n\0\r\nQUIT\n\x21\x12\0\x0c");
        assert_eq!(&answer[16..24], [127, 0, 0, 1, 127, 0, 0, 1]);
        assert_eq!(answer[24..26], own.local_addr().unwrap().port().to_be_bytes());
        assert_eq!(answer[26..28], rig.address.port().to_be_bytes());
        assert_eq!(text(&answer[28..]), datagram);
    }
    // From a load balancer in front, and on to the server.
    let more = "proxy_protocol = \"v2\"\nallow = \"192.0.2.0/24\"";
    let written = config(&format!("\"{}\"", echo()), more);
    let written = written.replace(
        "listen = \"127.0.0.1:0\"",
        "listen = { address = \"127.0.0.1:0\", proxy_protocol = [\"127.0.0.1\"] }",
    );
    let rig = start(Folder::new(), &written);
    let balancer = client(rig.address);
    let header = |source: [u8; 4]| {
        let ends = [&source[..], &[198, 51, 100, 1], &4711_u16.to_be_bytes(), &53_u16.to_be_bytes()].concat();
        [&b"\r\n\r\n\0\r\nQUIT\n\x21\x12\0\x0c"[..], &ends].concat()
    };
    let named = header([192, 0, 2, 7]);
    balancer.send(&[&named[..], b"query"].concat()).unwrap();
    assert_eq!(receive(&balancer), [&named[..], b"query"].concat());
    balancer.send(&[&header([203, 0, 113, 7])[..], b"query"].concat()).unwrap();
    balancer.send(b"query").unwrap();
    assert!(is_silent(&balancer));
    for (reason, want) in [("denied", 1), ("no_header", 1)] {
        let label = format!("reason=\"{reason}\"");
        assert_eq!(count(&rig, "komainu_stream_dropped_datagrams_total", &label), want, "{reason}");
    }
}

#[test]
fn ipv6_and_connections_share_a_port() {
    let tcp = listener();
    let upstream = tcp.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in tcp.incoming().flatten() {
            let _ = stream.write_all(b"tcp");
        }
    });
    let udp = server_at("[::1]:0", |_, datagram| Some([b"udp:", datagram].concat()));
    let port = UdpSocket::bind("[::1]:0").unwrap().local_addr().unwrap().port();
    let rig = start(
        Folder::new(),
        &format!(
            r#"
            [[stream]]
            listen = "[::1]:{port}"
            to = "{upstream}"
            [[stream]]
            protocol = "udp"
            listen = "[::1]:{port}"
            to = "{udp}"
            "#
        ),
    );
    assert_eq!(ask(&client(rig.address), "x"), "udp:x");
    let sent: Vec<u8> = vec![7; 20_000];
    let one = client(rig.address);
    one.send(&sent).unwrap();
    assert_eq!(receive(&one).len(), sent.len() + 4);
    let mut greeting = String::new();
    TcpStream::connect(rig.address).unwrap().read_to_string(&mut greeting).unwrap();
    assert_eq!(greeting, "tcp");
    // On every address, answers come from the one that the client has asked.
    let port = UdpSocket::bind("[::]:0").unwrap().local_addr().unwrap().port();
    let listen = format!("listen = [\"127.0.0.1:0\", \":{port}\"]");
    let written = config(&format!("\"{udp}\""), "").replace("listen = \"127.0.0.1:0\"", &listen);
    let _rig = start(Folder::new(), &written);
    for address in ["127.0.0.3", "127.0.0.1"] {
        let one = client(SocketAddr::new(address.parse().unwrap(), port));
        assert_eq!(ask(&one, "x"), "udp:x", "{address}");
    }
    assert_eq!(ask(&client(SocketAddr::new("::1".parse().unwrap(), port)), "x"), "udp:x");
}

/// A server that answers "later" when it is told to.
fn delaying() -> (SocketAddr, Sender<()>, Receiver<()>) {
    let (go, goes) = channel();
    let (got, gets) = channel();
    let address = server(move |_, datagram| {
        if datagram == b"later" {
            got.send(()).unwrap();
            goes.recv().unwrap();
        }
        Some(datagram.to_vec())
    });
    (address, go, gets)
}

#[test]
fn upgrade_passes_new_datagrams_on_and_loses_no_answer() {
    for kind in kinds() {
        let (slow, go, got) = delaying();
        let fast = echo();
        let written = format!(
            r#"{kind}
            threads = 2
            [[stream]]
            protocol = "udp"
            listen = "127.0.0.1:0"
            to = "{fast}"
            [[stream]]
            protocol = "udp"
            listen = "127.0.0.2:0"
            to = "{slow}"
            "#
        );
        let mut line = Line::start(Folder::new(), &written);
        let kept = client(line.rig.address);
        assert_eq!(ask(&kept, "before"), "before");
        let listens = line.komainu(&["status", "--pid", &line.pid.to_string()]);
        let shown = text_of_listener(&text(&listens.stdout), "udp://127.0.0.2:");
        let waiting = client(shown);
        waiting.send(b"later").unwrap();
        got.recv_timeout(PATIENCE).unwrap();
        line.upgrade();
        for at in 0..20 {
            let question = format!("{at}");
            assert_eq!(ask(&client(line.rig.address), &question), question, "{kind}");
            assert_eq!(ask(&kept, &question), question, "{kind}");
        }
        go.send(()).unwrap();
        assert_eq!(text(&receive(&waiting)), "later", "{kind}");
        line.stop();
    }
}

/// Finds the address of a listener in the output of a command.
fn text_of_listener(shown: &str, start: &str) -> SocketAddr {
    let at = shown.find(start).unwrap_or_else(|| panic!("no {start} in {shown}")) + "udp://".len();
    let end =
        shown[at..].find(|c: char| !c.is_ascii_digit() && c != '.' && c != ':').unwrap_or(shown.len() - at);
    shown[at..at + end].parse().unwrap()
}

#[test]
fn a_stop_waits_for_answers_only() {
    let (slow, go, got) = delaying();
    let mut rig = stream(&format!("\"{slow}\""), "");
    let answered = client(rig.address);
    assert_eq!(ask(&answered, "x"), "x");
    let waiting = client(rig.address);
    waiting.send(b"later").unwrap();
    got.recv_timeout(PATIENCE).unwrap();
    rig.signal("-TERM");
    thread::sleep(Duration::from_millis(300));
    go.send(()).unwrap();
    assert_eq!(text(&receive(&waiting)), "later");
    // Long before `timeouts.idle`.
    assert!(rig.ended().success());
}
