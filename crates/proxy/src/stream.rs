//! Connections and UDP sockets to upstream servers for streams that are relayed without HTTP.

use std::rc::Rc;
use std::task::Context;

use http::path::EmptySegments;
use http::{Head, Method, RequestIds, Status};
use net::proxy_protocol::{self, Endpoints};
use net::{Client, DatagramClient, DatagramLink, Link, Peer, StreamClient};
use times::{Millis, Moment};

use crate::dial::{DialOptions, dial, dial_datagrams};
use crate::failure::AttemptFailure;
use crate::group::{Group, GroupState, UpstreamError, UpstreamEvent, UpstreamInUse};
use crate::retry;
use crate::selection::{Requester, SelectError, Selection};
use crate::template::TemplateContext;

/// Maximum servers tried for one client.
const ATTEMPTS_MAX: usize = 3;

/// A connection to the server chosen for a client. Counts as a request of that server until it is dropped.
pub struct UpstreamStream<'g, L = Link> {
    /// The connection.
    pub link: L,
    /// Index of the server in the group's options.
    pub server: usize,
    /// Time to connect, in microseconds.
    pub connect_us: u64,
    group: &'g GroupState,
    selection: Selection<'g>,
    _in_use: UpstreamInUse<'g>,
}

/// A UDP socket to the server chosen for a client.
pub type UpstreamDatagrams<'g> = UpstreamStream<'g, Rc<DatagramLink>>;

/// Reason reported for a server that refuses datagrams.
pub const DATAGRAM_REFUSED: &str = "the upstream refused a datagram (ICMP: unreachable)";
/// Reason reported for a server that answers no datagram.
const NO_ANSWER: &str = "the upstream answered no datagram in time";

impl UpstreamDatagrams<'_> {
    /// Records an answer of the server.
    pub fn record_answer(&self) {
        self.group.record_success(&self.selection);
    }

    /// Records that the server has refused a datagram of the stream `name`.
    pub fn record_refusal(&self, name: &str) {
        self.record(name, &AttemptFailure::Connect(DATAGRAM_REFUSED), DATAGRAM_REFUSED);
    }

    /// Records that the server has answered no datagram of a session of the stream `name`.
    pub fn record_silence(&self, name: &str) {
        self.record(name, &AttemptFailure::HeadTimeout, NO_ANSWER);
    }

    fn record(&self, name: &str, failure: &AttemptFailure, reason: &'static str) {
        self.group.record_failure(&self.selection, failure);
        self.group.report_stream_failure(Some(self.server), name, reason, None);
    }
}

/// Reason for which a client gets no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenStreamError {
    /// No server can be used or connected to: the reason, and the index of the last server tried.
    Failed(&'static str, Option<usize>),
    /// The client has disconnected.
    ClientDisconnected,
}

/// The client of a stream.
trait StreamPeer {
    fn peer(&self) -> Peer;
    fn endpoints(&self) -> Option<Endpoints>;
    fn poll_gone(&self, cx: &Context<'_>) -> bool;
}

macro_rules! stream_peer {
    ($client:ty) => {
        impl StreamPeer for $client {
            fn peer(&self) -> Peer {
                <$client>::peer(self)
            }

            fn endpoints(&self) -> Option<Endpoints> {
                <$client>::endpoints(self)
            }

            fn poll_gone(&self, cx: &Context<'_>) -> bool {
                <$client>::poll_gone(self, cx)
            }
        }
    };
}

stream_peer!(StreamClient);
stream_peer!(DatagramClient);

/// The client of a stream, for choosing a server.
struct StreamRequester<'c, C> {
    client: &'c C,
    /// An empty head, because a stream has none.
    head: Head,
}

impl<C: StreamPeer> Requester for StreamRequester<'_, C> {
    fn context<'x>(&'x self, upstream: &'x str) -> TemplateContext<'x> {
        TemplateContext {
            head: &self.head,
            bytes: b"",
            peer: self.client.peer(),
            client: Client::direct(self.client.peer(), false),
            tls: None,
            custom_variables: None,
            empty_segments: EmptySegments::Merge,
            ids: RequestIds::default(),
            user: None,
            upstream,
        }
    }

    fn method(&self) -> Method {
        Method::Connect
    }

    fn has_response_begun(&self) -> bool {
        false
    }

    /// Checks for a reset only: a client that has closed its sending side may wait for the response.
    fn poll_disconnected(&self, cx: &Context<'_>) -> bool {
        self.client.poll_gone(cx)
    }

    fn endpoints(&self) -> Option<Endpoints> {
        self.client.endpoints()
    }
}

impl Group {
    /// Returns the display name of a server (by default its URL). `server` is an index into the options.
    #[must_use]
    pub fn display_name(&self, server: usize) -> &Rc<str> {
        &self.0.display_names[server]
    }

