//! `[[stream]]`: TCP, and TLS passed through by server name.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::certified::{self, fetch, s_client, site, start};
use crate::rig::{
    Folder, PATIENCE, Rig, as_we_are, connect, eventually, installed, is_closed, listen, listener, nobody,
    text,
};

/// Starts a server that calls `serve` for each connection on a new thread.
fn server(serve: impl Fn(TcpStream) + Clone + Send + 'static) -> SocketAddr {
    let listener = listener();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let serve = serve.clone();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            thread::spawn(move || serve(stream));
        }
    });
    address
}

/// Starts a server that sends a greeting, echoes its input until the end, and then reports the length.
fn echo(name: &'static str) -> SocketAddr {
    server(move |mut stream| {
        let _ = stream.write_all(format!("{name}\n").as_bytes());
        let mut total = 0;
        let mut buffer = [0; 4096];
        while let Ok(len @ 1..) = stream.read(&mut buffer) {
            total += len;
            if stream.write_all(&buffer[..len]).is_err() {
                return;
            }
        }
        let _ = stream.write_all(format!("\n{total} bytes\n").as_bytes());
    })
}

fn stream(to: &str, more: &str) -> Rig {
    start(
        Folder::new(),
        &format!(
            r#"
            threads = 2

            [log]
            access = "json"
            file = "access.log"

            [[stream]]
            listen = "127.0.0.1:0"
            name = "tested"
            to = {to}
            {more}
            "#
        ),
    )
}

fn line(stream: &mut TcpStream) -> String {
    let mut line = Vec::new();
    let mut byte = [0];
    while stream.read(&mut byte).unwrap() == 1 && byte[0] != b'\n' {
        line.push(byte[0]);
    }
    text(&line)
}

fn log(rig: &Rig) -> String {
    std::fs::read_to_string(rig.folder.at("access.log")).unwrap_or_default()
}

