//! The reverse proxy: the real binary between plain sockets and scripted upstream servers.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::origin::{Origin, answer, listens, ok};
use crate::rig;
use crate::rig::{Folder, Rig, eventually, komainu, nobody, read_answer, text};

/// Runs `komainu run TARGET…`.
fn run(targets: &[&str]) -> Rig {
    run_in(Folder::new(), targets)
}

fn run_in(folder: Folder, targets: &[&str]) -> Rig {
    let mut command = komainu();
    command.args(["run", "--listen", "127.0.0.1:0", "--threads", "1"]).args(targets);
    Rig::start(command, folder)
}

fn route(folder: Folder, text: &str) -> Rig {
    Rig::config(
        folder,
        &format!(
            r"
            threads = 1
            [[route]]
            {text}
            "
        ),
    )
}

#[test]
fn request_is_forwarded_with_body_and_client_address() {
    let origin = Origin::start(|ask| answer("201 Created", "X-Up: 1\r\n", &text(&ask.body)));
    let rig = run(&[&origin.url]);
    let answer = rig.send(
        "POST /a/b?c=1 HTTP/1.1\r\nHost: example.com\r\nContent-Length: 4\r\nConnection: close, X-Hop\r\n\
         X-Hop: 1\r\nTE: gzip\r\nX-Forwarded-For: 6.6.6.6\r\nX-Mine: 2\r\n\r\nbody",
    );
    answer.expect(201, "body").expect_field("X-Up", "1");
    let ask = origin.last();
    assert_eq!(ask.line(), "POST /a/b?c=1 HTTP/1.1");
    assert_eq!(ask.field("Host"), ["example.com"]);
    assert_eq!(ask.field("X-Mine"), ["2"]);
    assert_eq!(ask.field("X-Forwarded-For"), ["127.0.0.1"], "{}", ask.head);
    assert_eq!(ask.field("X-Forwarded-Proto"), ["http"]);
    for hop in ["X-Hop", "TE"] {
        assert!(ask.field(hop).is_empty(), "{hop} in {}", ask.head);
    }
}

#[test]
fn connections_to_upstreams_are_kept() {
    let origin = Origin::start(|_| ok("x"));
    let rig = run(&[&origin.url]);
    for _ in 0..20 {
        rig.get("/").expect(200, "x");
    }
    assert_eq!((origin.asks().len(), origin.connections()), (20, 1));
}

#[test]
fn requests_are_balanced_and_unreachable_server_is_skipped() {
    let a = Origin::start(|_| ok("a"));
    let b = Origin::start(|_| ok("b"));
    let dead = format!("http://{}", nobody());
    let rig = run(&[&a.url, &dead, &b.url]);
    let mut counts = [0; 2];
    for _ in 0..30 {
        let answer = rig.get("/");
        counts[usize::from(answer.expect_status(200).text() == "b")] += 1;
    }
    assert!(counts.iter().all(|&count| count >= 10), "{counts:?}");
    eventually("the log names the dead one", || {
        let reported = rig.reported();
        reported.contains(&dead) && reported.contains("refused") && reported.contains("trying again")
    });
}

#[test]
fn weights_apply_and_backup_server_stays_idle() {
    let [a, b, c] = ["a", "b", "c"].map(|name| Origin::start(move |_| ok(name)));
    let rig = route(
        Folder::new(),
        &format!(
            "proxy = {{ to = [{{ url = \"{}\", weight = 3 }}, \"{}\", {{ url = \"{}\", backup = true }}] }}",
            a.url, b.url, c.url
        ),
    );
    for _ in 0..8 {
        rig.get("/").expect_status(200);
    }
    assert_eq!([a, b, c].map(|origin| origin.asks().len()), [6, 2, 0]);
}

#[test]
fn upstream_failures_cause_502_and_are_logged() {
    let cut = Origin::start(|_| String::new());
    let nonsense = Origin::start(|_| "SMTP ready\r\n\r\n".into());
    let rig = Rig::config(
        Folder::new(),
        &format!(
            r#"
            [[route]]
            path = "/refused"
            proxy = "http://{}"

            [[route]]
            path = "/cut"
            proxy = "{}"

            [[route]]
            path = "/nonsense"
            proxy = "{}"
            "#,
            nobody(),
            cut.url,
            nonsense.url
        ),
    );
    for path in ["/refused", "/cut", "/nonsense"] {
        rig.ask(path, "Accept: application/json\r\n")
            .expect_status(502)
            .expect_field("Content-Type", "application/problem+json");
        eventually("the log has it", || {
            rig.reported().lines().any(|line| line.contains(path) && line.contains("502"))
        });
    }
    rig.expect_report("refused the connection");
}

