//! `auth = { ask = ... }`: authorization subrequests. The stubs respond as Authelia and oauth2-proxy document
//! their endpoints.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};

use crate::origin::{Ask, Origin, answer, ok};
use crate::rig;
use crate::rig::{Folder, Rig, curl, eventually, nobody, text};

/// Starts an origin that responds with the user and the groups it received.
fn upstream() -> Origin {
    Origin::start(|ask| ok(&format!("{:?} {:?}", ask.field("Remote-User"), ask.field("Remote-Groups"))))
}

/// A stub of Authelia: `/api/authz/forward-auth` and the older `/api/verify` redirect browsers to the portal,
/// `/api/authz/auth-request` answers 401 with `Location`.
fn authelia() -> Origin {
    Origin::start(|ask| {
        let session = ask.field("Cookie").iter().any(|cookies| cookies.contains("authelia_session=alice"));
        if session {
            return answer(
                "200 OK",
                "Remote-User: alice\r\nRemote-Groups: admins,dev\r\nRemote-Name: Alice\r\n",
                "200 OK",
            );
        }
        let one = |name: &str| ask.field(name).first().copied().unwrap_or_default().to_owned();
        let of_nginx = ask.line().contains("auth-request");
        let url = match of_nginx {
            true => one("X-Original-URL"),
            false => format!(
                "{}://{}{}",
                one("X-Forwarded-Proto"),
                one("X-Forwarded-Host"),
                one("X-Forwarded-Uri")
            ),
        };
        let method = one(if of_nginx { "X-Original-Method" } else { "X-Forwarded-Method" });
        let location =
            format!("Location: https://auth.test/?rd={url}&rm={method}\r\nContent-Type: text/html\r\n");
        let status =
            if of_nginx || !one("Accept").contains("html") { "401 Unauthorized" } else { "302 Found" };
        answer(status, &location, "<a>sign in</a>")
    })
}

/// A stub of oauth2-proxy: `/oauth2/auth`, with `--set-xauthrequest` and a renewed cookie, and
/// `/oauth2/start`.
fn oauth2_proxy() -> Origin {
    Origin::start(|ask| match ask.line().split(' ').nth(1).unwrap() {
        "/oauth2/auth" => match ask.field("Cookie").first() {
            Some(&"_oauth2_proxy=renew") => answer(
                "202 Accepted",
                "X-Auth-Request-User: bob\r\nX-Forwarded-User: bob\r\nSet-Cookie: _oauth2_proxy=new; HttpOnly\r\n",
                "",
            ),
            Some(&"_oauth2_proxy=good") => {
                answer("202 Accepted", "X-Auth-Request-User: bob\r\nX-Forwarded-User: bob\r\n", "")
            }
            _ => answer("401 Unauthorized", "WWW-Authenticate: Basic realm=\"x\"\r\n", "Unauthorized\n"),
        },
        path => ok(path),
    })
}

fn started(text: &str) -> Rig {
    Rig::config(Folder::new(), &format!("threads = 1\n{text}"))
}

const BROWSER: &str = "Accept: text/html,*/*;q=0.8\r\n";
const ALICE: &str = "Cookie: authelia_session=alice\r\n";

