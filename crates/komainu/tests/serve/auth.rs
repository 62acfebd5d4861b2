//! `auth`: users and passwords.

use std::io::Write;
use std::time::Duration;

use crate::rig;
use crate::rig::{Answer, Folder, PATIENCE, Rig, eventually, komainu, read_answer};

/// Hashes of "myPassword" (bcrypt, cost 5) and "password" (Argon2).
const BCRYPT: &str = "$2y$05$c4WoMPo3SXsafkva.HHa6uXQZWr7oboPiC2bT/r7q1BB8I2s0BRqC";
const ARGON2: &str = "$argon2id$v=19$m=65536,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc";

const CONFIG: &str = r#"
    threads = 2
    trusted_proxies = ["127.0.0.1"]

    [[site]]
    hosts = ["site.test"]
    auth = { basic = "users", realm = "the site" }

    [[site.route]]
    path = "/open"
    auth = false
    respond = "open"

    [[site.route]]
    respond = "inner"

    [[route]]
    path = "/few"
    auth = { basic = "users", failures = "3/h" }
    respond = "few"

    [[route]]
    path = "/none"
    auth = { basic = "empty" }
    respond = "none"
"#;

fn basic(text: &str) -> String {
    format!("Authorization: Basic {}\r\n", data_encoding::BASE64.encode(text.as_bytes()))
}

fn ask(rig: &Rig, host: &str, path: &str, client: &str, fields: &str) -> Answer {
    rig.send(&format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nX-Forwarded-For: {client}\r\n{fields}Connection: close\r\n\r\n"
    ))
}

#[test]
fn half_closed_client_is_authenticated() {
    let folder = Folder::new();
    folder.write("users", format!("alice:{BCRYPT}\n")).write("empty", "");
    let rig = Rig::config(folder, CONFIG);
    let mut stream = rig.connect();
    let head = "GET / HTTP/1.1\r\nHost: site.test\r\nConnection: close\r\n";
    stream.write_all(format!("{head}{}\r\n", basic("alice:myPassword")).as_bytes()).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    read_answer(&mut stream).expect(200, "inner");
}

#[test]
fn basic_authentication_requires_valid_passwords() {
    let folder = Folder::new();
    folder.write("users", format!("# who may\nalice:{BCRYPT}\nbob:{ARGON2}\n")).write("empty", "");
    let rig = Rig::config(folder, CONFIG);
    let inner = |fields: &str| ask(&rig, "site.test", "/", "192.0.2.1", fields);
    ask(&rig, "site.test", "/open", "192.0.2.1", "").expect(200, "open");
    inner("")
        .expect_status(401)
        .expect_field("www-authenticate", "Basic realm=\"the site\", charset=\"UTF-8\"");
    // The second verification is cached.
    for _ in 0..2 {
        inner(&basic("alice:myPassword")).expect(200, "inner");
        inner(&basic("bob:password")).expect(200, "inner");
    }
    for wrong in ["alice:password", "bob:myPassword", "carol:password", "alice:", "Alice:myPassword", ":"] {
        inner(&basic(wrong)).expect_status(401);
    }
    for wrong in [
        "Authorization: Basic\r\n",
        "Authorization: Basic %%%\r\n",
        "Authorization: Bearer YTpi\r\n",
        &basic("x"),
    ] {
        inner(wrong).expect_status(401).expect_field("cache-control", "no-store");
    }
    // Servers differ in which of two `Authorization` fields they use.
    let others: &[&str] = if rig::through_http3() { &[] } else { &["bob:password", "admin:whatever"] };
    // Over HTTP/3 the stream is reset, as over HTTP/2.
    for other in others {
        inner(&(basic("alice:myPassword") + &basic(other))).expect_status(400);
    }
    ask(&rig, "x.test", "/none", "192.0.2.1", &basic("alice:myPassword")).expect_status(401);
    eventually("the log has who failed", || {
        rig.reported().contains("192.0.2.1: `auth.basic` ")
            && rig.reported().contains(": wrong user or password: ")
    });
    assert!(!rig.reported().contains("myPassword"));
    // After a few failures the client has to wait; other clients and cached passwords are not affected.
    let few = |client: &str, text: &str| ask(&rig, "x.test", "/few", client, &basic(text)).status();
    assert_eq!(few("192.0.2.2", "alice:myPassword"), 200);
    let tries: Vec<u16> = (0..5).map(|number| few("192.0.2.2", &format!("alice:{number}"))).collect();
    assert_eq!(tries, [401, 401, 401, 429, 429]);
    assert_eq!(few("192.0.2.2", "alice:myPassword"), 200);
    assert_eq!(few("192.0.2.3", "alice:wrong"), 401);
    many_at_once_wait_for_one(&rig);
    a_changed_file_counts(&rig);
}

