//! `komainu bench`, `komainu ab` and `komainu lab` on the command line.

#![allow(clippy::print_stdout, clippy::unwrap_used)] // all of it is test code

mod rig;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const KOMAINU: &str = env!("CARGO_BIN_EXE_komainu");

/// Starts a server that answers `hi` to every request until the test ends.
fn server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                stream.set_nodelay(true).unwrap();
                let mut lines = BufReader::new(&stream).lines();
                while let Some(Ok(line)) = lines.next() {
                    let whole = line.is_empty();
                    if whole
                        && (&stream)
                            .write_all(
                                b"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nhi",
                            )
                            .is_err()
                    {
                        return;
                    }
                }
            });
        }
    });
    address
}

/// Starts a server that answers `hi` to every request but each one with this number on its connection, which it never
/// answers.
fn server_that_hangs_at(number: usize) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                stream.set_nodelay(true).unwrap();
                let requests = BufReader::new(&stream).lines().map_while(Result::ok).filter(String::is_empty);
                for _ in requests.enumerate().filter(|(at, _)| *at != number) {
                    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";
                    if (&stream).write_all(answer).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

fn komainu(arguments: &[&str]) -> Output {
    Command::new(KOMAINU).args(arguments).stdin(Stdio::null()).output().unwrap()
}

#[test]
fn bench_reports_descriptor_limit_with_a_remedy() {
    let run = format!("ulimit -n 150; exec {KOMAINU} bench -c 300 -d 1s --warm-up 0s http://{}/", server());
    let output = Command::new("sh").args(["-c", &run]).stdin(Stdio::null()).output().unwrap();
    let reported = text(&output.stdout).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        reported.contains("too many open files (this process may have 150: raise `ulimit -n`)"),
        "{reported}"
    );
    assert!(reported.contains(" of 300 made;") && !reported.contains(" 0 failed"), "{reported}");
    // With a soft limit only, the program raises it to the hard limit by itself.
    let run = run.replace("-n 150", "-Sn 150");
    let output = Command::new("sh").args(["-c", &run]).stdin(Stdio::null()).output().unwrap();
    let reported = text(&output.stdout).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(reported.contains(" 300 made;") && !reported.contains("too many open files"), "{reported}");
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("komainu-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn bench_results_are_written_in_every_format() {
    let (url, folder) = (format!("http://{}/x", server()), Folder::new("forms"));
    let [json, csv, html] = ["r.json", "r.csv", "r.html"].map(|name| folder.file(name));
    let done =
        komainu(&["bench", "-n", "500", "-c", "5", "--json", &json, "--csv", &csv, "--html", &html, &url]);
    let printed = text(&done.stdout);
    assert!(done.status.success(), "{}", text(&done.stderr));
    for part in ["requests/s: 500 in", "0 failed", "200 500×", "p99.9", "Closed loop"] {
        assert!(printed.contains(part), "{part}\n{printed}");
    }
    assert!(!printed.contains('\x1b'), "no colours in a pipe");
    let kept: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!(kept["figures"]["responses"], 500.0);
    assert!(std::fs::read_to_string(&csv).unwrap().lines().count() == 2);
    assert!(std::fs::read_to_string(&html).unwrap().contains("<svg"));
    let compared = komainu(&["bench", "compare", &json, &json]);
    // On a fast machine, such a short run has too few intervals for a verdict.
    assert!(compared.status.success() && text(&compared.stdout).contains("B / A"));
}

#[test]
fn bench_counts_handshakes_and_negotiated_parameters() {
    let folder = rig::Folder::new();
    folder.certify().write("www/a", "A");
    let mut server = rig::komainu();
    server.args(["run", "--listen", "127.0.0.1:0", "--tls-certificate"]).arg(folder.at("cert.pem"));
    server.arg("--tls-key").arg(folder.at("key.pem")).arg(folder.at("www"));
    let server = rig::Rig::start(server, folder);
    let (url, json) = (format!("https://{}/a", server.listens), server.folder.at("r.json"));
    let bench = |options: &str| -> (String, serde_json::Value) {
        let json = json.display().to_string();
        let mut all =
            vec!["bench", "-n", "40", "-c", "2", "-t", "1", "--no-keepalive", "-k", "--json", &json, &url];
        all.extend(options.split_whitespace());
        let done = komainu(&all);
        assert!(done.status.success(), "{}", text(&done.stderr));
        (text(&done.stdout), serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap())
    };
    let agreed = |version: &str, cipher: &str, group: &str| serde_json::json!([{ "version": version, "cipher": cipher, "group": group, "handshakes": 40 }]);
    let (printed, kept) = bench("--tls-version 1.3 --tls-groups x25519 --expect resumed>0");
    assert_eq!(kept["tls"]["agreed"], agreed("TLSv1.3", "TLS_AES_128_GCM_SHA256", "X25519"));
    // Connections made before the first ticket arrives need a full handshake.
    let resumed = kept["tls"]["resumed"].as_u64().unwrap();
    assert!(resumed > 0 && resumed + kept["tls"]["full"].as_u64().unwrap() == 40, "{kept}");
    assert!(printed.contains(" resumed; TLSv1.3, TLS_AES_128_GCM_SHA256, X25519\n"), "{printed}");
    let (printed, kept) = bench("--tls-version 1.2 --groups P-256 --no-resume");
    assert_eq!(kept["tls"]["agreed"], agreed("TLSv1.2", "ECDHE-ECDSA-AES128-GCM-SHA256", "secp256r1"));
    assert_eq!((&kept["tls"]["full"], &kept["tls"]["resumed"]), (&40.into(), &0.into()));
    assert!(
        printed.contains("Handshakes  40 full, 0 resumed; ") && !printed.contains("TLS, full"),
        "{printed}"
    );
    let wrong = komainu(&["bench", "-n", "1", "-k", "--groups", "X448", &url]);
    assert!(
        text(&wrong.stderr).contains("`X448` is not a group")
            && text(&wrong.stderr).contains("X25519MLKEM768")
    );
}

/// Starts a server with the file `/a` over HTTPS.
fn https_server(content: &str) -> rig::Rig {
    let folder = rig::Folder::new();
    folder.certify().write("www/a", content);
    let mut server = rig::komainu();
    server.args(["run", "--listen", "127.0.0.1:0", "--tls-certificate"]).arg(folder.at("cert.pem"));
    server.arg("--tls-key").arg(folder.at("key.pem")).arg(folder.at("www"));
    rig::Rig::start(server, folder)
}

#[test]
fn bench_measures_http3() {
    let server = https_server(&"A".repeat(100_000));
    let (url, json) = (format!("https://{}/a", server.listens), server.folder.at("r.json"));
    let json = json.display().to_string();
    let bench = |options: &str| -> (String, serde_json::Value) {
        let mut all = vec!["bench", "--http3", "-k", "-c", "3", "--json", &json, &url];
        all.extend(options.split_whitespace());
        let done = komainu(&all);
        assert!(done.status.success(), "{}", text(&done.stderr));
        (text(&done.stdout), serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap())
    };
    let (printed, kept) = bench("-n 600 -m 16 --verify");
    assert!(printed.contains("3 connections, HTTP/3, 16 streams each"), "{printed}");
    assert!(printed.contains("200 600×") && printed.contains(" 0 failed"), "{printed}");
    assert!(
        printed.contains("CPU ") && kept["figures"]["cpu_us_per_request"].as_f64().unwrap() > 0.0,
        "{kept}"
    );
    assert_eq!(kept["tls"]["full"], 3);
    let (printed, kept) = bench("-n 60 --no-keepalive --expect resumed>0");
    let handshakes = kept["tls"]["resumed"].as_u64().unwrap() + kept["tls"]["full"].as_u64().unwrap();
    assert!(printed.contains("200 60×") && handshakes == 60, "{printed}");
    let (printed, _) = bench("-d 300ms --rate 200 -m 8");
    assert!(printed.contains("open loop") && printed.contains(" 0 failed"), "{printed}");
    // The answer to an upload that is not wanted may come before its end.
    let body = server.folder.at("body");
    std::fs::write(&body, vec![b'b'; 1_000_000]).unwrap();
    let done = komainu(&[
        "bench",
        "--http3",
        "-k",
        "-c",
        "2",
        "-n",
        "40",
        "-b",
        &format!("@{}", body.display()),
        &url,
    ]);
    assert!(text(&done.stdout).contains("405 40×"), "{}", text(&done.stdout));
    assert!(text(&done.stdout).contains(" 0 failed"), "{}", text(&done.stdout));
    let closed = komainu(&["bench", "--http3", "-k", "-n", "1", &format!("https://{}/", rig::nobody())]);
    assert!(text(&closed.stderr).contains("connection refused"), "{}", text(&closed.stderr));
    let clear = komainu(&["bench", "--http3", "-n", "1", "http://127.0.0.1:1/"]);
    assert!(text(&clear.stderr).contains("HTTP/3 needs an https:// URL"), "{}", text(&clear.stderr));
}

/// Passes packets to the server, and its packets to the latest client. Returns its address, and how often the server has
/// sent after pauses of 40 ms or more without a packet of the client in between: the most in a row.
fn counting_relay(server: SocketAddr) -> (SocketAddr, Arc<AtomicUsize>) {
    let front = UdpSocket::bind("127.0.0.1:0").unwrap();
    let back = UdpSocket::bind("127.0.0.1:0").unwrap();
    back.connect(server).unwrap();
    let address = front.local_addr().unwrap();
    let (unanswered, most) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let (reset, returned) = (unanswered.clone(), most.clone());
    let (to_server, to_client) = (back.try_clone().unwrap(), front.try_clone().unwrap());
    let client = Arc::new(Mutex::new(address));
    let latest = client.clone();
    std::thread::spawn(move || {
        let mut packet = [0; 65536];
        while let Ok((len, from)) = front.recv_from(&mut packet) {
            *latest.lock().unwrap() = from;
            reset.store(0, Ordering::Relaxed);
            let _ = to_server.send(&packet[..len]);
        }
    });
    std::thread::spawn(move || {
        let mut packet = [0; 65536];
        let mut last = Instant::now();
        loop {
            let Ok(len) = back.recv(&mut packet) else { continue };
            if std::mem::replace(&mut last, Instant::now()).elapsed() >= Duration::from_millis(40) {
                most.fetch_max(unanswered.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            }
            let _ = to_client.send_to(&packet[..len], *client.lock().unwrap());
        }
    });
    (address, returned)
}

#[test]
fn bench_acknowledges_packets_on_connections_without_requests() {
    let server = https_server("a");
    let (relay, unanswered) = counting_relay(server.listens);
    // The first request is due after 5 seconds. A server that has no answer repeats its packets 7 times until then.
    let url = format!("https://{relay}/a");
    let options =
        ["bench", "--http3", "-k", "-c", "1", "--rate", "0.2", "--arrivals", "constant", "-d", "6s"];
    let done = komainu(&[&options[..], &["--warm-up", "0s", &url]].concat());
    assert!(text(&done.stdout).contains(" 0 failed"), "{}", text(&done.stdout));
    let unanswered = unanswered.load(Ordering::Relaxed);
    assert!(unanswered <= 4, "{unanswered} times in a row");
}

#[test]
fn ab_output_has_the_lines_of_apache_bench() {
    let done = komainu(&["ab", "-n", "100", "-c", "4", "-k", "-q", &format!("http://{}/", server())]);
    let printed = text(&done.stdout);
    for line in [
        "Complete requests:      100",
        "Failed requests:        0",
        "Keep-Alive requests:    100",
        "Document Length:        2 bytes",
    ] {
        assert!(printed.contains(line), "{line}\n{printed}");
    }
}

#[test]
fn exit_status_reflects_expectations_and_errors() {
    let url = format!("http://{}/", server());
    let status = |arguments: &[&str]| {
        let done = komainu(arguments);
        (done.status.code(), text(&done.stderr))
    };
    assert_eq!(status(&["bench", "-n", "50", "--expect", "errors = 0", &url]).0, Some(0));
    let (code, said) = status(&["bench", "-n", "50", "--expect", "p50 < 1us", &url]);
    assert!(code == Some(1) && said.contains("expected p50 < 1us, found"), "{said}");
    let hangs = format!("http://{}/", server_that_hangs_at(20));
    for (expected, code) in
        [(None, 1), (Some("errors < 2"), 0), (Some("errors = 0"), 1), (Some("p50 < 1s"), 1)]
    {
        let mut arguments = vec!["bench", "-c", "1", "-n", "30", "--timeout", "1s", hangs.as_str()];
        arguments.extend(expected.into_iter().flat_map(|expected| ["--expect", expected]));
        let (found, said) = status(&arguments);
        assert_eq!(found, Some(code), "{expected:?}: {said}");
        let is_judged = expected.is_some_and(|expected| expected.starts_with("errors"));
        assert_eq!(said.contains("1 requests were never answered"), !is_judged, "{expected:?}: {said}");
    }
    let compared = ["bench", "-n", "50", "--verify", "--expect", "differ = 0", url.as_str()];
    assert_eq!(status(&compared).0, Some(0));
    for (arguments, what) in [
        (&["bench", "-n", "1", "http://127.0.0.1:1/"][..], "connection refused"),
        (&["bench", "-n", "1", "--expect", "differ = 0", &url], "needs `--verify`"),
        (&["bench", "-n", "1", "http://no-such-host.invalid/"], "no-such-host.invalid is not known"),
        (
            &["bench", "-n", "1", "--connect-timeout", "300ms", "http://192.0.2.1/"],
            "cannot connect to 192.0.2.1",
        ),
        (&["bench", "-n", "1", "ftp://x/"], "only http and https"),
        (&["bench", "-n", "1", "-k", &url.replace("http:", "https:")], "TLS"),
        (&["bench", "-n", "1", "--html", "/no/such/folder/r.html", &url], "cannot write"),
        (&["bench", "-n", "1", "--list", "/no/such/list"], "cannot read"),
        (&["bench", "-n", "1", "--vs-cmd", "true", &url], "{port}"),
        (&["bench", "compare", "/no/a", "/no/b"], "cannot read"),
        (&["lab", "run", "/no/such/lab.toml"], "cannot read"),
    ] {
        let (code, said) = status(arguments);
        assert!(code == Some(2) && said.contains(what), "{what}: {code:?} {said}");
    }
}

#[test]
fn figures_are_right_about_servers_of_known_behaviour() {
    let done = komainu(&["bench", "calibrate", "--short"]);
    let printed = text(&done.stdout);
    assert!(done.status.success(), "{printed}{}", text(&done.stderr));
    assert!(printed.contains("figures are right"), "{printed}");
}

#[test]
fn options_of_other_tools_work_or_produce_hints() {
    let url = format!("http://{}/", server());
    for arguments in [
        // wrk, wrk2, hey
        &["bench", "-t1", "-c2", "-z", "50ms", "--latency", &url][..],
        &["bench", "-c2", "-d50ms", "-R", "500", "-L", &url],
        &["bench", "-n", "20", "-c", "2", "--disable-keepalive", "-a", "me:secret", &url],
        // ab
        &["ab", "-r", "-l", "-S", "-d", "-v", "2", "-A", "me:secret", "-n", "20", "-c", "2", &url],
    ] {
        let done = komainu(arguments);
        assert!(done.status.success(), "{arguments:?}: {}", text(&done.stderr));
    }
    for (arguments, what) in [
        (&["bench", "-c", "0", &url][..], "write 1 or more"),
        (&["ab", "-c", "0", "-n", "1", &url], "write 1 or more"),
        (&["bench", "-s", "post.lua", &url], "--list FILE"),
        (&["bench", "-n", "1", "-m", "POST", &url], "the method is -X POST"),
        (&["bench", "-n", "1", "-T", "text/html", &url], "-H 'Content-Type: …'"),
        (&["bench", "-n", "1", "-D", "body.json", &url], "-b @FILE"),
        (&["bench", "-n", "1", "-q", "50", &url], "a number alone is no URL"),
        (&["ab", "-g", "plot.tsv", &url], "-e FILE writes the percentiles"),
        (&["ab", "-w", &url], "komainu bench --html FILE"),
    ] {
        let done = komainu(arguments);
        let said = text(&done.stderr);
        assert!(done.status.code() == Some(2) && said.contains(what), "{arguments:?}: {said}");
    }
    let folder = Folder::new("habits");
    let curve = folder.file("curve.csv");
    assert!(komainu(&["ab", "-n", "50", "-e", &curve, &url]).status.success());
    assert!(std::fs::read_to_string(&curve).unwrap().starts_with("Percentage served,Time in ms\n0,"));
}

#[test]
fn bench_sends_credentials_and_counts_error_statuses() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
            let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
            let knows = head.iter().any(|line| line == "Authorization: Basic bWU6c2VjcmV0");
            let status = if knows { "404 Not Found" } else { "401 Unauthorized" };
            let _ = write!(stream, "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
        }
    });
    for arguments in [
        &["bench", "-n", "5", "-c", "1", "--no-keepalive", "-u", "me:secret", &url][..],
        &["bench", "-n", "5", "-c", "1", "--no-keepalive", "--expect", "errors = 0", "-u", "me:secret", &url],
    ] {
        let done = komainu(arguments);
        let printed = text(&done.stdout);
        assert!(printed.contains("0 failed, 5 with a status of 400 or above"), "{printed}");
        assert!(printed.contains("404 5×"), "{printed}");
        assert_eq!(done.status.code(), Some(i32::from(arguments.contains(&"--expect"))), "{printed}");
    }
}