#[test]
fn slow_upstream_server_causes_504() {
    let origin = Origin::start(|_| {
        std::thread::sleep(rig::PATIENCE);
        ok("late")
    });
    let rig = route(
        Folder::new(),
        &format!("proxy = {{ to = \"{}\", timeouts = {{ head = \"100ms\" }}, retry = false }}", origin.url),
    );
    rig.get("/").expect_status(504);
    eventually("the log has it", || rig.reported().contains("took too long"));
}

#[test]
fn files_take_precedence_over_the_proxy() {
    let folder = Folder::new();
    folder.write("www/a.txt", "file");
    let www = folder.at("www").display().to_string();
    let origin = Origin::start(|ask| ok(ask.line()));
    let rig = run_in(folder, &[&www, &origin.url]);
    rig.get("/a.txt").expect(200, "file");
    rig.get("/b.txt").expect(200, "GET /b.txt HTTP/1.1");
    rig.get("/").expect(200, "GET / HTTP/1.1");
    let posted =
        rig.send("POST /a.txt HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    posted.expect(200, "POST /a.txt HTTP/1.1");
}

#[test]
fn upstream_is_reached_over_a_unix_socket() {
    let folder = Folder::new();
    let origin = Origin::unix(&folder.at("app.sock"), |ask| ok(ask.line()));
    let rig = run_in(folder, &[&origin.url]);
    rig.get("/u").expect(200, "GET /u HTTP/1.1");
}

#[test]
fn websockets_pass_both_ways() {
    let origin = Origin::start(|ask| {
        assert_eq!(ask.field("Upgrade"), ["websocket"], "{}", ask.head);
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n".into()
    });
    let rig = run(&[&origin.url]);
    let mut stream = rig.connect();
    stream
        .write_all(
            b"GET /ws HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n\x81\x02hi",
        )
        .unwrap();
    read_answer(&mut stream).expect_status(101).expect_field("Upgrade", "websocket");
    let mut echo = [0; 4];
    stream.read_exact(&mut echo).unwrap();
    assert_eq!(&echo, b"\x81\x02hi");
    stream.write_all(&[7; 100_000]).unwrap();
    let mut echo = vec![0; 100_000];
    stream.read_exact(&mut echo).unwrap();
    assert!(echo.iter().all(|&byte| byte == 7));
}

#[test]
fn header_edits_and_forwarding_fields_are_applied() {
    let origin = Origin::start(|_| answer("200 OK", "X-Powered-By: old\r\nX-Keep: 1\r\n", ""));
    let rig = Rig::config(
        Folder::new(),
        &format!(
            r#"trusted_proxies = ["127.0.0.0/8"]
[[route]]
[route.proxy]
to = "{}"
host = "upstream"
request_headers = {{ set = {{ X-Client = "$client_ip $method $path" }}, add = {{ X-Mine = "b" }}, remove = ["Cookie"] }}
response_headers = {{ remove = ["X-Powered-By"], set = {{ X-Via = "$upstream" }} }}
forwarded = {{ standard = true }}
"#,
            origin.url
        ),
    );
    let authority = origin.url.trim_start_matches("http://");
    rig.ask("/p?q", "Cookie: a=1\r\nX-Mine: a\r\nX-Forwarded-For: 192.0.2.9\r\n")
        .expect_status(200)
        .expect_no_field("X-Powered-By")
        .expect_field("X-Keep", "1")
        .expect_field("X-Via", authority);
    let ask = origin.last();
    assert_eq!(ask.field("Host"), [authority]);
    assert_eq!(ask.field("X-Client"), ["192.0.2.9 GET /p"]);
    assert_eq!(ask.field("X-Mine"), ["a", "b"]);
    assert!(ask.field("Cookie").is_empty());
    assert_eq!(ask.field("X-Forwarded-For").join(", "), "192.0.2.9, 127.0.0.1");
    assert!(ask.field("Forwarded").join(", ").contains("for=127.0.0.1"), "{}", ask.head);
}

#[test]
fn stripped_prefix_is_restored_in_responses() {
    let origin = Origin::start(|ask| {
        let fields = "Location: /login?x\r\nSet-Cookie: s=1; Path=/\r\n";
        answer("302 Found", fields, ask.line())
    });
    let rig = route(
        Folder::new(),
        &format!("path = \"/shop/*\"\nproxy = {{ to = \"{}\", strip_prefix = true }}", origin.url),
    );
    rig.get("/shop/cart?y")
        .expect(302, "GET /cart?y HTTP/1.1")
        .expect_field("Location", "/shop/login?x")
        .expect_field("Set-Cookie", "s=1; Path=/shop");
    let other = route(
        Folder::new(),
        &format!(
            "path = \"/api/*\"\nproxy = {{ to = \"{}\", strip_prefix = \"/api\", add_prefix = \"/v2\" }}",
            origin.url
        ),
    );
    other.get("/api/users").expect(302, "GET /v2/users HTTP/1.1");
}

#[test]
fn urls_and_cookies_of_the_upstream_are_rewritten() {
    let origin = Origin::start(|ask| {
        let host = ask.field("Host")[0];
        let fields = format!(
            "Location: http://{host}/app/new\r\nContent-Location: /app/it\r\nRefresh: 5; url=http://{host}/app/later\r\n\
             Set-Cookie: a=1; Domain=internal.test; Path=/app/x\r\nSet-Cookie: b=2; Domain=gone.test\r\n\
             Link: <http://{host}/app/x>\r\n"
        );
        answer("201 Created", &fields, "")
    });
    let rig = route(
        Folder::new(),
        &format!(
            r#"
            path = "/shop/*"
            [route.proxy]
            to = "{}"
            host = "upstream"
            strip_prefix = true
            add_prefix = "/app"
            cookie_domains = {{ "internal.test" = "shop.example", "gone.test" = "" }}
            "#,
            origin.url
        ),
    );
    let answer = rig.get("/shop/order");
    answer
        .expect_status(201)
        .expect_field("Location", &format!("{}://localhost/shop/new", rig.scheme()))
        .expect_field("Content-Location", "/shop/it")
        .expect_field("Refresh", &format!("5; url={}://localhost/shop/later", rig.scheme()));
    assert_eq!(origin.last().line(), "GET /app/order HTTP/1.1");
    let cookies: Vec<&str> =
        answer.head.lines().filter_map(|line| line.strip_prefix("Set-Cookie: ")).collect();
    assert_eq!(cookies, ["a=1; Domain=shop.example; Path=/shop/x", "b=2"]);
    let authority = origin.url.trim_start_matches("http://");
    answer.expect_field("Link", &format!("<http://{authority}/app/x>"));
}

#[test]
fn reload_replaces_upstream_and_closes_its_connections() {
    let a = Origin::start(|_| ok("a"));
    let b = Origin::start(|_| ok("b"));
    let rig = route(Folder::new(), &format!("proxy = \"{}\"", a.url));
    rig.get("/").expect(200, "a");
    let text = format!(
        r#"
        {}
        threads = 1
        [[route]]
        proxy = "{}"
        "#,
        rig::listen(&rig.folder),
        b.url
    );
    rig.folder.write("komainu.toml", text);
    rig.signal("-HUP");
    eventually("the new upstream answers", || rig.get("/").text() == "b");
    let wrong = "[[route]]\nproxy = { to = \"https://a\", tls = { ca = \"missing.pem\" } }\n";
    rig.folder.write("komainu.toml", wrong);
    rig.signal("-HUP");
    eventually("the missing file is reported", || rig.reported().contains("missing.pem"));
    rig.get("/").expect(200, "b");
    // The old pool was dropped with the old routes, so its connection is closed.
    eventually("the connection to the old upstream is closed", || a.open() == 0);
}

#[test]
fn explain_names_the_upstreams() {
    let folder = Folder::new();
    folder.write("www/a", "").write(
        "komainu.toml",
        r#"
        [[route]]
        files = "www"
        proxy = ["http://127.0.0.1:3000", "unix:/run/app.sock"]
        "#,
    );
    let config = folder.at("komainu.toml");
    let explained =
        komainu().args(["check", "-c"]).arg(config).args(["--explain", "http://a/x"]).output().unwrap();
    let said = text(&explained.stdout);
    assert!(
        said.contains("matches: files, otherwise proxy to http://127.0.0.1:3000, unix:/run/app.sock"),
        "{said}"
    );
}

#[test]
fn url_with_path_on_the_command_line_produces_a_hint() {
    let output = komainu().args(["run", "http://127.0.0.1:3000/app"]).output().unwrap();
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains("strip_prefix"), "{}", text(&output.stderr));
}

