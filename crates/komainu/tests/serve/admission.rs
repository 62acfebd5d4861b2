//! `allow` and `deny`: requests refused with 403.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use crate::rig;
use crate::rig::{Answer, Folder, Rig, komainu};

const CONFIG: &str = r#"
    trusted_proxies = ["127.0.0.1"]

    [[site]]
    hosts = ["inner.test"]
    allow = ["10.0.0.0/8", "2001:db8::/32", "unix"]

    [[site.route]]
    path = "/not-all"
    deny = ["10.1.0.0/16", "::ffff:10.2.0.0/112"]
    respond = "some"

    [[site.route]]
    path = "/one"
    allow = "10.9.9.9"
    respond = "one"

    [[site.route]]
    respond = "inner"

    [[route]]
    deny = "192.0.2.0/24"
    respond = "open"
"#;

#[test]
fn allow_and_deny_apply_by_site_and_route() {
    let rig = Rig::config(Folder::new(), CONFIG);
    for (client, host, path, answer) in [
        ("10.0.0.1", "inner.test", "/", Some("inner")),
        ("2001:db8::1", "inner.test", "/", Some("inner")),
        ("11.0.0.1", "inner.test", "/", None),
        ("::ffff:10.0.0.1", "inner.test", "/", Some("inner")),
        ("10.0.0.1", "inner.test", "/not-all", Some("some")),
        ("10.1.0.1", "inner.test", "/not-all", None),
        ("10.2.0.1", "inner.test", "/not-all", None),
        ("11.0.0.1", "inner.test", "/not-all", None),
        ("10.9.9.9", "inner.test", "/one", Some("one")),
        ("10.9.9.8", "inner.test", "/one", None),
        ("198.51.100.1", "other.test", "/", Some("open")),
        ("192.0.2.7", "other.test", "/", None),
    ] {
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nX-Forwarded-For: {client}\r\nConnection: close\r\n\r\n"
        );
        let got = rig.send(&request);
        match answer {
            Some(text) => _ = got.expect(200, text),
            None => _ = got.expect_status(403),
        }
    }
    // Only a trusted proxy may report a client address: this request is the proxy's own.
    rig.send("GET / HTTP/1.1\r\nHost: inner.test\r\nConnection: close\r\n\r\n").expect_status(403);
}

#[test]
fn allow_unix_matches_clients_of_unix_sockets() {
    let folder = Folder::new();
    let config = r#"
        listen = ["127.0.0.1:0", "unix:k.sock"]

        [[route]]
        path = "/a"
        allow = "unix"
        respond = "a"

        [[route]]
        path = "/b"
        allow = "127.0.0.1"
        respond = "b"
    "#;
    folder.write("komainu.toml", format!("{}{config}", rig::as_we_are()));
    let mut command = komainu();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
    let rig = Rig::start(command, folder);
    let ask = |path: &str| {
        let mut stream = UnixStream::connect(rig.folder.at("k.sock")).unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        Answer::parse(bytes)
    };
    ask("/a").expect(200, "a");
    ask("/b").expect_status(403);
    rig.get("/a").expect_status(403);
    rig.get("/b").expect(200, "b");
}

/// An IPv6 network contains no IPv4 clients, except that a network within `::ffff:0:0/96` is the IPv4 network
/// it maps to.
#[test]
fn ipv6_networks_do_not_match_ipv4_clients() {
    let routes = [
        ("allow = \"::/0\"", [403, 200]),
        ("allow = \"::/64\"", [403, 403]),
        ("allow = \"::ffff:0:0/95\"", [403, 403]),
        ("allow = \"::ffff:0:0/96\"", [200, 403]),
        ("allow = \"0.0.0.0/0\"", [200, 403]),
        ("deny = \"::/0\"", [200, 403]),
        ("deny = \"::ffff:0:0/96\"", [403, 200]),
        ("client = \"::/0\"", [404, 200]),
        ("not = { client = \"::/0\" }", [200, 404]),
        ("fault = { status = 503, when = { client = \"::/0\" } }", [200, 503]),
        ("limit = { rate = \"1/h\", except = \"::/0\" }", [200, 200]),
    ];
    let config = routes.iter().enumerate().map(|(index, (rules, _))| {
        format!(
            r#"
            [[route]]
            path = "/{index}"
            {rules}
            respond = "in"
            "#
        )
    });
    let config: String = config.collect();
    let site = r#"
        [[site]]
        hosts = "closed.test"
        maintenance = { except = "::/0" }
        [[site.route]]
        respond = "in"
    "#;
    let rig = Rig::config(Folder::new(), &format!("trusted_proxies = [\"127.0.0.1\"]\n{site}{config}"));
    let ask = |host: &str, path: &str, client: &str| {
        let head = format!(
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nX-Forwarded-For: {client}\r\nConnection: close\r\n\r\n"
        );
        rig.send(&head).status()
    };
    let clients = ["192.0.2.1", "2001:db8::1"];
    for (index, (rules, statuses)) in routes.iter().enumerate() {
        let got = clients.map(|client| ask("a.test", &format!("/{index}"), client));
        assert_eq!(got, *statuses, "{rules}");
    }
    let limited = format!("/{}", routes.len() - 1);
    assert_eq!(clients.map(|client| ask("a.test", &limited, client)), [429, 200]);
    assert_eq!(clients.map(|client| ask("closed.test", "/", client)), [503, 200]);
    // IPv4 proxies are not trusted by an IPv6 network.
    let rig = Rig::config(
        Folder::new(),
        r#"
        trusted_proxies = ["::/0"]
        [[route]]
        allow = "192.0.2.1"
        respond = "in"
        "#,
    );
    rig.ask("/", "X-Forwarded-For: 192.0.2.1\r\n").expect_status(403);
}
