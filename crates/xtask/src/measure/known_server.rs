//! Server whose requests take known CPU time, for checking measuring tools.

use std::hint::black_box;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use crate::measure::Fallible;

/// Memory that the server allocates, in bytes, so that a reading of its memory has a known minimum.
const ALLOCATED_BYTES: usize = 64 << 20;
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

/// Serves until a request for `/quit`; each request takes `turns` iterations.
pub(crate) fn serve_known(port: &str, turns: &str) -> Fallible<ExitCode> {
    let turns = turns.parse()?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port.parse()?))?;
    let ballast = vec![1u8; ALLOCATED_BYTES];
    let quit = Arc::new(AtomicBool::new(false));
    for stream in listener.incoming() {
        let stream = stream?;
        let quit = quit.clone();
        let to_self = listener.local_addr()?;
        if quit.load(Ordering::SeqCst) {
            break;
        }
        thread::spawn(move || {
            // An error on a connection ends that connection only.
            if serve_connection(&stream, turns).is_ok_and(|quits| quits) {
                quit.store(true, Ordering::SeqCst);
                let _ = TcpStream::connect(to_self);
            }
        });
    }
    black_box(ballast);
    Ok(ExitCode::SUCCESS)
}

/// Serves one connection; returns true if it requested `/quit`.
fn serve_connection(stream: &TcpStream, turns: u64) -> io::Result<bool> {
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
            use_cpu(turns);
            let mut to = stream;
            to.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")?;
            if quits {
                return Ok(true);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_work_takes_more_iterations() {
        assert!(iterations_in(100) > iterations_in(10));
    }
}
