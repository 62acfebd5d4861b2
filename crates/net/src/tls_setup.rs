//! TLS handshakes of accepted connections.

use crate::address::Peer;
use crate::client_connection::{IdleClient, refuse_and_close, serve_begun};
use crate::core::{IdleTask, TaskFuture};
use crate::service::Service;
use crate::stream_client::ServeStream;
use crate::tls::{HandshakeFailure, HandshakeStep, TlsAcceptor, TlsHandshake};

use http::{Reject, Status};
use times::Moment;

const PLAIN_HTTP: Reject = Reject::new(
    Status::BAD_REQUEST,
    "this port speaks HTTPS, and the request came without TLS: write https:// in front of the address",
);

/// An accepted connection whose TLS handshake is incomplete. [`crate::Timeouts::head`] bounds the
/// handshake and the head of the first request together. While it waits for the client, it holds no future.
pub(crate) struct AwaitingHandshake<S> {
    idle: Box<IdleClient<S>>,
    /// `None` until the first byte, so that a silent connection holds no handshake state.
    handshake: Option<TlsHandshake>,
    /// The stream that relays the connection; `None` for HTTP.
    stream: Option<Box<DecryptingStream>>,
}

/// A stream whose TLS is decrypted here.
pub(crate) struct DecryptingStream {
    pub(crate) acceptor: TlsAcceptor,
    pub(crate) serve: ServeStream,
}

impl<S: Service> AwaitingHandshake<S> {
    /// Parks the connection until its first byte arrives.
    pub(crate) fn park(idle: Box<IdleClient<S>>, stream: Option<Box<DecryptingStream>>) {
        let core = idle.link().core().clone();
        let source = idle.link().stream().source_rc();
        source.set_deadline(idle.deadline());
        core.park(&source, Box::new(AwaitingHandshake { idle, handshake: None, stream }));
    }

    fn acceptor(&self) -> Option<&TlsAcceptor> {
        match &self.stream {
            Some(stream) => Some(&stream.acceptor),
            None => self.idle.engine().context.tls.as_ref(),
        }
    }
}

impl<S: Service> IdleTask for AwaitingHandshake<S> {
    fn resume(self: Box<Self>) -> TaskFuture {
        self.idle.link().stream().source().take_expired();
        self.idle.link().stream().source().set_deadline(Moment::NEVER);
        Box::pin(continue_handshake(self))
    }

    fn idle_since(&self) -> Option<Moment> {
        self.idle.idle_since()
    }

    fn holds_memory(&self) -> bool {
        self.handshake.is_some()
    }
}

/// Performs the handshake of a connection whose first bytes were already read.
pub(crate) async fn secure_begun<S: Service>(
    idle: Box<IdleClient<S>>,
    stream: Option<Box<DecryptingStream>>,
) -> Option<Box<dyn IdleTask>> {
    let mut this = Box::new(AwaitingHandshake { idle, handshake: None, stream });
    let begun = this.idle.take_partial_head();
    match TlsHandshake::new(this.acceptor()?, &begun) {
        Ok(handshake) => {
            this.handshake = Some(handshake);
            continue_handshake(this).await
        }
        Err(failure) => refuse(*this, &failure).await,
    }
}

/// Continues the handshake as far as possible; then parks, serves or closes the connection.
async fn continue_handshake<S: Service>(mut this: Box<AwaitingHandshake<S>>) -> Option<Box<dyn IdleTask>> {
    let core = this.idle.link().core().clone();
    loop {
        if core.now() >= this.idle.deadline() {
            // Silent connections are not logged: browsers open connections in advance.
            let has_begun = this.handshake.as_ref().is_some_and(TlsHandshake::has_begun);
            return if has_begun {
                refuse(*this, &HandshakeFailure::of("the TLS handshake took too long")).await
            } else {
                None
            };
        }
        if this.handshake.is_none() {
            this.handshake = TlsHandshake::new(this.acceptor()?, b"").ok();
        }
        // Signatures and key exchanges take a millisecond or more, so let other ready tasks run first.
        core.wait_for_long_turn().await;
        let AwaitingHandshake { idle, handshake, .. } = &mut *this;
        let client = match idle.peer() {
            Peer::Tcp(address) => Some(address.ip()),
            _ => None,
        };
        let listener_key = idle.listener_key();
        let handshake = handshake.as_mut()?;
        let step = handshake.advance(idle.link().stream(), client, listener_key);
        idle.hold(handshake.weight_bytes());
        match step {
            Ok(HandshakeStep::WantsRead) => {
                let source = idle.link().stream().source();
                source.set_deadline(idle.deadline());
                source.wait_read(core.current());
                return Some(this);
            }
            // At the deadline, the loop ends the handshake.
            Ok(HandshakeStep::WantsWrite) => _ = idle.link().stream().writable(idle.deadline()).await,
            Ok(HandshakeStep::Done(tls, session)) => {
                let counters = &this.idle.engine().context.counters;
                if session.is_resumed {
                    counters.tls_resumed.add(1)
                } else {
                    counters.tls_full.add(1)
                }
                let AwaitingHandshake { idle, stream, .. } = *this;
                let idle = idle.with_tls(tls, session);
                let Some(stream) = stream else { return serve_begun(idle).await };
                core.spawn_boxed((stream.serve)(idle.into_stream(Vec::new())));
                return None;
            }
            Ok(HandshakeStep::ChallengeDone) => {
                idle.link_mut().shutdown_write();
                return None;
            }
            Err(failure) => return refuse(*this, &failure).await,
        }
    }
}

async fn refuse<S: Service>(
    this: AwaitingHandshake<S>,
    failure: &HandshakeFailure,
) -> Option<Box<dyn IdleTask>> {
    let AwaitingHandshake { mut idle, stream, .. } = this;
    idle.engine().context.counters.tls_failed.add(1);
    let peer: Peer = idle.peer();
    if !failure.is_gone {
        idle.engine().service.handshake_failed(peer, failure);
    }
    if failure.is_http && stream.is_none() {
        Box::pin(refuse_and_close(idle, PLAIN_HTTP)).await
    } else {
        // The client gets the alert before the end.
        idle.link_mut().shutdown_write()
    }
    None
}