    /// Connects a client to a server of the group, and sends the PROXY protocol header if the group uses it.
    /// A server that cannot be connected to within `connect` is reported and counted as failed, and the
    /// next one is tried. `name` replaces the request target in reports.
    ///
    /// # Errors
    /// No server is in service, none of those tried could be connected to, or the client has left.
    pub async fn open_stream(
        &self,
        client: &StreamClient,
        name: &str,
        connect: Millis,
    ) -> Result<UpstreamStream<'_>, OpenStreamError> {
        let group = &*self.0;
        let requester = StreamRequester { client, head: Head::default() };
        let dial = async |server: usize, deadline: Moment| {
            let mut header = Vec::new();
            if let Some(version) = group.shared.options.proxy_protocol {
                proxy_protocol::write(&mut header, version, client.endpoints());
            }
            let how =
                DialOptions { first_address: group.next_address_index(), preface: &header, is_shared: false };
            let since_us = group.core.now_us();
            let upstream = &group.shared.servers[server];
            let dialled = dial(&group.core, &group.shared.options, server, upstream, &how, deadline).await;
            dialled.map(|(link, _)| {
                group.counters[server].connect.observe(group.core.now_us().saturating_sub(since_us));
                link
            })
        };
        let opened = self.open(&requester, name, connect, &mut Vec::new(), dial).await?;
        group.record_success(&opened.selection);
        Ok(opened)
    }

    /// Opens a UDP socket to a server of the group. A server whose name cannot be resolved within `connect` is
    /// reported and counted as failed, and the next one is tried. `tried` are servers that have refused the
    /// client's datagrams, and becomes those that were tried.
    ///
    /// # Errors
    /// No server is in service or left, or the session must end.
    pub async fn open_datagrams(
        &self,
        client: &DatagramClient,
        name: &str,
        connect: Millis,
        tried: &mut Vec<usize>,
    ) -> Result<UpstreamDatagrams<'_>, OpenStreamError> {
        let group = &*self.0;
        let requester = StreamRequester { client, head: Head::default() };
        let dial = async |server: usize, deadline: Moment| {
            let upstream = &group.shared.servers[server];
            let first_address = group.next_address_index();
            let options = &group.shared.options;
            dial_datagrams(&group.core, options, upstream, first_address, deadline).await.map(Rc::new)
        };
        let opened = self.open(&requester, name, connect, tried, dial).await?;
        if group.shared.options.proxy_protocol.is_some() {
            client.send_proxy_header();
        }
        Ok(opened)
    }

    /// Chooses servers until `dial` connects to one.
    async fn open<L>(
        &self,
        requester: &impl Requester,
        name: &str,
        connect: Millis,
        tried: &mut Vec<usize>,
        dial: impl AsyncFn(usize, Moment) -> Result<L, AttemptFailure>,
    ) -> Result<UpstreamStream<'_, L>, OpenStreamError> {
        let group = &*self.0;
        let attempts = group.shared.server_count().min(ATTEMPTS_MAX);
        let mut failed = OpenStreamError::Failed("no upstream is in service", tried.last().copied());
        while tried.len() < attempts {
            let chosen = group.balancer.choose(&group.shared, &group.core, requester, connect, tried).await;
            let selection = match chosen {
                Ok(selection) => selection,
                Err(SelectError::ClientDisconnected) => return Err(OpenStreamError::ClientDisconnected),
                Err(SelectError::NoServer(no_server)) if tried.is_empty() => {
                    group.report_stream_failure(None, name, no_server.reason, Some(no_server.status));
                    return Err(OpenStreamError::Failed(no_server.reason, None));
                }
                Err(SelectError::NoServer(_)) => break,
            };
            let server = selection.server;
            let in_use = group.track_request(server);
            let since_us = group.core.now_us();
            match dial(server, group.core.now() + connect).await {
                Ok(link) => {
                    let connect_us = group.core.now_us().saturating_sub(since_us);
                    return Ok(UpstreamStream {
                        link,
                        server,
                        connect_us,
                        group,
                        selection,
                        _in_use: in_use,
                    });
                }
                Err(failure) => {
                    group.record_failure(&selection, &failure);
                    tried.push(server);
                    let (status, reason) = retry::error_response(&failure);
                    let status = (tried.len() == attempts).then_some(status);
                    group.report_stream_failure(Some(server), name, reason, status);
                    failed = OpenStreamError::Failed(reason, Some(server));
                }
            }
        }
        Err(failed)
    }
}

impl GroupState {
    /// Reports a failure of a server, or that there is none, for a stream.
    fn report_stream_failure(
        &self,
        server: Option<usize>,
        name: &str,
        reason: &'static str,
        status: Option<Status>,
    ) {
        let socket = server.and_then(|server| self.socket(server));
        let server = server.map(|server| self.shared.display_name(server));
        self.report(&UpstreamEvent::UpstreamError(UpstreamError {
            server,
            socket,
            target: name.as_bytes(),
            reason,
            repairable: None,
            status,
        }));
    }
}
