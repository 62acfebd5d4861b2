//! The cache on disk, and its contents after a clean or abrupt restart.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::origin::{Origin, answer};
use crate::rig;
use crate::rig::{Folder, Rig, as_we_are, curl, eventually, kinds, komainu, listen};

/// Starts an origin that numbers its responses.
fn counting() -> Origin {
    let count = AtomicUsize::new(0);
    Origin::start(move |ask| {
        let path = ask.line().split(' ').nth(1).unwrap().to_owned();
        let fields = "Cache-Control: max-age=3600\r\nVary: X-A\r\nxkey: tag\r\n";
        answer("200 OK", fields, &format!("{path} {}", count.fetch_add(1, Ordering::SeqCst)))
    })
}

/// Writes the configuration into a directory that any user may enter.
fn configured(origin: &Origin, user: &str, size: &str) -> Folder {
    let folder = Folder::new();
    let disk = folder.at("cache");
    let text = format!(
        r#"
        {}
        {user}
        [cache]
        disk = {{ path = {disk:?}, size = "{size}" }}
        [[route]]
        proxy = {:?}
        cache = true
        "#,
        listen(&folder),
        origin.url,
    );
    folder.write("komainu.toml", text);
    folder
}

fn start(folder: Folder) -> Rig {
    let mut command = komainu();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
    Rig::start(command, folder)
}

/// Kills the server and starts another one with the same directory.
fn kill_and_start(mut rig: Rig) -> Rig {
    let folder = std::mem::replace(&mut rig.folder, Folder::new());
    let mut children = Vec::new();
    let id = rig.child.id();
    // The supervisor's server is a separate process, which dies shortly after the supervisor.
    if let Ok(text) = fs::read_to_string(format!("/proc/{id}/task/{id}/children")) {
        children.extend(text.split_whitespace().map(|id| Path::new("/proc").join(id)));
    }
    rig.child.kill().unwrap();
    rig.child.wait().unwrap();
    eventually("its server is gone", || children.iter().all(|path| !path.exists()));
    start(folder)
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = |path: &Path| fs::read_dir(path).into_iter().flatten().map(|entry| entry.unwrap().path());
    let folders: Vec<PathBuf> = entries(folder).filter(|path| path.is_dir()).collect();
    folders.iter().flat_map(|path| entries(path).collect::<Vec<_>>()).collect()
}

#[test]
fn stored_responses_survive_kill_9() {
    let origin = counting();
    for user in kinds() {
        let rig = start(configured(&origin, user, "10MiB"));
        let bodies: Vec<String> = (0..20).map(|n| rig.get(&format!("/{n}")).text()).collect();
        let variant = rig.ask("/0", "X-A: 1\r\n").text();
        assert_ne!(variant, bodies[0]);
        eventually("all of it is on disk", || files(&rig.folder.at("cache")).len() == 21);
        let asked = origin.asks().len();
        let rig = kill_and_start(rig);
        for (n, body) in bodies.iter().enumerate() {
            let hit = rig.get(&format!("/{n}"));
            assert!(hit.text() == *body && hit.is_hit(), "{n}: {}", hit.head);
            assert!(hit.field("Age").is_some());
        }
        assert_eq!(rig.ask("/0", "X-A: 1\r\n").text(), variant);
        rig.ask("/1", "Range: bytes=0-1\r\n").expect(206, "/1");
        assert_eq!(origin.asks().len(), asked, "the origin was not asked");
        rig.expect_report("21 responses");
        // Responses invalidated by a request stay invalid.
        rig.send("POST /2 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        eventually("its file is removed", || files(&rig.folder.at("cache")).len() == 20);
        let rig = kill_and_start(rig);
        assert!(!rig.get("/2").is_hit() && rig.get("/3").is_hit());
    }
}

#[test]
fn damaged_cache_files_are_fetched_again() {
    let origin = counting();
    let rig = start(configured(&origin, rig::as_we_are(), "10MiB"));
    let body = rig.get("/a").text();
    eventually("it is on disk", || files(&rig.folder.at("cache")).len() == 1);
    let rig = kill_and_start(rig);
    let file = files(&rig.folder.at("cache")).remove(0);
    let mut bytes = fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&file, bytes).unwrap();
    let again = rig.get("/a");
    assert!(again.text() != body && !again.is_hit(), "{}", again.head);
    eventually("it is reported", || rig.reported().contains("cache.disk: dropped"));
    eventually("the new one takes its place", || {
        files(&rig.folder.at("cache")).iter().any(|new| *new != file)
    });
    rig.get("/a").expect_hit();
}

#[test]
fn cache_uses_memory_when_its_directory_is_unusable() {
    let origin = counting();
    let folder = configured(&origin, rig::as_we_are(), "10MiB");
    std::os::unix::fs::symlink("nowhere", folder.at("cache")).unwrap();
    let rig = start(folder);
    let body = rig.get("/a").text();
    let hit = rig.get("/a");
    assert!(hit.text() == body && hit.is_hit());
    rig.expect_report("cached in memory alone");
    let reports = rig.reported().matches("cached in memory alone").count();
    assert_eq!(reports, 1, "{}", rig.reported());
}

