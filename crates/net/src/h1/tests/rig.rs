//! A core without epoll: events and time come from the test.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::rc::Rc;
use std::sync::Arc;

use http::{Fields, Length, Status};
use rustix::fs::MemfdFlags;
use times::{Millis, Moment};

use crate::address::{Peer, PeerSet};
use crate::client_connection::IdleClient;
use crate::clock::Clock;
use crate::core::Core;
use crate::counters::Counters;
use crate::exchange::Exchange;
use crate::fault::Fault;
use crate::filters::DefaultLines;
use crate::link::Link;
use crate::offload::OffloadPools;
use crate::options::{Limits, Timeouts};
use crate::permit::{ConnectionLimit, ServingContext};
use crate::proxy_header::AwaitingProxyHeader;
use crate::service::Engine;
use crate::service::{RequestRecord, Service};
use crate::sim::SimulatedWire;
use crate::stream::Stream;
use crate::tunnel::{TunnelEnd, tunnel};

/// Step in which time passes.
const STEP_TIME: Millis = Millis(100);
pub(super) const BIG_BYTES: usize = 150_000;
pub(super) const FILE_BYTES: usize = 100_000;
pub(super) const HUGE_BYTES: usize = 10_000_000;
pub(super) const SLOW_TIME: Millis = Millis(300);
/// Idle timeout of tunnels.
pub(super) const TUNNEL_IDLE: Millis = Millis(60_000);

pub(super) struct Rig {
    pub(super) core: Core,
    pub(super) engine: Rc<Engine<TestService>>,
    wires: RefCell<Vec<Rc<SimulatedWire>>>,
    began: Moment,
}

impl Rig {
    pub(super) fn new(limits: Limits, timeouts: Timeouts) -> Rig {
        let core = Core::new(Clock::new(), OffloadPools::new(1)).unwrap();
        // Whole milliseconds, as tests set it.
        core.clock().set(core.now(), core.unix_s());
        let service = TestService::new();
        let context = Rc::new(ServingContext {
            http3_listeners: RefCell::default(),
            core: core.clone(),
            limits: Cell::new(limits),
            timeouts: Cell::new(timeouts),
            hints_over_http1: Cell::new(true),
            tls: None,
            gate: None,
            buffers: Rc::default(),
            shared_frames: Cell::default(),
            head_lines: Cell::default(),
            counters: Arc::new(Counters::default()),
            is_draining: Cell::new(false),
            connection_limit: ConnectionLimit::new(limits.connections_max),
            connections: crate::connections::ConnectionList::default(),
            unconfirmed_sessions: Cell::default(),
            encoders: std::rc::Rc::default(),
            default_lines: DefaultLines::new("Test"),
            error_pages: service.error_pages(),
        });
        let engine = Rc::new(Engine { context, service });
        let began = core.now();
        Rig { core, engine, wires: RefCell::default(), began }
    }

    /// A rig with short timeouts, each of a different length.
    pub(super) fn with_short_timeouts() -> Rig {
        let timeouts = Timeouts {
            head: Millis(4_000),
            body: Millis(2_000),
            write: Millis(3_000),
            idle: Millis(9_000),
            drain: Millis(5_000),
        };
        Rig::new(Limits::default(), timeouts)
    }

    /// Accepts a new client.
    pub(super) fn connect(&self, seed: u64) -> Rc<SimulatedWire> {
        self.accept(seed, |idle| idle.park())
    }

    /// Accepts a new client that may send a PROXY protocol header if `sources` contains it.
    pub(super) fn connect_with_proxy_header(&self, seed: u64, sources: &Arc<PeerSet>) -> Rc<SimulatedWire> {
        self.accept(seed, |idle| AwaitingProxyHeader::park(idle, sources.clone(), None, false))
    }

    /// Returns the remote end of a connection that the server makes.
    pub(super) fn wire(&self, seed: u64) -> Rc<SimulatedWire> {
        let wire = Rc::new(SimulatedWire::new(seed));
        self.wires.borrow_mut().push(wire.clone());
        wire
    }

