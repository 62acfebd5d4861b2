//! Several access logs, their destinations, and their change by a reload.

use std::fs;
use std::io::Read;
use std::net::{TcpListener, UdpSocket};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::process::{Child, Command};

use serde_json::json;

use crate::api::change;
use crate::rig::{self, Folder, PATIENCE, Rig, eventually, installed, komainu};

fn reload(rig: &Rig, text: &str) {
    rig.folder.write("komainu.toml", text);
    let done = komainu().args(["reload", "--pid", &rig.child.id().to_string()]).output().unwrap();
    assert!(done.status.success(), "{}{}", rig::text(&done.stdout), rig::text(&done.stderr));
}

fn lines(rig: &Rig, name: &str) -> Vec<String> {
    fs::read_to_string(rig.folder.at(name)).unwrap_or_default().lines().map(str::to_owned).collect()
}

#[track_caller]
fn has_lines(rig: &Rig, name: &str, want: &[&str]) {
    eventually(&format!("{name} has {want:?}"), || lines(rig, name).len() >= want.len());
    assert_eq!(lines(rig, name), want, "{name}");
}

#[test]
fn reload_adds_changes_and_removes_access_logs() {
    for kind in rig::kinds() {
        let folder = Folder::new();
        // A server without root privileges cannot create files here: its supervisor opens them.
        let head = format!("listen = \"127.0.0.1:0\"\nthreads = 1\n{kind}");
        let routes = r#"
            [[route]]
            respond = "any"
            [[site]]
            hosts = ["a.test"]
            [[site.route]]
            path = "/a"
            respond = "A"
        "#;
        let first = format!(
            r#"
            {head}
            [log]
            file = "all.log"
            mask_query = ["token"]
            access = "$uri"
            {routes}
            "#
        );
        folder.write("komainu.toml", &first);
        let mut command = komainu();
        command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
        let rig = Rig::start(command, folder);
        let ask = |host: &str, target: &str| {
            rig.send(&format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"));
        };
        ask("a.test", "/a?1");
        has_lines(&rig, "all.log", &["/a?1"]);
        // Adds a log of errors and one of a site; the first log stays as it is.
        let errors = r#"
            [[logs]]
            access = "$status $uri"
            file = "errors.log"
            only = { status = ["4xx"] }
        "#;
        let of_site = r#"
            [[site.logs]]
            access = "$host $uri"
            file = "site.log"
        "#;
        let second = first
            .replace("[[route]]", &format!("{errors}[[route]]"))
            .replace("[[site.route]]", &format!("{of_site}[[site.route]]"));
        reload(&rig, &second);
        ask("a.test", "/a?token=secret");
        ask("a.test", "/none");
        ask("b.test", "/b");
        has_lines(&rig, "all.log", &["/a?1", "/a?token=***", "/none", "/b"]);
        has_lines(&rig, "errors.log", &["404 /none"]);
        has_lines(&rig, "site.log", &["a.test /a?token=***", "a.test /none"]);
        // Renamed files are reopened, including those added by a reload.
        for name in ["all.log", "errors.log", "site.log"] {
            fs::rename(rig.folder.at(name), rig.folder.at(&format!("{name}.1"))).unwrap();
        }
        rig.signal("-USR1");
        eventually("the logs are opened again", || {
            ["all.log", "errors.log", "site.log"].iter().all(|name| rig.folder.at(name).exists())
        });
        ask("a.test", "/after");
        has_lines(&rig, "site.log", &["a.test /after"]);
        has_lines(&rig, "errors.log", &["404 /after"]);
        // One log is removed, one gets another format, and the error log moves.
        let third = first
            .replace("\"$uri\"", "\"$method\"")
            .replace("[log]\n", "[log]\nerrors = \"err.log\"\nlevel = \"debug\"\n");
        reload(&rig, &third);
        ask("a.test", "/last");
        has_lines(&rig, "all.log", &["/after", "GET"]);
        assert_eq!(lines(&rig, "site.log"), ["a.test /after"]);
        eventually("the new error log is used", || {
            lines(&rig, "err.log").iter().any(|line| line.contains("the configuration was read again"))
        });
        // If a log cannot be opened, the configuration is rejected.
        rig.folder.write("komainu.toml", third.replace("all.log", "none/all.log"));
        let refused = komainu().args(["reload", "--pid", &rig.child.id().to_string()]).output().unwrap();
        assert!(!refused.status.success() && rig::text(&refused.stderr).contains("none/all.log"));
        ask("a.test", "/kept");
        has_lines(&rig, "all.log", &["/after", "GET", "GET"]);
    }
}

/// Priority, tag, log name and line of an RFC 5424 message.
fn message(bytes: &[u8]) -> (u32, String, String, String) {
    let text = std::str::from_utf8(bytes).unwrap();
    let words: Vec<&str> = text.splitn(8, ' ').collect();
    let [head, time, host, tag, pid, log, data, line] = words[..] else { panic!("{text:?}") };
    let priority = head.strip_prefix('<').and_then(|head| head.strip_suffix(">1")).unwrap();
    assert!(time.len() == 24 && time.as_bytes()[10] == b'T' && time.ends_with('Z'), "{text:?}");
    assert!(!host.is_empty() && pid.parse::<u32>().is_ok() && data == "-", "{text:?}");
    (priority.parse().unwrap(), tag.into(), log.into(), line.into())
}

/// Messages of a stream with octet counting.
fn frames(mut bytes: &[u8]) -> Vec<(u32, String, String, String)> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let space = bytes.iter().position(|&byte| byte == b' ').unwrap();
        let len: usize = std::str::from_utf8(&bytes[..space]).unwrap().parse().unwrap();
        all.push(message(&bytes[space + 1..][..len]));
        bytes = &bytes[space + 1 + len..];
    }
    all
}

