//! A session: the state that the listening socket's task and the session's own task share.

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Context;

use quinn_udp::Transmit;
use times::{Millis, Moment};

use super::drops::DropReason;
use super::link::{DATAGRAM_BYTES_MAX, DatagramLink, RECEIVE_BUFFERS};
use super::table::{ClientKey, SessionTable};
use crate::address::Peer;
use crate::core::Core;
use crate::datagram_socket::{DatagramSocket, ReceiveBuffers};
use crate::gate::GatePermit;
use crate::permit::{ConnectionPermit, ServingContext};
use crate::proxy_protocol::{self, Endpoints};
use crate::relay::RelaySide;
use crate::source::{READ, Source, WRITE};
use crate::stream_client::StreamFuture;
use crate::wait::{self, Interest};

/// Memory of a session besides that of each connection, in bytes: its task, socket and entries in tables.
const SESSION_BYTES: usize = 1536;
/// Datagrams that wait for a server to be chosen, in bytes and number; the first one always does.
const WAITING_BYTES_MAX: usize = 64 * 1024;
const WAITING_MAX: usize = 64;
/// Unanswered bytes that are kept to be sent to another server if the first one refuses them.
const KEPT_BYTES_MAX: usize = 2 * 1024;
/// Divisor of the limit of connections: the part that sessions of unconfirmed clients may take.
const UNCONFIRMED_SHARE: usize = 4;
/// Time without a datagram after which a session ends while the server stops, or once it is retired: after an answer,
/// and while the client waits for one.
const ANSWERED_GRACE: Millis = Millis(1_000);
const UNANSWERED_GRACE: Millis = Millis(5_000);

/// Serves a session as a task, which begins with its first datagram.
pub type ServeDatagrams = Box<dyn FnOnce(DatagramClient) -> StreamFuture>;

/// Observer of a session.
pub trait DatagramTap {
    /// Called when a side was sent datagrams, with their number and size in bytes.
    fn sent(&self, to: RelaySide, datagrams: u64, bytes: usize);
    /// Called when datagrams were dropped.
    fn dropped(&self, reason: DropReason, datagrams: u64);
}

/// The sender of a datagram.
#[derive(Clone, Copy)]
pub(crate) struct DatagramSender {
    pub(crate) peer: SocketAddr,
    /// The address of this machine that the datagram was sent to, if known.
    pub(crate) local: Option<IpAddr>,
    /// Both ends of the client's datagrams, as a proxy reports them.
    pub(crate) reported: Option<Endpoints>,
}

impl DatagramSender {
    fn key(&self) -> ClientKey {
        let reported = self.reported.map(|ends| ends.source);
        ClientKey { peer: self.peer, local: self.local, reported }
    }

    /// Returns the client, which a proxy may have named.
    pub(crate) fn client(&self) -> Peer {
        Peer::Tcp(self.reported.map_or(self.peer, |ends| ends.source))
    }
}

/// A listening socket on its core, with its sessions.
pub(crate) struct DatagramEndpoint {
    pub(super) core: Core,
    pub(crate) socket: Arc<DatagramSocket>,
    pub(crate) context: Rc<ServingContext>,
    sessions: RefCell<SessionTable<DatagramSession>>,
    /// Buffers for received datagrams, and for those that are joined.
    pub(crate) buffers: RefCell<(ReceiveBuffers<RECEIVE_BUFFERS>, Vec<u8>)>,
    /// Whether the listener was closed.
    pub(crate) is_closed: Cell<bool>,
}

impl DatagramEndpoint {
    pub(crate) fn new(context: &Rc<ServingContext>, socket: &Arc<DatagramSocket>) -> Rc<DatagramEndpoint> {
        Rc::new(DatagramEndpoint {
            core: context.core.clone(),
            socket: socket.clone(),
            context: context.clone(),
            sessions: RefCell::default(),
            buffers: RefCell::new((ReceiveBuffers::new(), Vec::new())),
            is_closed: Cell::new(false),
        })
    }

    /// Passes datagrams of `stride` bytes on, of which the last may be shorter. Returns false if the client has no
    /// session.
    pub(crate) fn forward(&self, from: &DatagramSender, bytes: &[u8], stride: usize) -> bool {
        let session = self.sessions.borrow().get(&from.key()).cloned();
        session.inspect(|session| session.forward(bytes, stride)).is_some()
    }

