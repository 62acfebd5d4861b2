//! Opens connections to upstream servers.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use net::{
    ConnectAddress, Core, DatagramLink, Fault, Http3Client, Http3Options, Link, MuxLink, MuxLinkOptions,
    Stream, TlsStream,
};
use times::{Millis, Moment};

use crate::failure::AttemptFailure;
use crate::options::{GroupOptions, UpstreamAddress, UpstreamProtocol};
use crate::server_addresses::ServerAddresses;
use crate::shared::Upstream;

/// Failure for a server that does not negotiate HTTP/2.
const NO_HTTP2: AttemptFailure = AttemptFailure::Connect("the upstream does not offer HTTP/2 (ALPN)");

/// Reason reported when this process lacks permission to connect to a Unix socket.
pub const SOCKET_FORBIDDEN: &str = "the upstream's socket may not be opened";

/// Parameters of a new connection.
pub(crate) struct DialOptions<'d> {
    /// Index of the address to try first, if there are several.
    pub(crate) first_address: usize,
    /// Bytes sent before anything else, such as a PROXY protocol header; not over HTTP/3.
    pub(crate) preface: &'d [u8],
    /// Whether requests will share the connection, so that HTTP/2 or HTTP/3 is required.
    pub(crate) is_shared: bool,
}

/// Connects to a server: resolves the name, tries the addresses, sends the preface, performs the TLS
/// handshake.
pub(crate) async fn dial(
    core: &Core,
    options: &GroupOptions,
    server: usize,
    upstream: &Upstream,
    dial_options: &DialOptions<'_>,
    deadline: Moment,
) -> Result<(Link, Option<SocketAddr>), AttemptFailure> {
    let &DialOptions { first_address: turn, preface, is_shared: http2 } = dial_options;
    let (mut stream, address) = match (&options.servers[server].address, &upstream.addresses) {
        (UpstreamAddress::Tcp { .. }, Some(names)) => {
            let connect = async |address, until| {
                Stream::connect(core, &ConnectAddress::Tcp(address), until).await.map_err(failure)
            };
            let (stream, address) =
                connect_any(core, names, options.resolve_interval, turn, deadline, connect).await?;
            (stream, Some(address))
        }
        (UpstreamAddress::Unix(path), _) => {
            let to = ConnectAddress::Unix(path.clone());
            (Stream::connect(core, &to, deadline).await.map_err(failure)?, None)
        }
        (UpstreamAddress::Tcp { .. }, None) => {
            return Err(AttemptFailure::Connect("the upstream has no address"));
        }
    };
    if !preface.is_empty() {
        send(&mut stream, preface, deadline).await?;
    }
    Ok(match if http2 { &upstream.tls_shared } else { &upstream.tls } {
        None => (Link::Plain(stream), address),
        Some(tls) => {
            let tls = TlsStream::connect(stream, tls, deadline).await.map_err(failure)?;
            let link = Link::Tls(Box::new(tls));
            if http2 && !link.has_negotiated_http2() {
                return Err(NO_HTTP2);
            }
            (link, address)
        }
    })
}

/// A new connection in the server's protocol, with its address.
pub(crate) enum Connected {
    Link(Link, Option<SocketAddr>),
    Http3(Box<Http3Client>, SocketAddr),
}

impl Connected {
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        match self {
            Connected::Link(_, address) => *address,
            Connected::Http3(_, address) => Some(*address),
        }
    }

    /// Starts HTTP/2 or HTTP/3 on it. See [`MuxLink::start`].
    pub(crate) fn start(self, options: &MuxLinkOptions, on_change: impl Fn() + 'static) -> MuxLink {
        match self {
            Connected::Link(link, _) => MuxLink::start(link, options, on_change),
            Connected::Http3(client, _) => MuxLink::start_http3(*client, options, on_change),
        }
    }
}

/// Connects to a server like [`dial`], or over QUIC if requests share connections of HTTP/3.
pub(crate) async fn dial_any(
    core: &Core,
    options: &GroupOptions,
    server: usize,
    upstream: &Upstream,
    dial_options: &DialOptions<'_>,
    deadline: Moment,
) -> Result<Connected, AttemptFailure> {
    if options.servers[server].protocol != UpstreamProtocol::Http3 {
        let (link, address) = dial(core, options, server, upstream, dial_options, deadline).await?;
        return Ok(Connected::Link(link, address));
    }
    let (Some(names), Some(tls)) = (&upstream.addresses, &upstream.tls_shared) else {
        return Err(AttemptFailure::Connect("the upstream has no address"));
    };
    let http = Http3Options { head: options.head_limits(), ..Http3Options::default() };
    let connect =
        async |address, until| Http3Client::connect(core, address, tls, &http, until).await.map_err(failure);
    let first = dial_options.first_address;
    let (client, address) =
        connect_any(core, names, options.resolve_interval, first, deadline, connect).await?;
    Ok(Connected::Http3(Box::new(client), address))
}