/// Starts a backend on a fixed port, which drains when it is stopped.
fn backend(address: &str, www: &Path) -> Rig {
    let mut command = komainu();
    command.args(["run", "--listen", address, "--threads", "1"]).arg(www);
    Rig::start(command, Folder::new())
}

#[test]
fn rolling_restart_of_backends_under_load_fails_no_request() {
    let folder = Folder::new();
    folder.write("www/a", "A");
    let www = folder.at("www");
    let addresses = [nobody(), nobody()].map(|address| address.to_string());
    let mut backends = addresses.clone().map(|address| backend(&address, &www));
    let urls = addresses.clone().map(|address| format!("http://{address}"));
    let rig = run(&[&urls[0], &urls[1]]);
    let stop = Arc::new(AtomicBool::new(false));
    let answered = Arc::new(AtomicUsize::new(0));
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let stop = stop.clone();
            let answered = answered.clone();
            let mut stream = rig.connect();
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    stream.write_all(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
                    read_answer(&mut stream).expect(200, "A");
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let more = |count| {
        let until = answered.load(Ordering::Relaxed) + count;
        eventually("requests continue", || {
            answered.load(Ordering::Relaxed) >= until || clients.iter().any(|client| client.is_finished())
        });
    };
    for _ in 0..2 {
        for turn in 0..2 {
            more(200);
            backends[turn].signal("-TERM");
            assert!(backends[turn].ended().success());
            more(200);
            backends[turn] = backend(&addresses[turn], &www);
        }
    }
    more(200);
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.join().expect("no request fails");
    }
}

