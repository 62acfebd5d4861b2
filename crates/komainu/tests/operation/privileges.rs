//! A server started as root: its user, its remaining privileges, and restarts of a server process that dies.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use crate::hosted;
use crate::hosted::{is_alive, kill, modules, only, server, status};
use crate::rig;
use crate::rig::{Folder, Rig, eventually, komainu};

/// Whether these tests can run; prints a note if not.
pub(crate) fn can_be_tested() -> bool {
    if !rig::is_root() {
        eprintln!("SKIPPED: only root can start a server that gives up its rights");
    }
    rig::is_root()
}

/// Runs `komainu start` as root with a configuration and files that only root may read and write.
pub(crate) fn start(folder: Folder, config: &str) -> Rig {
    modules();
    folder.write("komainu.toml", config);
    fs::set_permissions(folder.at("komainu.toml"), fs::Permissions::from_mode(0o600)).unwrap();
    let mut command = server();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
    Rig::start(command, folder)
}

/// Serves `www`, with a log in a directory of root.
fn files(more: &str) -> Rig {
    let folder = Folder::new();
    folder.write("www/a", "A").write("logs/nothing", "");
    fs::set_permissions(folder.at("logs"), fs::Permissions::from_mode(0o700)).unwrap();
    let config = format!(
        r#"
        listen = "127.0.0.1:0"
        {more}
        [log]
        access = "combined"
        file = "logs/access.log"
        errors = "logs/errors.log"
        [[route]]
        files = "www"
        "#
    );
    start(folder, &config)
}

fn errors(rig: &Rig) -> String {
    fs::read_to_string(rig.folder.at("logs/errors.log")).unwrap_or_default()
}

/// Process id of the serving process.
fn serving(rig: &Rig) -> u32 {
    status(rig)["pid"].as_u64().unwrap() as u32
}

/// A line of the status of each thread.
fn of_threads(pid: u32, name: &str) -> Vec<String> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let line = |path: std::path::PathBuf| {
        let status = fs::read_to_string(path.join("status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        Some(line.split_whitespace().collect::<Vec<_>>().join(" "))
    };
    threads.filter_map(|thread| line(thread.unwrap().path())).collect()
}

#[track_caller]
fn assert_unprivileged(pid: u32, uid: u32, groups: &str) {
    for (name, wanted) in [
        ("Uid", format!("{uid} {uid} {uid} {uid}").as_str()),
        ("Gid", format!("{uid} {uid} {uid} {uid}").as_str()),
        ("Groups", groups),
        ("CapInh", "0000000000000000"),
        ("CapPrm", "0000000000000000"),
        ("CapEff", "0000000000000000"),
        ("CapBnd", "0000000000000000"),
        ("CapAmb", "0000000000000000"),
        ("NoNewPrivs", "1"),
    ] {
        let found = of_threads(pid, name);
        assert!(!found.is_empty(), "process {pid} has ended");
        assert!(found.iter().all(|value| value == wanted), "{name} of {pid}: {found:?}");
    }
}

#[test]
fn server_process_has_no_privileges() {
    if !can_be_tested() {
        return;
    }
    let rig = files("user = \"65534\"\ngroup = \"65534\"\nthreads = 3");
    rig.get("/a").expect(200, "A");
    let pid = serving(&rig);
    assert_ne!(pid, rig.child.id());
    assert_unprivileged(pid, 65534, "65534");
    assert_eq!(of_threads(rig.child.id(), "Uid")[0], "0 0 0 0");
    assert!(errors(&rig).contains("as 65534 (uid 65534)"), "{}", errors(&rig));
}

#[test]
fn server_started_as_root_serves_as_another_user() {
    if !can_be_tested() {
        return;
    }
    let rig = files("");
    rig.get("/a").expect(200, "A");
    assert_ne!(of_threads(serving(&rig), "Uid")[0], "0 0 0 0");
    // `komainu run` serves as root, with a warning.
    let folder = Folder::new();
    folder.write("www/a", "A");
    let mut command = komainu();
    command.args(["run", "--listen", "127.0.0.1:0"]).arg(folder.at("www"));
    let rig = Rig::start(command, folder);
    eventually("the warning is there", || rig.reported().contains("serving as root"));
}

#[test]
fn workers_have_no_privileges() {
    if !can_be_tested() {
        return;
    }
    let folder = Folder::new();
    folder.write("app.psgi", "sub { [200, [], [\"$$ $<\"]] }");
    let config = format!(
        r#"
        listen = "127.0.0.1:0"
        user = "65534"
        group = "65534"
        {}
        "#,
        only("psgi = \"app.psgi\"\nworkers = 2")
    );
    let rig = start(folder, &config);
    let answer = rig.get("/").text();
    let (pid, uid) = answer.split_once(' ').unwrap();
    assert_eq!(uid, "65534");
    assert_unprivileged(pid.parse().unwrap(), 65534, "65534");
}

#[test]
fn bind_capability_is_dropped_after_binding() {
    if !can_be_tested() {
        return;
    }
    let folder = Folder::new();
    folder.write("app.psgi", "sub { [200, [], [$$]] }");
    let copied = std::process::Command::new("cp").arg("-r").arg(modules()).arg(folder.at("workers")).status();
    assert!(copied.unwrap().success());
    rig::copy_program(&folder.at("komainu"));
    // Like a systemd unit with `User` and `AmbientCapabilities`.
    let mut command = std::process::Command::new("setpriv");
    command
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .args(["--inh-caps=+net_bind_service", "--ambient-caps=+net_bind_service"])
        .arg(folder.at("komainu"))
        .args(["run", "--workers", "1", "--listen", "127.0.0.1:0", "app.psgi"])
        .env("KOMAINU_WORKERS", folder.at("workers"))
        .env("RUNTIME_DIRECTORY", folder.at("run"))
        .current_dir(folder.path());
    let rig = Rig::start(command, folder);
    let worker = rig.get("/").expect_status(200).text();
    for pid in [rig.child.id(), worker.parse().unwrap()] {
        for name in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
            assert!(of_threads(pid, name).iter().all(|value| value == "0000000000000000"), "{name} of {pid}");
        }
    }
}

