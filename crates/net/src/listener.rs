//! Listening sockets: made, accepted from, paused.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::{AddressFamily, SocketAddrAny, SocketAddrUnix, SocketFlags, SocketType};

use crate::address::{Bind, Listen, Peer, Sources};
use crate::announced::AwaitingProxyHeader;
use crate::core::Core;
use crate::h1::IdleClient;
use crate::link::Link;
use crate::memory::Pressure;
use crate::remote::Remote;
use crate::service::Engine;
use crate::service::Service;
use crate::source::{READ, Source};
use crate::stream::{self, Stream};

/// Connections that one wake-up accepts before others get their turn.
const ACCEPT_BATCH: usize = 64;
/// Idle connections closed at once to make room: more than the one needed, because looking for them costs a walk
/// over all, but no more than a sixteenth of the seats.
const MAKE_ROOM_MAX: usize = 32;
/// How often it is looked whether one of the connections is silent for long enough by now, when all seats are taken.
const FULL_MS: u64 = 200;
/// How long accepting pauses when the process is out of descriptors or of memory.
const EXHAUSTED_MS: u64 = 50;
/// Length of the kernel's queue of newcomers; it cuts this to `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// A bound, listening socket.
#[derive(Clone, Debug)]
pub(crate) enum Listening {
    /// One socket per core, among which the kernel distributes connections (SO_REUSEPORT).
    PerCore(Arc<OwnedFd>),
    /// One socket for all cores: Unix sockets know no SO_REUSEPORT.
    Shared(Arc<SharedListener>),
}

/// A socket that several cores accept from. The kernel wakes one of them for a newcomer: one that has no seat for it
/// notifies the others.
#[derive(Debug)]
pub(crate) struct SharedListener {
    socket: OwnedFd,
    /// The task of each core that accepts.
    acceptors: Mutex<Vec<(Arc<Remote>, u32)>>,
}

impl SharedListener {
    fn acceptors(&self) -> MutexGuard<'_, Vec<(Arc<Remote>, u32)>> {
        self.acceptors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ring(&self, core: &Core) {
        let own = core.remote();
        for (remote, task) in self.acceptors().iter().filter(|(remote, _)| !Arc::ptr_eq(remote, &own)) {
            remote.wake(*task);
        }
    }
}

impl Listening {
    pub(crate) fn fd(&self) -> &OwnedFd {
        match self {
            Listening::PerCore(fd) => fd,
            Listening::Shared(shared) => &shared.socket,
        }
    }

    /// The cores that share it, if they do.
    fn shared(&self) -> Option<&SharedListener> {
        match self {
            Listening::PerCore(_) => None,
            Listening::Shared(shared) => Some(shared),
        }
    }
}

/// A listening socket, and who may come in with a PROXY protocol header; without such, everybody comes as he is.
pub(crate) type Door = (Listening, Option<Arc<Sources>>);

/// The listening sockets of one address. A process that may bind them can hand their descriptors to one that may not.
#[derive(Debug)]
pub struct Listener {
    pub(crate) address: Bind,
    pub(crate) proxy_protocol: Option<Arc<Sources>>,
    pub(crate) sockets: Vec<Listening>,
    /// Removed with the listener, by the process that bound it.
    file: Option<SocketFile>,
}

impl Listener {
    /// Binds the address for a server of so many threads.
    ///
    /// # Errors
    /// The system's, with the address that could not be bound.
    pub fn bind(listen: Listen, threads: usize) -> io::Result<Listener> {
        let Listen { at, proxy_protocol } = listen;
        let (address, sockets) = bind(&at, threads.max(1))
            .map_err(|error| io::Error::new(error.kind(), format!("cannot listen on {at}: {error}")))?;
        let file = match &address {
            Bind::Unix(path) => Some(SocketFile::of(path)?),
            _ => None,
        };
        Ok(Listener { address, proxy_protocol: proxy_protocol.map(Arc::new), sockets, file })
    }

