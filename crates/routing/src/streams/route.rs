//! Selection of the stream for a connection, and relaying.

use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use config::Config;
use engine::clients::access::ClientAccess;
use engine::generations::CoreGeneration;
use engine::stream_listen::key;
use logging::access::stream::{RelayedConnection, StreamEnd};
use net::{
    Core, DropReason, Fault, RelayEnd, StreamChoice, StreamClient, StreamOpening, StreamStart, TlsAcceptor,
};
use proxy::{Group, OpenStreamError};
use shapes::host::HostPattern;
use telemetry::metrics::{CoreMetrics, StreamCounters, StreamLabels};

use crate::streams::configured::{StreamLog, StreamRoute};
use crate::streams::limits::{StreamLimits, StreamPermits};
use crate::streams::report::StreamReport;

/// Streams of one core.
#[derive(Default)]
pub struct StreamRoutes {
    streams: Vec<Rc<StreamRoute>>,
    listeners: Vec<StreamsOfListener>,
}

/// Streams of a listening address.
struct StreamsOfListener {
    key: String,
    /// Indices in [`StreamRoutes::streams`].
    streams: Vec<usize>,
    is_udp: bool,
    /// Whether sites listen at this address too: they get connections that no stream accepts.
    has_sites: bool,
    /// Counters of connections that no stream accepts.
    unmatched: Arc<StreamCounters>,
}

impl StreamRoutes {
    /// Creates the streams of a configuration. `groups` are their upstream servers, `acceptors` decrypt TLS of those that ask
    /// for it, in the same order.
    pub fn new(
        config: &Config,
        groups: &[Group],
        limits: &[StreamLimits],
        acceptors: &[Option<TlsAcceptor>],
        metrics: &CoreMetrics,
    ) -> StreamRoutes {
        let mut table = StreamRoutes::default();
        let counters = |stream: &str, upstream: &str| {
            metrics.stream(&StreamLabels { stream: stream.to_owned(), upstream: upstream.to_owned() })
        };
        for (((stream, group), limits), tls) in config.streams.iter().zip(groups).zip(limits).zip(acceptors) {
            let label = stream.label();
            table.streams.push(Rc::new(StreamRoute {
                names: stream.names.clone(),
                limits: limits.clone(),
                tls: tls.clone(),
                access: ClientAccess::new(stream.allow.as_deref(), [stream.deny.as_slice()]),
                connect_timeout: stream.timeouts.connect.into(),
                idle_timeout: stream.timeouts.idle.into(),
                responses: stream.responses,
                logs_connections: stream.log,
                servers: (0..stream.to.len()).map(|at| counters(&label, group.display_name(at))).collect(),
                without_upstream: counters(&label, ""),
                group: group.clone(),
                label,
            }));
        }
        for (index, stream) in config.streams.iter().enumerate() {
            for listener in &stream.listen {
                let key = key(&listener.address, stream.is_udp());
                match table.listeners.iter_mut().find(|known| known.key == key) {
                    Some(known) => known.streams.push(index),
                    None => table.listeners.push(StreamsOfListener {
                        is_udp: stream.is_udp(),
                        has_sites: !stream.is_udp()
                            && config.listeners().any(|sites| sites.address == listener.address),
                        unmatched: counters("", ""),
                        streams: vec![index],
                        key,
                    }),
                }
            }
        }
        table
    }

    /// Decides whether a connection is relayed, passed to the sites or closed. Connections of streams are
    /// reported to `log` when they end.
    pub(crate) fn choose(
        &self,
        start: &StreamStart<'_>,
        core: &Core,
        log: &StreamLog,
        generation: &Rc<CoreGeneration>,
    ) -> StreamChoice {
        let Some(listener) = self.listeners.iter().find(|listener| listener.key == start.listener) else {
            // The listener belongs to a configuration that has just been replaced.
            return StreamChoice::Close;
        };
        let name = match start.opening {
            StreamOpening::Tls(name) => name,
            _ => None,
        };
        let refuse = |stream: Option<&StreamRoute>, end| {
            stream.map_or(&listener.unmatched, |stream| &stream.without_upstream).count_end(end);
            if stream.is_none_or(|stream| stream.logs_connections) {
                let label = stream.map_or("", |stream| &stream.label);
                log(&RelayedConnection {
                    stream: label,
                    client: start.client,
                    server_name: name.unwrap_or_default(),
                    upstream: "",
                    received_bytes: 0,
                    sent_bytes: 0,
                    datagrams: None,
                    connect_us: None,
                    duration_us: 0,
                    end,
                    unix_s: core.unix_s(),
                });
            }
            if matches!(end, StreamEnd::Unmatched) { StreamChoice::Unrecognized } else { StreamChoice::Close }
        };
        if let StreamOpening::Failed(reason) = start.opening {
            return refuse(None, StreamEnd::Failed(reason));
        }
        let Some(stream) = find_by_name(listener.streams.iter().map(|at| &self.streams[*at]), name) else {
            return if listener.has_sites { StreamChoice::Http } else { refuse(None, StreamEnd::Unmatched) };
        };
        if !stream.admits(start.client) {
            return refuse(Some(stream), StreamEnd::Denied);
        }
        let Ok(places) = stream.limits.acquire(start.client) else {
            return refuse(Some(stream), StreamEnd::TooMany);
        };
        let stream = stream.clone();
        let log = log.clone();
        let generation = generation.clone();
        let name = name.map(Box::from);
        let decrypted = stream.tls.clone();
        let serve: net::ServeStream = Box::new(move |client| {
            let report = StreamReport::new(client.core(), client.peer(), name, log, stream);
            Box::pin(serve(report, client, places, generation))
        });
        match decrypted {
            Some(acceptor) => StreamChoice::Decrypt(acceptor, serve),
            None => StreamChoice::Serve(serve),
        }
    }
}