/// Starts a PSGI application that runs as user 65533, in a directory closed to others; the server runs as
/// 65534.
pub(crate) fn of_another_user(app: &str, more: &str) -> Rig {
    of_user(65533, app, more)
}

/// Like [`of_another_user`], with the application's user, and `more` tables of the configuration after it.
pub(crate) fn of_user(user: u32, app: &str, more: &str) -> Rig {
    of_user_through(&[], user, app, more)
}

/// Like [`of_user`], with the server started by another program.
fn of_user_through(starter: &[&str], user: u32, app: &str, more: &str) -> Rig {
    let folder = Folder::new();
    folder.write("own/app.psgi", app).write("own/own.txt", "hello");
    std::os::unix::fs::chown(folder.at("own"), Some(user), Some(user)).unwrap();
    fs::set_permissions(folder.at("own"), fs::Permissions::from_mode(0o700)).unwrap();
    // The build directory may be unreadable for that user, so the modules are copied.
    let copied = std::process::Command::new("cp").arg("-r").arg(modules()).arg(folder.at("workers")).status();
    assert!(copied.unwrap().success());
    let config = format!(
        r#"
        listen = "127.0.0.1:0"
        user = "65534"
        group = "65534"
        {}
        "#,
        only(&format!(
            r#"
            psgi = "own/app.psgi"
            user = "{user}"
            group = "{user}"
            {more}
            "#
        ))
    );
    folder.write("komainu.toml", config);
    let mut command = komainu();
    if let Some((program, arguments)) = starter.split_first() {
        let server = std::mem::replace(&mut command, std::process::Command::new(program));
        command.args(arguments).arg(server.get_program());
        command.envs(server.get_envs().filter_map(|(name, value)| Some((name, value?))));
    }
    command.env("KOMAINU_WORKERS", folder.at("workers"));
    command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
    Rig::start(command, folder)
}

fn application_of_another_user(more: &str) -> Rig {
    let app = "sub { my $p = $_[0]{PATH_INFO}; sleep 600 if $p eq '/hang'; exit 3 if $p eq '/exit'; \
               if ($p eq '/file') { open my $f, '<', 'own.txt' or die; return [200, ['Content-Length', 5], $f] } \
               [200, [], [\"$$ $<\"]] }";
    of_another_user(app, more)
}

/// Process id and user of the worker that answers.
fn who(rig: &Rig) -> (u32, u32) {
    let answer = rig.get("/").expect_status(200).text();
    let (pid, uid) = answer.split_once(' ').unwrap();
    (pid.parse().unwrap(), uid.parse().unwrap())
}