#[test]
fn authelia_endpoints_authorize_requests() {
    let auth = authelia();
    let origin = upstream();
    let route = |path: &str, ask: &str| {
        format!(
            r#"
            [[route]]
            path = "{path}/*"
            proxy = "{}"
            auth = {{ ask = "{}{ask}", response_headers = ["Remote-User", "Remote-Groups", "Remote-Name", "Remote-Email"]{} }}
            "#,
            origin.url,
            auth.url,
            if path == "/nginx" { ", sign_in = \"$location\"" } else { "" }
        )
    };
    let rig = started(
        &[
            route("/new", "/api/authz/forward-auth"),
            route("/old", "/api/verify?rd=https://auth.test/"),
            route("/nginx", "/api/authz/auth-request"),
        ]
        .concat(),
    );
    for (path, ask) in [
        ("/new", "/api/authz/forward-auth"),
        ("/old", "/api/verify?rd=https://auth.test/"),
        ("/nginx", "/api/authz/auth-request"),
    ] {
        let target = format!("{path}/a%20b?c=d&e");
        let sent = rig.ask(&target, BROWSER);
        let url = format!("https://auth.test/?rd={}://localhost{target}&rm=GET", rig.scheme());
        sent.expect_status(302).expect_field("Location", &url).expect_field("Cache-Control", "no-store");
        assert_eq!(auth.last().line(), format!("GET {ask} HTTP/1.1"));
        rig.ask(&target, &format!("{BROWSER}{ALICE}")).expect(200, "[\"alice\"] [\"admins,dev\"]");
    }
    assert_eq!(origin.asks().len(), 3);
    // Clients other than browsers get the status.
    let plain = rig.ask("/new/", "Accept: application/json\r\n");
    plain.expect(401, "<a>sign in</a>").expect_field("Content-Type", "text/html");
    // The body is not sent in the subrequest, but forwarded once the request is authorized.
    let posted = rig.send(&format!(
        "POST /new/x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{ALICE}Content-Length: 4\r\nIf-None-Match: \"x\"\r\n\
         Range: bytes=0-1\r\nX-Forwarded-Uri: /open\r\nX-Original-URL: http://localhost/open\r\nX_Original_URL: /open\r\n\r\nbody"
    ));
    posted.expect(200, "[\"alice\"] [\"admins,dev\"]");
    assert_eq!(text(&origin.last().body), "body");
    let asked = auth.last();
    assert_eq!((asked.line(), asked.body.len()), ("GET /api/authz/forward-auth HTTP/1.1", 0));
    let one = |name: &str| asked.field(name).join("|");
    assert_eq!((one("X-Forwarded-Method"), one("X-Original-Method")), ("POST".into(), "POST".into()));
    assert_eq!((one("X-Forwarded-Uri"), one("X-Forwarded-Host")), ("/new/x".into(), "localhost".into()));
    assert_eq!((one("X-Forwarded-For"), one("X-Real-IP")), ("127.0.0.1".into(), "127.0.0.1".into()));
    assert_eq!(one("X-Original-URL"), format!("{}://localhost/new/x", rig.scheme()));
    for absent in ["Content-Length", "If-None-Match", "Range", "X_Original_URL", "Connection"] {
        assert!(asked.field(absent).is_empty(), "{absent} in {}", asked.head);
    }
    // Each route needs at most one connection for its subrequests.
    assert!(auth.connections() <= 3 && auth.asks().len() == 8, "connections are kept");
}

#[test]
fn oauth2_proxy_authorizes_requests_as_documented() {
    let auth = oauth2_proxy();
    let origin = Origin::start(|ask| ok(&format!("{:?}", ask.field("X-Forwarded-User"))));
    let rig = started(&format!(
        r#"
        [[site]]
        auth = {{ ask = "{0}/oauth2/auth", response_headers = ["X-Auth-Request-User", "X-Forwarded-User"], sign_in = "/oauth2/start?rd=$url" }}

        [[site.route]]
        path = "/oauth2/*"
        auth = false
        proxy = "{0}"

        [[site.route]]
        path = "/open"
        auth = false
        proxy = "{1}"

        [[site.route]]
        proxy = "{1}"
        "#,
        auth.url, origin.url
    ));
    let away = rig.ask("/a?b=c&d", BROWSER);
    let url = if rig.scheme() == "https" { "https" } else { "http" };
    away.expect_status(302)
        .expect_field("Location", &format!("/oauth2/start?rd={url}%3A%2F%2Flocalhost%2Fa%3Fb%3Dc%26d"));
    rig.get("/oauth2/start").expect(200, "/oauth2/start");
    let post = "POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
    // A WebSocket handshake is not a page, so it is not redirected.
    let upgrade = "Connection: Upgrade, close\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n";
    rig.send(&format!("GET /a HTTP/1.1\r\nHost: localhost\r\n{upgrade}{BROWSER}\r\n")).expect_status(401);
    rig.send(post).expect(401, "Unauthorized\n").expect_field("WWW-Authenticate", "Basic realm=\"x\"");
    rig.ask("/", "Cookie: _oauth2_proxy=good\r\n").expect(200, "[\"bob\"]").expect_no_field("Set-Cookie");
    rig.ask("/", "Cookie: _oauth2_proxy=renew\r\n")
        .expect(200, "[\"bob\"]")
        .expect_field("Set-Cookie", "_oauth2_proxy=new; HttpOnly");
    // On a route without `auth`, clients cannot claim an identity.
    rig.ask("/open", "X-Forwarded-User: root\r\nX_Forwarded_User: root\r\n").expect(200, "[]");
}