/// Lines of the access log once there are `count` of them.
fn ends(rig: &Rig, count: usize) -> Vec<serde_json::Value> {
    eventually("the ends are logged", || log(rig).lines().count() >= count);
    log(rig).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn stream_relays_bytes_and_half_closes() {
    let rig = stream(&format!("\"{}\"", echo("one")), "");
    let mut client = rig.connect();
    // The server speaks first.
    assert_eq!(line(&mut client), "one");
    let sent: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
    let mut writer = client.try_clone().unwrap();
    let bytes = sent.clone();
    let writing = thread::spawn(move || {
        writer.write_all(&bytes).unwrap();
        writer.shutdown(Shutdown::Write).unwrap();
    });
    let mut received = Vec::new();
    client.read_to_end(&mut received).unwrap();
    writing.join().unwrap();
    assert_eq!(received, [&sent[..], b"\n3000000 bytes\n"].concat(), "all of it, and the answer to the end");
    let end = &ends(&rig, 1)[0];
    assert_eq!((&end["stream"], &end["client"]), (&"tested".into(), &"127.0.0.1".into()));
    assert_eq!((&end["received_bytes"], &end["sent_bytes"]), (&3_000_000.into(), &3_000_019.into()));
    assert_eq!((&end["end"], &end["status"]), (&"closed by the client".into(), &200.into()));
    assert!(
        end["upstream"].as_str().unwrap().starts_with("tcp://127.0.0.1:") && end["connect_ms"].is_number()
    );
}

#[test]
fn upstream_that_half_closes_still_receives_client_data() {
    let (got, gets) = std::sync::mpsc::channel();
    let upstream = server(move |mut stream| {
        stream.write_all(b"that is all\n").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        got.send(rest).unwrap();
    });
    let rig = stream(&format!("\"{upstream}\""), "");
    let mut client = rig.connect();
    let mut received = Vec::new();
    client.read_to_end(&mut received).unwrap();
    assert_eq!(text(&received), "that is all\n");
    client.write_all(b"and yet more").unwrap();
    drop(client);
    assert_eq!(gets.recv_timeout(PATIENCE).unwrap(), b"and yet more");
    assert_eq!(ends(&rig, 1)[0]["end"], "closed by the upstream server");
}

#[test]
fn upstream_reset_is_forwarded_to_the_client() {
    let upstream = server(|mut stream| {
        stream.write_all(b"half").unwrap();
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    });
    let rig = stream(&format!("\"{upstream}\""), "");
    let mut client = rig.connect();
    let mut half = [0; 4];
    client.read_exact(&mut half).unwrap();
    client.write_all(b"x").unwrap();
    let error = client.read(&mut half).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    let end = &ends(&rig, 1)[0];
    assert_eq!((&end["end"], &end["status"]), (&"reset by the upstream server".into(), &502.into()));
}

#[test]
fn stream_balances_servers_and_skips_refusing_ones() {
    let one = echo("one");
    let two = echo("two");
    let rig = stream(&format!("[\"{one}\", \"{}\", \"{two}\"]", nobody()), "eject = { failures = 1 }\n");
    let mut names: Vec<String> = (0..8).map(|_| line(&mut rig.connect())).collect();
    names.sort();
    names.dedup();
    assert_eq!(names, ["one", "two"]);
    rig.expect_report("ejected");
    // All servers are down: the client gets a reset at once.
    let rig = stream(&format!("\"{}\"", nobody()), "");
    assert!(is_closed(&mut rig.connect()));
    let end = &ends(&rig, 1)[0];
    assert_eq!((&end["end"], &end["status"]), (&"the upstream refused the connection".into(), &502.into()));
}

#[test]
fn proxy_protocol_address_is_used_and_forwarded() {
    let upstream = server(|mut stream| {
        let mut bytes = vec![0; 300];
        let len = stream.read(&mut bytes).unwrap();
        stream.write_all(&bytes[..len]).unwrap();
    });
    let to = |version: &str| {
        let text = format!(
            r#"
            [log]
            access = "json"
            file = "access.log"
            [[stream]]
            to = "{upstream}"
            proxy_protocol = "{version}"
            listen = {{ address = "127.0.0.1:0", proxy_protocol = ["127.0.0.0/8"] }}
            allow = "192.0.2.0/24"
            "#
        );
        start(Folder::new(), &text)
    };
    let rig = to("v1");
    let mut client = rig.connect();
    client.write_all(b"PROXY TCP4 192.0.2.7 198.51.100.1 4711 443\r\n").unwrap();
    assert_eq!(line(&mut client), "PROXY TCP4 192.0.2.7 198.51.100.1 4711 443\r");
    drop(client);
    assert_eq!(ends(&rig, 1)[0]["client"], "192.0.2.7");
    // A client outside of `allow`.
    let mut client = rig.connect();
    client.write_all(b"PROXY TCP4 203.0.113.7 198.51.100.1 4711 443\r\n").unwrap();
    assert!(is_closed(&mut client));
    assert_eq!(ends(&rig, 2)[1]["end"], "the client's address is not allowed");
    let rig = to("v2");
    let mut client = rig.connect();
    client.write_all(b"PROXY TCP4 192.0.2.7 198.51.100.1 4711 443\r\n").unwrap();
    let mut header = [0; 28];
    client.read_exact(&mut header).unwrap();
    assert_eq!(&header[16..28], b"\xc0\x00\x02\x07\xc6\x33\x64\x01\x12\x67\x01\xbb");
}

#[test]
fn stream_connection_limits_and_idle_timeout_are_enforced() {
    let rig = stream(&format!("\"{}\"", echo("one")), "connections_per_client = 2\n");
    let mut kept: Vec<TcpStream> = (0..2).map(|_| rig.connect()).collect();
    kept.iter_mut().for_each(|client| assert_eq!(line(client), "one"));
    assert!(is_closed(&mut rig.connect()));
    assert_eq!(ends(&rig, 1)[0]["end"], "too many connections");
    drop(kept);
    eventually("a place is free again", || {
        let mut byte = [0; 4];
        rig.connect().read_exact(&mut byte).is_ok()
    });
    let rig = stream(&format!("\"{}\"", echo("one")), "connections = 1\ntimeouts = { idle = \"300ms\" }\n");
    let mut first = rig.connect();
    assert_eq!(line(&mut first), "one");
    assert!(is_closed(&mut rig.connect()));
    // Without traffic the connection is closed.
    assert!(is_closed(&mut first));
    assert_eq!(ends(&rig, 2)[1]["end"], "idle for too long");
}

#[test]
fn connect_timeout_moves_on_to_the_next_server() {
    // A full backlog of one: the kernel answers no further SYN.
    let socket =
        rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    rustix::net::listen(&socket, 0).unwrap();
    let address = SocketAddr::try_from(rustix::net::getsockname(&socket).unwrap()).unwrap();
    let mut fill = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(300)) {
        fill.push(stream);
        assert!(fill.len() < 64, "the queue is never full");
    }
    let rig =
        stream(&format!("[\"{address}\", \"{}\"]", echo("two")), "timeouts = { connect = \"500ms\" }\n");
    for _ in 0..3 {
        assert_eq!(line(&mut rig.connect()), "two", "the other one is tried");
    }
    let rig = stream(&format!("\"{address}\""), "timeouts = { connect = \"500ms\" }\n");
    assert!(is_closed(&mut rig.connect()));
    assert_eq!(ends(&rig, 1)[0]["end"], "the upstream could not be reached in time");
}