#[test]
fn application_can_run_as_another_user() {
    if !can_be_tested() {
        return;
    }
    for more in ["workers = 1", "workers = 1\npreload = false"] {
        let mut rig = application_of_another_user(more);
        let (pid, uid) = who(&rig);
        assert_eq!(uid, 65533);
        assert_unprivileged(pid, 65533, "");
        assert_unprivileged(serving(&rig), 65534, "65534");
        // The descriptor belongs to a process that the server may not inspect.
        rig.get("/file").expect(200, "hello");
        let worker = hosted::processes(&rig).into_iter().find(|seen| seen.pid == pid).unwrap();
        assert_eq!(worker.state, "ready");
        let apps = &status(&rig)["apps"][0]["processes"];
        let costs = |process: &serde_json::Value| process["usage"]["pss_bytes"].as_u64() > Some(0);
        assert!(apps.as_array().unwrap().iter().all(costs), "{apps}");
        // The server may neither kill nor wait for this process.
        rig.get("/exit").expect_status(502);
        eventually("its end is logged as it was", || rig.reported().contains("ended with status 3"));
        eventually("another one answers", || rig.get("/").status() == 200);
        rig.signal("-HUP");
        eventually("the next generation takes over", || rig.reported().contains("generation 2 takes over"));
        let (pid, _) = who(&rig);
        rig.signal("-TERM");
        assert!(rig.ended().success());
        assert!(!is_alive(pid));
    }
}

#[test]
fn limits_of_another_user_need_no_capability() {
    if !can_be_tested() {
        return;
    }
    let limits = "workers = 1\nlimits = { memory = \"900MiB\", processes = 50, files = 90, core = \"1KiB\", file_size = \"1MiB\" }";
    for more in [limits.to_owned(), format!("preload = false\n{limits}")] {
        // As in a container without CAP_SYS_RESOURCE.
        let without = ["setpriv", "--bounding-set=-sys_resource", "--inh-caps=-sys_resource"];
        let app = "sub { open my $f, '<', '/proc/self/limits' or die; return [200, [], [<$f>]] }";
        let rig = of_user_through(&without, 65533, app, &more);
        let found = rig.get("/").expect_status(200).text();
        let limit = |name: &str| {
            let line = found.lines().find(|line| line.starts_with(name)).unwrap();
            let mut values = line[name.len()..].split_whitespace();
            assert_eq!(values.clone().next(), values.nth(1), "{line}");
            line[name.len()..].split_whitespace().next().unwrap().to_owned()
        };
        let expected = [
            ("Max processes", "50"),
            ("Max open files", "90"),
            ("Max core file size", "1024"),
            ("Max file size", "1048576"),
        ];
        for (name, value) in expected {
            assert_eq!(limit(name), value, "{found}");
        }
        assert!(limit("Max address space").parse::<u64>().unwrap() >= 900 << 20, "{found}");
    }
}

#[test]
fn hung_worker_of_another_user_is_killed() {
    if !can_be_tested() {
        return;
    }
    let rig = application_of_another_user("workers = 1\ntimeouts = { request = \"1s\" }");
    let (pid, _) = who(&rig);
    rig.get("/hang").expect_status(504);
    eventually("it is killed", || !is_alive(pid));
    eventually("another one answers", || rig.get("/").status() == 200);
}

#[test]
fn workers_of_another_user_end_with_their_server() {
    if !can_be_tested() {
        return;
    }
    let mut rig = application_of_another_user("workers = 2");
    let (worker, _) = who(&rig);
    assert!(kill(serving(&rig), "-KILL"));
    eventually("the worker has ended", || !is_alive(worker));
    let (worker, uid) = who(&rig);
    assert_eq!(uid, 65533);
    rig.child.kill().unwrap();
    rig.ended();
    eventually("the worker has ended with the supervisor", || !is_alive(worker));
}