    /// The listener of descriptors that another process has bound to this address.
    ///
    /// # Errors
    /// `InvalidInput` where they are not one for each thread, or one for a Unix socket; the system's.
    pub fn adopt(listen: Listen, mut descriptors: Vec<OwnedFd>, threads: usize) -> io::Result<Listener> {
        let Listen { at, proxy_protocol } = listen;
        let wanted = if matches!(at, Bind::Unix(_)) { 1 } else { threads.max(1) };
        let (Some(first), true) = (descriptors.first(), descriptors.len() == wanted) else {
            let text = format!("{at}: {} descriptors where {wanted} are needed", descriptors.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        };
        let bound = SocketAddr::try_from(rustix::net::getsockname(first)?);
        let address = match (at, bound) {
            (Bind::Any(_), Ok(bound)) if bound.is_ipv6() => Bind::Any(bound.port()),
            (Bind::Any(_) | Bind::Tcp(_), Ok(bound)) => Bind::Tcp(bound),
            (at, _) => at,
        };
        let sockets = match descriptors.pop() {
            Some(socket) if matches!(address, Bind::Unix(_)) => {
                let shared = SharedListener { socket, acceptors: Mutex::default() };
                vec![Listening::Shared(Arc::new(shared)); threads.max(1)]
            }
            last => descriptors.into_iter().chain(last).map(|fd| Listening::PerCore(Arc::new(fd))).collect(),
        };
        Ok(Listener { address, proxy_protocol: proxy_protocol.map(Arc::new), sockets, file: None })
    }

    /// Its address, with the port that the kernel chose.
    #[must_use]
    pub fn address(&self) -> &Bind {
        &self.address
    }

    /// Its descriptors, to hand to another process: one for each thread, or one for a Unix socket.
    #[must_use]
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let count = if matches!(self.address, Bind::Unix(_)) { 1 } else { self.sockets.len() };
        self.sockets.iter().take(count).map(|listening| listening.fd().as_fd()).collect()
    }

    /// The file of a Unix socket that this process has bound.
    pub(crate) fn take_file(&mut self) -> Option<SocketFile> {
        self.file.take()
    }
}

/// Binds an address once for each of `cores` threads; returns the address with the port that the kernel chose.
///
/// # Errors
/// The system's, where the address is taken, not ours, or not permitted.
fn bind(bind: &Bind, cores: usize) -> io::Result<(Bind, Vec<Listening>)> {
    match bind {
        Bind::Unix(path) => {
            let shared = SharedListener { socket: bind_unix(path)?, acceptors: Mutex::default() };
            Ok((bind.clone(), vec![Listening::Shared(Arc::new(shared)); cores]))
        }
        Bind::Tcp(address) => {
            let (address, sockets) = bind_tcp(*address, address.is_ipv6(), cores)?;
            Ok((Bind::Tcp(address), sockets))
        }
        Bind::Any(port) => match bind_tcp((Ipv6Addr::UNSPECIFIED, *port).into(), false, cores) {
            Ok((address, sockets)) => Ok((Bind::Any(address.port()), sockets)),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(error),
            // No IPv6 here: it is switched off on many a container host.
            Err(_) => {
                let (address, sockets) = bind_tcp((Ipv4Addr::UNSPECIFIED, *port).into(), false, cores)?;
                Ok((Bind::Tcp(address), sockets))
            }
        },
    }
}

/// Looks for a free port so often, where the system is to choose one.
const CHOICES: u32 = 16;

fn bind_tcp(address: SocketAddr, v6_only: bool, cores: usize) -> io::Result<(SocketAddr, Vec<Listening>)> {
    let mut choices = if address.port() == 0 { CHOICES } else { 1 };
    loop {
        choices -= 1;
        match bind_once(address, v6_only, cores) {
            // Between the choice and its use somebody else may have been given the same port.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && choices > 0 => {}
            bound => return bound,
        }
    }
}

