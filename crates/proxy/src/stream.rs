//! Connections to upstream servers for streams that are relayed without HTTP.

use std::rc::Rc;
use std::task::Context;

use http::path::EmptySegments;
use http::{Head, Method, RequestIds, Status};
use net::proxy_protocol::{self, Endpoints};
use net::{Client, Link, StreamClient};
use times::Millis;

use crate::dial::{DialOptions, dial};
use crate::group::{Group, UpstreamError, UpstreamEvent, UpstreamInUse};
use crate::retry;
use crate::selection::{Requester, SelectError, Selection};
use crate::template::TemplateContext;

/// Maximum servers tried for one client.
const ATTEMPTS_MAX: usize = 3;

/// A connection to the server chosen for a client. Counts as a request of that server until it is dropped.
pub struct UpstreamStream<'g> {
    /// The connection.
    pub link: Link,
    /// Index of the server in the group's options.
    pub server: usize,
    /// Time to connect, in microseconds.
    pub connect_us: u64,
    _selection: Selection<'g>,
    _in_use: UpstreamInUse<'g>,
}

/// Reason for which a client gets no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenStreamError {
    /// No server can be used or connected to: the reason, and the index of the last server tried.
    Failed(&'static str, Option<usize>),
    /// The client has disconnected.
    ClientDisconnected,
}

/// The client of a stream, for choosing a server.
struct StreamRequester<'c> {
    client: &'c StreamClient,
    /// An empty head, because a stream has none.
    head: Head,
}

impl Requester for StreamRequester<'_> {
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
        let attempts = group.shared.server_count().min(ATTEMPTS_MAX);
        let mut tried = Vec::new();
        let mut failed = OpenStreamError::Failed("no upstream is in service", None);
        while tried.len() < attempts {
            let chosen = group.balancer.choose(&group.shared, &group.core, &requester, connect, &tried).await;
            let selection = match chosen {
                Ok(selection) => selection,
                Err(SelectError::ClientDisconnected) => return Err(OpenStreamError::ClientDisconnected),
                Err(SelectError::NoServer(no_server)) if tried.is_empty() => {
                    self.report_failure(None, name, no_server.reason, Some(no_server.status));
                    return Err(OpenStreamError::Failed(no_server.reason, None));
                }
                Err(SelectError::NoServer(_)) => break,
            };
            let server = selection.server;
            let in_use = group.track_request(server);
            let mut header = Vec::new();
            if let Some(version) = group.shared.options.proxy_protocol {
                proxy_protocol::write(&mut header, version, requester.endpoints());
            }
            let how =
                DialOptions { first_address: group.next_address_index(), preface: &header, http2: false };
            let since_us = group.core.now_us();
            let deadline = group.core.now() + connect;
            let upstream = &group.shared.servers[server];
            let dialled = dial(&group.core, &group.shared.options, server, upstream, &how, deadline).await;
            match dialled {
                Ok((link, _)) => {
                    let connect_us = group.core.now_us().saturating_sub(since_us);
                    group.counters[server].connect.observe(connect_us);
                    group.record_success(&selection);
                    return Ok(UpstreamStream {
                        link,
                        server,
                        connect_us,
                        _selection: selection,
                        _in_use: in_use,
                    });
                }
                Err(failure) => {
                    group.record_failure(&selection, &failure);
                    tried.push(server);
                    let (status, reason) = retry::error_response(&failure);
                    let status = (tried.len() == attempts).then_some(status);
                    self.report_failure(Some(server), name, reason, status);
                    failed = OpenStreamError::Failed(reason, Some(server));
                }
            }
        }
        Err(failed)
    }

    fn report_failure(
        &self,
        server: Option<usize>,
        name: &str,
        reason: &'static str,
        status: Option<Status>,
    ) {
        let socket = server.and_then(|server| self.0.socket(server));
        let server = server.map(|server| self.0.shared.display_name(server));
        self.0.report(&UpstreamEvent::UpstreamError(UpstreamError {
            server,
            socket,
            target: name.as_bytes(),
            reason,
            repairable: None,
            status,
        }));
    }
}
