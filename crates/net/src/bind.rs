//! Listening sockets, bound by this process or inherited from another.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use failure::IoFailure;
use rustix::fs::FileType;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use crate::address::{BindAddress, ListenOptions, ListenUrl, PeerSet, StreamListener};
use crate::core::Core;
use crate::remote::Remote;
use crate::stream;
use crate::trusted_path::TrustedEntry;

/// Length of the accept queue; the kernel limits it to `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// A listening socket. Each core usually has its own socket for a TCP address, and the kernel distributes
/// connections between them (SO_REUSEPORT). Several cores may accept from a Unix socket or an inherited
/// socket. The kernel wakes one of them for a new connection; if that one has no permit left, it wakes the
/// others.
#[derive(Debug)]
pub(crate) struct ListeningSocket {
    socket: OwnedFd,
    is_tcp: bool,
    /// The accepting task of each core.
    acceptors: Mutex<Vec<(Arc<Remote>, u32)>>,
}

impl ListeningSocket {
    fn new(socket: OwnedFd, is_tcp: bool) -> Arc<ListeningSocket> {
        Arc::new(ListeningSocket { socket, is_tcp, acceptors: Mutex::default() })
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

    /// Registers the current task of this core as an acceptor.
    pub(crate) fn add_acceptor(&self, core: &Core) {
        self.acceptors().push((core.remote(), core.current()));
    }

    /// Removes the current task of this core from the acceptors.
    pub(crate) fn remove_acceptor(&self, core: &Core) {
        let own = core.remote();
        let task = core.current();
        self.acceptors().retain(|(remote, other)| !(Arc::ptr_eq(remote, &own) && *other == task));
    }

    /// Wakes the acceptors of other cores.
    pub(crate) fn wake_others(&self, core: &Core) {
        let own = core.remote();
        for (remote, task) in self.acceptors().iter().filter(|(remote, _)| !Arc::ptr_eq(remote, &own)) {
            remote.wake(*task);
        }
    }
}

/// The listening sockets of one address. A process with the necessary privileges may pass them to another.
#[derive(Debug)]
pub struct Listener {
    /// The requested address; port 0 if the kernel was to choose.
    requested: BindAddress,
    address: BindAddress,
    pub(crate) proxy_protocol: Option<Arc<PeerSet>>,
    /// Whether connections speak TLS.
    pub(crate) is_tls: bool,
    /// Whether cleartext connections may begin with the HTTP/2 preface.
    pub(crate) h2c: bool,
    /// Set if connections may be relayed.
    pub(crate) streams: Option<Arc<StreamListener>>,
    /// [`ListenOptions::key`].
    pub(crate) key: u64,
    sockets: Vec<Arc<ListeningSocket>>,
    /// Socket file that this process removes with the listener.
    file: Option<SocketFile>,
    /// Whether this process may own the socket file.
    may_own_file: bool,
}

impl Listener {
    /// Binds the address for a server with this number of threads.
    ///
    /// # Errors
    /// System errors, with the address that could not be bound.
    pub fn bind(listen: ListenOptions, threads: usize) -> io::Result<Listener> {
        Listener::bind_alongside(listen, threads, &[])
    }

    /// Like [`Listener::bind`], for a process that already listens on the addresses `open`: a port of these
    /// may be bound for another address.
    ///
    /// # Errors
    /// See [`Listener::bind`].
    pub fn bind_alongside(
        listen: ListenOptions,
        threads: usize,
        open: &[BindAddress],
    ) -> io::Result<Listener> {
        let at = &listen.address;
        let port = at.port().filter(|port| *port != 0);
        let is_ours = port.is_some() && open.iter().any(|open| open.port() == port);
        let (address, sockets) = bind(at, threads.max(1), is_ours).map_err(|error| {
            let is_stream = listen.streams.as_ref().is_some_and(|streams| streams.is_only);
            let url = ListenUrl { address: at.clone(), is_tls: listen.is_tls, is_stream };
            let error = error.attempting(format_args!("cannot listen on {url}"));
            if let BindAddress::Unix(path) = at { error.about(path) } else { error }
        })?;
        let file = match &address {
            BindAddress::Unix(path) => Some(SocketFile::of(path)?),
            _ => None,
        };
        Ok(Listener::of(listen, address, sockets, file, true))
    }

