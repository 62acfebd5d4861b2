//! Cache rules, and the configurations in docs/cache.md that replace those of Varnish and nginx.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Command;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use crate::origin::{Ask, Origin, answer};
use crate::rig;
use crate::rig::{Answer, Folder, Rig, as_we_are, curl, eventually, komainu, read_answer};

/// Starts an origin whose response depends on the last path segment and on how often it was requested.
fn by_path() -> Origin {
    let counts: Mutex<HashMap<String, usize>> = Mutex::default();
    Origin::start(move |ask| {
        let target = ask.line().split(' ').nth(1).unwrap().to_owned();
        let path = target.split('?').next().unwrap();
        let kind = path.rsplit('/').next().unwrap().to_owned();
        let asked = {
            let mut counts = counts.lock().unwrap();
            let count = counts.entry([ask.field("Host")[0], path].concat()).or_default();
            *count += 1;
            *count
        };
        let body = format!("{asked} {}", ask.line());
        if let Some(status) = kind.strip_prefix("status-") {
            return answer(&format!("{status} Said"), "", &body);
        }
        match &kind[..] {
            "max" => answer("200 OK", "Cache-Control: max-age=3600\r\n", &body),
            "cookie" => answer("200 OK", "Set-Cookie: session=1\r\nSet-Cookie: _ga=2\r\n", &body),
            "private" => answer("200 OK", "Cache-Control: private\r\nExpires: 0\r\n", &body),
            "html" => answer("200 OK", "Content-Type: text/html\r\nCache-Control: max-age=3600\r\n", &body),
            "sessions" => answer("200 OK", "Vary: Cookie\r\n", &body),
            "agents" => answer("200 OK", "Vary: User-Agent\r\nCache-Control: max-age=3600\r\n", &body),
            "languages" => {
                answer("200 OK", "Vary: Accept-Language\r\nCache-Control: max-age=3600\r\n", &body)
            }
            "codings" => answer("200 OK", "Vary: Accept-Encoding\r\nCache-Control: max-age=3600\r\n", &body),
            "tagged" if !ask.field("If-None-Match").is_empty() => {
                "HTTP/1.1 304 Not Modified\r\n\r\n".to_owned()
            }
            // Stale on arrival.
            "tagged" => answer("200 OK", "Cache-Control: max-age=10\r\nAge: 20\r\nETag: \"a\"\r\n", &body),
            "stale" | "dies" | "fails" if asked == 1 => {
                answer("200 OK", "Cache-Control: max-age=10\r\nAge: 20\r\nETag: \"a\"\r\n", &body)
            }
            "dies" => String::new(),
            "fails" => answer("503 Down", "", "down"),
            "stale" => answer("200 OK", "Cache-Control: max-age=3600\r\n", &body),
            "alike" => answer(
                "200 OK",
                "Cache-Control: max-age=3600\r\nNo-Vary-Search: key-order, params=(\"utm\")\r\n",
                &body,
            ),
            _ => answer("200 OK", "", &body),
        }
    })
}

/// A virtual host of the server, with its configuration.
struct Host<'t> {
    rig: &'t Rig,
    origin: &'t Origin,
    name: String,
}

impl Host<'_> {
    fn ask(&self, path: &str, fields: &str) -> Answer {
        self.rig
            .send(&format!("GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n{fields}\r\n", self.name))
    }

    fn get(&self, path: &str) -> Answer {
        self.ask(path, "")
    }

    /// Requests that the origin received for this host.
    fn asks(&self) -> Vec<Ask> {
        self.origin.asks().into_iter().filter(|ask| ask.field("Host") == [&self.name[..]]).collect()
    }

    /// Whether the response to the first request also answers the second, and vice versa.
    fn shares(&self, (path, fields): (&str, &str), (other_path, others): (&str, &str)) -> bool {
        self.ask(path, fields);
        let before = self.asks().len();
        self.ask(other_path, others);
        self.asks().len() == before
    }

    fn stores(&self, path: &str, fields: &str) -> bool {
        self.shares((path, fields), (path, fields))
    }
}

