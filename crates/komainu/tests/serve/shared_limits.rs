//! `[limits.shared]`: limits shared between servers through a real Redis.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use crate::rig::{Folder, PATIENCE, Rig, eventually, read_answer};

/// A Redis server, killed on drop.
struct Redis(Child);

impl Redis {
    fn start(folder: &Path) -> Redis {
        let socket = folder.join("redis.sock");
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--save", "", "--appendonly", "no", "--requirepass", "secret"]);
        command.arg("--unixsocket").arg(&socket).arg("--dir").arg(folder);
        let child = command.stdout(Stdio::null()).spawn();
        let redis = Redis(child.expect("redis-server is installed: `scripts/setup test` does that"));
        eventually("Redis answers", || asked(&socket, "PING").contains("PONG"));
        redis
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Redis' response to this command; empty if Redis is not reachable.
fn asked(socket: &Path, line: &str) -> String {
    let Ok(mut stream) = UnixStream::connect(socket) else { return String::new() };
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let sent = stream.write_all(format!("AUTH secret\r\n{line}\r\nQUIT\r\n").as_bytes());
    let mut text = String::new();
    sent.and_then(|()| stream.read_to_string(&mut text)).map_or(String::new(), |_| text)
}

const RATE: f64 = 200.0;
const BURST: f64 = 20.0;

fn server(socket: &Path) -> Rig {
    let folder = Folder::new();
    folder.write("redis.password", "secret\n");
    let text = format!(
        r#"
        threads = 2
        [limits.shared]
        redis = "unix:{}"
        password_file = "redis.password"
        timeout = "20s"
        [[route]]
        limit = {{ rate = "{RATE}/s", burst = {}, shared = true }}
        respond = "ok"
        "#,
        socket.display(),
        BURST as u32 - 1
    );
    Rig::config(folder, &text)
}

/// Sends requests without a pause until `is_over`, and counts those that pass.
fn ask_on(rig: &Rig, passed: &AtomicU64, is_over: &AtomicBool) {
    let mut stream = rig.connect();
    while !is_over.load(Ordering::Relaxed) {
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let answer = read_answer(&mut stream);
        match answer.status() {
            200 => _ = passed.fetch_add(1, Ordering::Relaxed),
            status => assert_eq!(status, 429),
        }
    }
}

#[test]
fn servers_share_a_limit_and_apply_it_alone_without_redis() {
    let folder = Folder::new();
    let socket = folder.at("redis.sock");
    let redis = Redis::start(folder.path());
    let servers = [server(&socket), server(&socket)];
    let passed = [AtomicU64::new(0), AtomicU64::new(0)];
    let is_over = AtomicBool::new(false);
    let sum = || passed.iter().map(|passed| passed.load(Ordering::Relaxed)).sum::<u64>() as f64;
    let since = Instant::now();
    std::thread::scope(|scope| {
        let _ends = OnDrop(&is_over);
        for (rig, passed) in servers.iter().zip(&passed) {
            scope.spawn(|| ask_on(rig, passed, &is_over));
        }
        // Requests admitted during a late exchange are compensated afterwards, so the check is repeated.
        // Without sharing, twice as many would pass at any time.
        eventually("two servers under full load are within 2 % of the limit", || {
            // The counter is read first: requests that pass later belong to the time after.
            let passed = sum();
            let seconds = since.elapsed().as_secs_f64();
            seconds > 4.0 && passed <= (RATE * seconds + BURST) * 1.02 && passed >= RATE * seconds * 0.9
        });
        for passed in &passed {
            assert!(passed.load(Ordering::Relaxed) > 0, "both servers pass some");
        }
        // Key names are digests and contain no client addresses.
        eventually("the key is there", || asked(&socket, "KEYS *").contains("komainu:"));
        assert!(!asked(&socket, "KEYS *").contains("127.0.0.1"));
        // Redis is down: each server applies the limit on its own and logs this once.
        drop(redis);
        for rig in &servers {
            eventually("it is said", || rig.reported().contains("is away"));
        }
        let before = passed.each_ref().map(|passed| passed.load(Ordering::Relaxed));
        let since = Instant::now();
        eventually("each of them passes what the limit says", || {
            let seconds = since.elapsed().as_secs_f64();
            let each = passed.iter().zip(before).map(|(now, before)| now.load(Ordering::Relaxed) - before);
            let shares: Vec<f64> = each.map(|count| count as f64 / (RATE * seconds)).collect();
            seconds > 2.0 && shares.iter().all(|share| (0.8..=1.3).contains(share))
        });
        // Redis is back, and reconnected.
        let redis = Redis::start(folder.path());
        for rig in &servers {
            eventually("it is said", || rig.reported().contains("is back"));
            assert_eq!(rig.reported().matches("is away").count(), 1, "{}", rig.reported());
        }
        let before = sum();
        let since = Instant::now();
        eventually("they share the limit again", || {
            let passed = sum() - before;
            let seconds = since.elapsed().as_secs_f64();
            seconds > 2.0 && passed <= (RATE * seconds + BURST) * 1.05 && passed >= RATE * seconds * 0.8
        });
        drop(redis);
    });
}

/// Stops the threads, even if the test fails.
struct OnDrop<'a>(&'a AtomicBool);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn server_starts_without_redis_and_check_reports_mistakes() {
    let folder = Folder::new();
    let rig = server(&folder.at("redis.sock"));
    rig.get("/").expect(200, "ok");
    eventually("it is said", || rig.reported().contains("is away"));
    let check = |text: &str| {
        folder.write("k.toml", text);
        let mut command = crate::rig::komainu();
        let output = command.arg("check").arg("-c").arg(folder.at("k.toml")).output().unwrap();
        (output.status.success(), crate::rig::text(&output.stderr) + &crate::rig::text(&output.stdout))
    };
    let shared = r#"
        [[route]]
        limit = { rate = "1/s", shared = true }
        respond = "x"
    "#;
    let (is_right, said) = check(shared);
    assert!(!is_right && said.contains("`shared` without `[limits.shared]`"), "{said}");
    let (is_right, said) = check(&format!(
        r#"
        [limits.shared]
        redis = "redis://:secret@h"
        {shared}
        "#
    ));
    assert!(!is_right && said.contains("password_file"), "{said}");
    let (is_right, said) = check(&format!(
        r#"
        [limits.shared]
        redis = "redis://h"
        {shared}
        "#
    ));
    assert!(is_right, "{said}");
}