fn bind_once(address: SocketAddr, v6_only: bool, cores: usize) -> io::Result<(SocketAddr, Vec<Listening>)> {
    // First without SO_REUSEPORT: else a second server of the same user would share the port silently.
    let probe = tcp_socket(address, v6_only, false)?;
    rustix::net::bind(&probe, &address)?;
    rustix::net::listen(&probe, 1)?;
    let bound = SocketAddr::try_from(rustix::net::getsockname(&probe)?)?;
    drop(probe);
    let mut sockets = Vec::with_capacity(cores);
    for _ in 0..cores {
        let socket = tcp_socket(bound, v6_only, true)?;
        rustix::net::bind(&socket, &bound)?;
        rustix::net::listen(&socket, BACKLOG)?;
        sockets.push(Listening::PerCore(Arc::new(socket)));
    }
    Ok((bound, sockets))
}

fn tcp_socket(address: SocketAddr, v6_only: bool, reuse_port: bool) -> io::Result<OwnedFd> {
    // What it sets holds for the sockets accepted from it: one call here instead of one a connection.
    let socket = stream::tcp_socket(address.ip())?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if reuse_port {
        sockopt::set_socket_reuseport(&socket, true)?;
    }
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, v6_only)?;
    }
    Ok(socket)
}

fn bind_unix(path: &Path) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let new = || rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let socket = new()?;
    match rustix::net::bind(&socket, &address) {
        Err(Errno::ADDRINUSE) => {
            // A socket file outlives its server: one that nobody answers on is a leftover.
            match rustix::net::connect(&new()?, &address) {
                // Connections to what is no socket are refused as well, and that is not ours to remove.
                Err(Errno::CONNREFUSED) if is_socket(path) => std::fs::remove_file(path)?,
                _ => return Err(Errno::ADDRINUSE.into()),
            }
            rustix::net::bind(&socket, &address)?;
        }
        bound => bound?,
    }
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

fn is_socket(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket())
}

/// The file of a Unix socket, removed when this is dropped, unless another server has replaced it.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl SocketFile {
    /// The one that [`bind`] has just made.
    pub(crate) fn of(path: &Path) -> io::Result<SocketFile> {
        Ok(SocketFile { path: path.to_path_buf(), identity: identity(path)? })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|identity| identity == self.identity) {
            // Somebody else may remove it just now, to the same end.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let file = std::fs::symlink_metadata(path)?;
    Ok((file.dev(), file.ino()))
}

/// Accepts until the server drains; then takes what the kernel has queued, and closes the socket.
pub(crate) async fn accept<S: Service>(
    engine: Rc<Engine<S>>,
    (listening, announcers): Door,
    source: Rc<Source>,
) {
    let core = engine.context.core.clone();
    watch(&core, listening.fd(), &source).await;
    let shared = listening.shared();
    let is_tcp = shared.is_none();
    if let Some(shared) = shared {
        shared.acceptors().push((core.remote(), core.current()));
    }
    loop {
        match accept_batch(&engine, listening.fd(), is_tcp, announcers.as_ref()) {
            Pause::Empty if engine.context.draining.get() => break,
            Pause::Empty => wait(&core, &source, true).await,
            Pause::Batch => core.yield_now().await,
            Pause::Full => {
                // Newcomers wait in the kernel's queue; a seat that gets free wakes us.
                core.unwatch(listening.fd());
                engine.context.connection_limit.waiting.borrow_mut().push(source.clone());
                if let Some(shared) = shared {
                    shared.ring(&core);
                }
                // Not only for that: a connection that is silent may be closed a moment later.
                source.set_deadline(core.now_ms() + FULL_MS);
                wait(&core, &source, false).await;
                source.set_deadline(u64::MAX);
                engine
                    .context
                    .connection_limit
                    .waiting
                    .borrow_mut()
                    .retain(|waiting| !Rc::ptr_eq(waiting, &source));
                watch(&core, listening.fd(), &source).await;
            }
            Pause::Exhausted => {
                core.unwatch(listening.fd());
                core.sleep(EXHAUSTED_MS).await;
                watch(&core, listening.fd(), &source).await;
            }
        }
    }
    core.unwatch(listening.fd());
    core.deregister(&source);
}

/// Registers the listener; tries again where the kernel has no memory for that now.
async fn watch(core: &Core, listener: &OwnedFd, source: &Rc<Source>) {
    while core.watch_listener(listener, source).is_err() {
        core.sleep(EXHAUSTED_MS).await;
    }
}