/// Opens a UDP socket to a server. See [`DialOptions`] for `first_address`.
pub(crate) async fn dial_datagrams(
    core: &Core,
    options: &GroupOptions,
    upstream: &Upstream,
    first_address: usize,
    deadline: Moment,
) -> Result<DatagramLink, AttemptFailure> {
    let Some(names) = &upstream.addresses else {
        return Err(AttemptFailure::Connect("the upstream has no address"));
    };
    let connect =
        async |address, _| DatagramLink::connect(core, address).map_err(|error| failure(Fault::Io(error)));
    let opened = connect_any(core, names, options.resolve_interval, first_address, deadline, connect).await;
    opened.map(|(link, _)| link)
}

/// Returns the output of `future`, or `None` at the deadline.
pub(crate) async fn with_deadline<T>(
    core: &Core,
    deadline: Moment,
    future: impl Future<Output = T>,
) -> Option<T> {
    let mut future = pin!(future);
    let mut late = pin!(core.sleep(deadline - core.now()));
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => late.as_mut().poll(context).map(|()| None),
    })
    .await
}

/// A future that runs while a connection is opened and awaits its first response; `None` once it has
/// finished.
pub(crate) type ConcurrentTask<'p> = RefCell<Option<Pin<Box<dyn Future<Output = ()> + 'p>>>>;

/// Runs `future`, and `other` concurrently until it finishes. `future` is passed by reference, because by
/// value it would be stored twice in the future of every request.
pub(crate) async fn run_concurrently<T>(
    other: &ConcurrentTask<'_>,
    mut future: Pin<&mut impl Future<Output = T>>,
) -> T {
    poll_fn(|context| {
        let mut running = other.borrow_mut();
        if running.as_mut().is_some_and(|running| running.as_mut().poll(context).is_ready()) {
            *running = None;
        }
        drop(running);
        future.as_mut().poll(context)
    })
    .await
}

/// Resolves the name and tries the addresses one after the other, each with an equal share of the remaining time.
async fn connect_any<C>(
    core: &Core,
    names: &Arc<ServerAddresses>,
    resolve_interval: Millis,
    turn: usize,
    deadline: Moment,
    connect: impl AsyncFn(SocketAddr, Moment) -> Result<C, AttemptFailure>,
) -> Result<(C, SocketAddr), AttemptFailure> {
    let addresses = with_deadline(core, deadline, names.addresses(core, resolve_interval));
    let addresses = addresses.await.ok_or(AttemptFailure::ConnectTimeout)?;
    let mut failed = AttemptFailure::Connect("the upstream's name cannot be resolved");
    for step in 0..addresses.len() {
        let address = addresses[turn.wrapping_add(step) % addresses.len()];
        let left = deadline - core.now();
        let share = left / (addresses.len() - step) as u64;
        match connect(address, core.now() + share).await {
            Ok(connected) => return Ok((connected, address)),
            Err(failure) => failed = failure,
        }
    }
    Err(failed)
}

async fn send(stream: &mut Stream, mut bytes: &[u8], deadline: Moment) -> Result<(), AttemptFailure> {
    while !bytes.is_empty() {
        match stream.try_write(&[bytes], false).map_err(failure)? {
            0 => stream.writable(deadline).await.map_err(failure)?,
            sent => bytes = &bytes[sent..],
        }
    }
    Ok(())
}

/// Converts a connect fault to a failure.
fn failure(fault: Fault) -> AttemptFailure {
    use std::io::ErrorKind;
    match fault {
        Fault::Timeout => AttemptFailure::ConnectTimeout,
        Fault::Failed(reason) => AttemptFailure::Connect(reason),
        Fault::Io(error) => AttemptFailure::Connect(match error.kind() {
            ErrorKind::ConnectionRefused => "the upstream refused the connection",
            ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => "the upstream cannot be reached",
            ErrorKind::NotFound => "the upstream's socket does not exist",
            ErrorKind::PermissionDenied => SOCKET_FORBIDDEN,
            ErrorKind::TimedOut => return AttemptFailure::ConnectTimeout,
            _ if error.raw_os_error().is_some_and(is_exhaustion) => {
                return AttemptFailure::ResourcesExhausted;
            }
            _ => "no connection to the upstream came about",
        }),
        _ => AttemptFailure::Connect("the upstream closed the connection at once"),
    }
}

/// Whether the error code means that this machine lacks resources, which is not the server's fault.
fn is_exhaustion(code: i32) -> bool {
    // ENFILE, EMFILE, EADDRNOTAVAIL on Linux.
    [23, 24, 99].contains(&code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_resource_errors_are_not_blamed_on_the_server() {
        for (code, theirs) in [(23, false), (24, false), (99, false), (111, true), (113, true), (2, true)] {
            let failure = failure(Fault::Io(std::io::Error::from_raw_os_error(code)));
            assert_eq!(failure.is_server_fault(), theirs, "{code}: {failure:?}");
            assert!(failure.should_log());
        }
    }
}
