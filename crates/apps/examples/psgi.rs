//! Serves a PSGI application and nothing else, to try and measure the crate without the server around it:
//! `cargo run --release -p komainu-apps --example psgi -- PORT CORES WORKERS FOLDER-OF-worker.pl app.psgi`

#![allow(clippy::print_stderr, clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use apps::{App, Handle, Line, Mount, Options, Workers};
use net::{Bind, Exchange, Fault, Record, Service};

struct Only(Handle);

impl Service for Only {
    async fn serve(&self, x: &mut Exchange<'_>) -> Result<(), Fault> {
        let raw = x.request().path().to_vec();
        let normal = http::target::normal_path(&raw)?;
        let path = apps::path_info(b"", &raw, &normal);
        let mount = Mount { prefix: b"", path: &path, scheme: "http", host: b"localhost" };
        self.0.serve(x, &mount).await
    }

    fn log(&self, _: &Record<'_>) {}
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |at: usize| arguments[at].parse::<usize>().unwrap();
    let (cores, workers) = (number(2), number(3));
    let command = ["perl".into(), format!("{}/worker.pl", arguments[4]).into(), arguments[5].as_str().into()];
    let mut options = Options::new("psgi", command.to_vec());
    options.workers = Workers { min: workers, max: workers };
    options.show_errors = true;
    if let Ok(ms) = std::env::var("REQUEST_MS") {
        options.request_ms_max = ms.parse().unwrap();
    }
    let log = |line: &Line<'_>| {
        let pid = line.pid.map_or(String::new(), |pid| format!("[{pid}]"));
        eprintln!("{}{pid}: {}", line.app, String::from_utf8_lossy(line.text));
    };
    let app = Arc::new(App::start(options, cores, Arc::new(log)).unwrap());
    let net_options = net::Options { threads: cores, ..net::Options::default() };
    let next = AtomicUsize::new(0);
    let binds = [Bind::Tcp(([127, 0, 0, 1], number(1) as u16).into())];
    let served = app.clone();
    let server = net::Server::start(&net_options, &binds, move |core| {
        Ok(Only(served.handle(core, next.fetch_add(1, Ordering::Relaxed))))
    });
    let server = server.unwrap();
    eprintln!("serving on {:?}", server.addresses());
    // Until the terminal or whoever started it ends it; its workers end with it.
    server.join().unwrap();
}