/// Waits for newcomers, or for a seat, until the deadline; also for a word of another core, if `rung`.
async fn wait(core: &Core, source: &Rc<Source>, rung: bool) {
    source.clear(READ);
    source.take_expired();
    let mut waited = false;
    std::future::poll_fn(|_| {
        // Whoever else runs this task does no harm: nobody is there to be accepted.
        if source.ready() & READ != 0
            || source.take_expired()
            || (std::mem::replace(&mut waited, true) && rung)
        {
            return std::task::Poll::Ready(());
        }
        source.wait_read(core.current());
        std::task::Poll::Pending
    })
    .await;
}

enum Pause {
    Empty,
    Batch,
    Full,
    Exhausted,
}

fn accept_batch<S: Service>(
    engine: &Rc<Engine<S>>,
    listener: &OwnedFd,
    is_tcp: bool,
    announcers: Option<&Arc<Sources>>,
) -> Pause {
    let context = &engine.context;
    let make_room = (context.connection_limit.max / 16).clamp(1, MAKE_ROOM_MAX);
    if context.core.memory().pressure() == Pressure::Exhausted {
        return Pause::Exhausted;
    }
    for _ in 0..ACCEPT_BATCH {
        if context.connection_limit.taken.get() >= context.connection_limit.max {
            // Only for somebody who is there.
            if !has_newcomer(listener) {
                return Pause::Empty;
            }
            if context.core.close_idle(make_room) == 0 {
                return Pause::Full;
            }
        }
        match accept_one(listener) {
            Ok((socket, peer)) => {
                context.counters.connections.add(1);
                let Ok(stream) = Stream::new(&context.core, socket) else { return Pause::Exhausted };
                let idle =
                    IdleClient::new(engine, Link::Plain(stream), if is_tcp { peer } else { Peer::Unix });
                match announcers {
                    None => idle.park(),
                    Some(sources) => AwaitingProxyHeader::park(idle, sources.clone()),
                }
            }
            Err(Errno::AGAIN) => return Pause::Empty,
            Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                if context.core.close_idle(make_room) == 0 {
                    return Pause::Exhausted;
                }
            }
            // The newcomer's own fault, or a signal: the next one may be fine.
            Err(_) => {}
        }
    }
    Pause::Batch
}

fn has_newcomer(listener: &OwnedFd) -> bool {
    let mut poll = [PollFd::new(listener, PollFlags::IN)];
    matches!(rustix::event::poll(&mut poll, Some(&Timespec::default())), Ok(1))
}

fn accept_one(listener: &OwnedFd) -> Result<(OwnedFd, Peer), Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let (socket, address) = rustix::net::acceptfrom_with(listener, flags)?;
    let peer = address.and_then(|address: SocketAddrAny| SocketAddr::try_from(address).ok());
    Ok((socket, peer.map_or(Peer::Unix, Peer::Tcp)))
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, TcpStream};

    use super::*;

    #[test]
    fn loopback_is_not_paced_and_the_rest_is_as_the_system_is_set() {
        let system = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap();
        let control = |socket: &OwnedFd| sockopt::tcp_congestion(socket).unwrap();
        for (ip, wanted) in [
            (IpAddr::from([127, 0, 0, 1]), "reno"),
            (Ipv6Addr::LOCALHOST.into(), "reno"),
            (Ipv4Addr::LOCALHOST.to_ipv6_mapped().into(), "reno"),
            (Ipv4Addr::UNSPECIFIED.into(), system.trim()),
            (IpAddr::from([192, 0, 2, 1]), system.trim()),
        ] {
            assert_eq!(control(&stream::tcp_socket(ip).unwrap()), wanted, "{ip}");
        }
        let (address, sockets) = bind_tcp(([127, 0, 0, 1], 0).into(), false, 1).unwrap();
        let _client = TcpStream::connect(address).unwrap();
        let (accepted, _) = accept_one(sockets[0].fd()).unwrap();
        assert_eq!(control(&accepted), "reno", "a socket accepted from the listener");
    }
}