/// Check of one row of the tables of docs/cache.md.
type Check = fn(&Host<'_>);

const PHONE: &str = "User-Agent: Mozilla/5.0 (iPhone; CPU iPhone OS 17_0 like Mac OS X) Mobile/15E148\r\n";
const OTHER_PHONE: &str = "User-Agent: Mozilla/5.0 (Linux; Android 14) Chrome/120 Mobile Safari/537.36\r\n";
const DESKTOP: &str = "User-Agent: Mozilla/5.0 (X11; Linux x86_64)\r\n";

/// Checks by the first column of the row.
const CHECKS: &[(&str, Check)] = &[
    ("`set beresp.ttl = 1h;` for assets", |host| {
        assert!(host.stores("/assets/plain", "") && !host.stores("/plain", ""));
        assert!(!host.stores("/assets/private", "") && !host.stores("/assets/cookie", ""));
        assert!(!host.stores("/assets/status-500", "") && !host.stores("/assets/2/plain", "Cookie: a=b\r\n"));
    }),
    ("`default_ttl`", |host| {
        assert!(host.stores("/plain", "") && !host.stores("/private", "") && host.stores("/max", ""));
    }),
    ("grace, the backend is healthy", |host| {
        host.get("/stale").expect(200, "1 GET /stale HTTP/1.1");
        host.get("/stale").expect(200, "1 GET /stale HTTP/1.1");
        eventually("it is fetched in the background", || host.get("/stale").text().starts_with('2'));
    }),
    ("grace, the backend is sick", |host| {
        host.get("/dies").expect_status(200);
        let stale = host.get("/dies");
        stale.expect(200, "1 GET /dies HTTP/1.1");
        assert!(stale.field("Cache-Status").unwrap().contains("detail=unreachable"));
    }),
    ("keep", |host| {
        host.get("/tagged").expect(200, "1 GET /tagged HTTP/1.1");
        host.get("/tagged").expect(200, "1 GET /tagged HTTP/1.1");
        assert_eq!(host.asks()[1].field("If-None-Match"), ["\"a\""]);
        host.get("/gone/tagged").expect(200, "1 GET /gone/tagged HTTP/1.1");
        host.get("/gone/tagged").expect(200, "2 GET /gone/tagged HTTP/1.1");
    }),
    ("hit-for-pass, hit-for-miss", |host| {
        assert!(!host.stores("/private", "") && host.stores("/max", ""));
    }),
    ("`return (pass);` for a session", |host| {
        assert!(host.stores("/max", "") && !host.stores("/max", "Cookie: a=b; session=1\r\n"));
        host.ask("/max", "Cookie: session=1\r\n").expect_field("Cache-Status", "Komainu; fwd=bypass");
        assert!(host.shares(("/max", ""), ("/max", "Cookie: a=b\r\n")));
    }),
    ("`return (pass);` for `Authorization`", |host| {
        assert!(host.stores("/max", "") && !host.stores("/max", "Authorization: x\r\n"));
    }),
    ("`unset req.http.Cookie; unset beresp.http.Set-Cookie;` for assets", |host| {
        let first = host.ask("/assets/cookie", "Cookie: session=1\r\n");
        first.expect_status(200).expect_no_field("Set-Cookie");
        assert!(host.asks()[0].field("Cookie").is_empty());
        assert!(host.shares(("/assets/cookie", ""), ("/assets/cookie", "Cookie: session=2\r\n")));
        assert!(
            host.shares(("/assets/sessions", "Cookie: a=1\r\n"), ("/assets/sessions", "Cookie: a=2\r\n"))
        );
        assert!(!host.stores("/cookie", ""));
        host.get("/cookie").expect_field("Set-Cookie", "session=1");
    }),
    ("`regsub` of analytics cookies", |host| {
        assert!(host.stores("/plain", "Cookie: _ga=1; _gid=2\r\n"));
        assert!(!host.stores("/2/plain", "Cookie: _ga=1; user=2\r\n"));
        let asks = host.asks();
        assert_eq!((asks[0].field("Cookie"), asks[1].field("Cookie")), (vec![], vec!["user=2"]));
    }),
    ("`Accept-Encoding` in a normal form", |host| {
        let one = "Accept-Encoding: gzip, deflate, x\r\n";
        let other = "Accept-Encoding: *;q=0, gzip;q=0.5\r\n";
        assert!(host.shares(("/codings", one), ("/codings", other)));
    }),
    ("`Accept-Language` in a normal form", |host| {
        let one = "Accept-Language: de-AT,en;q=0.5\r\n";
        let other = "Accept-Language: de\r\n";
        assert!(host.shares(("/languages", one), ("/languages", other)));
        assert_eq!(host.asks()[0].field("Accept-Language"), ["de"]);
        assert!(!host.shares(("/languages", one), ("/languages", "Accept-Language: fr\r\n")));
        assert_eq!(host.asks()[1].field("Accept-Language"), ["en"]);
    }),
    ("`X-UA-Device`", |host| {
        assert!(host.shares(("/agents", PHONE), ("/agents", OTHER_PHONE)));
        assert!(!host.shares(("/agents", PHONE), ("/agents", DESKTOP)));
    }),
    ("`std.querysort`", |host| {
        assert!(host.shares(("/max?b=1&a=2", ""), ("/max?a=2&b=1", "")));
        assert!(host.asks()[0].line().contains("?a=2&b=1 "));
        assert!(!host.shares(("/max?a=1&a=2", ""), ("/max?a=2&a=1", "")));
    }),
    ("`regsuball(req.url, \"utm_…\")`", |host| {
        assert!(host.shares(("/max?utm_source=x&a=1&fbclid=y", ""), ("/max?a=1&utm_source=z", "")));
        assert!(host.asks()[0].line().contains("/max?a=1 "));
        assert!(host.shares(("/2/max", ""), ("/2/max?utm_a", "")));
    }),
    ("`hash_data(req.http.X-Country)`, `hash_data` of a cookie", |host| {
        let one = "X-Country: at\r\nCookie: theme=dark\r\n";
        assert!(host.stores("/plain", one) && host.shares(("/plain", one), ("/plain", one)));
        for other in
            ["X-Country: de\r\nCookie: theme=dark\r\n", "X-Country: at\r\nCookie: theme=light\r\n", ""]
        {
            assert!(!host.shares(("/plain", one), ("/plain", other)), "{other}");
        }
        assert!(!host.stores("/2/plain", "X-Country: at\r\nCookie: theme=dark; session=1\r\n"));
    }),
    ("`set beresp.uncacheable = true;` by type", |host| {
        assert!(!host.stores("/html", "") && host.stores("/max", ""));
    }),
    ("`if (beresp.status == 404) { set beresp.ttl = 10s; }`", |host| {
        for (path, stored) in
            [("/status-404", true), ("/status-410", true), ("/status-502", true), ("/status-200", false)]
        {
            assert_eq!(host.stores(path, ""), stored, "{path}");
        }
        host.get("/status-404").expect_status(404);
    }),
    ("`proxy_cache`", |host| assert!(host.stores("/max", "") && !host.stores("/plain", ""))),
    ("`proxy_cache_key` without `$args`", |host| {
        assert!(host.shares(("/max?a=1", ""), ("/max?b", "")) && host.asks()[0].line().contains("/max "));
    }),
    ("`proxy_cache_key` with some of the arguments", |host| {
        assert!(host.shares(("/max?page=1&x", ""), ("/max?page=1", "")));
        assert!(!host.shares(("/max?page=1", ""), ("/max?page=2", "")));
    }),
    ("`proxy_cache_valid 200 301 302 10m; proxy_cache_valid 404 1m;`", |host| {
        for (path, stored) in [
            ("/plain", true),
            ("/status-301", true),
            ("/status-404", true),
            ("/status-500", false),
            ("/private", false),
        ] {
            assert_eq!(host.stores(path, ""), stored, "{path}");
        }
    }),
    ("`proxy_cache_lock on;`", |host| assert!(host.stores("/max", ""))),
    ("`proxy_cache_use_stale error timeout;`", |host| {
        host.get("/dies");
        host.get("/dies").expect(200, "1 GET /dies HTTP/1.1");
    }),
    ("`proxy_cache_use_stale http_500 http_502 http_503 http_504;`", |host| {
        host.get("/fails");
        host.get("/fails").expect(200, "1 GET /fails HTTP/1.1");
    }),
    ("`proxy_cache_use_stale updating; proxy_cache_background_update on;`", |host| {
        host.get("/stale");
        host.get("/stale").expect(200, "1 GET /stale HTTP/1.1");
        eventually("it is fetched in the background", || host.get("/stale").text().starts_with('2'));
    }),
    ("`proxy_cache_min_uses 3;`", |host| {
        for n in [1, 2, 3, 3] {
            host.get("/max").expect(200, &format!("{n} GET /max HTTP/1.1"));
        }
    }),
    ("`proxy_cache_bypass $cookie_nocache $arg_nocache;`", |host| {
        assert!(host.stores("/max", "") && !host.stores("/max", "Cookie: nocache=1\r\n"));
        assert!(!host.stores("/max?nocache=1", ""));
    }),
    ("`proxy_no_cache $http_x_preview;`", |host| {
        assert!(!host.stores("/max", "X-Preview: 1\r\n") && host.stores("/max", ""));
    }),
    ("`proxy_cache_revalidate on;`", |host| {
        host.get("/tagged");
        host.get("/tagged").expect(200, "1 GET /tagged HTTP/1.1");
    }),
    ("`proxy_cache_methods`", |host| assert!(host.stores("/max", ""))),
    ("`proxy_ignore_headers Cache-Control Expires Vary;`", |host| {
        assert!(host.stores("/assets/private", "") && !host.stores("/private", ""));
        assert!(host.shares(("/assets/agents", PHONE), ("/assets/agents", DESKTOP)));
    }),
    ("`proxy_ignore_headers Set-Cookie; proxy_hide_header Set-Cookie;`", |host| {
        assert!(host.stores("/assets/cookie", ""));
        host.get("/assets/cookie").expect_no_field("Set-Cookie");
    }),
];

/// First column and configuration of the rows that have a configuration.
fn rows() -> Vec<(String, String)> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cache.md");
    let text = std::fs::read_to_string(path).unwrap();
    let cells = |line: &str| -> Option<(String, String)> {
        let line = line.strip_prefix("| ")?.strip_suffix(" |")?;
        let (first, rest) = line.split_once(" | ")?;
        let (_, last) = rest.rsplit_once(" | ")?;
        let config = last.strip_prefix('`')?.strip_suffix('`')?;
        config.starts_with("cache = ").then(|| (first.to_owned(), config.to_owned()))
    };
    text.lines().filter_map(cells).collect()
}