/// Receives one datagram.
fn datagram(mut receive: impl FnMut(&mut [u8]) -> std::io::Result<usize>) -> Vec<u8> {
    let mut room = vec![0; 65_536];
    let len = receive(&mut room).unwrap();
    room[..len].to_vec()
}

#[test]
fn log_lines_are_sent_to_syslog_and_journald() {
    let folder = Folder::new();
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let unix = folder.at("dgram.sock");
    let stream = folder.at("stream.sock");
    let journal = folder.at("journal.sock");
    let of_stream = UnixListener::bind(&stream).unwrap();
    let of_journal = UnixDatagram::bind(&journal).unwrap();
    udp.set_read_timeout(Some(PATIENCE)).unwrap();
    of_journal.set_read_timeout(Some(PATIENCE)).unwrap();
    let log = |to: &str| {
        format!(
            r#"
            [[logs]]
            access = "$method $uri"
            file = {to}
            "#
        )
    };
    let logs = [
        log(&format!(
            "{{ syslog = \"udp://{}\", facility = \"local7\", tag = \"shop\" }}",
            udp.local_addr().unwrap()
        )),
        log(&format!("{{ syslog = \"tcp://{}\" }}", tcp.local_addr().unwrap())),
        log("{ syslog = \"unix:dgram.sock\" }"),
        log("{ syslog = \"unix:stream.sock\" }"),
        log("{ journald = \"journal.sock\" }"),
    ];
    let text = format!(
        r#"
        threads = 1
        {}
        [log]
        errors = {{ journald = "journal.sock", tag = "errors" }}
        [[route]]
        respond = "ok"
        "#,
        logs.concat()
    );
    let rig = Rig::config(folder, &text);
    rig.get("/a").expect(200, "ok");
    let want = |facility: u32, tag: &str, line: &str| {
        (facility * 8 + 6, tag.to_owned(), "access".to_owned(), line.to_owned())
    };
    assert_eq!(message(&datagram(|room| udp.recv(room))), want(23, "shop", "GET /a"));
    // The socket does not exist yet, so this line and another one are queued.
    eventually("it is said that the receiver is away", || {
        rig.reported().contains("dgram.sock): cannot be reached")
    });
    rig.get("/b").expect(200, "ok");
    assert_eq!(message(&datagram(|room| udp.recv(room))), want(23, "shop", "GET /b"));
    let of_unix = UnixDatagram::bind(&unix).unwrap();
    of_unix.set_read_timeout(Some(PATIENCE)).unwrap();
    for line in ["GET /a", "GET /b"] {
        assert_eq!(message(&datagram(|room| of_unix.recv(room))), want(3, "komainu", line));
    }
    let mut entries = Vec::new();
    while entries.iter().filter(|entry: &&String| entry.contains("KOMAINU_LOG=access")).count() < 2 {
        entries.push(String::from_utf8(datagram(|room| of_journal.recv(room))).unwrap());
    }
    let is =
        |start: &str, end: &str| entries.iter().any(|entry| entry.starts_with(start) && entry.ends_with(end));
    assert!(
        is("PRIORITY=6\nSYSLOG_IDENTIFIER=komainu\nKOMAINU_LOG=access\nMESSAGE=", "GET /b\n"),
        "{entries:?}"
    );
    assert!(
        is("PRIORITY=6\nSYSLOG_IDENTIFIER=errors\nKOMAINU_LOG=error\nMESSAGE=info: ", "\n"),
        "{entries:?}"
    );
    // Streams end with the server, which writes queued lines first.
    rig.signal("-TERM");
    let taken = |mut stream: Box<dyn Read>| {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        frames(&bytes)
    };
    let both = vec![want(3, "komainu", "GET /a"), want(3, "komainu", "GET /b")];
    assert_eq!(taken(Box::new(tcp.accept().unwrap().0)), both);
    assert_eq!(taken(Box::new(of_stream.accept().unwrap().0)), both);
}

