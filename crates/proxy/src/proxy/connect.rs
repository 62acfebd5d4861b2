//! The upstream's side of an attempt: a connection, or a stream, with the request's head on its way.

use std::cell::RefCell;

use http::BodySize;
use net::{Fault, H2Request};

use super::{Proxy, Reached};
use crate::choose::Requester;
use crate::failure::AttemptFailure;
use crate::upstream_side::UpstreamSide;

impl Proxy {
    /// Sends the request's head to a server, over HTTP/1 if `is_new` on a connection made for it. `waits` says whether the body waits for
    /// `100 Continue`.
    pub(super) async fn reach(
        &self,
        requester: &impl Requester,
        waits: bool,
        server: usize,
        is_new: bool,
        connect_by_ms: u64,
    ) -> Result<Reached<'_>, AttemptFailure> {
        if self.is_for_stream(requester, server) {
            return Box::pin(self.open_stream(requester, waits, server, connect_by_ms)).await;
        }
        let (mut connection, room) = self.group.connect(requester, server, is_new, connect_by_ms).await?;
        let context = requester.context(&self.group.shared.servers[server].authority);
        let chunked = context.head.body == BodySize::Unknown;
        let sent = self.rules.request.write(&mut connection.buffers.out, &context, waits);
        let sent = sent.map_err(Fault::Reject)?;
        Ok(Reached { side: UpstreamSide::http1(connection, chunked), room, sent })
    }

    /// Whether the request goes to the server on a stream. One that may switch protocols needs a connection of its own where there can
    /// be one: a server in the clear speaks HTTP/2 alone.
    fn is_for_stream(&self, requester: &impl Requester, server: usize) -> bool {
        let options = &self.group.shared.options.servers[server];
        let switches =
            || options.tls.is_some() && self.rules.request.asks_for_upgrade(&requester.context(""));
        options.http2 && !switches()
    }

    async fn open_stream(
        &self,
        requester: &impl Requester,
        waits: bool,
        server: usize,
        connect_by_ms: u64,
    ) -> Result<Reached<'_>, AttemptFailure> {
        let upstream = &self.group.shared.servers[server];
        let context = requester.context(&upstream.authority);
        let (head, sent) = self.rules.request.stream_head(&context, waits).map_err(Fault::Reject)?;
        let request = H2Request {
            method: context.head.method,
            method_name: context.head.method_name.of(context.bytes),
            scheme: if upstream.tls.is_some() { b"https" } else { b"http" },
            authority: &head.authority,
            path: &head.path,
            lines: &head.lines,
            ended: context.head.body == BodySize::None,
        };
        let stream = self.group.stream(server, &request, connect_by_ms).await?;
        Ok(Reached { side: UpstreamSide::Stream(Box::new(stream)), room: RefCell::new(None), sent })
    }
}
