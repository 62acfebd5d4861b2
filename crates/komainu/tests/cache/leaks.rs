//! Fields of one client's response that must not reach another client, whether it waits for the same response
//! or finds a stored one.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use crate::origin::{Ask, Origin, answer};
use crate::rig::{Folder, Rig, eventually};

const PATIENCE: Duration = Duration::from_secs(60);
/// Prefix of a text that only the client named in `X-User` may receive.
const SECRET: &str = "SECRET-OF-";

/// A server with a cache. The origin delays its response to a request with `X-Hold`.
struct SharedCache {
    rig: Rig,
    origin: Origin,
    asked: Receiver<()>,
    release: Sender<()>,
}

/// The secret of the request's user.
fn secret(ask: &Ask) -> String {
    format!("{SECRET}{}", ask.field("X-User").join(""))
}

impl SharedCache {
    fn start(options: &str, respond: impl Fn(&Ask) -> String + Send + Sync + 'static) -> SharedCache {
        let ((came, asked), (release, held)) = (channel(), channel());
        let came = Mutex::new(came);
        let held = Mutex::new(held);
        let origin = Origin::start(move |ask| {
            if !ask.field("X-Hold").is_empty() {
                came.lock().unwrap().send(()).unwrap();
                held.lock().unwrap().recv().unwrap();
            }
            respond(ask)
        });
        // With a single thread, earlier requests have been read once a later one is answered.
        let route = format!(
            r#"
            threads = 1
            early_hints = "all"
            error_pages = {{ "4xx" = "error.html", "5xx" = "error.html" }}

            [[route]]
            path = "/ready"
            respond = 204

            [[route]]
            proxy = "{}"
            cache = true
            {options}
            "#,
            origin.url
        );
        let folder = Folder::new();
        folder.write("error.html", "sorry");
        SharedCache { rig: Rig::config(folder, &route), origin, asked, release }
    }

    /// Returns both clients' responses; the second client waits for the first one's response.
    fn both(&self, request: &str, fields: [&str; 2]) -> [String; 2] {
        let mut clients = [self.rig.connect(), self.rig.connect()];
        let send = |client: &mut TcpStream, fields: &str| {
            let text = format!(
                "{request} HTTP/1.1\r\nHost: localhost\r\nTE: trailers\r\nConnection: TE, close\r\n{fields}\r\n"
            );
            client.write_all(text.as_bytes()).unwrap();
        };
        send(&mut clients[0], &format!("X-User: one\r\nX-Hold: 1\r\n{}", fields[0]));
        self.asked.recv_timeout(PATIENCE).unwrap();
        send(&mut clients[1], &format!("X-User: other\r\n{}", fields[1]));
        self.rig.get("/ready").expect_status(204);
        self.release.send(()).unwrap();
        clients.map(|mut client| {
            let mut all = String::new();
            client.read_to_string(&mut all).unwrap();
            all
        })
    }

    /// Like `both`, for a target: the first client gets its own text if `has_own`; no other client ever does.
    #[track_caller]
    fn expect_apart(&self, target: &str, has_own: bool) {
        let [one, other] = self.both(&format!("GET {target}"), ["", ""]);
        let own = format!("{SECRET}one");
        assert_eq!(one.contains(&own), has_own, "{target}: {one}");
        let later = [self.rig.get(target), self.rig.ask(target, "X-User: third\r\n")];
        for all in [other, later[0].head.clone(), later[1].head.clone()] {
            assert!(all.starts_with("HTTP/1.1 ") && !all.contains(&own), "{target}: {all}");
        }
    }
}

/// The value of `Cache-Control` that the target's query requests.
fn stated(ask: &Ask) -> String {
    let target = ask.line().split(' ').nth(1).unwrap();
    target.split_once('?').map_or("", |(_, query)| query).replace('+', " ").replace("%22", "\"")
}

/// Fields of a response that is stale on arrival but stored.
const STALE: &str = "ETag: \"v1\"\r\nAge: 20\r\nCache-Control: max-age=10, stale-if-error=60\r\n";
/// Values of `Cache-Control` that prevent sharing all or part of the response.
const APART: [&str; 7] = [
    "private",
    "no-store",
    "max-age=60,+private",
    "max-age=60,+private=%22x-mine%22",
    "max-age=60,+no-cache=%22x-mine%22",
    "max-age=0",
    "no-cache",
];

