//! `cgi`: programs in sh, Perl and Python, including misbehaving ones.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;

use crate::rig;
use crate::rig::{Folder, Rig, eventually, installed, text};

const SHOW: &str = "#!/bin/sh
echo 'Content-Type: text/plain'
echo
env | sort
";

/// A directory with these programs in `cgi-bin`.
fn programs(programs: &[(&str, &str)]) -> Folder {
    let folder = Folder::new();
    for (name, content) in programs {
        folder.write_program(&format!("cgi-bin/{name}"), content);
    }
    folder
}

fn start(folder: Folder, more: &str) -> Rig {
    let text = format!(
        r#"
        [[route]]
        path = "/cgi-bin/*"
        cgi = {{ root = "cgi-bin"{more} }}
        "#
    );
    Rig::config(folder, &text)
}

/// Child processes of the server, with their states.
fn children(rig: &Rig) -> String {
    let shown =
        Command::new("ps").args(["-o", "pid=,stat=,args=", "--ppid", &rig.child.id().to_string()]).output();
    text(&shown.unwrap().stdout)
}

#[test]
fn cgi_program_receives_only_its_own_environment() {
    let rig = start(programs(&[("show", SHOW), ("deep/show.sh", SHOW)]), ", env = { MODE = \"test\" }");
    let shown = rig
        .ask("/cgi-bin/show/more%20of/it?a=b&c", "X-Own: yes\r\nProxy: http://evil\r\n")
        .expect_status(200)
        .text();
    let root = rig.folder.at("cgi-bin");
    let root = root.display();
    for line in [
        "GATEWAY_INTERFACE=CGI/1.1",
        "SCRIPT_NAME=/cgi-bin/show",
        "PATH_INFO=/more of/it",
        &format!("PATH_TRANSLATED={root}/more of/it"),
        &format!("SCRIPT_FILENAME={root}/show"),
        "QUERY_STRING=a=b&c",
        "REQUEST_METHOD=GET",
        "REQUEST_URI=/cgi-bin/show/more%20of/it?a=b&c",
        "REMOTE_ADDR=127.0.0.1",
        "SERVER_PROTOCOL=HTTP/1.1",
        "HTTP_X_OWN=yes",
        "MODE=test",
        "PATH=/usr/local/bin:/usr/bin:/bin",
        &format!("PWD={root}"),
    ] {
        assert!(shown.lines().any(|shown| shown == line), "{line} in:\n{shown}");
    }
    for name in ["HTTP_PROXY=", "KOMAINU", "CARGO", "HOME=", "CONTENT_LENGTH=", "SCGI="] {
        assert!(!shown.lines().any(|line| line.starts_with(name)), "{name} in:\n{shown}");
    }
    let shown = rig.get("/cgi-bin/deep/show.sh").expect_status(200).text();
    assert!(shown.contains("SCRIPT_NAME=/cgi-bin/deep/show.sh") && !shown.contains("PATH_INFO"), "{shown}");
}

#[test]
fn only_executables_below_the_cgi_root_are_run() {
    let folder = programs(&[("show", SHOW), ("nph-own", SHOW), (".hidden", SHOW), ("plain", "text")]);
    fs::set_permissions(folder.at("cgi-bin/plain"), fs::Permissions::from_mode(0o644)).unwrap();
    folder.write_program("outside", SHOW);
    symlink("../outside", folder.at("cgi-bin/leads-out")).unwrap();
    symlink("/bin/ls", folder.at("cgi-bin/absolute")).unwrap();
    symlink("show", folder.at("cgi-bin/stays")).unwrap();
    fs::create_dir(folder.at("cgi-bin/empty")).unwrap();
    let rig = start(folder, "");
    rig.get("/cgi-bin/stays").expect_status(200);
    for (path, status) in [
        ("/cgi-bin/none", 404),
        ("/cgi-bin/", 404),
        ("/cgi-bin/empty", 404),
        ("/cgi-bin/empty/x", 404),
        ("/cgi-bin/.hidden", 404),
        ("/cgi-bin/leads-out", 404),
        ("/cgi-bin/absolute", 404),
        ("/cgi-bin/%2e%2e/outside", 404),
        ("/cgi-bin/..%2foutside", 400),
        ("/cgi-bin/x/..%2f..%2foutside", 400),
        ("/cgi-bin/show%00", 400),
        ("/cgi-bin/plain", 403),
        ("/cgi-bin/nph-own", 501),
    ] {
        assert_eq!(rig.get(path).status(), status, "{path}");
    }
}

