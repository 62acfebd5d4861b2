//! `bandwidth`: the rate of a response, for every protocol and handler.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Output;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use crate::hosted;
use crate::rig::{Folder, PATIENCE, Rig, as_we_are, connect, curl, eventually, text};

const BYTES: usize = 3 << 20;
/// `RATE` in bytes per second.
const RATE_BYTES: usize = 2 << 20;
const RATE: &str = "2MiB/s";
/// A rate at which a large response takes longer than any test.
const SLOW: &str = "1KiB/s";
/// An application that sends a whole file at once.
const APP: &str = r"sub { open my $file, '<:raw', 'www/large' or die; local $/; my $body = <$file>;
[200, ['Content-Length', length $body], [$body]] }
";

/// Bytes with a pattern that reveals displaced parts.
fn pattern() -> Vec<u8> {
    (0..BYTES).map(|at| (at ^ at >> 8 ^ at >> 16) as u8).collect()
}

/// Minimum time of a response of `BYTES`, without the initial burst.
fn least() -> Duration {
    Duration::from_secs_f64((BYTES - 16 * 1024) as f64 / RATE_BYTES as f64)
}

fn folder() -> Folder {
    let folder = Folder::new();
    folder.certify();
    folder.write("www/large", pattern()).write("www/small", "small").write("app.psgi", APP);
    folder
}

/// Starts a server with HTTP/1 and HTTP/2, without TLS and with it.
fn start(folder: Folder, text: &str) -> Rig {
    let listen = r#"
        listen = [{ address = "127.0.0.1:0", h2c = true }, { address = "unix:tls.sock", tls = true }]
        [tls]
        default = { certificate = "cert.pem", key = "key.pem" }
    "#;
    folder.write("komainu.toml", format!("{}threads = 1\n{listen}{text}", as_we_are()));
    let mut command = hosted::server();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
    Rig::start(command, folder)
}

/// Fetches a body by curl and returns it with the time taken.
fn timed(arguments: &[&str], url: &str) -> (Vec<u8>, Duration) {
    let began = Instant::now();
    let Output { status, stdout, stderr, .. } = curl(&[arguments, &[url]].concat());
    assert!(status.success(), "{url} {arguments:?}: {}", text(&stderr));
    (stdout, began.elapsed())
}

#[test]
fn bandwidth_applies_to_every_handler_and_protocol() {
    let origin = Rig::files(&[]);
    std::fs::write(origin.folder.at("www/large"), pattern()).unwrap();
    let url = origin.url("");
    let config = format!(
        r#"
        [cache]

        [[site]]
        bandwidth = "{RATE}"

        [[site.route]]
        path = "/files/*"
        files = {{ root = "www", strip_prefix = true }}

        [[site.route]]
        path = "/proxied/*"
        proxy = {{ to = "{url}", strip_prefix = true }}

        [[site.route]]
        path = "/cached/*"
        proxy = {{ to = "{url}", strip_prefix = true }}
        cache = {{ rule = [{{ ttl = "1h" }}] }}

        [[site.route]]
        path = "/app"
        app = "big"

        [apps.big]
        psgi = "app.psgi"
        workers = 2
        "#
    );
    let rig = start(folder(), &config);
    let tls = rig.folder.at("tls.sock").display().to_string();
    let warm = timed(&[], &rig.url("/cached/large"));
    assert!(warm.0 == pattern() && warm.1 >= least(), "a miss: {:?}", warm.1);
    std::thread::scope(|scope| {
        for path in ["/files/large", "/proxied/large", "/cached/large", "/app"] {
            let (clear, secure) = (rig.url(path), format!("https://localhost{path}"));
            let tls = &tls;
            scope.spawn(move || {
                for (arguments, url) in [
                    (vec!["--http1.1"], &clear),
                    (vec!["--http2-prior-knowledge"], &clear),
                    (vec!["-k", "--http1.1", "--unix-socket", tls], &secure),
                    (vec!["-k", "--http2", "--unix-socket", tls], &secure),
                ] {
                    let (body, took) = timed(&arguments, url);
                    assert!(body == pattern(), "{url} {arguments:?}: {} bytes", body.len());
                    assert!(took >= least(), "{url} {arguments:?}: {took:?}");
                }
            });
        }
    });
}

