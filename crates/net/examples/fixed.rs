//! Baseline throughput of the engine: a server that answers every request with the same bytes.
//!
//! `cargo run --release -p komainu-net --example fixed [BYTES] [THREADS]`
#![allow(clippy::print_stdout)]

use http::{Fields, Name, Status};
use net::{BindAddress, Exchange, Fault, Limits, Options, RequestRecord, Server, Service};

struct Fixed {
    fields: Fields,
    body: Vec<u8>,
}

impl Service for Fixed {
    async fn serve(&self, exchange: &mut Exchange<'_>) -> Result<(), Fault> {
        exchange.reply(Status::OK, &self.fields, &self.body).await
    }

    fn log(&self, _: &RequestRecord<'_>) {}
}

fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse().expect("a number"));
    let bytes = arguments.next().unwrap_or(1024);
    let limits = Limits { connections_max: 40_000, ..Limits::default() };
    let options = Options { threads: arguments.next().unwrap_or(2), limits, ..Options::default() };
    let bind = BindAddress::Tcp("127.0.0.1:0".parse().expect("an address"));
    let server = Server::start(&options, &[bind], move |_| {
        let mut fields = Fields::new();
        fields.push(Name::ContentType, b"text/plain");
        Ok(Fixed { fields, body: vec![b'x'; bytes] })
    })?;
    println!("{}", server.addresses()[0]);
    server.join().map(|_| ())
}