fn many_at_once_wait_for_one(rig: &Rig) {
    // More connections with one password than may wait: the password is verified once for all of them.
    let request = format!(
        "GET /few HTTP/1.1\r\nHost: x.test\r\nX-Forwarded-For: 192.0.2.9\r\n{}\r\n",
        basic("bob:password")
    );
    let mut streams: Vec<_> = (0..100).map(|_| rig.connect()).collect();
    streams.iter_mut().for_each(|stream| stream.write_all(request.as_bytes()).unwrap());
    streams.iter_mut().for_each(|stream| _ = read_answer(stream).expect(200, "few"));
}

#[test]
fn password_flood_of_one_network_does_not_block_others() {
    let folder = Folder::new();
    folder.write("users", format!("alice:{BCRYPT}\nbob:{ARGON2}\n")).write("empty", "");
    let rig = Rig::config(
        folder,
        &CONFIG.replace("realm = \"the site\"", "realm = \"the site\", failures = \"1000/s\""),
    );
    let request = |client: &str, text: &str| {
        format!("GET / HTTP/1.1\r\nHost: site.test\r\nX-Forwarded-For: {client}\r\n{}\r\n", basic(text))
    };
    // 100 passwords from one network, without reading the responses.
    let mut attackers: Vec<_> = (0..100).map(|_| rig.connect()).collect();
    let mut user = rig.connect();
    // Each password takes a busy machine a while.
    for stream in attackers.iter().chain([&user]) {
        stream.set_read_timeout(Some(4 * PATIENCE)).unwrap();
    }
    for (number, stream) in attackers.iter_mut().enumerate() {
        stream.write_all(request(&format!("192.0.2.{number}"), &format!("bob:{number}")).as_bytes()).unwrap();
    }
    user.write_all(request("198.51.100.1", "alice:myPassword").as_bytes()).unwrap();
    read_answer(&mut user).expect(200, "inner");
    let statuses: Vec<u16> = attackers.iter_mut().map(|stream| read_answer(stream).status()).collect();
    let count = |status| statuses.iter().filter(|other| **other == status).count();
    assert!(count(401) >= 16 && count(503) > 0 && count(401) + count(503) == 100, "{statuses:?}");
}

fn a_changed_file_counts(rig: &Rig) {
    let status = |text: &str| ask(rig, "site.test", "/", "192.0.2.77", &basic(text)).status();
    assert_eq!(status("alice:myPassword"), 200);
    rig.folder.write("users", format!("carol:{BCRYPT}\n"));
    // Each round uses another client address, so that failures do not accumulate.
    let mut round = 0;
    eventually("the old user is gone", || {
        round += 1;
        let client = format!("198.51.{}.{}", round / 250, round % 250 + 1);
        ask(rig, "site.test", "/", &client, &basic("alice:myPassword")).status() == 401
    });
    assert_eq!(status("carol:myPassword"), 200);
    // An invalid file keeps the old users and is logged.
    rig.folder.write("users", "carol:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=\n");
    eventually("the log has the mistake", || {
        ask(rig, "site.test", "/", "192.0.2.88", "").expect_status(401);
        rig.reported().contains("is hashed with SHA-1, which is too weak")
    });
    assert_eq!(status("carol:myPassword"), 200);
}