#[test]
fn path_info_does_not_bypass_the_route_of_a_cgi_program() {
    let names = ["secret.sh", "deep/secret.sh", "open.sh", "old/now.sh"];
    let folder = programs(&names.map(|name| (name, SHOW)));
    let config = r#"
        [[route]]
        path = ["/cgi-bin/secret.sh", "/cgi-bin/deep/secret.sh"]
        deny = "127.0.0.0/8"
        cgi = "cgi-bin"

        [[route]]
        path = "/both/open.sh"
        allow = "127.0.0.0/8"
        cgi = "cgi-bin"

        [[route]]
        path = "/both/*"
        deny = "10.0.0.0/8"
        cgi = "cgi-bin"

        [[route]]
        path = ["/cgi-bin/old", "/cgi-bin/none"]
        redirect = "/elsewhere"

        [[route]]
        path = "/cgi-bin/*"
        cgi = "cgi-bin"
        "#;
    let rig = Rig::config(folder, config);
    for (path, status) in [
        ("/cgi-bin/secret.sh", 403),
        ("/cgi-bin/secret.sh/", 403),
        ("/cgi-bin/secret.sh/foo", 403),
        ("/cgi-bin/secret%2esh/foo/bar", 403),
        ("/cgi-bin//secret.sh/foo", 403),
        ("/cgi-bin/x/../secret.sh/foo", 403),
        ("/cgi-bin/deep/secret.sh/", 403),
        // Neither route has the guards of both.
        ("/both/open.sh/x", 404),
        ("/both/old/now.sh/x", 200),
        ("/cgi-bin/open.sh/secret.sh/x", 200),
        // The routes of folders and of what does not exist do not count.
        ("/cgi-bin/old", 302),
        ("/cgi-bin/old/now.sh", 200),
        ("/cgi-bin/old/now.sh/x", 200),
        ("/cgi-bin/none/x", 404),
    ] {
        assert_eq!(rig.get(path).status(), status, "{path}");
    }
}

