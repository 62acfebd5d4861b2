//! Making connections to the plan's origins.

use net::{Core, Fault, Link, Stream, TlsStream};

use crate::failure::Failure;
use crate::moment::now_ns;
use crate::plan::{Origin, Plan};
use crate::tally::Kind;

/// What making a connection took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spent {
    pub(crate) connect_ns: u64,
    /// The TLS handshake, where there was one.
    pub(crate) tls_ns: Option<u64>,
}

/// A connection to `origin`.
pub(crate) async fn link(core: &Core, origin: &Origin, timeout_ms: u64) -> Result<(Link, Spent), Failure> {
    let began_ns = now_ns();
    let deadline_ms = began_ns / 1_000_000 + timeout_ms;
    let stream = Stream::connect(core, &origin.dial, deadline_ms).await.map_err(|fault| match fault {
        Fault::Timeout => Failure::new(Kind::Connect, "no connection in time"),
        Fault::Io(error) if error.kind() == std::io::ErrorKind::AddrNotAvailable => {
            Failure::new(Kind::Connect, "this machine ran out of local ports")
        }
        fault => Failure::new(Kind::Connect, plain(&fault)),
    })?;
    let connect_ns = now_ns() - began_ns;
    let Some(tls) = &origin.tls else {
        return Ok((Link::Plain(stream), Spent { connect_ns, tls_ns: None }));
    };
    let shaken = TlsStream::connect(stream, tls, deadline_ms).await.map_err(|fault| match fault {
        Fault::Timeout => Failure::new(Kind::Tls, "no handshake in time"),
        Fault::Gone => Failure::new(Kind::Tls, "connection closed in the handshake; is it an https server?"),
        fault => Failure::new(Kind::Tls, with_remedy(plain(&fault))),
    })?;
    let tls_ns = Some(now_ns() - began_ns - connect_ns);
    Ok((Link::Tls(shaken), Spent { connect_ns, tls_ns }))
}

/// The system's words without its number.
fn plain(fault: &Fault) -> String {
    let text = fault.to_string();
    let words = text.split(" (os error").next().unwrap_or_default();
    let mut letters = words.chars();
    letters.next().map_or(String::new(), |first| first.to_lowercase().chain(letters).collect())
}

/// What is wrong with a certificate, and the options that may help.
fn with_remedy(words: String) -> String {
    if !words.contains("certificate") {
        return words;
    }
    words + " (--ca FILE names whom to trust, --sni NAME the server, --insecure takes any certificate)"
}

/// Connects once to each origin, to tell at once what can never work.
///
/// # Errors
/// The first origin that cannot be reached, and why.
pub(crate) fn probe(plan: &Plan) -> Result<(), String> {
    let core = Core::for_client(1).map_err(|error| error.to_string())?;
    let (inner, origins) = (core.clone(), plan.origins.clone());
    let timeout_ms = plan.connect_timeout.as_millis() as u64;
    let probed = core.run_until_end(async move {
        for origin in &origins {
            if let Err(failure) = link(&inner, origin, timeout_ms).await {
                let what = if failure.kind == Kind::Tls { "agree on TLS with" } else { "connect to" };
                return Err(format!("cannot {what} {}: {}", origin.name, failure.example));
            }
        }
        Ok(())
    });
    probed.map_err(|error| error.to_string())?
}
