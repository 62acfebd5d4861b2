//! Full disks: responses, log entries, and recovery.

use std::cell::Cell;
use std::fs;
use std::io::{Read, Write};
use std::time::Duration;

use crate::hosted::{modules, only, status};
use crate::origin::{Origin, answer};
use crate::rig::space::{fill_disk, is_disk_empty, on_disk, on_small_disk};
use crate::rig::{self, Answer, Folder, Rig, eventually, is_root};

/// Configurations for a server on its own disk: a single process, and with a supervisor. A user namespace has
/// no other users.
fn kinds() -> Vec<&'static str> {
    if is_root() { rig::kinds() } else { vec!["user = \"root\"\n"] }
}

#[test]
fn log_lines_lost_on_full_disk_are_counted() {
    for kind in kinds() {
        let folder = Folder::new();
        let log = r#"
            [log]
            access = "a line of some length that names $uri here"
            file = "disk/access.log"
            errors = "disk/errors.log"
        "#;
        let config = format!(
            r#"
            threads = 1
            {kind}
            {log}
            [[route]]
            respond = "ok"
            "#
        );
        let Some(rig) = on_small_disk(folder, 64, &config) else { return };
        let asked = Cell::new(0);
        let ask = |count: usize| {
            for _ in 0..count {
                asked.set(asked.get() + 1);
                rig.get(&format!("/{}", asked.get())).expect(200, "ok");
            }
        };
        let text = || fs::read_to_string(on_disk(&rig, "access.log")).unwrap_or_default();
        // Only complete lines: the disk may have become full in the middle of one.
        let is_whole =
            |line: &&str| line.starts_with("a line of some length that names /") && line.ends_with(" here");
        let lines = || text().lines().filter(is_whole).count();
        ask(10);
        eventually("they are logged", || lines() == 10);
        fill_disk(&rig);
        let failed = || rig.reported().matches("access.log: cannot be written: ").count();
        // The last page of the file has room for some lines.
        eventually("it is said", || {
            ask(1);
            failed() == 1
        });
        ask(200);
        fs::remove_file(on_disk(&rig, "filler")).unwrap();
        let lost = || -> Option<usize> {
            let reported = rig.reported();
            let said =
                reported.lines().find(|line| line.ends_with("dropped while it could not be written"))?;
            said.split_once("access.log: ")?.1.split_once(" line")?.0.parse().ok()
        };
        eventually("a write works again, and how many were lost is said", || {
            ask(1);
            lost().is_some()
        });
        assert_eq!(failed(), 1, "{}", rig.reported());
        let last = format!("/{} here\n", asked.get());
        eventually("the last one is logged", || text().ends_with(&last));
        // Each request is either logged or counted as lost.
        assert_eq!(lost().unwrap() + lines(), asked.get(), "{}", rig.reported());
    }
}

/// Returns a body of this many bytes.
fn large(bytes: usize) -> String {
    (0..bytes).map(|at| char::from(b'a' + (at / 7 % 26) as u8)).collect()
}

#[test]
fn slow_clients_get_whole_responses_on_full_temporary_disk() {
    const BYTES: usize = 12_000_000;
    let content = large(BYTES);
    for kind in kinds() {
        let (content, response) = (content.clone(), answer("200 OK", "", &content));
        let origin = Origin::start(move |_| response.clone());
        let config = format!(
            r#"
            threads = 1
            {kind}
            temp_path = "disk"
            [log]
            level = "info"
            [[route]]
            proxy = "{}"
            "#,
            origin.url
        );
        let Some(rig) = on_small_disk(Folder::new(), 64, &config) else { return };
        // With a little space that runs out within a response, and with none.
        for round in 0..2 {
            let mut slow = rig.connect();
            slow.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
            let mut first = vec![0; 1000];
            slow.read_exact(&mut first).unwrap();
            eventually("it is said that there is no room", || {
                let reported = rig.reported();
                reported.contains("slow clients occupy upstream connections: no temporary file in")
            });
            // Other clients are served meanwhile.
            assert_eq!(rig.get("/b").expect_status(200).body.len(), BYTES);
            slow.read_to_end(&mut first).unwrap();
            assert!(Answer::parse(first).text() == content, "round {round}");
            fill_disk(&rig);
        }
    }
}

