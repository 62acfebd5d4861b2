//! Accepting connections from listening sockets, until a socket is closed or the server stops.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{SocketAddrAny, SocketFlags};
use times::{Millis, Moment};

use crate::address::{BindAddress, ListenOptions, ListenUrl, Peer, PeerSet, StreamListener};
use crate::bind::{Listener, ListeningSocket};
use crate::client_connection::IdleClient;
use crate::connections::{ConnectionEntry, OpenConnection, OpenConnections};
use crate::core::Core;
use crate::datagram_listener::{OpenRelay, RelayListener, RelaySettings, RelayedSocket, relay_datagrams};
use crate::datagram_socket::DatagramSocket;
use crate::link::Link;
use crate::memory::Pressure;
use crate::options::ServingLimits;
use crate::preread;
use crate::proxy_header::AwaitingProxyHeader;
use crate::quic::{OpenEndpoint, QuicSocket, QuicUdpSocket, serve_socket};
use crate::remote::Remote;
use crate::service::Engine;
use crate::service::Service;
use crate::source::{READ, Source};
use crate::stream::Stream;
use crate::sys;
use crate::tls_setup::AwaitingHandshake;

/// Maximum number of connections accepted in one wake-up before other tasks run.
const ACCEPT_BATCH: usize = 16;
/// Whole batches within a millisecond after which a batch is doubled.
const BATCH_REPEATS: usize = 4;
/// Idle connections closed at once to make room: more than one, because finding them requires a walk over all
/// tasks, but at most a sixteenth of the permits.
const MAKE_ROOM_MAX: usize = 32;
/// Interval of checks for a closable idle connection while all permits are taken.
const FULL_CHECK_INTERVAL: Millis = Millis(200);
/// Timeout of [`Listeners::replace`] and [`Listeners::connections`], and poll interval of the former.
const REPLACE_MAX: Duration = Duration::from_millis(500);
const REPLACE_POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Pause of accepting when the process has run out of descriptors or memory.
const EXHAUSTED_PAUSE: Millis = Millis(50);
/// A listening socket and its settings; without `proxy_protocol`, PROXY headers are not accepted.
#[derive(Clone, Debug)]
pub(crate) struct AcceptSocket {
    /// Number of the listener that the socket belongs to.
    listener: u64,
    socket: Arc<ListeningSocket>,
    proxy_protocol: Option<Arc<PeerSet>>,
    is_tls: bool,
    /// Whether cleartext connections may begin with the HTTP/2 preface.
    h2c: bool,
    /// Set if connections may be relayed.
    streams: Option<Arc<StreamListener>>,
    /// [`ListenOptions::key`].
    key: u64,
}

impl AcceptSocket {
    /// Whether connections are accepted when their first bytes have arrived: clients of HTTP, and of TLS before it, send
    /// first. Saves an event and a wait for each, and silent connections take no descriptor for a second.
    fn defers(&self) -> bool {
        self.socket.is_tcp() && self.streams.is_none()
    }
}

/// A socket that a core serves.
#[derive(Clone, Debug)]
pub(crate) enum ServedSocket {
    Stream(AcceptSocket),
    Quic(QuicSocket),
    Relayed(RelayedSocket),
}

/// Way in which a core stops accepting from a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClosingMode {
    No,
    /// After accepting the connections in the kernel's queue.
    WhenEmpty,
    /// At once, because another task accepts from the socket.
    AtOnce,
}

/// A command for the accepting sockets of a core.
#[derive(Debug)]
enum AcceptCommand {
    Open(ServedSocket),
    Close(u64, ClosingMode),
    /// New limits, and the number of cores among which they are divided.
    Limits(Box<ServingLimits>, usize),
    /// Receive the packets of the UDP sockets.
    ReceiveDatagrams,
    /// A request for the list of connections.
    Connections(Sender<CoreConnections>),
}

/// Connections of a core: their number, those that are listed, and the time of the core's clock.
type CoreConnections = (usize, Vec<ConnectionEntry>, Moment);

/// Queue of commands for one core. Usable from any thread.
#[derive(Debug)]
pub(crate) struct AcceptCommands {
    commands: Mutex<Vec<AcceptCommand>>,
    has_commands: AtomicBool,
    /// Set until the core has run a turn after [`AcceptCommands::has_run_turn`].
    is_turn_requested: AtomicBool,
    remote: Arc<Remote>,
}

