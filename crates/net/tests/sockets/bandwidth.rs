//! Bandwidth limits of responses over HTTP/1.

use std::time::{Duration, Instant};

use net::{BandwidthLimit, Exchange, Fault, Options, RequestRecord, Server, Service, Timeouts};
use times::Millis;

use crate::rig::{self, BIG_BYTES, Client, FILE_BYTES, PATIENCE, options, pattern, tcp, wait_until};

/// The rig's handlers, with a limit from the request's fields.
struct Limited(rig::App);

impl Service for Limited {
    async fn serve(&self, exchange: &mut Exchange<'_>) -> Result<(), Fault> {
        let number = |name: &str| {
            let request = exchange.request();
            let value = request.fields().find_map(|(_, other, value)| {
                other
                    .eq_ignore_ascii_case(name.as_bytes())
                    .then(|| String::from_utf8(value.to_vec()).unwrap())
            });
            value.map(|value| value.parse::<u64>().unwrap())
        };
        if let Some(bytes_per_s) = number("rate") {
            let after_bytes = number("after").unwrap_or(0);
            exchange.limit_bandwidth(&BandwidthLimit { bytes_per_s, after_bytes });
        }
        self.0.serve(exchange).await
    }

    fn log(&self, _: &RequestRecord<'_>) {}
}

fn start(options: &Options) -> Server {
    Server::start(options, &[tcp()], |_| rig::app().map(Limited)).unwrap()
}

fn request(path: &str, fields: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: here\r\n{fields}\r\n").into_bytes()
}

fn open(server: &Server) -> u64 {
    server.counters().iter().map(|core| core.connections_open.value()).sum()
}

/// Returns the minimum duration of a transfer after its unlimited beginning. The server's clock has a
/// resolution of one millisecond.
fn at_least(bytes: usize, bytes_per_s: u64) -> Duration {
    Duration::from_secs_f64((bytes - 16 * 1024) as f64 / bytes_per_s as f64)
        .saturating_sub(Duration::from_millis(2))
}

#[test]
fn rate_limited_response_is_complete_and_not_too_fast() {
    let server = start(&options(1));
    let mut client = Client::connect(&server.addresses()[0]).unwrap();
    for (path, fields, limited_bytes, rate, body) in [
        ("/file", "Rate: 3000000\r\n", FILE_BYTES, 3_000_000, pattern(FILE_BYTES)),
        (
            "/file",
            "Rate: 1000000\r\nAfter: 2000000\r\n",
            FILE_BYTES - 2_000_000,
            1_000_000,
            pattern(FILE_BYTES),
        ),
        ("/big", "Rate: 12000000\r\n", BIG_BYTES, 12_000_000, vec![b'x'; BIG_BYTES]),
    ] {
        let began = Instant::now();
        client.send(&request(path, fields)).unwrap();
        assert!(client.answer().unwrap().body == body, "{path}");
        let least = at_least(limited_bytes, rate);
        assert!(began.elapsed() >= least, "{path} {fields:?}: {:?} < {least:?}", began.elapsed());
    }
    assert!(rig::finish(server));
}

#[test]
fn bytes_before_or_after_the_limited_part_are_not_delayed() {
    let server = start(&options(1));
    let mut client = Client::connect(&server.addresses()[0]).unwrap();
    // At this rate, each of them would take an hour.
    client.send(&request("/file", "Rate: 1024\r\nAfter: 4000000\r\n")).unwrap();
    assert!(client.answer().unwrap().body == pattern(FILE_BYTES));
    // Pipelined: the second response begins when the first has been sent.
    let both = [request("/", "Rate: 1024\r\n"), request("/file", "")].concat();
    client.send(&both).unwrap();
    assert_eq!(client.answer().unwrap().body, b"hello");
    assert!(client.answer().unwrap().body == pattern(FILE_BYTES));
    assert!(rig::finish(server));
}

#[test]
fn rate_limit_pauses_do_not_trigger_the_write_timeout() {
    let timeouts = Timeouts { write: Millis(500), ..Timeouts::default() };
    let server = start(&Options { timeouts, ..options(1) });
    let mut client = Client::connect(&server.addresses()[0]).unwrap();
    // A pause of one second for each 16 KiB.
    client.send(&request("/big", "Rate: 16384\r\n")).unwrap();
    let began = Instant::now();
    client.read_exact(&mut vec![0; 3 * 16 * 1024]).unwrap();
    // The rate is not what is tested here: a server that is stalled measures from an earlier time.
    assert!(began.elapsed() >= Duration::from_millis(2 * 500), "{:?}", began.elapsed());
    drop(client);
    wait_until("the connection is over", || open(&server) == 0);
    assert!(rig::finish(server));
}

#[test]
fn disconnected_rate_limited_clients_are_released() {
    let server = start(&options(1));
    let mut clients: Vec<Client> = (0..1_000)
        .map(|_| {
            let mut client = Client::connect(&server.addresses()[0]).unwrap();
            // The rest would take days.
            client.send(&request("/file?9", "Rate: 1024\r\n")).unwrap();
            client
        })
        .collect();
    for client in &mut clients {
        client.read_exact(&mut [0; 12]).unwrap();
    }
    assert_eq!(open(&server), 1_000);
    // Another request is served meanwhile.
    let mut other = Client::connect(&server.addresses()[0]).unwrap();
    assert!(other.ask("/file").unwrap().body == pattern(FILE_BYTES));
    drop((other, clients));
    wait_until("all are released", || open(&server) == 0);
    assert!(rig::finish(server));
}

#[test]
fn stopping_server_finishes_rate_limited_responses() {
    let server = start(&options(1));
    let mut client = Client::connect(&server.addresses()[0]).unwrap();
    client.send(&request("/file", "Rate: 3000000\r\n")).unwrap();
    let mut head = [0; 12];
    client.read_exact(&mut head).unwrap();
    assert_eq!(&head, b"HTTP/1.1 200");
    let reading = std::thread::spawn(move || client.rest().unwrap());
    assert!(rig::finish(server));
    let rest = reading.join().unwrap();
    assert!(rest.ends_with(&pattern(FILE_BYTES)));
    assert!(PATIENCE > at_least(FILE_BYTES, 3_000_000));
}