/// A field that a route's condition evaluates is not forwarded in another spelling.
#[test]
fn other_spellings_of_condition_fields_are_not_forwarded() {
    let origin = Origin::start(|ask| ok(&ask.head));
    let rig = Rig::config(
        Folder::new(),
        &format!(
            r#"
            [[route]]
            header = {{ X-Admin = true }}
            respond = 403

            [[route]]
            path = "/not/*"
            not = {{ header = {{ X-Debug = true }} }}
            proxy = {{ to = "{0}", underscores = true }}

            [[route]]
            path = "/not/*"
            respond = 403

            [[route]]
            proxy = {{ to = "{0}", underscores = true }}
            "#,
            origin.url
        ),
    );
    for (path, name) in [("/", "X-Admin"), ("/not/a", "X-Debug")] {
        rig.ask(path, &format!("{name}: yes\r\n")).expect_status(403);
        for spelling in
            [name.replace('-', "_"), name.replace('-', "."), name.to_uppercase().replace('-', "_")]
        {
            let head = rig
                .ask(path, &format!("{spelling}: smuggled\r\nX_Other: passed\r\n"))
                .expect_status(200)
                .text();
            assert!(head.contains("X_Other: passed") && !head.contains("smuggled"), "{head}");
        }
    }
}

#[test]
fn clients_cannot_forge_identity_fields() {
    let auth = Origin::start(|ask| match ask.field("Cookie").first() {
        Some(&"user=alice") => answer("200 OK", "Remote-User: alice\r\n", ""),
        _ => answer("200 OK", "", ""),
    });
    let origin = Origin::start(|ask| ok(&ask.head));
    let rig = Rig::config(
        Folder::new(),
        &format!(
            r#"
            threads = 1
            [[route]]
            proxy = {{ to = "{}", underscores = true }}
            auth = {{ ask = "{}", response_headers = ["Remote-User"] }}
            "#,
            origin.url, auth.url
        ),
    );
    const SPELLINGS: [&str; 7] = [
        "Remote-User",
        "REMOTE-USER",
        "remote-user",
        "Remote_User",
        "remote_user",
        "REMOTE_USER",
        "Remote.User",
    ];
    let claims = |ask: &Ask| {
        let lines = ask
            .head
            .lines()
            .filter(|line| line.to_ascii_lowercase().replace(['_', '.'], "-").starts_with("remote-user"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    for spelling in SPELLINGS {
        rig.ask("/", &format!("{spelling}: root\r\n{spelling}: root\r\n")).expect_status(200);
        assert!(claims(&origin.last()).is_empty(), "{}", origin.last().head);
        rig.ask("/", &format!("{spelling}: root\r\nCookie: user=alice\r\n")).expect_status(200);
        let claimed = claims(&origin.last()).join("|").to_ascii_lowercase();
        assert_eq!(claimed, "remote-user: alice", "{}", origin.last().head);
    }
    // A field named by `Connection` would be removed, and some servers merge trailers into the head.
    rig.send(
        "GET / HTTP/1.1\r\nHost: localhost\r\nCookie: user=alice\r\nConnection: close, Remote-User\r\n\r\n",
    );
    assert_eq!(claims(&origin.last()).len(), 1);
    let _ = rig.send(
        "POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTE: trailers\r\nTrailer: Remote-User\r\n\
         Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nRemote-User: root\r\nX-Fine: 1\r\n\r\n",
    );
    assert!(claims(&origin.last()).is_empty());
}

#[test]
fn clients_cannot_forge_identity_fields_over_http2() {
    let auth = Origin::start(|_| answer("200 OK", "", ""));
    let origin = Origin::start(|ask| ok(&ask.head));
    let folder = Folder::new();
    folder.write(
        "k.toml",
        format!(
            r#"
            {}
            threads = 1
            listen = {{ address = "127.0.0.1:0", h2c = true }}
            [[route]]
            proxy = {{ to = "{}", underscores = true }}
            auth = {{ ask = "{}", response_headers = ["Remote-User"] }}
            "#,
            rig::as_we_are(),
            origin.url,
            auth.url
        ),
    );
    let mut command = rig::komainu();
    command.arg("start").arg("-c").arg(folder.at("k.toml"));
    let rig = Rig::start(command, folder);
    let url = format!("http://{}/", rig.listens);
    let output = curl(&[
        "--http2-prior-knowledge",
        "-w",
        "%{http_version} %{http_code}",
        &url,
        "-H",
        "remote-user: a",
        "-H",
        "remote_user: b",
        "-H",
        "remote.user: c",
        "-H",
        "X-Else: d",
    ]);
    let shown = text(&output.stdout);
    assert!(shown.ends_with("2 200") && shown.to_ascii_lowercase().contains("x-else: d"), "{shown}");
    assert!(!shown.to_ascii_lowercase().contains("remote"), "{shown}");
}

#[test]
fn requests_fail_closed_without_a_valid_auth_answer() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let flood = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut head = [0; 4096];
            let count = stream.read(&mut head).unwrap();
            let status = if head[..count].starts_with(b"GET /in") { "200 OK" } else { "403 Forbidden" };
            let _ = write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 100000000\r\n\r\n");
            let piece = [b'x'; 65536];
            while stream.write_all(&piece).is_ok() {}
        }
    });
    let odd = Origin::start(|ask| match ask.line().split(' ').nth(1).unwrap() {
        "/close" => String::new(),
        "/rubbish" => "nonsense\r\n\r\n".into(),
        "/304" => "HTTP/1.1 304 Not Modified\r\n\r\n".into(),
        "/switch" => "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n".into(),
        "/short" => "HTTP/1.1 403 Forbidden\r\nContent-Length: 10\r\nConnection: close\r\n\r\nx".into(),
        "/split" => answer("403 Forbidden", "X-Accel-Redirect: /secret\r\nServer: other\r\n", "no"),
        _ => answer("500 Oh", "", "no"),
    });
    // An authorization server that never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let origin = Origin::start(|_| ok("secret"));
    let mut config = String::new();
    let mut add = |path: &str, url: String| {
        config.push_str(&format!(
            r#"
            [[route]]
            path = "{path}"
            proxy = "{}"
            auth = {{ ask = "{url}", timeout = "{}" }}
            "#,
            origin.url,
            if matches!(path, "/silent" | "/short") { "1s" } else { "30s" }
        ));
    };
    add("/flood", format!("http://{flood}/"));
    add("/in", format!("http://{flood}/in"));
    add("/silent", format!("http://{}/", silent.local_addr().unwrap()));
    add("/dead", format!("http://{}/", nobody()));
    for path in ["/close", "/rubbish", "/304", "/switch", "/short", "/split", "/500"] {
        add(path, format!("{}{path}", odd.url));
    }
    let rig = started(&config);
    for (path, status) in [
        ("/flood", 502),
        ("/silent", 504),
        ("/dead", 502),
        ("/close", 502),
        ("/rubbish", 502),
        ("/304", 502),
        ("/switch", 502),
        ("/500", 500),
    ] {
        let answer = rig.get(path);
        assert_eq!(answer.status(), status, "{path}: {}", answer.text());
        answer.expect_field("Cache-Control", "no-store");
    }
    // An answer that stops within or before the head runs into the timeout.
    assert!(matches!(rig.get("/short").status(), 502 | 504));
    rig.get("/split").expect(403, "no").expect_no_field("X-Accel-Redirect");
    assert!(origin.asks().is_empty());
    // The head of a 2xx answer is sufficient, however large the body.
    rig.get("/in").expect(200, "secret");
    eventually("the log says what is wrong", || rig.reported().contains("`auth.ask` /"));
}

