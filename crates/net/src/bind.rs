//! Listening sockets: bound here, or taken over from another process.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::FileType;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use crate::address::{Bind, Listen, ListenUrl, Sources, StreamListener};
use crate::core::Core;
use crate::remote::Remote;
use crate::stream;
use crate::trusted_path::TrustedPlace;

/// Length of the kernel's queue of newcomers; it cuts this to `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// A listening socket. Of a TCP address each core has one of its own as a rule, between which the kernel distributes connections (SO_REUSEPORT);
/// a Unix socket, and a socket that another process has bound, may have several cores that accept from it. The kernel
/// wakes one of them for a newcomer: one that has no permit for it wakes the others.
#[derive(Debug)]
pub(crate) struct Listening {
    socket: OwnedFd,
    is_tcp: bool,
    /// The task of each core that accepts.
    acceptors: Mutex<Vec<(Arc<Remote>, u32)>>,
}

impl Listening {
    fn new(socket: OwnedFd, is_tcp: bool) -> Arc<Listening> {
        Arc::new(Listening { socket, is_tcp, acceptors: Mutex::default() })
    }

    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.socket
    }

    pub(crate) fn is_tcp(&self) -> bool {
        self.is_tcp
    }

    fn acceptors(&self) -> MutexGuard<'_, Vec<(Arc<Remote>, u32)>> {
        self.acceptors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The current task of this core accepts from now on.
    pub(crate) fn add_acceptor(&self, core: &Core) {
        self.acceptors().push((core.remote(), core.current()));
    }

    /// The current task of this core does no longer.
    pub(crate) fn remove_acceptor(&self, core: &Core) {
        let (own, task) = (core.remote(), core.current());
        self.acceptors().retain(|(remote, other)| !(Arc::ptr_eq(remote, &own) && *other == task));
    }

    /// Wakes those of other cores.
    pub(crate) fn ring_others(&self, core: &Core) {
        let own = core.remote();
        for (remote, task) in self.acceptors().iter().filter(|(remote, _)| !Arc::ptr_eq(remote, &own)) {
            remote.wake(*task);
        }
    }
}

/// The listening sockets of one address. A process that may bind them can hand their descriptors to one that may not.
#[derive(Debug)]
pub struct Listener {
    /// What was asked for; port 0 where the kernel was to choose.
    asked: Bind,
    address: Bind,
    pub(crate) proxy_protocol: Option<Arc<Sources>>,
    /// Connections speak TLS.
    pub(crate) is_tls: bool,
    /// Connections may begin with HTTP/2.
    pub(crate) h2c: bool,
    /// Connections may be relayed.
    pub(crate) streams: Option<Arc<StreamListener>>,
    /// [`Listen::key`].
    pub(crate) key: u64,
    sockets: Vec<Arc<Listening>>,
    /// Removed with the listener, by the process that owns it.
    file: Option<SocketFile>,
    /// Whether this process may own the file.
    may_own_file: bool,
}

impl Listener {
    /// Binds the address for a server of so many threads.
    ///
    /// # Errors
    /// The system's, with the address that could not be bound.
    pub fn bind(listen: Listen, threads: usize) -> io::Result<Listener> {
        Listener::bind_beside(listen, threads, &[])
    }

    /// The same, beside addresses that this process listens on already: the port of one of them may be bound for another
    /// address.
    ///
    /// # Errors
    /// As [`Listener::bind`]'s.
    pub fn bind_beside(listen: Listen, threads: usize, open: &[Bind]) -> io::Result<Listener> {
        let at = &listen.at;
        let port = at.port().filter(|port| *port != 0);
        let is_ours = port.is_some() && open.iter().any(|open| open.port() == port);
        let (address, sockets) = bind(at, threads.max(1), is_ours).map_err(|error| {
            let is_stream = listen.streams.as_ref().is_some_and(|streams| streams.is_only);
            let url = ListenUrl { at: at.clone(), is_tls: listen.tls, is_stream };
            io::Error::new(error.kind(), format!("cannot listen on {url}: {error}"))
        })?;
        let file = match &address {
            Bind::Unix(path) => Some(SocketFile::of(path)?),
            _ => None,
        };
        Ok(Listener::of(listen, address, sockets, file, true))
    }

