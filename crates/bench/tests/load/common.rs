//! Test server whose behaviour is determined by a closure; one thread per connection.

use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bench::load::{self, LoadResult};
use bench::plan::{ConnectOptions, LoadPlan};
use bench::request::{BenchRequest, RequestSettings};
use bench::url::Url;

/// A request as the server received it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Asked {
    /// Number of the request on the server, from 0.
    pub(crate) number: u64,
    /// Number of the request on its connection, from 0.
    pub(crate) on_connection: u64,
    pub(crate) line: String,
    pub(crate) fields: Vec<String>,
    pub(crate) body: Vec<u8>,
}

/// Response to a request.
pub(crate) enum Answer {
    /// Sends these bytes and keeps the connection open.
    Bytes(Vec<u8>),
    /// Sends these bytes and closes the connection.
    Last(Vec<u8>),
    /// Sends bytes without end.
    Endless,
}

pub(crate) struct LoadTarget {
    pub(crate) address: SocketAddr,
    pub(crate) asked: Arc<AtomicU64>,
}

/// Returns a complete response with status 200.
pub(crate) fn ok(body: &str) -> Answer {
    status(200, body)
}

pub(crate) fn status(code: u16, body: &str) -> Answer {
    Answer::Bytes(
        format!("HTTP/1.1 {code} X\r\nContent-Length: {}\r\nServer: test\r\n\r\n{body}", body.len()).into(),
    )
}

/// Starts a server that runs until the test process ends.
pub(crate) fn origin(answer: impl Fn(Asked) -> Answer + Send + Sync + 'static) -> LoadTarget {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let asked = Arc::new(AtomicU64::new(0));
    let answer = Arc::new(answer);
    let count = asked.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let answer = answer.clone();
            let count = count.clone();
            stream.set_nodelay(true).unwrap();
            std::thread::spawn(move || {
                let writer = stream.try_clone().unwrap();
                let mut rest = stream.try_clone().unwrap();
                serve(BufReader::new(stream), writer, &*answer, &count);
                // Closing with unread requests would cause a reset, which discards responses in transit.
                let _ = rest.shutdown(Shutdown::Write);
                let _ = rest.set_read_timeout(Some(Duration::from_secs(1)));
                let _ = std::io::copy(&mut rest, &mut std::io::sink());
            });
        }
    });
    LoadTarget { address, asked }
}

/// Serves one connection; any error ends it.
pub(crate) fn serve(
    mut from: impl BufRead,
    mut to: impl Write,
    answer: &dyn Fn(Asked) -> Answer,
    count: &AtomicU64,
) {
    let mut on_connection = 0;
    while let Some(mut asked) = read(&mut from) {
        asked.number = count.fetch_add(1, Ordering::Relaxed);
        asked.on_connection = on_connection;
        on_connection += 1;
        let last = asked.fields.iter().any(|field| field == "connection: close");
        let (bytes, last) = match answer(asked) {
            Answer::Bytes(bytes) => (bytes, last),
            Answer::Last(bytes) => (bytes, true),
            Answer::Endless => {
                while to.write_all(&[b'x'; 4096]).is_ok() {}
                return;
            }
        };
        if to.write_all(&bytes).is_err() || last {
            return;
        }
    }
}

fn read(from: &mut impl BufRead) -> Option<Asked> {
    let mut asked = Asked::default();
    let line = |from: &mut dyn BufRead| {
        let mut line = String::new();
        (from.read_line(&mut line).ok()? > 0).then(|| line.trim_end().to_string())
    };
    asked.line = line(from)?;
    loop {
        match line(from)? {
            field if field.is_empty() => break,
            field => asked.fields.push(field.to_ascii_lowercase()),
        }
    }
    let value =
        |name: &str| asked.fields.iter().find_map(|field| field.strip_prefix(name)).map(str::to_string);
    if let Some(length) = value("content-length: ") {
        asked.body = vec![0; length.parse().ok()?];
        from.read_exact(&mut asked.body).ok()?;
    } else if value("transfer-encoding: ").is_some() {
        loop {
            let len = usize::from_str_radix(&line(from)?, 16).ok()?;
            let mut chunk = vec![0; len];
            from.read_exact(&mut chunk).ok()?;
            line(from)?;
            if len == 0 {
                break;
            }
            asked.body.extend(chunk);
        }
    }
    Some(asked)
}

impl LoadTarget {
    pub(crate) fn url(&self, target: &str) -> String {
        format!("http://{}{target}", self.address)
    }

    pub(crate) fn count(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }

    /// Returns a plan for a short load on `/` with these numbers of connections and requests.
    pub(crate) fn plan(&self, connections: usize, requests: u64) -> LoadPlan {
        plan(
            &self.url("/"),
            &RequestSettings { keep_alive: true, ..RequestSettings::default() },
            connections,
            requests,
        )
    }
}

pub(crate) fn plan(url: &str, manner: &RequestSettings, connections: usize, requests: u64) -> LoadPlan {
    plan_of(&[BenchRequest::get(Url::parse(url).unwrap())], manner, connections, requests)
}

pub(crate) fn plan_of(
    asks: &[BenchRequest],
    manner: &RequestSettings,
    connections: usize,
    requests: u64,
) -> LoadPlan {
    let mut plan = LoadPlan::new(asks, manner, &ConnectOptions::default()).unwrap();
    plan.connections = connections;
    plan.duration = None;
    plan.requests_max = Some(requests);
    plan.warm_up = Duration::ZERO;
    plan
}

pub(crate) fn run(plan: &LoadPlan) -> LoadResult {
    load::run_load(plan, &false.into(), &mut ()).unwrap()
}
