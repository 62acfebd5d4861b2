//! Known attacks on shared caches, as data, with the expected content of the cache after each. All use one
//! server and one origin, which marks everything as cacheable and echoes the whole request, so that no
//! injected input goes unnoticed.

use crate::origin::{Origin, answer};
use crate::rig;
use crate::rig::{Folder, Rig, as_we_are, curl, komainu};

/// Content of the cache after an attack.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Left {
    /// Nothing is stored: the request bypasses the cache.
    Nothing,
    /// A response without the attacker's input, which did not reach the origin.
    Clean,
    /// A response under a key that contains the attacker's input.
    Apart,
    /// Nothing is stored: this server refuses the request.
    Refused,
}
use Left::{Apart, Clean, Nothing, Refused};

/// Fields that a client adds to `GET PATH`, and the expected content of the cache. No other client may
/// receive `evil`.
const FIELDS: &[(&str, Left)] = &[
    // Fields that override host, scheme or client are not forwarded in cacheable requests.
    ("X-Forwarded-Host: evil", Clean),
    ("X-Forwarded-Host: a\r\nX-Forwarded-Host: evil", Clean),
    ("X-Forwarded-Proto: evil", Clean),
    ("X-Forwarded-Port: evil", Clean),
    ("X-Forwarded-Prefix: /evil", Clean),
    ("X-Forwarded-Path: /evil", Clean),
    ("X-Forwarded-Ssl: evil", Clean),
    ("X-Forwarded-For: evil", Clean),
    ("X-Real-IP: evil", Clean),
    ("Forwarded: host=evil;proto=evil", Clean),
    ("X-Forwarded-Scheme: evil", Nothing),
    ("X-Forwarded-Server: evil", Nothing),
    ("X-Host: evil", Nothing),
    ("X-Original-Host: evil", Nothing),
    ("X-HTTP-Host-Override: evil", Nothing),
    // Fields that override the URL or the method.
    ("X-Original-URL: /evil", Nothing),
    ("X-Rewrite-URL: /evil", Nothing),
    ("X-HTTP-Method-Override: evil", Nothing),
    ("X-HTTP-Method: evil", Nothing),
    ("X-Method-Override: evil", Nothing),
    ("x-http-METHOD-override: evil", Nothing),
    ("X-Forwarded: evil", Nothing),
    ("X-Scheme: evil", Nothing),
    ("X-Override-URL: /evil", Nothing),
    ("X-Middleware-Prefetch: evil", Nothing),
    ("X-Invoke-Status: evil", Nothing),
    // A GET with content, which some applications parse as parameters.
    ("Content-Length: 6\r\n\r\nq=evil", Nothing),
    // Connection-specific fields: fields named by `Connection` do not reach the origin, though a variant may
    // contain them.
    ("Connection: Cookie\r\nCookie: a=evil", Nothing),
    ("Connection: X-Tenant\r\nX-Tenant: evil", Nothing),
    ("Connection: keep-alive, X-Forwarded-Host\r\nX-Forwarded-Host: evil", Nothing),
    ("Upgrade: evil", Nothing),
    ("TE: evil", Clean),
    ("Keep-Alive: evil", Clean),
    ("Proxy-Connection: evil", Clean),
    ("Expect: 100-continue", Clean),
    // Conditions and ranges are evaluated here, and only known content codings are negotiated.
    ("Range: bytes=0-3", Clean),
    ("Range: bytes=5-\r\nIf-Range: \"evil\"", Clean),
    ("If-None-Match: \"evil\"", Clean),
    ("If-Match: *", Clean),
    ("If-Unmodified-Since: Wed, 01 Jan 2020 00:00:00 GMT", Clean),
    ("Accept-Encoding: evil, gzip", Clean),
    // The host is part of the key; a host that the key would normalize bypasses the cache.
    ("Host: evil.test", Apart),
    ("Host: localhost.evil.test:1", Apart),
    ("Host: localhost:80", Nothing),
    ("Host: LOCALHOST", Nothing),
    ("Host: localhost:evil", Refused),
    ("Host: localhost@evil", Refused),
    ("Host: localhost, evil", Refused),
    ("Host: localhost\r\nHost: evil", Refused),
    // Ambiguous syntax is refused.
    ("X-A : evil", Refused),
    ("X-A: \u{7}evil", Refused),
    ("X-A: a\nX-B: evil", Refused),
    (" X-A: evil", Refused),
    ("X-A: a\r\n X-B: evil", Refused),
    ("Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\nevil", Refused),
    // The origin's `Vary` decides: it varies by `X-Varied`, but not by `Origin`, which it echoes as allowed.
    ("Origin: https://evil.test", Apart),
    ("X-Varied: evil", Apart),
    ("X-Varied: \tevil", Apart),
    // Requests that forbid storing bypass the cache.
    ("Cache-Control: no-store\r\nX-A: evil", Nothing),
    ("Authorization: evil", Nothing),
];