    /// The listener of descriptors that another process has bound to this address, one or more. Whether it
    /// `may_own_file`, that of a Unix socket: see [`Listener::own_file`].
    ///
    /// # Errors
    /// `InvalidInput` where there is none, or one is no stream socket; the system's.
    pub fn adopt(listen: Listen, descriptors: Vec<OwnedFd>, may_own_file: bool) -> io::Result<Listener> {
        let at = &listen.at;
        let invalid = |text: &str| io::Error::new(io::ErrorKind::InvalidInput, format!("{at}: {text}"));
        let first = descriptors.first().ok_or_else(|| invalid("there is no descriptor"))?;
        let address = bound_address(first)?;
        let is_tcp = !matches!(address, Bind::Unix(_));
        if is_tcp == matches!(at, Bind::Unix(_)) {
            return Err(invalid("the descriptors are of another kind of address"));
        }
        let mut sockets = Vec::new();
        for socket in descriptors {
            if sockopt::socket_type(&socket)? != SocketType::STREAM {
                return Err(invalid("a descriptor is no stream socket"));
            }
            rustix::io::ioctl_fionbio(&socket, true)?;
            rustix::net::listen(&socket, BACKLOG)?;
            sockets.push(Listening::new(socket, is_tcp));
        }
        let address = if is_tcp { address } else { at.clone() };
        Ok(Listener::of(listen, address, sockets, None, may_own_file))
    }

    fn of(
        listen: Listen,
        address: Bind,
        sockets: Vec<Arc<Listening>>,
        file: Option<SocketFile>,
        may_own_file: bool,
    ) -> Listener {
        let Listen { at, proxy_protocol, tls, h2c, streams, key } = listen;
        Listener {
            asked: at,
            address,
            proxy_protocol: proxy_protocol.map(Arc::new),
            is_tls: tls,
            h2c,
            streams: streams.map(Arc::new),
            key,
            sockets,
            file,
            may_own_file,
        }
    }

    /// Its address, with the port that the kernel chose.
    #[must_use]
    pub fn address(&self) -> &Bind {
        &self.address
    }

    /// Its address, with what is spoken there.
    #[must_use]
    pub fn url(&self) -> ListenUrl {
        let is_stream = self.streams.as_ref().is_some_and(|streams| streams.is_only);
        ListenUrl { at: self.address.clone(), is_tls: self.is_tls, is_stream }
    }

    /// Whether it serves what `at` asks for.
    #[must_use]
    pub fn is_at(&self, at: &Bind) -> bool {
        self.asked == *at || self.address == *at
    }

    /// Its descriptors, to hand to another process.
    #[must_use]
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.sockets.iter().map(|listening| listening.fd().as_fd()).collect()
    }

    /// Whether the file of a Unix socket is removed with this listener.
    #[must_use]
    pub fn owns_file(&self) -> bool {
        self.file.is_some()
    }

    /// Removes the file of a Unix socket with this listener, if that is a process's at all; or leaves it to another process.
    ///
    /// # Errors
    /// The system's, where there is no such file.
    pub fn own_file(&mut self, owns: bool) -> io::Result<()> {
        match (&self.address, owns) {
            (Bind::Unix(path), true) if self.may_own_file && self.file.is_none() => {
                self.file = Some(SocketFile::of(path)?)
            }
            (_, false) => self.file.take().map(SocketFile::disown).unwrap_or_default(),
            _ => {}
        }
        Ok(())
    }

    /// Takes over everything but the address; whether nothing differs.
    pub(crate) fn set_options(&mut self, listen: Listen) -> bool {
        let proxy_protocol = listen.proxy_protocol.map(Arc::new);
        self.asked = listen.at;
        let streams = listen.streams.map(Arc::new);
        let is_same = self.proxy_protocol == proxy_protocol
            && (self.is_tls, self.h2c, self.key) == (listen.tls, listen.h2c, listen.key)
            && self.streams == streams;
        (self.proxy_protocol, self.streams) = (proxy_protocol, streams);
        (self.is_tls, self.h2c, self.key) = (listen.tls, listen.h2c, listen.key);
        is_same
    }

    /// The sockets that core `index` of `cores` accepts from: each socket has a core, and each core has a socket.
    pub(crate) fn sockets_of(&self, index: usize, cores: usize) -> impl Iterator<Item = &Arc<Listening>> {
        let count = self.sockets.len();
        (index..count.max(cores)).step_by(cores.max(1)).map(move |at| &self.sockets[at % count])
    }
}

