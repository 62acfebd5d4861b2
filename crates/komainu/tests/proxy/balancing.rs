//! Groups of upstream servers: balancing, health checks, queues and draining by the real binary.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use crate::origin::{Ask, Origin, answer, ok};
use crate::rig;
use crate::rig::{Folder, Rig, eventually, nobody, read_answer};

fn route(text: &str) -> Rig {
    Rig::config(Folder::new(), &configured(text))
}

fn configured(text: &str) -> String {
    format!(
        r"
        threads = 1
        [[route]]
        {text}
        "
    )
}

fn named<const N: usize>(names: [&'static str; N]) -> [Origin; N] {
    names.map(|name| Origin::start(move |_| ok(name)))
}

fn urls(origins: &[Origin]) -> String {
    let urls: Vec<String> = origins.iter().map(|origin| format!("\"{}\"", origin.url)).collect();
    urls.join(", ")
}

/// Number of responses of each server.
fn answers(rig: &Rig, count: usize) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for _ in 0..count {
        *counts.entry(rig.get("/").expect_status(200).text()).or_default() += 1;
    }
    counts
}

/// A gate at which requests wait until it is opened for a number of them.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<(usize, usize)>, Condvar)>);

impl Gate {
    fn pass(&self) {
        let mut state = self.0.0.lock().unwrap();
        state.0 += 1;
        while state.1 == 0 {
            state = self.0.1.wait(state).unwrap();
        }
        *state = (state.0 - 1, state.1 - 1);
    }

    fn waiting(&self) -> usize {
        self.0.0.lock().unwrap().0
    }

    fn open(&self, count: usize) {
        self.0.0.lock().unwrap().1 += count;
        self.0.1.notify_all();
    }

    /// Starts an origin whose requests for `/wait` wait at this gate.
    fn origin(&self, name: &'static str) -> Origin {
        let gate = self.clone();
        Origin::start(move |ask: &Ask| {
            if ask.line().contains("/wait") {
                gate.pass();
            }
            ok(name)
        })
    }
}

/// A connection on which `path` has been requested.
fn asking(rig: &Rig, path: &str) -> TcpStream {
    let mut stream = rig.connect();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    stream
}

/// Whether a response has begun.
fn is_answered(stream: &TcpStream) -> bool {
    stream.set_read_timeout(Some(std::time::Duration::from_millis(1))).unwrap();
    let begun = stream.peek(&mut [0]).is_ok();
    stream.set_read_timeout(Some(rig::PATIENCE)).unwrap();
    begun
}

#[test]
fn hash_balancing_maps_a_key_to_one_server() {
    let origins = named(["a", "b", "c"]);
    for (key, of) in [
        ("header:X-User", |rig: &Rig, user: usize| rig.ask("/", &format!("X-User: {user}\r\n")).text()),
        ("cookie:user", |rig: &Rig, user: usize| rig.ask("/", &format!("Cookie: user={user}\r\n")).text()),
        ("uri", |rig: &Rig, user: usize| rig.get(&format!("/of?{user}")).text()),
    ] as [(&str, fn(&Rig, usize) -> String); 3]
    {
        let rig = route(&format!("proxy = {{ to = [{}], balance = \"hash:{key}\" }}", urls(&origins)));
        let met: Vec<String> = (0..30).map(|user| of(&rig, user)).collect();
        assert_eq!(met, (0..30).map(|user| of(&rig, user)).collect::<Vec<_>>(), "{key}");
        assert!(["a", "b", "c"].iter().all(|name| met.iter().any(|met| met == name)), "{key}: {met:?}");
    }
    let rig = route(&format!("proxy = {{ to = [{}], balance = \"hash:client\" }}", urls(&origins)));
    assert_eq!(answers(&rig, 10).len(), 1);
}