#[test]
fn changed_password_file_counts_for_the_first_request_after_a_pause() {
    let folder = Folder::new();
    folder.write("users", format!("alice:{BCRYPT}\n")).write("empty", "");
    let rig = Rig::config(folder, CONFIG);
    let status = |text: &str| ask(&rig, "site.test", "/", "192.0.2.1", &basic(text)).status();
    assert_eq!(status("alice:myPassword"), 200);
    rig.folder.write("users", format!("carol:{BCRYPT}\n"));
    std::thread::sleep(Duration::from_secs(6));
    assert_eq!(status("alice:myPassword"), 401);
    rig.folder.write("users", format!("alice:{BCRYPT}\n"));
    std::thread::sleep(Duration::from_secs(6));
    assert_eq!(status("alice:myPassword"), 200);
}

#[test]
fn invalid_password_file_is_reported_with_its_line() {
    let folder = Folder::new();
    folder.write("k.toml", format!("{}{CONFIG}", rig::as_we_are())).write("empty", "");
    for (users, says) in [
        (
            Some("alice:$apr1$abc$def\n"),
            "line 1: the password of \"alice\" is hashed with MD5 (apr1), which is too weak: make it again with `htpasswd -B",
        ),
        (Some("\nalice\n"), "line 2: this is not `NAME:HASH`"),
        (None, "auth = { basic = \"users\", realm"),
    ] {
        let _ = std::fs::remove_file(folder.at("users"));
        users.into_iter().for_each(|text| _ = folder.write("users", text));
        let output = komainu().arg("check").arg("-c").arg(folder.at("k.toml")).output().unwrap();
        let text = rig::text(&output.stderr);
        assert!(!output.status.success() && text.contains(says), "{text}");
    }
}

#[test]
fn verified_user_is_logged_and_forwarded() {
    let folder = Folder::new();
    folder.write("users", format!("alice smith:{BCRYPT}\n")).write("any", "x");
    folder.write_program(
        "cgi/show",
        "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\n%s %s' \"$REMOTE_USER\" \"$AUTH_TYPE\"\n",
    );
    let text = r#"
        [log]
        access = "combined"
        file = "a.log"

        [[logs]]
        access = "json"
        file = "b.log"

        [[logs]]
        access = "ecs"
        file = "c.log"

        [[logs]]
        access = "$remote_user"
        file = "d.log"

        [[route]]
        path = "/open"
        cgi = "cgi/show"

        [[route]]
        auth = { basic = "users" }
        cgi = "cgi"
        response_headers = { set = { X-User = "$remote_user" } }
    "#;
    let rig = Rig::config(folder, text);
    let ask = |target: &str, fields: &str| rig.ask(target, fields);
    let known = basic("alice smith:myPassword");
    let shown = ask("/show", &known);
    assert!(shown.text().contains("alice smith Basic"), "{}", shown.text());
    shown.expect_status(200).expect_field("x-user", "alice smith");
    // An identity claimed by a client is ignored.
    ask("/show", &basic("alice smith:wrong")).expect_status(401);
    let shown = ask("/open", &format!("{known}Remote-User: root\r\nREMOTE_USER: root\r\n"));
    assert!(!shown.expect_status(200).text().contains("root"), "{}", shown.text());
    let lines = |name: &str| std::fs::read_to_string(rig.folder.at(name)).unwrap_or_default();
    eventually("all are logged", || {
        ["a.log", "b.log", "c.log", "d.log"].iter().all(|name| lines(name).lines().count() == 3)
    });
    // Each core writes its own lines, so they are not in the order of the requests.
    let mut users: Vec<String> =
        lines("a.log").lines().map(|line| line.split(' ').nth(2).unwrap().to_owned()).collect();
    users.sort();
    assert_eq!(users, ["-", "-", "alice\\x20smith"]);
    let text = lines("d.log");
    let mut users: Vec<&str> = text.lines().collect();
    users.sort_unstable();
    assert_eq!(users, ["-", "-", "alice smith"]);
    for (name, key) in
        [("b.log", "\"remote_user\":\"alice smith\""), ("c.log", "\"user.name\":\"alice smith\"")]
    {
        // Threads write their lines independently, in no particular order.
        let (named, other): (Vec<_>, Vec<_>) =
            lines(name).lines().map(str::to_owned).partition(|line| line.contains(key));
        assert_eq!((named.len(), other.len()), (1, 2), "{}", lines(name));
    }
}
