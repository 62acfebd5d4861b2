//! Clients that read slowly, but read.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use net::{Bind, Options, Timeouts};
use rustix::net::sockopt;
use rustix::net::{AddressFamily, SocketType};

use crate::rig::{BIG_BYTES, FILE_BYTES, PATIENCE, finish, options, start, tcp};

/// Far less than the kernel wants to be read before it reports room again, a third of the send buffer.
const READ_BYTES: usize = 1_000;
const PAUSE: Duration = Duration::from_millis(100);
const WRITE_MS: u64 = 3_000;

/// A client whose socket takes little.
fn connect(address: SocketAddr) -> TcpStream {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    sockopt::set_socket_recv_buffer_size(&socket, 4_096).unwrap();
    rustix::net::connect(&socket, &address).unwrap();
    let client = TcpStream::from(socket);
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client
}

fn read_slowly_then_all(path: &str, body_bytes: usize) {
    let timeouts = Timeouts { write_ms: WRITE_MS, ..Timeouts::default() };
    let server = start(&Options { timeouts, ..options(1) }, &[tcp()]);
    let Bind::Tcp(address) = server.addresses()[0] else { panic!("a port") };
    let mut client = connect(address);
    write!(client, "GET {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n").unwrap();
    let (mut bytes, mut piece) = (Vec::new(), [0; READ_BYTES]);
    for _ in 0..2 * WRITE_MS / PAUSE.as_millis() as u64 {
        let len = client.read(&mut piece).unwrap();
        assert!(len > 0, "cut off after {} bytes", bytes.len());
        bytes.extend_from_slice(&piece[..len]);
        std::thread::sleep(PAUSE);
    }
    client.read_to_end(&mut bytes).unwrap();
    let head = bytes.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    assert_eq!(bytes.len() - head, body_bytes);
    assert!(finish(server));
}

#[test]
fn who_reads_little_but_steadily_gets_a_whole_response() {
    read_slowly_then_all("/big", BIG_BYTES);
}

#[test]
fn who_reads_little_but_steadily_gets_a_whole_file() {
    read_slowly_then_all("/file?4", 4 * FILE_BYTES);
}