/// The address that a listening socket is bound to. A socket for every address is [`Bind::Any`] if it takes IPv4 and IPv6.
///
/// # Errors
/// The system's; where it is bound to no address, or to one of another kind.
pub fn bound_address(socket: &impl AsFd) -> io::Result<Bind> {
    let name = rustix::net::getsockname(socket)?;
    if let Ok(address) = SocketAddr::try_from(name.clone()) {
        let is_any = address.is_ipv6() && address.ip().is_unspecified() && !sockopt::ipv6_v6only(socket)?;
        return Ok(if is_any { Bind::Any(address.port()) } else { Bind::Tcp(address) });
    }
    let unix = SocketAddrUnix::try_from(name).ok();
    let path = unix.as_ref().and_then(|address| address.path_bytes());
    match path {
        Some(path) => Ok(Bind::Unix(PathBuf::from(std::ffi::OsStr::from_bytes(path)))),
        None => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the socket has neither a TCP address nor a path",
        )),
    }
}

/// Binds an address once for each of `cores` threads; returns the address with the port that the kernel chose. Whether the port
/// `is_ours` already.
///
/// # Errors
/// The system's, where the address is taken, not ours, or not permitted.
fn bind(bind: &Bind, cores: usize, is_ours: bool) -> io::Result<(Bind, Vec<Arc<Listening>>)> {
    match bind {
        Bind::Unix(path) => Ok((bind.clone(), vec![Listening::new(bind_unix(path)?, false)])),
        Bind::Tcp(address) => {
            let (address, sockets) = bind_tcp(*address, address.is_ipv6(), cores, is_ours)?;
            Ok((Bind::Tcp(address), sockets))
        }
        Bind::Any(port) => match bind_tcp((Ipv6Addr::UNSPECIFIED, *port).into(), false, cores, is_ours) {
            Ok((address, sockets)) => Ok((Bind::Any(address.port()), sockets)),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(error),
            // No IPv6 here: it is switched off on many a container host.
            Err(_) => {
                let any = (Ipv4Addr::UNSPECIFIED, *port).into();
                let (address, sockets) = bind_tcp(any, false, cores, is_ours)?;
                Ok((Bind::Tcp(address), sockets))
            }
        },
    }
}

/// Looks for a free port so often, where the system is to choose one.
const CHOICES: u32 = 16;

fn bind_tcp(
    address: SocketAddr,
    v6_only: bool,
    cores: usize,
    is_ours: bool,
) -> io::Result<(SocketAddr, Vec<Arc<Listening>>)> {
    let mut choices = if address.port() == 0 { CHOICES } else { 1 };
    loop {
        choices -= 1;
        match bind_once(address, v6_only, cores, is_ours) {
            // Between the choice and its use somebody else may have been given the same port.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && choices > 0 => {}
            bound => return bound,
        }
    }
}

fn bind_once(
    address: SocketAddr,
    v6_only: bool,
    cores: usize,
    is_ours: bool,
) -> io::Result<(SocketAddr, Vec<Arc<Listening>>)> {
    let bound = if is_ours { address } else { free_address(address, v6_only)? };
    let mut sockets = Vec::with_capacity(cores);
    for _ in 0..cores {
        let socket = tcp_socket(bound, v6_only, true)?;
        rustix::net::bind(&socket, &bound)?;
        rustix::net::listen(&socket, BACKLOG)?;
        sockets.push(Listening::new(socket, true));
    }
    Ok((bound, sockets))
}