    /// Adopts one or more descriptors that another process has bound to this address. `may_own_file` permits
    /// [`Listener::own_file`] for a Unix socket.
    ///
    /// # Errors
    /// `InvalidInput` for no descriptors, or ones of another kind or type of address; system errors.
    pub fn adopt(
        listen: ListenOptions,
        descriptors: Vec<OwnedFd>,
        may_own_file: bool,
    ) -> io::Result<Listener> {
        let at = &listen.address;
        let invalid = |text: &str| io::Error::new(io::ErrorKind::InvalidInput, format!("{at}: {text}"));
        let first = descriptors.first().ok_or_else(|| invalid("there is no descriptor"))?;
        let address = bound_address(first)?;
        let is_tcp = !matches!(address, BindAddress::Unix(_));
        if is_tcp == matches!(at, BindAddress::Unix(_)) {
            return Err(invalid("the descriptors are of another kind of address"));
        }
        let mut sockets = Vec::new();
        for socket in descriptors {
            if sockopt::socket_type(&socket)? != SocketType::STREAM {
                return Err(invalid("a descriptor is no stream socket"));
            }
            rustix::io::ioctl_fionbio(&socket, true)?;
            rustix::net::listen(&socket, BACKLOG)?;
            sockets.push(ListeningSocket::new(socket, is_tcp));
        }
        let address = if is_tcp { address } else { at.clone() };
        Ok(Listener::of(listen, address, sockets, None, may_own_file))
    }

    fn of(
        listen: ListenOptions,
        address: BindAddress,
        sockets: Vec<Arc<ListeningSocket>>,
        file: Option<SocketFile>,
        may_own_file: bool,
    ) -> Listener {
        let ListenOptions { address: at, proxy_protocol, is_tls: tls, allows_h2c: h2c, streams, key } =
            listen;
        Listener {
            requested: at,
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

    /// Returns the bound address, with the port that the kernel chose.
    #[must_use]
    pub fn address(&self) -> &BindAddress {
        &self.address
    }

    /// Returns the bound address as a URL.
    #[must_use]
    pub fn url(&self) -> ListenUrl {
        let is_stream = self.streams.as_ref().is_some_and(|streams| streams.is_only);
        ListenUrl { address: self.address.clone(), is_tls: self.is_tls, is_stream }
    }

    /// Whether `at` is the requested or the bound address.
    #[must_use]
    pub fn matches_address(&self, at: &BindAddress) -> bool {
        self.requested == *at || self.address == *at
    }

    /// Returns the descriptors, to pass them to another process.
    #[must_use]
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.sockets.iter().map(|listening| listening.fd().as_fd()).collect()
    }

    /// Whether the file of a Unix socket is removed with this listener.
    #[must_use]
    pub fn owns_file(&self) -> bool {
        self.file.is_some()
    }

    /// Sets whether the file of a Unix socket is removed with this listener, or left to another process. Does
    /// nothing if this process may not own the file.
    ///
    /// # Errors
    /// System errors, for example if there is no such file.
    pub fn own_file(&mut self, owns: bool) -> io::Result<()> {
        match (&self.address, owns) {
            (BindAddress::Unix(path), true) if self.may_own_file && self.file.is_none() => {
                self.file = Some(SocketFile::of(path)?)
            }
            (_, false) => self.file.take().map(SocketFile::release).unwrap_or_default(),
            _ => {}
        }
        Ok(())
    }

    /// Replaces all settings but the address; returns whether they are unchanged.
    pub(crate) fn set_options(&mut self, listen: ListenOptions) -> bool {
        let proxy_protocol = listen.proxy_protocol.map(Arc::new);
        self.requested = listen.address;
        let streams = listen.streams.map(Arc::new);
        let is_same = self.proxy_protocol == proxy_protocol
            && (self.is_tls, self.h2c, self.key) == (listen.is_tls, listen.allows_h2c, listen.key)
            && self.streams == streams;
        (self.proxy_protocol, self.streams) = (proxy_protocol, streams);
        (self.is_tls, self.h2c, self.key) = (listen.is_tls, listen.allows_h2c, listen.key);
        is_same
    }

    /// Returns the sockets that core `index` of `cores` accepts from. Each core gets a socket, and each
    /// socket a core.
    pub(crate) fn sockets_of(
        &self,
        index: usize,
        cores: usize,
    ) -> impl Iterator<Item = &Arc<ListeningSocket>> {
        let count = self.sockets.len();
        (index..count.max(cores)).step_by(cores.max(1)).map(move |at| &self.sockets[at % count])
    }
}

/// Returns the address of a listening socket: [`BindAddress::Any`] for a wildcard that accepts IPv6 and IPv4.
///
/// # Errors
/// System errors; `InvalidInput` if the socket has neither a TCP address nor a path.
pub fn bound_address(socket: &impl AsFd) -> io::Result<BindAddress> {
    let name = rustix::net::getsockname(socket)?;
    if let Ok(address) = SocketAddr::try_from(name.clone()) {
        let is_any = address.is_ipv6() && address.ip().is_unspecified() && !sockopt::ipv6_v6only(socket)?;
        return Ok(if is_any { BindAddress::Any(address.port()) } else { BindAddress::Tcp(address) });
    }
    let unix = SocketAddrUnix::try_from(name).ok();
    let path = unix.as_ref().and_then(|address| address.path_bytes());
    match path {
        Some(path) => Ok(BindAddress::Unix(PathBuf::from(std::ffi::OsStr::from_bytes(path)))),
        None => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the socket has neither a TCP address nor a path",
        )),
    }
}

