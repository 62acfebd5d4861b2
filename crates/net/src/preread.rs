//! Connections to listeners that may relay: whether to relay is decided at once or after the first message.

use std::sync::Arc;

use times::Moment;

use crate::address::StreamListener;
use crate::client_connection::{IdleClient, serve_begun};
use crate::client_hello::{FirstMessage, HelloReader, HelloTooLong};
use crate::core::{IdleTask, TaskFuture};
use crate::inbound::ReadOutcome;
use crate::service::Service;
use crate::stream_client::{StreamChoice, StreamOpening, StreamStart};
use crate::tls_setup::{AwaitingHandshake, DecryptingStream, secure_begun};

/// Size of a read, sufficient for the first messages of most clients.
const READ_BYTES: usize = 2048;
/// Fatal alert `unrecognized_name` (RFC 6066 section 3, RFC 8446 section 6).
const UNRECOGNIZED_NAME: [u8; 7] = [21, 3, 1, 0, 2, 2, 112];

/// A connection whose first message is incomplete. [`crate::Timeouts::head`] bounds the time from the
/// accept to the end of the message. While it waits, it holds the bytes received and no future.
struct AwaitingHello<S> {
    idle: Box<IdleClient<S>>,
    streams: Arc<StreamListener>,
    /// Whether connections that are not relayed speak TLS.
    is_tls: bool,
    hello: HelloReader,
}

/// Decides about an accepted connection, or parks it until its first bytes arrive.
pub(crate) fn begin<S: Service>(idle: Box<IdleClient<S>>, streams: &Arc<StreamListener>, is_tls: bool) {
    let core = idle.link().core().clone();
    let source = idle.link().stream().source_rc();
    if streams.reads_server_name {
        source.set_deadline(idle.deadline());
        let streams = streams.clone();
        let hello = HelloReader::default();
        core.park(&source, Box::new(AwaitingHello { idle, streams, is_tls, hello }));
    } else {
        match choose(idle, streams, StreamOpening::Unread, Vec::new()) {
            Some((idle, Some(stream))) => AwaitingHandshake::park(idle, Some(stream)),
            Some((idle, None)) if is_tls => AwaitingHandshake::park(idle, None),
            Some((idle, None)) => idle.park(),
            None => {}
        }
    }
}

/// Decides about a connection of which the bytes after the PROXY protocol header were already read.
pub(crate) async fn begin_after_proxy_header<S: Service>(
    mut idle: Box<IdleClient<S>>,
    streams: Arc<StreamListener>,
    is_tls: bool,
) -> Option<Box<dyn IdleTask>> {
    let begun = idle.take_partial_head();
    if !streams.reads_server_name {
        let (idle, stream) = choose(idle, &streams, StreamOpening::Unread, begun.into_vec())?;
        return serve_chosen(idle, stream, is_tls).await;
    }
    let mut hello = HelloReader::default();
    hello.add(&begun);
    read_hello(Box::new(AwaitingHello { idle, streams, is_tls, hello })).await
}

impl<S: Service> IdleTask for AwaitingHello<S> {
    fn resume(self: Box<Self>) -> TaskFuture {
        self.idle.link().stream().source().take_expired();
        self.idle.link().stream().source().set_deadline(Moment::NEVER);
        Box::pin(read_hello(self))
    }

    fn idle_since(&self) -> Option<Moment> {
        self.idle.idle_since()
    }

    fn holds_memory(&self) -> bool {
        self.hello.len() > 0
    }
}

/// Reads the client's first message. `None` if the connection was closed or handed over.
async fn read_hello<S: Service>(mut this: Box<AwaitingHello<S>>) -> Option<Box<dyn IdleTask>> {
    let message = loop {
        match this.hello.classify() {
            Ok(Some(message)) => break message,
            Ok(None) => {}
            Err(HelloTooLong) => {
                fail(*this, "the client's first TLS message has more than 16 KiB");
                return None;
            }
        }
        let AwaitingHello { idle, hello, .. } = &mut *this;
        let core = idle.link().core();
        if core.now() >= idle.deadline() {
            // A client that sent nothing is not logged.
            if hello.len() > 0 {
                fail(*this, "the client's first message took too long");
            }
            return None;
        }
        match receive(idle, hello) {
            ReadOutcome::Bytes => {}
            ReadOutcome::Nothing => {
                let core = idle.link().core();
                let source = idle.link().stream().source();
                source.set_deadline(idle.deadline());
                source.wait_read(core.current());
                return Some(this);
            }
            ReadOutcome::End => return None,
        }
    };
    let AwaitingHello { idle, streams, is_tls, hello } = *this;
    let opening = match &message {
        FirstMessage::Tls(name) => StreamOpening::Tls(name.as_deref()),
        FirstMessage::Other => StreamOpening::Other,
    };
    let (idle, stream) = choose(idle, &streams, opening, hello.into_bytes())?;
    serve_chosen(idle, stream, is_tls).await
}

/// Reads once. An error is the end. Not inlined, so that the
/// buffer is on the stack and not part of the future.
#[inline(never)]
fn receive<S: Service>(idle: &mut IdleClient<S>, hello: &mut HelloReader) -> ReadOutcome {
    let mut buffer = [0; READ_BYTES];
    match idle.link_mut().try_read(&mut buffer) {
        Ok(None) => ReadOutcome::Nothing,
        Ok(Some(0)) | Err(_) => ReadOutcome::End,
        Ok(Some(len)) => {
            hello.add(&buffer[..len]);
            idle.hold(hello.len());
            ReadOutcome::Bytes
        }
    }
}

async fn serve_chosen<S: Service>(
    idle: Box<IdleClient<S>>,
    stream: Option<Box<DecryptingStream>>,
    is_tls: bool,
) -> Option<Box<dyn IdleTask>> {
    if is_tls || stream.is_some() {
        Box::pin(secure_begun(idle, stream)).await
    } else {
        serve_begun(idle).await
    }
}

/// A connection that is to be served as HTTP, or to be decrypted for a stream.
type ChosenConnection<S> = (Box<IdleClient<S>>, Option<Box<DecryptingStream>>);

/// Lets the service decide. `None` if the connection is relayed or closed.
fn choose<S: Service>(
    mut idle: Box<IdleClient<S>>,
    streams: &StreamListener,
    opening: StreamOpening<'_>,
    received: Vec<u8>,
) -> Option<ChosenConnection<S>> {
    let start = StreamStart { listener: &streams.key, client: idle.peer(), opening };
    let core = idle.link().core().clone();
    match idle.engine().service.choose_stream(&start, &core) {
        StreamChoice::Serve(serve) => {
            core.spawn_boxed(serve(idle.into_stream(received)));
            None
        }
        StreamChoice::Decrypt(acceptor, serve) => {
            idle.set_partial_head(&received);
            Some((idle, Some(Box::new(DecryptingStream { acceptor, serve }))))
        }
        StreamChoice::Http => {
            idle.set_partial_head(&received);
            Some((idle, None))
        }
        StreamChoice::Close => None,
        StreamChoice::Unrecognized => {
            if matches!(opening, StreamOpening::Tls(_)) {
                // The client may be gone; the send buffer of a new socket has room.
                let _ = idle.link_mut().try_write(&[&UNRECOGNIZED_NAME], false);
                idle.link_mut().shutdown_write();
            }
            None
        }
    }
}

/// Reports a first message that failed to arrive.
fn fail<S: Service>(this: AwaitingHello<S>, reason: &'static str) {
    choose(this.idle, &this.streams, StreamOpening::Failed(reason), Vec::new());
}