#[test]
fn fields_of_private_304_reach_only_the_requesting_client() {
    let cache = SharedCache::start("", |ask| {
        let secret = secret(ask);
        let fields = match stated(ask).as_str() {
            "cookie" => format!("Set-Cookie: sid={secret}\r\n"),
            "authorized" => format!("Cache-Control: max-age=60\r\nX-Mine: {secret}\r\n"),
            stated => format!("Cache-Control: {stated}\r\nX-Mine: {secret}\r\n"),
        };
        match (ask.field("If-None-Match").is_empty(), ask.field("X-First").is_empty()) {
            (false, _) => format!("HTTP/1.1 304 Not Modified\r\nETag: \"v1\"\r\n{fields}\r\n"),
            (true, false) => answer("200 OK", STALE, "whole"),
            (true, true) => answer("200 OK", &format!("ETag: \"v1\"\r\n{fields}"), "whole"),
        }
    });
    for stated in APART.into_iter().chain(["cookie"]) {
        let target = format!("/?{stated}");
        cache.rig.ask(&target, "X-First: 1\r\n").expect(200, "whole");
        cache.expect_apart(&target, true);
    }
    cache.rig.ask("/?authorized", "X-First: 1\r\n").expect(200, "whole");
    let [one, other] = cache.both("GET /?authorized", ["Authorization: Basic eDp5\r\n", ""]);
    assert!(one.contains("SECRET-OF-one") && !other.contains("SECRET-OF-one"), "{one}\n{other}");
}

#[test]
fn fields_of_private_200_reach_only_the_requesting_client() {
    let cache = SharedCache::start("", |ask| {
        let secret = secret(ask);
        let fields = match stated(ask).as_str() {
            "cookie" => format!("Cache-Control: max-age=60\r\nSet-Cookie: sid={secret}\r\n"),
            "vary" => format!("Cache-Control: max-age=60\r\nVary: X-User\r\nX-Mine: {secret}\r\n"),
            // Fields that `Connection` may not name.
            "connection-cookie" => {
                format!("Connection: Set-Cookie\r\nCache-Control: max-age=60\r\nSet-Cookie: sid={secret}\r\n")
            }
            "connection-vary" => {
                format!(
                    "Connection: Vary\r\nCache-Control: max-age=60\r\nVary: X-User\r\nX-Mine: {secret}\r\n"
                )
            }
            "connection-cache" => format!(
                "Connection: Cache-Control\r\nCache-Control: private\r\nExpires: Thu, 01 Jan 2037 00:00:00 GMT\r\n\
                 X-Mine: {secret}\r\n"
            ),
            "proxy" => format!("Cache-Control: max-age=60\r\nProxy-Authentication-Info: {secret}\r\n"),
            stated => format!("Cache-Control: {stated}\r\nX-Mine: {secret}\r\n"),
        };
        answer("200 OK", &fields, "whole")
    });
    for stated in APART.into_iter().chain([
        "cookie",
        "vary",
        "connection-cookie",
        "connection-vary",
        "connection-cache",
    ]) {
        cache.expect_apart(&format!("/?{stated}"), true);
    }
    let [one, other] = cache.both("GET /?proxy", ["", ""]);
    assert!(one.contains("whole") && !other.contains("SECRET-OF-one"), "{one}\n{other}");
}

#[test]
fn partial_responses_reach_only_the_requesting_client() {
    let cache = SharedCache::start("", |ask| {
        let fields = "Cache-Control: max-age=60\r\nContent-Range: bytes 0-4/10\r\n";
        answer("206 Partial Content", &format!("{fields}X-Mine: {}\r\n", secret(ask)), "whole")
    });
    cache.expect_apart("/", true);
}

#[test]
fn head_responses_reach_only_the_requesting_client() {
    let cache = SharedCache::start("", |ask| {
        let fields = format!("Cache-Control: max-age=60\r\nX-Mine: {}\r\n", secret(ask));
        if ask.line().starts_with("HEAD") {
            format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: 5\r\n\r\n")
        } else {
            answer("200 OK", &fields, "whole")
        }
    });
    let [one, other] = cache.both("HEAD /", ["", ""]);
    assert!(one.contains("SECRET-OF-one") && other.contains("SECRET-OF-other"), "{one}\n{other}");
    assert!(!cache.rig.get("/").head.contains("SECRET-OF-o"), "it is asked for");
}

