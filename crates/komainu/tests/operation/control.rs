//! The control socket: `komainu status` and `komainu reload`, and misbehaving clients.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Command, Output};

use crate::hosted;
use crate::rig;
use crate::rig::{Folder, PATIENCE, Rig, as_we_are, eventually, komainu, text};

/// Starts a server whose control sockets are in a directory of the test.
fn start(config: &str) -> Rig {
    let folder = Folder::new();
    folder.write("www/a", "A");
    write(&folder, config);
    let mut command = komainu();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml")).env("RUNTIME_DIRECTORY", runtime(&folder));
    Rig::start(command, folder)
}

fn write(folder: &Folder, config: &str) {
    folder.write("komainu.toml", format!("{}{config}", as_we_are()));
}

fn runtime(folder: &Folder) -> PathBuf {
    folder.at("run")
}

fn socket(rig: &Rig) -> PathBuf {
    runtime(&rig.folder).join(format!("{}.sock", rig.child.id()))
}

fn connect(rig: &Rig) -> UnixStream {
    let stream = UnixStream::connect(socket(rig)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Sends one line and reads the answer, without closing the sending side.
fn ask(rig: &Rig, line: &str) -> String {
    let mut stream = connect(rig);
    stream.write_all(line.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn run(rig: &Rig, arguments: &[&str]) -> Output {
    komainu().args(arguments).env("RUNTIME_DIRECTORY", runtime(&rig.folder)).output().unwrap()
}

const FILES: &str = r#"
    listen = "127.0.0.1:0"
    [[route]]
    files = "www"
"#;

#[test]
fn control_socket_answers_one_line_with_one_document() {
    let rig = start(FILES);
    let status: serde_json::Value = serde_json::from_str(&ask(&rig, "status\n")).unwrap();
    assert_eq!(status["pid"].as_u64(), Some(u64::from(rig.child.id())));
    assert!(ask(&rig, "nonsense\n").contains("unknown command"));
    assert!(ask(&rig, &"x".repeat(4100)).contains("longer than"));
}

#[test]
fn slow_control_client_is_closed_without_delaying_others() {
    let rig = start(FILES);
    let mut slow: Vec<UnixStream> = (0..20).map(|_| connect(&rig)).collect();
    slow.iter_mut().for_each(|client| client.write_all(b"sta").unwrap());
    assert!(ask(&rig, "status\n").contains("\"listen\""));
    // The slow clients have not been answered yet, and did not block others.
    slow[0].set_nonblocking(true).unwrap();
    let waits = slow[0].read(&mut [0; 10]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
    slow[0].set_nonblocking(false).unwrap();
    for client in &mut slow {
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert!(answer.contains("no line within 2 s"), "{answer}");
    }
    assert!(waits, "answered before its time was over, or everybody waited for it");
}

#[test]
fn control_clients_over_the_limit_are_refused() {
    let rig = start(FILES);
    let mut clients: Vec<UnixStream> = (0..80).map(|_| connect(&rig)).collect();
    let mut refused = 0;
    for client in &mut clients {
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        refused += usize::from(answer.contains("64 clients are connected"));
    }
    assert!(refused >= 1, "{refused}");
    assert!(ask(&rig, "status\n").contains("\"listen\""));
}

#[test]
fn a_reload_waits_for_its_result() {
    let rig = start(FILES);
    let pid = rig.child.id().to_string();
    let reload = || {
        let done = run(&rig, &["reload", "--pid", &pid]);
        (done.status.code(), text(&done.stdout) + &text(&done.stderr))
    };
    rig.folder.write("two/a", "two");
    write(
        &rig.folder,
        r#"
        listen = "127.0.0.1:0"
        [[route]]
        files = "two"
        "#,
    );
    let (code, said) = reload();
    assert!(code == Some(0) && said.contains("in use"), "{code:?} {said}");
    rig.get("/a").expect(200, "two");
    for (broken, named) in
        [("[[route]]\nfiels = \"two\"\n", "fiels"), ("[[route]]\nfiles = \"nowhere\"\n", "nowhere")]
    {
        write(&rig.folder, &format!("listen = \"127.0.0.1:0\"\n{broken}"));
        let (code, said) = reload();
        assert!(
            code == Some(1) && said.contains(named) && said.contains("was not changed"),
            "{code:?} {said}"
        );
        rig.get("/a").expect(200, "two");
    }
    write(
        &rig.folder,
        r#"
        listen = "127.0.0.1:0"
        threads = 7
        [[route]]
        files = "www"
        "#,
    );
    // The difference is reported again for each reload.
    for _ in 0..2 {
        let (code, said) = reload();
        assert!(code == Some(1) && said.contains("`threads` changes only at a restart"), "{code:?} {said}");
    }
    let file = rig.folder.at("komainu.toml");
    let diff = || text(&run(&rig, &["diff", "--pid", &pid, "-c", file.to_str().unwrap()]).stdout);
    let said = diff();
    let expected = "nothing would change\na restart or an upgrade is still to apply what was changed before: `threads`\n";
    assert_eq!(said, expected);
    rig.get("/a").expect(200, "A");
    write(
        &rig.folder,
        r#"
        listen = "127.0.0.1:0"
        [[route]]
        files = "www"
        "#,
    );
    let (code, said) = reload();
    assert!(code == Some(0) && said.contains("in use"), "{code:?} {said}");
    assert_eq!(diff(), "nothing would change\n");
}

#[test]
fn reload_command_reports_application_that_fails_to_load() {
    let folder = Folder::new();
    folder.write("app.psgi", "sub { [200, [], ['one']] }");
    write(
        &folder,
        &format!("listen = \"127.0.0.1:0\"\n{}", hosted::only("psgi = \"app.psgi\"\nworkers = 2")),
    );
    let mut command = hosted::server();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml")).env("RUNTIME_DIRECTORY", runtime(&folder));
    let rig = Rig::start(command, folder);
    rig.get("/").expect(200, "one");
    let pid = rig.child.id().to_string();
    let reload = |more: &[&str]| {
        let done = run(&rig, &[&["reload", "--pid", &pid], more].concat());
        (done.status.code(), text(&done.stdout) + &text(&done.stderr))
    };
    rig.folder.write("app.psgi", "die \"no table of goods\\nand more\\n\";");
    for more in [&[][..], &["shop"]] {
        let (code, said) = reload(more);
        assert_eq!(code, Some(1), "{said}");
        for part in
            ["application shop does not load: ", "no table of goods", "the old one continues to serve"]
        {
            assert!(said.contains(part), "{part} in {said}");
        }
        rig.get("/").expect(200, "one");
    }
    // Each thread of the server answers with the new code as soon as the command has ended.
    for text in ["two", "three", "four", "five"] {
        rig.folder.write("app.psgi", format!("sub {{ [200, [], ['{text}']] }}"));
        let (code, said) = reload(&["shop"]);
        assert!(code == Some(0) && said.contains("shop"), "{said}");
        for _ in 0..4 {
            rig.get("/").expect(200, text);
        }
    }
    let (code, said) = reload(&["shelf"]);
    assert!(code == Some(1) && said.contains("no application shelf"), "{said}");
}

#[test]
fn commands_fail_when_server_does_not_answer() {
    let rig = start(FILES);
    let pid = rig.child.id().to_string();
    rig.signal("-STOP");
    for command in ["status", "reload"] {
        let done = run(&rig, &[command, "--pid", &pid]);
        let said = text(&done.stderr);
        assert!(
            done.status.code() == Some(1) && said.contains("does not answer on its control socket"),
            "{said}"
        );
    }
    rig.signal("-CONT");
    assert!(run(&rig, &["status", "--pid", &pid]).status.success());
}

#[test]
fn control_socket_is_removed_when_server_stops() {
    let mut rig = start(FILES);
    assert!(socket(&rig).exists());
    rig.signal("-TERM");
    assert!(rig.ended().success());
    assert!(!socket(&rig).exists(), "the socket is removed");
}

#[test]
fn command_waits_while_server_sends_keepalive_lines() {
    let folder = Folder::new();
    let run = runtime(&folder);
    fs::create_dir(&run).unwrap();
    // A server that is busy for seven seconds, and one that died before it accepted the connection on its
    // supervisor's socket.
    for (pid, lives) in [("77777777", true), ("88888888", false)] {
        let socket = std::os::unix::net::UnixListener::bind(run.join(format!("{pid}.sock"))).unwrap();
        let server = std::thread::spawn(move || {
            if !lives {
                return Some(socket);
            }
            let (mut client, _) = socket.accept().unwrap();
            let mut line = String::new();
            std::io::BufRead::read_line(&mut std::io::BufReader::new(&client), &mut line).unwrap();
            for _ in 0..7 {
                std::io::Write::write_all(&mut client, b"\n").unwrap();
                std::thread::sleep(std::time::Duration::from_secs(1));
            }
            std::io::Write::write_all(&mut client, b"{\"done\":\"at last\"}\n").unwrap();
            None
        });
        let done = komainu().args(["reload", "--pid", pid]).env("RUNTIME_DIRECTORY", &run).output().unwrap();
        let said = text(&done.stdout) + &text(&done.stderr);
        if lives {
            assert!(done.status.success() && said.contains("at last"), "{said}")
        } else {
            assert!(
                done.status.code() == Some(1) && said.contains("does not answer on its control socket"),
                "{said}"
            )
        }
        server.join().unwrap();
    }
}

#[test]
fn commands_list_servers_when_several_are_running() {
    let rig = Rig::controlled("[[route]]\nrespond = \"one\"\n");
    let folder = Folder::new();
    folder.write("other.toml", fs::read_to_string(rig.folder.at("komainu.toml")).unwrap());
    let mut command = komainu();
    command
        .arg("start")
        .arg("-c")
        .arg(folder.at("other.toml"))
        .env("RUNTIME_DIRECTORY", rig.folder.at("run"));
    let other = Rig::start(command, folder);
    for arguments in [&["reload"][..], &["cache", "stats"], &["cert", "renew", "a.test"]] {
        let mut said = String::new();
        let line = |said: &str, rig: &Rig| {
            let begins = format!("  {}: ", rig.child.id());
            said.lines().find(|line| line.starts_with(&begins)).map(ToOwned::to_owned)
        };
        // Twenty are listed at most, and servers of other tests run too.
        eventually("both are listed", || {
            let done = run(&rig, arguments);
            said = text(&done.stderr);
            assert!(!done.status.success() && said.contains("name one with --pid"), "{arguments:?}: {said}");
            [&rig, &other].iter().all(|rig| line(&said, rig).is_some())
        });
        for (rig, file) in [(&rig, "komainu.toml"), (&other, "other.toml")] {
            let line = line(&said, rig).unwrap();
            assert!(line.contains(&rig.listens.to_string()) && line.contains(file), "{arguments:?}: {said}");
        }
    }
    let first = &rig;
    for (rig, file) in [(first, "komainu.toml"), (&other, "other.toml")] {
        let done = run(first, &["reload", "-c", &rig.folder.at(file).display().to_string()]);
        assert!(done.status.success(), "{file}: {}", text(&done.stderr));
    }
}

#[test]
fn reload_finds_the_server_that_uses_a_file() {
    let rig = start(FILES);
    let file = rig.folder.at("komainu.toml").display().to_string();
    let done = run(&rig, &["reload", "-c", &file]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    rig.folder.write("unused.toml", "");
    let done = run(&rig, &["reload", "-c", &rig.folder.at("unused.toml").display().to_string()]);
    let said = text(&done.stderr);
    let pid = rig.child.id().to_string();
    assert!(!done.status.success() && said.contains("no server uses") && said.contains(&pid), "{said}");
    let done = run(&rig, &["reload", "--config", "missing.toml"]);
    assert!(!done.status.success() && text(&done.stderr).contains("missing.toml"), "{}", text(&done.stderr));
}

#[test]
fn sockets_of_killed_servers_are_removed_at_start() {
    let folder = Folder::new();
    folder.write("www/a", "A");
    write(&folder, FILES);
    let run = runtime(&folder);
    fs::create_dir(&run).unwrap();
    let stale = run.join("999999999.sock");
    drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
    assert!(stale.exists());
    let mut command = komainu();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml")).env("RUNTIME_DIRECTORY", &run);
    let rig = Rig::start(command, folder);
    assert!(!stale.exists() && socket(&rig).exists());
}

#[test]
fn root_reaches_servers_of_other_users_only_by_pid() {
    if !rig::is_root() {
        eprintln!("SKIPPED: root alone can start a server as another user");
        return;
    }
    let folder = Folder::new();
    folder.write("www/a", "A");
    let program = folder.at("komainu");
    rig::copy_program(&program);
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&program)
        .args(["run", "--listen", "127.0.0.1:0"])
        .arg(folder.at("www"))
        .env_remove("XDG_RUNTIME_DIR")
        .env("TMPDIR", "/tmp");
    let rig = Rig::start(command, folder);
    let pid = rig.child.id().to_string();
    let status = |arguments: &[&str]| {
        let reported = komainu().arg("status").args(arguments).output().unwrap();
        text(&reported.stdout) + &text(&reported.stderr)
    };
    let named = status(&["--pid", &pid]);
    assert!(named.contains(&rig.address.to_string()), "{named}");
    // Without a process id only servers of root are asked: any local user could pose as a server.
    let found = status(&[]);
    assert!(!found.contains(&rig.address.to_string()), "{found}");
}

/// A directory and a socket like those of another user's server, with a different program behind them.
#[test]
fn commands_reject_untrusted_control_sockets() {
    if !rig::is_root() {
        eprintln!("SKIPPED: root alone has commands for servers of other users");
        return;
    }
    let folder = Folder::new();
    let run = folder.at("run");
    std::fs::create_dir(&run).unwrap();
    let mut stranger = Command::new("sleep").arg("60").spawn().unwrap();
    let pid = stranger.id().to_string();
    let path = run.join(format!("{pid}.sock"));
    let listener = UnixListener::bind(&path).unwrap();
    listener.set_nonblocking(true).unwrap();
    let ask = || {
        let asked =
            komainu().args(["reload", "--pid", &pid]).env("RUNTIME_DIRECTORY", &run).output().unwrap();
        (asked.status.code(), text(&asked.stderr), listener.accept().is_ok())
    };
    // The directory belongs to another user, but the listening process is this test.
    std::os::unix::fs::chown(&run, Some(65534), Some(65534)).unwrap();
    let (code, said, _) = ask();
    assert!(
        code == Some(1) && said.contains("a process of user 0 listens at a socket of user 65534"),
        "{said}"
    );
    // The directory is writable by others.
    std::os::unix::fs::chown(&run, Some(0), Some(0)).unwrap();
    std::fs::set_permissions(&run, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let (code, said, is_asked) = ask();
    assert!(code == Some(1) && !is_asked, "{said}");
    // A symbolic link in place of the socket.
    std::fs::set_permissions(&run, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    std::fs::rename(&path, folder.at("elsewhere.sock")).unwrap();
    std::os::unix::fs::symlink(folder.at("elsewhere.sock"), &path).unwrap();
    let (code, said, is_asked) = ask();
    assert!(code == Some(1) && !is_asked && said.contains("this is not a socket"), "{said}");
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

/// The directory for another user's control sockets, created in advance by a third user.
#[test]
fn untrusted_control_socket_directory_is_reported_with_remedy() {
    if !rig::is_root() {
        eprintln!("SKIPPED: this needs another user");
        return;
    }
    for (what, owner, mode) in
        [("belongs to user 65532", 65_532, 0o700), ("can be written to by others", 65_533, 0o777)]
    {
        let folder = Folder::new();
        folder.write("www/a", "A").write("tmp/nothing", "");
        for (name, mode) in [(".", 0o755), ("www", 0o755), ("www/a", 0o644), ("tmp", 0o1777)] {
            std::fs::set_permissions(folder.at(name), PermissionsExt::from_mode(mode)).unwrap();
        }
        let taken = folder.at("tmp/komainu-65533");
        std::fs::create_dir(&taken).unwrap();
        std::os::unix::fs::chown(&taken, Some(owner), Some(owner)).unwrap();
        std::fs::set_permissions(&taken, PermissionsExt::from_mode(mode)).unwrap();
        rig::copy_program(&folder.at("komainu"));
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65533", "--regid", "65533", "--clear-groups"]).arg(folder.at("komainu"));
        command.env_remove("RUNTIME_DIRECTORY").env_remove("XDG_RUNTIME_DIR").env("TMPDIR", folder.at("tmp"));
        command.args(["run", "--listen", "127.0.0.1:0"]).arg(folder.at("www"));
        let rig = Rig::start(command, folder);
        rig.get("/a").expect(200, "A");
        rig.expect_report(what);
        rig.expect_report("or name a folder of your own in RUNTIME_DIRECTORY");
        assert_eq!(std::fs::read_dir(&taken).unwrap().count(), 0);
    }
}

/// Output of a command for a server that answers with this document.
fn shown_of(answer: &serde_json::Value, arguments: &[&str]) -> String {
    let folder = Folder::new();
    let run = folder.at("run");
    std::fs::create_dir(&run).unwrap();
    let pid = std::process::id().to_string();
    let listener = UnixListener::bind(run.join(format!("{pid}.sock"))).unwrap();
    let answer = answer.to_string();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.unwrap();
            let mut line = [0; 4096];
            let _ = client.read(&mut line).unwrap();
            // A client that only checks for a listener reads nothing.
            let _ = client.write_all(answer.as_bytes());
        }
    });
    let asked =
        komainu().args(arguments).args(["--pid", &pid]).env("RUNTIME_DIRECTORY", &run).output().unwrap();
    text(&asked.stdout) + &text(&asked.stderr)
}

/// Commands that print what a server says.
const COMMANDS: [&[&str]; 12] = [
    &["reload"],
    &["upgrade"],
    &["status"],
    &["ctl", "status"],
    &["ctl", "upstream", "list"],
    &["ctl", "config", "get"],
    &["cert", "list"],
    &["cert", "renew", "a.test"],
    &["cache", "stats"],
    &["cache", "why", "http://a.test/"],
    &["diff"],
    &["top", "--once"],
];

/// Answers with this text in each place: an error, one of the API, a success, a document.
fn answers_saying(said: &str) -> [serde_json::Value; 4] {
    let mut every = serde_json::Map::new();
    for key in
        ["version", "state", "since", "file", "sandbox", "name", "host", "issuer", "status", "reason", "key"]
    {
        every.insert(key.into(), said.into());
    }
    let every = serde_json::Value::Object(every);
    let lists =
        ["listen", "apps", "certificates", "upstreams", "groups", "limits", "queues", "events", "objects"];
    let mut document = every.clone();
    for list in lists {
        document[list] = serde_json::json!([every, said]);
    }
    document["pid"] = 1.into();
    let error = serde_json::json!({ "error": said });
    let of_api = serde_json::json!({ "status": 500, "document": { "error": { "message": said } } });
    let done = serde_json::json!({ "done": said, "warnings": [said], "status": 200, "document": document });
    [error, of_api, done, document]
}

#[test]
fn control_characters_in_server_answers_are_not_printed() {
    let said = "a\u{202e}b\u{2066}c\u{200b}d\x1b[31me\u{9b}f\rg";
    let cleaned = "a?b?c?d?[31me?f?g";
    let answers = answers_saying(said);
    let steers =
        |c: &char| (c.is_control() && *c != '\n') || matches!(*c, '\u{200b}' | '\u{202e}' | '\u{2066}');
    for arguments in COMMANDS {
        let failed = shown_of(&answers[0], arguments);
        assert!(failed.contains(cleaned), "{arguments:?}: {failed:?}");
        for answer in &answers {
            let shown = shown_of(answer, arguments);
            assert_eq!(shown.chars().find(steers), None, "{arguments:?}: {shown:?}");
        }
    }
    for arguments in [&["reload"], &["upgrade"]] {
        let shown = shown_of(&answers[2], arguments);
        assert_eq!(shown.matches(cleaned).count(), 2, "{shown:?}");
    }
}

/// Text of several lines is shown, but none of them at the beginning of a line, where a command's own words are.
#[test]
fn line_breaks_in_server_answers_forge_no_lines() {
    let mut forged = Vec::new();
    for said in ["a\nforged line\nend", "\nforged line", "a\n\nforged line\n"] {
        for answer in answers_saying(said) {
            for arguments in COMMANDS {
                let shown = shown_of(&answer, arguments);
                assert!(!shown.is_empty(), "{arguments:?}");
                if shown.lines().any(|line| line.starts_with("forged")) {
                    forged.push(format!("{arguments:?}: {answer} is shown as {shown}"));
                }
            }
        }
    }
    assert!(forged.is_empty(), "{}", forged.join("\n"));
}

/// File names and configuration lines from untrusted sources.
#[test]
fn control_characters_in_names_and_files_are_not_printed() {
    let folder = Folder::new();
    let said = "a\u{202e}b\x1b[31mc\rd";
    let steers = |c: &char| (c.is_control() && !matches!(*c, '\n' | '\t')) || *c == '\u{202e}';
    folder.write(&format!("{said}.toml"), "[[route]]\nrespond = 1\n");
    folder.write(
        "value.toml",
        format!(
            r#"
            [[route]]
            path = "{}"
            no_such = 1 # {said}
            "#,
            "a\u{202e}"
        ),
    );
    folder
        .write("nginx.conf", format!("server {{ listen 80; server_name \"{said}\"; no_such \"{said}\"; }}"));
    let name = folder.at(&format!("{said}.toml"));
    let missing = folder.at(&format!("none{said}"));
    let name = name.to_str().unwrap();
    let missing = missing.to_str().unwrap();
    let value = folder.at("value.toml");
    let nginx = folder.at("nginx.conf");
    let commands: [&[&str]; 8] = [
        &["check", "-c", name],
        &["check", "-c", missing],
        &["check", "-c", value.to_str().unwrap()],
        &["fmt", missing],
        &["diff", missing, name],
        &["run", missing],
        &["start", "-c", missing],
        &["trust", "--state", missing],
    ];
    for arguments in commands {
        let done = komainu().args(arguments).output().unwrap();
        let shown = text(&done.stdout) + &text(&done.stderr);
        assert!(!shown.is_empty(), "{arguments:?}");
        assert_eq!(shown.chars().find(steers), None, "{arguments:?}: {shown:?}");
    }
    let done = komainu().args(["import", "nginx", nginx.to_str().unwrap()]).output().unwrap();
    let shown = text(&done.stderr);
    assert!(!shown.is_empty());
    assert_eq!(shown.chars().find(steers), None, "{shown:?}");
}