#[test]
fn server_with_privileged_port_can_reload() {
    if !can_be_tested() {
        return;
    }
    // A privileged port, if the system reserves any for root.
    let first = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").unwrap();
    let first: u16 = first.trim().parse().unwrap();
    let folder = Folder::new();
    folder.write("www/a", "A").write("two/a", "two");
    let port = (600..first.max(601)).find(|port| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok());
    let Some(port) = port else { return eprintln!("SKIPPED: this system keeps no port for root") };
    let config = |files: &str| {
        format!(
            r#"
            listen = "127.0.0.1:{port}"
            user = "65534"
            group = "65534"
            [[route]]
            files = "{files}"
            "#
        )
    };
    let rig = start(folder, &config("www"));
    assert_eq!(rig.address.port(), port);
    rig.get("/a").expect(200, "A");
    rig.folder.write("komainu.toml", config("two"));
    rig.signal("-HUP");
    eventually("the new configuration is used", || rig.get("/a").text() == "two");
    rig.folder.write("komainu.toml", config("www").replace("files", "fiels"));
    let pid = rig.child.id().to_string();
    let refused = komainu().args(["reload", "--pid", &pid]).output().unwrap();
    let said = rig::text(&refused.stderr);
    assert!(refused.status.code() == Some(1) && said.contains("fiels"), "{said}");
    rig.get("/a").expect(200, "two");
}

#[test]
fn supervisor_reads_certificates_and_keys_owned_by_root() {
    if !can_be_tested() {
        return;
    }
    let folder = Folder::new();
    folder.certify();
    for file in ["cert.pem", "key.pem"] {
        fs::set_permissions(folder.at(file), fs::Permissions::from_mode(0o600)).unwrap();
    }
    let config = |status: u16| {
        format!(
            r#"
            listen = "127.0.0.1:0"
            user = "65534"
            group = "65534"
            [[route]]
            path = "/p"
            proxy = {{ to = "https://127.0.0.1:1", tls = {{ ca = "cert.pem", certificate = "cert.pem", key = "key.pem" }} }}
            [[route]]
            respond = {{ status = {status} }}
            "#
        )
    };
    let rig = start(folder, &config(204));
    rig.get("/").expect_status(204);
    rig.get("/p").expect_status(502);
    // The same applies to a reload.
    rig.folder.write("komainu.toml", config(404));
    let pid = rig.child.id().to_string();
    let done = komainu().args(["reload", "--pid", &pid]).output().unwrap();
    assert!(done.status.success(), "{}", rig::text(&done.stderr));
    rig.get("/").expect_status(404);
    // Files outside of the configuration are not reported: this one is missing.
    rig.folder.write("komainu.toml", config(200).replace("\"key.pem\"", "\"none.pem\""));
    let refused = komainu().args(["reload", "--pid", &pid]).output().unwrap();
    let said = rig::text(&refused.stderr);
    assert!(
        refused.status.code() == Some(1) && said.contains("cannot read") && said.contains("none.pem"),
        "{said}"
    );
}

#[test]
fn inaccessible_directory_is_reported_with_remedies() {
    if !can_be_tested() {
        return;
    }
    let folder = Folder::new();
    for name in ["404.html", "a.psgi", "a.py"] {
        folder.write(&format!("private/www/{name}"), "no");
    }
    fs::set_permissions(folder.at("private"), fs::Permissions::from_mode(0o700)).unwrap();
    let closed = folder.at("private").display().to_string();
    for (more, path) in [
        ("[[route]]\nfiles = \"private/www\"\n", "private/www"),
        (
            r#"
            error_pages = { 404 = "private/www/404.html" }
            [[route]]
            respond = 204
            "#,
            "private/www/404.html",
        ),
        (
            r#"
            [apps.a]
            psgi = "private/www/a.psgi"
            [[route]]
            app = "a"
            "#,
            "private/www/a.psgi",
        ),
        (
            r#"
            [apps.a]
            wsgi = "private/www/a.py:app"
            [[route]]
            app = "a"
            "#,
            "private/www/a.py",
        ),
        (
            r#"
            [apps.a]
            wsgi = "a:app"
            folder = "private"
            [[route]]
            app = "a"
            "#,
            "private",
        ),
    ] {
        let config = format!(
            r#"
            user = "65534"
            group = "65534"
            listen = "127.0.0.1:0"
            {more}
            "#
        );
        folder.write("komainu.toml", config);
        for command in ["check", "start"] {
            let workers = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("workers");
            let mut server = komainu();
            server.env("KOMAINU_WORKERS", workers).args([command, "-c"]).arg(folder.at("komainu.toml"));
            let done = server.output().unwrap();
            let said = rig::text(&done.stderr);
            assert_eq!(done.status.code(), Some(1), "{said}");
            assert!(
                said.contains("user 65534, who is to serve, cannot read ") && said.contains(path),
                "{said}"
            );
            assert!(said.contains(&format!("may not enter {closed}\n")), "{said}");
            assert!(said.contains(&format!("chmod o+x {closed}")), "{said}");
        }
    }
}

