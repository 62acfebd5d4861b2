//! Guards of sites and routes over HTTP/3: certificates of clients, limits, addresses.

use std::io::Read;
use std::net::UdpSocket;
use std::time::Instant;

use quinn_proto::{ClientConfig, ConnectionError, TransportConfig};

use crate::certified::{LISTEN, STAFF, folder, openssl, site, start};
use crate::h3_client::{H3Client, RequestHead, Response, client_config, client_config_as};
use crate::requests::{A, connect, serve, serve_with};
use crate::rig::{Rig, curl, eventually, text};

/// The TLS alert certificate_required as an error of QUIC (RFC 9001 section 4.8).
const CERTIFICATE_REQUIRED: u64 = 0x100 + 116;
/// H3_EXCESSIVE_LOAD (RFC 9114 section 8.1).
const EXCESSIVE_LOAD: u64 = 0x107;

/// Sends a request on a new connection for this site, unless the server ends it before.
fn ask_on(rig: &Rig, name: &str, config: ClientConfig) -> (H3Client, Response) {
    let mut client = H3Client::begin(rig.address, name, config);
    let head = RequestHead {
        method: b"GET",
        authority: Some(name.as_bytes()),
        path: b"/",
        protocol: None,
        fields: &[],
    };
    let mut opened = None;
    client.drive("a stream", |client| {
        // The server refuses a certificate after the client's end of the handshake.
        opened = if client.is_connected && client.lost.is_none() { client.try_open(&head) } else { None };
        opened.is_some() || client.lost.is_some()
    });
    let Some(id) = opened else { return (client, Response::default()) };
    client.push(id, b"", true);
    let response = client.finish(id);
    (client, response)
}

#[test]
fn client_certificates_are_required_per_site() {
    let folder = folder(&[("a.test", "ec"), ("b.test", "ec"), ("c.test", "ec")]);
    openssl(&folder, STAFF);
    let verified = "response_headers.set = { X-Client = \"$tls_client_verify $tls_client_subject\" }\n";
    let tls = |name: &str, client: &str| {
        format!("tls = {{ certificate = \"{name}.pem\", key = \"{name}.key\"{client} }}\n{verified}")
    };
    let required = tls("a.test", ", client = { ca = \"staff.pem\", crl = \"staff.crl\" }");
    let optional = tls("b.test", ", client = { ca = \"staff.pem\", required = false }");
    let sites =
        [site("a.test", &required), site("b.test", &optional), site("c.test", &tls("c.test", ""))].concat();
    let rig = start(folder, &format!("{LISTEN}{sites}"));
    let config = |who: Option<&str>| {
        let files = who.map(|who| ["pem", "key"].map(|kind| rig.folder.at(&format!("{who}.{kind}"))));
        let files = files.as_ref().map(|files| [files[0].as_path(), files[1].as_path()]);
        client_config_as(files, &[b"h3"], TransportConfig::default())
    };
    let (mut alice, response) = ask_on(&rig, "a.test", config(Some("alice")));
    assert_eq!((response.status, response.text().as_str()), (200, "this is a.test"));
    assert_eq!(response.field("x-client"), Some("SUCCESS CN=alice,O=Staff"));
    for (who, reason) in [
        (None, "the client shows no certificate"),
        (Some("mallory"), "the client's certificate is revoked"),
        (Some("nobody"), "the issuer of the client's certificate is not trusted"),
    ] {
        let (client, response) = ask_on(&rig, "a.test", config(who));
        assert_eq!((response.status, response.text().as_str()), (0, ""), "{who:?}");
        let Some(ConnectionError::ConnectionClosed(close)) = &client.lost else {
            panic!("{who:?}: {:?}", client.lost)
        };
        let code = u64::from(close.error_code);
        assert!((0x100..0x200).contains(&code), "{who:?}: {code:x}");
        assert!(who.is_some() || code == CERTIFICATE_REQUIRED, "{code:x}");
        rig.expect_report(reason);
    }
    let (mut nobody, response) = ask_on(&rig, "b.test", config(None));
    assert_eq!((response.status, response.field("x-client")), (200, Some("NONE")));
    let (mut stranger, _) = ask_on(&rig, "c.test", config(None));
    // A connection made for one site is refused for another with other requirements, whoever the client is.
    for client in [&mut nobody, &mut stranger] {
        for method in ["GET", "POST"] {
            let response = client.ask(method, "/", &[A], b"");
            assert_eq!(response.status, 421, "{}", response.text());
            assert!(!response.text().contains("this is a.test"));
        }
        let websocket = [A, (":protocol", "websocket"), ("sec-websocket-version", "13")];
        assert_eq!(client.ask("CONNECT", "/", &websocket, b"").status, 421);
    }
    assert_eq!(alice.ask("GET", "/", &[(":authority", "b.test")], b"").status, 421);
    assert_eq!(alice.ask("GET", "/", &[A], b"").status, 200, "the connection goes on");
}

