//! The task of a UDP socket whose datagrams are relayed: receives from clients and begins sessions.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use quinn_udp::RecvMeta;

use crate::address::{Peer, PeerSet, StreamListener};
use crate::core::Core;
use crate::datagram_socket::DatagramSocket;
use crate::datagrams::{DatagramEndpoint, DatagramSender, DropReason, RECEIVE_BUFFERS};
use crate::memory::Pressure;
use crate::permit::ServingContext;
use crate::proxy_protocol;
use crate::service::{Engine, Service};
use crate::source::{READ, Source, WRITE};
use crate::stream_client::{StreamOpening, StreamStart};

/// Bytes received, and system calls made, before other tasks run.
const TURN_BYTES_MAX: usize = 256 * 1024;
const TURN_CALLS_MAX: usize = 32;
/// Sessions of a turn that may begin in the place of others. Beginning one costs more than ten times as much as
/// dropping a datagram, so a flood of forged clients would delay the others by that.
const REPLACED_MAX: usize = 32;

/// A UDP socket whose datagrams are relayed, as a core receives it.
#[derive(Clone, Debug)]
pub(crate) struct RelayedSocket {
    pub(crate) socket: Arc<DatagramSocket>,
    pub(crate) settings: RelaySettings,
}

/// Settings of a listener, which may change while its socket has sessions.
#[derive(Clone, Debug)]
pub(crate) struct RelaySettings {
    /// Number and key of the listener.
    pub(crate) listener: (u64, u64),
    /// Peers whose datagrams begin with a header of the PROXY protocol.
    pub(crate) proxy_protocol: Option<Arc<PeerSet>>,
    pub(crate) streams: Arc<StreamListener>,
}

/// The sessions of a socket, as its listener knows them: not kept by it, because the port is free only when the
/// socket is closed.
pub(crate) struct OpenRelay(Weak<RelayListener>);

/// A socket, its settings and commands, for its task.
pub(crate) struct RelayListener {
    endpoint: Rc<DatagramEndpoint>,
    settings: RefCell<RelaySettings>,
    is_closing: Cell<bool>,
    /// Wakes the socket's task.
    commands: Rc<Source>,
}

impl RelayListener {
    pub(crate) fn new(context: &Rc<ServingContext>, opened: RelayedSocket) -> Rc<RelayListener> {
        let commands = context.core.add_source();
        commands.clear(READ | WRITE);
        Rc::new(RelayListener {
            endpoint: DatagramEndpoint::new(context, &opened.socket),
            settings: RefCell::new(opened.settings),
            is_closing: Cell::new(false),
            commands,
        })
    }
}

impl OpenRelay {
    pub(crate) fn of(relay: &Rc<RelayListener>) -> OpenRelay {
        OpenRelay(Rc::downgrade(relay))
    }

    /// Changes the settings of the listener if this is its socket; the sessions stay. Returns whether it is.
    pub(crate) fn reopen(&self, socket: &Arc<DatagramSocket>, settings: &RelaySettings) -> bool {
        let Some(relay) = self.0.upgrade() else { return false };
        let is_same = Arc::ptr_eq(&relay.endpoint.socket, socket);
        if is_same {
            relay.settings.replace(settings.clone());
            relay.is_closing.set(false);
        }
        is_same
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.0.strong_count() == 0
    }

    /// Ends the sessions, if the socket belongs to this listener.
    pub(crate) fn close(&self, listener: u64) {
        if let Some(relay) = self.0.upgrade()
            && relay.settings.borrow().listener.0 == listener
        {
            relay.is_closing.set(true);
            self.wake();
        }
    }

    /// Lets the task check whether it has ended.
    pub(crate) fn wake(&self) {
        if let Some(relay) = self.0.upgrade() {
            relay.endpoint.context.core.mark_readable(&relay.commands);
        }
    }
}

impl Drop for RelayListener {
    fn drop(&mut self) {
        self.endpoint.context.core.deregister(&self.commands);
    }
}

/// Receives datagrams until the server stops or the listener was closed. Sessions outlive this task while the
/// server stops: another process may receive from the socket by then.
pub(crate) async fn relay_datagrams<S: Service>(engine: Rc<Engine<S>>, relay: Rc<RelayListener>) {
    let endpoint = &relay.endpoint;
    let core = engine.context.core.clone();
    if let Ok(source) = core.register_receiver(endpoint.socket.fd()) {
        loop {
            let is_stopping = engine.context.is_draining.get();
            if relay.is_closing.get() {
                endpoint.is_closed.set(true);
                break;
            }
            let is_empty = receive(&engine, &relay, &source);
            if is_stopping {
                break;
            }
            if is_empty { wait(&core, [&source, &relay.commands]).await } else { core.yield_now().await }
        }
        core.unwatch(endpoint.socket.fd());
        core.deregister(&source);
    }
    endpoint.wake_sessions();
}