/// Targets below `/t`, a target that the origin must not receive on behalf of another client, and the
/// expected content of the cache.
const TARGETS: &[(&str, &str, Left)] = &[
    // The key contains the whole query.
    ("?a=evil", "", Apart),
    ("?a=1;a=evil", "?a=1", Apart),
    ("?a=1&a=evil", "?a=1", Apart),
    ("?a=1&utm_content=evil", "?a=1", Apart),
    ("?evil", "?", Apart),
    // The path is decoded once, for both the key and the origin.
    ("/evi%6c/evil", "", Apart),
    ("/evil/..", "/", Clean),
    ("/evil/%2e%2e/x", "/x", Clean),
    ("/x/..%2fevil", "/x", Refused),
    ("/x%2fevil", "/x", Refused),
    ("/x\\evil", "/x", Refused),
    ("/x%5cevil", "/x", Refused),
    ("/x%00evil", "/x", Refused),
    ("/x/..;/evil", "/x", Refused),
    ("/x%0aevil", "/x", Apart),
    ("/x%0d%0aX-A:%20evil", "/x", Apart),
    ("/x%23evil", "/x", Apart),
    ("/x%3fevil", "/x", Apart),
    ("/x;evil", "/x", Apart),
    ("/x%20evil", "/x", Apart),
    ("//evil", "/x", Apart),
    ("/x#evil", "/x", Refused),
    ("/x evil", "/x", Refused),
];

/// Targets under a rule that leaves `utm_*` out of the key: those parameters are not forwarded to the origin.
const CLOAKED: &[(&str, &str, Left)] = &[
    ("?utm_content=evil", "", Clean),
    ("?a=1&utm_content=evil", "?a=1", Clean),
    ("?utm_content=x;a=evil&a=1", "?a=1", Clean),
    ("?a=1&utm_content=x&utm_content=evil", "?a=1", Clean),
    ("?a=1&%75tm_content=evil", "?a=1", Clean),
    ("?a=1&utm%5fcontent=evil", "?a=1", Clean),
    ("?a=1&utm_content[]=evil", "?a=1", Clean),
    ("?a=1&utm_content=x%26a=evil", "?a=1", Clean),
    ("?a=1?utm_content=evil", "?a=1", Apart),
    ("?a=1;utm_content=evil", "?a=1", Apart),
    ("?a=1%26utm_content=evil", "?a=1", Apart),
    ("?a=1&UTM_content=evil", "?a=1", Apart),
];

/// Paths that an origin treats like `/account` but that look like files: a response stored for a client with
/// a session must not reach other clients (web cache deception).
const DECEIVING: &[&str] = &[
    "/account/x.css",
    "/account.css",
    "/account;x.css",
    "/account;/x.css",
    "/account%3bx.css",
    "/account%2fx.css",
    "/account%2f..%2fx.css",
    "/account/..%2fx.css",
    "/account%00.css",
    "/account%0a.css",
    "/account%23x.css",
    "/account%3fx.css",
    "/account%20x.css",
    "/account?x.css",
    "/x/../account/x.css",
    "/x/%2e%2e/account/x.css",
    "/account\\x.css",
    "/account%5cx.css",
    "/account/x.css%3f",
];

