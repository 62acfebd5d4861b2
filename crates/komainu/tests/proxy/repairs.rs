//! Upstream servers that write HTTP in unusual or wrong ways.

use std::io::{Read, Write};

use crate::origin::Origin;
use crate::rig::{Folder, Rig};

#[test]
fn white_space_behind_a_chunk_size_is_passed_over() {
    let origin = Origin::start(|ask| {
        let size = if ask.line().contains("/wrong") { "5 5" } else { "5 \t" };
        format!(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1 ;a=b\r\n!\r\n{size}\r\nhello\r\n0   \r\n\r\n"
        )
    });
    let rig = Rig::config(Folder::new(), &format!("[[route]]\nproxy = \"{}\"\n", origin.url));
    let answer = rig.get("/");
    assert!(answer.text().ends_with("\r\nhello\r\n0\r\n\r\n"), "{}", answer.text());
    // The log names the server whose response breaks off.
    let mut client = rig.connect();
    client.write_all(b"GET /wrong HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    client.read_to_end(&mut Vec::new()).unwrap();
    rig.expect_report(&format!(
        "127.0.0.1 \"/wrong\": upstream {}: invalid byte in a chunk size",
        origin.url
    ));
}