#[test]
fn memory_held_for_slow_readers_is_bounded() {
    let upstream = server(|mut stream| {
        let block = [7; 65536];
        while stream.write_all(&block).is_ok() {}
    });
    let folder = Folder::new();
    let text = format!(
        r#"
        threads = 1
        [control]
        listen = "unix:control.sock"
        [[stream]]
        listen = "127.0.0.1:0"
        name = "tested"
        to = "{upstream}"
        "#
    );
    let rig = start(folder, &text);
    let metric = |name: &str| {
        let answer = rig.metrics();
        let value =
            answer.lines().find_map(|line| line.strip_prefix(name)?.rsplit(' ').next()?.parse::<f64>().ok());
        value.unwrap_or_else(|| panic!("no {name} in {answer}"))
    };
    let slow: Vec<TcpStream> = (0..20).map(|_| rig.connect()).collect();
    let sent = || metric("komainu_stream_sent_bytes_total{stream=\"tested\"");
    let mut last = -1.0;
    let mut still = 0;
    eventually("nothing moves any more", || {
        let now = sent();
        still = if (now - last).abs() < 0.5 { still + 1 } else { 0 };
        last = now;
        still > 20
    });
    let held = metric("komainu_memory_held_bytes");
    assert!(held < 20.0 * 48.0 * 1024.0, "{held} bytes are held for 20 clients that read nothing");
    assert!(last > 0.0 && metric("komainu_stream_connections_total{stream=\"tested\"") == 20.0);
    drop(slow);
}

/// nginx with HTTPS for `git.test` and a certificate of the directory, killed on drop.
struct Nginx(Child, SocketAddr);

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn nginx(folder: &Folder) -> Option<Nginx> {
    let program = installed("nginx")?;
    let here = folder.path().display();
    let port = nobody().port();
    folder.write(
        "nginx.conf",
        format!(
            r#"daemon off; master_process off; pid {here}/nginx.pid; error_log {here}/nginx.log; events {{}}
http {{ access_log off; server {{ listen 127.0.0.1:{port} ssl; server_name git.test;
ssl_protocols TLSv1.2 TLSv1.3; ssl_certificate {here}/git.test.pem; ssl_certificate_key {here}/git.test.key;
location / {{ return 200 "nginx for $ssl_server_name by $ssl_protocol\n"; }} }} }}
"#
        ),
    );
    let mut command = Command::new(program);
    command
        .arg("-p")
        .arg(folder.path())
        .arg("-c")
        .arg(folder.at("nginx.conf"))
        .arg("-e")
        .arg(folder.at("nginx.log"));
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let nginx = Nginx(child, SocketAddr::from(([127, 0, 0, 1], port)));
    eventually("nginx listens", || TcpStream::connect(nginx.1).is_ok());
    Some(nginx)
}