fn reflecting() -> Origin {
    Origin::start(|ask| {
        let oversized = ask.head.len() > 6000;
        let body = format!("{}\r\n\r\n{}", ask.head, String::from_utf8_lossy(&ask.body));
        match ask.line() {
            line if line.contains("/account") || line.contains("/x.css") => {
                answer("200 OK", "Content-Type: text/css\r\n", &body)
            }
            // Typical response of servers to an oversized head.
            _ if oversized => answer("400 Bad Request", "", "too large"),
            _ => {
                let allowed =
                    ask.field("Origin").first().map(|one| format!("Access-Control-Allow-Origin: {one}\r\n"));
                let fields = "Cache-Control: max-age=3600\r\nVary: X-Varied\r\n".to_owned();
                answer("200 OK", &(fields + &allowed.unwrap_or_default()), &body)
            }
        }
    })
}

fn rig(origin: &Origin) -> Rig {
    let url = &origin.url;
    Rig::config(
        Folder::new(),
        &format!(
            r#"
            [[route]]
            path = "/cloaked/*"
            proxy = "{url}"
            cache = {{ rule = [{{ key = {{ ignore_query = "utm_*" }} }}] }}

            [[route]]
            path = "/files/*"
            proxy = "{url}"
            cache = {{ rule = [{{ type = "text/css", ttl = "1h" }}] }}

            [[route]]
            path = "/stripped/*"
            proxy = "{url}"
            cache = {{ rule = [{{ path = "*css*", ttl = "1h", strip_cookies = true }}] }}

            [[route]]
            proxy = "{url}"
            cache = true
            "#
        ),
    )
}

/// Sends an attack twice, then requests `victim` like any other client.
fn attack(
    rig: &Rig,
    origin: &Origin,
    name: &str,
    request: &str,
    victim: &str,
    left: Left,
) -> Result<(), String> {
    let asks = || origin.asks().len();
    let before = asks();
    let first = rig.send(request);
    let status = first.field("Cache-Status").unwrap_or_default().to_owned();
    let passed = asks() - before;
    rig.send(request);
    let again = asks() - before - passed;
    let found = match (first.status(), passed, again) {
        (400.., 0, 0) => Refused,
        (_, 1, 1) if !status.contains("stored") => Nothing,
        (_, 1, 0) if status.contains("stored") && origin.last().head.contains("evil") => Apart,
        (_, 1, 0) if status.contains("stored") => Clean,
        other => return Err(format!("{name:?}: asked {other:?}, {status}")),
    };
    let asked = rig.get(victim);
    let is_safe = asked.status() == 200 && !asked.text().contains("evil");
    if is_safe && found == left {
        Ok(())
    } else {
        Err(format!("{name:?}: {found:?} instead of {left:?}, {status}; another client: {}", asked.text()))
    }
}

fn get(target: &str, fields: &str) -> String {
    let host = if fields.starts_with("Host:") { "" } else { "Host: localhost\r\n" };
    let line = if fields.is_empty() { "" } else { "\r\n" };
    format!("GET {target} HTTP/1.1\r\n{host}Connection: close\r\n{fields}{line}\r\n")
}

#[test]
fn known_attacks_do_not_poison_the_cache() {
    let origin = reflecting();
    let rig = rig(&origin);
    let mut faults = Vec::new();
    for (index, (fields, left)) in FIELDS.iter().enumerate() {
        let path = format!("/f{index}");
        faults.extend(attack(&rig, &origin, fields, &get(&path, fields), &path, *left).err());
    }
    for (place, table) in [("/t", TARGETS), ("/cloaked/", CLOAKED)] {
        for (index, (suffix, victim, left)) in table.iter().enumerate() {
            let target = format!("{place}{index}{suffix}");
            let victim = format!("{place}{index}{victim}");
            faults.extend(attack(&rig, &origin, &target, &get(&target, ""), &victim, *left).err());
        }
    }
    // A target in absolute form overrides `Host`.
    let absolute = get("http://evil.test/abs", "");
    faults.extend(attack(&rig, &origin, "absolute", &absolute, "/abs", Apart).err());
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    // The origin refuses an oversized head (CPDoS); the refusal must reach only the attacker.
    for n in [3000, 6000] {
        let path = format!("/large{n}");
        rig.ask(&path, &format!("X-Large: {}\r\n", "x".repeat(n)));
        let victim = rig.get(&path);
        victim.expect_status(200);
    }
}