#[test]
fn bench_prints_figures_when_the_disk_is_full() {
    let url = format!("http://{}/", server());
    for form in ["--json", "--csv", "--html"] {
        let done = komainu(&["bench", "-n", "50", form, "/dev/full", &url]);
        let said = text(&done.stderr);
        assert_eq!(done.status.code(), Some(2), "{form}");
        assert!(text(&done.stdout).contains("requests/s: 50 in"), "{form}");
        assert!(said.contains("cannot write /dev/full") && said.contains("No space"), "{form}: {said}");
    }
}

/// Starts a server that answers each connection with `begin`, then repeats `more` until the client stops
/// reading.
fn odd_server(begin: &'static [u8], more: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let _ = stream.read(&mut [0; 4096]);
                let mut going = stream.write_all(begin).is_ok() && !more.is_empty();
                while going {
                    going = stream.write_all(more).is_ok();
                }
            });
        }
    });
    format!("http://{address}/")
}

#[test]
fn invalid_responses_are_reported_as_failures() {
    static PIECE: [u8; 65536] = [b'x'; 65536];
    for (begin, more, what) in [
        (&b"HTTP/1.1 200 OK\r\n\r\n"[..], &PIECE[..], "the response did not end in time, after"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhi", b"", "closed"),
        (b"HTTP/1.1 200 OK\r\n", b"X-Y: z\r\n", "too many fields"),
        (b"SSH-2.0-OpenSSH_10.0\r\n", b"", "malformed"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nhi!", b"", "malformed"),
        (b"", b"", "connection closed without a response"),
    ] {
        let url = odd_server(begin, more);
        let done = komainu(&["bench", "-q", "-n", "2", "-c", "1", "--timeout", "1s", &url]);
        let printed = text(&done.stdout);
        let words = printed.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(done.status.code(), Some(1), "{what}: {printed}\n{}", text(&done.stderr));
        assert!(words.contains(what) && words.contains("There was no response at all"), "{what}: {printed}");
    }
}

#[test]
fn untrusted_certificate_is_reported_with_remedies() {
    let folder = Folder::new("certificate");
    // Without a configuration file, openssl creates a CA certificate, which is not valid for a server.
    let conf = r"
        [req]
        prompt = no
        distinguished_name = name
        x509_extensions = more
        [name]
        CN = localhost
        [more]
        subjectAltName = DNS:localhost
    ";
    std::fs::write(folder.file("openssl.conf"), conf).unwrap();
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"])
        .args(["-days", "2", "-config", &folder.file("openssl.conf")])
        .args(["-keyout", &folder.file("key.pem"), "-out", &folder.file("cert.pem")])
        .output()
        .expect("openssl, from the package openssl");
    assert!(made.status.success(), "{}", text(&made.stderr));
    let port = bench::job::free_port().unwrap().to_string();
    let mut server = Command::new("openssl")
        .args(["s_server", "-www", "-quiet", "-accept", &format!("127.0.0.1:{port}")])
        .args(["-cert", &folder.file("cert.pem"), "-key", &folder.file("key.pem")])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    while std::net::TcpStream::connect(format!("127.0.0.1:{port}")).is_err() {
        assert!(server.try_wait().unwrap().is_none(), "openssl s_server ended");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let ca = folder.file("cert.pem");
    let (by_name, by_address) = (format!("https://localhost:{port}/"), format!("https://127.0.0.1:{port}/"));
    let outcomes = [
        (&[by_name.as_str()][..], "(--ca FILE names the CAs to trust"),
        (&["--ca", &ca, &by_address], "the certificate is for another name (--ca FILE"),
        (&["--ca", &ca, &by_name], ""),
        (&["--ca", &ca, "--sni", "localhost", &by_address], ""),
        (&["--insecure", &by_address], ""),
    ]
    .map(|(arguments, said)| {
        let done = komainu(&[&["bench", "-q", "-n", "3", "-c", "1"], arguments].concat());
        (done.status.code(), text(&done.stderr), said)
    });
    server.kill().unwrap();
    server.wait().unwrap();
    for (code, stderr, said) in outcomes {
        let expected = if said.is_empty() { 0 } else { 2 };
        assert!(code == Some(expected) && stderr.contains(said), "{said}: {code:?} {stderr}");
    }
}

/// Runs the command, interrupts it once `ready` returns true, and returns its output.
fn interrupted(arguments: &[&str], mut ready: impl FnMut() -> bool) -> String {
    let mut child: Child =
        Command::new(KOMAINU).args(arguments).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    while !ready() {
        assert!(child.try_wait().unwrap().is_none(), "{arguments:?} ended by itself");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::INT)
        .unwrap();
    let mut printed = String::new();
    child.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
    child.wait().unwrap();
    printed
}

#[test]
fn ctrl_c_prints_the_figures_so_far() {
    let url = format!("http://{}/", server());
    let after = |ms: u64| {
        let began = std::time::Instant::now();
        move || began.elapsed().as_millis() as u64 >= ms
    };
    let printed = interrupted(&["bench", "-d", "1h", "--warm-up", "0s", &url], after(1_500));
    assert!(printed.contains("The run was interrupted") && printed.contains("p99"), "{printed}");
    let pairs = ["bench", "-d", "20ms", "-c", "2", "--pairs", "1000", "--vs", &url, &url];
    let printed = interrupted(&pairs, after(3_000));
    assert!(
        printed.contains("interrupted before all 1000 were made") && printed.contains("B / A"),
        "{printed}"
    );
}

#[test]
fn interrupted_lab_prints_results_and_resumes_later() {
    let folder = Folder::new("interrupted");
    let lab = folder.file("l.toml");
    let kept = folder.file("out/l.jsonl");
    let text_of = r#"
        title = "Long"

        [load]
        duration = "100ms"
        warm-up = "0s"
        repetitions = 500
        connections = 2

        [[subject]]
        name = "it"
        run = "{{komainu}} run --listen 127.0.0.1:{{port}} --listing {{dir}}"
    "#;
    std::fs::write(&lab, text_of).unwrap();
    let lines = || std::fs::read_to_string(&kept).unwrap_or_default().lines().count();
    let run = ["lab", "run", "--quiet", "--out", &folder.file("out"), &lab];
    let printed = interrupted(&run, || lines() >= 3);
    let before = lines();
    assert!(printed.contains("requests/s") && before >= 3, "{printed}");
    interrupted(&run, || lines() > before);
    let text = std::fs::read_to_string(&kept).unwrap();
    let repetition =
        |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["repetition"].as_u64();
    let repetitions: Vec<_> = text.lines().skip(1).map(repetition).collect();
    assert_eq!(repetitions, (0..repetitions.len() as u64).map(Some).collect::<Vec<_>>());
}

#[test]
fn two_servers_are_measured_in_turns() {
    let (a, b) = (format!("http://{}/", server()), format!("http://{}/", server()));
    let done = komainu(&["bench", "-d", "150ms", "-c", "4", "--pairs", "3", "--vs", &b, &a]);
    let printed = text(&done.stdout);
    assert!(printed.contains("3 pairs of runs in turns") && printed.contains("B / A"), "{printed}");
}

fn labs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../labs")
}

/// Runs the short form. Programs that are not installed are skipped and named; no cell may be broken.
fn short(name: &str) {
    let folder = Folder::new(name);
    let lab = labs().join(format!("{name}.toml"));
    let run = || {
        let out = folder.file("");
        komainu(&["lab", "run", "--short", "--quiet", "--out", &out, &lab.display().to_string()])
    };
    let mut done = run();
    if !done.status.success() {
        // On a busy machine a cell may get no time at all, so broken cells are run again.
        done = run();
    }
    let printed = text(&done.stdout);
    assert!(done.status.success(), "{printed}\n{}", text(&done.stderr));
    assert!(printed.contains("requests/s") || printed.contains("skipped"), "{printed}");
    for line in printed.lines().filter(|line| line.contains("skipped")) {
        println!("{name}: {}", line.trim());
    }
    for ending in ["md", "html", "json"] {
        assert!(Path::new(&folder.file(&format!("{name}.{ending}"))).exists(), "{ending}");
    }
    // Cells measured already are not measured again.
    let kept = std::fs::read_to_string(folder.file(&format!("{name}.jsonl"))).unwrap();
    assert!(run().status.success());
    assert_eq!(std::fs::read_to_string(folder.file(&format!("{name}.jsonl"))).unwrap(), kept);
    let json = folder.file(&format!("{name}.json"));
    assert!(komainu(&["lab", "compare", &json, &json]).status.success() || !printed.contains("/s"));
}

#[test]
fn the_short_forms_of_the_labs_run() {
    // Sequential, because measurements disturb each other.
    for name in ["starman", "static", "upstreams", "psgi", "handlers", "files", "https", "proxy", "idle"] {
        short(name);
    }
}

#[test]
fn lab_reports_broken_subjects_and_retries_them() {
    let folder = Folder::new("broken");
    let lab = folder.file("l.toml");
    let mended = folder.file("mended");
    let text_of = format!(
        r#"
        title = "Broken"

        [load]
        duration = "100ms"
        repetitions = 1
        warm-up = "0s"
        connections = 2

        [[subject]]
        name = "fine"
        ours = true
        run = "{{{{komainu}}}} run --listen 127.0.0.1:{{{{port}}}} --listing {{{{dir}}}}"

        [[subject]]
        name = "dies"
        run = "sh -c 'test -e {mended} || (echo no such option; exit 3) || exit 3; exec {KOMAINU} run --listen 127.0.0.1:{{{{port}}}} --listing {{{{dir}}}}'"

        [[subject]]
        name = "absent"
        needs = "no-such-program from no-such-package"
        run = "x"

        [[subject]]
        name = "not yet"
        skip = "a reason"
        "#
    );
    std::fs::write(&lab, text_of).unwrap();
    let done = komainu(&["lab", "run", "--quiet", "--out", &folder.file("out"), &lab]);
    let printed = text(&done.stdout);
    assert_eq!(done.status.code(), Some(1), "{printed}\n{}", text(&done.stderr));
    for part in [
        "dies: BROKEN, dies does not start: no such option",
        "no-such-package brings it",
        "not yet: skipped, a reason",
    ] {
        assert!(printed.contains(part), "{part}\n{printed}");
    }
    // Once the cause is fixed, the same command measures only the cell that was broken.
    let lines = || std::fs::read_to_string(folder.file("out/l.jsonl")).unwrap().lines().count();
    let before = lines();
    std::fs::write(&mended, "").unwrap();
    let done = komainu(&["lab", "run", "--quiet", "--out", &folder.file("out"), &lab]);
    let printed = text(&done.stdout);
    assert!(done.status.success() && !printed.contains("BROKEN"), "{printed}\n{}", text(&done.stderr));
    assert_eq!(lines(), before + 1);
    // A different load makes a different experiment, as does an additional build.
    let also = format!("twin={KOMAINU}");
    let options = ["--set", "duration=50ms", "--also", &also, "--only", "fine", "--out", &folder.file("out")];
    let done = komainu(&[&["lab", "run", "--quiet"], &options[..], &[&lab]].concat());
    assert!(done.status.success() && text(&done.stdout).contains("fine, twin"), "{}", text(&done.stderr));
    assert!(komainu(&["lab", "run", "--set", "durations=1s", &lab]).status.code() == Some(2));
}

#[test]
fn lab_runs_the_program_named_for_a_peer_and_says_its_version() {
    let folder = Folder::new("peer");
    let lab = folder.file("l.toml");
    let text_of = r#"
title = "Peer"

[load]
duration = "50ms"
repetitions = 1
warm-up = "0s"
connections = 1

[[subject]]
name = "lion"
needs = "lion from no-such-package"
if = "lion --version | grep -q komainu"
run = "lion run --listen 127.0.0.1:{{port}} --listing {{dir}}"
version = "lion --version"

[[subject]]
name = "other lion"
needs = "lion from no-such-package"
if = "lion --version | grep -q unicorn"
run = "lion"
"#;
    std::fs::write(&lab, text_of).unwrap();
    let run = |options: &[&str]| {
        komainu(&[&["lab", "run", "--quiet", "--out", &folder.file("out"), &lab], options].concat())
    };
    let done = run(&[]);
    assert!(text(&done.stdout).contains("lion: skipped, lion is not installed"), "{}", text(&done.stderr));
    let done = run(&["--peer", &format!("lion={KOMAINU}")]);
    let printed = text(&done.stdout);
    assert!(done.status.success(), "{printed}\n{}", text(&done.stderr));
    for part in [
        "lion: komainu ",
        "other lion: skipped, the condition `lion --version | grep -q unicorn` does not hold",
    ] {
        assert!(printed.contains(part), "{part}\n{printed}");
    }
    let json = std::fs::read_to_string(folder.file("out/l.json")).unwrap();
    assert!(json.contains("\"said\": \"komainu "), "{json}");
    for (peer, what) in [
        ("tiger=/bin/sh", "no peer runs a program \"tiger\"; there are lion"),
        ("lion=/no/such", "--peer lion: no program at /no/such"),
    ] {
        let done = run(&["--peer", peer]);
        assert_eq!(done.status.code(), Some(2), "{}", text(&done.stdout));
        assert!(text(&done.stderr).contains(what), "{what}\n{}", text(&done.stderr));
    }
}

#[test]
fn lab_marks_subject_with_wrong_responses_as_broken() {
    let folder = Folder::new("wrong");
    let lab = folder.file("l.toml");
    let text_of = r#"
title = "Wrong"

[load]
duration = "500ms"
repetitions = 1
warm-up = "0s"
connections = 2

[files]
"server.py" = """
import http.server, itertools, sys
turn = itertools.count()
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        self.send_response(200 if next(turn) < 20 else 503)
        self.send_header('Content-Length', '2')
        self.end_headers()
        self.wfile.write(b'hi')
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(('127.0.0.1', int(sys.argv[1])), Handler).serve_forever()
"""

[[subject]]
name = "overloaded"
run = "python3 {{dir}}/server.py {{port}}"
"#;
    std::fs::write(&lab, text_of).unwrap();
    let done = komainu(&["lab", "run", "--quiet", "--out", &folder.file("out"), &lab]);
    let printed = text(&done.stdout);
    assert_eq!(done.status.code(), Some(1), "{printed}\n{}", text(&done.stderr));
    assert!(printed.contains("overloaded: BROKEN, wrong answers under load: "), "{printed}");
    assert!(printed.contains("were not 200"), "{printed}");
}