/// Waits for datagrams or a command.
async fn wait(core: &Core, sources: [&Source; 2]) {
    let mut has_waited = false;
    std::future::poll_fn(|_| {
        let is_ready = sources.iter().any(|source| source.ready() & READ != 0);
        // A spurious wake-up is harmless: there is nothing to receive.
        if is_ready || std::mem::replace(&mut has_waited, true) {
            return std::task::Poll::Ready(());
        }
        sources.iter().for_each(|source| source.wait_read(core.current()));
        std::task::Poll::Pending
    })
    .await;
    sources[1].clear(READ);
}

/// Receives datagrams until the socket is empty. Returns false if it may hold more.
fn receive<S: Service>(engine: &Engine<S>, relay: &RelayListener, source: &Source) -> bool {
    let endpoint = &relay.endpoint;
    let settings = relay.settings.borrow();
    let mut turn = Turn { engine, endpoint, settings: &settings, replaced: 0, has_begun: false };
    // Not borrowed meanwhile: no session receives while this task runs.
    let (buffers, joined) = &mut *endpoint.buffers.borrow_mut();
    let mut received = 0;
    for _ in 0..TURN_CALLS_MAX {
        let mut metas = [RecvMeta::default(); RECEIVE_BUFFERS];
        let count = match endpoint.socket.receive(buffers, &mut metas) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                source.clear(READ);
                return true;
            }
            // An error of an earlier datagram, reported by the network.
            Err(_) => continue,
        };
        buffers.for_each_run(&metas[..count], joined, |meta, bytes, stride| {
            received += bytes.len();
            turn.pass_on(meta, bytes, stride);
        });
        if count < RECEIVE_BUFFERS {
            source.clear(READ);
            return true;
        }
        // The datagrams that follow in a burst need not wait if the session's task has chosen a server before.
        if received >= TURN_BYTES_MAX || turn.has_begun {
            break;
        }
    }
    false
}

/// A turn of the task, in which datagrams are received.
struct Turn<'t, S> {
    engine: &'t Engine<S>,
    endpoint: &'t Rc<DatagramEndpoint>,
    settings: &'t RelaySettings,
    /// Number of sessions that have begun by replacing others.
    replaced: usize,
    /// Whether a session has begun without replacing another.
    has_begun: bool,
}

impl<S: Service> Turn<'_, S> {
    /// Relays datagrams of a sender, each of `stride` bytes, which the kernel has joined in `bytes`.
    fn pass_on(&mut self, meta: &RecvMeta, bytes: &[u8], stride: usize) {
        let mut from = DatagramSender { peer: meta.addr, local: meta.dst_ip, reported: None };
        let Some(proxies) = &self.settings.proxy_protocol else {
            return self.relay(&from, bytes, stride);
        };
        if !proxies.contains(Peer::Tcp(meta.addr)) {
            let count = bytes.len().div_ceil(stride.max(1)).max(1);
            return self.drop_datagrams(DropReason::Denied, count);
        }
        for datagram in bytes.chunks(stride.max(1)) {
            match proxy_protocol::read_datagram(datagram) {
                Ok((len, header)) => {
                    from.reported = header.endpoints;
                    self.relay(&from, &datagram[len..], datagram.len() - len);
                }
                Err(_) => self.drop_datagrams(DropReason::NoHeader, 1),
            }
        }
    }

    fn relay(&mut self, from: &DatagramSender, bytes: &[u8], stride: usize) {
        if self.endpoint.forward(from, bytes, stride) {
            return;
        }
        if let Err(reason) = self.begin(from, bytes, stride) {
            self.drop_datagrams(reason, bytes.len().div_ceil(stride.max(1)).max(1));
        }
    }

    /// Begins a session. If there is no room, it takes the place of the oldest whose client may be forged, or else
    /// of an idle connection.
    fn begin(&mut self, from: &DatagramSender, bytes: &[u8], stride: usize) -> Result<(), DropReason> {
        let context = &self.engine.context;
        if context.core.memory().pressure() >= Pressure::Critical {
            return Err(DropReason::Memory);
        }
        let is_full = self.endpoint.is_full();
        if is_full && self.replaced >= REPLACED_MAX {
            return Err(DropReason::Full);
        }
        let client = from.client();
        let gate_permit = context.gate.as_ref().map_or(Ok(None), |gate| gate.0.acquire(client));
        let gate_permit = gate_permit.map_err(|_| DropReason::Limit)?;
        let start =
            StreamStart { listener: &self.settings.streams.key, client, opening: StreamOpening::Unread };
        let serve = self.engine.service.choose_datagrams(&start, &context.core)?;
        if is_full {
            self.replaced += 1;
            if !self.endpoint.give_up_oldest() && context.core.close_idle(1) == 0 {
                return Err(DropReason::Full);
            }
        }
        self.has_begun |= !is_full;
        self.endpoint.begin(from, self.settings.listener, gate_permit, serve, bytes, stride);
        Ok(())
    }

    fn drop_datagrams(&self, reason: DropReason, count: usize) {
        self.engine.service.count_dropped(&self.settings.streams.key, reason, count as u64);
    }
}