impl AcceptCommands {
    pub(crate) fn new(remote: Arc<Remote>) -> AcceptCommands {
        AcceptCommands {
            commands: Mutex::default(),
            has_commands: AtomicBool::new(false),
            is_turn_requested: AtomicBool::new(false),
            remote,
        }
    }

    fn send(&self, command: AcceptCommand) {
        lock(&self.commands).push(command);
        self.has_commands.store(true, Ordering::Release);
        self.remote.wake_core();
    }

    /// Whether the core has run a turn since the last call; requests another turn.
    fn has_run_turn(&self) -> bool {
        let has_turned = !self.is_turn_requested.swap(true, Ordering::AcqRel);
        self.remote.wake_core();
        has_turned
    }

    fn take(&self) -> Vec<AcceptCommand> {
        if self.is_turn_requested.load(Ordering::Relaxed) {
            self.is_turn_requested.store(false, Ordering::Release);
        }
        // A load before the swap, because each turn of the core calls this.
        let are_there =
            self.has_commands.load(Ordering::Relaxed) && self.has_commands.swap(false, Ordering::AcqRel);
        if are_there { std::mem::take(&mut lock(&self.commands)) } else { Vec::new() }
    }
}

/// Ignores poisoning: no thread panics while it holds one of these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Handle to the replaceable listeners of a running server. Usable from any thread; cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Listeners(Arc<Mutex<ListenersState>>);

#[derive(Debug, Default)]
struct ListenersState {
    open: Vec<(u64, Listener)>,
    cores: Vec<Arc<AcceptCommands>>,
    /// Number of the next listener.
    next_number: u64,
    is_closed: bool,
}

/// The listeners of a new configuration: bound, but not yet accepting.
#[derive(Debug)]
pub struct NewListeners(Vec<NewListener>);

#[derive(Debug)]
enum NewListener {
    /// A listener that is already open, with new settings, and UDP sockets for HTTP/3 if it has none.
    Kept(u64, ListenOptions, Vec<Arc<QuicUdpSocket>>),
    Bound(Listener),
}

impl Listeners {
    /// Creates the handle; the cores are added with [`Listeners::add_core`].
    pub(crate) fn of(listeners: Vec<Listener>) -> Listeners {
        let next = listeners.len() as u64;
        let open = (0..).zip(listeners).collect();
        Listeners(Arc::new(Mutex::new(ListenersState {
            open,
            next_number: next,
            ..ListenersState::default()
        })))
    }

    /// Returns the sockets that core `index` of `cores` accepts from.
    pub(crate) fn served_sockets(&self, index: usize, cores: usize) -> Vec<ServedSocket> {
        let state = lock(&self.0);
        state
            .open
            .iter()
            .flat_map(|(number, listener)| served_sockets(*number, listener, index, cores))
            .collect()
    }

    /// Adds the next core that has started.
    pub(crate) fn add_core(&self, commands: Arc<AcceptCommands>) {
        lock(&self.0).cores.push(commands);
    }

    /// Returns the bound addresses, with the ports that the kernel chose.
    #[must_use]
    pub fn addresses(&self) -> Vec<BindAddress> {
        lock(&self.0).open.iter().map(|(_, listener)| listener.address().clone()).collect()
    }

    /// Returns the bound addresses as URLs.
    #[must_use]
    pub fn urls(&self) -> Vec<ListenUrl> {
        lock(&self.0).open.iter().map(|(_, listener)| listener.url()).collect()
    }

    /// Calls `each` for every open listener.
    pub fn visit(&self, mut each: impl FnMut(&mut Listener)) {
        lock(&self.0).open.iter_mut().for_each(|(_, listener)| each(listener));
    }