/// Begins a connection and asks; returns the client if it is served.
fn served(rig: &Rig, config: &ClientConfig) -> Result<H3Client, Option<ConnectionError>> {
    let (client, response) = ask_on(rig, "a.test", config.clone());
    if response.status == 200 { Ok(client) } else { Err(client.lost) }
}

fn close(mut client: H3Client) {
    client.quic.close(Instant::now(), 0x100u32.into(), bytes::Bytes::new());
    client.turn();
}

#[test]
fn connections_of_a_client_are_limited() {
    let control = "limits.connections_per_client = 3\n[control]\nlisten = \"unix:control.sock\"";
    let rig = serve_with(control, "[[site.route]]\nrespond = \"yes\"", |_| {});
    let new = || client_config(&[b"h3"], TransportConfig::default());
    let mut open: Vec<H3Client> = (0..3).map(|_| served(&rig, &new()).unwrap()).collect();
    let refused = served(&rig, &new()).err().flatten();
    let Some(ConnectionError::ApplicationClosed(reason)) = refused else { panic!("{refused:?}") };
    assert_eq!(reason.error_code.into_inner(), EXCESSIVE_LOAD);
    // Connections over TCP count with them.
    let mut stream = crate::rig::connect(rig.address);
    assert!(!matches!(stream.read(&mut [0]), Ok(1..)));
    assert!(rig.metrics().contains("limit=\"connections_per_client\""), "{}", rig.metrics());
    // A client that has proven its address by a token of an earlier connection is counted too.
    let known = new();
    close(open.pop().unwrap());
    eventually("its place is free", || {
        open.extend(served(&rig, &known).ok());
        open.len() == 3
    });
    assert!(served(&rig, &known).is_err());
    for mut client in open {
        assert_eq!(client.ask("GET", "/", &[A], b"").status, 200);
    }
}

/// Requests count for their client, whatever connection and protocol they come by.
#[test]
fn a_limit_counts_a_client_over_all_protocols() {
    let route = "[[site.route]]\nlimit = \"4/h\"\nrespond = \"yes\"";
    let rig = serve(route);
    let mut client = connect(&rig);
    assert_eq!(client.ask("GET", "/", &[A], b"").status, 200);
    assert_eq!(connect(&rig).ask("GET", "/", &[A], b"").status, 200);
    let url = format!("https://a.test:{}/", rig.address.port());
    let resolve = format!("a.test:{}:127.0.0.1", rig.address.port());
    let over_tcp = |version: &str| {
        let output =
            curl(&[version, "-k", "-o", "/dev/null", "-w", "%{http_code}", "--resolve", &resolve, &url]);
        text(&output.stdout)
    };
    assert_eq!([over_tcp("--http1.1"), over_tcp("--http2")], ["200", "200"]);
    // The client says that it is somebody else, makes up ports and addresses, and uses many streams.
    for claim in ["x-forwarded-for", "forwarded", "x-real-ip"] {
        let value = if claim == "forwarded" { "for=192.0.2.1" } else { "192.0.2.1" };
        assert_eq!(client.ask("GET", "/", &[A, (claim, value)], b"").status, 429, "{claim}");
    }
    let ids: Vec<_> = (0..50).map(|_| client.send("GET", "/", &[A], b"")).collect();
    for id in ids {
        assert_eq!(client.finish(id).status, 429);
    }
    client.rebind();
    assert_eq!(client.ask("GET", "/", &[A], b"").status, 429, "another port");
    // Another address of the same machine, to which the connection moves.
    client.socket = UdpSocket::bind("127.0.0.2:0").unwrap();
    assert_eq!(client.ask("GET", "/", &[A], b"").status, 429, "another address");
    assert_eq!(client.lost, None);
    assert_eq!([over_tcp("--http1.1"), over_tcp("--http2")], ["429", "429"]);
}

/// A connection that moves to another address keeps the rights of the address that it began with, which it
/// has proven.
#[test]
fn allowed_addresses_are_those_of_the_connection() {
    let routes = r#"
        [[site.route]]
        path = "/in"
        allow = "127.0.0.1"
        respond = "in"

        [[site.route]]
        path = "/out"
        deny = "127.0.0.1"
        respond = "out"
    "#;
    let rig = serve(routes);
    let mut client = connect(&rig);
    let look = |client: &mut H3Client| {
        ["/in", "/out"]
            .map(|path| client.ask("GET", path, &[A, ("x-forwarded-for", "127.0.0.2")], b"").status)
    };
    assert_eq!(look(&mut client), [200, 403]);
    client.socket = UdpSocket::bind("127.0.0.2:0").unwrap();
    assert_eq!(look(&mut client)[1], 403, "the denied address does not get rid of its rule");
}
