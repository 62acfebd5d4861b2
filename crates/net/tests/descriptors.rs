//! A process without free descriptors continues to serve. A separate binary: the limit is the process's.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use http::{Fields, Status};
use net::{BindAddress, Exchange, Fault, Options, RequestRecord, Server, Service};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use times::Millis;

const DESCRIPTORS_MAX: u64 = 48;
const CLIENTS: usize = 200;
const CHILD: &str = "KOMAINU_NET_TEST_CHILD";

struct Hello;

impl Service for Hello {
    async fn serve(&self, exchange: &mut Exchange<'_>) -> Result<(), Fault> {
        if exchange.request().path() == b"/slow" {
            exchange.core().sleep(Millis(100)).await;
        }
        exchange.reply(Status::OK, &Fields::new(), b"hello").await
    }

    fn log(&self, _: &RequestRecord<'_>) {}
}

/// The server, which runs in a child process. Does nothing as a test of the parent process.
#[test]
#[allow(clippy::print_stdout)]
fn child() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let hard = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(DESCRIPTORS_MAX), maximum: hard }).unwrap();
    let bind = BindAddress::Tcp("127.0.0.1:0".parse().unwrap());
    let server =
        Server::start(&Options { threads: 2, ..Options::default() }, &[bind], |_| Ok(Hello)).unwrap();
    let BindAddress::Tcp(address) = &server.addresses()[0] else { panic!("an address") };
    println!("\nport {}", address.port());
    let stop = server.stop_handle();
    // Blocks until the parent closes the pipe.
    let _ = std::io::stdin().read(&mut [0]);
    stop.drain();
    let panics: u64 = server.counters().iter().map(|core| core.panics.value()).sum();
    assert!(server.join().unwrap());
    assert_eq!(panics, 0);
}

fn ask(port: u16, path: &str) -> std::io::Result<(TcpStream, String)> {
    let mut socket = TcpStream::connect(("127.0.0.1", port))?;
    socket.set_read_timeout(Some(Duration::from_secs(60)))?;
    write!(socket, "GET {path} HTTP/1.1\r\nHost: here\r\n\r\n")?;
    let mut answer = [0; 1024];
    let len = socket.read(&mut answer)?;
    Ok((socket, String::from_utf8_lossy(&answer[..len]).into_owned()))
}

#[test]
fn new_connections_wait_when_descriptors_run_out() {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .env(CHILD, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let port =
        lines.find_map(|line| line.unwrap().strip_prefix("port ").map(|port| port.parse::<u16>().unwrap()));
    let port = port.expect("the child prints its port");
    // More idle connections than there are descriptors: each new one replaces another.
    let mut kept = Vec::new();
    for _ in 0..CLIENTS {
        let (socket, answer) = ask(port, "/").unwrap();
        assert!(answer.ends_with("hello"), "{answer}");
        kept.push(socket);
    }
    drop(kept);
    // Busy connections: further clients wait for a free descriptor.
    let asking: Vec<_> =
        (0..CLIENTS).map(|_| std::thread::spawn(move || ask(port, "/slow").unwrap().1)).collect();
    for client in asking {
        assert!(client.join().unwrap().ends_with("hello"));
    }
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}