    /// Prepares new listeners. Addresses that are already open stay open, with their queues; the others are
    /// bound by `bind`, which is called with the index of the address in `listens` and the addresses that are
    /// open. With `binds_http3`, it is also called for open addresses whose HTTP/3 is switched on; of what it returns for
    /// them, the UDP sockets are used, and an error leaves them to this process.
    ///
    /// # Errors
    /// Returns the first error of `bind`; fails if the server is stopping.
    pub fn prepare(
        &self,
        listens: Vec<ListenOptions>,
        binds_http3: bool,
        mut bind: impl FnMut(usize, ListenOptions, &[BindAddress]) -> std::io::Result<Listener>,
    ) -> std::io::Result<NewListeners> {
        let state = lock(&self.0);
        if state.is_closed {
            return Err(std::io::Error::other("the server is stopping"));
        }
        let addresses: Vec<BindAddress> = state.open.iter().map(|(_, open)| open.address().clone()).collect();
        let mut by_address: HashMap<&BindAddress, Vec<usize>> = HashMap::new();
        for (at, (_, open)) in state.open.iter().enumerate() {
            let [requested, bound] = open.known_addresses();
            by_address.entry(requested).or_default().push(at);
            if bound != requested {
                by_address.entry(bound).or_default().push(at);
            }
        }
        let mut is_taken = vec![false; state.open.len()];
        let mut new = Vec::new();
        for (place, listen) in listens.into_iter().enumerate() {
            let same = by_address.get(&listen.address).into_iter().flatten();
            match same.copied().find(|at| !is_taken[*at]) {
                Some(at) => {
                    is_taken[at] = true;
                    let (number, open) = &state.open[at];
                    let bound = (binds_http3 && open.lacks_datagrams(&listen))
                        .then(|| bind(place, listen.clone(), &addresses).ok())
                        .flatten();
                    let datagrams = bound.map(Listener::into_datagrams).unwrap_or_default();
                    new.push(NewListener::Kept(*number, listen, datagrams));
                }
                None => new.push(NewListener::Bound(bind(place, listen, &addresses)?)),
            }
        }
        Ok(NewListeners(new))
    }

    /// Replaces the listeners. Those not among the new ones accept the connections in the kernel's queue and
    /// are then closed; accepted connections stay open. Waits briefly until every core has begun.
    pub fn replace(&self, new: NewListeners) {
        let mut state = lock(&self.0);
        if state.is_closed {
            return;
        }
        let mut old: BTreeMap<u64, Listener> = std::mem::take(&mut state.open).into_iter().collect();
        for new in new.0 {
            match new {
                NewListener::Kept(number, listen, datagrams) => {
                    let Some(mut listener) = old.remove(&number) else { continue };
                    let is_same = listener.set_options(listen, datagrams);
                    let number = if is_same { number } else { state.reopen(number, &listener) };
                    state.open.push((number, listener));
                }
                NewListener::Bound(listener) => {
                    let number = state.open(&listener);
                    state.open.push((number, listener));
                }
            }
        }
        for (number, _) in old {
            state.close(number, ClosingMode::WhenEmpty);
        }
        let cores = state.cores.clone();
        drop(state);
        let until = Instant::now() + REPLACE_MAX;
        while cores.iter().any(|core| core.has_commands.load(Ordering::Acquire)) && Instant::now() < until {
            std::thread::sleep(REPLACE_POLL_INTERVAL);
        }
    }

    /// Receives the packets of the UDP sockets for HTTP/3 from now on, in place of the process that has passed them
    /// on, or of a successor that has failed.
    pub fn receive_datagrams(&self) {
        let state = lock(&self.0);
        state.open.iter().for_each(|(_, listener)| listener.take_over_datagrams());
        state.cores.iter().for_each(|core| core.send(AcceptCommand::ReceiveDatagrams));
    }

    /// Whether every core has run a turn since the last call, so that none is stuck.
    #[must_use]
    pub fn are_cores_responsive(&self) -> bool {
        // Every core must be asked, even after one that has not run.
        let turned: Vec<bool> = lock(&self.0).cores.iter().map(|core| core.has_run_turn()).collect();
        !turned.contains(&false)
    }

    /// Sets the limits and timeouts of connections: for new ones, and for the next requests of open ones.
    pub fn set_limits(&self, limits: ServingLimits) {
        let state = lock(&self.0);
        let cores = state.cores.len();
        state.cores.iter().for_each(|core| core.send(AcceptCommand::Limits(Box::new(limits), cores)));
    }