/// Content without end that an authentication server may send until its connection is closed.
const ENDLESS_BYTES_MAX: usize = 32 << 20;

/// Starts an authentication server whose content never ends, and reports the bytes that it could send of each answer.
/// The path gives the status, and whether the content arrives in large chunks (`/200/flood`), until the connection is
/// closed (`/200/close`) or slowly (`/200/drip`).
fn endless_auth_server() -> (String, Receiver<(String, usize)>) {
    let listener = rig::listener();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (sent, received) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let sent = sent.clone();
            std::thread::spawn(move || {
                let mut head = [0; 4096];
                let count = stream.read(&mut head).unwrap_or(0);
                let path = text(&head[..count]).split(' ').nth(1).unwrap_or_default().to_owned();
                let Some((status, kind)) = path.trim_start_matches('/').split_once('/') else { return };
                let (framing, piece, pause) = match kind {
                    "flood" => ("Transfer-Encoding: chunked\r\n", "1000\r\n", 0),
                    "drip" => ("Transfer-Encoding: chunked\r\n", "1\r\n", 20),
                    _ => ("Connection: close\r\n", "", 0),
                };
                let length = usize::from_str_radix(piece.trim_end(), 16).unwrap_or(0x1000);
                let end = if piece.is_empty() { "" } else { "\r\n" };
                let piece = format!("{piece}{}{end}", "x".repeat(length));
                let mut next = format!("HTTP/1.1 {status} X\r\n{framing}\r\n");
                let mut bytes = 0;
                while bytes < ENDLESS_BYTES_MAX && stream.write_all(next.as_bytes()).is_ok() {
                    bytes += next.len();
                    next.clone_from(&piece);
                    std::thread::sleep(std::time::Duration::from_millis(pause));
                }
                let _ = sent.send((path, bytes));
            });
        }
    });
    (url, received)
}