/// The address, with the port that the kernel chose, if nobody listens there. Bound without SO_REUSEPORT: else a second
/// server of the same user would share the port silently.
fn free_address(address: SocketAddr, v6_only: bool) -> io::Result<SocketAddr> {
    let probe = tcp_socket(address, v6_only, false)?;
    rustix::net::bind(&probe, &address)?;
    rustix::net::listen(&probe, 1)?;
    Ok(SocketAddr::try_from(rustix::net::getsockname(&probe)?)?)
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
    let place = TrustedPlace::of(path)?;
    // The kernel shows the path of this call, so the configured one is used where others cannot have it lead elsewhere meanwhile.
    let address =
        if place.is_certain() { SocketAddrUnix::new(path)? } else { SocketAddrUnix::new(place.path())? };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let new = || rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let socket = new()?;
    match rustix::net::bind(&socket, &address) {
        // A socket file outlives its server: one that nobody answers on is a leftover. What is no socket is not ours to remove.
        Err(Errno::ADDRINUSE) if is_socket(&place) => {
            match rustix::net::connect(&new()?, &address) {
                Err(Errno::CONNREFUSED) if is_socket(&place) => place.remove()?,
                _ => return Err(Errno::ADDRINUSE.into()),
            }
            rustix::net::bind(&socket, &address)?;
        }
        bound => bound?,
    }
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

fn is_socket(place: &TrustedPlace) -> bool {
    place.stat().is_ok_and(|file| FileType::from_raw_mode(file.st_mode) == FileType::Socket)
}

/// Removes the file of a Unix socket that nobody listens on any more, if it is one.
pub fn remove_socket(path: &Path) {
    if let Ok(place) = TrustedPlace::of(path)
        && is_socket(&place)
    {
        // Somebody else may have removed it.
        let _ = place.remove();
    }
}

/// The file of a Unix socket, removed when this is dropped, unless another server has replaced it.
#[derive(Debug)]
pub(crate) struct SocketFile {
    place: TrustedPlace,
    /// `None` where it is no longer this process's to remove.
    identity: Option<(u64, u64)>,
}

impl SocketFile {
    /// The one that [`bind`] has just made.
    pub(crate) fn of(path: &Path) -> io::Result<SocketFile> {
        let place = TrustedPlace::of(path)?;
        Ok(SocketFile { identity: Some(identity(&place)?), place })
    }

    /// Leaves the file to its next owner.
    fn disown(mut self) {
        self.identity = None;
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.identity.is_some() && identity(&self.place).ok() == self.identity {
            // Somebody else may remove it just now, to the same end.
            let _ = self.place.remove();
        }
    }
}

fn identity(place: &TrustedPlace) -> io::Result<(u64, u64)> {
    let file = place.stat()?;
    Ok((file.st_dev, file.st_ino))
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

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
    }

    #[test]
    fn each_socket_has_a_core_and_each_core_a_socket() {
        for (sockets, cores) in [(1, 1), (1, 4), (2, 3), (3, 2), (4, 1), (5, 2)] {
            let listener = Listener::bind(Bind::Tcp(([127, 0, 0, 1], 0).into()).into(), sockets).unwrap();
            let mut served = vec![0; sockets];
            for core in 0..cores {
                let of_core: Vec<_> = listener.sockets_of(core, cores).collect();
                assert!(!of_core.is_empty(), "core {core} of {cores}");
                for socket in of_core {
                    let at = listener.sockets.iter().position(|other| Arc::ptr_eq(other, socket)).unwrap();
                    served[at] += 1;
                }
            }
            assert!(served.iter().all(|count| *count > 0), "{sockets} sockets, {cores} cores: {served:?}");
        }
    }

    #[test]
    fn an_adopted_socket_has_its_address() {
        for at in [Bind::Tcp(([127, 0, 0, 1], 0).into()), Bind::Any(0)] {
            let bound = Listener::bind(at.clone().into(), 2).unwrap();
            let copies = bound.descriptors().iter().map(|fd| fd.try_clone_to_owned().unwrap()).collect();
            let adopted = Listener::adopt(at.clone().into(), copies, true).unwrap();
            assert_eq!(adopted.address(), bound.address());
            assert!(adopted.is_at(&at) && adopted.is_at(bound.address()) && !adopted.owns_file());
        }
        assert!(Listener::adopt(Bind::Any(0).into(), Vec::new(), true).is_err());
        let (datagram, _other) = std::os::unix::net::UnixDatagram::pair().unwrap();
        assert!(Listener::adopt(Bind::Any(0).into(), vec![datagram.into()], true).is_err());
    }
}