    /// Returns the open connections, reported by each core in its next turn. Cores that do not answer in time
    /// are only counted.
    #[must_use]
    pub fn connections(&self) -> OpenConnections {
        let (asker, answers) = channel();
        let state = lock(&self.0);
        let urls: Vec<(u64, ListenUrl)> =
            state.open.iter().map(|(number, open)| (*number, open.url())).collect();
        state.cores.iter().for_each(|core| core.send(AcceptCommand::Connections(asker.clone())));
        let cores = state.cores.len();
        drop((state, asker));
        let until = Instant::now() + REPLACE_MAX;
        let mut all = OpenConnections { unresponsive_cores: cores, ..OpenConnections::default() };
        while all.unresponsive_cores > 0
            && let Ok((count, listed, now)) =
                answers.recv_timeout(until.saturating_duration_since(Instant::now()))
        {
            all.unresponsive_cores -= 1;
            all.count += count;
            all.listed.extend(listed.into_iter().map(|entry| OpenConnection {
                listener:
                    urls.iter().find(|(number, _)| *number == entry.listener).map(|(_, url)| url.clone()),
                client: entry.client,
                age: now - entry.since,
                protocol: entry.protocol,
                requests: entry.requests,
            }));
        }
        all
    }

    /// Closes all listeners when the server stops; the files of Unix sockets are removed.
    pub(crate) fn close(&self) {
        let mut state = lock(&self.0);
        state.is_closed = true;
        state.open.clear();
    }
}

impl ListenersState {
    /// Makes every core accept from the listener; returns its number.
    fn open(&mut self, listener: &Listener) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        for (index, core) in self.cores.iter().enumerate() {
            for socket in served_sockets(number, listener, index, self.cores.len()) {
                core.send(AcceptCommand::Open(socket));
            }
        }
        number
    }

    /// Like [`ListenersState::open`], replacing the listener number of the same sockets.
    fn reopen(&mut self, old: u64, listener: &Listener) -> u64 {
        self.close(old, ClosingMode::AtOnce);
        self.open(listener)
    }

    fn close(&self, number: u64, closing: ClosingMode) {
        self.cores.iter().for_each(|core| core.send(AcceptCommand::Close(number, closing)));
    }
}

fn served_sockets(number: u64, listener: &Listener, index: usize, cores: usize) -> Vec<ServedSocket> {
    let proxy_protocol = &listener.proxy_protocol;
    let accepted = |listening: &Arc<ListeningSocket>| AcceptSocket {
        listener: number,
        socket: listening.clone(),
        proxy_protocol: proxy_protocol.clone(),
        is_tls: listener.is_tls,
        h2c: listener.h2c,
        streams: listener.streams.clone(),
        key: listener.key,
    };
    let relayed = |socket: &Arc<DatagramSocket>| {
        let settings = RelaySettings {
            listener: (number, listener.key),
            proxy_protocol: proxy_protocol.clone(),
            streams: listener.streams.clone()?,
        };
        Some(ServedSocket::Relayed(RelayedSocket { socket: socket.clone(), settings }))
    };
    let quic = |(index, socket): (u8, &Arc<QuicUdpSocket>)| QuicSocket {
        socket: socket.clone(),
        index,
        listener: (number, listener.key),
    };
    let streams = listener.sockets_of(index, cores).map(accepted).map(ServedSocket::Stream);
    let relayed = listener.relayed_datagrams_of(index, cores).filter_map(relayed);
    let quic = listener.datagrams_of(index, cores).map(quic).map(ServedSocket::Quic);
    streams.chain(quic).chain(relayed).collect()
}

/// The sockets that one core accepts from.
pub(crate) struct AcceptingSockets<S: Service> {
    engine: Rc<Engine<S>>,
    open: RefCell<Vec<OpenSocket>>,
    endpoints: RefCell<Vec<OpenEndpoint>>,
    relays: RefCell<Vec<OpenRelay>>,
    /// One clone for each socket that is still accepted from, and this one.
    accepting: Rc<()>,
}

struct OpenSocket {
    listener: u64,
    source: Rc<Source>,
    closing: Rc<Cell<ClosingMode>>,
}

impl<S: Service> AcceptingSockets<S> {
    pub(crate) fn new(engine: &Rc<Engine<S>>) -> AcceptingSockets<S> {
        AcceptingSockets {
            engine: engine.clone(),
            open: RefCell::default(),
            endpoints: RefCell::default(),
            relays: RefCell::default(),
            accepting: Rc::new(()),
        }
    }

