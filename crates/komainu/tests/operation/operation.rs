//! Everyday operation: configuration, logs, signals, and first steps of new users.

use std::fs;
use std::io::{Read, Write};

use crate::rig;
use crate::rig::{Folder, Rig, eventually, is_closed, komainu, read_answer, text};

fn run(arguments: &[&str]) -> (bool, String, String) {
    let output = komainu().args(arguments).output().unwrap();
    (output.status.success(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn graceful_stop_completes_running_requests() {
    let folder = Folder::new();
    folder.write("www/a", "A").write("www/large", vec![b'x'; 20_000_000]);
    let mut rig = Rig::config(folder, "[[route]]\nfiles = \"www\"\n");
    let mut idle = rig.connect();
    idle.write_all(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    read_answer(&mut idle).expect(200, "A").expect_no_field("Connection");
    let mut running = rig.connect();
    running.write_all(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut begun = [0; 1000];
    running.read_exact(&mut begun).unwrap();
    // A kept connection gets one more response, with `Connection: close`. It asks without a pause, because a
    // connection that is idle for a second while the server stops is closed.
    let kept = std::thread::spawn(move || {
        loop {
            idle.write_all(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
            if read_answer(&mut idle).expect(200, "A").field("Connection") == Some("close") {
                return is_closed(&mut idle);
            }
        }
    });
    rig.signal("-TERM");
    assert!(kept.join().unwrap(), "it is closed after that response");
    // A connection attempt is no reliable check: one core's socket may be closed while another one's is still
    // open.
    let listening = format!(":{:04X} 00000000:0000 0A", rig.listens.port());
    eventually("accepting has stopped", || {
        !fs::read_to_string("/proc/net/tcp").unwrap().contains(&listening)
    });
    let mut rest = Vec::new();
    running.read_to_end(&mut rest).unwrap();
    assert!(rest.len() + 1000 > 20_000_000, "the running response is completed");
    assert!(rig.ended().success());
    rig.expect_report("stopped");
}

#[test]
fn graceful_stop_ends_after_drain_timeout() {
    let folder = Folder::new();
    folder.write("www/large", vec![b'x'; 20_000_000]);
    let mut rig = Rig::config(
        folder,
        r#"
        [timeouts]
        drain = "200ms"
        [[route]]
        files = "www"
        "#,
    );
    let mut stuck = rig.connect();
    stuck.write_all(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut begun = [0; 1000];
    stuck.read_exact(&mut begun).unwrap();
    rig.signal("-INT");
    assert!(rig.ended().success());
    rig.expect_report("timeouts.drain");
}

#[test]
fn stop_logs_pending_requests_and_second_signal_forces_exit() {
    let folder = Folder::new();
    folder.write("www/large", vec![b'x'; 20_000_000]);
    let mut rig = Rig::config(
        folder,
        r#"
        [timeouts]
        drain = "60s"
        [log]
        level = "warn"
        [[route]]
        files = "www"
        "#,
    );
    let mut stuck = rig.connect();
    stuck.write_all(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    stuck.read_exact(&mut [0; 1000]).unwrap();
    rig.signal("-TERM");
    eventually("it is logged", || {
        rig.reported().contains("stopping: waiting for 1 request to end, at most 60 s (timeouts.drain)")
    });
    rig.signal("-TERM");
    assert_eq!(rig.ended().code(), Some(1));
}

#[test]
fn stop_waits_for_requests_but_not_for_idle_connections() {
    let folder = Folder::new();
    folder.write("www/large", vec![b'x'; 20_000_000]);
    let text = format!(
        r#"
        {}
        listen = {{ address = "127.0.0.1:0", h2c = true }}
        [timeouts]
        drain = "60s"
        [[route]]
        files = "www"
        "#,
        rig::as_we_are()
    );
    folder.write("komainu.toml", text);
    let mut command = komainu();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
    let mut rig = Rig::start(command, folder);
    let mut stuck = rig.connect();
    stuck.write_all(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    stuck.read_exact(&mut [0; 1000]).unwrap();
    // Clients that neither read responses nor close.
    let silent: Vec<_> = (0..3)
        .map(|_| {
            let mut client = rig.connect();
            client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
            client.read_exact(&mut [0; 9]).unwrap();
            client
        })
        .collect();
    rig.signal("-TERM");
    eventually("it is logged", || rig.reported().contains("stopping: waiting for 1 request to end"));
    drop(stuck);
    assert!(rig.ended().success(), "{}", rig.reported());
    drop(silent);
}

#[test]
fn simultaneous_stop_signals_still_drain_requests() {
    for kind in rig::kinds() {
        let folder = Folder::new();
        folder.write("www/large", vec![b'x'; 20_000_000]);
        folder.write(
            "komainu.toml",
            format!(
                r#"
                listen = "127.0.0.1:0"
                {kind}
                [[route]]
                files = "www"
                "#
            ),
        );
        let mut command = komainu();
        command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
        let mut rig = Rig::start(command, folder);
        let mut running = rig.connect();
        running.write_all(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        running.read_exact(&mut [0; 1000]).unwrap();
        // A shell signals the group, and systemd may signal both the process and its group.
        let pid = rustix::process::Pid::from_child(&rig.child);
        for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
            rustix::process::kill_process(pid, signal).unwrap();
        }
        let mut rest = Vec::new();
        running.read_to_end(&mut rest).unwrap();
        assert!(rest.len() + 1000 > 20_000_000, "the running response is completed");
        assert!(rig.ended().success(), "{}", rig.reported());
    }
}

/// Starts a server with the folders `one` and `two`, of which it serves the first.
fn one_of_two() -> Rig {
    let folder = Folder::new();
    folder.write("one/a", "one").write("two/a", "two");
    let rig = Rig::config(folder, "[[route]]\nfiles = \"one\"\n");
    rig.get("/a").expect(200, "one");
    rig
}

/// Writes a configuration and sends SIGHUP.
fn reload(rig: &Rig, text: &str) {
    rig.folder.write("komainu.toml", format!("listen = \"127.0.0.1:0\"\n{}{text}", rig::as_we_are()));
    rig.signal("-HUP");
}

#[test]
fn sighup_applies_valid_configuration_and_rejects_errors() {
    let rig = one_of_two();
    reload(&rig, "[[route]]\nfiels = \"two\"\n");
    rig.expect_report("fiels");
    rig.get("/a").expect(200, "one");
    reload(&rig, "[[route]]\nfiles = \"nowhere\"\n");
    rig.expect_report("nowhere");
    rig.get("/a").expect(200, "one");
    reload(&rig, "[[route]]\nfiles = \"two\"\n");
    eventually("the new configuration is used", || rig.get("/a").text() == "two");
}

#[test]
fn reloaded_limits_apply_without_a_restart() {
    let rig = one_of_two();
    reload(
        &rig,
        r#"
        [limits]
        body = "1B"
        [[route]]
        files = "two"
        "#,
    );
    let post = "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nConnection: close\r\n\r\n";
    eventually("the new limit is used", || rig.send(post).status() == 413);
    reload(
        &rig,
        r#"
        [limits]
        head = "2KiB"
        request_line = "1KiB"

        [timeouts]
        idle = "1s"

        [log]
        level = "warn"

        [[route]]
        files = "two"
        "#,
    );
    // These limits apply to the next connection, and to the next request of an open one.
    let long = format!("GET /a HTTP/1.1\r\nHost: a\r\nX: {}\r\nConnection: close\r\n\r\n", "x".repeat(3_000));
    eventually("the new limits are used", || rig.send(&long).status() == 431);
    let mut idle = rig::connect(rig.address);
    idle.write_all(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    read_answer(&mut idle).expect(200, "two");
    assert_eq!(idle.read(&mut [0]).unwrap(), 0, "`timeouts.idle` closes it");
    reload(
        &rig,
        r#"
        [limits]
        connections = 5
        memory = "64MiB"
        [[route]]
        files = "two"
        "#,
    );
    eventually("the old limits are used again", || rig.send(&long).status() == 200);
    assert!(!rig.reported().contains("restart"), "{}", rig.reported());
}

#[test]
fn reload_logs_what_changes_only_at_a_restart() {
    let rig = one_of_two();
    reload(
        &rig,
        r#"
        temp_path = "two"
        [[route]]
        files = "two"
        "#,
    );
    rig.expect_report("`temp_path` changes only at a restart");
    eventually("the rest is used", || rig.get("/a").text() == "two");
}

#[test]
fn combined_access_log_is_reopened_after_rotation() {
    let folder = Folder::new();
    folder.write("www/a", "A");
    let rig = Rig::config(
        folder,
        // A single thread keeps the lines in order.
        r#"
        threads = 1
        [log]
        access = "combined"
        file = "access.log"
        [[route]]
        files = "www"
        "#,
    );
    rig.ask("/a?q=1", "User-Agent: te\"st\r\nReferer: http://r/\r\n");
    rig.send("nonsense\r\n\r\n");
    let log = rig.folder.at("access.log");
    let lines = || fs::read_to_string(&log).unwrap_or_default();
    eventually("both lines are written", || lines().lines().count() == 2);
    let reported = lines();
    let (first, second) = reported.split_once('\n').unwrap();
    assert!(
        first.starts_with("127.0.0.1 - - [")
            && first.contains("+0000] \"GET /a?q=1 HTTP/1.1\" 200 1 \"http://r/\" \"te\\x22st\""),
        "{first}"
    );
    assert!(second.contains("\"-\" 400 "), "{second}");
    // Rotation: the file is renamed, and created again on the signal.
    fs::rename(&log, rig.folder.at("access.log.1")).unwrap();
    rig.signal("-USR1");
    eventually("the log is opened again", || log.exists());
    rig.get("/a");
    eventually("the next line is in the new file", || lines().lines().count() == 1);
}

#[test]
fn lines_before_a_rotation_are_in_the_old_file() {
    let folder = Folder::new();
    folder.write("www/a", "A");
    let rig = Rig::config(
        folder,
        r#"
        threads = 2
        [log]
        access = "combined"
        file = "access.log"
        [[route]]
        files = "www"
        "#,
    );
    let log = rig.folder.at("access.log");
    let old = rig.folder.at("access.log.1");
    let lines = |path: &std::path::Path| fs::read_to_string(path).unwrap_or_default().lines().count();
    for round in 0..3 {
        for _ in 0..10 {
            rig.get("/a").expect(200, "A");
        }
        // No delay, as with logrotate: requests answered already belong to the old file.
        fs::rename(&log, &old).unwrap();
        rig.signal("-USR1");
        eventually("the log is opened again", || log.exists());
        assert_eq!((lines(&old), lines(&log)), (10, 0), "round {round}");
    }
}

#[test]
fn log_fifo_without_reader_does_not_block_start_or_stop() {
    let folder = Folder::new();
    folder.write("www/a", "A");
    let fifo = folder.at("access.fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let mut rig = Rig::config(
        folder,
        r#"
        threads = 1
        [log]
        access = "combined"
        file = "access.fifo"
        [[route]]
        files = "www"
        "#,
    );
    rig.get("/a").expect(200, "A");
    rig.expect_report("this FIFO has no reader");
    // A new reader gets the lines from then on.
    let reader = std::thread::spawn({
        let fifo = fifo.clone();
        move || {
            let mut lines = std::io::BufRead::lines(std::io::BufReader::new(fs::File::open(fifo).unwrap()));
            lines.find(|line| line.as_ref().unwrap().contains("GET /now")).is_some()
        }
    });
    eventually("a line arrives", || {
        rig.get("/now").expect_status(404);
        std::thread::sleep(std::time::Duration::from_millis(100));
        reader.is_finished()
    });
    assert!(reader.join().unwrap());
    // The reader has left: lines are counted as lost again, and the stop does not wait.
    rig.get("/a").expect(200, "A");
    rig.signal("-TERM");
    assert!(rig.ended().success());
    rig.expect_report("dropped while it could not be written");
}

#[test]
fn sites_and_routes_answer_as_configured() {
    let folder = Folder::new();
    folder.write("www/a", "A").write("lost.html", "<p>lost").write("broken.html", "<p>broken");
    let rig = Rig::config(
        folder,
        r#"
error_pages = { 404 = "lost.html" }
response_headers = { set = { X-All = "all" } }

[[site]]
hosts = ["example.com"]
error_pages = { "5xx" = "broken.html" }
response_headers = { remove = ["Server"], set = { X-Path = "$path" } }
[[site.route]]
path = "/old/*"
redirect = { to = "/new/$rest$query", status = 308 }
[[site.route]]
path = "/teapot"
respond = { status = 418, body = "short and stout" }
[[site.route]]
path = "/broken"
respond = 503
[[site.route]]
method = "POST"
header = { X-Beta = "yes*" }
query = { v = "2" }
respond = "beta"
[[site.route]]
files = "www"

[[site]]
hosts = ["*.example.com"]
[[site.route]]
redirect = "https://$host$path"

[[site]]
[[site.route]]
path = "/only"
respond = "default"
"#,
    );
    let get = |host: &str, target: &str| {
        rig.send(&format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"))
    };
    let a = get("EXAMPLE.com:8080", "/a");
    a.expect(200, "A").expect_field("X-All", "all").expect_field("X-Path", "/a").expect_no_field("Server");
    get("example.com", "/old/x%20y?z=1").expect_status(308).expect_field("Location", "/new/x%20y?z=1");
    get("example.com", "/teapot").expect(418, "short and stout");
    get("example.com", "/nothing")
        .expect(404, "<p>lost")
        .expect_field("Content-Type", "text/html; charset=utf-8");
    get("www.example.com", "/p").expect_status(302).expect_field("Location", "https://www.example.com/p");
    get("other", "/only").expect(200, "default").expect_field("Server", "Komainu");
    get("other", "/a").expect(404, "<p>lost");
    let post = |fields: &str| {
        rig.send(&format!("POST /x?v=2 HTTP/1.1\r\nHost: example.com\r\n{fields}Content-Length: 0\r\nConnection: close\r\n\r\n"))
    };
    post("X-Beta: yes, please\r\n").expect(200, "beta");
    post("").expect_status(404);
    rig.send("OPTIONS * HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").expect_status(204);
    rig.send("CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\nConnection: close\r\n\r\n").expect_status(501);
}

#[test]
fn unread_stdout_log_does_not_block_requests_or_stop() {
    let folder = Folder::new();
    folder.write("www/a", "A");
    folder.write(
        "komainu.toml",
        format!(
            r#"
            listen = "127.0.0.1:0"
            {}
            [log]
            access = "combined"
            [[route]]
            files = "www"
            "#,
            rig::as_we_are()
        ),
    );
    let mut command = komainu();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
    let mut child =
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::null()).spawn().unwrap();
    // Kept open, but not read after the address is known.
    let mut stdout = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut stdout, &mut line).unwrap();
    let mut stream = rig::connect(line.rsplit("http://").next().unwrap().trim().parse().unwrap());
    // More than the pipe and the queue hold: each quote takes four bytes in the log.
    let request = format!("GET /a HTTP/1.1\r\nHost: a\r\nUser-Agent: {}\r\n\r\n", "\"".repeat(10_000));
    for _ in 0..400 {
        stream.write_all(request.as_bytes()).unwrap();
        read_answer(&mut stream).expect(200, "A");
    }
    drop(stream);
    let mut ended = None;
    for signal in ["-USR1", "-TERM"] {
        std::process::Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
    }
    // Without a limit the process would wait for its reader forever.
    let until = std::time::Instant::now() + 3 * rig::PATIENCE;
    while ended.is_none() && std::time::Instant::now() < until {
        ended = child.try_wait().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
}

#[test]
fn path_variable_in_response_field_is_percent_encoded() {
    let folder = Folder::new();
    folder.write("www/a", "A");
    let rig = Rig::config(
        folder,
        r#"
        response_headers = { set = { X-Report = "at $path" } }
        [[route]]
        files = "www"
        "#,
    );
    // The decoded value would be invalid and the field omitted, which clients could exploit.
    rig.get("/a%20b%0d%0aX:%20y").expect_field("X-Report", "at /a%20b%0d%0aX:%20y");
    rig.get("/a").expect_field("X-Report", "at /a");
}

#[test]
fn set_and_add_override_remove_on_the_same_level() {
    for value in ["one", "$method"] {
        let folder = Folder::new();
        folder.write("www/a", "A");
        let text = format!(
            r#"
            response_headers = {{ set = {{ X-One = "{value}" }}, remove = ["X-One", "X-Two"], add = {{ X-Two = "2" }} }}
            [[route]]
            path = "/a"
            files = "www"
            [[route]]
            response_headers = {{ remove = ["X-One"] }}
            files = "www"
            "#
        );
        let rig = Rig::config(folder, &text);
        let shown = value.replace("$method", "GET");
        rig.get("/a").expect_field("X-One", &shown).expect_field("X-Two", "2");
        rig.get("/b").expect_no_field("X-One").expect_field("X-Two", "2");
    }
}

#[test]
fn a_redirect_keeps_an_encoded_slash() {
    let rig = Rig::config(
        Folder::new(),
        r#"
        encoded_slashes = "keep"
        [[route]]
        path = "/old/*"
        redirect = "/new/$rest?at=$path"
        "#,
    );
    for (path, rest) in
        [("a%2Fb", "a%2Fb"), ("a%2fb%20c", "a%2fb%20c"), ("a%252Fb", "a%252Fb"), ("100%25", "100%25")]
    {
        let location = format!("/new/{rest}?at=/old/{rest}");
        rig.get(&format!("/old/{path}")).expect_status(302).expect_field("Location", &location);
    }
}

#[test]
fn responses_use_error_pages_and_fields_of_their_site() {
    let folder = Folder::new();
    folder.write("server.html", "<p>server").write("site.html", "<p>site");
    let rig = Rig::config(
        folder,
        r#"
error_pages = { "4xx" = "server.html" }
response_headers = { set = { X-All = "all", X-At = "at $path" }, remove = ["Server"] }
limits = { body = "1B" }
[[site]]
hosts = ["site"]
error_pages = { "4xx" = "site.html" }
response_headers = { set = { X-Site = "yes" } }
[[site.route]]
path = "/only"
respond = "fine"
"#,
    );
    let ask = |head: &str, host: &str, body: &str| {
        let answer = rig.send(&format!(
            "{head} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ));
        answer.expect_field("X-All", "all").expect_no_field("Server");
        answer
    };
    ask("GET /only", "site", "").expect(200, "fine").expect_field("X-Site", "yes");
    ask("GET /a%20b", "site", "").expect(404, "<p>site").expect_field("X-At", "at /a%20b");
    ask("POST /only", "site", "too large").expect(413, "<p>site").expect_field("X-Site", "yes");
    ask("GET /%00", "site", "").expect(400, "<p>site").expect_field("X-Site", "yes");
    ask("GET /only", "other", "").expect(404, "<p>server").expect_no_field("X-Site");
    ask("OPTIONS *", "other", "").expect_status(204);
    // Bytes that are not a request belong to no site, whatever the previous request was.
    let mut stream = rig.connect();
    stream.write_all(b"GET /none HTTP/1.1\r\nHost: site\r\n\r\nnonsense\r\n\r\n").unwrap();
    read_answer(&mut stream).expect(404, "<p>site");
    read_answer(&mut stream).expect_status(400).expect_no_field("X-Site");
}

#[test]
fn without_descriptors_the_control_socket_does_not_spin() {
    let rig = Rig::files(&[("a", "A")]);
    let pid = rig.child.id().to_string();
    let cpu_ticks = || -> u64 {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_ascii_whitespace().collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    };
    let limit = |max: &str| {
        let set =
            std::process::Command::new("prlimit").args(["--pid", &pid, &format!("--nofile={max}:")]).status();
        assert!(set.unwrap().success());
    };
    limit("3");
    // The descriptor reserved by accept serves this connection; the next one is refused.
    let _ = run(&["status", "--pid", &pid]);
    let before = cpu_ticks();
    std::thread::sleep(std::time::Duration::from_secs(1));
    let spent = cpu_ticks() - before;
    limit("1000");
    assert!(spent < 30, "{spent} hundredths of a second in one");
    eventually("it answers again", || run(&["status", "--pid", &pid]).0);
}

#[test]
fn request_without_host_is_not_redirected() {
    let rig = Rig::config(Folder::new(), "[[route]]\nredirect = \"https://$host$path\"\n");
    // Browsers would parse `https:///other.example/` as a different host.
    rig.send("GET /other.example/ HTTP/1.0\r\n\r\n").expect_status(400).expect_no_field("Location");
    rig.send("GET /other.example/ HTTP/1.1\r\nHost:\r\nConnection: close\r\n\r\n").expect_status(400);
    rig.get("/a").expect_field("Location", "https://localhost/a");
}

#[test]
fn configuration_errors_show_file_line_and_column() {
    let folder = Folder::new();
    folder.write(
        "k.toml",
        r#"
        threads = 2
        [[route]]
        fiels = "public"
        "#,
    );
    let path = folder.at("k.toml");
    let path = path.to_str().unwrap();
    for command in ["check", "start"] {
        let (ok, _, errors) = run(&[command, "-c", path]);
        assert!(!ok);
        for part in ["k.toml:4:9", "fiels", "files", "^^^^^"] {
            assert!(errors.contains(part), "{part} in {errors}");
        }
    }
    let (ok, _, errors) = run(&["check", "-c", "/nowhere/k.toml"]);
    assert!(!ok && errors.contains("/nowhere/k.toml"), "{errors}");
    folder.write("k.toml", "[[route]]\nfiles = \"missing\"\n");
    let (ok, _, errors) = run(&["check", "-c", path]);
    assert!(!ok && errors.contains("missing"), "{errors}");
}

#[test]
fn check_explains_which_route_matches() {
    let folder = Folder::new();
    folder.write(
        "k.toml",
        r#"
        [[route]]
        path = "/a/*"
        respond = "a"
        [[route]]
        respond = "rest"
        "#,
    );
    let path = folder.at("k.toml");
    let path = path.to_str().unwrap();
    let (ok, out, errors) = run(&["check", "-c", path]);
    assert!(ok && out.contains("2 routes"), "{out}{errors}");
    let (ok, out, errors) = run(&["check", "-c", path, "--explain", "http://localhost/a/b"]);
    assert!(ok && out.contains("/a/*"), "{out}{errors}");
    let (_, other, _) = run(&["check", "-c", path, "--explain", "http://localhost/b"]);
    assert_ne!(out, other);
    // Explained as the server parses it: an encoded slash is part of a name and refused; a URL may consist of
    // host and query.
    let (ok, out, errors) = run(&["check", "-c", path, "--explain", "http://localhost/a/b%2Fc"]);
    assert!(ok && out.contains("> line 2: /a/*") && out.contains("400"), "{out}{errors}");
    folder.write(
        "query.toml",
        r#"
        [[route]]
        query = { v = "2" }
        respond = "two"
        "#,
    );
    let query = folder.at("query.toml");
    let (ok, out, errors) =
        run(&["check", "-c", query.to_str().unwrap(), "--explain", "http://localhost?v=2"]);
    assert!(ok && out.contains("matches: respond"), "{out}{errors}");
    let (ok, _, errors) = run(&["check", "-c", path, "--explain", "/../x"]);
    assert!(!ok && errors.contains("400"), "{errors}");
}

#[test]
fn check_explains_that_a_script_on_the_path_has_a_route() {
    let folder = Folder::new();
    folder.write(
        "k.toml",
        r#"
        [[route]]
        path = "/admin/*.php"
        allow = "10.0.0.0/8"
        files = "."
        php = "unix:/nowhere"
        [[route]]
        files = "."
        php = "unix:/nowhere"
        "#,
    );
    let path = folder.at("k.toml");
    let path = path.to_str().unwrap();
    let (ok, out, errors) = run(&["check", "-c", path, "--explain", "http://localhost/admin/a.php/b"]);
    assert!(
        ok && out.contains("if /admin/a.php is a script, the guards of its route (line 2)"),
        "{out}{errors}"
    );
    assert!(out.contains("before it answers: `allow`"), "{out}");
    let (_, out, _) = run(&["check", "-c", path, "--explain", "http://localhost/admin/b"]);
    assert!(!out.contains("script"), "{out}");
}

#[test]
fn check_explains_which_directives_may_refuse() {
    let folder = Folder::new();
    folder.write("passwords", "alice:$2y$05$c4WoMPo3SXsafkva.HHa6uXQZWr7oboPiC2bT/r7q1BB8I2s0BRqC\n");
    folder.write("files/a", "a");
    folder.write(
        "k.toml",
        r#"
        crawlers = ["seo"]
        maintenance = { file = "down" }
        [[route]]
        path = "/internal"
        allow = "10.0.0.0/8"
        internal = true
        files = "files"
        [[route]]
        path = "/closed"
        auth = { basic = "passwords" }
        limit = "1/s"
        header_limit = 20
        deny = "192.0.2.0/24"
        allow = "10.0.0.0/8"
        queue = 8
        fault = { status = 503, share = "1%" }
        proxy = "http://127.0.0.1:9"
        [[route]]
        respond = "rest"
        "#,
    );
    let path = folder.at("k.toml");
    let explained = |url: &str| {
        let (ok, out, errors) = run(&["check", "-c", path.to_str().unwrap(), "--explain", url]);
        assert!(ok, "{out}{errors}");
        out
    };
    for (url, text) in [
        (
            "/closed",
            "before it answers: `allow`, `deny`, `maintenance`, `crawlers`, `header_limit`, `limit`, `auth`, `fault`, `queue`\n",
        ),
        ("/rest", "before it answers: `maintenance`, `crawlers`\n"),
        ("/internal", "but clients get 404 (`internal`)\n"),
    ] {
        assert!(explained(url).contains(text), "{}", explained(url));
    }
    assert!(!explained("/internal").contains("before it answers"));
}

#[test]
fn mistakes_on_the_command_line_are_explained() {
    for (arguments, part) in [
        (&["run", "/nowhere"][..], "no such folder"),
        (&["run", "/etc/passwd"], "this file is not an application"),
        (&["run", "--listen", "80", "/tmp"], ":80"),
        (&["run"], "TARGET"),
        (&["stort"], "start"),
    ] {
        let (ok, _, errors) = run(arguments);
        assert!(!ok && errors.contains(part), "{arguments:?}: {errors}");
    }
}

#[test]
fn schema_reference_completions_and_manual_are_printed() {
    let (ok, schema, _) = run(&["schema"]);
    assert!(ok);
    let schema: serde_json::Value = serde_json::from_str(&schema).unwrap();
    assert!(schema["properties"]["listen"].is_object());
    for (arguments, part) in [
        (&["reference"][..], "requests_per_connection"),
        (&["completions", "bash"], "komainu"),
        (&["completions", "zsh"], "#compdef komainu"),
        (&["completions", "fish"], "complete -c komainu"),
        (&["man"], ".TH"),
        (&["--help"], "Examples:"),
    ] {
        let (ok, out, errors) = run(arguments);
        assert!(ok && out.contains(part), "{arguments:?}: {out}{errors}");
    }
}

#[test]
fn wildcard_address_serves_ipv4_and_ipv6() {
    let folder = Folder::new();
    folder.write("www/a", "A");
    let mut command = komainu();
    command.args(["run", "--listen", ":0"]).arg(folder.at("www"));
    let mut child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line)
        .unwrap();
    let port = line.split(':').nth(2).unwrap().split(' ').next().unwrap().trim().to_owned();
    for host in ["127.0.0.1", "[::1]"] {
        let has_v6 = std::net::TcpListener::bind("[::1]:0").is_ok();
        if host == "[::1]" && !has_v6 {
            continue;
        }
        let answer = rig::curl(&[&format!("http://{host}:{port}/a")]);
        assert_eq!(text(&answer.stdout), "A", "{host}: {}", text(&answer.stderr));
    }
    child.kill().unwrap();
    child.wait().unwrap();
}
