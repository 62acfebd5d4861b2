//! Listening sockets bound by another process: systemd, or the server that this one replaces.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{PathBuf, absolute};

use logging::notice::ErrorLog;
use net::{BindAddress, ListenOptions, Listener};
use rustix::net::{SocketType, sockopt};

/// Inherited sockets, by address.
#[derive(Debug, Default)]
pub struct InheritedSockets(Vec<InheritedListener>);

#[derive(Debug)]
struct InheritedListener {
    address: BindAddress,
    sockets: Vec<OwnedFd>,
    owns_file: bool,
    is_from_systemd: bool,
}

impl InheritedSockets {
    /// Adds a socket bound by systemd, which keeps the ownership of its file.
    ///
    /// # Errors
    /// The system's error, or the socket is not bound.
    pub(crate) fn add_from_systemd(&mut self, socket: OwnedFd) -> io::Result<()> {
        self.add(vec![socket], false, None)?;
        self.0.iter_mut().for_each(|given| given.is_from_systemd = true);
        Ok(())
    }

    /// Adds sockets of one address. `owns_file`: remove the file of a Unix socket once no process listens on
    /// it. `path`: the file's path if the socket was bound by a different name.
    ///
    /// # Errors
    /// The system's error, or the sockets are not bound.
    pub(crate) fn add(
        &mut self,
        sockets: Vec<OwnedFd>,
        owns_file: bool,
        path: Option<PathBuf>,
    ) -> io::Result<()> {
        let Some(first) = sockets.first() else { return Ok(()) };
        let is_udp = sockopt::socket_type(first)? == SocketType::DGRAM;
        let address = path.map_or_else(|| net::bound_address(first), |path| Ok(BindAddress::Unix(path)))?;
        let address = if is_udp { address.over_udp() } else { address };
        match self.0.iter_mut().find(|known| known.address == address) {
            Some(known) => known.sockets.extend(sockets),
            None => self.0.push(InheritedListener { address, sockets, owns_file, is_from_systemd: false }),
        }
        Ok(())
    }

    /// Addresses of the sockets.
    pub fn addresses(&self) -> Vec<BindAddress> {
        self.0.iter().map(|given| given.address.clone()).collect()
    }

    /// Removes and returns the sockets for these addresses; `None` for an address without any. An address
    /// with port 0 takes any remaining port.
    pub fn take(&mut self, addresses: &[ListenOptions]) -> Vec<Option<AddressSockets>> {
        let mut taken: Vec<Option<InheritedListener>> = addresses.iter().map(|_| None).collect();
        for chosen in [false, true] {
            for (listen, taken) in addresses.iter().zip(&mut taken).filter(|(_, taken)| taken.is_none()) {
                let found = self.0.iter().position(|given| matches(&listen.address, &given.address, chosen));
                *taken = found.map(|at| self.0.remove(at));
            }
        }
        // systemd passes the UDP sockets of HTTP/3 beside the others.
        for taken in taken.iter_mut().flatten() {
            let is_its = |given: &InheritedListener| {
                given.address.is_udp() && given.address.clone().over_tcp() == taken.address
            };
            if let Some(at) = self.0.iter().position(is_its) {
                taken.sockets.extend(self.0.remove(at).sockets);
            }
        }
        let sockets = |InheritedListener { sockets, owns_file, .. }: InheritedListener| AddressSockets {
            sockets,
            owns_file,
        };
        taken.into_iter().map(|taken| taken.map(sockets)).collect()
    }
}

impl InheritedSockets {
    /// Warns about sockets of systemd that were not taken.
    pub fn warn_of_unused(&self, notices: &ErrorLog) {
        for InheritedListener { address, .. } in self.0.iter().filter(|given| given.is_from_systemd) {
            let text =
                format!("systemd passes a socket for {address}, which no `listen` names: it is not used");
            notices.warn(&text);
        }
    }

    /// Closes the remaining sockets, and removes their files.
    pub fn discard(self) {
        for given in self.0 {
            if let (BindAddress::Unix(path), true) = (&given.address, given.owns_file) {
                net::remove_socket(path);
            }
        }
    }
}

/// Sockets of one address.
#[derive(Debug)]
pub struct AddressSockets {
    sockets: Vec<OwnedFd>,
    /// Whether the process that passed the sockets owns the Unix socket's file until this one serves.
    owns_file: bool,
}

impl AddressSockets {
    /// Creates a listener of these sockets.
    ///
    /// # Errors
    /// The errors of [`Listener::adopt`].
    pub fn adopt(self, listen: ListenOptions) -> io::Result<Listener> {
        Listener::adopt(listen, self.sockets, self.owns_file)
    }
}