    /// Starts to accept from a socket.
    pub(crate) fn open(&self, socket: ServedSocket) {
        let core = &self.engine.context.core;
        let accepting = self.accepting.clone();
        match socket {
            ServedSocket::Stream(opened) => {
                let (source, closing) = self.add(opened.listener);
                let accepts = accept(self.engine.clone(), opened, source, closing);
                core.spawn(async move {
                    accepts.await;
                    drop(accepting);
                });
            }
            ServedSocket::Quic(opened) => {
                let mut endpoints = self.endpoints.borrow_mut();
                endpoints.retain(|endpoint| !endpoint.has_ended());
                // Its connections stay when only the listener's settings change.
                if let Some(open) = endpoints.iter().find(|open| open.serves(&opened.socket)) {
                    return open.reopen(opened.listener);
                }
                let endpoint = OpenEndpoint::new(&self.engine.context, &opened);
                endpoints.push(endpoint.clone());
                let serves = serve_socket(self.engine.clone(), opened, endpoint);
                core.spawn(async move {
                    serves.await;
                    drop(accepting);
                });
            }
            ServedSocket::Relayed(opened) => {
                let mut relays = self.relays.borrow_mut();
                relays.retain(|relay| !relay.has_ended());
                // Its sessions stay when only the listener's settings change.
                if relays.iter().any(|open| open.reopen(&opened.socket, &opened.settings)) {
                    return;
                }
                let relay = RelayListener::new(&self.engine.context, opened);
                relays.push(OpenRelay::of(&relay));
                let serves = relay_datagrams(self.engine.clone(), relay);
                core.spawn(async move {
                    serves.await;
                    drop(accepting);
                });
            }
        }
    }

    fn add(&self, listener: u64) -> (Rc<Source>, Rc<Cell<ClosingMode>>) {
        let source = self.engine.context.core.add_source();
        let closing = Rc::new(Cell::new(ClosingMode::No));
        let open = OpenSocket { listener, source: source.clone(), closing: closing.clone() };
        self.open.borrow_mut().push(open);
        (source, closing)
    }

    /// Executes the commands received since the last call.
    pub(crate) fn execute_commands(&self, commands: &AcceptCommands) {
        for command in commands.take() {
            match command {
                AcceptCommand::Open(socket) => self.open(socket),
                AcceptCommand::Limits(set, cores) => self.engine.context.set_limits(&set, cores),
                AcceptCommand::ReceiveDatagrams => {
                    self.endpoints.borrow().iter().for_each(OpenEndpoint::receive);
                }
                AcceptCommand::Connections(asker) => {
                    let context = &self.engine.context;
                    let (count, listed) = context.connections.read();
                    // The asking thread may have stopped waiting.
                    let _ = asker.send((count, listed, context.core.now()));
                }
                AcceptCommand::Close(number, how) => {
                    let mut open = self.open.borrow_mut();
                    for socket in open.extract_if(.., |socket| socket.listener == number) {
                        socket.closing.set(how);
                        self.engine.context.core.mark_readable(&socket.source);
                    }
                    // Commands to open the same socket again follow.
                    self.endpoints.borrow().iter().for_each(|endpoint| endpoint.close(number));
                    self.relays.borrow().iter().for_each(|relay| relay.close(number));
                }
            }
        }
    }

    /// Makes every accepting task check whether the server is draining.
    pub(crate) fn mark_readable(&self) {
        self.open.borrow().iter().for_each(|socket| self.engine.context.core.mark_readable(&socket.source));
        self.endpoints.borrow().iter().for_each(OpenEndpoint::wake);
        self.relays.borrow().iter().for_each(OpenRelay::wake);
    }

    /// Returns a counter whose references show whether any socket is still accepted from: then it has more
    /// owners than `self` and the caller.
    pub(crate) fn accepting(&self) -> Rc<()> {
        self.accepting.clone()
    }
}