#[test]
fn supervisor_reopens_logs_owned_by_root() {
    if !can_be_tested() {
        return;
    }
    let rig = files("user = \"65534\"\ngroup = \"65534\"");
    let log = rig.folder.at("logs/access.log");
    let lines = || fs::read_to_string(&log).unwrap_or_default().lines().count();
    rig.get("/a");
    eventually("the line is written", || lines() == 1);
    fs::rename(&log, rig.folder.at("logs/access.log.1")).unwrap();
    rig.signal("-USR1");
    eventually("the log is opened again", || log.exists());
    assert_eq!(fs::metadata(&log).unwrap().uid(), 0);
    rig.get("/a");
    eventually("the next line is in the new file", || lines() == 1);
}

#[test]
fn log_reopen_does_not_follow_planted_symlink() {
    if !can_be_tested() {
        return;
    }
    let folder = Folder::new();
    folder.write("www/a", "A").write("logs/nothing", "").write("secret", "");
    std::os::unix::fs::chown(folder.at("logs"), Some(65534), Some(65534)).unwrap();
    let mut rig = start(
        folder,
        r#"
        listen = "127.0.0.1:0"
        user = "65534"
        group = "65534"
        [log]
        access = "combined"
        file = "logs/access.log"
        [[route]]
        files = "www"
        "#,
    );
    // Simulates a compromised worker.
    let log = rig.folder.at("logs/access.log");
    fs::remove_file(&log).unwrap();
    std::os::unix::fs::symlink(rig.folder.at("secret"), &log).unwrap();
    rig.signal("-USR1");
    eventually("it is refused", || rig.reported().contains("cannot open the log"));
    rig.get("/a").expect(200, "A");
    rig.signal("-TERM");
    assert!(rig.ended().success());
    assert_eq!(fs::read_to_string(rig.folder.at("secret")).unwrap(), "");
}

#[test]
fn crashed_server_restarts_on_the_same_sockets() {
    if !can_be_tested() {
        return;
    }
    let rig = files("user = \"65534\"\ngroup = \"65534\"");
    for round in 1..=2 {
        let before = serving(&rig);
        assert!(kill(before, "-KILL"));
        // Connections wait in the listening sockets, which stay open.
        rig.get("/a").expect(200, "A");
        let after = serving(&rig);
        assert_ne!(before, after);
        assert_unprivileged(after, 65534, "65534");
        let died = errors(&rig).matches("died: signal: 9").count();
        assert_eq!(died, round, "{}", errors(&rig));
    }
    assert!(errors(&rig).contains("it is started again in 100 ms"), "{}", errors(&rig));
}

#[test]
fn crashed_server_restarts_although_logs_cannot_be_opened() {
    if !can_be_tested() {
        return;
    }
    let rig = files("user = \"65534\"\ngroup = \"65534\"");
    let before = serving(&rig);
    fs::remove_dir_all(rig.folder.at("logs")).unwrap();
    assert!(kill(before, "-KILL"));
    rig.get("/a").expect(200, "A");
    assert_ne!(before, serving(&rig));
    eventually("it is said, and lines go to stderr", || {
        rig.reported().contains("cannot open the log") && rig.reported().contains("\"GET /a HTTP/1.1\" 200")
    });
    rig.folder.write("logs/nothing", "");
    rig.signal("-USR1");
    rig.get("/a").expect(200, "A");
    let lines = || fs::read_to_string(rig.folder.at("logs/access.log")).unwrap_or_default();
    eventually("lines go to the log again", || lines().contains("GET /a"));
}

#[test]
fn failed_restart_reason_is_logged() {
    if !can_be_tested() {
        return;
    }
    let rig = files("user = \"65534\"\ngroup = \"65534\"");
    fs::remove_dir_all(rig.folder.at("www")).unwrap();
    assert!(kill(serving(&rig), "-KILL"));
    eventually("the reason is logged", || {
        errors(&rig).contains("died: exit status: 1: ") && errors(&rig).contains("www")
    });
    rig.folder.write("www/a", "back");
    eventually("it serves again", || errors(&rig).lines().any(|line| line.contains("again in")));
    rig.get("/a").expect(200, "back");
}