#[test]
fn documented_replacements_of_other_caches_work() {
    let origin = by_path();
    let rows = rows();
    let text: String = rows
        .iter()
        .enumerate()
        .map(|(index, (_, config))| {
            format!(
                r#"
                [[site]]
                hosts = "row{index}.test"
                [[site.route]]
                proxy = "{}"
                {config}
                "#,
                origin.url
            )
        })
        .collect();
    let checked = Folder::new();
    checked.write("komainu.toml", format!("{}{text}", as_we_are()));
    let check = komainu().arg("check").arg("-c").arg(checked.at("komainu.toml")).output().unwrap();
    let check = rig::text(&check.stderr);
    assert!(!check.contains("pages of those without"), "a row draws a warning: {check}");
    let rig = Rig::config(Folder::new(), &text);
    for (name, _) in CHECKS {
        assert!(rows.iter().any(|(row, _)| row == name), "docs/cache.md has no row {name}");
    }
    for (index, (row, _)) in rows.iter().enumerate() {
        let check = CHECKS.iter().find(|(name, _)| name == row);
        let (_, check) = check.unwrap_or_else(|| panic!("nothing checks the row {row}"));
        println!("{row}");
        check(&Host { rig: &rig, origin: &origin, name: format!("row{index}.test") });
    }
}

