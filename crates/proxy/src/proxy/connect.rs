//! The upstream's side of an attempt: a connection, or a stream, with the request's head on its way.

use std::cell::RefCell;

use http::BodySize;
use net::preface::{self, Endpoints};
use net::{Exchange, Fault, H2Request};

use super::{Proxy, Reached};
use crate::dial::{Beside, beside, dial};
use crate::failure::AttemptFailure;
use crate::template::TemplateContext;
use crate::upstream_connection::{PooledBuffers, UpstreamConnection};
use crate::upstream_side::UpstreamSide;

impl Proxy {
    /// Whether the request goes to the server on a stream. One that may switch protocols needs a connection of its own where there can
    /// be one: a server in the clear speaks HTTP/2 alone.
    pub(super) fn is_for_stream(&self, x: &Exchange<'_>, server: usize) -> bool {
        let options = &self.group.shared.options.servers[server];
        let switches = || {
            let ask = TemplateContext::of(&x.request(), &self.group.shared.servers[server].authority);
            options.tls.is_some() && self.rules.request.asks_for_upgrade(&ask)
        };
        options.http2 && !switches()
    }

    /// A connection, in whose buffer the head is.
    pub(super) async fn open_http1(
        &self,
        x: &mut Exchange<'_>,
        server: usize,
        deadline_ms: u64,
        is_new: bool,
    ) -> Result<Reached<'_>, AttemptFailure> {
        let (mut connection, room) = self.upstream_connection(x, server, deadline_ms, is_new).await?;
        let waits = x.awaits_continue()?;
        let ask = TemplateContext::of(&x.request(), &self.group.shared.servers[server].authority);
        let sent = self.rules.request.write(&mut connection.buffers.out, &ask, waits);
        let sent = sent.map_err(Fault::Reject)?;
        let chunked = x.request().body() == BodySize::Unknown;
        Ok(Reached { side: UpstreamSide::http1(connection, chunked), room, sent })
    }

    /// A stream on a connection that others share; a new connection where none has room.
    pub(super) async fn open_stream(
        &self,
        x: &mut Exchange<'_>,
        server: usize,
        deadline_ms: u64,
    ) -> Result<Reached<'_>, AttemptFailure> {
        let (options, upstream) = (&self.group.shared.options, &self.group.shared.servers[server]);
        let pool = &self.group.h2_pools[server];
        let waits = x.awaits_continue()?;
        let ask = TemplateContext::of(&x.request(), &upstream.authority);
        let (head, sent) = self.rules.request.stream_head(&ask, waits).map_err(Fault::Reject)?;
        let connect_ms = self.rules.options.timeouts.connect_ms;
        let connect_by_ms = self.group.core.now_ms().saturating_add(connect_ms).min(deadline_ms);
        loop {
            let request = H2Request {
                method: x.request().method(),
                method_name: x.request().method_name(),
                scheme: if upstream.tls.is_some() { b"https" } else { b"http" },
                authority: &head.authority,
                path: &head.path,
                lines: &head.lines,
                ended: x.request().body() == BodySize::None,
            };
            if let Some(stream) = pool.request(&request) {
                return Ok(Reached {
                    side: UpstreamSide::Stream(Box::new(stream)),
                    room: RefCell::new(None),
                    sent,
                });
            }
            match pool.dialling() {
                Some(_dialling) => {
                    let core = &self.group.core;
                    let dialled =
                        dial(core, options, server, upstream, self.turn(), b"", true, connect_by_ms);
                    let (link, address) = dialled.await?;
                    pool.add(link, address);
                }
                None if pool.changed(connect_by_ms).await => {}
                None => return Err(AttemptFailure::ConnectSlow),
            }
        }
    }

    /// Which of several addresses comes first.
    fn turn(&self) -> usize {
        let turn = self.group.dialled.get();
        self.group.dialled.set(turn.wrapping_add(1));
        turn
    }

    /// A connection to a server: a kept one, or a new one.
    async fn upstream_connection(
        &self,
        x: &Exchange<'_>,
        server: usize,
        deadline_ms: u64,
        is_new: bool,
    ) -> Result<(UpstreamConnection, Beside<'_>), AttemptFailure> {
        let (options, upstream) = (&self.group.shared.options, &self.group.shared.servers[server]);
        let now_ms = self.group.core.now_ms();
        let pool = &self.group.pools[server];
        let certain = !x.request().method().is_idempotent();
        if !is_new
            && options.keeps_connections()
            && let Some((link, rested)) = pool.take(certain, |rested| self.group.fits(server, rested))
        {
            return Ok((rested.take_up(link, PooledBuffers::lend(&self.group.buffers)), RefCell::new(None)));
        }
        let mut preface = Vec::new();
        if let Some(version) = options.proxy_protocol {
            preface::write(&mut preface, version, ends(x));
        }
        let turn = self.turn();
        let connect_by_ms = now_ms.saturating_add(self.rules.options.timeouts.connect_ms).min(deadline_ms);
        // Boxed, as it is seldom: what it needs would make the future of every request larger.
        let dialling =
            Box::pin(dial(&self.group.core, options, server, upstream, turn, &preface, false, connect_by_ms));
        let room: Beside<'_> = RefCell::new(Some(Box::pin(pool.make_room(u64::MAX))));
        let (link, address) = beside(&room, dialling).await?;
        Ok((UpstreamConnection::new(link, address, PooledBuffers::lend(&self.group.buffers)), room))
    }

    pub(super) fn put_back(&self, upstream_connection: UpstreamConnection, server: usize, sent_whole: bool) {
        let options = &self.group.shared.options;
        let serves = sent_whole && options.proxy_protocol.is_none();
        if serves
            && let Some((link, rested)) =
                upstream_connection.rest(&options.keep_alive, self.group.core.now_ms())
        {
            self.group.pools[server].put(link, rested, options.keep_alive.idle_max);
        }
    }
}

/// Both ends of the client's connection, where they have addresses.
fn ends(x: &Exchange<'_>) -> Option<Endpoints> {
    match (x.request().client().address, x.local_address()) {
        (net::Peer::Tcp(source), Some(destination)) => Some(Endpoints { source, destination }),
        _ => None,
    }
}