#[test]
fn bandwidth_applies_to_each_http2_stream_by_its_route() {
    let rig = start(
        folder(),
        &format!(
            r#"
            [[site]]
            bandwidth = "{SLOW}"

            [[site.route]]
            path = "/limited/*"
            files = {{ root = "www", strip_prefix = true }}
            bandwidth = "{RATE}"

            [[site.route]]
            path = "/after/*"
            files = {{ root = "www", strip_prefix = true }}
            bandwidth = {{ rate = "{SLOW}", after = "4MiB" }}

            [[site.route]]
            path = "/free/*"
            files = {{ root = "www", strip_prefix = true }}
            bandwidth = false

            [[site.route]]
            files = "www"
            "#
        ),
    );
    // One connection: the two limited streams do not wait for each other, and the others for neither.
    let paths = ["/limited/large", "/limited/large", "/after/large", "/free/large", "/small"];
    let outputs: Vec<String> =
        (0..paths.len()).map(|index| rig.folder.at(&format!("out{index}")).display().to_string()).collect();
    let tls = rig.folder.at("tls.sock").display().to_string();
    let format = "%{filename_effective} %{num_connects} %{time_total}\\n";
    let mut arguments = vec!["-Z", "-k", "--http2", "--unix-socket", &tls, "-w", format];
    let urls: Vec<String> = paths.iter().map(|path| format!("https://localhost{path}")).collect();
    for (url, output) in urls.iter().zip(&outputs) {
        arguments.extend([url, "-o", output]);
    }
    let written = text(&curl(&arguments).stdout);
    assert_eq!(written.lines().filter(|line| line.contains(" 1 ")).count(), 1, "one connection: {written}");
    for (path, output) in paths.iter().zip(&outputs) {
        let expected = if *path == "/small" { b"small".to_vec() } else { pattern() };
        assert!(std::fs::read(output).unwrap() == expected, "{path}: {written}");
        let line = written.lines().find(|line| line.starts_with(output.as_str())).unwrap();
        let seconds: f64 = line.split(' ').next_back().unwrap().parse().unwrap();
        assert!(!path.contains("limited") || seconds >= least().as_secs_f64(), "{path}: {written}");
    }
}

#[test]
fn bandwidth_limit_does_not_delay_the_upstream_server() {
    const LARGE: usize = 64 << 20;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (report, written) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut head = [0; 4096];
            assert!(stream.read(&mut head).unwrap() > 0);
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {LARGE}\r\n\r\n").unwrap();
            let piece = vec![b'x'; 1 << 20];
            // Fails if the server has closed the connection.
            let all = (0..LARGE / piece.len()).try_for_each(|_| stream.write_all(&piece));
            let _ = report.send(all.is_ok());
        }
    });
    let config = |bandwidth: &str| {
        format!(
            r#"
            [[route]]
            path = "/large"
            files = "www"
            {bandwidth}
            [[route]]
            proxy = {{ to = "{url}", spill = "256MiB" }}
            {bandwidth}
            "#
        )
    };
    let slow = format!("bandwidth = \"{SLOW}\"\n");
    let folder = folder();
    let rig = Rig::config(folder, &config(&slow));
    let mut client = connect(rig.address);
    client.write_all(b"GET /any HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    assert!(written.recv_timeout(PATIENCE).unwrap(), "the upstream server has written all of it");
    let mut limited = connect(rig.address);
    limited.write_all(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    limited.read_exact(&mut [0; 12]).unwrap();
    let file = std::fs::read_to_string(rig.folder.at("komainu.toml")).unwrap();
    rig.folder.write("komainu.toml", file.replace(&slow, ""));
    rig.signal("-HUP");
    eventually("the limit is gone", || {
        let mut stream = connect(rig.address);
        // A limited response has pauses of a second.
        stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        stream.write_all(b"GET /large HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).is_ok() && bytes.ends_with(&pattern())
    });
}
