//! Connections that begin with a PROXY protocol header, in which a trusted proxy names the client.

use std::sync::Arc;

use http::{Reject, Status};
use times::Moment;

use crate::address::{PeerSet, StreamListener};
use crate::client_connection::{IdleClient, refuse_and_close, serve_begun};
use crate::core::{IdleTask, TaskFuture};
use crate::fault::Fault;
use crate::preread;
use crate::proxy_protocol::{self, HEADER_BYTES_MAX, HeaderParse};
use crate::service::Service;
use crate::tls_setup::secure_begun;

/// Initial size of the buffer: enough for a header with few extensions and most first requests behind it.
const BUFFER_BYTES: usize = 1024;

const UNTRUSTED_PEER: Reject = Reject::new(
    Status::FORBIDDEN,
    "this address takes connections from known proxies alone, by the PROXY protocol",
);
const HEADER_TOO_SLOW: Reject =
    Reject::new(Status::REQUEST_TIMEOUT, "the PROXY protocol header took too long");

/// An accepted connection whose PROXY protocol header has not been received. [`crate::Timeouts::head`]
/// bounds the header and the head of the first request together.
pub(crate) struct AwaitingProxyHeader<S> {
    idle: Box<IdleClient<S>>,
    sources: Arc<PeerSet>,
    /// Set if the connection may be relayed after the header.
    streams: Option<Arc<StreamListener>>,
    /// Whether a TLS handshake follows the header.
    is_tls: bool,
}

impl<S: Service> AwaitingProxyHeader<S> {
    /// Parks the connection until its first byte arrives.
    pub(crate) fn park(
        idle: Box<IdleClient<S>>,
        sources: Arc<PeerSet>,
        streams: Option<Arc<StreamListener>>,
        is_tls: bool,
    ) {
        let core = idle.link().stream().core().clone();
        let source = idle.link().stream().source_rc();
        source.set_deadline(idle.deadline());
        core.park(&source, Box::new(AwaitingProxyHeader { idle, sources, streams, is_tls }));
    }
}

impl<S: Service> IdleTask for AwaitingProxyHeader<S> {
    fn resume(self: Box<Self>) -> TaskFuture {
        self.idle.link().stream().source().take_expired();
        self.idle.link().stream().source().set_deadline(Moment::NEVER);
        Box::pin(async {
            let streams = self.streams.clone();
            let is_tls = self.is_tls;
            let idle = read_proxy_header(*self).await?;
            match streams {
                Some(streams) => Box::pin(preread::begin_after_proxy_header(idle, streams, is_tls)).await,
                None if is_tls => Box::pin(secure_begun(idle, None)).await,
                None => serve_begun(idle).await,
            }
        })
    }

    fn idle_since(&self) -> Option<Moment> {
        self.idle.idle_since()
    }
}

/// Reads the header and attributes the connection to the client that it names. `None` at its end.
async fn read_proxy_header<S: Service>(announced: AwaitingProxyHeader<S>) -> Option<Box<IdleClient<S>>> {
    let AwaitingProxyHeader { mut idle, sources, .. } = announced;
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut len = 0;
    loop {
        match read_some(&mut idle, &mut buffer[len..]).await {
            // A health check that only connects, or a client that has disconnected.
            Ok(0) | Err(Fault::Disconnected | Fault::Io(_)) => return None,
            Ok(read) => len += read,
            Err(_) if len == 0 => return None,
            Err(_) => return refuse(idle, HEADER_TOO_SLOW).await,
        }
        if !sources.contains(idle.peer()) {
            return refuse(idle, UNTRUSTED_PEER).await;
        }
        match proxy_protocol::read(&buffer[..len]) {
            Ok(HeaderParse::NeedMore) => {}
            Ok(HeaderParse::Complete(header_len, reported)) => {
                let names_client = reported.endpoints.is_some();
                idle.set_proxy_header(reported, &buffer[header_len..len]);
                if names_client && let Some(gate) = &idle.engine().context.gate {
                    let gate_permit = gate.0.acquire(idle.peer()).ok()?;
                    idle.keep_gate_permit(gate_permit);
                }
                return Some(idle);
            }
            Err(reject) => return refuse(idle, reject).await,
        }
        if len == buffer.len() {
            // The longest header leaves one byte free, so no header needs a larger buffer.
            buffer.resize(HEADER_BYTES_MAX + 1, 0);
        }
    }
}

async fn read_some<S: Service>(idle: &mut IdleClient<S>, room: &mut [u8]) -> Result<usize, Fault> {
    loop {
        match idle.link_mut().try_read(room)? {
            Some(len) => return Ok(len),
            None => idle.link().readable(idle.deadline()).await?,
        }
    }
}

async fn refuse<S: Service>(idle: Box<IdleClient<S>>, reject: Reject) -> Option<Box<IdleClient<S>>> {
    refuse_and_close(idle, reject).await;
    None
}
