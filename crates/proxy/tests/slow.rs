//! Clients that read slowly, but read: no timeout cuts them off.
#![allow(clippy::unwrap_used)]

mod rig;

use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use net::{Exchange, Fault, RequestRecord};
use proxy::{GroupShared, Proxy};
use rig::{Origin, Rig};
use rustix::net::sockopt;
use rustix::net::{AddressFamily, SocketType};

/// More than sockets take.
const BODY_BYTES: usize = 20 << 20;
/// Far less than the kernel wants to be read before it reports room again, a third of the send buffer.
const READ_BYTES: usize = 1_000;
const PAUSE: Duration = Duration::from_millis(100);
const TIMEOUT_MS: u64 = 3_000;
/// Reads before the rest is read at once: twice the timeout.
const READS: u64 = 2 * TIMEOUT_MS / 100;

/// A proxy whose clients have little time.
struct Hurried(Proxy);

impl net::Service for Hurried {
    async fn serve(&self, exchange: &mut Exchange<'_>) -> Result<(), Fault> {
        exchange.set_timeouts(60_000, TIMEOUT_MS);
        self.0.serve(exchange).await
    }

    fn log(&self, _: &RequestRecord<'_>) {}
}

/// A client whose socket takes little.
fn connect(address: SocketAddr) -> TcpStream {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    sockopt::set_socket_recv_buffer_size(&socket, 4_096).unwrap();
    rustix::net::connect(&socket, &address).unwrap();
    let client = TcpStream::from(socket);
    client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    client
}

#[test]
fn a_client_that_reads_little_but_steadily_gets_a_whole_response() {
    let origin = Origin::start(|mut caller, _| {
        while caller.request().is_some() {
            caller.send(&format!("HTTP/1.1 200 OK\r\nContent-Length: {BODY_BYTES}\r\n\r\n"));
            caller.send_bytes(&vec![b'x'; BODY_BYTES]);
        }
    });
    let shared = GroupShared::new(proxy::GroupOptions::to(vec![origin.server()])).unwrap();
    let route = Arc::new(proxy::RouteOptions::default());
    let hurried = move |core: &net::Core, shared: &Arc<GroupShared>| {
        Hurried(proxy::Group::new(core, shared).proxy(&route, None))
    };
    let rig = Rig::serving(1, shared, hurried);
    let mut client = connect(rig.address);
    std::io::Write::write_all(&mut client, b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        .unwrap();
    let (mut bytes, mut piece) = (Vec::new(), [0; READ_BYTES]);
    for _ in 0..READS {
        let len = client.read(&mut piece).unwrap();
        assert!(len > 0, "cut off after {} bytes", bytes.len());
        bytes.extend_from_slice(&piece[..len]);
        std::thread::sleep(PAUSE);
    }
    client.read_to_end(&mut bytes).unwrap();
    let head = bytes.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    assert_eq!(bytes.len() - head, BODY_BYTES);
}