    /// Whether there is no room for another session, unless another one is given up.
    pub(crate) fn is_full(&self) -> bool {
        let limit = &self.context.connection_limit;
        let unconfirmed_max = (limit.max.get() / UNCONFIRMED_SHARE).max(1);
        limit.taken.get() >= limit.max.get() || self.context.unconfirmed_sessions.get() >= unconfirmed_max
    }

    /// Gives up the oldest session of a client that may be forged. Returns false if there is none.
    pub(crate) fn give_up_oldest(&self) -> bool {
        let Some(session) = self.sessions.borrow_mut().take_oldest_unconfirmed() else { return false };
        self.count_unconfirmed(-1);
        session.is_given_up.set(true);
        self.core.set_ready(&session.source, READ);
        true
    }

    /// Begins the session of a client with its first datagrams.
    pub(crate) fn begin(
        self: &Rc<Self>,
        from: &DatagramSender,
        listener: (u64, u64),
        gate_permit: Option<GatePermit>,
        serve: ServeDatagrams,
        bytes: &[u8],
        stride: usize,
    ) {
        let source = self.core.add_source();
        source.clear(READ | WRITE);
        let mut permit = ConnectionPermit::take(&self.context, source.clone());
        permit.keep_gate_permit(gate_permit);
        permit.list(listener, from.client());
        self.context.counters.connections.add(1);
        let session = Rc::new(DatagramSession {
            endpoint: self.clone(),
            key: from.key(),
            ends: from.reported,
            source,
            permit,
            link: RefCell::default(),
            unanswered: RefCell::default(),
            header: RefCell::default(),
            tap: RefCell::default(),
            last_at: Cell::new(self.core.now()),
            is_last_an_answer: Cell::new(false),
            is_confirmed: Cell::new(false),
            requests: Cell::new(0),
            answers: Cell::new(0),
            is_refused: Cell::new(false),
            is_retired: Cell::new(false),
            is_given_up: Cell::new(false),
        });
        self.sessions.borrow_mut().insert(session.key, session.clone());
        self.count_unconfirmed(1);
        let task = serve(DatagramClient(session.clone()));
        session.forward(bytes, stride);
        self.core.spawn_boxed(task);
    }

    /// Lets the task of each session check whether it has ended.
    pub(crate) fn wake_sessions(&self) {
        for session in self.sessions.borrow().all() {
            self.core.mark_readable(&session.source);
        }
    }

    fn count_unconfirmed(&self, change: isize) {
        let count = &self.context.unconfirmed_sessions;
        count.set(count.get().saturating_add_signed(change));
    }

    /// Sends datagrams of `stride` bytes to a client.
    fn send(&self, to: &ClientKey, bytes: &[u8], stride: usize, tap: &dyn DatagramTap) {
        let stride = stride.max(1);
        let segments = self.socket.segments_max().min(DATAGRAM_BYTES_MAX / stride).max(1);
        let mut rest = bytes;
        loop {
            let run = &rest[..(segments * stride).min(rest.len())];
            let segment_size = (run.len() > stride).then_some(stride);
            let transmit =
                Transmit { destination: to.peer, ecn: None, contents: run, segment_size, src_ip: to.local };
            let done = match self.socket.try_send(&transmit) {
                Ok(len) => {
                    tap.sent(RelaySide::Client, count_datagrams(&run[..len], stride), len);
                    len
                }
                Err(error) => {
                    tap.dropped(DropReason::of_error(&error), count_datagrams(run, stride));
                    run.len()
                }
            };
            rest = &rest[done..];
            if rest.is_empty() {
                return;
            }
        }
    }
}

/// Datagrams that no server has answered.
#[derive(Default)]
struct Unanswered {
    /// Joined datagrams and their size.
    runs: Vec<(Box<[u8]>, usize)>,
    bytes: usize,
}

