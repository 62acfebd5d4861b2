//! State shared by the connections of one core, and the permit that each connection holds.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use crate::address::Peer;
use crate::connections::{ConnectionEntry, ConnectionList};
use crate::core::Core;
use crate::counters::Counters;
use crate::filters::DefaultLines;
use crate::gate::{GatePermit, SharedGate};
use crate::heavy::HEAVY_BYTES;
use crate::options::{Limits, ServingLimits, Timeouts};
use crate::page::ErrorPages;
use crate::source::Source;
use crate::tls::TlsAcceptor;
use http::machine::ServerMachine;
use times::{Millis, Moment};

use crate::buffer_pool::BufferPool;

/// Memory of a parked connection.
const PARKED_BYTES: usize = 512;

/// State shared by all connections of one core.
pub(crate) struct ServingContext {
    pub(crate) core: Core,
    /// Limits, timeouts and hints may change while the server runs ([`crate::Listeners::set_limits`]).
    pub(crate) limits: Cell<Limits>,
    pub(crate) timeouts: Cell<Timeouts>,
    /// Whether HTTP/1.1 clients get 103 (Early Hints).
    pub(crate) hints_over_http1: Cell<bool>,
    pub(crate) buffers: Rc<BufferPool<ServerMachine>>,
    /// Output buffer that multiplexed connections share while none of them uses it.
    pub(crate) shared_frames: Cell<Vec<u8>>,
    /// Field lines of the head that a stream is about to send.
    pub(crate) head_lines: Cell<Vec<u8>>,
    /// Keys of the listeners that serve HTTP/3.
    pub(crate) http3_listeners: RefCell<Vec<u64>>,
    /// TLS settings, if any listener uses TLS.
    pub(crate) tls: Option<TlsAcceptor>,
    /// Limit of connections for each client.
    pub(crate) gate: Option<SharedGate>,
    pub(crate) counters: Arc<Counters>,
    /// Whether the server is stopping, so that responses have `Connection: close`.
    pub(crate) is_draining: Cell<bool>,
    pub(crate) connection_limit: ConnectionLimit,
    pub(crate) connections: ConnectionList,
    /// Sessions over UDP whose clients may be forged.
    pub(crate) unconfirmed_sessions: Cell<usize>,
    /// Number of encoders in use.
    pub(crate) encoders: Rc<Cell<usize>>,
    /// The default lines of `Server` and `Date`.
    pub(crate) default_lines: DefaultLines,
    /// Error pages for requests whose site is not known.
    pub(crate) error_pages: Rc<dyn ErrorPages>,
}

impl ServingContext {
    /// Sets the limits for new connections and for the next requests of open ones.
    pub(crate) fn set_limits(&self, set: &ServingLimits, cores: usize) {
        self.limits.set(set.limits);
        self.timeouts.set(set.timeouts);
        self.hints_over_http1.set(set.hints_over_http1);
        self.connection_limit.max.set(ConnectionLimit::share(set.limits.connections_max, cores));
        for source in self.connection_limit.waiting.borrow_mut().drain(..) {
            self.core.mark_readable(&source);
        }
    }
}

/// Limit of connections of a core, and the tasks that wait for one to end.
pub(crate) struct ConnectionLimit {
    pub(crate) max: Cell<usize>,
    pub(crate) taken: Cell<usize>,
    pub(crate) waiting: RefCell<Vec<Rc<crate::source::Source>>>,
    /// Beginning of the current series of clients over UDP for which there was no room, and the last of them.
    turned_away: Cell<Option<(Moment, Moment)>>,
}

/// A client over UDP for which there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TurnedAway {
    /// The first one for some time: idle connections have to look whether others wait.
    First,
    /// There may be room when it asks again.
    Soon,
    /// Idle connections had their time to end.
    InVain,
}

/// Time in which idle connections end when others wait. A client over UDP asks again within it.
const ROOM_TIME: Millis = Millis(5_000);

impl ConnectionLimit {
    pub(crate) fn new(max: usize) -> ConnectionLimit {
        ConnectionLimit {
            max: Cell::new(max),
            taken: Cell::new(0),
            waiting: RefCell::default(),
            turned_away: Cell::default(),
        }
    }

    /// Returns the share of one core.
    pub(crate) fn share(connections_max: usize, cores: usize) -> usize {
        connections_max.div_ceil(cores.max(1)).max(1)
    }