/// Starts nginx with a certificate of its own; prints a note and returns `None` if it is not installed.
fn tls_nginx(folder: &Folder) -> Option<(SocketAddr, Child)> {
    let program = rig::installed("nginx")?;
    folder.certify();
    let address = nobody();
    let here = folder.path().display();
    folder.write(
        "nginx.conf",
        format!(
            r#"daemon off; worker_processes 1; pid {here}/nginx.pid; error_log {here}/nginx.log; events {{}}
http {{ access_log off; client_body_temp_path {here}/t1; proxy_temp_path {here}/t2;
fastcgi_temp_path {here}/t3; uwsgi_temp_path {here}/t4; scgi_temp_path {here}/t5;
server {{ listen {address} ssl; ssl_certificate {here}/cert.pem; ssl_certificate_key {here}/key.pem;
ssl_verify_client optional_no_ca; ssl_session_cache shared:s:1m;
location /known {{ return 200 "$ssl_client_s_dn"; }}
location /again {{ return 200 "$ssl_session_reused"; }}
location / {{ return 200 "$ssl_server_name $connection_requests"; }} }} }}
"#
        ),
    );
    let mut command = Command::new(program);
    command.arg("-e").arg(folder.at("nginx.log")).arg("-p").arg(folder.path());
    let child = Child(command.arg("-c").arg(folder.at("nginx.conf")).spawn().unwrap());
    eventually("nginx listens", || listens(address));
    Some((address, child))
}

/// A process that is killed on drop.
struct Child(std::process::Child);

impl Drop for Child {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}

#[test]
fn tls_to_upstream_is_verified_and_resumed() {
    let folder = Folder::new();
    let Some((address, _nginx)) = tls_nginx(&folder) else { return };
    let port = address.port();
    let routes = format!(
        r#"
        threads = 1

        [[route]]
        path = "/ca"
        proxy = {{ to = "https://127.0.0.1:{port}", tls = {{ ca = "cert.pem", name = "localhost" }} }}

        [[route]]
        path = "/none"
        proxy = "https://127.0.0.1:{port}"

        [[route]]
        path = "/any"
        proxy = {{ to = "https://127.0.0.1:{port}", tls = {{ verify = false }} }}

        [[route]]
        path = "/known"
        proxy = {{ to = "https://127.0.0.1:{port}", tls = {{ ca = "cert.pem", name = "localhost", certificate = "cert.pem", key = "key.pem" }} }}

        [[route]]
        path = "/again"
        proxy = {{ to = "https://127.0.0.1:{port}", keep_alive = false, tls = {{ ca = "cert.pem", name = "localhost" }} }}
        "#
    );
    let rig = Rig::config(folder, &routes);
    rig.get("/ca").expect(200, "localhost 1");
    rig.get("/ca").expect(200, "localhost 2");
    rig.get("/any").expect_status(200);
    rig.get("/known").expect(200, "CN=localhost");
    rig.get("/again").expect(200, ".");
    for _ in 0..3 {
        // Each request uses a new connection that resumes the previous session.
        rig.get("/again").expect(200, "r");
    }
    rig.get("/none").expect_status(502);
    eventually("the log says why", || rig.reported().contains("/none"));
}