#[test]
fn check_warns_of_rules_that_share_private_responses() {
    let folder = Folder::new();
    let shared = r#"
        [[route]]
        proxy = "http://127.0.0.1:1"
        cache = { rule = [{ ttl = "1h", with_authorization = true }] }
    "#;
    folder.write("komainu.toml", format!("{}{shared}", as_we_are()));
    let output = komainu().arg("check").arg("-c").arg(folder.at("komainu.toml")).output().unwrap();
    let text = rig::text(&output.stderr);
    for wanted in [
        "what one client may see is sent to all",
        "key = { header = \"Authorization\" }",
        "pages of those without",
    ] {
        assert!(output.status.success() && text.contains(wanted), "{text}");
    }
    // Stripping cookies from responses to everybody does not make other responses shareable.
    for rules in [
        "{ ttl = \"1h\", strip_cookies = true }",
        "{ path = \"/a/*\", strip_cookies = true }, { ttl = \"1h\" }",
    ] {
        let route = format!(
            r#"
            [[route]]
            proxy = "http://127.0.0.1:1"
            cache = {{ rule = [{rules}] }}
            "#
        );
        folder.write("komainu.toml", format!("{}{route}", as_we_are()));
        let output = komainu().arg("check").arg("-c").arg(folder.at("komainu.toml")).output().unwrap();
        let text = rig::text(&output.stderr);
        assert!(output.status.success() && text.contains("pages of those without"), "{rules}: {text}");
    }
}

