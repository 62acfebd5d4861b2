//! Flags of `komainu run`, each tested through the binary.

use crate::hosted;
use crate::hosted::{folder, processes, ready, run, server, status};
use crate::rig;
use crate::rig::{Folder, Rig, eventually, komainu, text};

const ECHO: &str = "sub { my $env = shift; my $path = $env->{PATH_INFO};
    sleep 60 if $path eq '/sleep';
    our $held .= 'x' x 8_000_000 if $path eq '/grow';
    warn 'a line of the application' if $path eq '/warn';
    my $body = ''; $env->{'psgi.input'}->read($body, 1 << 24);
    [200, [], [join ' ', length $body, map { $_ // '-' } @ENV{qw(MINE OTHER THIRD HOME)}]] }";

fn echo(arguments: &[&str]) -> Rig {
    run(folder("app.psgi", ECHO), &[arguments, &["app.psgi"]].concat())
}

fn post(rig: &Rig, len: usize) -> u16 {
    let body = "x".repeat(len);
    let head = format!("POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {len}\r\n\r\n");
    rig.send(&(head + &body)).status()
}

/// Output of `komainu run` for invalid arguments.
fn refused(folder: &Folder, arguments: &[&str]) -> String {
    let mut command = server();
    command.args(["run", "--listen", "127.0.0.1:0"]).args(arguments).current_dir(folder.path());
    let output = command.output().unwrap();
    assert!(!output.status.success(), "{arguments:?}");
    text(&output.stderr)
}

#[test]
fn body_max_flag_limits_request_bodies() {
    let rig = echo(&["--body-max", "1KiB", "-w", "1"]);
    assert_eq!((post(&rig, 1024), post(&rig, 1025)), (200, 413));
    let rig = echo(&["--body-max", "unlimited", "-w", "1"]);
    assert_eq!(post(&rig, (16 << 20) + 1), 200);
    let rig = echo(&["-w", "1"]);
    // Refused because of `Content-Length` alone.
    let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 16777217\r\n\r\n";
    rig.send(head).expect_status(413);
}

#[test]
fn timeout_flag_accepts_plain_seconds() {
    let rig = echo(&["--timeout", "1", "--workers", "1"]);
    rig.get("/sleep").expect_status(504);
    rig.get("/").expect_status(200);
}

#[test]
fn workers_are_replaced_after_max_requests_or_max_memory() {
    for (flag, value, path) in [("--max-requests", "5", "/"), ("--max-memory", "64MiB", "/grow")] {
        let rig = echo(&[flag, value, "--workers", "1"]);
        let first = ready(&rig, 1);
        eventually("another worker", || {
            rig.get(path).expect_status(200);
            let seen = processes(&rig);
            seen.iter().any(|process| process.state == "ready" && !first.contains(&process.pid))
        });
    }
}

#[test]
fn env_flag_takes_precedence_over_env_file() {
    let folder = folder("app.psgi", ECHO);
    folder.write(".env", "# mine\nMINE=file\nexport OTHER=\"of the file\"\nTHIRD='x'\nHOME=/never\n");
    let mut command = server();
    command.args([
        "run",
        "--listen",
        "127.0.0.1:0",
        "--env-file",
        ".env",
        "--env",
        "MINE=flag",
        "-e",
        "THIRD=",
    ]);
    command.arg("app.psgi").env("HOME", "/set").current_dir(folder.path());
    let rig = Rig::start(command, folder);
    rig.get("/").expect(200, "0 flag of the file  /set");
}

#[test]
fn bind_and_reload_flags_of_other_servers_are_accepted() {
    let folder = folder("app.psgi", "sub { [200, [], ['one']] }");
    let mut command = server();
    command.args(["run", "-b", "127.0.0.1:0", "--reload", "--access-log", "json", "app.psgi"]);
    command.current_dir(folder.path());
    let rig = Rig::start(command, folder);
    rig.get("/").expect(200, "one");
    rig.folder.write("app.psgi", "sub { [200, [], ['two']] }");
    eventually("the new code answers", || rig.get("/").text() == "two");
}

#[test]
fn log_level_flag_selects_messages() {
    let rig = echo(&["--log-level", "info", "-w", "1"]);
    rig.get("/warn").expect_status(200);
    hosted::logged(&rig, "a line of the application");
    let reported = |level: &str| {
        let rig = echo(&["--log-level", level, "-w", "1"]);
        rig.get("/").expect_status(200);
        rig.signal("-HUP");
        rig.get("/").expect_status(200);
        rig
    };
    hosted::logged(&reported("info"), "loaded");
    assert!(!reported("error").reported().contains("loaded"));
}

#[test]
fn user_flag_runs_server_as_that_user() {
    if !rig::is_root() {
        return eprintln!("SKIPPED: only root can start a server of another user");
    }
    let folder = Folder::new();
    folder.write("www/a", "A");
    let mut command = komainu();
    command.args(["run", "--listen", "127.0.0.1:0", "--user", "nobody", "www"]).current_dir(folder.path());
    let rig = Rig::start(command, folder);
    rig.get("/a").expect(200, "A");
    let id = std::process::Command::new("id").args(["-u", "nobody"]).output().unwrap();
    let uid = text(&id.stdout).trim().to_owned();
    let serving = std::fs::read_to_string(format!("/proc/{}/status", status(&rig)["pid"])).unwrap();
    let uids = serving.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap();
    assert!(uids.split_whitespace().eq([uid.as_str(); 4]), "{uids}");
    assert!(!rig.reported().contains("serving as root"), "{}", rig.reported());
    let reported = refused(&rig.folder, &["--user", "nobody-of-this-name", "www"]);
    assert!(reported.contains("there is no user nobody-of-this-name"), "{reported}");
}

/// Runs a command with a terminal as its standard output, requests `/a` and `/none`, and prints the
/// terminal's content.
const WATCHED: &str = r#"
import os, pty, re, subprocess, sys, urllib.error, urllib.request
leader, follower = pty.openpty()
server = subprocess.Popen(sys.argv[1:], stdout=follower, stderr=subprocess.DEVNULL)
os.close(follower)
seen, is_asked = b"", False
while not re.search(rb"GET /none.*\n|GET /none.*$", seen):
    seen += os.read(leader, 4096)
    if not is_asked and b"Ctrl-C stops it." in seen:
        is_asked, url = True, re.search(rb"http://[0-9.:]+", seen)[0].decode()
        for path in ("/a", "/none"):
            try:
                urllib.request.urlopen(url + path).read()
            except urllib.error.HTTPError:
                pass
server.terminate()
server.wait()
print(seen.decode())
"#;

#[test]
fn requests_are_shown_on_a_terminal() {
    let folder = Folder::new();
    folder.write("www/a", "A");
    let shown = |colors: bool| {
        let mut command = std::process::Command::new("python3");
        command.args(["-c", WATCHED]).arg(env!("CARGO_BIN_EXE_komainu"));
        // A single core, since each writes its own lines, within a tenth of a second.
        command.args(["run", "--threads", "1", "--listen", "127.0.0.1:0", "www"]).current_dir(folder.path());
        if !colors {
            command.env("NO_COLOR", "1");
        }
        text(&command.output().unwrap().stdout)
    };
    let lines = |shown: &str| -> Vec<String> {
        let requests = shown.lines().filter(|line| line.contains("GET /"));
        requests.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    };
    let plain = lines(&shown(false));
    assert!(
        plain.len() == 2 && plain[0].starts_with("200 ") && plain[0].ends_with(" ms 1 B GET /a"),
        "{plain:?}"
    );
    assert!(plain[1].starts_with("404 ") && plain[1].contains("GET /none"), "{plain:?}");
    let colored = lines(&shown(true));
    assert!(
        colored[0].starts_with("\x1b[32m200\x1b[0m ") && colored[1].starts_with("\x1b[33m404"),
        "{colored:?}"
    );
}

#[test]
fn invalid_flags_are_reported_at_start() {
    let folder = folder("app.psgi", ECHO);
    folder.write("www/a", "A").write("bad.env", "A=1\nB\n");
    for (arguments, said) in [
        (&["--env", "A=1", "www"][..], "--env is only for applications, and no target is an application"),
        (&["--timeout", "9", "www"], "--timeout is only for applications"),
        (&["--env", "A", "app.psgi"], "write A=VALUE"),
        (&["--env-file", "bad.env", "app.psgi"], "bad.env:2: write B=VALUE"),
        (&["--env-file", "none.env", "app.psgi"], "--env-file none.env: No such file"),
        (&["--timeout", "0", "app.psgi"], "too short"),
        (&["--timeout", "2w", "app.psgi"], "not a unit of time"),
        (&["--body-max", "12x", "app.psgi"], "not a unit of size"),
        (&["--max-memory", "1KiB", "app.psgi"], "too small"),
        (&["--max-requests", "0", "app.psgi"], "'--max-requests <N>': write a whole number from 1 to"),
        (&["--max-requests", "x", "app.psgi"], "'--max-requests <N>': write a whole number from 1 to"),
        (&["--body-max", "5MB", "app.psgi"], "write \"5MiB\""),
        (&["--workers", "2", "www"], "--workers is only for applications"),
        (
            &["--interface", "asgi", "app.psgi"],
            "--interface is only for Python applications, and app.psgi is not one",
        ),
        (&["--worker-threads", "4", "app.psgi"], "--worker-threads is not for an application in Perl"),
        (&["--log", "www/"], "write `--log=combined www/`, or put --log last"),
        (&["--log", "jsno", "www"], "[possible values: off, console, combined, json]"),
        (&["127.0.0.1:3000"], "write \"http://127.0.0.1:3000\""),
        (&["localhost:3000/api"], "write \"http://localhost:3000\""),
        (&[":3000"], "write \"http://127.0.0.1:3000\""),
        (&["3000"], "write \"http://127.0.0.1:3000\""),
        (&["app.php"], "`php`: there is no file "),
        (&["app.phtml"], "a target is a folder, an upstream server (http://HOST:PORT"),
        (&["bad.env"], "this file is not an application; a target is"),
        (&["--threads", "5000", "www"], "'--threads <N>': write a whole number from 0 to 1024"),
        (&["--user", "", "www"], "a value is required for '--user <USER>'"),
        (&["--log-level", "loud", "app.psgi"], "possible values: error, warn, info, debug"),
    ] {
        let reported = refused(&folder, arguments);
        assert!(reported.contains(said), "{arguments:?}: {reported}");
    }
}

#[test]
fn help_manual_and_completions_list_run_flags() {
    let printed = |arguments: &[&str]| text(&server().args(arguments).output().unwrap().stdout);
    let help = printed(&["run", "--help"]);
    let manual = printed(&["man"]);
    let script = printed(&["completions", "bash"]);
    for flag in [
        "body-max",
        "timeout",
        "max-requests",
        "max-memory",
        "env",
        "env-file",
        "log-level",
        "reload",
        "user",
    ] {
        assert!(help.contains(&format!("--{flag}")), "{flag} in {help}");
        assert!(manual.contains(&flag.replace('-', "\\-")), "{flag} in the manual");
        assert!(script.contains(&format!("--{flag}")), "{flag} in the completions");
    }
}

#[test]
fn unsupported_target_is_answered_with_a_suggestion() {
    let folder = Folder::new();
    folder.write("server.js", "").write("nginx.conf", "").write("k.toml", "").write("shop/wsgi.py", "");
    for (target, part) in [
        ("none.php", "`php`: there is no file "),
        ("server.js", "komainu run http://127.0.0.1:PORT"),
        ("package.json", "komainu run http://127.0.0.1:PORT"),
        ("none.html", "`komainu run .`"),
        ("public/index.html", "`komainu run public`"),
        ("/srv/www/sub/page.html", "`komainu run /srv/www/sub`"),
        ("nginx.conf", "komainu import nginx"),
        ("k.toml", "komainu start -c"),
        ("localhost:3000", "write \"http://localhost:3000\""),
        ("nothing", "there is no such folder"),
        ("shop.wsgi", "`komainu run shop.wsgi:application` is `application` in shop/wsgi.py"),
    ] {
        let done = komainu().args(["run", target]).current_dir(folder.path()).output().unwrap();
        let errors = text(&done.stderr);
        assert!(!done.status.success() && errors.contains(part), "{target}: {errors}");
    }
}

#[test]
fn dashboard_address_is_printed_at_start() {
    let folder = Folder::new();
    folder.write("a.txt", "a");
    let printed = folder.at("printed");
    let mut command = server();
    command
        .args(["run", "--listen", "127.0.0.1:0", "--control", "127.0.0.1:0", "."])
        .current_dir(folder.path());
    let mut child = command.stdout(std::fs::File::create(&printed).unwrap()).spawn().unwrap();
    let text_of = || std::fs::read_to_string(&printed).unwrap();
    let is_printed = || text_of().contains("the dashboard is at http://127.0.0.1:");
    eventually("the dashboard is named", || is_printed() || child.try_wait().unwrap().is_some());
    let _ = child.kill();
    let _ = child.wait();
    assert!(is_printed() && !text_of().contains("127.0.0.1:0\n"), "{}", text_of());
    let help = server().args(["run", "--help"]).output().unwrap();
    assert!(text(&help.stdout).contains("Serve the dashboard"), "{}", text(&help.stdout));
}