#[test]
fn one_port_serves_sites_and_passes_other_names_through() {
    let folder = certified::folder(&[("a.test", "ec"), ("git.test", "ec")]);
    let Some(nginx) = nginx(&folder) else { return };
    let text = format!(
        r#"
        listen = {{ address = "127.0.0.1:0", tls = true }}

        [log]
        access = "json"
        file = "access.log"
        {}

        [[stream]]
        listen = "127.0.0.1:0"
        names = ["git.test", "*.deep.test"]
        to = "{}"
        "#,
        site("a.test", "tls = { certificate = \"a.test.pem\", key = \"a.test.key\" }"),
        nginx.1
    );
    let rig = start(folder, &text);
    assert_eq!(fetch(&rig, "a.test", &[]).unwrap(), "this is a.test");
    for version in ["--tlsv1.3", "--tls-max=1.2"] {
        let version: Vec<&str> = version.split('=').collect();
        let protocol = if version.len() == 1 { "TLSv1.3" } else { "TLSv1.2" };
        assert_eq!(fetch(&rig, "git.test", &version).unwrap(), format!("nginx for git.test by {protocol}\n"));
    }
    // The certificate is nginx's; the ClientHello is split into several records.
    let shown = s_client(&rig, "-servername x.deep.test -max_send_frag 512 -CAfile ca.pem", certified::GET);
    assert!(shown.contains("subject=CN = git.test") || shown.contains("subject=CN=git.test"), "{shown}");
    assert!(shown.contains("nginx for x.deep.test"), "{shown}");
    // Connections without a server name or without TLS go to the sites, of which none has no name.
    let shown = s_client(&rig, "-noservername -CAfile ca.pem", certified::GET);
    assert!(shown.contains("unrecognized name"), "{shown}");
    assert!(rig.send("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n").text().contains("write https://"));
    let ends = ends(&rig, 4);
    let of_git = ends.iter().find(|end| end["server_name"] == "git.test").unwrap();
    assert_eq!(of_git["stream"], "git.test");
}

/// Starts a server that greets its client, repeats one line, and closes.
fn repeater(name: &'static str) -> SocketAddr {
    server(move |mut stream| {
        let _ = stream.write_all(format!("{name} greets\n").as_bytes());
        let said = line(&mut stream);
        let _ = stream.write_all(format!("{name} was told {said}\n").as_bytes());
    })
}

#[test]
fn tls_of_a_stream_is_decrypted_here() {
    let folder = certified::folder(&[("a.test", "ec"), ("mqtt.test", "ec"), ("*.wide.test", "rsa")]);
    let text = format!(
        r#"
        listen = {{ address = "127.0.0.1:0", tls = true }}

        [log]
        access = "json"
        file = "access.log"
        {}

        [[stream]]
        listen = "127.0.0.1:0"
        names = "mqtt.test"
        tls = {{ certificate = "mqtt.test.pem", key = "mqtt.test.key" }}
        to = "{}"

        [[stream]]
        listen = "127.0.0.1:0"
        names = "*.wide.test"
        tls = {{ certificate = "*.wide.test.pem", key = "*.wide.test.key" }}
        deny = "192.0.2.1"
        to = "{}"
        "#,
        site("a.test", "tls = { certificate = \"a.test.pem\", key = \"a.test.key\" }"),
        repeater("mqtt"),
        repeater("wide"),
    );
    let rig = start(folder, &text);
    assert_eq!(fetch(&rig, "a.test", &[]).unwrap(), "this is a.test");
    for version in ["-tls1_3", "-tls1_2"] {
        for (name, server) in [("mqtt.test", "mqtt"), ("x.wide.test", "wide")] {
            let options = format!("-servername {name} -CAfile ca.pem -verify_hostname {name} {version}");
            let shown = s_client(&rig, &options, "a line\n");
            assert!(shown.contains(&format!("{server} greets\n")), "{shown}");
            assert!(shown.contains(&format!("{server} was told a line\n")), "{shown}");
            assert!(shown.contains("Verification: OK"), "{shown}");
            assert!(shown.contains("No ALPN negotiated"), "{shown}");
        }
    }
    // With the request of `a.test`.
    let mut ends = ends(&rig, 5);
    ends.retain(|end| end.get("stream").is_some());
    assert_eq!(ends.len(), 4, "{ends:?}");
    assert!(
        ends.iter().all(|end| end["status"] == 200 && end["end"] == "closed by the upstream server"),
        "{ends:?}"
    );
    let alpn = s_client(&rig, "-servername mqtt.test -CAfile ca.pem -alpn h2,mqtt", "x\n");
    assert!(alpn.contains("mqtt was told x\n") && alpn.contains("No ALPN negotiated"), "{alpn}");
}