#[test]
fn sticky_cookie_selects_its_server_until_it_is_removed() {
    let [a, b] = named(["a", "b"]);
    let rig = route(&format!("proxy = {{ to = [{:?}, {:?}], balance = \"sticky:srv\" }}", a.url, b.url));
    let first = rig.get("/");
    let cookie = first.field("Set-Cookie").unwrap().to_owned();
    assert!(cookie.starts_with("srv="), "{cookie}");
    let pair = format!("Cookie: {}\r\n", cookie.split(';').next().unwrap());
    for _ in 0..10 {
        rig.ask("/", &pair).expect(200, &first.text()).expect_no_field("Set-Cookie");
    }
    let (left, other) = if first.text() == "a" { (&b, "b") } else { (&a, "a") };
    let config = format!("proxy = {{ to = [{:?}], balance = \"sticky:srv\" }}", left.url);
    rig.folder.write("komainu.toml", rig::listen(&rig.folder) + &configured(&config));
    rig.signal("-HUP");
    eventually("the other server answers", || rig.ask("/", &pair).text() == other);
    assert!(rig.ask("/", &pair).field("Set-Cookie").is_some());
}

#[test]
fn least_busy_server_is_selected() {
    let gate = Gate::default();
    let slow = gate.origin("slow");
    let fast = Origin::start(|_| ok("fast"));
    for balance in ["least-requests", "two-choices"] {
        let to = format!("{:?}, {:?}", slow.url, fast.url);
        let rig = route(&format!("proxy = {{ to = [{to}], balance = \"{balance}\" }}"));
        let mut stuck = Vec::new();
        eventually("a request hangs", || {
            let stream = asking(&rig, "/wait");
            // Either server may have received the request; the next one is sent once this is known.
            eventually("it is with a server", || gate.waiting() == 1 || is_answered(&stream));
            stuck.push(stream);
            gate.waiting() == 1
        });
        assert_eq!(answers(&rig, 20), BTreeMap::from([("fast".into(), 20)]), "{balance}");
        gate.open(1);
        for mut stream in stuck {
            read_answer(&mut stream).expect_status(200);
        }
    }
}

#[test]
fn routes_share_limit_and_queue_of_a_named_group() {
    let gate = Gate::default();
    let origin = gate.origin("x");
    let rig = Rig::config(
        Folder::new(),
        &format!(
            r#"
            threads = 1

            [upstreams.shop]
            to = {{ url = "{}", connections = 1 }}
            queue = 1
            timeouts = {{ queue = "60s" }}

            [[route]]
            path = "/wait"
            proxy = {{ upstream = "shop" }}

            [[route]]
            path = "/other/*"
            proxy = {{ upstream = "shop", strip_prefix = true }}
            "#,
            origin.url
        ),
    );
    let mut first = asking(&rig, "/wait");
    eventually("the first request is there", || gate.waiting() == 1);
    // One request waits, whichever arrives first; the other finds the queue full.
    let mut others = Vec::new();
    let mut refused = None;
    eventually("the queue is full", || {
        others.push(asking(&rig, "/other/b"));
        refused = others.iter().position(is_answered);
        refused.is_some()
    });
    let mut refused = others.swap_remove(refused.unwrap());
    read_answer(&mut refused).expect_status(503).expect_field("Retry-After", "1");
    assert_eq!((origin.asks().len(), origin.connections()), (1, 1));
    gate.open(100);
    read_answer(&mut first).expect(200, "x");
    let statuses: Vec<u16> = others.iter_mut().map(|stream| read_answer(stream).status()).collect();
    assert!(statuses.contains(&200), "{statuses:?}");
    assert_eq!(origin.asks()[1].line(), "GET /b HTTP/1.1");
    assert_eq!(origin.connections(), 1, "both routes share the connection too");
}

#[test]
fn queue_timeout_rejects_waiting_request_with_503() {
    let gate = Gate::default();
    let origin = gate.origin("x");
    let rig = route(&format!(
        "proxy = {{ to = {{ url = \"{}\", connections = 1 }}, timeouts = {{ queue = \"50ms\" }} }}",
        origin.url
    ));
    let mut first = asking(&rig, "/wait");
    eventually("the first request is there", || gate.waiting() == 1);
    rig.get("/").expect_status(503).expect_field("Retry-After", "1");
    gate.open(1);
    read_answer(&mut first).expect(200, "x");
    rig.get("/").expect(200, "x");
}