/// A session of a client.
pub(super) struct DatagramSession {
    pub(super) endpoint: Rc<DatagramEndpoint>,
    key: ClientKey,
    /// Both ends of the client's datagrams, as a proxy reports them.
    ends: Option<Endpoints>,
    /// Readable when the session's task has to check whether the session has ended.
    pub(super) source: Rc<Source>,
    permit: ConnectionPermit,
    /// The socket to the server, once that is chosen.
    link: RefCell<Option<Rc<DatagramLink>>>,
    unanswered: RefCell<Unanswered>,
    /// Header of the PROXY protocol in front of each datagram to the server.
    header: RefCell<Vec<u8>>,
    tap: RefCell<Option<Rc<dyn DatagramTap>>>,
    /// Time of the last datagram.
    last_at: Cell<Moment>,
    is_last_an_answer: Cell<bool>,
    /// Whether the client has sent something after an answer.
    is_confirmed: Cell<bool>,
    /// Datagrams of the client, and of the server.
    pub(super) requests: Cell<u64>,
    pub(super) answers: Cell<u64>,
    /// Whether the server has refused a datagram.
    pub(super) is_refused: Cell<bool>,
    /// Whether the client's next datagram begins another session, and this one only passes on answers.
    pub(super) is_retired: Cell<bool>,
    /// Whether the session was given up for another one.
    pub(super) is_given_up: Cell<bool>,
}

impl DatagramSession {
    fn forward(&self, bytes: &[u8], stride: usize) {
        let count = count_datagrams(bytes, stride);
        self.last_at.set(self.endpoint.core.now());
        self.is_last_an_answer.set(false);
        self.requests.set(self.requests.get() + count);
        if self.answers.get() > 0
            && !self.is_confirmed.replace(true)
            && self.endpoint.sessions.borrow_mut().confirm(&self.key)
        {
            self.endpoint.count_unconfirmed(-1);
        }
        let link = self.link.borrow().clone();
        match link {
            None => {
                if !self.keep(bytes, stride, WAITING_BYTES_MAX) {
                    self.tap(|tap| tap.dropped(DropReason::Waiting, count));
                }
            }
            Some(link) => {
                if self.answers.get() == 0 {
                    self.keep(bytes, stride, KEPT_BYTES_MAX);
                }
                self.transmit(&link, bytes, stride);
            }
        }
    }

    /// Keeps datagrams until they are answered. Returns false if there are too many.
    fn keep(&self, bytes: &[u8], stride: usize, bytes_max: usize) -> bool {
        let mut kept = self.unanswered.borrow_mut();
        if !kept.runs.is_empty() && (kept.bytes + bytes.len() > bytes_max || kept.runs.len() >= WAITING_MAX) {
            return false;
        }
        kept.bytes += bytes.len();
        kept.runs.push((bytes.into(), stride));
        self.permit.hold(SESSION_BYTES + kept.bytes);
        true
    }

    /// Forgets datagrams that need not be sent again.
    fn release(&self, bytes_max: usize) {
        let mut kept = self.unanswered.borrow_mut();
        if kept.bytes > bytes_max || bytes_max == 0 {
            *kept = Unanswered::default();
            self.permit.hold(SESSION_BYTES);
        }
    }

    fn transmit(&self, link: &DatagramLink, bytes: &[u8], stride: usize) {
        let header = self.header.borrow();
        let sent = |count, len: usize| {
            let headers = header.len() * usize::try_from(count).unwrap_or(0);
            self.tap(|tap| tap.sent(RelaySide::Upstream, count, len - headers));
        };
        let dropped = |reason, count| self.tap(|tap| tap.dropped(reason, count));
        let is_accepted = if header.is_empty() {
            link.send(bytes, stride, sent, dropped)
        } else {
            let with_header = |datagram: &[u8]| {
                let datagram = [&header[..], datagram].concat();
                link.send(&datagram, datagram.len(), sent, dropped)
            };
            if bytes.is_empty() { with_header(bytes) } else { bytes.chunks(stride.max(1)).all(with_header) }
        };
        if !is_accepted {
            self.is_refused.set(true);
            self.endpoint.core.mark_readable(&self.source);
        }
    }

    pub(super) fn answer(&self, bytes: &[u8], stride: usize) {
        self.last_at.set(self.endpoint.core.now());
        self.is_last_an_answer.set(true);
        self.answers.set(self.answers.get() + count_datagrams(bytes, stride));
        if let Some(tap) = &*self.tap.borrow() {
            self.endpoint.send(&self.key, bytes, stride, &**tap);
        }
    }

    fn tap(&self, tell: impl FnOnce(&dyn DatagramTap)) {
        if let Some(tap) = &*self.tap.borrow() {
            tell(&**tap);
        }
    }