/// Binds an address once for each of `cores` threads; returns the address with the port that the kernel
/// chose. `is_ours` means that this process already listens on the port.
///
/// # Errors
/// System errors, for example if the address is in use by another process or not permitted.
fn bind(
    bind: &BindAddress,
    cores: usize,
    is_ours: bool,
) -> io::Result<(BindAddress, Vec<Arc<ListeningSocket>>)> {
    match bind {
        BindAddress::Unix(path) => Ok((bind.clone(), vec![ListeningSocket::new(bind_unix(path)?, false)])),
        BindAddress::Tcp(address) => {
            let (address, sockets) = bind_tcp(*address, address.is_ipv6(), cores, is_ours)?;
            Ok((BindAddress::Tcp(address), sockets))
        }
        BindAddress::Any(port) => {
            match bind_tcp((Ipv6Addr::UNSPECIFIED, *port).into(), false, cores, is_ours) {
                Ok((address, sockets)) => Ok((BindAddress::Any(address.port()), sockets)),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(error),
                // IPv6 is disabled here, as on many container hosts.
                Err(_) => {
                    let any = (Ipv4Addr::UNSPECIFIED, *port).into();
                    let (address, sockets) = bind_tcp(any, false, cores, is_ours)?;
                    Ok((BindAddress::Tcp(address), sockets))
                }
            }
        }
    }
}

/// Attempts to find a free port if the kernel is to choose one.
const PORT_ATTEMPTS: u32 = 16;