#[test]
fn http_checks_remove_server_and_slow_start_restores_it() {
    let well = Arc::new(AtomicBool::new(true));
    let is_well = well.clone();
    let b = Origin::start(move |ask| match ask.line() {
        "GET /up HTTP/1.1" if !is_well.load(Ordering::SeqCst) => answer("503 No", "", ""),
        _ => ok("b"),
    });
    let a = Origin::start(|_| ok("a"));
    let rig = route(&format!(
        "proxy = {{ to = [{:?}, {:?}], slow_start = \"1h\", \
         health = {{ path = \"/up\", interval = \"100ms\", rise = 1, fall = 2, expect = \"200\" }} }}",
        a.url, b.url
    ));
    assert_eq!(
        answers(&rig, 20),
        BTreeMap::from([("a".into(), 10), ("b".into(), 10)]),
        "nobody comes back yet"
    );
    well.store(false, Ordering::SeqCst);
    eventually("b is out", || !answers(&rig, 4).contains_key("b"));
    assert_eq!(answers(&rig, 20), BTreeMap::from([("a".into(), 20)]));
    well.store(true, Ordering::SeqCst);
    eventually("b is back", || answers(&rig, 20).contains_key("b"));
    rig.expect_report("its health checks fail");
    rig.expect_report("in service again");
    let share = answers(&rig, 100).get("b").copied().unwrap_or(0);
    assert!((3..=20).contains(&share), "a tenth at first, not {share} of 100");
}

#[test]
fn tcp_checks_remove_and_restore_a_server() {
    let address = nobody();
    let a = Origin::start(|_| ok("a"));
    let rig = route(&format!(
        "proxy = {{ to = [\"http://{address}\", \"{}\"], eject = false, retry = false, \
         health = {{ interval = \"100ms\", fall = 1, rise = 1 }} }}",
        a.url
    ));
    eventually("the check finds it", || (0..4).all(|_| rig.get("/").status() == 200));
    for _ in 0..20 {
        rig.get("/").expect(200, "a");
    }
    let _b = serving(address, "b");
    eventually("it is found again", || rig.get("/").text() == "b");
}

/// Starts a server that responds with `body`, at a known address.
fn serving(address: SocketAddr, body: &'static str) -> Origin {
    Origin::start_at(address, move |_| ok(body))
}

#[test]
fn failing_server_is_ejected_and_restored() {
    let broken = nobody();
    let a = Origin::start(|_| ok("a"));
    let rig = route(&format!(
        "proxy = {{ to = [\"http://{broken}\", \"{}\"], eject = {{ failures = 2, first = \"100ms\", max = \"200ms\" }} }}",
        a.url
    ));
    assert_eq!(answers(&rig, 20), BTreeMap::from([("a".into(), 20)]), "no request is lost to it");
    eventually("the log says that it is ejected", || rig.reported().contains("ejected"));
    let _b = serving(broken, "b");
    eventually("a request finds it again", || rig.get("/").text() == "b");
    eventually("the log says so", || rig.reported().contains("back in service"));
}