#[test]
fn cgi_programs_receive_and_send_bodies() {
    let perl = "#!/usr/bin/perl\nbinmode STDIN; local $/; my $body = <STDIN>;\nprint STDERR \"perl says\\n\";\n\
                print \"Status: 201 Made\\r\\nX-Length: \", length $body, \"\\r\\nContent-Type: text/plain\\r\\n\\r\\n\", $ENV{CONTENT_LENGTH}, ' ', substr $body, 0, 5;\n";
    let python = r"#!/usr/bin/env python3
import os, sys
body = sys.stdin.buffer.read(int(os.environ['CONTENT_LENGTH']))
sys.stdout.write('Content-Type: application/octet-stream\n\n')
sys.stdout.flush()
sys.stdout.buffer.write(body)
";
    let folder = programs(&[
        ("perl", perl),
        ("python", python),
        ("cat", "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\n'\ncat\n"),
        ("deaf", "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\nheard nothing'\n"),
        ("there", "#!/bin/sh\nprintf 'Location: /elsewhere\\n\\n'\n"),
    ]);
    let rig = start(folder, "");
    let post = |path: &str, body: &[u8]| {
        let mut stream = rig.connect();
        let head = format!("POST {path} HTTP/1.0\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.write_all(head.as_bytes()).unwrap();
        // The server may respond before it has read the whole body.
        let _ = stream.write_all(body);
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        crate::rig::Answer::parse(bytes)
    };
    let body: Vec<u8> = (0..300_000_u32).map(|at| b'a' + (at % 26) as u8).collect();
    if installed("perl").is_some() {
        post("/cgi-bin/perl", &body).expect(201, "300000 abcde").expect_field("X-Length", "300000");
        eventually("stderr is logged", || rig.reported().contains("cgi-bin/perl: stderr: perl says"));
    }
    if installed("python3").is_some() {
        assert_eq!(post("/cgi-bin/python", &body).expect_status(200).body.len(), body.len());
    }
    // A program that reads all of its input, and one that reads nothing.
    let chunked = "POST /cgi-bin/cat HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
    rig.send(chunked).expect_status(200);
    assert!(rig.send(chunked).text().contains("hello"));
    post("/cgi-bin/deaf", b"some input").expect_status(200);
    rig.get("/cgi-bin/there").expect_status(302).expect_field("Location", "/elsewhere");
    eventually("nothing is left of them", || children(&rig).is_empty());
}

#[test]
fn cgi_programs_without_a_response_cause_502() {
    let folder = programs(&[
        ("silent", "#!/bin/sh\nexit 3\n"),
        ("bare", "#!/bin/sh\necho no head at all\n"),
        (
            "endless",
            "#!/bin/sh\nwhile :; do echo 'X-More: and more and more and more and more and more'; done\n",
        ),
        ("broken", "#!/no/such/interpreter\n"),
    ]);
    let rig = start(folder, "");
    for path in ["silent", "bare", "endless"] {
        rig.get(&format!("/cgi-bin/{path}")).expect_status(502);
    }
    rig.get("/cgi-bin/broken").expect_status(500);
    eventually("it is logged", || rig.reported().contains("cannot be started"));
    eventually("nothing is left of them", || children(&rig).is_empty());
}

#[test]
fn processes_left_by_cgi_programs_are_ended_and_reaped() {
    let folder = programs(&[
        // A child process that keeps standard output open.
        ("forks", "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\nanswered'\nsleep 1000 &\n"),
        // A program that ignores SIGTERM, as does its child process.
        (
            "stubborn",
            "#!/bin/sh\ntrap '' TERM\nprintf 'Content-Type: text/plain\\n\\nbegun\\n'\nwhile :; do sleep 1000; done\n",
        ),
        ("slow", "#!/bin/sh\nsleep 1000\n"),
        // A program that leaves the process group in order to outlive the request.
        (
            "detaches",
            "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\nanswered'\nsetsid sleep 0.3 >/dev/null 2>&1 </dev/null &\n",
        ),
    ]);
    let rig = start(folder, ", time = \"1s\"");
    assert!(rig.get("/cgi-bin/detaches").expect_status(200).text().contains("answered"));
    eventually("what has left the group has ended", || children(&rig).is_empty());
    assert!(rig.get("/cgi-bin/forks").expect_status(200).text().contains("answered"));
    eventually("its child has ended", || children(&rig).is_empty());
    rig.get("/cgi-bin/slow").expect_status(504);
    let mut stream = rig.connect();
    stream.write_all(b"GET /cgi-bin/stubborn HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let bytes = rig::read_to_close(&mut stream);
    assert!(text(&bytes).contains("begun"));
    eventually("nothing is left of them", || children(&rig).is_empty());
}

#[test]
fn client_disconnect_ends_cgi_program_and_frees_its_slot() {
    let folder = programs(&[
        ("slow", "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\nbegun\\n'\nsleep 1000\n"),
        ("quick", "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\nquick'\n"),
    ]);
    let rig = start(folder, ", processes = 1");
    let mut slow = rig.connect();
    slow.write_all(b"GET /cgi-bin/slow HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut byte = [0; 64];
    assert!(slow.read(&mut byte).unwrap() > 0);
    assert!(children(&rig).contains("slow"), "{}", children(&rig));
    let waiting = {
        let mut stream = rig.connect();
        stream.write_all(b"GET /cgi-bin/quick HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        stream
    };
    drop(slow);
    let mut answer = String::new();
    let mut waiting = waiting;
    waiting.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("quick"), "{answer}");
    eventually("nothing is left of them", || children(&rig).is_empty());
}

/// Applications treat forwarding fields as evidence of a proxy that they do not know.
#[test]
fn cgi_programs_receive_no_forwarding_fields() {
    let folder = programs(&[("env", "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\n'\nenv\n")]);
    let answer = start(folder, "").ask("/cgi-bin/env", "X-Forwarded-For: 6.6.6.6\r\nX-Own: 1\r\n").text();
    assert!(answer.contains("REMOTE_ADDR=127.0.0.1") && answer.contains("HTTP_X_OWN=1"), "{answer}");
    assert!(!answer.contains("HTTP_X_FORWARDED") && !answer.contains("HTTP_VIA"), "{answer}");
}

#[test]
fn half_closed_client_gets_cgi_response_in_limited_time() {
    let folder = programs(&[
        ("silent", "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\nbegun\\n'\nsleep 1000\n"),
        ("late", "#!/bin/sh\nsleep 1\nprintf 'Content-Type: text/plain\\n\\nlate'\n"),
        ("mute", "#!/bin/sh\nsleep 1000\n"),
    ]);
    let rig = start(folder, "");
    let ask = |name: &str| {
        let mut stream = rig.connect();
        let head = format!("GET /cgi-bin/{name} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        stream
    };
    let mut late = ask("late");
    let mut silent = ask("silent");
    let mut mute = ask("mute");
    let mut answer = String::new();
    late.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("late"), "{answer}");
    for stream in [&mut silent, &mut mute] {
        rig::read_to_close(stream);
    }
    eventually("nothing is left of them", || children(&rig).is_empty());
}

#[test]
fn relative_cgi_root_is_resolved_from_the_configuration() {
    let folder = programs(&[("hello", "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\n%s' \"$PWD\"\n")]);
    let text = format!(
        r#"
        {}
        {}
        threads = 1

        [log]
        access = "$upstream"
        file = "access.log"

        [[route]]
        path = "/cgi-bin/*"
        cgi = "cgi-bin"
        "#,
        crate::rig::listen(&folder),
        crate::rig::as_we_are()
    );
    folder.write("komainu.toml", text);
    let mut command = crate::rig::komainu();
    command.current_dir(folder.path()).args(["start", "-c", "komainu.toml"]);
    let rig = Rig::start(command, folder);
    let answer = rig.get("/cgi-bin/hello");
    // Named after its directory, whichever socket the request uses.
    let log = || fs::read_to_string(rig.folder.at("access.log")).unwrap_or_default();
    eventually("it is logged", || log().starts_with("cgi:") && log().contains("cgi-bin"));
    assert!(answer.expect_status(200).text().contains("/cgi-bin"));
}

#[test]
fn check_rejects_missing_cgi_root() {
    let folder = Folder::new();
    folder.write(
        "komainu.toml",
        format!(
            r#"
            {}
            [[route]]
            cgi = "none"
            "#,
            crate::rig::as_we_are()
        ),
    );
    let started =
        crate::rig::komainu().arg("check").arg("-c").arg(folder.at("komainu.toml")).output().unwrap();
    assert!(!started.status.success());
    let said = text(&started.stderr);
    assert!(said.contains("there is no file or folder ") && said.contains("komainu.toml:"), "{said}");
}