    /// Returns the time at which the session is over unless a datagram arrives.
    pub(super) fn ends_at(&self, idle: Millis) -> Moment {
        let grace = if self.is_last_an_answer.get() { ANSWERED_GRACE } else { UNANSWERED_GRACE };
        let is_ending = self.is_retired.get() || self.endpoint.context.is_draining.get();
        self.last_at.get() + if is_ending { idle.min(grace) } else { idle }
    }

    /// Whether the session's task must end it.
    pub(super) fn must_end(&self) -> bool {
        self.is_given_up.get() || self.endpoint.is_closed.get() || self.source.is_aborted()
    }
}

fn count_datagrams(bytes: &[u8], stride: usize) -> u64 {
    (bytes.len().div_ceil(stride.max(1)) as u64).max(1)
}

/// A client whose datagrams are relayed. Dropping it ends the session.
pub struct DatagramClient(pub(super) Rc<DatagramSession>);

impl DatagramClient {
    /// Returns the core that owns the session.
    #[must_use]
    pub fn core(&self) -> &Core {
        &self.0.endpoint.core
    }

    /// Returns the client, which a trusted proxy may have named.
    #[must_use]
    pub fn peer(&self) -> Peer {
        Peer::Tcp(self.0.key.reported.unwrap_or(self.0.key.peer))
    }

    /// Returns both ends of the client's datagrams.
    #[must_use]
    pub fn endpoints(&self) -> Option<Endpoints> {
        let bound = self.0.endpoint.socket.address();
        let own = SocketAddr::new(self.0.key.local.unwrap_or_else(|| bound.ip()), bound.port());
        Some(self.0.ends.unwrap_or(Endpoints { source: self.0.key.peer, destination: own }))
    }

    /// Sets the observer of the session.
    pub fn set_tap(&self, tap: Rc<dyn DatagramTap>) {
        *self.0.tap.borrow_mut() = Some(tap);
    }

    /// Lets each datagram to the server begin with a header of the PROXY protocol, version 2.
    pub fn send_proxy_header(&self) {
        let mut header = Vec::new();
        proxy_protocol::write_datagram(&mut header, self.endpoints());
        *self.0.header.borrow_mut() = header;
    }

    /// Whether the session must end. If not, registers the waker of `cx` for that event.
    #[must_use]
    pub fn poll_gone(&self, cx: &Context<'_>) -> bool {
        self.0.source.clear(READ);
        let _ = wait::check_or_register(self.core(), &self.0.source, Interest::READ, cx);
        self.0.must_end()
    }

    /// Whether datagrams are kept that may be sent to another server.
    #[must_use]
    pub fn has_unanswered(&self) -> bool {
        !self.0.unanswered.borrow().runs.is_empty()
    }

    /// Drops the datagrams that wait for a server.
    pub fn drop_waiting(&self, reason: DropReason) {
        let runs = std::mem::take(&mut self.0.unanswered.borrow_mut().runs);
        let count = runs.iter().map(|(bytes, stride)| count_datagrams(bytes, *stride)).sum();
        self.0.tap(|tap| tap.dropped(reason, count));
    }

    /// Sends datagrams to this server from now on, those first that no other one has answered.
    pub(super) fn attach(&self, link: &Rc<DatagramLink>) {
        let session = &*self.0;
        session.is_refused.set(false);
        *session.link.borrow_mut() = Some(link.clone());
        for (bytes, stride) in &session.unanswered.borrow().runs {
            session.transmit(link, bytes, *stride);
        }
        session.release(KEPT_BYTES_MAX);
    }

    /// Keeps datagrams again until a server is chosen.
    pub(super) fn detach(&self) {
        *self.0.link.borrow_mut() = None;
    }

    /// Lets the client's next datagram begin another session; answers are passed on for a moment.
    pub(super) fn retire(&self) {
        let session = &self.0;
        session.is_retired.set(true);
        if session.endpoint.sessions.borrow_mut().remove(&session.key, session) {
            session.endpoint.count_unconfirmed(-1);
        }
    }

    /// Forgets the datagrams that were answered.
    pub(super) fn release_answered(&self) {
        self.0.release(0);
    }
}

impl Drop for DatagramClient {
    fn drop(&mut self) {
        self.retire();
        self.detach();
        *self.0.tap.borrow_mut() = None;
        self.0.endpoint.core.deregister(&self.0.source);
    }
}
