//! The end of an HTTP/2 connection to an upstream server: bytes that the server has not read are not lost,
//! whatever it still sends.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use http::{Fields, Status};
use http2::Options as H2;
use rustix::net::sockopt;

use crate::h2rig::{Came, H2Origin, Peer};
use crate::rig::{Options, Rig};

const PING: &[u8] = b"\x00\x00\x08\x06\x00\x00\x00\x00\x00whatever";
/// Long enough for a proxy that does not wait for the server to close its connection.
const PAUSE: Duration = Duration::from_millis(300);

fn one_request_each(origin: &H2Origin) -> Options {
    let mut options = Options::to(vec![origin.server()]);
    options.group.keep_alive.requests_max = Some(1);
    options
}

/// Reads slowly until the end, and sends a ping before each read: the proxy may have closed only its sending
/// side.
fn read_slowly(peer: &mut Peer) -> Result<Vec<u8>, std::io::Error> {
    let mut bytes = Vec::new();
    let mut piece = [0; 2_000];
    loop {
        peer.stream.write_all(PING)?;
        thread::sleep(Duration::from_millis(10));
        match peer.stream.read(&mut piece)? {
            0 => return Ok(bytes),
            len => bytes.extend_from_slice(&piece[..len]),
        }
    }
}

/// Returns the types of the frames, and the number of bytes in DATA frames.
fn frames(mut bytes: &[u8]) -> (Vec<u8>, usize) {
    let mut kinds = Vec::new();
    let mut content_bytes = 0;
    while bytes.len() >= 9 {
        let len = u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]) as usize;
        kinds.push(bytes[3]);
        content_bytes += if bytes[3] == 0 { len } else { 0 };
        bytes = &bytes[9 + len..];
    }
    (kinds, content_bytes)
}

#[test]
fn slowly_read_upload_survives_the_end_of_the_connection() {
    const CONTENT_BYTES: usize = 60_000;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // Much smaller than the content, so that the rest stays in the kernel on the proxy's side.
    sockopt::set_socket_recv_buffer_size(&listener, 4_096).unwrap();
    let origin = H2Origin::on(listener, H2::default(), |peer, _| {
        let Came::Head(asked) = peer.next_head() else { panic!("a head") };
        // By then the proxy has passed everything to the kernel.
        thread::sleep(PAUSE);
        peer.answer(asked.stream, Status::OK, b"", b"early", &Fields::new());
        thread::sleep(PAUSE);
        let unparsed = peer.unparsed();
        let read = read_slowly(peer).map(|rest| frames(&[unparsed, rest].concat()));
        peer.note(format!("{read:?}"));
    });
    let rig = Rig::with(one_request_each(&origin));
    let content = "x".repeat(CONTENT_BYTES);
    let post = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {CONTENT_BYTES}\r\n\r\n{content}");
    assert_eq!(rig.ask(&post).text(), "early");
    let noted = origin.wait_noted("");
    assert!(noted.starts_with("Ok(") && noted.ends_with(&format!("7], {CONTENT_BYTES}))")), "{noted}");
}

/// Returns the number of connections to `port` whose sending side the proxy has closed and of which it still
/// has the descriptor.
fn half_closed(port: u16) -> usize {
    let port = format!(":{port:04X}");
    let files = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let own: HashSet<_> = files.filter_map(|file| std::fs::read_link(file.path()).ok()).collect();
    let text = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let half_closed = text.lines().skip(1).filter_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        // FIN_WAIT_1 and FIN_WAIT_2.
        let is_half_closed = fields[2].ends_with(&port) && ["04", "05"].contains(&fields[3]);
        is_half_closed.then(|| PathBuf::from(format!("socket:[{}]", fields[9])))
    });
    // A table that changes while it is read repeats lines, so distinct sockets are counted.
    half_closed.filter(|socket| own.contains(socket)).collect::<HashSet<_>>().len()
}

#[test]
fn half_closed_connections_are_limited_in_number_and_time() {
    const REQUESTS: usize = 320;
    /// On each core; the proxy has one here.
    const SHUTDOWNS_MAX: usize = 256;
    const PATIENCE: Duration = Duration::from_secs(60);
    let open: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
    let keep = open.clone();
    let origin = H2Origin::start(H2::default(), move |peer, _| {
        let asked = peer.request().unwrap();
        peer.answer(asked.stream, Status::OK, b"", b"ok", &Fields::new());
        peer.drain();
        keep.lock().unwrap().push(peer.stream.try_clone().unwrap());
    });
    let rig = Rig::with(one_request_each(&origin));
    let mut client = rig.client();
    let mut most = 0;
    for number in 1..=REQUESTS {
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.response(http::Method::Get).unwrap().text(), "ok");
        // A slow machine closes the first ones while it answers the last requests.
        if number % 16 == 0 {
            most = most.max(half_closed(origin.address.port()));
        }
    }
    assert!((1..=SHUTDOWNS_MAX).contains(&most), "{most} at a time");
    let began = Instant::now();
    while half_closed(origin.address.port()) > 0 || open.lock().unwrap().len() < REQUESTS {
        assert!(began.elapsed() < PATIENCE, "{} are still open", half_closed(origin.address.port()));
        thread::sleep(Duration::from_millis(20));
    }
}
