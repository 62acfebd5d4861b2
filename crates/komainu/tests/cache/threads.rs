//! Many serving threads on few processors: what they share is counted, limited and stored exactly.

use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::origin::{Ask, Origin, answer};
use crate::rig::{Rig, read_answer};

const THREADS: usize = 64;
const CLIENTS: usize = 192;
/// Requests of a client for each path.
const ROUNDS: usize = 10;
/// Requests that the limit admits, by all threads together.
const ADMITTED: usize = 500;

/// Asks on a connection that is kept; returns the status.
fn status(stream: &mut TcpStream, path: &str) -> u16 {
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).unwrap();
    read_answer(stream).status()
}

#[test]
fn sixty_four_threads_share_the_cache_limits_and_counts() {
    let origin = Origin::start(|ask: &Ask| {
        let is_cached = ask.line().contains("/cached");
        answer("200 OK", if is_cached { "Cache-Control: max-age=3600\r\n" } else { "" }, "hello")
    });
    let rig = Rig::controlled(&format!(
        r#"
        threads = {THREADS}
        [control]
        listen = "unix:control.sock"
        [[route]]
        path = "/limited"
        respond = "in"
        limit = {{ rate = "1/h", burst = {burst} }}
        [[route]]
        path = "/cached/*"
        proxy = "{url}"
        cache = true
        [[route]]
        proxy = {{ to = "{url}", keep_alive = {{ connections = 8 }} }}
        "#,
        burst = ADMITTED - 1,
        url = origin.url,
    ));
    let admitted = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (rig, admitted) = (&rig, &admitted);
            scope.spawn(move || {
                let mut stream = rig.connect();
                for round in 0..ROUNDS {
                    assert_eq!(status(&mut stream, &format!("/cached/{}", (client + round) % 4)), 200);
                    assert_eq!(status(&mut stream, "/proxied"), 200);
                    match status(&mut stream, "/limited") {
                        200 => _ = admitted.fetch_add(1, Ordering::Relaxed),
                        other => assert_eq!(other, 429),
                    }
                }
            });
        }
    });
    assert_eq!(admitted.into_inner(), ADMITTED);
    let asked = |path: &str| origin.asks().iter().filter(|ask| ask.line().contains(path)).count();
    assert_eq!((asked("/cached"), asked("/proxied")), (4, CLIENTS * ROUNDS));
    let metrics = rig.metrics();
    let sum = |name: &str, label: &str| -> usize {
        let lines = metrics.lines().filter(|line| line.starts_with(name) && line.contains(label));
        lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap() as usize).sum()
    };
    assert_eq!(sum("komainu_http_requests_total", ""), 3 * CLIENTS * ROUNDS, "{metrics}");
    assert_eq!(sum("komainu_http_requests_total", "\"429\""), CLIENTS * ROUNDS - ADMITTED, "{metrics}");
}