/// A process that is killed on drop.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn rsyslog_accepts_log_messages() {
    let Some(rsyslog) = installed("rsyslogd") else { return };
    let folder = Folder::new();
    let at = folder.path().display();
    folder.write(
        "rsyslog.conf",
        format!(
            r#"global(workDirectory="{at}")
module(load="imuxsock" SysSock.Use="off")
module(load="imptcp")
input(type="imuxsock" Socket="{at}/dgram.sock" UseSpecialParser="off" ParseHostname="on")
input(type="imptcp" path="{at}/stream.sock")
template(name="t" type="string" string="%syslogfacility-text%.%syslogseverity-text% %app-name% %msgid% %protocol-version% %msg%\n")
action(type="omfile" file="{at}/out" template="t" asyncWriting="off" flushOnTXEnd="on")
"#
        ),
    );
    let mut command = Command::new(rsyslog);
    command.arg("-n").arg("-f").arg(folder.at("rsyslog.conf")).arg("-i").arg(folder.at("rsyslog.pid"));
    let _running = Running(command.spawn().unwrap());
    eventually("rsyslog listens", || folder.at("stream.sock").exists() && folder.at("dgram.sock").exists());
    let log = |socket: &str, facility: &str| {
        let to = format!("{{ syslog = \"unix:{socket}.sock\", facility = \"{facility}\" }}");
        format!(
            r#"
            [[logs]]
            access = "json"
            fields = ["target", "http_x"]
            file = {to}
            "#
        )
    };
    let text = format!(
        r#"
        threads = 1
        {}
        {}
        [[route]]
        respond = "ok"
        "#,
        log("dgram", "local3"),
        log("stream", "local4")
    );
    let rig = Rig::config(folder, &text);
    rig.ask("/a", "X: a\u{e9}\" \\\r\n");
    eventually("both lines arrive", || lines(&rig, "out").len() >= 2);
    let mut got = lines(&rig, "out");
    got.sort();
    let line = "komainu access 1 {\"target\":\"/a\",\"http_x\":\"a\u{e9}\\\" \\\\\"}";
    assert_eq!(got, [format!("local3.info {line}"), format!("local4.info {line}")]);
}

