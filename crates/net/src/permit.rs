//! What the connections of one core share, and the permit that each of them holds.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use crate::address::Peer;
use crate::connections::{ConnectionEntry, ConnectionList};
use crate::core::Core;
use crate::counters::Counters;
use crate::filters::DefaultLines;
use crate::gate::{ConnectionPlace, SharedGate};
use crate::heavy::HEAVY_BYTES;
use crate::options::{Limits, ServingLimits, Timeouts};
use crate::page::ErrorPages;
use crate::source::Source;
use crate::tls::TlsAcceptor;
use http::machine::ServerMachine;

use crate::work::BufferPool;

/// What a connection holds while nothing happens on it.
const PARKED_BYTES: usize = 512;

/// What all connections of one core share.
pub(crate) struct Context {
    pub(crate) core: Core,
    /// They, the timeouts and what follows may change while the server runs ([`crate::Listeners::set_limits`]).
    pub(crate) limits: Cell<Limits>,
    pub(crate) timeouts: Cell<Timeouts>,
    /// Whether clients of HTTP/1.1 get 103 (Early Hints).
    pub(crate) hints_over_http1: Cell<bool>,
    pub(crate) works: Rc<BufferPool<ServerMachine>>,
    /// The buffer in which multiplexed connections make frames, while none of them uses it.
    pub(crate) frames: Cell<Vec<u8>>,
    /// How clients speak TLS, if any do.
    pub(crate) tls: Option<TlsAcceptor>,
    /// Who may have how many connections.
    pub(crate) gate: Option<SharedGate>,
    pub(crate) counters: Arc<Counters>,
    /// The server is stopping: answers say `Connection: close`.
    pub(crate) draining: Cell<bool>,
    pub(crate) connection_limit: ConnectionLimit,
    pub(crate) connections: ConnectionList,
    /// How many responses are being compressed.
    pub(crate) encoders: Rc<Cell<usize>>,
    /// `Server` and `Date` of every response.
    pub(crate) default_lines: DefaultLines,
    /// The pages of errors where no site is known yet.
    pub(crate) pages: Rc<dyn ErrorPages>,
}

impl Context {
    /// Sets what holds from now on: for new connections, and for the next request of those that are open.
    pub(crate) fn set_limits(&self, set: &ServingLimits, cores: usize) {
        self.limits.set(set.limits);
        self.timeouts.set(set.timeouts);
        self.hints_over_http1.set(set.hints_over_http1);
        self.connection_limit.max.set(ConnectionLimit::share(set.limits.connections_max, cores));
        for source in self.connection_limit.waiting.borrow_mut().drain(..) {
            self.core.nudge(&source);
        }
    }
}

/// How many connections a core may hold, and the tasks that wait for one to end.
pub(crate) struct ConnectionLimit {
    pub(crate) max: Cell<usize>,
    pub(crate) taken: Cell<usize>,
    pub(crate) waiting: RefCell<Vec<Rc<crate::source::Source>>>,
}

impl ConnectionLimit {
    pub(crate) fn new(max: usize) -> ConnectionLimit {
        ConnectionLimit { max: Cell::new(max), taken: Cell::new(0), waiting: RefCell::default() }
    }

    /// The part of one of so many cores.
    pub(crate) fn share(connections_max: usize, cores: usize) -> usize {
        connections_max.div_ceil(cores.max(1)).max(1)
    }

    /// Whether new connections wait for a permit: then no connection is kept open between two requests.
    pub(crate) fn crowded(&self) -> bool {
        !self.waiting.borrow().is_empty()
    }
}

/// A connection's place under the limit, and the memory that it holds. Dropping it releases both.
pub(crate) struct ConnectionPermit {
    context: Rc<Context>,
    held_bytes: Cell<usize>,
    source: Rc<Source>,
    /// Its place among those that hold much memory, while it does.
    heavy_place: Cell<Option<u32>>,
    /// Its place among the connections of its client, where these are limited.
    client_place: Option<ConnectionPlace>,
    /// Its place in the list of connections.
    listed: Option<u32>,
    /// The key of the listener that has accepted it.
    listener_key: u64,
}

impl ConnectionPermit {
    /// Takes the permit of a connection, which is watched by `source`.
    pub(crate) fn take(context: &Rc<Context>, source: Rc<Source>) -> ConnectionPermit {
        let connection_limit = &context.connection_limit;
        connection_limit.taken.set(connection_limit.taken.get() + 1);
        context.counters.connections_open.set(connection_limit.taken.get() as u64);
        let permit = ConnectionPermit {
            context: context.clone(),
            held_bytes: Cell::new(0),
            source,
            heavy_place: Cell::new(None),
            client_place: None,
            listed: None,
            listener_key: 0,
        };
        permit.hold(0);
        permit
    }

    /// Keeps its place among the connections of its client.
    pub(crate) fn keep(&mut self, place: Option<ConnectionPlace>) {
        self.client_place = place;
    }

    /// Puts the connection, which a listener has just accepted, into the list.
    pub(crate) fn list(&mut self, (listener, key): (u64, u64), client: Peer) {
        self.listener_key = key;
        let since_ms = self.context.core.now_ms();
        self.listed = Some(self.context.connections.add(ConnectionEntry::new(listener, client, since_ms)));
    }

    pub(crate) fn listener_key(&self) -> u64 {
        self.listener_key
    }

    /// Changes what the list says of it.
    pub(crate) fn describe(&self, change: impl FnOnce(&mut ConnectionEntry)) {
        if let Some(place) = self.listed {
            self.context.connections.change(place, change);
        }
    }

    pub(crate) fn context(&self) -> &Rc<Context> {
        &self.context
    }

    #[cold]
    fn weigh(&self, bytes: usize) {
        self.context.core.memory().heavy.weigh(&self.heavy_place, &self.source, bytes);
    }

    /// Sets how many bytes the connection holds in addition to what every connection holds.
    pub(crate) fn hold(&self, bytes: usize) {
        let after = bytes + PARKED_BYTES;
        let before = self.held_bytes.replace(after);
        if before != after {
            self.context.core.memory().change(before, after);
            if before.max(after) >= HEAVY_BYTES {
                self.weigh(after);
            }
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        if self.heavy_place.get().is_some() {
            self.weigh(0);
        }
        self.listed.into_iter().for_each(|place| self.context.connections.remove(place));
        self.context.core.memory().change(self.held_bytes.get(), 0);
        let connection_limit = &self.context.connection_limit;
        connection_limit.taken.set(connection_limit.taken.get() - 1);
        self.context.counters.connections_open.set(connection_limit.taken.get() as u64);
        if connection_limit.taken.get() < connection_limit.max.get()
            && !connection_limit.waiting.borrow().is_empty()
        {
            for source in connection_limit.waiting.borrow_mut().drain(..) {
                self.context.core.nudge(&source);
            }
        }
    }
}
