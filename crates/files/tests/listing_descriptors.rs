//! A listing at the descriptor limit. Runs in a process of its own, because the limit is per process.
#![allow(clippy::unwrap_used)]

mod rig;
#[path = "../src/scratch.rs"]
mod scratch;

use std::io::{Read, Write};
use std::os::unix::fs::symlink;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::rig::{Answer, Rig, until};

#[test]
fn listing_is_complete_or_an_error() {
    let rig = Rig::new(|folder, options| {
        folder.write("root/file", "");
        symlink("file", folder.path("root/link")).unwrap();
        options.files.listing = true;
    });
    let open_now = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
    let maximum = getrlimit(Resource::Nofile).maximum;
    let listing = |free: u64| {
        let mut stream = rig.connect();
        // The connection is accepted before the limit is set.
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n").unwrap();
        until("the connection", || rig.count(|core| core.connections.value()) == free + 1);
        setrlimit(Resource::Nofile, Rlimit { current: Some(open_now + free), maximum }).unwrap();
        stream.write_all(b"Connection: close\r\n\r\n").unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
        Answer::parse(&bytes)
    };
    let answers: Vec<Answer> = (0..12).map(listing).collect();
    for answer in &answers {
        assert!(answer.status != 200 || answer.text().contains("./link"), "{}", answer.text());
    }
    assert!(answers[0].status >= 500 && answers[11].status == 200, "the limit was reached, and left behind");
}
