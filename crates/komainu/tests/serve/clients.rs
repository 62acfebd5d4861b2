//! Client addresses behind proxies, from trusted fields and from the PROXY protocol.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use crate::origin::{Origin, ok};
use crate::rig;
use crate::rig::{Folder, Rig, eventually, komainu, read_answer};

/// Starts a server with exactly this configuration.
fn start(folder: Folder, text: &str) -> Rig {
    folder.write("komainu.toml", text);
    let mut command = komainu();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
    Rig::start(command, folder)
}

/// Starts a server that shows the client's address in the log, in variables and to an upstream server; the
/// configuration begins with `first`.
fn with_events(first: &str, origin: &Origin) -> Rig {
    let text = format!(
        r#"{first}
threads = 1
log = {{ access = "combined", file = "access.log" }}
response_headers = {{ set = {{ X-Client = "$client_ip", X-Scheme = "$scheme" }} }}
[[route]]
path = "/up"
[route.proxy]
to = "{}"
forwarded = {{ standard = true }}
request_headers = {{ set = {{ X-Who = "$remote_addr $client_port $scheme" }} }}
[[route]]
respond = "hello"
"#,
        origin.url
    );
    start(Folder::new(), &text)
}

/// Addresses in the access log once it has `count` lines.
fn logged(rig: &Rig, count: usize) -> Vec<String> {
    let log = || fs::read_to_string(rig.folder.at("access.log")).unwrap_or_default();
    eventually("the log is written", || log().lines().count() >= count);
    log().lines().map(|line| line.split(' ').next().unwrap().to_owned()).collect()
}

#[test]
fn trusted_forwarding_fields_set_the_client_address() {
    let origin = Origin::start(|_| ok("x"));
    let rig =
        with_events("listen = \"127.0.0.1:0\"\ntrusted_proxies = [\"127.0.0.1\", \"10.0.0.0/8\"]", &origin);
    rig.ask("/", "X-Forwarded-For: 6.6.6.6, 192.0.2.9, 10.0.0.7\r\nX-Forwarded-Proto: https\r\n")
        .expect(200, "hello")
        .expect_field("X-Client", "192.0.2.9")
        .expect_field("X-Scheme", "https");
    rig.ask("/up", "X-Forwarded-For: 2001:db8::9\r\nX-Real-IP: 6.6.6.6\r\n").expect(200, "x");
    let ask = origin.last();
    assert_eq!(ask.field("X-Who"), ["2001:db8::9 0 http"]);
    assert_eq!(ask.field("X-Forwarded-For"), ["2001:db8::9, 127.0.0.1"]);
    assert_eq!(ask.field("X-Forwarded-Proto"), ["http"]);
    assert!(ask.field("Forwarded").join(", ").starts_with("for=\"[2001:db8::9]\""), "{}", ask.head);
    // Without an address, the request is the proxy's own.
    rig.get("/").expect_field("X-Client", "127.0.0.1").expect_field("X-Scheme", "http");
    assert_eq!(logged(&rig, 3), ["192.0.2.9", "2001:db8::9", "127.0.0.1"]);
}

#[test]
fn forwarding_fields_of_untrusted_clients_are_ignored() {
    let origin = Origin::start(|_| ok("x"));
    let rig = with_events("listen = \"127.0.0.1:0\"\ntrusted_proxies = [\"10.0.0.0/8\"]", &origin);
    let claims = "X-Forwarded-For: 192.0.2.9\r\nX-Forwarded-Proto: https\r\nForwarded: for=192.0.2.9\r\n";
    rig.ask("/up", claims).expect_field("X-Client", "127.0.0.1").expect_field("X-Scheme", "http");
    assert_eq!(origin.last().field("X-Forwarded-For"), ["127.0.0.1"]);
    assert_eq!(logged(&rig, 1), ["127.0.0.1"]);
}

