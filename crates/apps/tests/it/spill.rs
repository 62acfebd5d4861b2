//! Slow clients do not occupy workers: responses and uploads are buffered in temporary files.

use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use apps::Options;
use net::{SpillQuota, SpillStore};

use crate::rig;
use crate::rig::{Client, Rig, one_worker, until};

const MIB: u64 = 1024 * 1024;
/// Size of `/download`, which exceeds the socket buffers.
const ANSWER_MIB: usize = 20;

fn quota(bytes_max: u64) -> Option<Arc<SpillQuota>> {
    SpillQuota::new(&SpillStore::new(&std::env::temp_dir(), u64::MAX), bytes_max)
}

/// Starts an application with a quota of temporary files; returns both.
fn spilling(bytes_max: u64, adapt: impl FnOnce(&mut Options)) -> (Rig, Arc<SpillQuota>) {
    let quota = quota(bytes_max).unwrap();
    let theirs = quota.clone();
    let rig = Rig::perl("all", move |options| {
        options.spill = Some(theirs);
        adapt(options);
    });
    (rig, quota)
}

fn ask_for_much(rig: &Rig) -> Client {
    let mut client = rig.connect();
    client.send(format!("GET /download?{ANSWER_MIB} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"));
    client
}

#[test]
fn slow_readers_hold_no_worker() {
    let (rig, quota) = spilling(u64::MAX, |_| {});
    let mut readers: Vec<Client> = (0..30).map(|_| ask_for_much(&rig)).collect();
    // With 2 workers and no files, no other request would ever be served.
    for _ in 0..50 {
        assert_eq!(rig.get("/").status, 200);
    }
    assert!(quota.used() > 30 * MIB);
    // Half of the clients disconnect; the others receive every byte.
    readers.truncate(15);
    for reader in &mut readers {
        assert_eq!(reader.answer().body.len(), ANSWER_MIB << 20);
    }
    until("an end of all files", || quota.used() == 0);
}

#[test]
fn slow_readers_are_disconnected_when_spill_files_are_full() {
    let (rig, quota) = spilling(2 * MIB, |_| {});
    let readers: Vec<Client> = (0..6).map(|_| ask_for_much(&rig)).collect();
    // The files are full only briefly: slow clients are disconnected to make room.
    rig.logged("slow clients hold workers");
    for _ in 0..10 {
        assert_eq!(rig.get("/").status, 200);
    }
    assert!(quota.used() <= 2 * MIB);
    rig.logged("answers are cut off");
    // A remaining slow client may occupy half of the workers, and receives its entire response.
    let lengths = readers.into_iter().map(|reader| reader.rest().len());
    assert!(lengths.filter(|len| *len > ANSWER_MIB << 20).count() >= 1);
}

#[test]
fn steady_readers_are_not_disconnected_when_spill_files_are_full() {
    let (rig, _quota) = spilling(1, |_| {});
    let readers: Vec<_> = (0..6).map(|_| ask_for_much(&rig)).collect();
    let threads = readers.into_iter().map(|mut reader| {
        std::thread::spawn(move || {
            // About 12 MB a second.
            let (mut read, mut buffer) = (0, vec![0; 64 << 10]);
            loop {
                match reader.stream.read(&mut buffer) {
                    Ok(0) | Err(_) => return read,
                    Ok(count) => read += count,
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        })
    });
    let threads: Vec<_> = threads.collect();
    for thread in threads {
        let read = thread.join().unwrap();
        assert!(read > ANSWER_MIB << 20, "{read} bytes");
    }
}

#[test]
fn slow_uploads_occupy_no_workers() {
    let (rig, quota) = spilling(u64::MAX, one_worker);
    let body = vec![b'x'; 300_000];
    let mut senders: Vec<Client> = (0..8).map(|_| rig.connect()).collect();
    for (at, sender) in senders.iter_mut().enumerate() {
        match at % 2 {
            0 => sender.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 300000\r\n\r\n"),
            _ => sender.send("PUT /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n493e0\r\n"),
        }
        sender.send(&body[..200_000]);
    }
    until("all of it in files", || quota.used() > 8 * 100_000);
    for _ in 0..10 {
        assert_eq!(rig.get("/").status, 200);
    }
    for (at, mut sender) in senders.into_iter().enumerate() {
        if at < 2 {
            continue; // leaves in the middle
        }
        sender.send(&body[200_000..]);
        if at % 2 == 1 {
            sender.send("\r\n0\r\n\r\n");
        }
        let answer = sender.answer();
        assert_eq!((answer.body.len(), answer.field("x-length")), (300_000, Some("300000")));
    }
    until("an end of all files", || quota.used() == 0);
}

#[test]
fn buffered_body_of_unknown_length_gets_content_length() {
    let (rig, quota) = spilling(u64::MAX, |_| {});
    for pieces in [1, 10, 700] {
        let mut client = rig.connect();
        client.send("POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
        for _ in 0..pieces {
            client.send(format!("1388\r\n{}\r\n", "y".repeat(5000)));
        }
        client.send("0\r\n\r\n");
        let answer = client.answer();
        let length = (pieces * 5000).to_string();
        assert_eq!((answer.body.len(), answer.field("x-length")), (pieces * 5000, Some(length.as_str())));
        assert_eq!(answer.field("x-coding"), Some("none"));
    }
    until("an end of all files", || quota.used() == 0);
}

#[test]
fn unbuffered_body_has_neither_length_nor_transfer_coding() {
    let (rig, _quota) = spilling(u64::MAX, |options| options.settings.request_buffering = Some(false));
    let mut client = rig.connect();
    client.send("POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    for _ in 0..40 {
        client.send(format!("1388\r\n{}\r\n", "y".repeat(5000)));
    }
    client.send("0\r\n\r\n");
    let answer = client.answer();
    assert_eq!((answer.body.len(), answer.field("x-length")), (200_000, Some("none")));
    assert_eq!(answer.field("x-coding"), Some("none"));
}

#[test]
fn upload_with_known_length_is_unbuffered_when_files_are_full() {
    let (rig, quota) = spilling(MIB, |_| {});
    let body = vec![b'x'; 5_000_000];
    let answer = rig.connect().post("/echo", &body);
    assert!(answer.status == 200 && answer.body == body);
    rig.logged("requests are not buffered");
    // Many applications treat a body of unknown length as empty.
    let mut client = rig.connect();
    client.send("POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n4c4b40\r\n");
    client.send(&body[..2_000_000]);
    assert_eq!(client.answer().status, 503);
    until("an end of all files", || quota.used() == 0);
}

#[test]
fn queued_upload_survives_the_death_of_its_worker() {
    let (rig, _quota) = spilling(u64::MAX, one_worker);
    let worker = rig.ready(1)[0];
    // Occupies the only worker, so that the upload is still waiting when the worker is killed.
    let mut busy = rig.connect();
    busy.send("GET /sleep?1 HTTP/1.1\r\nHost: a\r\n\r\n");
    rig.logged("sleeps 1");
    let body = vec![b'x'; 500_000];
    let mut client = rig.connect();
    client.send("PUT /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 500000\r\n\r\n");
    client.send(&body);
    assert!(rig::kill(worker, "-KILL"));
    let answer = client.answer();
    assert!(answer.status == 200 && answer.body == body, "{}", answer.head);
    let mut rest = Vec::new();
    let _ = busy.stream.read(&mut rest);
}