    fn accept(&self, seed: u64, park: impl FnOnce(Box<IdleClient<TestService>>)) -> Rc<SimulatedWire> {
        let wire = Rc::new(SimulatedWire::new(seed));
        let stream = Stream::simulated(&self.core, wire.clone());
        park(IdleClient::new(&self.engine, Link::Plain(stream), Peer::Unix, true));
        self.wires.borrow_mut().push(wire.clone());
        self.run_until_idle();
        wire
    }

    /// Runs until nothing more happens without events or the passing of time. Returns the number of ticks.
    pub(super) fn run_until_idle(&self) -> usize {
        let mut ticks = 0;
        loop {
            let mut moved = self.core.has_ready();
            ticks += usize::from(moved);
            assert!(ticks < 100_000, "a busy loop");
            self.core.run_ready();
            for wire in self.wires.borrow().iter() {
                moved |= wire.deliver(&self.core);
            }
            if self.engine.service.offloaded.get() > 0 {
                // The only work done by another thread.
                std::thread::yield_now();
                self.core.run_remote();
                moved = true;
            }
            if !moved {
                return ticks;
            }
        }
    }

    /// Runs one turn: delivers the events of every client and runs ready tasks.
    pub(super) fn run_turn(&self) {
        for wire in self.wires.borrow().iter() {
            wire.deliver(&self.core);
        }
        self.core.run_ready();
    }

    /// Lets `ms` milliseconds pass.
    pub(super) fn advance_ms(&self, ms: u64) {
        let until = self.core.now() + Millis(ms);
        while self.core.now() < until {
            let now = (self.core.now() + STEP_TIME).min(until);
            self.core.clock().set(now, 1_800_000_000 + now.0 / 1000);
            self.core.run_timers();
            self.run_until_idle();
        }
    }

    /// Returns the milliseconds since the rig was made.
    pub(super) fn elapsed_ms(&self) -> u64 {
        (self.core.now() - self.began).0
    }

    pub(super) fn open_connections(&self) -> usize {
        self.engine.context.connection_limit.taken.get()
    }

    /// Sends bytes, waits for the immediate result and reads it.
    pub(super) fn send_and_read(&self, wire: &SimulatedWire, bytes: &[u8]) -> String {
        wire.client_sends(bytes);
        self.run_until_idle();
        read(wire)
    }

    /// Checks that connections have released everything.
    pub(super) fn assert_empty(&self) {
        assert_eq!(self.open_connections(), 0, "a connection is left");
        assert_eq!(self.core.tasks_alive(), 0, "a task is left");
        assert_eq!(self.core.running(), 0, "the count of futures is off");
        assert_eq!(self.core.sources_alive(), 0, "a source is left");
        assert_eq!(self.core.timers_armed(), 0, "a timer is left");
        assert!(self.wires.borrow().iter().all(|wire| wire.end().is_some()), "a client was not disconnected");
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.core.drop_tasks();
    }
}

/// Reads what the client has received, as text.
pub(super) fn read(wire: &SimulatedWire) -> String {
    String::from_utf8(wire.client_reads()).unwrap()
}

/// Returns `len` bytes that depend on `n` everywhere.
pub(super) fn pattern_bytes(n: u64, len: usize) -> Vec<u8> {
    (0..len).map(|at| b'a' + ((at as u64 * 7 + n) % 26) as u8).collect()
}

/// A service with one handler of each kind, selected by the path; the query is a number that the response
/// depends on.
pub(super) struct TestService {
    file: Arc<File>,
    pub(super) offloaded: Rc<Cell<usize>>,
    /// Remote end of the next tunnel.
    pub(super) origin: Rc<RefCell<Option<Link>>>,
    /// Target, status, body bytes and fault of each record.
    pub(super) log: RefCell<Vec<(String, u16, u64, String)>>,
    pub(super) durations_ms: RefCell<Vec<u64>>,
}