#[test]
fn many_log_reopens_delay_neither_reload_nor_stop() {
    let folder = Folder::new();
    let text = r#"
        threads = 2
        [control]
        listen = "unix:control.sock"
        [log]
        file = "all.log"
        access = "$uri"
        [[route]]
        respond = "ok"
    "#;
    let mut rig = Rig::config(folder, text);
    rig.get("/a").expect(200, "ok");
    // Each reopening takes 50 ms or more; requests that arrive meanwhile are combined into one afterwards.
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                for _ in 0..20 {
                    let (status, done) = change(&rig, "POST", "/v1/logs/reopen", &json!({}));
                    // On a busy machine the wait for earlier reopenings may time out.
                    let still_busy = done.to_string().contains("opened again afterwards");
                    assert!(status == 200 || still_busy, "{done}");
                }
            });
        }
    });
    eventually("the reopens are done", || change(&rig, "POST", "/v1/logs/reopen", &json!({})).0 == 200);
    assert_eq!(change(&rig, "POST", "/v1/reload", &json!({})).0, 200);
    // The last request takes effect too: files renamed before it are no longer written.
    std::fs::rename(rig.folder.at("all.log"), rig.folder.at("all.log.1")).unwrap();
    assert_eq!(change(&rig, "POST", "/v1/logs/reopen", &json!({})).0, 200);
    // The response is sent after the reopening, so the next request is logged in the new file.
    assert!(rig.folder.at("all.log").exists());
    rig.get("/b").expect(200, "ok");
    has_lines(&rig, "all.log", &["/b"]);
    // A failure to open is reported to the caller and in the error log.
    fs::remove_file(rig.folder.at("all.log")).unwrap();
    fs::create_dir(rig.folder.at("all.log")).unwrap();
    let (status, done) = change(&rig, "POST", "/v1/logs/reopen", &json!({}));
    assert_eq!(status, 500, "{done}");
    assert!(done["error"].as_str().unwrap().contains("all.log: Is a directory"), "{done}");
    eventually("the error log has it", || rig.reported().contains("the old file stays in use"));
    rig.signal("-USR1");
    rig.signal("-TERM");
    assert!(rig.ended().success());
}

#[test]
fn no_syslog_line_is_lost_when_receiver_closes_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let log = format!(
        r#"
        [log]
        access = "$uri"
        file = {{ syslog = "tcp://{}" }}
        "#,
        listener.local_addr().unwrap()
    );
    let rig = Rig::config(
        Folder::new(),
        &format!(
            r#"
            threads = 1
            {log}
            [[route]]
            respond = "ok"
            "#
        ),
    );
    let line = |stream: &mut std::net::TcpStream| {
        let mut bytes = Vec::new();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        while frames_of(&bytes).is_none() {
            let mut piece = [0; 1024];
            let count = stream.read(&mut piece).unwrap();
            assert!(count > 0, "the connection has ended");
            bytes.extend_from_slice(&piece[..count]);
        }
        frames_of(&bytes).unwrap()
    };
    for round in 0..5 {
        rig.get(&format!("/{round}")).expect(200, "ok");
        let (mut stream, _) = listener.accept().unwrap();
        assert!(line(&mut stream).ends_with(&format!("/{round}")), "{round}");
        // From here on the kernel would accept what the server writes, and reset the connection.
        drop(stream);
    }
}

/// The message of a complete frame.
fn frames_of(bytes: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let (length, message) = text.split_once(' ')?;
    let length: usize = length.parse().ok()?;
    (message.len() >= length).then(|| message[..length].trim_end().to_owned())
}