#[test]
fn forwarded_field_is_used_when_configured() {
    let origin = Origin::start(|_| ok("x"));
    let trust = "trusted_proxies = { from = [\"127.0.0.1\"], fields = \"forwarded\" }";
    let rig = with_events(&format!("listen = \"127.0.0.1:0\"\n{trust}"), &origin);
    rig.ask("/up", "X-Forwarded-For: 6.6.6.6\r\nForwarded: for=\"192.0.2.9:99\";proto=https\r\n")
        .expect_field("X-Client", "192.0.2.9")
        .expect_field("X-Scheme", "https");
    let ask = origin.last();
    assert_eq!(ask.field("X-Who"), ["192.0.2.9 99 https"]);
    assert_eq!(ask.field("X-Forwarded-For"), ["192.0.2.9, 127.0.0.1"]);
    let broken = rig.ask("/", "Forwarded: for=\"192.0.2.9\r\n");
    assert!(broken.expect_status(400).text().contains("invalid Forwarded"));
}

#[test]
fn last_address_is_the_client_without_recursion() {
    let origin = Origin::start(|_| ok("x"));
    let trust = "trusted_proxies = { from = [\"127.0.0.1\", \"10.0.0.0/8\"], recursive = false }";
    let rig = with_events(&format!("listen = \"127.0.0.1:0\"\n{trust}"), &origin);
    rig.ask("/up", "X-Forwarded-For: 192.0.2.9, 10.1.1.1\r\nX-Forwarded-Proto: http, https\r\n")
        .expect_field("X-Client", "10.1.1.1")
        .expect_field("X-Scheme", "https");
    rig.ask("/up", "X-Forwarded-For: 10.1.1.1, 192.0.2.9\r\n").expect_field("X-Client", "192.0.2.9");
}

const ASK: &str = "GET /up HTTP/1.1\r\nHost: localhost\r\n\r\n";
const LINE: &str = "PROXY TCP4 192.0.2.9 192.0.2.1 1234 80\r\n";