#[test]
fn supervisor_stop_ends_server_and_workers() {
    if !can_be_tested() {
        return;
    }
    let folder = Folder::new();
    folder.write("app.psgi", "sub { [200, [], [$$]] }");
    let socket = folder.at("s.sock");
    let config = format!(
        r#"
        listen = ["127.0.0.1:0", "unix:{}"]
        user = "65534"
        group = "65534"
        {}
        "#,
        socket.display(),
        only("psgi = \"app.psgi\"\nworkers = 2")
    );
    let mut rig = start(folder, &config);
    let worker: u32 = rig.get("/").text().parse().unwrap();
    let pid = serving(&rig);
    assert!(socket.exists());
    // systemd sends the signal to every process of the service.
    kill(pid, "-TERM");
    rig.signal("-TERM");
    assert!(rig.ended().success());
    assert!(!is_alive(pid) && !is_alive(worker) && !socket.exists());
    assert!(!rig.reported().contains("second request to stop"), "{}", rig.reported());
}

#[test]
fn server_and_workers_end_when_supervisor_is_killed() {
    if !can_be_tested() {
        return;
    }
    let folder = Folder::new();
    folder.write("app.psgi", "sub { [200, [], [$$]] }");
    let config = format!("listen = \"127.0.0.1:0\"\n{}", only("psgi = \"app.psgi\"\nworkers = 2"));
    let mut rig = start(folder, &config);
    let worker: u32 = rig.get("/").text().parse().unwrap();
    let pid = serving(&rig);
    rig.child.kill().unwrap();
    rig.ended();
    eventually("server and worker have ended", || !is_alive(pid) && !is_alive(worker));
}

#[test]
fn failed_start_reports_error_and_exits() {
    if !can_be_tested() {
        return;
    }
    let folder = Folder::new();
    for (config, said) in [
        (
            r#"
            user = "nobody-of-this-name"
            [[route]]
            respond = "a"
            "#,
            "there is no user nobody-of-this-name",
        ),
        ("[[route]]\nfiles = \"missing\"\n", "missing"),
    ] {
        folder.write("komainu.toml", format!("listen = \"127.0.0.1:0\"\n{config}"));
        let output = komainu().arg("start").arg("-c").arg(folder.at("komainu.toml")).output().unwrap();
        let errors = rig::text(&output.stderr);
        assert!(output.status.code() == Some(1) && errors.contains(said), "{errors}");
    }
}

#[test]
fn inaccessible_virtual_environment_is_reported() {
    if !can_be_tested() {
        return;
    }
    let folder = Folder::new();
    folder.write("app.py", "").write(".venv/pyvenv.cfg", "").write(".venv/bin/activate", "");
    std::os::unix::fs::symlink("/usr/bin/python3", folder.at(".venv/bin/python")).unwrap();
    fs::set_permissions(folder.at(".venv"), fs::Permissions::from_mode(0o700)).unwrap();
    for (user, own) in [("65534", ""), ("65534", "user = \"65533\"\ngroup = \"65533\"\n")] {
        for more in ["", "virtualenv = \".venv\"\n"] {
            let app = only(&format!("wsgi = \"app.py\"\n{own}{more}"));
            let text = format!(
                r#"
                listen = "127.0.0.1:0"
                user = "{user}"
                group = "{user}"
                {app}
                "#
            );
            folder.write("komainu.toml", text);
            for verb in ["check", "start"] {
                let mut command = server();
                let output = command.arg(verb).arg("-c").arg(folder.at("komainu.toml")).output().unwrap();
                let said = rig::text(&output.stderr);
                let place = format!("{} has mode 0700", folder.at(".venv").canonicalize().unwrap().display());
                assert!(output.status.code() == Some(1) && said.contains(&place), "{verb}: {said}");
                assert!(
                    said.contains("cannot use the virtual environment") && said.contains("chmod"),
                    "{said}"
                );
            }
        }
    }
    // The active environment may be meant for other programs: the application also starts without it.
    fs::rename(folder.at(".venv"), folder.at("active")).unwrap();
    let app = only("wsgi = \"app.py\"");
    folder.write(
        "komainu.toml",
        format!(
            r#"
            listen = "127.0.0.1:0"
            user = "65534"
            group = "65534"
            {app}
            "#
        ),
    );
    let mut command = server();
    command.arg("check").arg("-c").arg(folder.at("komainu.toml")).env("VIRTUAL_ENV", folder.at("active"));
    let output = command.output().unwrap();
    let said = rig::text(&output.stderr);
    assert!(output.status.success() && said.contains("mode 0700"), "{said}");
    assert!(said.contains("; it is passed over"), "{said}");
}
