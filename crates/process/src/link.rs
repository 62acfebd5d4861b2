//! The link between the two processes of a server that was started as root: the supervisor, which keeps
//! root's privileges, and the server, which has none.
//!
//! The link is a SOCK_SEQPACKET socket; the server's end is its standard input. The server sends requests
//! ([`::link`] defines the protocol); the supervisor sends responses and orders. A packet holds a word,
//! arguments and file descriptors.

use std::fmt;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use apps::{Launch, Launcher, Usage};
pub use link::{DESCRIPTORS_MAX, LinkRequest, TEXT_BYTES_MAX};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::process::{Pid, Signal};

/// The environment variable that marks a process as the server; its value is the supervisor's process id.
pub const ENVIRONMENT: &str = "KOMAINU_SUPERVISOR";

/// The environment variable with the server's user and groups. The supervisor sets it before the server's
/// program starts, so that data received over the link cannot change it.
pub const IDENTITY: &str = "KOMAINU_IDENTITY";

/// Send timeout: how long the other process may leave packets unread.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout for a response of the supervisor.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// A received packet.
#[derive(Debug)]
pub struct Packet {
    /// A word and its arguments, separated by spaces.
    pub text: String,
    /// Descriptors that came with the message.
    pub descriptors: Vec<OwnedFd>,
}

impl Packet {
    /// Splits the text into the first word and the rest.
    pub(crate) fn first_word_and_rest(&self) -> (&str, &str) {
        self.text.split_once(' ').unwrap_or((&self.text, ""))
    }
}

/// Creates a connected pair: the supervisor's end and the server's.
///
/// # Errors
/// The system's error.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (supervisor, server) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    for end in [&supervisor, &server] {
        set_socket_timeout(end, Timeout::Send, Some(SEND_TIMEOUT))?;
    }
    Ok((supervisor, server))
}

/// Opens a log through the supervisor; it must belong to the configuration in force or to the one being
/// loaded.
///
/// # Errors
/// The supervisor cannot open it.
pub(crate) fn open_log(link: &SupervisorLink, path: &Path) -> io::Result<Option<File>> {
    let packet = link.ask(&LinkRequest::OpenLog(path_text(path)?), &[])?;
    Ok(packet.descriptors.into_iter().next().map(File::from))
}

/// Converts a path to an argument of a request.
///
/// # Errors
/// The path is not UTF-8: the configuration, which is UTF-8, cannot name it.
pub(crate) fn path_text(path: &Path) -> io::Result<&str> {
    path.to_str().ok_or_else(|| io::Error::other(format!("the path {} is not text", path.display())))
}

/// Sends a packet; text beyond [`TEXT_BYTES_MAX`] is cut off.
///
/// # Errors
/// The system's error; also if the other process leaves packets unread for 10 s.
pub fn send(link: impl AsFd, text: &str, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    loop {
        match sendmsg(&link, &[IoSlice::new(&text.as_bytes()[..end])], &mut ancillary, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            sent => return sent.map(drop).map_err(Into::into),
        }
    }
}

/// Waits for the next packet; `None` if the other process has ended.
///
/// # Errors
/// The system's error.
pub fn receive(link: impl AsFd) -> io::Result<Option<Packet>> {
    let mut text = vec![0; TEXT_BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let mut pieces = [IoSliceMut::new(&mut text)];
        match recvmsg(&link, &mut pieces, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            Err(Errno::CONNRESET) => return Ok(None),
            received => break received?,
        }
    };
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(more) = message {
            descriptors.extend(more);
        }
    }
    if received.bytes == 0 {
        return Ok(None);
    }
    text.truncate(received.bytes);
    Ok(Some(Packet { text: String::from_utf8_lossy(&text).into_owned(), descriptors }))
}

/// Orders of the supervisor to the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SupervisorOrder {
    /// Finish running requests and exit; a second one exits at once.
    Stop,
    /// Request the configuration and load it.
    Reload,
    /// Request the logs again: their files were moved away.
    Reopen,
    /// An upgrade has succeeded; the message says how.
    Upgraded(String),
    /// An upgrade has failed; the message says why.
    UpgradeFailed(String),
}

impl SupervisorOrder {
    fn of(text: &str) -> Option<SupervisorOrder> {
        match text.split_once(' ').unwrap_or((text, "")) {
            ("stop", "") => Some(SupervisorOrder::Stop),
            ("reload", "") => Some(SupervisorOrder::Reload),
            ("reopen", "") => Some(SupervisorOrder::Reopen),
            ("upgraded", text) => Some(SupervisorOrder::Upgraded(text.to_owned())),
            ("upgrade-failed", text) => Some(SupervisorOrder::UpgradeFailed(text.to_owned())),
            _ => None,
        }
    }

