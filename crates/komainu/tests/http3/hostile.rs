//! Clients that break the rules of HTTP/3, or ask for a million things and read nothing.

use std::net::UdpSocket;
use std::time::Duration;

use quinn_proto::ConnectionError;

use crate::requests::{A, connect, serve};

const YES: &str = "[[site.route]]\nrespond = \"yes\"";

fn code(lost: &Option<ConnectionError>) -> u64 {
    match lost {
        Some(ConnectionError::ApplicationClosed(close)) => close.error_code.into_inner(),
        other => panic!("{other:?}"),
    }
}

/// RFC 9114 sections 4.1, 7.1, 7.2.
#[test]
fn broken_frames_end_the_connection_with_their_code() {
    let rig = serve(YES);
    // DATA before HEADERS; SETTINGS, a frame of HTTP/2, and PUSH_PROMISE on a request stream.
    for frame in [&[0, 1, 0][..], &[4, 0], &[6, 0], &[5, 0]] {
        let mut client = connect(&rig);
        let id = client.quic.streams().open(quinn_proto::Dir::Bi).unwrap();
        client.quic.send_stream(id).write(frame).unwrap();
        client.drive("end of the connection", |client| client.lost.is_some());
        assert_eq!(code(&client.lost), 0x105, "{frame:?}");
    }
}

#[test]
fn random_and_cut_packets_are_ignored() {
    let rig = serve(YES);
    let mut client = connect(&rig);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..20_000 {
        let len = random.usize(0..1500);
        let packet: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(len).collect();
        let _ = socket.send_to(&packet, rig.address);
    }
    assert_eq!(client.ask("GET", "/", &[A], b"").status, 200);
}

#[test]
fn streams_opened_and_reset_a_thousand_times_leave_nothing() {
    let rig = serve(YES);
    let mut client = connect(&rig);
    for _ in 0..1000 {
        let id = client.open("POST", "/", &[A]);
        client.cancel(id);
    }
    assert_eq!(client.ask("GET", "/", &[A], b"").status, 200);
}

#[test]
fn client_that_reads_nothing_makes_the_server_hold_little() {
    let rig = serve_big();
    let mut client = connect(&rig);
    client.reads = false;
    let before = memory_kib(rig.child.id());
    for _ in 0..100 {
        client.send("GET", "/big", &[A], b"");
    }
    client.drive_for(Duration::from_secs(2));
    let grown = memory_kib(rig.child.id()).saturating_sub(before);
    assert!(grown < 32 * 1024, "{grown} KiB");
    let mut other = connect(&rig);
    assert_eq!(other.ask("GET", "/small", &[A], b"").status, 200);
}

fn serve_big() -> crate::rig::Rig {
    crate::requests::serve_with("", "[[site.route]]\nfiles = \"www\"", |folder| {
        std::fs::create_dir(folder.at("www")).unwrap();
        std::fs::write(folder.at("www/big"), vec![7; 20_000_000]).unwrap();
        std::fs::write(folder.at("www/small"), b"small").unwrap();
    })
}

/// Resident memory of a process, in KiB.
fn memory_kib(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn head_that_does_not_end_is_reset() {
    let rig = crate::requests::serve_with("timeouts = { head = \"1s\" }", YES, |_| {});
    let mut client = connect(&rig);
    assert_eq!(client.ask("GET", "/", &[A], b"").status, 200);
    let id = client.quic.streams().open(quinn_proto::Dir::Bi).unwrap();
    // HEADERS of 100 bytes, of which one has arrived.
    client.quic.send_stream(id).write(&[1, 0x40, 100, 0]).unwrap();
    let mut reset = None;
    client.drive("the reset", |client| {
        if let Ok(mut chunks) = client.quic.recv_stream(id).read(true)
            && let Err(quinn_proto::ReadError::Reset(code)) = chunks.next(1)
        {
            reset = Some(code.into_inner());
        }
        reset.is_some()
    });
    assert_eq!(reset, Some(0x10c));
    assert_eq!(client.ask("GET", "/", &[A], b"").status, 200);
}
