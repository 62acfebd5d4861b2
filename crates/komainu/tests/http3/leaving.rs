//! Clients of HTTP/3 that leave: their upstream requests are cancelled.

use std::time::{Duration, Instant};

use quinn_proto::{StreamId, TransportConfig, VarInt};

use crate::h3_client::{H3Client, client_config};
use crate::origin::{Origin, answer};
use crate::requests::{A, connect, serve, serve_with};
use crate::rig::{self, eventually};

const CANCELLED: VarInt = VarInt::from_u32(0x10c);

/// The ways in which a client gives up a request whose content is incomplete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    StopSending,
    ResetStream,
    Both,
    ConnectionClose,
}

const WAYS: [Way; 4] = [Way::StopSending, Way::ResetStream, Way::Both, Way::ConnectionClose];

fn leave(client: &mut H3Client, id: StreamId, way: Way) {
    if matches!(way, Way::ResetStream | Way::Both) {
        client.quic.send_stream(id).reset(CANCELLED).unwrap();
    }
    if matches!(way, Way::StopSending | Way::Both) {
        client.quic.recv_stream(id).stop(CANCELLED).unwrap();
    }
    if way == Way::ConnectionClose {
        client.quic.close(Instant::now(), VarInt::from_u32(0x100), bytes::Bytes::new());
    }
    client.turn();
}

/// Waits for a condition while the client answers the server.
fn await_with(client: &mut H3Client, what: &str, is_met: impl Fn() -> bool) {
    eventually(what, || {
        client.exchange();
        is_met()
    });
}

#[test]
fn client_that_leaves_cancels_its_upstream_request() {
    let origin = Origin::start(|ask| match ask.line() {
        line if line.contains("/silent") => "HTTP/1.1 200 OK\r\n".to_owned(),
        line if line.contains("/stream") => {
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nbegun\r\n".to_owned()
        }
        _ => answer("200 OK", "", "yes"),
    });
    let rig = serve(&format!("[[site.route]]\nproxy = \"{}\"", origin.url));
    for path in ["/silent", "/stream"] {
        for way in [Way::StopSending, Way::ConnectionClose] {
            let mut client = connect(&rig);
            let id = client.send("GET", path, &[A], b"");
            let other = client.send("GET", path, &[A], b"");
            await_with(&mut client, "both are asked for", || origin.open() == 2);
            if path == "/stream" {
                client.drive("both begin", |client| {
                    [id, other].iter().all(|id| client.response(*id).text() == "begun")
                });
            }
            leave(&mut client, id, way);
            if way == Way::StopSending {
                await_with(&mut client, "one upstream connection is closed", || origin.open() == 1);
                client.drive_for(Duration::from_millis(200));
                assert_eq!(origin.open(), 1, "{path}: the other request continues");
                leave(&mut client, other, way);
            }
            await_with(&mut client, &format!("{path} {way:?} ends all"), || origin.open() == 0);
        }
    }
    assert!(!rig.reported().contains("upstream"), "the upstream server is not to blame: {}", rig.reported());
}

/// Content that nobody reads fills the buffers of the proxy, which takes no more of the stream from QUIC then.
#[test]
fn client_that_gives_up_an_unread_upload_ends_its_request() {
    let listener = rig::listener();
    rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 4096).unwrap();
    listener.set_nonblocking(true).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let log = "log = { file = \"access.log\", access = \"combined\" }\nlimits = { body = \"1GiB\" }";
    let times = "timeouts = { write = \"10m\", body = \"10m\" }";
    let route =
        format!("[[site.route]]\nproxy = {{ to = \"{url}\", timeouts = {{ between = \"10m\" }} }}\n{times}");
    let rig = serve_with(log, &route, |_| {});
    for way in WAYS {
        let mut transport = TransportConfig::default();
        // Else the idle timeout of the connection ends the request.
        transport.keep_alive_interval(Some(Duration::from_secs(5)));
        let mut client = H3Client::begin(rig.address, "a.test", client_config(&[b"h3"], transport));
        client.drive("the handshake", |client| client.is_connected);
        let id = client.open("POST", &format!("/{way:?}"), &[A]);
        client.push(id, b"begun", false);
        let mut upstream = None;
        client.drive("the upstream connection", |_| {
            upstream = listener.accept().ok();
            upstream.is_some()
        });
        // More than all buffers on the way hold.
        client.push(id, &vec![b'x'; 16 << 20], false);
        let mut unsent = 0;
        let mut since = Instant::now();
        client.drive("full buffers", |client| {
            if std::mem::replace(&mut unsent, client.unsent_bytes(id)) != client.unsent_bytes(id) {
                since = Instant::now();
            }
            since.elapsed() > Duration::from_secs(1)
        });
        assert!(client.unsent_bytes(id) > 0, "{way:?}: all was sent");
        leave(&mut client, id, way);
        // The upstream server reads nothing, so that nothing else tells the proxy.
        await_with(&mut client, &format!("{way:?} ends the request, which is logged"), || {
            let log = std::fs::read_to_string(rig.folder.at("access.log")).unwrap_or_default();
            log.contains(&format!("POST /{way:?} "))
        });
        drop(upstream);
    }
}
