//! Upstream side of an attempt: a connection or stream to which the request head is being sent.

use std::cell::RefCell;

use http::{BodySize, Fields, Method, Reject, Status};
use net::{Fault, MuxRequest};
use times::Moment;

use super::{BoundProxy, CgiRequest, OpenedUpstream, UpstreamAttempt};
use crate::cgi_side::CgiSide;
use crate::failure::AttemptFailure;
use crate::options::{CgiProtocol, UpstreamProtocol};
use crate::request::{CgiContext, SentHead};
use crate::selection::Requester;
use crate::upstream_connection::UpstreamConnection;
use crate::upstream_side::{Http1Side, UpstreamSide};

impl BoundProxy {
    /// Sends the request head to a server.
    pub(super) async fn open_upstream(
        &self,
        requester: &impl Requester,
        attempt: &UpstreamAttempt<'_>,
        connect_by: Moment,
    ) -> Result<OpenedUpstream<'_>, AttemptFailure> {
        let server = attempt.server;
        if self.group.shared.options.servers[server].shares_connections() {
            let connects = self.rules.request.asks_for_upgrade(&requester.context(""))
                && Box::pin(self.group.supports_connect(server, connect_by)).await?;
            if connects || !self.needs_http1(requester, server) {
                let opened = self.open_stream(requester, attempt, connect_by, connects);
                return Box::pin(opened).await;
            }
        }
        let (connection, room) = self.group.connect(requester, server, attempt.is_new, connect_by).await?;
        let (side, sent) = self.send_on(requester, attempt, connection)?;
        Ok(OpenedUpstream { side, concurrent_task: room, sent })
    }

    fn send_variables(
        &self,
        requester: &impl Requester,
        server: usize,
        connection: UpstreamConnection,
        protocol: CgiProtocol,
        cgi: CgiRequest<'_>,
    ) -> Result<UpstreamSide, AttemptFailure> {
        let context = requester.context(&self.group.shared.servers[server].authority);
        let length = match (cgi.length, context.head.body) {
            (Some(length), _) | (None, BodySize::Known(length)) => length,
            (None, BodySize::None) => 0,
            (None, BodySize::Unknown) => {
                let reject = Reject::new(Status::LENGTH_REQUIRED, "a request body needs a length here");
                return Err(Fault::Reject(reject).into());
            }
        };
        let local = requester.endpoints().map(|endpoints| endpoints.destination);
        let more = CgiContext { script: cgi.script, length, local };
        let variables = self.rules.request.variables(&context, &more, &self.rules.options.cgi);
        let variables = variables.map_err(Fault::Reject)?;
        let keep = self.group.shared.options.keeps_connections();
        let errors = self.group.error_sink(server);
        let side = CgiSide::new(connection, protocol, &variables, keep, errors);
        let side = side.map_err(|reason| Fault::Reject(Reject::new(Status::FIELDS_TOO_LARGE, reason)))?;
        let mut side = UpstreamSide::Cgi(Box::new(side));
        if context.head.body == BodySize::None {
            side.finish(Fields::new);
        }
        Ok(side)
    }

    /// Sends the request head on a kept connection; `None` if there is none, or if connections are shared
    /// (HTTP/2, HTTP/3).
    #[inline]
    pub(super) fn send_on_kept(
        &self,
        requester: &impl Requester,
        attempt: &UpstreamAttempt<'_>,
    ) -> Result<Option<OpenedUpstream<'_>>, AttemptFailure> {
        if matches!(
            self.group.shared.options.servers[attempt.server].protocol,
            UpstreamProtocol::Http2 | UpstreamProtocol::Http3 | UpstreamProtocol::Tcp | UpstreamProtocol::Udp
        ) {
            return Ok(None);
        }
        let Some(connection) = self.group.take_kept(requester, attempt.server) else { return Ok(None) };
        let (side, sent) = self.send_on(requester, attempt, connection)?;
        Ok(Some(OpenedUpstream { side, concurrent_task: RefCell::new(None), sent }))
    }

    /// Writes the request head to a connection's output.
    #[inline]
    fn send_on(
        &self,
        requester: &impl Requester,
        attempt: &UpstreamAttempt<'_>,
        connection: UpstreamConnection,
    ) -> Result<(UpstreamSide, SentHead), AttemptFailure> {
        let &UpstreamAttempt { server, awaits_continue, cgi, .. } = attempt;
        let server_options = &self.group.shared.options.servers[server];
        if let UpstreamProtocol::Cgi(protocol) = server_options.protocol {
            let side = self.send_variables(requester, server, connection, protocol, cgi)?;
            return Ok((side, SentHead::default()));
        }
        let context = requester.context(&self.group.shared.servers[server].authority);
        let mut side = Http1Side::new(connection, context.head.body == BodySize::Unknown);
        let sent = self.rules.request.write(&mut side.connection.buffers.out, &context, awaits_continue);
        let sent = sent.map_err(Fault::Reject)?;
        Ok((UpstreamSide::H1(side), sent))
    }

    /// Whether the request may switch protocols and therefore needs an HTTP/1 connection, because the server
    /// does not support extended CONNECT over HTTP/2. Only possible with TLS; without it such a server speaks
    /// HTTP/2 alone, as a server with HTTP/3 speaks nothing else.
    fn needs_http1(&self, requester: &impl Requester, server: usize) -> bool {
        let options = &self.group.shared.options.servers[server];
        let has_http1 = options.tls.is_some() && options.protocol != UpstreamProtocol::Http3;
        has_http1 && self.rules.request.asks_for_upgrade(&requester.context(""))
    }

    /// Opens a stream. A protocol switch becomes an extended CONNECT if the server `connects`; otherwise it is omitted.
    async fn open_stream(
        &self,
        requester: &impl Requester,
        attempt: &UpstreamAttempt<'_>,
        connect_by: Moment,
        connects: bool,
    ) -> Result<OpenedUpstream<'_>, AttemptFailure> {
        let &UpstreamAttempt { server, awaits_continue, .. } = attempt;
        let upstream = &self.group.shared.servers[server];
        let context = requester.context(&upstream.authority);
        let rules = &self.rules.request;
        let switch = rules.upgrade(&context).filter(|_| connects);
        let (head, sent) = rules.stream_head(&context, awaits_continue, switch).map_err(Fault::Reject)?;
        let protocol = sent.upgrade.then_some(&head.protocol[..]);
        let (method, method_name) = match protocol {
            Some(_) => (Method::Connect, &b"CONNECT"[..]),
            None => (context.head.method, context.head.method_name.of(context.bytes)),
        };
        let request = MuxRequest {
            method,
            method_name,
            scheme: if upstream.tls.is_some() { b"https" } else { b"http" },
            authority: &head.authority,
            path: &head.path,
            lines: &head.lines,
            has_no_body: context.head.body == BodySize::None && protocol.is_none(),
            protocol,
        };
        let stream = self.group.open_stream(server, &request, connect_by).await?;
        Ok(OpenedUpstream {
            side: UpstreamSide::Stream(Box::new(stream)),
            concurrent_task: RefCell::new(None),
            sent,
        })
    }
}