#[test]
fn interim_fields_other_than_link_reach_only_their_client() {
    let cache = SharedCache::start("", |ask| {
        let field = stated(ask);
        let interim =
            format!("HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n{field}: a={}\r\n\r\n", secret(ask));
        format!("{interim}{}", answer("200 OK", "Cache-Control: max-age=60\r\n", "whole"))
    });
    for field in ["Set-Cookie", "X-Mine"] {
        let [one, other] = cache.both(&format!("GET /?{field}"), ["", ""]);
        assert!(one.contains("SECRET-OF-one") && one.contains("whole"), "{one}");
        assert!(!other.contains("SECRET-OF-one") && other.contains("whole"), "{other}");
    }
    assert_eq!(cache.origin.asks().len(), 2, "the responses are shared");
}

#[test]
fn trailers_reach_only_the_requesting_client() {
    let cache = SharedCache::start("", |ask| {
        let head =
            "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nTransfer-Encoding: chunked\r\nTrailer: X-Mine";
        format!("{head}\r\n\r\n5\r\nwhole\r\n0\r\nX-Mine: {}\r\n\r\n", secret(ask))
    });
    cache.expect_apart("/", true);
    assert_eq!(cache.origin.asks().len(), 1, "the response is shared");
}

#[test]
fn error_fields_reach_only_the_requesting_client() {
    let respond = |ask: &Ask| {
        let secret = secret(ask);
        let fields = format!("WWW-Authenticate: Basic realm=\"{secret}\"\r\nSet-Cookie: sid={secret}\r\n");
        answer(&format!("{} Said", stated(ask)), &fields, "down")
    };
    for is_replaced in ["false", "true"] {
        let cache = SharedCache::start(&format!("intercept_errors = {is_replaced}"), respond);
        for status in ["401", "403", "404", "500", "503"] {
            cache.expect_apart(&format!("/?{status}"), true);
        }
    }
}

#[test]
fn fields_of_error_replaced_by_stale_response_reach_no_client() {
    let cache = SharedCache::start("", |ask| {
        if ask.field("X-First").is_empty() {
            answer("503 Down", &format!("Set-Cookie: sid={}\r\n", secret(ask)), "down")
        } else {
            answer("200 OK", STALE, "whole")
        }
    });
    cache.rig.ask("/", "X-First: 1\r\n").expect(200, "whole");
    cache.expect_apart("/", false);
}

#[test]
fn uncacheable_response_invalidates_the_stale_one() {
    let cache = SharedCache::start("", |ask| {
        let query = stated(ask);
        let secret = secret(ask);
        let (status, fields) = query.split_once(' ').unwrap();
        let fields = match fields {
            "cookie" => format!("Cache-Control: max-age=60\r\nSet-Cookie: sid={secret}\r\n"),
            stated => format!("Cache-Control: {stated}\r\n"),
        };
        if ask.field("X-First").is_empty() {
            answer(&format!("{status} Said"), &fields, "new")
        } else {
            answer(
                "200 OK",
                "Age: 20\r\nCache-Control: max-age=10, stale-while-revalidate=86400\r\n",
                "whole",
            )
        }
    });
    let served = |target: &str| String::from_utf8(cache.rig.get(target).body).unwrap();
    let asks = |target: &str| {
        let line = format!("GET {target} HTTP/1.1");
        cache.origin.asks().iter().filter(|ask| ask.line() == line).count()
    };
    for stated in ["200+private", "200+no-store", "200+cookie", "301+no-store", "404+private", "410+no-store"]
    {
        let target = format!("/?{stated}");
        cache.rig.ask(&target, "X-First: 1\r\n").expect(200, "whole");
        // Served while it is revalidated; after that nothing is stored, and each request goes to the origin.
        assert_eq!(served(&target), "whole", "{stated}");
        eventually(&format!("{stated}: it is withdrawn"), || served(&target) == "new");
    }
    // Temporary errors and partial responses do not invalidate the stored response.
    for stated in ["403+no-store", "429+no-store", "500+no-store", "503+private", "206+no-store"] {
        let target = format!("/?{stated}");
        cache.rig.ask(&target, "X-First: 1\r\n").expect(200, "whole");
        // By the third request, the outcome of the second has been processed.
        eventually(&format!("{stated}: it is asked for"), || {
            assert_eq!(served(&target), "whole", "{stated}");
            asks(&target) >= 3
        });
    }
}