#[test]
fn endless_auth_answers_are_given_up() {
    let (url, sent) = endless_auth_server();
    let origin = Origin::start(|_| ok("secret"));
    let kinds =
        ["/200/flood", "/200/close", "/200/drip", "/403/flood", "/403/close", "/403/drip", "/302/drip"];
    let route = |path: &&str| {
        format!(
            r#"
            [[route]]
            path = "{path}"
            proxy = "{}"
            auth = {{ ask = "{url}{path}", timeout = "{}" }}
            "#,
            origin.url,
            if path.ends_with("drip") { "500ms" } else { "30s" }
        )
    };
    let rig = started(&kinds.iter().map(route).collect::<String>());
    for path in kinds {
        let answer = rig.get(path);
        match &path[..4] {
            // The head of a 2xx answer decides, and its content is read for `timeout` at most.
            "/200" => _ = answer.expect(200, "secret"),
            _ => assert!(matches!(answer.status(), 502 | 504), "{path}: {}", answer.head),
        }
    }
    assert_eq!(origin.asks().len(), 3);
    let mut ended = Vec::new();
    eventually("all connections to the authentication server are closed", || {
        ended.extend(sent.try_iter());
        ended.len() == kinds.len()
    });
    for (path, bytes) in ended {
        assert!(bytes < ENDLESS_BYTES_MAX, "{path}: {bytes} bytes");
    }
}

