//! The server: one engine per thread, with counters and graceful shutdown.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use times::Millis;

use crate::address::{BindAddress, ListenOptions};
use crate::bind::Listener;
use crate::buffer_pool::{BufferPool, POOL_BYTES_MAX};
use crate::clock::Clock;
use crate::connections::ConnectionList;
use crate::core::Core;
use crate::counters::Counters;
use crate::filters::DefaultLines;
use crate::listener::{AcceptCommands, AcceptingSockets, Listeners, ServedSocket};
use crate::offload::OffloadPools;
use crate::options::Options;
use crate::permit::{ConnectionLimit, ServingContext};
use crate::remote::Remote;
use crate::service::{Engine, Service};

/// A running server.
pub struct Server {
    listeners: Listeners,
    counters: Vec<Arc<Counters>>,
    stop: StopHandle,
    threads: Vec<JoinHandle<io::Result<bool>>>,
}

/// Handle for stopping a server, usable from any thread.
#[derive(Clone)]
pub struct StopHandle {
    draining: Arc<AtomicBool>,
    remotes: Vec<Arc<Remote>>,
    listeners: Listeners,
}

impl StopHandle {
    /// Whether the server is stopping.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Stops accepting, completes requests in progress with `Connection: close`, then ends the engines.
    pub fn drain(&self) {
        // Each core keeps its sockets until it has accepted the connections in the kernel's queue.
        self.listeners.close();
        self.draining.store(true, Ordering::Relaxed);
        for remote in &self.remotes {
            remote.wake_core();
        }
    }
}

/// Time for which idle connections stay open after a stop, for requests already on their way.
const IDLE_GRACE_TIME: Millis = Millis(1_000);
/// Interval at which a draining core checks whether it is done.
const DRAIN_CHECK_INTERVAL: Millis = Millis(20);

/// Interval of checks whether memory can be released.
const MEMORY_CHECK_INTERVAL: Millis = Millis(1_000);
/// Number of releases after a fall: memory kept for a short time, in pools here and elsewhere, becomes free a
/// little later.
const RELEASES_PER_FALL: u32 = 4;

impl Server {
    /// Binds the addresses and starts the engines; `service` is called once on each.
    ///
    /// # Errors
    /// System errors, with the address that could not be bound; or the error of `service`.
    pub fn start<S: Service>(
        options: &Options,
        listens: &[impl Clone + Into<ListenOptions>],
        service: impl Fn(&Core) -> io::Result<S> + Send + Sync + 'static,
    ) -> io::Result<Server> {
        let listens = listens.iter().cloned().map(Into::into);
        let bound = listens.map(|listen| Listener::bind(listen, options.threads));
        Server::serve(options, bound.collect::<io::Result<_>>()?, service)
    }

    /// Starts the engines on bound sockets, for the number of threads in `options`.
    ///
    /// # Errors
    /// System errors, or the error of `service`.
    pub fn serve<S: Service>(
        options: &Options,
        listeners: Vec<Listener>,
        service: impl Fn(&Core) -> io::Result<S> + Send + Sync + 'static,
    ) -> io::Result<Server> {
        let listeners = Listeners::of(listeners);
        let mut server = Server {
            listeners: listeners.clone(),
            counters: Vec::new(),
            stop: StopHandle { draining: Arc::default(), remotes: Vec::new(), listeners: listeners.clone() },
            threads: Vec::new(),
        };
        let pools = OffloadPools::new(options.blocking_threads_max);
        let service = Arc::new(service);
        let cores = options.threads.max(1);
        for index in 0..cores {
            let sockets = listeners.served_sockets(index, cores);
            if let Err(error) = server.start_engine(options, &pools, service.clone(), sockets) {
                // The engines already started have no requests and end.
                server.stop.drain();
                return Err(error);
            }
        }
        Ok(server)
    }

