//! Serving files at the descriptor limit. Runs in a process of its own, because the limit is per process.
#![allow(clippy::unwrap_used)]

mod rig;
#[path = "../src/scratch.rs"]
mod scratch;

use std::io::{BufRead, BufReader, Read, Write};

use rustix::process::{Resource, Rlimit, setrlimit};

use crate::rig::Rig;

#[test]
fn cached_descriptors_are_closed_when_others_are_needed() {
    const FILES: usize = 100;
    let rig = Rig::new(|folder, options| {
        for at in 0..FILES {
            folder.write(&format!("root/{at}"), vec![at as u8; 64]);
        }
        // All files are kept as open descriptors, none in memory.
        options.cache.file_bytes_max = 0;
        options.cache.entries_max = FILES;
    });
    // A single connection for all requests, because no other could be accepted at the limit.
    let mut stream = BufReader::new(rig.connect());
    let open_now = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
    let limit = Some(open_now + FILES as u64 / 4);
    setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit }).unwrap();
    for at in (0..FILES).chain(0..FILES) {
        let request = format!("GET /{at} HTTP/1.1\r\nHost: a\r\n\r\n");
        stream.get_mut().write_all(request.as_bytes()).unwrap();
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        assert_eq!(line, "HTTP/1.1 200 OK\r\n", "file {at}");
        while line != "\r\n" {
            line.clear();
            stream.read_line(&mut line).unwrap();
        }
        let mut body = [0; 64];
        stream.read_exact(&mut body).unwrap();
        assert_eq!(body, [at as u8; 64]);
    }
}
