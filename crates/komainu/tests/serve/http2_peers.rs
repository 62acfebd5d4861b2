//! HTTP/2 with nghttp2 (in Node.js) as client and as upstream server: WebSockets over streams, tunnels to
//! upstream servers, interim responses and trailers, many concurrent requests, and servers that disconnect or
//! refuse.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::rig;
use crate::rig::{Folder, Rig, as_we_are, environment, installed, text};

/// A WebSocket server over HTTP/1.
const WEBSOCKETS: &str = r#"
import asyncio, websockets

async def serve(ws):
    async for message in ws:
        if message == "bye":
            await ws.close(4321, "as you wish")
        else:
            await ws.send(message)

async def main():
    options = {"max_size": None, "subprotocols": ["echo"], "compression": None}
    async with websockets.serve(serve, "127.0.0.1", 0, **options) as server:
        print(server.sockets[0].getsockname()[1], flush=True)
        await asyncio.Future()

asyncio.run(main())
"#;

/// A process that is killed on drop, and the first line of its output.
struct Server(Child, String);

impl Server {
    fn start(command: &mut Command) -> Server {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Server(child, line.trim().to_owned())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn script() -> &'static str {
    concat!(env!("CARGO_MANIFEST_DIR"), "/tests/node/http2.mjs")
}

fn python_with_websockets() -> Option<PathBuf> {
    let python = environment().join("bin/python");
    let found = Command::new(&python).args(["-c", "import websockets"]).output();
    if found.is_ok_and(|output| output.status.success()) {
        return Some(python);
    }
    eprintln!("SKIPPED: the websockets of PyPI is not there; scripts/setup test brings it");
    None
}

#[test]
fn nghttp2_client_and_server_interoperate() {
    let (Some(node), Some(python)) = (installed("node"), python_with_websockets()) else { return };
    let folder = Folder::new();
    folder.certify().write("www/a", "0123456789");
    let mut command = Command::new(&node);
    let origin =
        Server::start(command.args([script(), "serve"]).arg(folder.at("key.pem")).arg(folder.at("cert.pem")));
    let websockets = Server::start(Command::new(python).args(["-c", WEBSOCKETS]));
    let (clear, secure) = origin.1.split_once(' ').unwrap();
    let ca = folder.at("cert.pem");
    let routes = format!(
        r#"
        [[site]]

        [[site.route]]
        path = "/h1/*"
        proxy = "http://127.0.0.1:{}"

        [[site.route]]
        path = "/clear/*"
        proxy = "h2c://127.0.0.1:{clear}"

        [[site.route]]
        path = "/secure/*"
        proxy = {{ to = "https://localhost:{secure}", http = "2", tls = {{ ca = "{}" }} }}

        [[site.route]]
        files = "www"
        "#,
        websockets.1,
        ca.display()
    );
    let listen = r#"
        threads = 1
        listen = { address = "127.0.0.1:0", h2c = true }
        [limits]
        body = "20MiB"
    "#;
    folder.write("komainu.toml", format!("{}{listen}{routes}", as_we_are()));
    let mut command = rig::komainu();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
    let rig = Rig::start(command, folder);
    let asked = Command::new(&node).args([script(), "ask", &rig.url("")]).output().unwrap();
    assert!(asked.status.success(), "{}{}{}", text(&asked.stdout), text(&asked.stderr), rig.reported());
    assert_eq!(text(&asked.stdout), "all is as it should be\n");
    // The server allows a hundred concurrent streams on a connection.
    for path in ["/clear/slow", "/secure/slow", "/a"] {
        let many = Command::new(&node).args([script(), "many", &rig.url(""), path, "1000"]).output().unwrap();
        assert_eq!(text(&many.stdout), "1000 of 1000\n", "{path} {}", text(&many.stderr));
    }
}
