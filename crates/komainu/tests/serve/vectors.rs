//! The vectors of the HTTP/1 machine (`crates/http/vectors`), sent to the real binary without TLS and with
//! it: both give the same responses.

use std::io::Write;
use std::net::{Shutdown, SocketAddr};
use std::path::Path;

use crate::rig;
use crate::rig::{Folder, Rig, as_we_are, connect, komainu, text};
use crate::support::case;
use crate::support::drive::Role;

/// Returns the response to these bytes, without lines that change from second to second.
fn answers(address: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = connect(address);
    // A server that refuses a request may have closed.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    let received = rig::read_to_close(&mut stream);
    text(&received).lines().filter(|line| !line.starts_with("Date: ")).collect::<Vec<_>>().join("\n")
}

/// Starts a server that responds with the parsed path, query and host.
fn server(listen: &str) -> Rig {
    let folder = Folder::new();
    folder.certify();
    let route = r#"
        [[route]]
        respond = "fine"
        response_headers.set = { X-Saw = "$uri|$args|$http_host" }
    "#;
    folder.write("komainu.toml", format!("{listen}threads = 1\n{}{route}", as_we_are()));
    let mut command = komainu();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
    Rig::start(command, folder)
}

#[test]
fn every_vector_has_the_same_answers_through_tls() {
    let plain = server("listen = \"127.0.0.1:0\"\n");
    let tls = server(
        // Only responses over TLS name HTTP/3.
        "listen = { address = \"127.0.0.1:0\", tls = true, http3 = false }\n\
         tls.default = { certificate = \"cert.pem\", key = \"key.pem\" }\n",
    );
    let through_tls = tls.through_tls();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../http/vectors");
    let mut differ = Vec::new();
    let mut answered = 0;
    let mut refused = 0;
    for case in case::load(&folder) {
        // A flood is read in chunks, whose boundaries may differ.
        if case.setup.role != Role::Request || case.bytes.len() > 4096 {
            continue;
        }
        let clear = answers(plain.address, &case.bytes);
        let secure = answers(through_tls, &case.bytes);
        answered += usize::from(clear.contains(" 200 OK"));
        refused += usize::from(clear.contains(" 400 Bad Request"));
        if clear != secure {
            differ.push(format!("{}\n--- in the clear:\n{clear}\n--- through TLS:\n{secure}\n", case.name));
        }
    }
    assert!(differ.is_empty(), "{} cases differ\n\n{}", differ.len(), differ.join("\n"));
    assert!(answered > 50 && refused > 100, "{answered} answered, {refused} refused");
}
