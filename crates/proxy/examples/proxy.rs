//! A minimal proxy for measuring the cost of a hop.
//!
//! `cargo run --release -p komainu-proxy --example proxy LISTEN UPSTREAM…`, where LISTEN is an address with a
//! port, and an UPSTREAM is `http://HOST:PORT`, `https://HOST:PORT` (any certificate) or `unix:PATH`.
#![allow(clippy::print_stdout)]

use net::{BindAddress, Exchange, Fault, RequestRecord, Server, Service};
use proxy::options::{self, UpstreamAddress};
use proxy::{Group, GroupOptions, GroupShared, Proxy, RouteOptions};
use std::sync::Arc;

struct Hop(Proxy);

impl Service for Hop {
    async fn serve(&self, exchange: &mut Exchange<'_>) -> Result<(), Fault> {
        self.0.serve(exchange).await
    }

    fn log(&self, _: &RequestRecord<'_>) {}
}

fn upstream(text: &str) -> options::UpstreamServer {
    let tcp = |authority: &str| {
        let (host, port) = authority.rsplit_once(':').expect("HOST:PORT");
        UpstreamAddress::Tcp { host: host.into(), port: port.parse().expect("a port") }
    };
    match text.split_once(':') {
        Some(("unix", path)) => options::UpstreamServer::new(UpstreamAddress::Unix(path.into())),
        Some(("https", rest)) => options::UpstreamServer {
            tls: Some(options::Tls { insecure: true, ..options::Tls::default() }),
            ..options::UpstreamServer::new(tcp(rest.trim_start_matches('/')))
        },
        _ => options::UpstreamServer::new(tcp(text.trim_start_matches("http://"))),
    }
}

fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let listen = arguments.next().expect("LISTEN").parse().expect("an address");
    let options = GroupOptions::new(arguments.map(|text| upstream(&text)).collect());
    let shared = GroupShared::new(options).map_err(std::io::Error::other)?;
    let limits = net::Limits { body_bytes_max: u64::MAX, ..net::Limits::default() };
    let run = net::Options { threads: 1, limits, ..net::Options::default() };
    let route = Arc::new(RouteOptions::default());
    let hop = move |core: &net::Core| Ok(Hop(Group::new(core, &shared).proxy(&route, None)));
    let server = Server::start(&run, &[BindAddress::Tcp(listen)], hop)?;
    println!("{}", server.addresses()[0]);
    server.join().map(|_| ())
}