#[test]
fn request_body_is_refused_while_temporary_disk_is_full() {
    modules();
    let folder = Folder::new();
    folder.write("app.psgi", "sub { [200, [], [$_[0]{CONTENT_LENGTH}]] }");
    let config = format!(
        r#"
        threads = 1
        user = "root"
        temp_path = "disk"
        {}
        "#,
        only("psgi = \"app.psgi\"\nworkers = 1")
    );
    let Some(rig) = on_small_disk(folder, 4_096, &config) else { return };
    let post = || {
        let mut client = rig.connect();
        client
            .write_all(
                b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n",
            )
            .unwrap();
        for _ in 0..200 {
            // The request may be refused before it has been sent completely.
            let _ = client.write_all(format!("1388\r\n{}\r\n", "y".repeat(5000)).as_bytes());
        }
        let _ = client.write_all(b"0\r\n\r\n");
        let bytes = rig::read_to_close(&mut client);
        Answer::parse(bytes)
    };
    post().expect(200, "1000000");
    // The file of this body is removed after its response has been sent, which would free its space.
    eventually("nothing is stored", || is_disk_empty(&rig));
    fill_disk(&rig);
    let refused = post();
    refused.expect_status(503);
    rig.get("/").expect_status(200);
    eventually("it is said", || rig.reported().contains("no temporary file in"));
    fs::remove_file(on_disk(&rig, "filler")).unwrap();
    eventually("there is room again", || post().status() == 200);
}

#[test]
fn cache_uses_memory_while_its_disk_is_full() {
    let origin = Origin::start(|_| answer("200 OK", "Cache-Control: max-age=3600\r\n", &large(20_000)));
    let config = format!(
        r#"
        threads = 1
        user = "root"

        [log]
        level = "info"

        [cache]
        disk = {{ path = "disk/cache", size = "10MiB" }}

        [[route]]
        cache = true
        proxy = "{}"
        "#,
        origin.url
    );
    let Some(rig) = on_small_disk(Folder::new(), 256, &config) else { return };
    rig.get("/stored").expect_status(200);
    let on_disk_now = || status(&rig)["cache"].to_string();
    eventually("the first one is stored", || rig.get("/stored").is_hit());
    eventually("it is on disk", || {
        fs::read_dir(on_disk(&rig, "cache")).is_ok_and(|files| files.flatten().count() > 0)
    });
    fill_disk(&rig);
    let failed = || rig.reported().matches("responses are cached in memory alone").count();
    for at in 0..50 {
        assert_eq!(rig.get(&format!("/{at}")).expect_status(200).body.len(), 20_000);
    }
    eventually("it is said", || failed() > 0);
    // Responses that arrived meanwhile are cached, and stored ones are read.
    for path in ["/stored", "/49"] {
        eventually("a hit", || rig.get(path).is_hit());
    }
    assert_eq!(failed(), 1, "{}", rig.reported());
    fs::remove_file(on_disk(&rig, "filler")).unwrap();
    let mut at = 100;
    eventually("responses are written again", || {
        at += 1;
        rig.get(&format!("/{at}")).expect_status(200);
        std::thread::sleep(Duration::from_millis(50));
        rig.reported().contains("responses are written again")
    });
    assert_eq!(failed(), 1, "{} {}", rig.reported(), on_disk_now());
}

#[test]
fn file_size_limit_is_handled_like_a_full_disk() {
    let folder = Folder::new();
    folder.write(
        "komainu.toml",
        format!(
            r#"
            listen = "127.0.0.1:0"
            threads = 1
            {}
            [log]
            access = "a line of some length that names $uri"
            file = "access.log"
            [[route]]
            respond = "ok"
            "#,
            rig::as_we_are()
        ),
    );
    let mut command = std::process::Command::new("prlimit");
    command.arg("--fsize=4096").arg(rig::komainu().get_program());
    command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
    let rig = Rig::start(command, folder);
    for at in 0..200 {
        rig.get(&format!("/{at}")).expect(200, "ok");
    }
    eventually("it is said", || rig.reported().contains("access.log: cannot be written: "));
    rig.get("/").expect(200, "ok");
}