    /// Whether new connections wait for a permit; if so, no connection is kept open between requests.
    pub(crate) fn has_waiting(&self, now: Moment) -> bool {
        !self.waiting.borrow().is_empty()
            || self.turned_away.get().is_some_and(|(_, last)| now < last + ROOM_TIME)
    }

    /// Notes a client over UDP for which there is no room, so that idle connections end.
    pub(crate) fn turn_away(&self, now: Moment) -> TurnedAway {
        let since = self.turned_away.get().filter(|(_, last)| now < *last + ROOM_TIME);
        let first = since.map_or(now, |(first, _)| first);
        self.turned_away.set(Some((first, now)));
        match since {
            None => TurnedAway::First,
            Some(_) if now < first + ROOM_TIME => TurnedAway::Soon,
            Some(_) => TurnedAway::InVain,
        }
    }
}

/// A permit under the connection limit, with the connection's memory accounting. Released on drop.
pub(crate) struct ConnectionPermit {
    context: Rc<ServingContext>,
    held_bytes: Cell<usize>,
    source: Rc<Source>,
    /// Index in the list of connections that hold much memory, while the connection is one of them.
    heavy_index: Cell<Option<u32>>,
    /// Permit of the client's connection limit, if there is one.
    gate_permit: Option<GatePermit>,
    /// Index in the list of connections.
    list_index: Option<u32>,
    /// Key of the listener that accepted the connection.
    listener_key: u64,
}

impl ConnectionPermit {
    /// Takes a permit for the connection with this source.
    pub(crate) fn take(context: &Rc<ServingContext>, source: Rc<Source>) -> ConnectionPermit {
        let connection_limit = &context.connection_limit;
        connection_limit.taken.set(connection_limit.taken.get() + 1);
        context.counters.connections_open.set(connection_limit.taken.get() as u64);
        let permit = ConnectionPermit {
            context: context.clone(),
            held_bytes: Cell::new(0),
            source,
            heavy_index: Cell::new(None),
            gate_permit: None,
            list_index: None,
            listener_key: 0,
        };
        permit.hold(0);
        permit
    }

    /// Keeps the permit of the client's connection limit.
    pub(crate) fn keep_gate_permit(&mut self, gate_permit: Option<GatePermit>) {
        self.gate_permit = gate_permit;
    }

    /// Adds an accepted connection to the list of connections.
    pub(crate) fn list(&mut self, (listener, key): (u64, u64), client: Peer) {
        self.listener_key = key;
        let since = self.context.core.now();
        self.list_index = Some(self.context.connections.add(ConnectionEntry::new(listener, client, since)));
    }

    pub(crate) fn listener_key(&self) -> u64 {
        self.listener_key
    }

    /// Changes the connection's entry in the list.
    pub(crate) fn update_entry(&self, change: impl FnOnce(&mut ConnectionEntry)) {
        if let Some(place) = self.list_index {
            self.context.connections.change(place, change);
        }
    }

    pub(crate) fn context(&self) -> &Rc<ServingContext> {
        &self.context
    }

    #[cold]
    fn update_memory(&self, bytes: usize) {
        self.context.core.memory().heavy.update(&self.heavy_index, &self.source, bytes);
    }

    /// Sets the memory of the connection, in addition to the minimum of each connection.
    pub(crate) fn hold(&self, bytes: usize) {
        let after = bytes + PARKED_BYTES;
        let before = self.held_bytes.replace(after);
        if before != after {
            self.context.core.memory().change(before, after);
            if before.max(after) >= HEAVY_BYTES {
                self.update_memory(after);
            }
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        if self.heavy_index.get().is_some() {
            self.update_memory(0);
        }
        self.list_index.into_iter().for_each(|place| self.context.connections.remove(place));
        self.context.core.memory().change(self.held_bytes.get(), 0);
        let connection_limit = &self.context.connection_limit;
        connection_limit.taken.set(connection_limit.taken.get() - 1);
        self.context.counters.connections_open.set(connection_limit.taken.get() as u64);
        if connection_limit.taken.get() < connection_limit.max.get()
            && !connection_limit.waiting.borrow().is_empty()
        {
            for source in connection_limit.waiting.borrow_mut().drain(..) {
                self.context.core.mark_readable(&source);
            }
        }
    }
}