/// Accepts until the server drains or the socket is closed; then accepts the connections in the kernel's
/// queue and releases the socket.
async fn accept<S: Service>(
    engine: Rc<Engine<S>>,
    opened: AcceptSocket,
    source: Rc<Source>,
    closing: Rc<Cell<ClosingMode>>,
) {
    let core = engine.context.core.clone();
    let listening = &opened.socket;
    if listening.is_tcp() {
        sys::defer_accept(listening.fd(), opened.defers());
    }
    register_listener(&core, listening.fd(), &source).await;
    listening.add_acceptor(&core);
    let mut batch = AcceptBatch::new(core.now());
    while closing.get() != ClosingMode::AtOnce {
        let is_ending = engine.context.is_draining.get() || closing.get() != ClosingMode::No;
        // Before the end, all connections in the queue are accepted.
        let max = if is_ending { ACCEPT_BATCH } else { batch.size };
        let mut accepted = 0;
        let pause = accept_batch(&engine, &opened, max, &mut accepted);
        batch.adapt(accepted, core.now());
        match pause {
            AcceptPause::Empty if is_ending => break,
            AcceptPause::Batch if is_ending => core.yield_now().await,
            // The kernel reports a queue that is not empty again.
            AcceptPause::Empty | AcceptPause::Batch => wait(&core, &source, true).await,
            AcceptPause::Full => {
                // New connections wait in the kernel's queue; the release of a permit wakes this task.
                core.unwatch(listening.fd());
                engine.context.connection_limit.waiting.borrow_mut().push(source.clone());
                listening.wake_others(&core);
                // A deadline too: a connection may have become idle long enough to be closed.
                source.set_deadline(core.now() + FULL_CHECK_INTERVAL);
                wait(&core, &source, false).await;
                source.set_deadline(Moment::NEVER);
                engine
                    .context
                    .connection_limit
                    .waiting
                    .borrow_mut()
                    .retain(|waiting| !Rc::ptr_eq(waiting, &source));
                register_listener(&core, listening.fd(), &source).await;
            }
            AcceptPause::Exhausted => {
                core.unwatch(listening.fd());
                core.sleep(EXHAUSTED_PAUSE).await;
                register_listener(&core, listening.fd(), &source).await;
            }
        }
    }
    listening.remove_acceptor(&core);
    core.unwatch(listening.fd());
    core.deregister(&source);
}

/// Registers the listener; retries while the kernel has no memory for that.
async fn register_listener(core: &Core, listener: &OwnedFd, source: &Rc<Source>) {
    while core.watch_listener(listener, source).is_err() {
        core.sleep(EXHAUSTED_PAUSE).await;
    }
}

/// Waits for a connection, a permit or the deadline; if `rung`, also for a wake-up by another core.
async fn wait(core: &Core, source: &Rc<Source>, rung: bool) {
    source.clear(READ);
    source.take_expired();
    let mut waited = false;
    std::future::poll_fn(|_| {
        // A spurious wake-up is harmless: there is nothing to accept.
        if source.ready() & READ != 0
            || source.take_expired()
            || (std::mem::replace(&mut waited, true) && rung)
        {
            return std::task::Poll::Ready(());
        }
        source.wait_read(core.current());
        std::task::Poll::Pending
    })
    .await;
}

enum AcceptPause {
    Empty,
    Batch,
    Full,
    Exhausted,
}

/// The number of connections to accept in one wake-up: about as many as there were before, so that few calls find the
/// queue empty.
struct AcceptBatch {
    size: usize,
    /// Number of whole batches in a row within one millisecond.
    repeats: usize,
    now: Moment,
}

impl AcceptBatch {
    fn new(now: Moment) -> AcceptBatch {
        AcceptBatch { size: 1, repeats: 0, now }
    }

    /// Adapts the size when `accepted` connections were in the queue or fit the batch.
    fn adapt(&mut self, accepted: usize, now: Moment) {
        let is_soon = std::mem::replace(&mut self.now, now) == now;
        if accepted < self.size {
            (self.size, self.repeats) = (accepted.max(1), 0);
            return;
        }
        self.repeats = if is_soon { self.repeats + 1 } else { 0 };
        if self.repeats >= BATCH_REPEATS {
            (self.size, self.repeats) = ((self.size * 2).min(ACCEPT_BATCH), 0);
        }
    }
}