#[test]
fn proxy_protocol_header_sets_the_client_address() {
    let origin = Origin::start(|_| ok("x"));
    let first = "listen = { address = \"127.0.0.1:0\", proxy_protocol = [\"127.0.0.0/8\"] }";
    let rig = with_events(first, &origin);
    let mut client = rig.connect();
    client.write_all(format!("{LINE}{ASK}").as_bytes()).unwrap();
    for number in 0..3 {
        // The address applies to every request of the connection.
        if number > 0 {
            client.write_all(ASK.as_bytes()).unwrap();
        }
        read_answer(&mut client).expect(200, "x").expect_field("X-Client", "192.0.2.9");
    }
    let ask = origin.last();
    assert_eq!(ask.field("X-Who"), ["192.0.2.9 1234 http"]);
    assert_eq!(ask.field("X-Forwarded-For"), ["192.0.2.9"]);
    // Version 2, for a client with TLS between it and the proxy.
    let mut client = rig.connect();
    client
        .write_all(b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x14\xc0\0\x02\x08\xc0\0\x02\x01\x04\xd2\x01\xbb\x20\0\x05\x01\0\0\0\0")
        .unwrap();
    client.write_all(ASK.as_bytes()).unwrap();
    read_answer(&mut client).expect_field("X-Client", "192.0.2.8").expect_field("X-Scheme", "https");
    assert_eq!(origin.last().field("X-Who"), ["192.0.2.8 1234 https"]);
    assert_eq!(logged(&rig, 4), ["192.0.2.9", "192.0.2.9", "192.0.2.9", "192.0.2.8"]);
    let plain = rig.get("/");
    assert!(plain.expect_status(400).text().contains("no PROXY protocol header"), "{}", plain.text());
}

#[test]
fn proxy_protocol_header_of_untrusted_peer_is_rejected() {
    let origin = Origin::start(|_| ok("x"));
    let rig =
        with_events("listen = { address = \"127.0.0.1:0\", proxy_protocol = [\"10.0.0.0/8\"] }", &origin);
    let refused = rig.send(&format!("{LINE}{ASK}"));
    assert!(refused.expect_status(403).text().contains("PROXY protocol"), "{}", refused.text());
    assert_eq!(logged(&rig, 1), ["127.0.0.1"]);
    assert!(origin.asks().is_empty());
}

#[test]
fn client_behind_proxy_protocol_cannot_forge_its_address() {
    // The load balancer forwards connections, and its client claims another address.
    let origin = Origin::start(|_| ok("x"));
    let first =
        "listen = { address = \"127.0.0.1:0\", proxy_protocol = true }\ntrusted_proxies = [\"127.0.0.1\"]";
    let rig = with_events(first, &origin);
    let mut client = rig.connect();
    let claims = "GET /up HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 6.6.6.6\r\n\r\n";
    client.write_all(format!("{LINE}{claims}").as_bytes()).unwrap();
    read_answer(&mut client).expect_field("X-Client", "192.0.2.9");
    assert_eq!(origin.last().field("X-Forwarded-For"), ["192.0.2.9"]);
}

#[test]
fn client_addresses_are_accepted_on_unix_sockets() {
    let origin = Origin::start(|_| ok("x"));
    let first = "listen = [\"127.0.0.1:0\", \"unix:plain.sock\", { address = \"unix:proxied.sock\", proxy_protocol = true }]\n\
                 trusted_proxies = [\"unix\"]";
    let rig = with_events(first, &origin);
    let ask = |socket: &str, bytes: &str| {
        let mut client = UnixStream::connect(rig.folder.at(socket)).unwrap();
        client.set_read_timeout(Some(rig::PATIENCE)).unwrap();
        client.write_all(bytes.as_bytes()).unwrap();
        let mut said = Vec::new();
        client.read_to_end(&mut said).unwrap();
        rig::Answer::parse(said)
    };
    let request = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX-Forwarded-For: 192.0.2.9\r\n\r\n";
    ask("plain.sock", request).expect(200, "hello").expect_field("X-Client", "192.0.2.9");
    let reported = format!("PROXY TCP6 2001:db8::7 2001:db8::1 1 80\r\n{request}");
    ask("proxied.sock", &reported).expect(200, "hello").expect_field("X-Client", "2001:db8::7");
    ask("proxied.sock", request).expect_status(400);
}

#[test]
fn proxy_protocol_is_forwarded_to_another_server() {
    let origin = Origin::start(|_| ok("x"));
    let first = "listen = { address = \"127.0.0.1:0\", proxy_protocol = [\"127.0.0.1\"] }";
    let inner = with_events(first, &origin);
    for version in ["v1", "v2"] {
        let outer = start(
            Folder::new(),
            &format!(
                r#"
                listen = {{ address = "127.0.0.1:0", proxy_protocol = ["127.0.0.1"] }}
                threads = 1
                [[route]]
                proxy = {{ to = "http://{}", proxy_protocol = "{version}" }}
                "#,
                inner.address
            ),
        );
        let mut client = outer.connect();
        client.write_all(format!("{LINE}{ASK}").as_bytes()).unwrap();
        read_answer(&mut client).expect(200, "x").expect_field("X-Client", "192.0.2.9");
        assert_eq!(origin.last().field("X-Who"), ["192.0.2.9 1234 http"]);
    }
}

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

#[test]
fn request_id_is_generated_and_forwarded() {
    let origin = Origin::start(|_| ok("x"));
    let text = format!(
        r#"
        listen = "127.0.0.1:0"
        threads = 1
        response_headers = {{ set = {{ X-Request-Id = "$request_id" }} }}
        [[route]]
        path = "/own"
        proxy = {{ to = "{0}", request_headers = {{ set = {{ X-Request-Id = "mine-$request_id" }} }} }}
        [[route]]
        proxy = "{0}"
        "#,
        origin.url
    );
    let rig = start(Folder::new(), &text);
    let mut ids = Vec::new();
    // No proxy is trusted: fields sent by the client are replaced.
    for sent in ["", "X-Request-Id: theirs\r\n", "X-Request-Id: a\r\nX-Request-Id: b\r\n"] {
        let answer = rig.ask("/", &format!("{sent}traceparent: {PARENT}\r\ntracestate: a=1\r\n"));
        let id = answer.expect(200, "x").field("X-Request-Id").unwrap().to_owned();
        assert!(id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
        let ask = origin.last();
        assert_eq!(ask.field("X-Request-Id"), [&id]);
        // Without `[tracing]` these are ordinary fields.
        assert_eq!((ask.field("traceparent"), ask.field("tracestate")), (vec![PARENT], vec!["a=1"]));
        ids.push(id);
    }
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 3);
    let own = rig.get("/own");
    assert_eq!(origin.last().field("X-Request-Id"), [format!("mine-{}", own.field("X-Request-Id").unwrap())]);
}

#[test]
fn ids_and_traces_of_trusted_proxies_are_continued() {
    let origin = Origin::start(|_| ok("x"));
    let with = |more: &str| {
        let text = format!(
            r#"
            listen = "127.0.0.1:0"
            threads = 1
            {more}
            [[route]]
            proxy = "{}"
            response_headers = {{ set = {{ X-Trace = "$trace_id", X-Id = "$request_id" }} }}
            "#,
            origin.url
        );
        start(Folder::new(), &text)
    };
    let rig = with("trusted_proxies = [\"127.0.0.1\"]\ntracing = { enabled = true }");
    let answer = rig.ask("/", &format!("X-Request-Id: a-1\r\ntraceparent: {PARENT}\r\ntracestate: a=1\r\n"));
    answer.expect_field("X-Id", "a-1").expect_field("X-Trace", "0af7651916cd43dd8448eb211c80319c");
    let ask = origin.last();
    assert_eq!((ask.field("X-Request-Id"), ask.field("tracestate")), (vec!["a-1"], vec!["a=1"]));
    let parent = ask.field("traceparent")[0].to_owned();
    assert!(
        parent.starts_with("00-0af7651916cd43dd8448eb211c80319c-") && parent.ends_with("-01"),
        "{parent}"
    );
    assert_ne!(parent, PARENT);
    // Invalid ids are replaced, and the state of an invalid trace is not forwarded.
    for (id, sent, state) in
        [("a b", "00-0-0-01", "a=1"), ("\"x\"", &PARENT.to_uppercase(), "a=1"), (&"a".repeat(129), "", "a=1")]
    {
        let fields = format!("X-Request-Id: {id}\r\ntraceparent: {sent}\r\ntracestate: {state}\r\n");
        rig.ask("/", &fields).expect(200, "x");
        let ask = origin.last();
        let made = ask.field("X-Request-Id");
        let trace = ask.field("traceparent");
        assert!(made.len() == 1 && made[0].len() == 32, "{made:?}");
        assert!(trace.len() == 1 && trace[0].len() == 55 && trace[0].ends_with("-00"), "{trace:?}");
        assert!(ask.field("tracestate").is_empty());
    }
    rig.ask("/", &format!("traceparent: {PARENT}\r\ntracestate: not valid\r\n"));
    assert!(origin.last().field("tracestate").is_empty());
    // Only new traces, all of them sampled, and no request ids.
    let rig = with(
        r#"
        request_ids = "off"
        [tracing]
        enabled = true
        from = "new"
        sample = "100%"
        "#,
    );
    rig.ask("/", &format!("X-Request-Id: any thing\r\ntraceparent: {PARENT}\r\n")).expect(200, "x");
    let ask = origin.last();
    assert_eq!(ask.field("X-Request-Id"), ["any thing"]);
    let trace = ask.field("traceparent")[0].to_owned();
    assert!(trace.ends_with("-01") && !trace.contains("0af76519"), "{trace}");
}