#[test]
fn routes_that_share_a_url_share_no_response() {
    let origin = by_path();
    let other = by_path();
    let rig = Rig::config(
        Folder::new(),
        &format!(
            r#"
            [[route]]
            header = {{ X-Beta = true }}
            proxy = "{}"
            cache = {{ rule = [{{ key = {{ query = false }} }}] }}
            [[route]]
            proxy = "{}"
            cache = true
            "#,
            other.url, origin.url
        ),
    );
    rig.ask("/max", "X-Beta: 1\r\n").expect_status(200);
    rig.get("/max").expect_status(200);
    assert_eq!((origin.asks().len(), other.asks().len()), (1, 1));
    rig.ask("/max", "X-Beta: 2\r\n").expect_hit();
    rig.get("/max").expect_hit();
    // An unsafe request invalidates the responses of all variants.
    rig.send("POST /max HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        .expect_status(200);
    rig.get("/max").expect_no_hit();
    rig.ask("/max", "X-Beta: 1\r\n").expect_no_hit();
}

#[test]
fn responses_to_clients_with_certificates_are_not_shared() {
    const STAFF: &str = "exec 2>&1; set -e
        openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=staff -keyout staff.key -out staff.pem
        openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=alice -keyout alice.key -out alice.csr
        printf 'extendedKeyUsage=clientAuth\\n' > alice.ext
        openssl x509 -req -in alice.csr -CA staff.pem -CAkey staff.key -CAcreateserial -days 2 -extfile alice.ext -out alice.pem";
    let origin = by_path();
    let folder = Folder::new();
    folder.certify();
    let made = Command::new("sh").args(["-c", STAFF]).current_dir(folder.path()).output().unwrap();
    assert!(made.status.success(), "{}", rig::text(&made.stdout));
    let text = format!(
        r#"
        listen = {{ address = "127.0.0.1:0", tls = true }}
        {}
        [[site]]
        hosts = "a.test"
        tls = {{ certificate = "cert.pem", key = "key.pem", client = {{ ca = "staff.pem", required = false }} }}
        [[site.route]]
        proxy = "{}"
        cache = true
        "#,
        as_we_are(),
        origin.url
    );
    let mut command = komainu();
    command.arg("start").arg("-c").arg(folder.write("komainu.toml", text).at("komainu.toml"));
    let rig = Rig::start(command, folder);
    let port = rig.listens.port();
    let (resolve, url) = (format!("a.test:{port}:127.0.0.1"), format!("https://a.test:{port}/max"));
    let get =
        |more: &[&str]| rig::text(&curl(&[&["-k", "--resolve", &resolve, &url][..], more].concat()).stdout);
    let certificate = rig.folder.at("alice.pem");
    let key = rig.folder.at("alice.key");
    let alice = ["--cert", certificate.to_str().unwrap(), "--key", key.to_str().unwrap()];
    let answers = [get(&alice), get(&alice), get(&[]), get(&[])];
    assert_eq!(answers.map(|text| text[..1].to_owned()), ["1", "2", "3", "3"]);
}

#[test]
fn docs_explain_each_failed_public_cache_test() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../");
    let read = |name: &str| std::fs::read_to_string([root, name].concat()).unwrap();
    let missed = read("scripts/cache-tests.txt");
    let docs = read("docs/cache.md");
    let names =
        missed.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split(' ').nth(1));
    for name in names {
        assert!(docs.contains(&format!("`{name}`")), "docs/cache.md does not explain {name}");
    }
}

