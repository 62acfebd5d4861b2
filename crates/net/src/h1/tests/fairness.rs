//! Fairness: no client, however fast or greedy, may take the turns of others or the server's memory.

use super::rig::{HUGE_BYTES, Rig, read};
use crate::buffer_pool::{ConnectionBuffers, POOL_BYTES_MAX};
use crate::conn::OUT_BYTES_MAX;

const FIXED: &[u8] = b"GET /fixed HTTP/1.1\r\nHost: zoo\r\n\r\n";
/// A turn of the greedy client may delay others by a few turns, but not until all its requests are done.
const TURNS_MAX: usize = 5;

/// Returns the number of turns that another client waits for its response after `greed` was sent.
fn turns_delayed_by(greed: &[u8]) -> (Rig, std::rc::Rc<crate::sim::SimulatedWire>, usize) {
    let rig = Rig::with_short_timeouts();
    let greedy = rig.connect(0);
    let modest = rig.connect(1);
    greedy.whole_sends.set(true);
    greedy.client_sends(greed);
    modest.client_sends(FIXED);
    for turns in 1..=TURNS_MAX {
        rig.run_turn();
        if !read(&modest).is_empty() {
            return (rig, greedy, turns);
        }
    }
    panic!("the modest client starves");
}

#[test]
fn pipelined_requests_do_not_starve_other_connections() {
    let (rig, greedy, _) = turns_delayed_by(&FIXED.repeat(20_000));
    assert!(greedy.unread() > 0, "the greedy one is not done");
    rig.run_until_idle();
    assert_eq!(read(&greedy).matches("HTTP/1.1 200").count(), 20_000);
}

#[test]
fn large_request_body_does_not_starve_other_connections() {
    let head = b"POST /echo HTTP/1.1\r\nHost: zoo\r\nContent-Length: 1000000\r\n\r\n";
    let (rig, greedy, _) = turns_delayed_by(&[&head[..], &vec![b'x'; 1_000_000]].concat());
    assert!(greedy.unread() > 0);
    rig.run_until_idle();
    assert!(read(&greedy).ends_with("0\r\n\r\n"));
}

#[test]
fn body_in_one_byte_chunks_does_not_starve_other_connections() {
    let head = b"POST /swallow HTTP/1.1\r\nHost: zoo\r\nTransfer-Encoding: chunked\r\n\r\n";
    let (rig, greedy, _) =
        turns_delayed_by(&[&head[..], &b"1\r\nx\r\n".repeat(100_000), b"0\r\n\r\n"].concat());
    assert!(greedy.unread() > 0);
    rig.run_until_idle();
    assert!(read(&greedy).ends_with("100000 bytes"));
}

#[test]
fn large_response_does_not_starve_other_connections() {
    let (rig, greedy, _) = turns_delayed_by(b"GET /huge HTTP/1.1\r\nHost: zoo\r\n\r\n");
    let first = read(&greedy).len();
    assert!(first > 0 && first < HUGE_BYTES / 2, "{first}");
    rig.run_until_idle();
    assert!(first + read(&greedy).len() > HUGE_BYTES);
}

#[test]
fn client_that_reads_no_responses_is_not_read_from() {
    let rig = Rig::with_short_timeouts();
    let wire = rig.connect(0);
    wire.set_room(0);
    let all = b"HEAD /fixed HTTP/1.1\r\nHost: zoo\r\n\r\n".repeat(50_000);
    wire.client_sends(&all);
    rig.run_until_idle();
    // At most the content of one input buffer.
    assert!(all.len() - wire.unread() <= 64 * 1024, "{} bytes taken", all.len() - wire.unread());
}

#[test]
fn pipelined_responses_are_sent_in_bounded_writes() {
    let rig = Rig::with_short_timeouts();
    let wire = rig.connect(0);
    wire.whole_sends.set(true);
    // Many requests fit into one input buffer.
    let count = 300;
    wire.client_sends(&b"GET /fat HTTP/1.0\r\nConnection:keep-alive\r\n\r\n".repeat(count));
    rig.run_until_idle();
    let sends = wire.sends.take();
    let largest = sends.iter().max().copied().unwrap();
    assert!(largest <= OUT_BYTES_MAX + 2_000, "{largest} bytes at once");
    assert_eq!(read(&wire).matches("204 No Content").count(), count);
}

#[test]
fn buffer_pool_keeps_no_more_than_its_limit() {
    let rig = Rig::with_short_timeouts();
    let wires: Vec<_> = (0..300).map(|seed| rig.connect(seed)).collect();
    for wire in &wires {
        wire.set_room(0);
        wire.client_sends(FIXED);
    }
    rig.run_until_idle();
    assert_eq!(rig.engine.context.buffers.free_entries(), 0, "all are in use");
    for wire in &wires {
        wire.set_room(usize::MAX);
    }
    rig.run_until_idle();
    let works = &rig.engine.context.buffers;
    assert_eq!(works.free_entries(), 300, "small ones are all kept");
    assert!(works.free_bytes() <= POOL_BYTES_MAX);
    // Large entries are not kept.
    for _ in 0..300 {
        let mut work = Box::<ConnectionBuffers>::default();
        work.out.reserve(100 * 1024);
        works.put_back(work);
    }
    assert!((300..600).contains(&works.free_entries()) && works.free_bytes() <= POOL_BYTES_MAX);
}
