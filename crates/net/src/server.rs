//! The server: one engine a thread, started, counted, drained.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crate::address::Bind;
use crate::clock::Clock;
use crate::conn::{Context, Seats};
use crate::core::Core;
use crate::counters::Counters;
use crate::h1::Engine;
use crate::listener::{self, Listening};
use crate::offload::Pool;
use crate::options::Options;
use crate::remote::Remote;
use crate::service::Service;
use crate::work::Works;

/// A server that runs.
pub struct Server {
    addresses: Vec<Bind>,
    counters: Vec<Arc<Counters>>,
    stop: Stop,
    threads: Vec<JoinHandle<io::Result<bool>>>,
}

/// The way to tell a server to stop; from any thread.
#[derive(Clone)]
pub struct Stop {
    draining: Arc<AtomicBool>,
    remotes: Vec<Arc<Remote>>,
}

impl Stop {
    /// Stops accepting; answers what has been asked, with `Connection: close`; then the engines end.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
        for remote in &self.remotes {
            remote.ring();
        }
    }
}

/// Idle connections get this long after a stop for a request already on its way.
const IDLE_GRACE_MS: u64 = 1_000;
/// How often a draining core looks whether it is done.
const DRAIN_LOOK_MS: u64 = 20;

impl Server {
    /// Binds the addresses and starts the engines; `service` is called once on each.
    ///
    /// # Errors
    /// The system's, with the address that could not be had; or what `service` returned.
    pub fn start<S: Service>(
        options: &Options,
        binds: &[Bind],
        service: impl Fn(&Core) -> io::Result<S> + Send + Sync + 'static,
    ) -> io::Result<Server> {
        let (addresses, listening) = bind_all(binds, options.threads)?;
        let pool = Pool::new(options.blocking_threads_max);
        let service = Arc::new(service);
        let mut stop = Stop { draining: Arc::default(), remotes: Vec::new() };
        let (mut threads, mut counters) = (Vec::new(), Vec::new());
        for (index, sockets) in listening.into_iter().enumerate() {
            let (tell, told) = std::sync::mpsc::channel();
            let counter = Arc::new(Counters::default());
            let (options, pool, service) = (options.clone(), pool.clone(), service.clone());
            let (theirs, draining) = (counter.clone(), stop.draining.clone());
            let thread = std::thread::Builder::new().name(format!("komainu-{index}")).spawn(move || {
                let core = Core::new(Clock::new(options.server), pool)?;
                let service = service(&core)?;
                // Fails only where nobody waits for it any more.
                let _ = tell.send(core.remote());
                run_core(&core, &options, sockets, service, theirs, &draining)
            })?;
            match told.recv() {
                Ok(remote) => stop.remotes.push(remote),
                Err(_) => return Err(why_not_started(thread)),
            }
            threads.push(thread);
            counters.push(counter);
        }
        Ok(Server { addresses, counters, stop, threads })
    }

    /// The addresses served on, with the ports that the kernel chose.
    #[must_use]
    pub fn addresses(&self) -> &[Bind] {
        &self.addresses
    }

    /// The counters of each core.
    #[must_use]
    pub fn counters(&self) -> &[Arc<Counters>] {
        &self.counters
    }

    /// The way to stop it.
    #[must_use]
    pub fn stop(&self) -> Stop {
        self.stop.clone()
    }

    /// Waits until every engine has ended. True where all connections were finished before the drain timeout.
    ///
    /// # Errors
    /// An engine's failure.
    pub fn join(self) -> io::Result<bool> {
        let mut drained = true;
        for thread in self.threads {
            drained &= thread.join().map_err(|_| io::Error::other("an engine panicked"))??;
        }
        for address in &self.addresses {
            if let Bind::Unix(path) = address {
                // Somebody may have removed it already.
                let _ = std::fs::remove_file(path);
            }
        }
        Ok(drained)
    }
}

type PerCore = Vec<Vec<Listening>>;

fn bind_all(binds: &[Bind], threads: usize) -> io::Result<(Vec<Bind>, PerCore)> {
    let mut addresses = Vec::new();
    let mut listening: PerCore = vec![Vec::new(); threads.max(1)];
    for bind in binds {
        let (address, sockets) = listener::bind(bind, listening.len())
            .map_err(|error| io::Error::new(error.kind(), format!("cannot listen on {bind}: {error}")))?;
        addresses.push(address);
        for (core, socket) in listening.iter_mut().zip(sockets) {
            core.push(socket);
        }
    }
    Ok((addresses, listening))
}

fn why_not_started(thread: JoinHandle<io::Result<bool>>) -> io::Error {
    match thread.join() {
        Ok(Err(error)) => error,
        _ => io::Error::other("an engine did not start"),
    }
}

fn run_core<S: Service>(
    core: &Core,
    options: &Options,
    sockets: Vec<Listening>,
    service: S,
    counters: Arc<Counters>,
    draining: &AtomicBool,
) -> io::Result<bool> {
    let max = options.limits.connections_max.div_ceil(options.threads.max(1)).max(1);
    let context = Rc::new(Context {
        core: core.clone(),
        limits: options.limits,
        timeouts: options.timeouts,
        works: Works::default(),
        counters: counters.clone(),
        draining: Cell::new(false),
        seats: Seats::new(max),
    });
    let engine = Rc::new(Engine { context: context.clone(), service });
    let mut listeners = Vec::new();
    for socket in sockets {
        let source = core.add_source();
        core.spawn(listener::accept(engine.clone(), socket, source.clone()));
        listeners.push(source);
    }
    let drained = Rc::new(Cell::new(None));
    core.turn_until(|| {
        counters.panics.set(core.panics());
        if draining.load(Ordering::Relaxed) && !context.draining.replace(true) {
            for source in &listeners {
                core.nudge(source);
            }
            core.spawn(drain(context.clone(), drained.clone()));
        }
        drained.get().is_some()
    })?;
    core.abandon();
    Ok(drained.get().unwrap_or(false))
}

/// Waits for the connections to end, as long as they may.
async fn drain(context: Rc<Context>, drained: Rc<Cell<Option<bool>>>) {
    let core = &context.core;
    let began_ms = core.now_ms();
    let drain_ms = context.timeouts.drain_ms;
    while context.seats.taken.get() > 0 {
        let spent_ms = core.now_ms() - began_ms;
        if spent_ms >= drain_ms {
            drained.set(Some(false));
            return;
        }
        if spent_ms >= IDLE_GRACE_MS.min(drain_ms / 2) {
            core.close_parked();
        }
        core.sleep(DRAIN_LOOK_MS).await;
    }
    drained.set(Some(true));
}