#[test]
fn no_vary_search_normalizes_the_cache_key() {
    let origin = by_path();
    let mut command = komainu();
    command.args(["run", "--listen", "127.0.0.1:0", "--threads", "2", "--cache", &origin.url]);
    let rig = Rig::start(command, Folder::new());
    rig.get("/alike?b=1&a=2&utm=x").expect(200, "1 GET /alike?b=1&a=2&utm=x HTTP/1.1");
    // The first response announced the normalization, so this one is stored under the normalized key.
    rig.get("/alike?a=2&b=1&utm=y").expect(200, "2 GET /alike?a=2&b=1&utm=y HTTP/1.1");
    for query in ["a=2&b=1", "b=1&a=2", "b=1&utm=z&a=2&utm"] {
        rig.get(&format!("/alike?{query}")).expect(200, "2 GET /alike?a=2&b=1&utm=y HTTP/1.1");
    }
    rig.get("/alike?a=3&b=1").expect(200, "3 GET /alike?a=3&b=1 HTTP/1.1");
    // An unsafe request to one spelling invalidates all of them.
    rig.send("POST /alike?b=1&a=2&utm=q HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        .expect_status(200);
    assert!(rig.get("/alike?a=2&b=1").text().starts_with('5'));
}

#[test]
fn interim_responses_reach_waiting_clients_and_are_not_stored() {
    const GET: &[u8] = b"GET /hints HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    const HINT: &str = "HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\n\r\n";
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let ((came, comes), (steps, next)) = (channel(), channel::<String>());
    let next = Arc::new(Mutex::new(next));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let came = came.clone();
            let next = next.clone();
            std::thread::spawn(move || {
                let mut bytes = [0; 4096];
                while !matches!(stream.read(&mut bytes), Ok(0) | Err(_)) {
                    came.send(()).unwrap();
                    while let Ok(step) = next.lock().unwrap().recv() {
                        stream.write_all(step.as_bytes()).unwrap();
                        if step.ends_with('!') {
                            break;
                        }
                    }
                }
            });
        }
    });
    let route = format!(
        r#"
        [[route]]
        proxy = "{url}"
        cache = true
        "#
    );
    let rig = Rig::config(Folder::new(), &format!("early_hints = \"all\"\n{route}"));
    let mut clients: Vec<_> = (0..3).map(|_| rig.connect()).collect();
    clients[0].write_all(GET).unwrap();
    comes.recv().unwrap();
    clients[1].write_all(GET).unwrap();
    steps.send(HINT.to_owned()).unwrap();
    for client in &mut clients[..2] {
        let hint = read_answer(client);
        assert_eq!((hint.status(), hint.field("Link")), (103, Some("</a.css>; rel=preload")));
    }
    // A client that joins before the final response also gets the 103.
    clients[2].write_all(GET).unwrap();
    assert_eq!(read_answer(&mut clients[2]).status(), 103);
    steps
        .send("HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 6\r\n\r\nwhole!".to_owned())
        .unwrap();
    for client in &mut clients {
        read_answer(client).expect(200, "whole!").expect_no_field("Link");
    }
    eventually("it is stored", || rig.get("/hints").is_hit());
    rig.get("/hints").expect(200, "whole!").expect_no_field("Link");
    // Hints of a possibly private response reach only the client that requested it.
    let personal = "GET /mine HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nCookie: a=b\r\n\r\n";
    let mut clients: Vec<_> = (0..2).map(|_| rig.connect()).collect();
    clients[0].write_all(personal.as_bytes()).unwrap();
    comes.recv().unwrap();
    steps.send(HINT.to_owned()).unwrap();
    assert_eq!(read_answer(&mut clients[0]).status(), 103);
    clients[1].write_all(personal.as_bytes()).unwrap();
    steps
        .send("HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 5\r\n\r\nmine!".to_owned())
        .unwrap();
    for client in &mut clients {
        read_answer(client).expect(200, "mine!");
    }
}