#[test]
fn stream_without_names_decrypts_every_connection() {
    let folder = certified::folder(&[("mqtt.test", "ec")]);
    let text = format!(
        r#"
        [[stream]]
        listen = "127.0.0.1:0"
        tls = {{ certificate = "mqtt.test.pem", key = "mqtt.test.key" }}
        to = "{}"
        "#,
        repeater("mqtt")
    );
    let rig = start(folder, &text);
    for name in ["-noservername", "-servername other.test"] {
        let shown = s_client(&rig, &format!("{name} -CAfile ca.pem"), "a line\n");
        assert!(shown.contains("mqtt was told a line\n"), "{shown}");
    }
    // Nothing of HTTP is said to a client without TLS.
    let mut plain = rig.connect();
    plain.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut got = Vec::new();
    let _ = plain.read_to_end(&mut got);
    assert!(!String::from_utf8_lossy(&got).contains("HTTP/1.1"), "{got:?}");
    eventually("it is logged", || rig.reported().contains("the client speaks HTTP without TLS"));
}

/// The session tickets of the handshake wait for bytes that come late.
#[test]
fn server_of_a_decrypted_stream_may_greet_late() {
    let folder = certified::folder(&[("mqtt.test", "ec")]);
    let greeter = server(|mut stream| {
        thread::sleep(Duration::from_millis(300));
        let _ = stream.write_all(b"late greetings\n");
    });
    let text = format!(
        r#"
        threads = 1
        [[stream]]
        listen = "127.0.0.1:0"
        tls = {{ certificate = "mqtt.test.pem", key = "mqtt.test.key" }}
        to = "{greeter}"
        "#
    );
    let rig = start(folder, &text);
    for version in ["-tls1_3", "-tls1_2"] {
        let shown = s_client(&rig, &format!("-servername mqtt.test -CAfile ca.pem {version}"), "");
        assert!(shown.contains("late greetings\n"), "{shown}");
    }
}

#[test]
fn denied_clients_of_a_stream_get_no_alert() {
    let folder = certified::folder(&[("git.test", "ec")]);
    let text = format!(
        r#"
        [[stream]]
        listen = "127.0.0.1:0"
        names = "git.test"
        deny = "127.0.0.0/8"
        to = "{}"
        "#,
        echo("git")
    );
    let rig = start(folder, &text);
    let shown = s_client(&rig, "-servername git.test -CAfile ca.pem", "");
    assert!(!shown.contains("unrecognized name") && !shown.contains("git\n"), "{shown}");
}

#[test]
fn unmatched_server_name_gets_an_alert_or_default_stream() {
    let folder = certified::folder(&[("git.test", "ec")]);
    let Some(nginx) = nginx(&folder) else { return };
    let text = format!(
        r#"
        [log]
        access = "json"
        file = "access.log"
        [[stream]]
        listen = "127.0.0.1:0"
        names = "git.test"
        to = "{}"
        "#,
        nginx.1
    );
    let rig = start(folder, &text);
    let shown = s_client(&rig, "-servername other.test -CAfile ca.pem", "");
    assert!(shown.contains("unrecognized name"), "{shown}");
    let mut plain = rig.connect();
    plain.write_all(b"SSH-2.0-client\r\n").unwrap();
    assert!(is_closed(&mut plain));
    assert!(ends(&rig, 2).iter().all(|end| end["end"] == "no stream takes it"), "{}", log(&rig));
    // With a default, connections without TLS go there, including the bytes already read.
    let folder = Folder::new();
    let text = format!(
        r#"
        [[stream]]
        listen = "127.0.0.1:0"
        names = "git.test"
        to = "{}"
        [[stream]]
        listen = "127.0.0.1:0"
        to = "{}"
        "#,
        nginx.1,
        echo("default")
    );
    let rig = start(folder, &text);
    let mut plain = rig.connect();
    plain.write_all(b"SSH-2.0-client\n").unwrap();
    assert_eq!([line(&mut plain), line(&mut plain)], ["default", "SSH-2.0-client"]);
}

