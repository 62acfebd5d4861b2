//! Conditions of routes mean the same in every protocol.

use crate::rig::h3_client::H3Client;
use crate::rig::{Folder, Rig};
use crate::slow::{CARRIERS, Client, each, servers};

/// A condition, and whether it is true for an ordinary GET and for a WebSocket request: over HTTP/1.1 a GET
/// with `Upgrade`, over HTTP/2 (RFC 8441) and HTTP/3 (RFC 9220) an extended CONNECT.
const TABLE: &[(&str, bool, bool)] = &[
    ("header = { Upgrade = \"websocket\" }", false, true),
    ("header = { Upgrade = \"~* ^websocket$\" }", false, true),
    ("header = { Upgrade = \"h2c\" }", false, false),
    ("header = { Upgrade = \"*\" }", false, true),
    ("header = { Connection = \"~* upgrade\" }", false, true),
    ("not = { header = { Upgrade = \"websocket\" } }", true, false),
    ("header = { \"Sec-WebSocket-Version\" = \"13\" }", false, true),
    ("method = \"GET\"", true, true),
    ("method = \"CONNECT\"", false, false),
    ("not = { method = \"GET\" }", false, false),
    ("host = \"localhost\"", true, true),
    ("client = \"127.0.0.0/8\"", true, true),
    ("query = { a = \"1\" }", true, true),
];

#[test]
fn route_conditions_match_alike_in_every_protocol() {
    let routes: Vec<String> = TABLE
        .iter()
        .enumerate()
        .map(|(at, (condition, ..))| {
            format!(
                r#"
                [[route]]
                path = "/{at}"
                {condition}
                respond = 403
                "#
            )
        })
        .collect();
    let servers = servers(&format!(
        r"
        {}
        [[route]]
        respond = 410
        ",
        routes.concat()
    ));
    let status = |holds: &bool| if *holds { 403 } else { 410 };
    each(&servers, &CARRIERS, |rig, carrier| {
        for (at, (condition, for_get, for_websocket)) in TABLE.iter().enumerate() {
            let path = format!("/{at}?a=1");
            assert_eq!(
                Client::get(rig, carrier, &path).status(),
                status(for_get),
                "{condition}: GET over {carrier:?}"
            );
            let asked = Client::ask_to_upgrade(rig, carrier, &path).status();
            assert_eq!(asked, status(for_websocket), "{condition}: WebSocket over {carrier:?}");
        }
    });
    let mut client = H3Client::connect(servers[1].listens, "localhost");
    let websocket = [(":protocol", "websocket"), ("sec-websocket-version", "13")];
    for (at, (condition, for_get, for_websocket)) in TABLE.iter().enumerate() {
        let path = format!("/{at}?a=1");
        assert_eq!(client.get(&path).status, status(for_get), "{condition}: GET over HTTP/3");
        let asked = client.ask("CONNECT", &path, &websocket, b"").status;
        assert_eq!(asked, status(for_websocket), "{condition}: WebSocket over HTTP/3");
    }
}

#[test]
fn cookies_in_several_fields_are_one_text() {
    let config = r#"
        [[route]]
        header = { Cookie = "*a=1; b=2*" }
        respond = 403
        [[route]]
        respond = 410
    "#;
    let rig = Rig::config(Folder::new(), config);
    for (cookies, status) in [
        ("Cookie: a=1\r\nCookie: b=2\r\n", 403),
        ("Cookie: a=1; b=2\r\n", 403),
        ("Cookie: b=2\r\nCookie: a=1\r\n", 410),
        ("", 410),
    ] {
        let request = format!("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{cookies}\r\n");
        assert_eq!(rig.send(&request).status(), status, "{cookies}");
    }
}