#[test]
fn authorization_answers_are_cached_when_configured() {
    let count = AtomicUsize::new(0);
    let auth = Origin::start(move |ask| {
        let number = count.fetch_add(1, Ordering::SeqCst);
        match ask.field("Cookie").first() {
            Some(cookie) => answer("200 OK", &format!("Remote-User: {cookie}-{number}\r\n"), ""),
            None => answer("403 Forbidden", "", "no"),
        }
    });
    let origin = upstream();
    let rig = started(&format!(
        r#"
        [[route]]
        proxy = "{}"
        auth = {{ ask = "{}", response_headers = ["Remote-User"], remember = "1h" }}
        "#,
        origin.url, auth.url
    ));
    for _ in 0..3 {
        rig.ask("/", "Cookie: a\r\nRemote-User: x\r\n").expect(200, "[\"a-0\"] []");
    }
    rig.ask("/other", "Cookie: a\r\n").expect(200, "[\"a-1\"] []");
    rig.ask("/", "Cookie: b\r\n").expect(200, "[\"b-2\"] []");
    rig.ask("/", "Cookie: a\r\nAuthorization: x\r\n").expect(200, "[\"a-3\"] []");
    // Refusals are not cached.
    for number in 5..7 {
        rig.get("/").expect(403, "no");
        assert_eq!(auth.asks().len(), number);
    }
    rig.ask("/", "Cookie: a\r\n").expect(200, "[\"a-0\"] []");
}

#[test]
fn cache_shares_authorized_responses_only_if_public() {
    let auth = Origin::start(|ask| match ask.field("Cookie").first() {
        Some(cookie) => answer("200 OK", &format!("X-Forwarded-User: {cookie}\r\n"), ""),
        None => answer("403 Forbidden", "", "no"),
    });
    let origin = Origin::start(|ask| {
        let public = if ask.line().contains("public") { ", public" } else { "" };
        answer(
            "200 OK",
            &format!("Cache-Control: max-age=3600{public}\r\n"),
            &format!("page of {:?}", ask.field("X-Forwarded-User")),
        )
    });
    let rig = started(&format!(
        r#"
        [[route]]
        proxy = "{}"
        cache = {{}}
        auth = {{ ask = "{}", response_headers = ["X-Forwarded-User"] }}
        "#,
        origin.url, auth.url
    ));
    for user in ["alice", "bob", "alice"] {
        let cookie = format!("Cookie: {user}\r\nX-Forwarded-User: root\r\n");
        rig.ask("/own", &cookie).expect(200, &format!("page of [\"{user}\"]"));
        rig.ask("/public", &cookie).expect(200, "page of [\"alice\"]");
    }
    rig.get("/public").expect(403, "no");
    assert_eq!(origin.asks().len(), 4);
}

#[test]
fn any_server_of_a_group_is_asked() {
    let (one, two) = (nobody(), authelia());
    let origin = upstream();
    let rig = started(&format!(
        r#"
        [upstreams.portal]
        to = ["http://{one}", "{}"]

        [[route]]
        proxy = "{}"
        auth = {{ ask = "http://portal.test/api/verify", upstream = "portal", response_headers = ["Remote-User"] }}
        "#,
        two.url, origin.url
    ));
    for _ in 0..3 {
        rig.ask("/", ALICE).expect(200, "[\"alice\"] []");
    }
    assert_eq!(two.last().line(), "GET /api/verify HTTP/1.1");
    rig.get("/").expect_status(401);
}

#[test]
fn identity_fields_may_be_those_of_a_route_alone() {
    let auth = Origin::start(|_| answer("200 OK", "", ""));
    let origin = upstream();
    let routes = |scope: &str| {
        format!(
            r#"
            [[route]]
            path = "/guarded"
            proxy = "{0}"
            auth = {{ ask = "{1}", response_headers = ["Remote-User"]{scope} }}

            [[route]]
            proxy = "{0}"
            "#,
            origin.url, auth.url
        )
    };
    let claimed = "Remote-User: root\r\n";
    let rig = started(&routes(""));
    rig.ask("/guarded", claimed).expect(200, "[] []");
    rig.ask("/", claimed).expect(200, "[] []");
    let rig = started(&routes(", remove_from = \"route\""));
    rig.ask("/guarded", claimed).expect(200, "[] []");
    rig.ask("/", claimed).expect(200, "[\"root\"] []");
}
