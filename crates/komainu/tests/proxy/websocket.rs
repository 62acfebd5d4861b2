//! WebSockets through the proxy, between real clients and servers: compression, fragments, pings and closing
//! handshakes pass unchanged.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::rig::{Folder, Rig, environment, text};

const SERVER: &str = r#"
import asyncio, websockets

async def serve(ws):
    async for message in ws:
        if message == "bye":
            await ws.close(4321, "as you wish")
        else:
            await ws.send(message)

async def main():
    async with websockets.serve(serve, "127.0.0.1", 0, max_size=None, subprotocols=["echo"]) as server:
        print(server.sockets[0].getsockname()[1], flush=True)
        await asyncio.Future()

asyncio.run(main())
"#;

const CLIENT: &str = r#"
import asyncio, os, sys, websockets

async def main():
    async with websockets.connect(sys.argv[1], max_size=None, subprotocols=["echo"]) as ws:
        assert ws.subprotocol == "echo", ws.subprotocol
        print("extensions:", "permessage-deflate" in str(ws.response.headers.get("Sec-WebSocket-Extensions")))
        for size in (0, 1, 125, 126, 65535, 65536, 3_000_000):
            sent = os.urandom(size)
            await ws.send(sent)
            assert await ws.recv() == sent, size
        await ws.send(["in ", "several ", "pieces"])
        assert await ws.recv() == "in several pieces"
        await (await ws.ping())
        await ws.send("bye")
        try:
            await ws.recv()
        except websockets.ConnectionClosed as closed:
            print("closed:", closed.rcvd.code, closed.rcvd.reason)
    async with websockets.connect(sys.argv[1], subprotocols=["echo"]) as ws:
        await ws.close(1001, "leaving")

asyncio.run(main())
"#;

/// The interpreter of the virtual environment created by scripts/setup.
fn python() -> PathBuf {
    environment().join("bin/python")
}

/// A process that is killed on drop.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn websocket_messages_and_close_pass_the_proxy() {
    let has = Command::new(python()).args(["-c", "import websockets"]).output();
    if !has.is_ok_and(|output| output.status.success()) {
        eprintln!("SKIPPED: the websockets of PyPI is not there; scripts/setup test brings it");
        return;
    }
    let spawned = Command::new(python()).args(["-c", SERVER]).stdout(Stdio::piped()).spawn().unwrap();
    let mut server = Server(spawned);
    let mut port = String::new();
    BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut port).unwrap();
    let rig = Rig::config(
        Folder::new(),
        &format!(
            r#"
            threads = 1
            [[route]]
            proxy = "http://127.0.0.1:{}"
            "#,
            port.trim()
        ),
    );
    let url = format!("ws://{}/chat", rig.address);
    let client = Command::new(python()).args(["-c", CLIENT, &url]).output().unwrap();
    assert!(client.status.success(), "{}", text(&client.stderr));
    assert_eq!(text(&client.stdout), "extensions: True\nclosed: 4321 as you wish\n");
}