/// Returns 3,000,000 bytes that differ for each `number`.
fn large(number: usize) -> String {
    (0..3_000_000).map(|at| char::from(b'a' + ((at / 7 + at / 4099 + number * 5) % 26) as u8)).collect()
}

#[test]
fn large_responses_stay_intact_while_they_are_replaced() {
    const HEAD: &str = "HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n";
    let count = AtomicUsize::new(0);
    let origin = Origin::start(move |ask| {
        let number = if ask.line().starts_with("GET") { count.fetch_add(1, Ordering::SeqCst) } else { 0 };
        answer("200 OK", "Cache-Control: max-age=3600\r\n", &large(number))
    });
    let rig = start(configured(&origin, as_we_are(), "1GiB"));
    assert!(rig.get("/a").text() == large(0));
    eventually("it is on disk", || files(&rig.folder.at("cache")).len() == 1);
    let is = |rig: &Rig, number: usize| {
        let whole = rig.get("/a");
        assert!(whole.is_hit() && whole.text() == large(number));
        let part = rig.ask("/a", "Range: bytes=70000-2500000\r\n");
        assert!(part.status() == 206 && part.text() == large(number)[70_000..=2_500_000]);
    };
    is(&rig, 0);
    // A slow client reads one response while it is removed and replaced by others.
    let mut slow = rig.connect();
    slow.write_all(format!("GET /a {HEAD}\r\n").as_bytes()).unwrap();
    let mut first = [0; 1000];
    slow.read_exact(&mut first).unwrap();
    for number in 1..4 {
        rig.send(&format!("POST /a {HEAD}Content-Length: 0\r\n\r\n")).expect_status(200);
        assert!(rig.get("/a").text() == large(number));
        eventually("it is stored", || rig.get("/a").is_hit());
        is(&rig, number);
    }
    let mut rest = Vec::new();
    slow.read_to_end(&mut rest).unwrap();
    let all = [&first[..], &rest].concat();
    let at = all.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    assert!(all[at..] == *large(0).as_bytes());
    eventually("the last one is on disk", || files(&rig.folder.at("cache")).len() == 1);
    // The first hit is read from disk, the next one from memory.
    let rig = kill_and_start(rig);
    is(&rig, 3);
    is(&rig, 3);
}

#[test]
fn large_responses_arrive_over_http_2() {
    let origin = Origin::start(|_| answer("200 OK", "Cache-Control: max-age=3600\r\n", &large(1)));
    let mut command = komainu();
    command.args(["run", "--h2c", "--listen", "127.0.0.1:0", "--cache", &origin.url]);
    let rig = Rig::start(command, Folder::new());
    for _ in 0..3 {
        let got = curl(&["--http2-prior-knowledge", &rig.url("/a")]).stdout;
        assert!(got == large(1).as_bytes());
    }
    let part = curl(&["--http2-prior-knowledge", "-r", "1000000-1999999", &rig.url("/a")]).stdout;
    assert!(part == large(1).as_bytes()[1_000_000..2_000_000]);
    assert_eq!(origin.asks().len(), 1);
}

#[test]
fn range_of_an_oversized_response_is_passed_to_the_origin() {
    const BYTES: usize = 6_000_000;
    let origin = Origin::start(|ask| {
        let fields = "Cache-Control: max-age=3600\r\nETag: \"a\"\r\n";
        match ask.field("Range").first() {
            None => answer("200 OK", fields, &"x".repeat(BYTES)),
            Some(range) => {
                let (from, to) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
                let (from, to): (usize, usize) = (from.parse().unwrap(), to.parse().unwrap());
                let fields = format!("{fields}Content-Range: bytes {from}-{to}/{BYTES}\r\n");
                answer("206 Partial Content", &fields, &"y".repeat(to + 1 - from))
            }
        }
    });
    let rig = start(configured(&origin, as_we_are(), "10MiB"));
    let part = |range: &str| rig.ask("/a", &format!("Range: bytes={range}\r\n"));
    // The whole response is requested first, to be stored. It is too large, and the range is far from its
    // start, so the range is requested as well.
    part("5000000-5000009")
        .expect(206, "yyyyyyyyyy")
        .expect_field("Content-Range", "bytes 5000000-5000009/6000000");
    let ranges = || -> Vec<bool> { origin.asks().iter().map(|ask| !ask.field("Range").is_empty()).collect() };
    assert_eq!(ranges(), [false, true]);
    // The response is known to be too large to store, so ranges are passed on.
    part("10-19").expect(206, "yyyyyyyyyy");
    assert_eq!(ranges(), [false, true, true]);
    assert!(files(&rig.folder.at("cache")).is_empty());
}