#[test]
fn early_hints_are_sent_to_http2_clients_only_by_default() {
    const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let hint = "HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\n\r\n";
    let origin = Origin::start(move |_| format!("{hint}{}", answer("200 OK", "", "whole")));
    for cached in [&[][..], &["--cache"]] {
        let mut command = komainu();
        command.args(["run", "--h2c", "--listen", "127.0.0.1:0"]).args(cached).arg(&origin.url);
        let rig = Rig::start(command, Folder::new());
        let mut client = rig.connect();
        client.write_all(GET).unwrap();
        read_answer(&mut client).expect(200, "whole").expect_no_field("Link");
        let output = curl(&["-i", "--http2-prior-knowledge", &rig.url("/")]);
        let text = rig::text(&output.stdout);
        assert!(text.starts_with("HTTP/2 103") && text.contains("HTTP/2 200"), "{text}");
    }
    let route = format!(
        r#"
        early_hints = "all"
        [[route]]
        proxy = "{}"
        "#,
        origin.url
    );
    let rig = Rig::config(Folder::new(), &route);
    let mut client = rig.connect();
    client.write_all(GET).unwrap();
    assert_eq!(read_answer(&mut client).status(), 103);
    read_answer(&mut client).expect(200, "whole");
}

#[test]
fn trailers_are_relayed_but_not_stored() {
    let origin = Origin::start(|_| {
        let head = "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nTransfer-Encoding: chunked\r\n";
        format!("{head}Trailer: X-Sum\r\n\r\n5\r\nwhole\r\n0\r\nX-Sum: 9\r\n\r\n")
    });
    let mut command = komainu();
    command.args(["run", "--h2c", "--listen", "127.0.0.1:0", "--cache", &origin.url]);
    let rig = Rig::start(command, Folder::new());
    let raw = |path: &str| {
        let mut client = rig.connect();
        let text = format!(
            "GET {path} HTTP/1.1\r\nHost: localhost\r\nTE: trailers\r\nConnection: TE, close\r\n\r\n"
        );
        client.write_all(text.as_bytes()).unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        answer
    };
    let first = raw("/1");
    assert!(first.contains("fwd=uri-miss; stored") && first.ends_with("0\r\nX-Sum: 9\r\n\r\n"), "{first}");
    eventually("it is stored", || rig.get("/1").is_hit());
    let second = raw("/1");
    assert!(second.contains("Komainu; hit") && !second.contains("X-Sum: 9"), "{second}");
    let output = curl(&["-i", "--http2-prior-knowledge", "-H", "TE: trailers", &rig.url("/2")]);
    assert!(rig::text(&output.stdout).to_lowercase().contains("x-sum: 9"), "{}", rig::text(&output.stdout));
}

