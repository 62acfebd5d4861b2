//! Server with predetermined behaviour, for checking measuring tools.

use std::fmt::Write as _;
use std::hint::black_box;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::measure::Fallible;

/// Memory that the server allocates, in bytes, so that a reading of its memory has a known minimum.
const ALLOCATED_BYTES: usize = 64 << 20;
/// Interval of errors: one of this many requests is answered with an error.
pub(crate) const ERROR_INTERVAL: u64 = 100;
/// Interval between the starts of two stalls.
pub(crate) const STALL_INTERVAL: Duration = Duration::from_secs(5);
/// Duration of a stall.
pub(crate) const STALL_TIME: Duration = Duration::from_secs(1);
/// Delays in a sequence of a hundred requests: number of requests, and milliseconds.
pub(crate) const DELAYS: [(u64, u64); 3] = [(90, 5), (9, 20), (1, 80)];

/// Behaviour of the server for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KnownBehavior {
    /// Computes for this number of loop iterations.
    Work(u64),
    /// Delays requests by [`DELAYS`].
    Delay,
    /// Stalls for [`STALL_TIME`] of each [`STALL_INTERVAL`].
    Stall,
    /// Fails every [`ERROR_INTERVAL`]th request.
    Errors,
}

impl KnownBehavior {
    fn parse(text: &str) -> Option<KnownBehavior> {
        match text.split_once(':') {
            Some(("work", turns)) => Some(KnownBehavior::Work(turns.parse().ok()?)),
            None if text == "delay" => Some(KnownBehavior::Delay),
            None if text == "stall" => Some(KnownBehavior::Stall),
            None if text == "errors" => Some(KnownBehavior::Errors),
            _ => None,
        }
    }
}

/// Uses CPU time for `turns` iterations.
fn use_cpu(turns: u64) {
    let mut state = 1u64;
    for _ in 0..turns {
        state = black_box(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
    }
}

/// Returns the iterations of [`use_cpu`] that take `us` microseconds on this machine: the minimum of several
/// measurements.
pub(crate) fn iterations_in(us: u64) -> u64 {
    const TRIAL_ITERATIONS: u64 = 1_000_000;
    let once = || {
        let began = Instant::now();
        use_cpu(TRIAL_ITERATIONS);
        began.elapsed()
    };
    let least = (0..10).map(|_| once()).min().unwrap_or_default();
    TRIAL_ITERATIONS * us * 1_000 / least.as_nanos().max(1) as u64
}

/// Serves until a request for `/quit`.
pub(crate) fn serve_known(port: &str, behavior: &str) -> Fallible<ExitCode> {
    let way = KnownBehavior::parse(behavior).ok_or("known: the ways are work:TURNS, delay, stall, errors")?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port.parse()?))?;
    let ballast = vec![1u8; ALLOCATED_BYTES];
    let began = Instant::now();
    let count = Arc::new(AtomicU64::new(0));
    let quit = Arc::new(AtomicU64::new(0));
    for stream in listener.incoming() {
        let stream = stream?;
        let count = count.clone();
        let quit = quit.clone();
        let to_self = listener.local_addr()?;
        if quit.load(Ordering::SeqCst) > 0 {
            break;
        }
        thread::spawn(move || {
            // An error on a connection ends that connection only.
            if serve_connection(&stream, way, began, &count).is_ok_and(|quits| quits) {
                quit.store(1, Ordering::SeqCst);
                let _ = TcpStream::connect(to_self);
            }
        });
    }
    black_box(ballast);
    Ok(ExitCode::SUCCESS)
}

/// Serves one connection; returns true if it requested `/quit`.
fn serve_connection(
    stream: &TcpStream,
    behavior: KnownBehavior,
    began: Instant,
    count: &AtomicU64,
) -> io::Result<bool> {
    stream.set_nodelay(true)?;
    let mut from = BufReader::new(stream);
    let mut line = String::new();
    let mut quits = false;
    loop {
        line.clear();
        if from.read_line(&mut line)? == 0 {
            return Ok(false);
        }
        quits |= line.starts_with("GET /quit ");
        if line.trim_end().is_empty() {
            let status = apply_behavior(behavior, began, count.fetch_add(1, Ordering::Relaxed));
            let mut answer = String::with_capacity(64);
            let _ = write!(answer, "HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\nok");
            let mut to = stream;
            to.write_all(answer.as_bytes())?;
            if quits {
                return Ok(true);
            }
        }
    }
}

/// Delays request `number` and returns its status line.
fn apply_behavior(behavior: KnownBehavior, began: Instant, number: u64) -> &'static str {
    match behavior {
        KnownBehavior::Work(turns) => use_cpu(turns),
        KnownBehavior::Delay => {
            let mut below = 0;
            let ms = DELAYS.iter().find_map(|&(share, ms)| {
                below += share;
                (number % 100 < below).then_some(ms)
            });
            thread::sleep(Duration::from_millis(ms.unwrap_or(0)));
        }
        KnownBehavior::Stall => {
            // Stalls are at the end of each period, so that a run does not begin with one.
            let into = Duration::from_nanos((began.elapsed().as_nanos() % STALL_INTERVAL.as_nanos()) as u64);
            if into >= STALL_INTERVAL - STALL_TIME {
                thread::sleep(STALL_INTERVAL - into);
            }
        }
        KnownBehavior::Errors if number % ERROR_INTERVAL == ERROR_INTERVAL - 1 => return "500 Error",
        KnownBehavior::Errors => {}
    }
    "200 OK"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_behaviors_are_parsed_and_shares_sum_to_100() {
        assert_eq!(KnownBehavior::parse("work:12"), Some(KnownBehavior::Work(12)));
        assert_eq!(
            (KnownBehavior::parse("stall"), KnownBehavior::parse("nap")),
            (Some(KnownBehavior::Stall), None)
        );
        assert_eq!(DELAYS.iter().map(|(share, _)| share).sum::<u64>(), 100);
        assert!(iterations_in(100) > iterations_in(10));
        assert_eq!(apply_behavior(KnownBehavior::Errors, Instant::now(), 99), "500 Error");
        assert_eq!(apply_behavior(KnownBehavior::Errors, Instant::now(), 100), "200 OK");
    }
}