impl StreamRoutes {
    /// Whether a stream relays datagrams.
    pub(crate) fn has_datagrams(&self) -> bool {
        self.listeners.iter().any(|listener| listener.is_udp)
    }

    /// Returns the stream of a UDP address.
    pub(super) fn datagram_stream(&self, listener: &str) -> Option<&Rc<StreamRoute>> {
        let listener = self.listeners.iter().find(|known| known.key == listener)?;
        listener.streams.first().map(|at| &self.streams[*at])
    }

    /// Counts datagrams that were dropped before they belonged to a session.
    pub(crate) fn count_dropped(&self, listener: &str, reason: DropReason, datagrams: u64) {
        if let Some(stream) = self.datagram_stream(listener) {
            stream.without_upstream.count_dropped(reason, datagrams);
        }
    }
}

/// Returns the stream with exactly this name, else the one with the longest matching wildcard, else the one
/// without names.
fn find_by_name<'s>(
    streams: impl Iterator<Item = &'s Rc<StreamRoute>> + Clone,
    name: Option<&str>,
) -> Option<&'s Rc<StreamRoute>> {
    let fit = |stream: &Rc<StreamRoute>| {
        let name = name?;
        let of_pattern = |pattern: &HostPattern| match pattern {
            HostPattern::Exact(exact) => (exact == name).then_some(usize::MAX),
            HostPattern::Subdomains(end) => {
                (name.len() > end.len() && name.ends_with(end)).then_some(end.len())
            }
        };
        stream.names.iter().filter_map(of_pattern).max()
    };
    let named = streams.clone().filter_map(|stream| Some((fit(stream)?, stream)));
    let named = named.max_by_key(|(length, _)| *length).map(|(_, stream)| stream);
    named.or_else(|| streams.into_iter().find(|stream| stream.names.is_empty()))
}

/// Relays a connection until it ends or its generation of the configuration is closed.
async fn serve(
    report: StreamReport,
    client: StreamClient,
    _places: StreamPermits,
    generation: Rc<CoreGeneration>,
) {
    let _under_way = generation.begin();
    let work = pin!(async {
        report.end.set(relay(&report, client).await);
        Ok::<(), Fault>(())
    });
    // If the generation is closed, the record keeps [`StreamEnd::Stopped`].
    let _ = generation.run_until_closed(work).await;
}

async fn relay(report: &StreamReport, mut client: StreamClient) -> StreamEnd {
    let stream = &*report.stream;
    let opened = stream.group.open_stream(&client, &stream.label, stream.connect_timeout);
    // Boxed because it is needed only until the connection is established.
    let mut upstream = match Box::pin(opened).await {
        Ok(upstream) => upstream,
        Err(OpenStreamError::ClientDisconnected) => return StreamEnd::ClientClosed,
        Err(OpenStreamError::Failed(reason, server)) => {
            report.upstream.set(server);
            client.reset();
            return StreamEnd::Unreachable(reason);
        }
    };
    report.upstream.set(Some(upstream.server));
    report.connect_us.set(Some(upstream.connect_us));
    stream.servers[upstream.server].connections.add(1);
    let moved = |side, bytes| report.count_bytes(side, bytes);
    match client.relay(&mut upstream.link, stream.idle_timeout, moved).await {
        RelayEnd::Closed(side) => StreamEnd::Closed(side),
        RelayEnd::Broken(side) => StreamEnd::Reset(side),
        RelayEnd::Idle => StreamEnd::Idle,
    }
}
