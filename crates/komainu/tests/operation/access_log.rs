//! The access log: its formats, redaction, and filters.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;

use crate::certified::{self, GET, LISTEN, s_client};
use crate::origin::{Origin, answer};
use crate::rig::{Folder, Rig, eventually, komainu, nobody, text};

/// Lines of a log once there are `count` of them.
fn log_lines(rig: &Rig, name: &str, count: usize) -> Vec<String> {
    let text = || fs::read_to_string(rig.folder.at(name)).unwrap_or_default();
    eventually("the log is written", || text().lines().count() >= count && text().ends_with('\n'));
    text().lines().map(str::to_owned).collect()
}

#[test]
fn unknown_host_is_named_in_error_page_and_access_log() {
    let folder = Folder::new();
    // A single thread keeps the lines in order; each thread writes its own.
    let config = r#"
        threads = 1
        [log]
        access = "json"
        file = "access.log"
        [[site]]
        hosts = "example.com"
        [[site.route]]
        respond = "a"
    "#;
    let rig = Rig::config(folder, config);
    let ask = |host: &str| rig.send(&format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"));
    ask("example.com").expect(200, "a");
    let answer = ask(&rig.address.to_string());
    answer.expect_status(404);
    assert!(answer.text().contains("<p>no site has the host 127.0.0.1</p>"), "{}", answer.text());
    // Details that could be markup are not shown.
    let answer = ask("a&b;c'd");
    assert!(answer.text().contains("<p>no site has the host of this request</p>"), "{}", answer.text());
    let lines = log_lines(&rig, "access.log", 3);
    let line: serde_json::Value = serde_json::from_str(&lines[1]).unwrap();
    assert_eq!(
        (&line["reason"], &line["host"]),
        (&"no site has the host of this request".into(), &"127.0.0.1".into())
    );
}

#[test]
fn websocket_log_line_has_upstream_server_and_response_time() {
    let switch = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                  Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
    let origin = Origin::start(move |_| switch.to_owned());
    let text = format!(
        r#"
        threads = 1
        [log]
        file = "access.log"
        access = "$status $upstream $upstream_ms"
        [[route]]
        proxy = "{}"
        "#,
        origin.url
    );
    let rig = Rig::config(Folder::new(), &text);
    let mut client = TcpStream::connect(rig.address).unwrap();
    let ask = "GET /socket HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
               Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    client.write_all(ask.as_bytes()).unwrap();
    let mut head = [0; 12];
    client.read_exact(&mut head).unwrap();
    assert_eq!(&head, b"HTTP/1.1 101");
    drop(client);
    let lines = log_lines(&rig, "access.log", 1);
    let parts: Vec<&str> = lines[0].split(' ').collect();
    assert_eq!(parts[..2], ["101", origin.url.as_str()]);
    assert!(parts[2].parse::<f64>().is_ok(), "{}", lines[0]);
}

#[test]
fn every_access_log_format_masks_secrets_and_escapes_values() {
    let origin = Origin::start(|_| answer("200 OK", "", "four"));
    let with = |log: &str| {
        let text = format!(
            r#"
            threads = 1
            request_ids = "any"

            [log]
            file = "access.log"
            mask_query = ["token"]
            {log}

            [[route]]
            path = "/up"
            proxy = "{}"

            [[route]]
            path = "/down"
            proxy = "http://{}"
            "#,
            origin.url,
            nobody()
        );
        Rig::config(Folder::new(), &text)
    };
    let ask = |rig: &Rig, target: &str| {
        let hostile =
            "User-Agent: a\"b\\c\u{9b}\u{e9}\r\nAuthorization: Basic c2VjcmV0\r\nCookie: sid=secret\r\n";
        rig.ask(
            target,
            &format!("{hostile}X-Request-Id: r-1\r\nReferer: http://a.test/?Token=secret&x=1\r\n"),
        )
    };
    let rig = with(
        "access = \"json\"\nfields = [\"time\", \"remote_addr\", \"target\", \"status\", \"duration_ms\", \"upstream\", \"upstream_ms\", \"attempts\", \"request_id\", \"user_agent\", \"referer\", \"reason\", \"request_bytes\", \"http_authorization\", \"cookie_sid\", \"http_x_none\"]",
    );
    ask(&rig, "/up?a=1&%74oken=secret").expect(200, "four");
    ask(&rig, "/down?token=secret").expect_status(502);
    ask(&rig, "/none").expect_status(404);
    rig.send("nonsense\r\n\r\n").expect_status(400);
    let lines = log_lines(&rig, "access.log", 4);
    assert!(!lines.join("").contains("secret") && !lines.join("").contains('\u{9b}'), "{lines:?}");
    let lines: Vec<serde_json::Value> =
        lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let up = &lines[0];
    assert_eq!((&up["status"], &up["target"]), (&200.into(), &"/up?a=1&%74oken=***".into()));
    assert_eq!((&up["upstream"], &up["attempts"]), (&origin.url.as_str().into(), &1.into()));
    assert_eq!((&up["request_id"], &up["remote_addr"]), (&"r-1".into(), &"127.0.0.1".into()));
    assert_eq!(up["user_agent"], "a\"b\\c\u{9b}\u{e9}");
    assert_eq!((&up["http_authorization"], &up["cookie_sid"]), (&"***".into(), &"***".into()));
    assert_eq!(up["referer"], "http://a.test/?Token=***&x=1");
    assert!(up["duration_ms"].is_f64() && up["upstream_ms"].is_f64(), "{up}");
    assert!(up.get("reason").is_none() && up.get("http_x_none").is_none(), "{up}");
    assert_eq!(
        (&lines[1]["status"], &lines[1]["reason"]),
        (&502.into(), &"the upstream refused the connection".into())
    );
    assert_eq!(lines[2]["reason"], "there is nothing at this address");
    assert_eq!((&lines[3]["status"], lines[3].get("target")), (&400.into(), None));
    assert!(lines[3]["reason"].is_string(), "{}", lines[3]);

    let rig = with(
        "access = \"$remote_addr $status $body_bytes \\\"$method $uri\\\" $request_id $cache <$user_agent> $http_authorization $$\"",
    );
    ask(&rig, "/up?token=secret").expect(200, "four");
    rig.send("nonsense\r\n\r\n").expect_status(400);
    let lines = log_lines(&rig, "access.log", 2);
    assert_eq!(
        lines[0],
        "127.0.0.1 200 4 \"GET /up?token=***\" r-1 - <a\\x22b\\x5Cc\\xC2\\x9B\\xC3\\xA9> *** $"
    );
    assert!(
        lines[1].starts_with("127.0.0.1 400 ") && lines[1].ends_with(" \"- -\" - - <-> - $"),
        "{}",
        lines[1]
    );

    let rig = with(
        "access = \"logfmt\"\nfields = [\"status\", \"target\", \"user_agent\", \"cache\", \"request_id\"]",
    );
    ask(&rig, "/up?token=secret").expect(200, "four");
    assert_eq!(
        log_lines(&rig, "access.log", 1)[0],
        "status=200 target=\"/up?token=***\" user_agent=\"a\\\"b\\\\c\\u009b\u{e9}\" request_id=r-1"
    );

    let rig = with(
        "access = \"logfmt\"\nfields = [\"status\"]\nonly = { status = [502, \"4xx\"], sample = \"25%\" }",
    );
    for _ in 0..8 {
        ask(&rig, "/up").expect(200, "four");
    }
    ask(&rig, "/down").expect_status(502);
    ask(&rig, "/none").expect_status(404);
    assert_eq!(log_lines(&rig, "access.log", 4), ["status=200", "status=200", "status=502", "status=404"]);

    let rig = with("access = \"ecs\"");
    ask(&rig, "/up?token=secret").expect(200, "four");
    let line: serde_json::Value = serde_json::from_str(&log_lines(&rig, "access.log", 1)[0]).unwrap();
    assert_eq!((&line["http.response.status_code"], &line["client.ip"]), (&200.into(), &"127.0.0.1".into()));
    assert_eq!((&line["http.request.id"], &line["ecs.version"]), (&"r-1".into(), &"8.11.0".into()));
    assert_eq!(line["http.version"], "1.1");
    assert!(line["event.duration"].is_u64() && line["@timestamp"].is_string(), "{line}");
    assert_eq!(line["url.original"], "/up?token=***");

    let rig = with("access = \"combined\"");
    ask(&rig, "/up?token=secret").expect(200, "four");
    let line = &log_lines(&rig, "access.log", 1)[0];
    assert!(line.starts_with("127.0.0.1 - - [") && !line.contains("secret"), "{line}");
    assert!(line.contains("\"GET /up?token=*** HTTP/1.1\" 200 4 \"http://a.test/?Token=***&x=1\""), "{line}");
}

#[test]
fn json_access_log_escapes_quotes() {
    let folder = Folder::new();
    folder.write("www/a", "A");
    let rig = Rig::config(
        folder,
        r#"
        [log]
        access = "json"
        file = "access.log"
        [[route]]
        files = "www"
        "#,
    );
    rig.ask("/a", "User-Agent: te\"st\r\n");
    let lines = || fs::read_to_string(rig.folder.at("access.log")).unwrap_or_default();
    eventually("the line is written", || lines().ends_with('\n'));
    let line: serde_json::Value = serde_json::from_str(&lines()).unwrap();
    assert_eq!(
        (line["status"].as_u64(), line["target"].as_str(), line["user_agent"].as_str()),
        (Some(200), Some("/a"), Some("te\"st"))
    );
}

#[test]
fn logged_cipher_suite_is_that_of_the_connection_if_any() {
    // A single thread keeps the lines in order.
    let log = r#"
        threads = 1
        [log]
        access = "json"
        file = "access.log"
        fields = ["status", "tls_cipher"]
    "#;
    let tls = "tls = { certificate = \"a.test.pem\", key = \"a.test.key\" }";
    let text = format!("{LISTEN}{log}{}", certified::site("a.test", tls));
    let rig = certified::start(certified::folder(&[("a.test", "ec")]), &text);
    for (arguments, request) in [("-tls1_3", GET), ("-tls1_2", GET), ("-tls1_3", "nonsense\r\n\r\n")] {
        s_client(&rig, &format!("-servername a.test {arguments}"), request);
    }
    certified::fetch(&rig, "a.test", &["--http2"]).unwrap();
    assert_eq!(
        log_lines(&rig, "access.log", 4),
        [
            "{\"status\":200,\"tls_cipher\":\"TLS_AES_128_GCM_SHA256\"}",
            "{\"status\":200,\"tls_cipher\":\"ECDHE-ECDSA-AES128-GCM-SHA256\"}",
            "{\"status\":400,\"tls_cipher\":\"TLS_AES_128_GCM_SHA256\"}",
            "{\"status\":200,\"tls_cipher\":\"TLS_AES_128_GCM_SHA256\"}",
        ]
    );

    // `Rig::config` would speak TLS where the tests run through it.
    let text = format!(
        r#"
        listen = "127.0.0.1:0"
        {log}
        [[route]]
        respond = "a"
        "#
    );
    let rig = certified::start(Folder::new(), &text);
    rig.get("/").expect(200, "a");
    rig.send("nonsense\r\n\r\n").expect_status(400);
    assert_eq!(log_lines(&rig, "access.log", 2), ["{\"status\":200}", "{\"status\":400}"]);
}

#[test]
fn resumed_tls_sessions_are_logged_over_every_version_of_http() {
    let log = r#"
        [log]
        access = "json"
        file = "access.log"
        [[logs]]
        access = "$version $tls_resumed"
        file = "text.log"
        [[route]]
        respond = "a"
    "#;
    let folder = Folder::new();
    folder.certify();
    let certificate = "tls.default = { certificate = \"cert.pem\", key = \"key.pem\" }";
    let rig = certified::start(folder, &format!("{LISTEN}{certificate}{log}"));
    let (url, json) = (format!("https://{}/", rig.listens), rig.folder.at("bench.json"));
    let json = json.to_str().unwrap();
    // Each request has a connection of its own; the client states how many of them have resumed a session.
    let bench = |options: &str| {
        let mut command = komainu();
        command.args(["bench", "-n", "20", "-c", "1", "-t", "1", "--no-keepalive", "-k", "--json", json]);
        let done = command.args(options.split_whitespace()).arg(&url).output().unwrap();
        assert!(done.status.success(), "{options}: {}", text(&done.stderr));
        let kept: serde_json::Value = serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
        ["full", "resumed"].map(|kind| kept["tls"][kind].as_u64().unwrap() as usize)
    };
    let mut seen = 0;
    for (version, options) in [
        ("HTTP/1.1", "--tls-version 1.3"),
        ("HTTP/1.1", "--tls-version 1.2"),
        ("HTTP/2.0", "--http2"),
        ("HTTP/3.0", "--http3"),
    ] {
        for (more, resumes) in [("", true), (" --no-resumption", false)] {
            let options = format!("{options}{more}");
            let [full, resumed] = bench(&options);
            assert_eq!((full + resumed, resumed > 0), (20, resumes), "{options}");
            let lines = log_lines(&rig, "access.log", seen + 20).split_off(seen);
            let lines: Vec<serde_json::Value> =
                lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
            let logged = |value: bool| lines.iter().filter(|line| line["tls_resumed"] == value).count();
            assert_eq!([logged(false), logged(true)], [full, resumed], "{options}: {lines:?}");
            assert!(lines.iter().all(|line| line["version"] == version), "{options}: {lines:?}");
            let texts = log_lines(&rig, "text.log", seen + 20).split_off(seen);
            let line = format!("{version} true");
            assert_eq!(texts.iter().filter(|text| **text == line).count(), resumed, "{options}: {texts:?}");
            seen += 20;
        }
    }

    // `Rig::config` would speak TLS where the tests run through it.
    let rig = certified::start(Folder::new(), &format!("listen = \"127.0.0.1:0\"{log}"));
    rig.get("/").expect(200, "a");
    assert!(!log_lines(&rig, "access.log", 1)[0].contains("tls_resumed"));
    assert_eq!(log_lines(&rig, "text.log", 1), ["HTTP/1.1 -"]);
}