/// Whether a bound address is the requested one, or, if `chosen`, has a port chosen by the kernel for it.
fn matches(asked: &BindAddress, bound: &BindAddress, chosen: bool) -> bool {
    match (asked, bound) {
        (BindAddress::Tcp(asked), BindAddress::Tcp(bound)) => {
            asked.ip() == bound.ip() && (asked.port() == bound.port() || (chosen && asked.port() == 0))
        }
        (BindAddress::Any(asked), BindAddress::Any(bound)) => asked == bound || (chosen && *asked == 0),
        // The machine has no IPv6.
        (BindAddress::Any(asked), BindAddress::Tcp(bound)) => {
            bound.ip().is_unspecified() && bound.is_ipv4() && *asked == bound.port()
        }
        (BindAddress::Udp(_) | BindAddress::AnyUdp(_), BindAddress::Udp(_) | BindAddress::AnyUdp(_)) => {
            matches(&asked.clone().over_tcp(), &bound.clone().over_tcp(), chosen)
        }
        (BindAddress::Unix(asked), BindAddress::Unix(bound)) => match (absolute(asked), absolute(bound)) {
            (Ok(asked), Ok(bound)) => asked == bound,
            _ => asked == bound,
        },
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};
    use std::os::unix::net::UnixListener;

    use super::*;

    fn tcp(text: &str) -> BindAddress {
        BindAddress::Tcp(text.parse().unwrap())
    }

    #[test]
    fn sockets_are_matched_by_address_and_port_zero_takes_the_rest() {
        let sockets: Vec<TcpListener> = (0..2).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let at: Vec<BindAddress> =
            sockets.iter().map(|socket| BindAddress::Tcp(socket.local_addr().unwrap())).collect();
        let mut given = InheritedSockets::default();
        for socket in sockets {
            given.add(vec![socket.into()], true, None).unwrap();
        }
        let wanted = [tcp("127.0.0.1:0"), at[1].clone(), tcp("127.0.0.2:0")].map(ListenOptions::from);
        let taken = given.take(&wanted);
        let adopted: Vec<Option<BindAddress>> = taken
            .into_iter()
            .zip(wanted)
            .map(|(taken, listen)| Some(taken?.adopt(listen).unwrap().address().clone()))
            .collect();
        assert_eq!(adopted, [Some(at[0].clone()), Some(at[1].clone()), None]);
        assert_eq!(given.addresses(), []);
    }

    #[test]
    fn several_sockets_of_one_address_are_taken_together() {
        let one = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = BindAddress::Tcp(one.local_addr().unwrap());
        let mut given = InheritedSockets::default();
        given.add(vec![one.try_clone().unwrap().into()], false, None).unwrap();
        given.add(vec![one.into()], false, None).unwrap();
        assert!(given.addresses().iter().eq([&at]));
        assert_eq!(given.take(&[at.into()])[0].as_ref().unwrap().sockets.len(), 2);
    }

    #[test]
    fn udp_sockets_are_for_their_own_listener_or_else_for_http3() {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = tcp.local_addr().unwrap();
        let udp = || UdpSocket::bind(at).unwrap().into();
        let both = [BindAddress::Tcp(at), BindAddress::Udp(at)].map(ListenOptions::from);
        let mut given = InheritedSockets::default();
        given.add(vec![tcp.try_clone().unwrap().into()], false, None).unwrap();
        given.add(vec![udp()], false, None).unwrap();
        let taken = given.take(&both);
        assert!(taken.iter().all(|taken| taken.as_ref().is_some_and(|taken| taken.sockets.len() == 1)));
        drop(taken);
        given.add(vec![tcp.into()], false, None).unwrap();
        given.add(vec![udp()], false, None).unwrap();
        let taken = given.take(&both[..1]);
        assert_eq!(taken[0].as_ref().map(|taken| taken.sockets.len()), Some(2));
        assert_eq!(given.addresses(), []);
    }

    #[test]
    fn a_unix_socket_is_known_by_its_path() {
        let path = std::env::temp_dir().join(format!("komainu-given-{}", std::process::id()));
        let socket = UnixListener::bind(&path).unwrap();
        let mut given = InheritedSockets::default();
        given.add(vec![socket.into()], true, None).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(given.take(&[BindAddress::Unix(path.with_extension("other")).into()])[0].is_none());
        assert!(given.take(&[BindAddress::Unix(path).into()])[0].as_ref().unwrap().owns_file);
    }
}