    fn start_engine<S: Service>(
        &mut self,
        options: &Options,
        pools: &OffloadPools,
        service: Arc<impl Fn(&Core) -> io::Result<S> + Send + Sync + 'static>,
        sockets: Vec<ServedSocket>,
    ) -> io::Result<()> {
        let (report, reported) = std::sync::mpsc::channel();
        let counters = Arc::new(Counters::default());
        let options = options.clone();
        let pools = pools.clone();
        let theirs = counters.clone();
        let draining = self.stop.draining.clone();
        let name = format!("komainu-{}", self.threads.len());
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            let core = Core::with_budget(Clock::new(), pools, options.memory.clone())?;
            let service = service(&core)?;
            let commands = Arc::new(AcceptCommands::new(core.remote()));
            // Fails only if the starting thread has stopped waiting.
            let _ = report.send((core.remote(), commands.clone()));
            run_core(&core, &options, sockets, &commands, service, theirs, &draining)
        })?;
        match reported.recv() {
            Ok((remote, commands)) => {
                self.stop.remotes.push(remote);
                self.listeners.add_core(commands);
            }
            Err(_) => return Err(start_error(thread)),
        }
        self.threads.push(thread);
        self.counters.push(counters);
        Ok(())
    }

    /// Returns the bound addresses, with the ports that the kernel chose.
    #[must_use]
    pub fn addresses(&self) -> Vec<BindAddress> {
        self.listeners.addresses()
    }

    /// Returns the listeners, which can be replaced.
    #[must_use]
    pub fn listeners(&self) -> Listeners {
        self.listeners.clone()
    }

    /// Returns the counters of each core.
    #[must_use]
    pub fn counters(&self) -> &[Arc<Counters>] {
        &self.counters
    }

    /// Returns a handle for stopping the server.
    #[must_use]
    pub fn stop_handle(&self) -> StopHandle {
        self.stop.clone()
    }

    /// Waits until every engine has ended. Returns true if all connections ended before the drain timeout.
    ///
    /// # Errors
    /// Returns the error of an engine; fails if one panicked.
    pub fn join(mut self) -> io::Result<bool> {
        let mut drained = true;
        for thread in std::mem::take(&mut self.threads) {
            drained &= thread.join().map_err(|_| io::Error::other("an engine panicked"))??;
        }
        Ok(drained)
    }
}

fn start_error(thread: JoinHandle<io::Result<bool>>) -> io::Error {
    match thread.join() {
        Ok(Err(error)) => error,
        _ => io::Error::other("an engine did not start"),
    }
}

fn run_core<S: Service>(
    core: &Core,
    options: &Options,
    sockets: Vec<ServedSocket>,
    commands: &AcceptCommands,
    service: S,
    counters: Arc<Counters>,
    draining: &AtomicBool,
) -> io::Result<bool> {
    let max = ConnectionLimit::share(options.limits.connections_max, options.threads);
    let context = Rc::new(ServingContext {
        core: core.clone(),
        limits: Cell::new(options.limits),
        timeouts: Cell::new(options.timeouts),
        hints_over_http1: Cell::new(options.hints_over_http1),
        buffers: Rc::new(BufferPool::new(core.memory(), POOL_BYTES_MAX)),
        shared_frames: Cell::default(),
        head_lines: Cell::default(),
        http3_listeners: RefCell::default(),
        tls: options.tls.clone(),
        gate: options.gate.clone(),
        counters: counters.clone(),
        is_draining: Cell::new(false),
        connection_limit: ConnectionLimit::new(max),
        connections: ConnectionList::default(),
        unconfirmed_sessions: Cell::default(),
        encoders: Rc::default(),
        default_lines: DefaultLines::new(options.server),
        error_pages: service.error_pages(),
    });
    let engine = Rc::new(Engine { context: context.clone(), service });
    core.spawn(release_memory_periodically(context.clone(), options.release_memory));
    let open = AcceptingSockets::new(&engine);
    sockets.into_iter().for_each(|socket| open.open(socket));
    let drain_end = Rc::new(Cell::new(None));
    core.run_until(|| {
        counters.panics.set(core.panics());
        open.execute_commands(commands);
        if draining.load(Ordering::Relaxed) && !context.is_draining.replace(true) {
            core.drain();
            open.mark_readable();
            core.spawn(drain(context.clone(), open.accepting(), drain_end.clone()));
        }
        drain_end.get().is_some()
    })?;
    core.drop_tasks();
    Ok(drain_end.get() == Some(DrainEnd::Complete))
}

/// Releases memory after a burst: unused buffers, and what the allocator retains.
async fn release_memory_periodically(context: Rc<ServingContext>, release: Option<fn()>) {
    let mut releases = 0;
    loop {
        context.core.sleep(MEMORY_CHECK_INTERVAL).await;
        context.buffers.trim();
        if context.core.memory().take_release_due() {
            releases = RELEASES_PER_FALL;
        }
        if let (1.., Some(release)) = (releases, release) {
            releases -= 1;
            release();
        }
    }
}

/// Result of [`drain`].
#[derive(Clone, Copy, PartialEq, Eq)]
enum DrainEnd {
    /// All connections have ended.
    Complete,
    TimedOut,
}

/// Waits for the connections to end, including those in the kernel's queue, at most for the drain timeout.
async fn drain(context: Rc<ServingContext>, accepting: Rc<()>, end: Rc<Cell<Option<DrainEnd>>>) {
    let core = &context.core;
    let began = core.now();
    let drain_timeout = context.timeouts.get().drain;
    // The references here and in [`AcceptingSockets`] are not sockets.
    while context.connection_limit.taken.get() > 0 || Rc::strong_count(&accepting) > 2 {
        let spent = core.now() - began;
        if spent >= drain_timeout {
            end.set(Some(DrainEnd::TimedOut));
            return;
        }
        if spent >= IDLE_GRACE_TIME.min(drain_timeout / 2) {
            core.close_parked();
        }
        core.sleep(DRAIN_CHECK_INTERVAL).await;
    }
    end.set(Some(DrainEnd::Complete));
}