    /// Text of the packet.
    pub fn text(&self) -> String {
        match self {
            SupervisorOrder::Stop => "stop".into(),
            SupervisorOrder::Reload => "reload".into(),
            SupervisorOrder::Reopen => "reopen".into(),
            SupervisorOrder::Upgraded(text) => format!("upgraded {text}"),
            SupervisorOrder::UpgradeFailed(text) => format!("upgrade-failed {text}"),
        }
    }
}

/// Takes the socket that the parent process passed as standard input. `None` unless the environment variable
/// `name` is set; it must contain the parent's process id, and the parent must have made the socket.
///
/// # Errors
/// The standard input is not such a socket, or the variable does not name the parent.
pub(crate) fn inherited(name: &str) -> io::Result<Option<OwnedFd>> {
    let Some(other) = std::env::var_os(name) else { return Ok(None) };
    let parent = rustix::process::getppid();
    let is_parents_name = parent.map(|pid| pid.as_raw_pid().to_string()).as_deref() == other.to_str();
    let socket = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    let peer = rustix::net::sockopt::socket_peercred(&socket).ok().map(|peer| peer.pid);
    if !is_parents_name || peer.is_none() || peer != parent {
        return Err(io::Error::other(format!("{name} is set, and no server started this process")));
    }
    // Otherwise the name would be that of the link to this program by which it was started.
    rustix::thread::set_name(c"komainu")?;
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    Ok(Some(socket))
}

/// Sockets of the listener with this index in the configuration being loaded, bound by the supervisor.
///
/// # Errors
/// The supervisor cannot bind them.
pub fn request_sockets(link: &SupervisorLink, index: usize) -> io::Result<Vec<OwnedFd>> {
    let mut sockets = Vec::new();
    loop {
        let packet = link.ask(&LinkRequest::Sockets { listener: index, from: sockets.len() }, &[])?;
        let count: usize = packet.first_word_and_rest().1.parse().map_err(|_| link_closed())?;
        if packet.descriptors.is_empty() {
            return Err(link_closed());
        }
        sockets.extend(packet.descriptors);
        if sockets.len() >= count {
            return Ok(sockets);
        }
    }
}

/// The server's end of the link. Cheap to clone.
#[derive(Clone)]
pub struct SupervisorLink(Arc<SupervisorSocket>);

struct SupervisorSocket {
    socket: OwnedFd,
    /// Receiver of responses; locked for one request at a time.
    answers: Mutex<Receiver<Packet>>,
    incoming: Mutex<Option<Sender<Packet>>>,
    /// Orders received before [`SupervisorLink::listen`].
    early_orders: Mutex<Vec<SupervisorOrder>>,
}

impl SupervisorLink {
    /// Takes the link of a process that a supervisor has started; `None` in all other processes.
    ///
    /// # Errors
    /// The standard input is not the link that the environment announces.
    pub(crate) fn inherited() -> io::Result<Option<SupervisorLink>> {
        let Some(socket) = inherited(ENVIRONMENT)? else { return Ok(None) };
        let (sender, answers) = channel();
        let shared = SupervisorSocket {
            socket,
            answers: Mutex::new(answers),
            incoming: Mutex::new(Some(sender)),
            early_orders: Mutex::default(),
        };
        Ok(Some(SupervisorLink(Arc::new(shared))))
    }

    /// Requests the state that a server needs to start; returns all packets of the response before `end`.
    /// Call this before [`SupervisorLink::listen`].
    ///
    /// # Errors
    /// The system's error, or the supervisor has ended or reports an error.
    pub(crate) fn start(&self) -> io::Result<Vec<Packet>> {
        send(&self.0.socket, &LinkRequest::Start.to_string(), &[])?;
        let mut packets = Vec::new();
        loop {
            let packet = receive(&self.0.socket)?.ok_or_else(link_closed)?;
            if let Some(order) = SupervisorOrder::of(&packet.text) {
                self.0.early_orders.lock().unwrap_or_else(PoisonError::into_inner).push(order);
                continue;
            }
            match packet.first_word_and_rest() {
                ("end", _) => return Ok(packets),
                ("error", text) => return Err(io::Error::other(text.to_owned())),
                _ => packets.push(packet),
            }
        }
    }

