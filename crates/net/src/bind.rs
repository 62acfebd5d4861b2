//! Listening sockets, bound by this process or inherited from another.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use failure::IoFailure;
use rustix::fs::FileType;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use crate::address::{BindAddress, ListenOptions, ListenUrl, PeerSet, StreamListener};
use crate::core::Core;
use crate::datagram_socket::{BindOptions, DatagramSocket, PORT_ATTEMPTS, bind_at_free_port, bind_sockets};
use crate::quic::QuicUdpSocket;
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
    allows_http3: bool,
    sockets: Vec<Arc<ListeningSocket>>,
    /// UDP sockets for HTTP/3, if it is allowed.
    datagrams: Vec<Arc<QuicUdpSocket>>,
    /// UDP sockets of before HTTP/3 was switched off; connections may still use them.
    closed_datagrams: Vec<Weak<QuicUdpSocket>>,
    /// The sockets of a UDP address.
    relayed_datagrams: Vec<Arc<DatagramSocket>>,
    /// Reason why there are none although HTTP/3 is allowed.
    datagram_error: Option<io::Error>,
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
        let mut attempts = 1;
        loop {
            let listener = Listener::bind_once(listen.clone(), threads, open)?;
            // The kernel has chosen the port by what is free for TCP.
            let is_taken = |error: &io::Error| error.kind() == io::ErrorKind::AddrInUse;
            let is_free = !listener.datagram_error.as_ref().is_some_and(is_taken);
            if is_free || listen.address.port() != Some(0) || attempts == PORT_ATTEMPTS {
                return Ok(listener);
            }
            attempts += 1;
        }
    }

    fn bind_once(listen: ListenOptions, threads: usize, open: &[BindAddress]) -> io::Result<Listener> {
        let at = &listen.address;
        let port = at.port().filter(|port| *port != 0);
        let is_ours =
            port.is_some() && open.iter().any(|open| open.port() == port && open.is_udp() == at.is_udp());
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
        let mut listener = Listener::of(listen, address, sockets, file, true);
        listener.open_datagrams(threads.max(1));
        Ok(listener)
    }

    /// Adopts one or more descriptors that another process has bound to this address: systemd, or a server
    /// that this one replaces. `may_own_file` permits [`Listener::own_file`] for a Unix socket.
    ///
    /// # Errors
    /// `InvalidInput` for no descriptors, or ones of another kind or type of address; system errors.
    pub fn adopt(
        listen: ListenOptions,
        descriptors: Vec<OwnedFd>,
        may_own_file: bool,
    ) -> io::Result<Listener> {
        Listener::adopt_sockets(listen, descriptors, may_own_file, |datagrams, channels| {
            // A server that passes UDP sockets on adds a channel for each.
            let is_from_server = !channels.is_empty();
            let mut channels = channels.into_iter();
            let each = datagrams.into_iter();
            let each = each.map(|socket| QuicUdpSocket::new(socket, channels.next()).map(Arc::new));
            let adopted = each.collect::<io::Result<Vec<_>>>()?;
            if !is_from_server {
                QuicUdpSocket::steer(&adopted);
            }
            Ok(adopted)
        })
    }

    /// Adopts the descriptors that the supervisor has got by [`Listener::server_descriptors`].
    ///
    /// # Errors
    /// See [`Listener::adopt`].
    pub fn adopt_from_supervisor(listen: ListenOptions, descriptors: Vec<OwnedFd>) -> io::Result<Listener> {
        Listener::adopt_sockets(listen, descriptors, false, |datagrams, channels| {
            let count = datagrams.len();
            let mut near: VecDeque<OwnedFd> = channels.into();
            let mut far = near.split_off(count.min(near.len()));
            let mut predecessors = far.split_off(count.min(far.len()));
            let mut adopted = Vec::new();
            for socket in datagrams {
                let both = near.pop_front().zip(far.pop_front());
                let both = both.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
                adopted.push(Arc::new(QuicUdpSocket::of(socket, both, predecessors.pop_front())?));
            }
            Ok(adopted)
        })
    }

    fn adopt_sockets(
        listen: ListenOptions,
        descriptors: Vec<OwnedFd>,
        may_own_file: bool,
        adopt_datagrams: impl FnOnce(Vec<OwnedFd>, Vec<OwnedFd>) -> io::Result<Vec<Arc<QuicUdpSocket>>>,
    ) -> io::Result<Listener> {
        let at = &listen.address;
        let invalid = |text: &str| io::Error::new(io::ErrorKind::InvalidInput, format!("{at}: {text}"));
        let mut sockets = Vec::new();
        let mut datagrams = Vec::new();
        let mut channels = Vec::new();
        for socket in descriptors {
            match sockopt::socket_type(&socket)? {
                SocketType::STREAM => sockets.push(socket),
                SocketType::DGRAM if SocketAddr::try_from(rustix::net::getsockname(&socket)?).is_ok() => {
                    datagrams.push(socket);
                }
                SocketType::SEQPACKET => channels.push(socket),
                _ => return Err(invalid("a descriptor is neither a stream socket nor a UDP socket")),
            }
        }
        if at.is_udp() {
            let first = datagrams.first().filter(|_| sockets.is_empty());
            let first = first.ok_or_else(|| invalid("the descriptors are no UDP sockets"))?;
            let address = bound_address(first)?.over_udp();
            let bound = BoundSockets::Udp(relayed_sockets(datagrams)?);
            return Ok(Listener::of(listen, address, bound, None, may_own_file));
        }
        let first = sockets.first().ok_or_else(|| invalid("there is no descriptor"))?;
        let address = bound_address(first)?;
        let is_tcp = !matches!(address, BindAddress::Unix(_));
        if is_tcp == matches!(at, BindAddress::Unix(_)) {
            return Err(invalid("the descriptors are of another kind of address"));
        }
        for socket in &sockets {
            rustix::io::ioctl_fionbio(socket, true)?;
            rustix::net::listen(socket, BACKLOG)?;
        }
        let address = if is_tcp { address } else { at.clone() };
        let threads = sockets.len();
        let sockets = sockets.into_iter().map(|socket| ListeningSocket::new(socket, is_tcp)).collect();
        let sockets = BoundSockets::Stream(sockets);
        let mut listener = Listener::of(listen, address, sockets, None, may_own_file);
        if listener.allows_http3 {
            listener.datagrams = adopt_datagrams(datagrams, channels)?;
            listener.open_datagrams(threads);
        }
        Ok(listener)
    }

    fn of(
        listen: ListenOptions,
        address: BindAddress,
        sockets: BoundSockets,
        file: Option<SocketFile>,
        may_own_file: bool,
    ) -> Listener {
        let (sockets, relayed_datagrams) = match sockets {
            BoundSockets::Stream(sockets) => (sockets, Vec::new()),
            BoundSockets::Udp(sockets) => (Vec::new(), sockets),
        };
        let allows_http3 = allows_http3(&listen);
        let ListenOptions { address: at, proxy_protocol, is_tls: tls, allows_h2c: h2c, streams, key, .. } =
            listen;
        Listener {
            requested: at,
            address,
            proxy_protocol: proxy_protocol.map(Arc::new),
            is_tls: tls,
            h2c,
            streams: streams.map(Arc::new),
            key,
            allows_http3,
            sockets,
            datagrams: Vec::new(),
            closed_datagrams: Vec::new(),
            relayed_datagrams,
            datagram_error: None,
            file,
            may_own_file,
        }
    }

    /// Binds the UDP port for HTTP/3, if that is allowed and it is not open.
    fn open_datagrams(&mut self, threads: usize) {
        self.datagram_error = None;
        if !self.allows_http3 {
            let closed = self.datagrams.drain(..);
            self.closed_datagrams.extend(closed.map(|socket| Arc::downgrade(&socket)));
            return;
        }
        let (address, v6_only) = match self.address {
            BindAddress::Tcp(address) => (address, true),
            BindAddress::Any(port) => ((Ipv6Addr::UNSPECIFIED, port).into(), false),
            BindAddress::Unix(_) | BindAddress::Udp(_) | BindAddress::AnyUdp(_) => return,
        };
        if self.datagrams.is_empty() {
            let closed = std::mem::take(&mut self.closed_datagrams);
            self.datagrams = closed.iter().filter_map(Weak::upgrade).collect();
        }
        if self.datagrams.is_empty() {
            match QuicUdpSocket::bind(address, v6_only, threads) {
                Ok(sockets) => self.datagrams = sockets,
                Err(error) => self.datagram_error = Some(error),
            }
        }
    }

    /// Takes over the UDP sockets for HTTP/3 from the process that has passed them on.
    pub(crate) fn take_over_datagrams(&self) {
        self.datagrams.iter().for_each(|socket| socket.take_over());
    }

    /// Gives the UDP sockets for HTTP/3 other channels to a successor, for a server that is started in place of one
    /// that has ended.
    ///
    /// # Errors
    /// System errors.
    pub fn renew_channels(&mut self) -> io::Result<()> {
        let renewed = self.datagrams.iter().map(|socket| socket.renewed().map(Arc::new));
        self.datagrams = renewed.collect::<io::Result<_>>()?;
        Ok(())
    }

    /// Whether the kernel has granted a UDP socket less than 1 MiB for received packets, so that bursts are lost.
    #[must_use]
    pub fn has_small_datagram_buffers(&self) -> bool {
        let relayed = self.relayed_datagrams.iter().any(|socket| socket.has_small_buffers());
        relayed || self.datagrams.iter().any(|socket| socket.has_small_buffers())
    }

    /// Takes the reason why HTTP/3 is not served although it is allowed.
    pub fn take_datagram_error(&mut self) -> Option<io::Error> {
        self.datagram_error.take()
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

    /// Returns the requested and the bound address.
    pub(crate) fn known_addresses(&self) -> [&BindAddress; 2] {
        [&self.requested, &self.address]
    }

    /// Whether `at` is the requested or the bound address.
    #[must_use]
    pub fn matches_address(&self, at: &BindAddress) -> bool {
        self.requested == *at || self.address == *at
    }

    /// Returns the descriptors to pass to a server that replaces this one.
    #[must_use]
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let datagrams = self.datagrams.iter().map(|socket| socket.as_fd());
        let channels = self.datagrams.iter().map(|socket| socket.successor_end());
        let relayed = self.relayed_datagrams.iter().map(|socket| socket.as_fd());
        let streams = self.sockets.iter().map(|listening| listening.fd().as_fd());
        streams.chain(relayed).chain(datagrams).chain(channels).collect()
    }

    /// Returns the descriptors to pass from the supervisor to its server.
    #[must_use]
    pub fn server_descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let near = self.datagrams.iter().map(|socket| socket.successor().as_fd());
        let predecessors = self.datagrams.iter().filter_map(|socket| socket.predecessor());
        let streams = self.sockets.iter().map(|listening| listening.fd().as_fd());
        let datagrams = self.datagrams.iter().map(|socket| socket.as_fd());
        let far = self.datagrams.iter().map(|socket| socket.successor_end());
        let channels = near.chain(far).chain(predecessors.map(AsFd::as_fd));
        let relayed = self.relayed_datagrams.iter().map(|socket| socket.as_fd());
        streams.chain(relayed).chain(datagrams).chain(channels).collect()
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

    /// Whether HTTP/3 is switched on by `listen`, and no UDP socket is open.
    pub(crate) fn lacks_datagrams(&self, listen: &ListenOptions) -> bool {
        allows_http3(listen)
            && self.datagrams.is_empty()
            && self.closed_datagrams.iter().all(|closed| closed.strong_count() == 0)
    }

    /// Returns the UDP sockets for HTTP/3, and closes the others.
    pub(crate) fn into_datagrams(mut self) -> Vec<Arc<QuicUdpSocket>> {
        std::mem::take(&mut self.datagrams)
    }

    /// Opens UDP sockets for HTTP/3 if `listen` switches it on, for servers that do not bind them themselves.
    pub fn provide_http3(&mut self, listen: &ListenOptions) {
        if self.lacks_datagrams(listen) {
            self.allows_http3 = true;
            self.open_datagrams(self.sockets.len());
        }
    }

    /// Closes the UDP sockets for HTTP/3 if `listen` switches it off, for a process that passes them to servers.
    pub fn withdraw_http3(&mut self, listen: &ListenOptions) {
        if !allows_http3(listen) {
            self.allows_http3 = false;
            self.datagrams.clear();
        }
    }

    /// Replaces all settings but the address; returns whether they are unchanged. `datagrams` are UDP sockets for HTTP/3,
    /// which are used if there is none.
    pub(crate) fn set_options(&mut self, listen: ListenOptions, datagrams: Vec<Arc<QuicUdpSocket>>) -> bool {
        let open_before = self.datagrams.len();
        if self.lacks_datagrams(&listen) {
            // A predecessor has ended or was told to stop when this process took over.
            datagrams.iter().for_each(|socket| socket.take_over());
            self.datagrams = datagrams;
        }
        self.allows_http3 = allows_http3(&listen);
        self.open_datagrams(self.sockets.len());
        let is_same_http3 = self.datagrams.len() == open_before;
        let proxy_protocol = listen.proxy_protocol.map(Arc::new);
        self.requested = listen.address;
        let streams = listen.streams.map(Arc::new);
        let is_same = is_same_http3
            && self.proxy_protocol == proxy_protocol
            && (self.is_tls, self.h2c, self.key) == (listen.is_tls, listen.allows_h2c, listen.key)
            && self.streams == streams;
        (self.proxy_protocol, self.streams) = (proxy_protocol, streams);
        (self.is_tls, self.h2c, self.key) = (listen.is_tls, listen.allows_h2c, listen.key);
        is_same
    }

    /// Returns the UDP sockets that core `index` of `cores` serves, with their indices.
    pub(crate) fn datagrams_of(
        &self,
        index: usize,
        cores: usize,
    ) -> impl Iterator<Item = (u8, &Arc<QuicUdpSocket>)> {
        let own = self.datagrams.iter().enumerate().skip(index).step_by(cores.max(1));
        own.filter_map(|(at, socket)| Some((u8::try_from(at).ok()?, socket)))
    }

    /// Returns the sockets of a UDP address that core `index` of `cores` serves.
    pub(crate) fn relayed_datagrams_of(
        &self,
        index: usize,
        cores: usize,
    ) -> impl Iterator<Item = &Arc<DatagramSocket>> {
        self.relayed_datagrams.iter().skip(index).step_by(cores.max(1))
    }

    /// Returns the sockets that core `index` of `cores` accepts from. Each core gets a socket, and each
    /// socket a core.
    pub(crate) fn sockets_of(
        &self,
        index: usize,
        cores: usize,
    ) -> impl Iterator<Item = &Arc<ListeningSocket>> {
        let count = self.sockets.len();
        let own = (index..count.max(cores)).step_by(cores.max(1));
        own.filter_map(move |at| self.sockets.get(at.checked_rem(count)?))
    }
}

