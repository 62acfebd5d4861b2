//! A client that reads slowly but steadily, so that no timeout may disconnect it.
#![allow(clippy::unwrap_used, unreachable_pub)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::net::sockopt;
use rustix::net::{AddressFamily, SocketType};
use times::Millis;

/// Far less than a third of the send buffer, which must be free before the kernel reports room.
const READ_BYTES: usize = 1_000;
const PAUSE: Duration = Duration::from_millis(100);

/// Connects with a small receive buffer.
pub fn connect(address: SocketAddr) -> TcpStream {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    sockopt::set_socket_recv_buffer_size(&socket, 4_096).unwrap();
    rustix::net::connect(&socket, &address).unwrap();
    let client = TcpStream::from(socket);
    client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    client
}

/// Calls `read` once for each [`PAUSE`] of twice `timeout`, by the clock: a reader that the machine held up
/// reads what it has missed.
pub fn steadily(timeout: Millis, mut read: impl FnMut()) {
    let began = Instant::now();
    let pause = PAUSE.as_millis();
    let mut reads = 0;
    while reads < (timeout * 2).duration().as_millis() / pause {
        std::thread::sleep(PAUSE);
        while reads < began.elapsed().as_millis() / pause {
            read();
            reads += 1;
        }
    }
}

/// Requests `path`, reads slowly for twice `timeout`, then reads the rest at once; returns the length of
/// the body.
pub fn read_slowly_then_all(address: SocketAddr, path: &str, timeout: Millis) -> usize {
    let mut client = connect(address);
    write!(client, "GET {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n").unwrap();
    let mut bytes = Vec::new();
    let mut piece = [0; READ_BYTES];
    steadily(timeout, || {
        let len = client.read(&mut piece).unwrap();
        assert!(len > 0, "cut off after {} bytes", bytes.len());
        bytes.extend_from_slice(&piece[..len]);
    });
    client.read_to_end(&mut bytes).unwrap();
    let head = bytes.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    bytes.len() - head
}