    /// Starts a thread that passes orders to `handler`, and a [`SupervisorOrder::Stop`] once the supervisor has
    /// ended.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn listen(&self, handler: impl Fn(SupervisorOrder) + Send + 'static) -> io::Result<()> {
        let link = self.clone();
        let sender = self.0.incoming.lock().unwrap_or_else(PoisonError::into_inner).take();
        let early = std::mem::take(&mut *self.0.early_orders.lock().unwrap_or_else(PoisonError::into_inner));
        early.into_iter().for_each(&handler);
        std::thread::Builder::new().name("supervisor-link".into()).spawn(move || {
            while let Ok(Some(packet)) = receive(&link.0.socket) {
                match SupervisorOrder::of(&packet.text) {
                    Some(order) => handler(order),
                    // The request of a late response has timed out.
                    None => _ = sender.as_ref().map(|sender| sender.send(packet)),
                }
            }
            handler(SupervisorOrder::Stop);
        })?;
        Ok(())
    }

    /// Sends a request and waits for the response. Descriptors that exceed one packet are sent ahead of it.
    ///
    /// # Errors
    /// The link failed, the supervisor did not answer within 60 s, or it reports an error.
    pub fn ask(&self, request: &LinkRequest<'_>, descriptors: &[BorrowedFd<'_>]) -> io::Result<Packet> {
        let answers = self.0.answers.lock().unwrap_or_else(PoisonError::into_inner);
        // Drop late responses to earlier requests.
        while answers.try_recv().is_ok() {}
        let mut pieces = descriptors.chunks(DESCRIPTORS_MAX);
        let last = pieces.next_back().unwrap_or_default();
        pieces.try_for_each(|piece| send(&self.0.socket, &LinkRequest::More.to_string(), piece))?;
        send(&self.0.socket, &request.to_string(), last)?;
        let packet = answers.recv_timeout(ANSWER_TIMEOUT).map_err(|_| link_closed())?;
        match packet.first_word_and_rest() {
            ("error", text) => Err(io::Error::other(text.to_owned())),
            _ => Ok(packet),
        }
    }

    /// Sends a request that has no response.
    pub fn send_without_reply(&self, request: &LinkRequest<'_>) {
        // A supervisor that has ended needs no report; the listening thread stops the server.
        let _ = send(&self.0.socket, &request.to_string(), &[]);
    }

    /// Creates the launcher of an application with a `user` of its own.
    pub fn launcher(&self, app: &str) -> AppLauncher {
        AppLauncher { link: self.clone(), app: app.to_owned() }
    }
}

impl fmt::Debug for SupervisorLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SupervisorLink")
    }
}

/// Launcher for an application with a `user` of its own: the supervisor starts and ends its processes.
#[derive(Debug)]
pub struct AppLauncher {
    link: SupervisorLink,
    app: String,
}

impl Launcher for AppLauncher {
    fn start(&self, launch: &Launch<'_>) -> io::Result<(Pid, OwnedFd)> {
        let slots = launch.worker_slots.clone().unwrap_or(0..0);
        let app = &*self.app;
        let first_slot = slots.start;
        let slots = slots.len();
        let threads = launch.threads;
        let request = LinkRequest::Launch { app, first_slot, slots, threads };
        let packet = self.link.ask(&request, &launch.descriptors())?;
        let pid = packet.text.strip_prefix("pid ").and_then(|pid| Pid::from_raw(pid.parse().ok()?));
        let started = pid.zip(packet.descriptors.into_iter().next());
        started.ok_or_else(|| io::Error::other("the supervisor names no process"))
    }

    fn signal(&self, process: BorrowedFd<'_>, signal: Signal) {
        let request = LinkRequest::Signal { app: &self.app, signal: signal.as_raw() };
        // A supervisor that has ended has also ended its processes.
        let _ = send(&self.link.0.socket, &request.to_string(), &[process]);
    }

    fn exit_status(&self, pid: Pid) -> Option<Result<i32, i32>> {
        let packet =
            self.link.ask(&LinkRequest::Ended { pid: pid.as_raw_pid().cast_unsigned() }, &[]).ok()?;
        match packet.first_word_and_rest() {
            ("exited", code) => code.parse().ok().map(Ok),
            ("killed", signal) => signal.parse().ok().map(Err),
            _ => None,
        }
    }

    fn usage(&self, process: BorrowedFd<'_>) -> Option<Usage> {
        usage_of(&self.link.ask(&LinkRequest::Usage { app: &self.app }, &[process]).ok()?)
    }

    fn open_file(&self, process: BorrowedFd<'_>, number: u32) -> io::Result<OwnedFd> {
        let packet = self.link.ask(&LinkRequest::File { app: &self.app, number }, &[process])?;
        packet.descriptors.into_iter().next().ok_or_else(|| io::Error::other("the supervisor sends none"))
    }
}

impl SupervisorLink {
    /// Resource usage of the supervisor; `None` if it does not answer.
    pub fn supervisor_usage(&self) -> Option<Usage> {
        usage_of(&self.ask(&LinkRequest::OwnUsage, &[]).ok()?)
    }
}

fn usage_of(packet: &Packet) -> Option<Usage> {
    let (_, numbers) = packet.first_word_and_rest();
    let numbers: Option<Vec<u64>> = numbers.split(' ').map(|number| number.parse().ok()).collect();
    match *numbers?.as_slice() {
        [cpu_ms, rss_bytes, pss_bytes, private_dirty_bytes] => {
            Some(Usage { cpu_ms, rss_bytes, pss_bytes, private_dirty_bytes })
        }
        _ => None,
    }
}

fn link_closed() -> io::Error {
    io::Error::other("the supervisor does not answer")
}
