//! A configured stream on one core.

use std::rc::Rc;
use std::sync::Arc;

use engine::clients::access::ClientAccess;
use logging::access::stream::RelayedConnection;
use net::{Peer, TlsAcceptor};
use proxy::Group;
use shapes::host::HostPattern;
use telemetry::metrics::StreamCounters;
use times::Millis;

use crate::streams::limits::StreamLimits;

/// A configured stream on one core.
pub(crate) struct StreamRoute {
    pub(super) label: String,
    pub(super) names: Vec<HostPattern>,
    pub(super) group: Group,
    pub(super) limits: StreamLimits,
    /// Decrypts TLS of clients, if the stream does.
    pub(super) tls: Option<TlsAcceptor>,
    pub(super) access: ClientAccess,
    pub(super) connect_timeout: Millis,
    pub(super) idle_timeout: Millis,
    /// Answers to each datagram, if known.
    pub(super) responses: Option<u32>,
    /// Whether connections are written to the access logs.
    pub(super) logs_connections: bool,
    /// Counters by upstream server.
    pub(super) servers: Vec<Arc<StreamCounters>>,
    /// Counters of connections without an upstream server.
    pub(super) without_upstream: Arc<StreamCounters>,
}

impl StreamRoute {
    /// Whether a client may use the stream.
    pub(super) fn admits(&self, client: Peer) -> bool {
        self.access.admits(client)
    }
}

/// Receives the record of each connection when it ends.
pub(crate) type StreamLog = Rc<dyn Fn(&RelayedConnection<'_>)>;