#[test]
fn silent_and_slow_tls_clients_time_out() {
    let folder = Folder::new();
    let text = format!(
        r#"
        threads = 1

        [timeouts]
        head = "2s"

        [limits]
        connections = 600

        [log]
        access = "json"
        file = "access.log"

        [[stream]]
        listen = "127.0.0.1:0"
        names = "git.test"
        to = "{}"
        "#,
        nobody()
    );
    let rig = start(folder, &text);
    let mut silent: Vec<TcpStream> = (0..1_000).map(|_| rig.connect()).collect();
    let mut slow = rig.connect();
    // A ClientHello sent byte by byte, in a record of 512 bytes.
    let begun = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";
    for byte in begun.iter().chain([&0; 400]) {
        if slow.write_all(&[*byte]).is_err() {
            break;
        }
        thread::sleep(Duration::from_millis(10));
    }
    assert!(is_closed(&mut slow), "the time for the first message is over");
    assert!(silent.iter_mut().all(is_closed));
    let ends = ends(&rig, 1);
    assert!(ends.iter().all(|end| end["end"] == "the client's first message took too long"), "{ends:?}");
    // A ClientHello that exceeds the limit.
    let mut long = rig.connect();
    long.write_all(b"\x16\x03\x01\x40\x00\x01\x01\x00\x00").unwrap();
    assert!(is_closed(&mut long));
    eventually("it is logged", || log(&rig).contains("more than 16 KiB"));
}

#[test]
fn a_reload_keeps_connections_and_a_stop_waits_for_them() {
    let one = echo("one");
    let two = echo("two");
    let text = |to: SocketAddr| {
        format!(
            r#"
            [[stream]]
            listen = "unix:stream.sock"
            to = "{to}"
            [[route]]
            respond = "x"
            "#
        )
    };
    let mut rig = Rig::config(Folder::new(), &text(one));
    let at = rig.folder.at("stream.sock");
    let open = || {
        let stream = UnixStream::connect(&at).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    };
    let greeting = |stream: &mut UnixStream| {
        let mut bytes = [0; 4];
        stream.read_exact(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let mut before = open();
    assert_eq!(greeting(&mut before), "one\n");
    rig.folder.write("komainu.toml", format!("{}{}{}", listen(&rig.folder), as_we_are(), text(two)));
    rig.signal("-HUP");
    eventually("the new server is used", || greeting(&mut open()) == "two\n");
    before.write_all(b"more").unwrap();
    assert_eq!(greeting(&mut before), "more", "an open connection stays with its server");
    rig.signal("-TERM");
    eventually("nothing is accepted any more", || UnixStream::connect(&at).is_err());
    before.write_all(b"last").unwrap();
    assert_eq!(greeting(&mut before), "last", "and ends in peace");
    drop(before);
    assert!(rig.ended().success());
}

#[test]
fn hundreds_of_connections_at_once_are_relayed() {
    let rig = stream(&format!("\"{}\"", echo("one")), "");
    let mut clients: Vec<TcpStream> = (0..300).map(|_| connect(rig.address)).collect();
    for client in &mut clients {
        assert_eq!(line(client), "one");
    }
    for (at, client) in clients.iter_mut().enumerate() {
        client.write_all(format!("{at}\n").as_bytes()).unwrap();
    }
    for (at, client) in clients.iter_mut().enumerate() {
        assert_eq!(line(client), at.to_string());
    }
}