#[test]
fn proxy_loop_is_answered_with_508() {
    let folder = Folder::new();
    let socket = folder.at("self.sock");
    let text = format!(
        r#"
        {1}
        listen = ["127.0.0.1:0", "unix:{0}"]
        threads = 2
        [[route]]
        proxy = "unix:{0}"
        "#,
        socket.display(),
        rig::as_we_are()
    );
    folder.write("komainu.toml", text);
    let mut command = komainu();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
    let rig = Rig::start(command, folder);
    let answer = rig.get("/around?and=around");
    assert_eq!(answer.status(), 508, "{}", answer.head);
    eventually("the log has it", || {
        let reported = rig.reported();
        reported.contains("self.sock: \"/around?***\": the request loops: ") && reported.contains(": 508")
    });
}

#[test]
fn client_abort_cancel_ends_the_upstream_request() {
    // The origin begins a response and never ends it.
    let origin =
        Origin::start(
            |ask| if ask.line().contains("/slow") { "HTTP/1.1 200 OK\r\n".to_owned() } else { ok("x") },
        );
    let rig =
        route(Folder::new(), &format!("proxy = {{ to = \"{}\", client_abort = \"cancel\" }}", origin.url));
    let ask = |path: &str| {
        let mut stream = rig.connect();
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).unwrap();
        stream
    };
    let stays = ask("/slow/stays");
    let mut leaves = ask("/slow/leaves");
    eventually("both are asked for", || origin.open() == 2);
    leaves.shutdown(std::net::Shutdown::Write).unwrap();
    eventually("the upstream connection is closed", || origin.open() == 1);
    let mut answer = String::new();
    leaves.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "");
    drop(stays);
    eventually("so is the other's", || origin.open() == 0);
    rig.get("/").expect(200, "x");
    assert!(!rig.reported().contains("upstream"), "the upstream server is not to blame: {}", rig.reported());
}

#[test]
fn reason_phrase_of_the_upstream_is_preserved() {
    let origin = Origin::start(|ask| match ask.line().split(' ').nth(1).unwrap() {
        "/own" => answer("299 My Reason", "", "x"),
        "/other" => answer("404 Nicht da", "", "x"),
        "/none" => "HTTP/1.1 404 \r\nContent-Length: 1\r\n\r\nx".to_owned(),
        _ => ok("x"),
    });
    let rig = run(&[&origin.url]);
    let mut client = rig.connect();
    for (path, line) in [
        ("/own", "HTTP/1.1 299 My Reason\r\n"),
        ("/usual", "HTTP/1.1 200 OK\r\n"),
        ("/other", "HTTP/1.1 404 Nicht da\r\n"),
        ("/none", "HTTP/1.1 404 Not Found\r\n"),
    ] {
        client.write_all(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).unwrap();
        let answer = read_answer(&mut client);
        assert!(answer.head.starts_with(line), "{path}: {}", answer.head);
    }
}

#[test]
fn options_with_max_forwards_zero_is_answered_locally() {
    let origin = Origin::start(|_| ok("x"));
    let rig = Rig::config(
        Folder::new(),
        &format!(
            r#"
            threads = 1

            [[route]]
            path = "/cached"
            proxy = "{url}"
            cache = true

            [[route]]
            path = "/own"
            proxy = {{ to = "{url}", request_headers = {{ set = {{ Max-Forwards = "3" }} }} }}

            [[route]]
            proxy = "{url}"
            "#,
            url = origin.url
        ),
    );
    let options = |path: &str, lines: &str| {
        rig.send(&format!("OPTIONS {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{lines}\r\n"))
    };
    for path in ["/", "/cached", "/own"] {
        options(path, "max-forwards: 0\r\n").expect_status(204);
        options(path, "Max-Forwards: 000\r\n").expect_status(204);
    }
    assert!(origin.asks().is_empty(), "{}", origin.last().head);
    let passed = |path: &str, lines: &str| {
        options(path, lines).expect_status(200);
        origin.last().field("Max-Forwards").join("|")
    };
    for (sent, left) in [("7", "6"), ("1", "0"), ("99999999999999999999999", "18446744073709551614")] {
        for path in ["/", "/cached"] {
            assert_eq!(passed(path, &format!("Max-Forwards: {sent}\r\n")), left);
        }
    }
    assert_eq!(passed("/own", "Max-Forwards: 7\r\n"), "3");
    // Invalid values are ignored.
    for sent in ["", "-1", "1, 0", "x"] {
        assert_eq!(passed("/", &format!("Max-Forwards: {sent}\r\n")), sent);
    }
    // The field only limits OPTIONS and TRACE.
    rig.ask("/", "Max-Forwards: 0\r\n").expect(200, "x");
    assert_eq!(origin.last().field("Max-Forwards"), ["0"]);
}