impl TestService {
    fn new() -> TestService {
        let file = rustix::fs::memfd_create("zoo", MemfdFlags::CLOEXEC).unwrap();
        let bytes = pattern_bytes(0, FILE_BYTES);
        assert_eq!(rustix::io::write(&file, &bytes).unwrap(), bytes.len());
        TestService {
            file: Arc::new(file.into()),
            offloaded: Rc::default(),
            origin: Rc::default(),
            log: RefCell::default(),
            durations_ms: RefCell::default(),
        }
    }

    async fn echo(&self, exchange: &mut Exchange<'_>) -> Result<(), Fault> {
        let mut piece = exchange.read().await?.map(<[u8]>::to_vec);
        exchange.begin(Status::OK, &Fields::new(), Length::Unknown);
        while let Some(bytes) = piece {
            exchange.write(&bytes).await?;
            piece = exchange.read().await?.map(<[u8]>::to_vec);
        }
        Ok(())
    }

    async fn limited(&self, exchange: &mut Exchange<'_>) -> Result<(), Fault> {
        exchange.limit_body(10)?;
        while exchange.read().await?.is_some() {}
        exchange.reply(Status::OK, &Fields::new(), b"small").await
    }

    async fn chunked(&self, exchange: &mut Exchange<'_>, n: u64) -> Result<(), Fault> {
        exchange.begin(Status::OK, &Fields::new(), Length::Unknown);
        for len in [1, 10, 5_000] {
            exchange.write(&pattern_bytes(n, len)).await?;
            exchange.flush().await?;
            exchange.core().yield_now().await;
        }
        let mut trailers = Fields::new();
        trailers.try_push(b"X-Number", n.to_string().as_bytes()).unwrap();
        exchange.end(&trailers)
    }

    async fn big(&self, exchange: &mut Exchange<'_>, n: u64) -> Result<(), Fault> {
        exchange.begin(Status::OK, &Fields::new(), Length::Known(BIG_BYTES as u64));
        for piece in pattern_bytes(n, BIG_BYTES).chunks(9_999) {
            exchange.write(piece).await?;
        }
        Ok(())
    }

    async fn file(&self, exchange: &mut Exchange<'_>, n: u64) -> Result<(), Fault> {
        let start = n % 1000;
        let head = pattern_bytes(n, 100);
        let len = head.len() as u64 + FILE_BYTES as u64 - start;
        exchange.begin(Status::OK, &Fields::new(), Length::Known(len));
        exchange.write(&head).await?;
        exchange.write_file(&self.file, start..FILE_BYTES as u64).await
    }

    async fn offload(&self, exchange: &mut Exchange<'_>, n: u64) -> Result<(), Fault> {
        self.offloaded.set(self.offloaded.get() + 1);
        let back = CountOnDrop(self.offloaded.clone());
        let bytes = exchange.core().offload(move || pattern_bytes(n, 50)).await;
        drop(back);
        exchange.reply(Status::OK, &Fields::new(), &bytes).await
    }

    /// Begins a body and does not complete it.
    async fn truncate(&self, exchange: &mut Exchange<'_>, length: Length, panics: bool) -> Result<(), Fault> {
        exchange.begin(Status::OK, &Fields::new(), length);
        exchange.write(b"part").await?;
        exchange.flush().await?;
        if panics {
            // A panic without the output of the panic hook.
            std::panic::resume_unwind(Box::new("as if the handler had panicked"));
        }
        Err(Fault::Failed("cut"))
    }
}

/// Counts an offloaded call that has ended or was cancelled.
struct CountOnDrop(Rc<Cell<usize>>);