/// The sockets of an address.
enum BoundSockets {
    Stream(Vec<Arc<ListeningSocket>>),
    Udp(Vec<Arc<DatagramSocket>>),
}

fn relayed_sockets(sockets: Vec<OwnedFd>) -> io::Result<Vec<Arc<DatagramSocket>>> {
    sockets.into_iter().map(|socket| DatagramSocket::with_fragments(socket).map(Arc::new)).collect()
}

/// Whether a listener speaks HTTP/3. Not where a proxy names the clients, or connections may be relayed.
fn allows_http3(listen: &ListenOptions) -> bool {
    let is_tcp = matches!(listen.address, BindAddress::Tcp(_) | BindAddress::Any(_));
    listen.allows_http3
        && listen.is_tls
        && is_tcp
        && listen.proxy_protocol.is_none()
        && listen.streams.is_none()
}

/// Returns the address of a listening socket: [`BindAddress::Any`] for a wildcard that accepts IPv6 and IPv4. The
/// address of a UDP socket is returned like that of a TCP socket.
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
fn bind(bind: &BindAddress, cores: usize, is_ours: bool) -> io::Result<(BindAddress, BoundSockets)> {
    let is_udp = bind.is_udp();
    let bind_ip = |address, v6_only| -> io::Result<(SocketAddr, BoundSockets)> {
        let options = BindOptions { v6_only, cores, is_ours };
        if !is_udp {
            let (address, sockets) = bind_at_free_port(address, || bind_tcp(address, options))?;
            return Ok((address, BoundSockets::Stream(sockets)));
        }
        let sockets = relayed_sockets(bind_sockets(address, options)?)?;
        Ok((sockets.first().map_or(address, |first| first.address()), BoundSockets::Udp(sockets)))
    };
    let (bound, sockets) = match bind {
        BindAddress::Unix(path) => {
            let socket = ListeningSocket::new(bind_unix(path)?, false);
            (bind.clone(), BoundSockets::Stream(vec![socket]))
        }
        BindAddress::Tcp(address) | BindAddress::Udp(address) => {
            let (address, sockets) = bind_ip(*address, address.is_ipv6())?;
            (BindAddress::Tcp(address), sockets)
        }
        BindAddress::Any(port) | BindAddress::AnyUdp(port) => {
            match bind_ip((Ipv6Addr::UNSPECIFIED, *port).into(), false) {
                Ok((address, sockets)) => (BindAddress::Any(address.port()), sockets),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => return Err(error),
                // IPv6 is disabled here, as on many container hosts.
                Err(_) => {
                    let (address, sockets) = bind_ip((Ipv4Addr::UNSPECIFIED, *port).into(), false)?;
                    (BindAddress::Tcp(address), sockets)
                }
            }
        }
    };
    Ok((if is_udp { bound.over_udp() } else { bound }, sockets))
}

fn bind_tcp(
    address: SocketAddr,
    options: BindOptions,
) -> io::Result<(SocketAddr, Vec<Arc<ListeningSocket>>)> {
    let BindOptions { v6_only, cores, is_ours } = options;
    let mut bound = address;
    let mut sockets = Vec::with_capacity(cores);
    for index in 0..cores {
        let socket = tcp_socket(bound, v6_only)?;
        // The first one is bound without SO_REUSEPORT: otherwise a second server of the same user would share the port
        // silently.
        let is_exclusive = index == 0 && !is_ours;
        sockopt::set_socket_reuseport(&socket, !is_exclusive)?;
        rustix::net::bind(&socket, &bound)?;
        if is_exclusive {
            bound = SocketAddr::try_from(rustix::net::getsockname(&socket)?)?;
            sockopt::set_socket_reuseport(&socket, true)?;
        }
        rustix::net::listen(&socket, BACKLOG)?;
        sockets.push(ListeningSocket::new(socket, true));
    }
    Ok((bound, sockets))
}

fn tcp_socket(address: SocketAddr, v6_only: bool) -> io::Result<OwnedFd> {
    // Accepted sockets inherit its options: one call here instead of one for each connection.
    let socket = stream::tcp_socket(address.ip())?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
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