/// Fields listed in the documentation, with the expected result for a request that contains one.
fn documented() -> Vec<(String, Left)> {
    let text = include_str!("../../../../docs/cache.md");
    let (_, section) = text.split_once("### Fields that no key holds").unwrap();
    let rows =
        section.lines().take_while(|line| !line.starts_with('#')).filter(|line| line.starts_with("| "));
    let mut fields = Vec::new();
    for row in rows {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let left = if cells[3] == "the request passes the cache" { Nothing } else { Clean };
        let names = cells[2].split('`').skip(1).step_by(2).filter(|name| !name.ends_with('*'));
        fields.extend(names.map(|name| (name.to_owned(), left)));
    }
    fields
}

#[test]
fn documented_fields_in_every_spelling_do_not_poison_cache() {
    let origin = reflecting();
    // A proxy that forwards field names with underscores.
    let rig = Rig::config(
        Folder::new(),
        &format!(
            r#"
            [[route]]
            proxy = {{ to = "{}", underscores = true }}
            cache = true
            "#,
            origin.url
        ),
    );
    let mut faults = Vec::new();
    let fields = documented();
    assert!(fields.len() > 90, "{}", fields.len());
    for (index, (name, left)) in fields.iter().enumerate() {
        for (spelling, name) in
            [name.clone(), name.to_uppercase(), name.replace('-', "_")].into_iter().enumerate()
        {
            let value = match name.as_str() {
                "Range" | "RANGE" => "bytes=0-3 evil",
                "Accept-Encoding" | "ACCEPT-ENCODING" => "gzip, evil",
                "Forwarded" | "FORWARDED" => "host=evil",
                _ => "/evil",
            };
            // The underscore spelling of a known field is never forwarded.
            let is_known = matches!(name.as_str(), "Accept_Encoding" | "X_Real_IP");
            let path = format!("/d{index}/{spelling}");
            let left = if is_known { Clean } else { *left };
            let request = get(&path, &format!("{name}: {value}"));
            faults.extend(attack(&rig, &origin, &name, &request, &path, left).err());
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn private_pages_with_file_like_paths_are_not_shared() {
    let origin = reflecting();
    let rig = rig(&origin);
    for place in ["/files", "/stripped"] {
        for path in DECEIVING {
            for field in ["Cookie: session=evil\r\n", "Authorization: evil\r\n"] {
                let target = format!("{place}{path}");
                rig.ask(&target, field);
                let other = rig.get(&target);
                assert!(!other.text().contains("evil"), "{target} {field}");
            }
        }
    }
    // The rules do store responses to requests without a session.
    for path in ["/files/plain/x.css", "/stripped/plain/x.css"] {
        rig.get(path).expect_status(200);
        rig.get(path).expect_status(200).expect_hit();
    }
}

#[test]
fn http2_requests_do_not_poison_the_cache() {
    let origin = reflecting();
    let folder = Folder::new();
    let listen = "listen = { address = \"127.0.0.1:0\", h2c = true }";
    let text = format!(
        r#"
        {listen}
        {}
        [[route]]
        proxy = "{}"
        cache = true
        "#,
        as_we_are(),
        origin.url
    );
    let mut command = komainu();
    command.arg("start").arg("-c").arg(folder.write("komainu.toml", text).at("komainu.toml"));
    let rig = Rig::start(command, folder);
    if !rig::text(&curl(&["--version"]).stdout).contains("HTTP2") {
        println!("SKIPPED: this curl knows no HTTP/2");
        return;
    }
    let ask = |path: &str, more: &[&str]| {
        let url = rig.url(path);
        let arguments = [&["--http2-prior-knowledge", &url][..], more].concat();
        rig::text(&curl(&arguments).stdout)
    };
    for (index, more) in [
        &["-H", "Host: evil.test"][..],
        &["-H", "X-Forwarded-Host: evil"],
        &["-H", "X-HTTP-Method-Override: evil"],
        &["-X", "GET", "-d", "evil"],
        &["-H", "X-A: evil", "-H", "Cache-Control: no-store"],
    ]
    .iter()
    .enumerate()
    {
        let path = format!("/h{index}");
        ask(&path, more);
        let victim = ask(&path, &[]);
        assert!(victim.contains("GET") && !victim.contains("evil"), "{more:?}: {victim}");
    }
}