impl Drop for CountOnDrop {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Service for TestService {
    async fn serve(&self, exchange: &mut Exchange<'_>) -> Result<(), Fault> {
        let none = Fields::new();
        let request = exchange.request();
        let query = request.query().and_then(|text| std::str::from_utf8(text).ok());
        let n: u64 = query.and_then(|text| text.parse().ok()).unwrap_or(0);
        let path = request.path().to_vec();
        match path.as_slice() {
            b"/fixed" => exchange.reply(Status::OK, &none, &pattern_bytes(n, 20)).await,
            b"/who" => {
                let request = exchange.request();
                let local = exchange.local_address();
                let said = format!("{:?} {:?} {local:?}", request.peer(), request.client().is_secure);
                exchange.reply(Status::OK, &none, said.as_bytes()).await
            }
            b"/empty" => exchange.reply(Status::OK, &none, b"").await,
            b"/204" => exchange.reply(Status::of(204).unwrap(), &none, b"dropped").await,
            b"/304" => exchange.reply(Status::NOT_MODIFIED, &none, b"dropped").await,
            b"/echo" => self.echo(exchange).await,
            b"/swallow" => {
                let mut len = 0;
                while let Some(piece) = exchange.read().await? {
                    len += piece.len();
                }
                exchange.reply(Status::OK, &none, format!("{len} bytes").as_bytes()).await
            }
            b"/limited" => self.limited(exchange).await,
            b"/chunked" => self.chunked(exchange, n).await,
            b"/big" => self.big(exchange, n).await,
            b"/file" => self.file(exchange, n).await,
            b"/offload" => self.offload(exchange, n).await,
            b"/late-echo" => {
                exchange.begin(Status::OK, &none, Length::Unknown);
                while let Some(piece) = exchange.read().await? {
                    let piece = piece.to_vec();
                    exchange.write(&piece).await?;
                }
                Ok(())
            }
            b"/fat" => {
                let mut fat = Fields::new();
                fat.try_push(b"X-Fat", &pattern_bytes(n, 1_000)).unwrap();
                exchange.reply(Status::of(204).unwrap(), &fat, b"").await
            }
            b"/huge" => {
                exchange.begin(Status::OK, &none, Length::Known(HUGE_BYTES as u64));
                let piece = pattern_bytes(n, 100_000);
                for _ in 0..HUGE_BYTES / piece.len() {
                    exchange.write(&piece).await?;
                }
                Ok(())
            }
            b"/tunnel" => {
                let origin = self.origin.take();
                exchange.upgrade(|_| {});
                let mut origin = origin.expect("the way is made");
                tunnel(exchange, TunnelEnd::Link(&mut origin), b"", TUNNEL_IDLE).await
            }
            b"/slow" => {
                exchange.core().sleep(SLOW_TIME).await;
                exchange.reply(Status::OK, &none, &pattern_bytes(n, 30)).await
            }
            b"/works-on" => {
                exchange.reply(Status::OK, &none, &pattern_bytes(n, 30)).await?;
                exchange.end(&none)?;
                exchange.core().sleep(SLOW_TIME).await;
                Ok(())
            }
            b"/panic" => std::panic::resume_unwind(Box::new("as if the handler had panicked")),
            b"/fail" => Err(std::io::Error::other("out of order").into()),
            b"/silent" => Ok(()),
            b"/cut" => self.truncate(exchange, Length::Unknown, false).await,
            b"/late-panic" => self.truncate(exchange, Length::Unknown, true).await,
            b"/short" => self.truncate(exchange, Length::Known(10), false).await,
            b"/long" => {
                exchange.begin(Status::OK, &none, Length::Known(5));
                exchange.write(b"too long").await
            }
            b"/late-fail" => {
                exchange.reply(Status::OK, &none, &pattern_bytes(n, 20)).await?;
                Err(Fault::Failed("after the response"))
            }
            _ => exchange.refuse(Status::NOT_FOUND, "no such animal").await,
        }
    }

    fn log(&self, record: &RequestRecord<'_>) {
        let target = record.request.map_or("-".into(), |request| {
            format!(
                "{} {}",
                String::from_utf8_lossy(request.method_name()),
                String::from_utf8_lossy(request.target())
            )
        });
        let fault = record.fault.map_or(String::new(), ToString::to_string);
        self.log.borrow_mut().push((target, record.status.code(), record.body_bytes, fault));
        self.durations_ms.borrow_mut().push(record.duration_us / 1_000);
    }
}
