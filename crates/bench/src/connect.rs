//! Connects to the plan's origins.

use failure::Failure;
use http::Version;
use net::{ConnectAddress, Core, Fault, Http3Client, Http3Options, Link, Stream, TlsAgreement, TlsStream};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use times::Moment;

use crate::clock::now_ns;
use crate::plan::{LoadPlan, LoadTarget};
use crate::request_failure::RequestFailure;
use crate::tally::ErrorKind;

/// Flow-control window of HTTP/3: received content is consumed at once.
const HTTP3_WINDOW_BYTES: u32 = 16 * 1024 * 1024;

/// Durations of the steps of making a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectTimes {
    pub(crate) connect_ns: u64,
    /// Duration of the TLS handshake in nanoseconds and its negotiated parameters; `None` without TLS.
    pub(crate) tls: Option<(u64, TlsAgreement)>,
}

/// Connects to `origin`.
pub(crate) async fn connect_link(
    core: &Core,
    origin: &LoadTarget,
    timeout_ms: u64,
) -> Result<(Link, ConnectTimes), RequestFailure> {
    let began_ns = now_ns();
    let deadline_ms = began_ns / 1_000_000 + timeout_ms;
    let stream =
        Stream::connect(core, &origin.address, Moment(deadline_ms)).await.map_err(|fault| match fault {
            Fault::Timeout => RequestFailure::new(ErrorKind::Connect, "no connection in time"),
            Fault::Io(error) => RequestFailure::new(ErrorKind::Connect, explain_connect_error(&error)),
            fault => RequestFailure::new(ErrorKind::Connect, fault_message(&fault)),
        })?;
    let connect_ns = now_ns() - began_ns;
    let Some(tls) = &origin.tls else {
        return Ok((Link::Plain(stream), ConnectTimes { connect_ns, tls: None }));
    };
    let shaken = TlsStream::connect(stream, tls, Moment(deadline_ms)).await.map_err(|fault| match fault {
        Fault::Timeout => RequestFailure::new(ErrorKind::Tls, "no handshake in time"),
        Fault::Disconnected => {
            RequestFailure::new(ErrorKind::Tls, "connection closed in the handshake; is it an https server?")
        }
        fault => RequestFailure::new(ErrorKind::Tls, add_certificate_remedy(fault_message(&fault))),
    })?;
    let tls = Some((now_ns() - began_ns - connect_ns, shaken.agreement()));
    Ok((Link::Tls(Box::new(shaken)), ConnectTimes { connect_ns, tls }))
}

/// Connects to `origin` by QUIC. Both steps are one exchange, whose duration counts for both.
pub(crate) async fn connect_http3(
    core: &Core,
    origin: &LoadTarget,
    timeout_ms: u64,
) -> Result<(Http3Client, ConnectTimes), RequestFailure> {
    let began_ns = now_ns();
    let deadline = Moment(began_ns / 1_000_000 + timeout_ms);
    let (ConnectAddress::Tcp(address), Some(tls)) = (&origin.address, &origin.tls) else {
        return Err(RequestFailure::new(ErrorKind::Connect, "HTTP/3 needs an https:// URL"));
    };
    let options = Http3Options {
        stream_window: HTTP3_WINDOW_BYTES,
        connection_window: HTTP3_WINDOW_BYTES,
        ..Http3Options::default()
    };
    let connected = Http3Client::connect(core, *address, tls, &options, deadline).await;
    let client = connected.map_err(|fault| match fault {
        Fault::Timeout => {
            RequestFailure::new(ErrorKind::Connect, "no answer over QUIC in time: does UDP reach the server?")
        }
        Fault::Io(error) => RequestFailure::new(ErrorKind::Connect, explain_connect_error(&error)),
        fault => RequestFailure::new(ErrorKind::Tls, add_certificate_remedy(fault_message(&fault))),
    })?;
    let spent_ns = now_ns() - began_ns;
    let times = ConnectTimes { connect_ns: spent_ns, tls: Some((spent_ns, client.agreement())) };
    Ok((client, times))
}

/// Explains why the connection failed and suggests a remedy.
fn explain_connect_error(error: &std::io::Error) -> String {
    let words = strip_error_number(&error.to_string());
    match Errno::from_io_error(error) {
        Some(Errno::MFILE) => match getrlimit(Resource::Nofile).current {
            Some(limit) => format!("{words} (this process may have {limit}: raise `ulimit -n`)"),
            None => words,
        },
        Some(Errno::NFILE) => words + " (on this machine: raise the sysctl fs.file-max)",
        Some(Errno::ADDRNOTAVAIL) => {
            let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
            let range = range.split_ascii_whitespace().collect::<Vec<_>>().join(" to ");
            format!(
                "this machine ran out of local ports ({range}: widen the sysctl net.ipv4.ip_local_port_range, or load \
                 several addresses of the server)"
            )
        }
        _ => words,
    }
}

/// Returns the system's error message without the error number.
fn fault_message(fault: &Fault) -> String {
    strip_error_number(&fault.to_string())
}

fn strip_error_number(text: &str) -> String {
    let words = text.split(" (os error").next().unwrap_or_default();
    let mut letters = words.chars();
    letters.next().map_or(String::new(), |first| first.to_lowercase().chain(letters).collect())
}

/// Appends the options that may help to a message about an invalid certificate.
fn add_certificate_remedy(words: String) -> String {
    if !words.contains("certificate") {
        return words;
    }
    words + " (--ca FILE names the CAs to trust, --sni NAME the server, --insecure takes any certificate)"
}

/// Connects once to each origin, so that an error that affects all connections is reported at once.
///
/// # Errors
/// Returns the error of the first origin that cannot be reached.
pub(crate) fn probe_origins(plan: &LoadPlan) -> Result<(), Failure> {
    let core = Core::for_client(1)?;
    let inner = core.clone();
    let origins = plan.origins.clone();
    let version = plan.version;
    let timeout_ms = plan.connect_timeout.as_millis() as u64;
    let probed = core.run_until_end(async move {
        for origin in &origins {
            let connected = match version {
                Version::Http3 => connect_http3(&inner, origin, timeout_ms).await.map(drop),
                _ => connect_link(&inner, origin, timeout_ms).await.map(drop),
            };
            if let Err(failure) = connected {
                let what = if failure.kind == ErrorKind::Tls { "agree on TLS with" } else { "connect to" };
                return Err(Failure::new(format!("cannot {what} {}: {}", origin.name, failure.example)));
            }
        }
        Ok(())
    });
    probed?
}