#[test]
fn heuristic_lifetime_is_not_applied_with_cookies() {
    let origin = Origin::start(|ask: &Ask| {
        let name = ask.field("Cookie").join(";");
        answer("200 OK", "Last-Modified: Mon, 01 Jan 2024 00:00:00 GMT\r\n", &format!("page of {name}"))
    });
    let rig = Rig::config(
        Folder::new(),
        &format!(
            r#"
            [[route]]
            proxy = "{}"
            cache = true
            "#,
            origin.url
        ),
    );
    for _ in 0..2 {
        assert_eq!(rig.get("/").text(), "page of ");
    }
    assert_eq!(origin.asks().len(), 1, "without cookies it is stored");
    for user in ["a", "b", "a"] {
        assert_eq!(rig.ask("/", &format!("Cookie: user={user}\r\n")).text(), format!("page of user={user}"));
    }
    assert_eq!(rig.get("/").text(), "page of ");
    assert_eq!(origin.asks().len(), 4);
}

#[test]
fn mismatched_304_is_retried_without_condition() {
    let origin = Origin::start(|ask: &Ask| {
        let is_conditional = !ask.field("If-None-Match").is_empty();
        match (is_conditional, ask.field("X-First").is_empty()) {
            (true, _) => answer("304 Not Modified", "ETag: \"v2\"\r\nCache-Control: max-age=60\r\n", ""),
            (false, false) => answer("200 OK", "ETag: \"v1\"\r\nCache-Control: no-cache\r\n", "first"),
            (false, true) => answer("200 OK", "ETag: \"v2\"\r\nCache-Control: max-age=60\r\n", "second"),
        }
    });
    let rig = Rig::config(
        Folder::new(),
        &format!(
            r#"
            [[route]]
            proxy = "{}"
            cache = true
            "#,
            origin.url
        ),
    );
    assert_eq!(rig.ask("/", "X-First: 1\r\n").text(), "first");
    let second = rig.get("/");
    assert_eq!((second.text().as_str(), second.field("ETag")), ("second", Some("\"v2\"")));
    assert_eq!(origin.asks().len(), 3, "the first, with a condition, and without one");
    assert_eq!(rig.get("/").text(), "second");
    assert_eq!(origin.asks().len(), 3);
}

#[test]
fn semicolons_in_cache_control_do_not_share_private_pages() {
    let origin = Origin::start(|ask: &Ask| {
        let value = ask.line().split(' ').nth(1).unwrap().trim_start_matches("/?").replace('+', " ");
        answer(
            "200 OK",
            &format!("Cache-Control: {value}\r\nLast-Modified: Mon, 01 Jan 2024 00:00:00 GMT\r\n"),
            "mine",
        )
    });
    let rule = "cache = { rule = [{ path = \"/*\", ttl = \"1h\" }] }";
    let rig = Rig::config(
        Folder::new(),
        &format!(
            r#"
            [[route]]
            proxy = "{}"
            {rule}
            "#,
            origin.url
        ),
    );
    for value in ["private;+max-age=0", "no-store;", "private+;+max-age=60", "max-age=60;+no-store"] {
        for _ in 0..2 {
            rig.get(&format!("/?{value}")).expect_no_hit();
        }
    }
    assert_eq!(origin.asks().len(), 8);
}