/// Accepts at most `max` connections, and counts them.
fn accept_batch<S: Service>(
    engine: &Rc<Engine<S>>,
    opened: &AcceptSocket,
    max: usize,
    accepted: &mut usize,
) -> AcceptPause {
    let context = &engine.context;
    let listener = opened.socket.fd();
    let is_tcp = opened.socket.is_tcp();
    let make_room = (context.connection_limit.max.get() / 16).clamp(1, MAKE_ROOM_MAX);
    let pressure = context.core.memory().pressure();
    // Under pressure, incomplete handshakes must not keep memory from new connections.
    if pressure >= Pressure::Critical && has_pending_connection(listener) {
        context.core.close_idle_with_memory(make_room);
    }
    if pressure == Pressure::Exhausted {
        return AcceptPause::Exhausted;
    }
    // Idle connections hold no memory yet.
    let starts = opened.defers() && pressure < Pressure::High;
    for _ in 0..max {
        if context.connection_limit.taken.get() >= context.connection_limit.max.get() {
            // Close idle connections only if a client is waiting.
            if !has_pending_connection(listener) {
                return AcceptPause::Empty;
            }
            if context.core.close_idle(make_room) == 0 {
                return AcceptPause::Full;
            }
        }
        match accept_one(listener) {
            Ok((socket, peer)) => {
                *accepted += 1;
                context.counters.connections.add(1);
                let peer = if is_tcp { peer } else { Peer::Unix };
                // If the proxy names its clients, these are counted instead, when their addresses are known.
                let names_clients = opened.proxy_protocol.as_ref().is_some_and(|from| from.contains(peer));
                let gate = context.gate.as_ref().filter(|_| !names_clients);
                let Ok(gate_permit) = gate.map_or(Ok(None), |gate| gate.0.acquire(peer)) else { continue };
                let Ok(stream) = Stream::new(&context.core, socket) else { return AcceptPause::Exhausted };
                let mut idle = IdleClient::new(engine, Link::Plain(stream), peer, opened.h2c);
                idle.keep_gate_permit(gate_permit);
                idle.list(opened.listener, opened.key);
                match (&opened.proxy_protocol, &opened.streams) {
                    (Some(sources), streams) => {
                        AwaitingProxyHeader::park(idle, sources.clone(), streams.clone(), opened.is_tls)
                    }
                    (None, Some(streams)) => preread::begin(idle, streams, opened.is_tls),
                    (None, None) if opened.is_tls => AwaitingHandshake::park(idle, None),
                    (None, None) if starts => idle.start(),
                    (None, None) => idle.park(),
                }
            }
            Err(Errno::AGAIN) => return AcceptPause::Empty,
            Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                if context.core.close_idle(make_room) == 0 {
                    return AcceptPause::Exhausted;
                }
            }
            // An error of that connection, or a signal: the next one may succeed.
            Err(_) => {}
        }
    }
    AcceptPause::Batch
}

fn has_pending_connection(listener: &OwnedFd) -> bool {
    let mut poll = [PollFd::new(listener, PollFlags::IN)];
    matches!(rustix::event::poll(&mut poll, Some(&Timespec::default())), Ok(1))
}

fn accept_one(listener: &OwnedFd) -> Result<(OwnedFd, Peer), Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let (socket, address) = rustix::net::acceptfrom_with(listener, flags)?;
    let peer = address.and_then(|address: SocketAddrAny| SocketAddr::try_from(address).ok());
    Ok((socket, peer.map_or(Peer::Unix, Peer::Tcp)))
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use rustix::net::sockopt;

    use super::*;

    #[test]
    fn batches_follow_the_connections_in_the_queue() {
        let mut batch = AcceptBatch::new(Moment(0));
        let adapt = |batch: &mut AcceptBatch, accepted, now| {
            batch.adapt(accepted, Moment(now));
            batch.size
        };
        assert!((1..50).all(|now| adapt(&mut batch, 1, now) == 1), "one now and then");
        let many: Vec<usize> = (0..40)
            .map(|_| {
                let size = batch.size;
                adapt(&mut batch, size, 50)
            })
            .collect();
        assert!(many.is_sorted() && many.ends_with(&[ACCEPT_BATCH; 20]), "{many:?}");
        assert_eq!(adapt(&mut batch, 5, 50), 5, "the queue was empty");
        assert_eq!(adapt(&mut batch, 0, 50), 1);
    }

    #[test]
    fn accepted_loopback_connection_uses_reno() {
        let listener = Listener::bind(BindAddress::Tcp(([127, 0, 0, 1], 0).into()).into(), 1).unwrap();
        let BindAddress::Tcp(address) = *listener.address() else { unreachable!() };
        let _client = TcpStream::connect(address).unwrap();
        let socket = listener.sockets_of(0, 1).next().unwrap();
        let (accepted, _) = accept_one(socket.fd()).unwrap();
        assert_eq!(
            sockopt::tcp_congestion(&accepted).unwrap(),
            "reno",
            "a socket accepted from the listener"
        );
    }
}
