//! Measures the cost of parsing a head, in nanoseconds, for a few typical heads. `cargo run --release
//! --example parse_cost` prints a table; with a number as argument, the first head is parsed that many times
//! without measuring, for `valgrind --tool=callgrind`.

use std::hint::black_box;
use std::io::Write as _;
use std::time::Instant;

use http::machine::{ClientMachine, ServerMachine, Step};
use http::{Limits, Method};

const WRK: &str = "GET /index.html HTTP/1.1\r\nHost: 127.0.0.1:8080\r\n\r\n";

const BROWSER: &str = "GET /assets/app.4f1c2a.js?v=20261121 HTTP/1.1\r\n\
    Host: www.example.com\r\n\
    Connection: keep-alive\r\n\
    sec-ch-ua: \"Chromium\";v=\"142\", \"Not_A Brand\";v=\"99\"\r\n\
    sec-ch-ua-mobile: ?0\r\n\
    sec-ch-ua-platform: \"Linux\"\r\n\
    User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/142.0.0.0 Safari/537.36\r\n\
    Accept: text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8\r\n\
    Sec-Fetch-Site: same-origin\r\n\
    Sec-Fetch-Mode: no-cors\r\n\
    Sec-Fetch-Dest: script\r\n\
    Referer: https://www.example.com/products/lantern?page=2\r\n\
    Accept-Encoding: gzip, deflate, br, zstd\r\n\
    Accept-Language: en-GB,en;q=0.9,ja;q=0.8\r\n\
    Cookie: session=c2Vzc2lvbi1pZC0xMjM0NTY3ODkw; theme=dark; _visit=1763715600.4.1\r\n\
    If-None-Match: \"66f1a-9029\"\r\n\
    \r\n";

const RESPONSE: &str = "HTTP/1.1 200 OK\r\n\
    Server: upstream\r\n\
    Date: Sat, 21 Nov 2026 09:00:00 GMT\r\n\
    Content-Type: text/html; charset=utf-8\r\n\
    Content-Length: 0\r\n\
    Cache-Control: no-cache\r\n\
    \r\n";

const ROUNDS: u32 = 20;
const HEADS_A_ROUND: u32 = 100_000;

fn main() -> std::io::Result<()> {
    let limits = Limits::default();
    let mut server = ServerMachine::default();
    let mut client = ClientMachine::default();
    let mut request = |text: &str, piece_bytes: usize| {
        let bytes = black_box(text.as_bytes());
        for end in (piece_bytes..bytes.len()).step_by(piece_bytes).chain([bytes.len()]) {
            let fed = server.feed(&bytes[..end], &limits).expect("a good request");
            assert!(end < bytes.len() || black_box(fed).step == Step::Head);
        }
        server.next();
    };
    if let Some(heads) = std::env::args().nth(1).and_then(|heads| heads.parse::<u32>().ok()) {
        (0..heads).for_each(|_| request(WRK, usize::MAX));
        return Ok(());
    }
    let mut table = std::io::stdout();
    writeln!(table, "{:<44} {:>6} {:>10} {:>8}", "head", "bytes", "ns a head", "ns/byte")?;
    let mut line = |name: &str, text: &str, read: &mut dyn FnMut(&str)| {
        let best_ns = (0..ROUNDS).map(|_| round_ns(text, read)).fold(f64::INFINITY, f64::min);
        writeln!(table, "{name:<44} {:>6} {best_ns:>10.1} {:>8.3}", text.len(), best_ns / text.len() as f64)
    };
    line("request of a load generator", WRK, &mut |text| request(text, usize::MAX))?;
    line("request of a browser, 15 fields", BROWSER, &mut |text| request(text, usize::MAX))?;
    line("the same in pieces of 100 bytes", BROWSER, &mut |text| request(text, 100))?;
    line("the same byte by byte", BROWSER, &mut |text| request(text, 1))?;
    line("response of an upstream, 5 fields", RESPONSE, &mut |text| {
        let fed = client.feed(black_box(text.as_bytes()), Method::Get, &limits).expect("a good response");
        assert!(black_box(fed).step == Step::Head);
        client.next();
    })
}

/// Nanoseconds per head in one round; the fastest round is the least disturbed.
fn round_ns(text: &str, read: &mut dyn FnMut(&str)) -> f64 {
    let begun = Instant::now();
    for _ in 0..HEADS_A_ROUND {
        read(text);
    }
    begun.elapsed().as_secs_f64() * 1e9 / f64::from(HEADS_A_ROUND)
}
