//! Records of connections and sessions, which are counted and logged when they end.

use std::cell::Cell;
use std::rc::Rc;

use logging::access::stream::{RelayedConnection, RelayedDatagrams, StreamEnd};
use net::{Core, DatagramTap, DropReason, Peer, RelaySide};
use telemetry::metrics::StreamCounters;

use crate::streams::configured::{StreamLog, StreamRoute};

/// Record of a connection. Dropping it logs and counts the connection, also when the server stops.
pub(super) struct StreamReport {
    core: Core,
    client: Peer,
    name: Option<Box<str>>,
    started_us: u64,
    pub(super) stream: Rc<StreamRoute>,
    /// The server, or the last one that was tried.
    pub(super) upstream: Cell<Option<usize>>,
    pub(super) connect_us: Cell<Option<u64>>,
    received: Cell<u64>,
    sent: Cell<u64>,
    datagrams: Cell<Option<RelayedDatagrams>>,
    pub(super) end: Cell<StreamEnd>,
    log: StreamLog,
}

impl StreamReport {
    /// Begins the record of a connection with the server name `name`.
    pub(super) fn new(
        core: &Core,
        client: Peer,
        name: Option<Box<str>>,
        log: StreamLog,
        stream: Rc<StreamRoute>,
    ) -> StreamReport {
        StreamReport {
            core: core.clone(),
            client,
            name,
            started_us: core.now_us(),
            stream,
            upstream: Cell::new(None),
            connect_us: Cell::new(None),
            received: Cell::new(0),
            sent: Cell::new(0),
            datagrams: Cell::new(None),
            end: Cell::new(StreamEnd::Stopped),
            log,
        }
    }

    /// Makes the record that of a session over UDP.
    pub(super) fn over_udp(self) -> StreamReport {
        self.datagrams.set(Some(RelayedDatagrams::default()));
        self
    }

    fn counters(&self) -> &StreamCounters {
        match self.upstream.get() {
            Some(server) => &self.stream.servers[server],
            None => &self.stream.without_upstream,
        }
    }

    /// Counts bytes that were sent to a side.
    pub(super) fn count_bytes(&self, side: RelaySide, bytes: usize) {
        let counters = self.counters();
        let bytes = bytes as u64;
        let (own, all) = match side {
            RelaySide::Upstream => (&self.received, &counters.received_bytes),
            RelaySide::Client => (&self.sent, &counters.sent_bytes),
        };
        own.set(own.get() + bytes);
        all.add(bytes);
    }
}

impl DatagramTap for StreamReport {
    fn sent(&self, to: RelaySide, datagrams: u64, bytes: usize) {
        self.count_bytes(to, bytes);
        let mut own = self.datagrams.get().unwrap_or_default();
        let (own_count, all) = match to {
            RelaySide::Upstream => (&mut own.received, &self.counters().received_datagrams),
            RelaySide::Client => (&mut own.sent, &self.counters().sent_datagrams),
        };
        *own_count += datagrams;
        all.add(datagrams);
        self.datagrams.set(Some(own));
    }

    fn dropped(&self, reason: DropReason, datagrams: u64) {
        self.counters().count_dropped(reason, datagrams);
    }
}

impl Drop for StreamReport {
    fn drop(&mut self) {
        self.counters().count_end(self.end.get());
        // A flood of forged clients must not fill the logs.
        if !self.stream.logs_connections || self.end.get() == StreamEnd::GivenUp {
            return;
        }
        let upstream = self.upstream.get().map(|server| self.stream.group.display_name(server));
        (self.log)(&RelayedConnection {
            stream: &self.stream.label,
            client: self.client,
            server_name: self.name.as_deref().unwrap_or_default(),
            upstream: upstream.map(|shown| &**shown).unwrap_or_default(),
            received_bytes: self.received.get(),
            sent_bytes: self.sent.get(),
            datagrams: self.datagrams.get(),
            connect_us: self.connect_us.get(),
            duration_us: self.core.now_us().saturating_sub(self.started_us),
            end: self.end.get(),
            unix_s: self.core.unix_s(),
        });
    }
}