#[test]
fn draining_a_server_under_load_fails_no_request() {
    let gate = Gate::default();
    let [a, b] = ["a", "b"].map(|name| gate.origin(name));
    let config = |weight: u32| {
        let to = format!("{{ url = \"{}\", weight = {weight} }}, \"{}\"", a.url, b.url);
        configured(&format!("proxy = [{to}]"))
    };
    let folder = Folder::new();
    let mut rig = Rig::config(folder, &config(1));
    // One long request on each server.
    let mut long = [asking(&rig, "/wait"), asking(&rig, "/wait")];
    eventually("both are busy", || gate.waiting() == 2);
    let stop = Arc::new(AtomicBool::new(false));
    let answered = Arc::new(AtomicUsize::new(0));
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let stop = stop.clone();
            let answered = answered.clone();
            let address = rig.address;
            std::thread::spawn(move || {
                let mut stream = rig::connect(address);
                while !stop.load(Ordering::Relaxed) {
                    stream.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi").unwrap();
                    let answer = read_answer(&mut stream);
                    answer.expect_status(200);
                    answered.fetch_add(1, Ordering::Relaxed);
                    // A reload closes persistent connections gracefully: with `Connection: close`, or between
                    // two requests.
                    if answer.field("Connection") == Some("close") {
                        stream = rig::connect(address);
                    }
                }
            })
        })
        .collect();
    for weight in [0, 1, 0] {
        let until = answered.load(Ordering::Relaxed) + 200;
        eventually("requests continue", || {
            answered.load(Ordering::Relaxed) >= until || clients.iter().any(|client| client.is_finished())
        });
        rig.folder.write("komainu.toml", rig::listen(&rig.folder) + &config(weight));
        rig.signal("-HUP");
        let drained = || {
            let before = a.asks().len();
            answers(&rig, 10);
            before == a.asks().len()
        };
        eventually("the change is seen", || drained() == (weight == 0));
    }
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.join().expect("no request fails");
    }
    gate.open(2);
    let mut who: Vec<String> = long.iter_mut().map(|stream| read_answer(stream).text()).collect();
    who.sort_unstable();
    assert_eq!(who, ["a", "b"], "what was under way ends in peace");
    rig.signal("-TERM");
    assert!(rig.ended().success());
}

#[test]
fn reload_keeps_the_state_of_unchanged_groups() {
    let gate = Gate::default();
    let origin = gate.origin("x");
    let more = r#"
        [[route]]
        path = "/other"
        respond = "ok"
    "#;
    let group =
        format!("[[route]]\nproxy = {{ to = {{ url = {:?}, connections = 1 }}, queue = 0 }}\n", origin.url);
    let rig = Rig::config(Folder::new(), &format!("threads = 1\n{group}"));
    rig.get("/").expect(200, "x");
    let reload = |text: &str| {
        rig.folder.write("komainu.toml", format!("{}threads = 1\n{text}", rig::listen(&rig.folder)));
        rig.signal("-HUP");
    };
    reload(&format!("{more}{group}"));
    eventually("the new route answers", || rig.get("/other").text() == "ok");
    rig.get("/").expect(200, "x");
    assert_eq!((origin.connections(), origin.open()), (1, 1), "the kept connection is still there");
    let mut long = asking(&rig, "/wait");
    eventually("a request is under way", || gate.waiting() == 1);
    reload(&group);
    eventually("the route is gone", || rig.get("/other").text() != "ok");
    rig.get("/").expect_status(503);
    gate.open(1);
    read_answer(&mut long).expect(200, "x");
    rig.get("/").expect(200, "x");
    assert_eq!(origin.connections(), 1);
}

#[test]
fn reload_ends_health_checks_on_idle_threads() {
    let asked = Arc::new(AtomicUsize::new(0));
    let theirs = asked.clone();
    let origin = Origin::start(move |_| {
        theirs.fetch_add(1, Ordering::Relaxed);
        ok("up")
    });
    let route = format!(
        "proxy = {{ to = \"{}\", health = {{ path = \"/up\", interval = \"100ms\", expect = \"200\" }} }}",
        origin.url
    );
    let rig = route_on_two_threads(&route);
    eventually("it is checked", || asked.load(Ordering::Relaxed) > 2);
    let text = rig::listen(&rig.folder)
        + r#"
            threads = 2
            [[route]]
            respond = "no more"
        "#;
    rig.folder.write("komainu.toml", text);
    rig.signal("-HUP");
    eventually("it is read", || rig.reported().contains("was read again"));
    // Without any request, health checks of a removed server end nevertheless.
    eventually("the checks end", || {
        let before = asked.load(Ordering::Relaxed);
        std::thread::sleep(std::time::Duration::from_millis(500));
        asked.load(Ordering::Relaxed) == before
    });
}

fn route_on_two_threads(text: &str) -> Rig {
    Rig::config(
        Folder::new(),
        &format!(
            r"
            threads = 2
            [[route]]
            {text}
            "
        ),
    )
}