fn bind_tcp(
    address: SocketAddr,
    v6_only: bool,
    cores: usize,
    is_ours: bool,
) -> io::Result<(SocketAddr, Vec<Arc<ListeningSocket>>)> {
    let mut choices = if address.port() == 0 { PORT_ATTEMPTS } else { 1 };
    loop {
        choices -= 1;
        match bind_once(address, v6_only, cores, is_ours) {
            // Another process may take the port between the kernel's choice and the second bind.
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
) -> io::Result<(SocketAddr, Vec<Arc<ListeningSocket>>)> {
    let bound = if is_ours { address } else { find_free_address(address, v6_only)? };
    let mut sockets = Vec::with_capacity(cores);
    for _ in 0..cores {
        let socket = tcp_socket(bound, v6_only, true)?;
        rustix::net::bind(&socket, &bound)?;
        rustix::net::listen(&socket, BACKLOG)?;
        sockets.push(ListeningSocket::new(socket, true));
    }
    Ok((bound, sockets))
}

/// Returns the address, with the port that the kernel chose, if no process listens there. Binds without
/// SO_REUSEPORT: otherwise a second server of the same user would share the port silently.
fn find_free_address(address: SocketAddr, v6_only: bool) -> io::Result<SocketAddr> {
    let probe = tcp_socket(address, v6_only, false)?;
    rustix::net::bind(&probe, &address)?;
    rustix::net::listen(&probe, 1)?;
    Ok(SocketAddr::try_from(rustix::net::getsockname(&probe)?)?)
}

fn tcp_socket(address: SocketAddr, v6_only: bool, reuse_port: bool) -> io::Result<OwnedFd> {
    // Accepted sockets inherit its options: one call here instead of one for each connection.
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
    let place = TrustedEntry::resolve(path)?;
    // The kernel reports the path of this call to others, so use the configured one if no other user can
    // replace its directories.
    let address = if place.is_root_controlled() {
        SocketAddrUnix::new(path)?
    } else {
        SocketAddrUnix::new(place.path())?
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let new = || rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let socket = new()?;
    match rustix::net::bind(&socket, &address) {
        // Socket files outlive their server. Only remove a socket that refuses connections.
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

fn is_socket(place: &TrustedEntry) -> bool {
    place.stat().is_ok_and(|file| FileType::from_raw_mode(file.st_mode) == FileType::Socket)
}

/// Removes the file of a Unix socket; does nothing if `path` is not a socket.
pub fn remove_socket(path: &Path) {
    if let Ok(place) = TrustedEntry::resolve(path)
        && is_socket(&place)
    {
        // Another process may have removed it.
        let _ = place.remove();
    }
}

/// The file of a Unix socket, removed on drop unless another server has replaced it.
#[derive(Debug)]
pub(crate) struct SocketFile {
    entry: TrustedEntry,
    /// Device and inode; `None` if this process must not remove the file.
    identity: Option<(u64, u64)>,
}

impl SocketFile {
    /// The file that [`bind`] has just created.
    pub(crate) fn of(path: &Path) -> io::Result<SocketFile> {
        let place = TrustedEntry::resolve(path)?;
        Ok(SocketFile { identity: Some(identity(&place)?), entry: place })
    }

    /// Leaves the file to its next owner.
    fn release(mut self) {
        self.identity = None;
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.identity.is_some() && identity(&self.entry).ok() == self.identity {
            // Another process may have removed it.
            let _ = self.entry.remove();
        }
    }
}

fn identity(place: &TrustedEntry) -> io::Result<(u64, u64)> {
    let file = place.stat()?;
    Ok((file.st_dev, file.st_ino))
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[test]
    fn loopback_sockets_use_reno_and_others_the_system_default() {
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
            let listener =
                Listener::bind(BindAddress::Tcp(([127, 0, 0, 1], 0).into()).into(), sockets).unwrap();
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
    fn adopted_listener_reports_the_bound_address() {
        for at in [BindAddress::Tcp(([127, 0, 0, 1], 0).into()), BindAddress::Any(0)] {
            let bound = Listener::bind(at.clone().into(), 2).unwrap();
            let copies = bound.descriptors().iter().map(|fd| fd.try_clone_to_owned().unwrap()).collect();
            let adopted = Listener::adopt(at.clone().into(), copies, true).unwrap();
            assert_eq!(adopted.address(), bound.address());
            assert!(
                adopted.matches_address(&at)
                    && adopted.matches_address(bound.address())
                    && !adopted.owns_file()
            );
        }
        assert!(Listener::adopt(BindAddress::Any(0).into(), Vec::new(), true).is_err());
        let (datagram, _other) = std::os::unix::net::UnixDatagram::pair().unwrap();
        assert!(Listener::adopt(BindAddress::Any(0).into(), vec![datagram.into()], true).is_err());
    }
}
