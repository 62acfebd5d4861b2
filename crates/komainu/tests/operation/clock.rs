//! Jumps of the system clock while the server runs.

use std::fs;
use std::io::{Read, Write};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use http::condition::parse_date_s;

use crate::origin::{Origin, answer};
use crate::rig::{self, Answer, Folder, Rig, eventually, komainu, read_answer};

/// Overrides the C library's clock functions to add the seconds from a file to the real-time clock.
const SHIFTED: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *shift;

__attribute__((constructor)) static void begin(void) {
    int file = open(getenv("SHIFT_FILE"), O_RDONLY);
    void *map = mmap(0, 8, PROT_READ, MAP_SHARED, file, 0);
    if (map == MAP_FAILED) abort();
    close(file);
    shift = map;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int done = syscall(SYS_clock_gettime, clock, now);
    if (shift && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += *shift;
    return done;
}

int gettimeofday(struct timeval *now, void *zone) {
    (void)zone;
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *to) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (to) *to = now.tv_sec;
    return now.tv_sec;
}
"#;

/// A server whose real-time clock is set by the test.
struct Shifted(Rig);

impl Shifted {
    fn start(config: &str) -> Shifted {
        let folder = Folder::new();
        folder.write("clock.c", SHIFTED).write("shift", 0_i64.to_ne_bytes());
        let mut compile = Command::new("cc");
        compile.args(["-O1", "-fPIC", "-shared", "-Wall", "-Werror", "-o"]);
        compile.arg(folder.at("clock.so")).arg(folder.at("clock.c"));
        assert!(compile.status().unwrap().success());
        folder.write(
            "komainu.toml",
            format!("listen = \"127.0.0.1:0\"\nthreads = 1\n{}{config}", rig::as_we_are()),
        );
        let mut command = komainu();
        command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
        command.env("LD_PRELOAD", folder.at("clock.so")).env("SHIFT_FILE", folder.at("shift"));
        Shifted(Rig::start(command, folder))
    }

    /// Sets the server's clock this many seconds ahead of the test's.
    fn shift(&self, seconds: i64) {
        // In place, because the server has mapped the file.
        let file = fs::OpenOptions::new().write(true).open(self.0.folder.at("shift")).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &seconds.to_ne_bytes(), 0).unwrap();
    }
}

const DAY_S: i64 = 86_400;

#[test]
fn clock_jump_expires_cached_responses_but_not_timeouts() {
    let count = Arc::new(AtomicUsize::new(0));
    let theirs = count.clone();
    let origin = Origin::start(move |ask| {
        if ask.line().contains("/slow") {
            std::thread::sleep(Duration::from_millis(1_500));
        }
        let number = theirs.fetch_add(1, Ordering::SeqCst).to_string();
        answer("200 OK", "Cache-Control: max-age=3600\r\n", &number)
    });
    let server = Shifted::start(&format!(
        r#"
        [timeouts]
        idle = "20s"
        head = "3s"

        [[route]]
        path = "/slow"
        proxy = {{ to = "{0}", timeouts = {{ head = "20s" }} }}

        [[route]]
        path = "/hangs"
        proxy = {{ to = "http://{1}", timeouts = {{ head = "1s" }} }}

        [[route]]
        path = "/limited"
        limit = {{ rate = "1/h", burst = 1 }}
        respond = "ok"

        [[route]]
        cache = true
        proxy = "{0}"
        "#,
        origin.url,
        silent()
    ));
    let rig = &server.0;
    // Near the end of a year, the year alone would not tell the clocks apart.
    let date_s = |answer: &Answer| parse_date_s(answer.field("Date").unwrap().as_bytes()).unwrap();
    let mut stored = rig.get("/a").text();
    eventually("it is cached", || rig.get("/a").is_hit());
    assert_eq!(
        (rig.get("/limited").status(), rig.get("/limited").status(), rig.get("/limited").status()),
        (200, 200, 429)
    );
    for shift in [2 * DAY_S, -DAY_S, 365 * DAY_S, 0] {
        // An idle connection, an incomplete head, a pending response, and an unresponsive upstream server.
        let mut idle = rig.connect();
        idle.write_all(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        read_answer(&mut idle).expect_status(200);
        let mut begun = rig.connect();
        begun.write_all(b"GET /a HTTP/1.1\r\nHos").unwrap();
        let mut slow = rig.connect();
        slow.write_all(b"GET /slow HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
        let mut hangs = rig.connect();
        hangs.write_all(b"GET /hangs HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
        let began = Instant::now();
        server.shift(shift);
        // The cache uses the new clock once the server has noticed it.
        eventually("requests are answered by the new clock", || {
            let now = rig.get("/none-of-these");
            now.status() == 200 && date_s(&now).abs_diff((now_s() + shift).cast_unsigned()) < 3_600
        });
        // Earlier entries are stale: two days later, and also if the clock was set back.
        let now = rig.get("/a");
        assert!(now.text() != stored && !now.is_hit(), "{shift}: {}\n{}", now.head, now.text());
        stored = now.text();
        eventually("it is cached again", || rig.get("/a").is_hit());
        rig.get("/limited").expect_status(429);
        // Timeouts neither fired early nor hang.
        idle.write_all(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        read_answer(&mut idle).expect_status(200);
        begun.write_all(b"t: a\r\n\r\n").unwrap();
        read_answer(&mut begun).expect_status(200);
        let mut bytes = Vec::new();
        slow.read_to_end(&mut bytes).unwrap();
        Answer::parse(bytes).expect_status(200);
        let mut bytes = Vec::new();
        hangs.read_to_end(&mut bytes).unwrap();
        Answer::parse(bytes).expect_status(504);
        assert!(began.elapsed() >= Duration::from_millis(900), "a timeout fired early");
        let mut silent = rig.connect();
        silent.write_all(b"GET /a HTTP/1.1\r\nHos").unwrap();
        assert!(is_closed_or_refused(&mut silent), "a head that never ends is given up");
    }
}

fn now_s() -> i64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs().cast_signed()
}

/// Whether the connection was closed, with or without a 408.
fn is_closed_or_refused(stream: &mut std::net::TcpStream) -> bool {
    let bytes = rig::read_to_close(stream);
    bytes.is_empty() || bytes.starts_with(b"HTTP/1.1 408 ")
}

/// Starts a server that accepts connections and sends nothing.
fn silent() -> std::net::SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut taken = Vec::new();
        while let Ok((stream, _)) = listener.accept() {
            taken.push(stream);
        }
    });
    address
}
