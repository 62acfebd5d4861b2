//! Client of a control listener for `komainu ctl`, `status` and `top`: over TCP, TLS or a Unix socket, with a
//! token or a certificate.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use failure::{Failure, FailureContext};
use net::{TlsClient, TlsClientOptions};

/// Environment variable that names the token file if no argument does.
const TOKEN_VARIABLE: &str = "KOMAINU_TOKEN_FILE";
/// Timeout for connecting to one address, and for writing.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Default port of https:// addresses.
const HTTPS_PORT: u16 = 443;

/// Who a client of a control listener over TCP says it is, and what it believes.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ControlCredentials {
    /// The file with the token for it, over TCP [default: the file that KOMAINU_TOKEN_FILE names]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// With https://: trust the certificates in this file (PEM) instead of the system's
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) cacert: Option<PathBuf>,
    /// With https://: the certificate to show (PEM)
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) cert: Option<PathBuf>,
    /// Its private key (PEM) [default: in the file of the certificate]
    #[arg(long, global = true, value_name = "FILE", requires = "cert")]
    pub(crate) key: Option<PathBuf>,
}

impl ControlCredentials {
    /// Refuses credentials that were given without an address.
    ///
    /// # Errors
    /// The first such argument.
    pub(crate) fn refuse_without_address(&self) -> Result<(), Failure> {
        let given = [("--token-file", &self.token_file), ("--cacert", &self.cacert), ("--cert", &self.cert)];
        match given.into_iter().find(|(_, path)| path.is_some()) {
            Some((name, _)) => {
                Err(Failure::new(format!("{name} is for a control listener over TCP: name its address too")))
            }
            None => Ok(()),
        }
    }

    /// Reads the token from the given file, or the one named in the environment; `None` if there is neither.
    fn read_token(&self) -> Result<Option<String>, Failure> {
        let named = || std::env::var_os(TOKEN_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
        let Some(path) = self.token_file.clone().or_else(named) else { return Ok(None) };
        let text = String::from_utf8(read_file(&path)?)
            .map_err(|_| Failure::new(format!("{}: it is not text", path.display())))?;
        let token = config::parse_control_token(&text).with_context(|| path.display())?;
        Ok(Some(token.to_owned()))
    }

    /// Creates the TLS client for a host.
    fn build_tls(&self, host: &str) -> Result<TlsClient, Failure> {
        let roots = self.cacert.as_deref().map(read_file).transpose()?;
        let cert = self.cert.as_deref().map(read_file).transpose()?;
        let key = self.key.as_deref().map(read_file).transpose()?;
        let identity_pem =
            cert.as_ref().map(|cert| (&cert[..], key.as_ref().map_or(&cert[..], |key| &key[..])));
        let name = host.trim_start_matches('[').trim_end_matches(']');
        let options = TlsClientOptions {
            name,
            roots_pem: roots.as_deref(),
            identity_pem,
            ..TlsClientOptions::default()
        };
        TlsClient::new(&options).map_err(|failure| match (&self.cacert, &self.cert) {
            (None, None) => failure,
            (Some(path), None) | (None, Some(path)) => failure.context(path.display()),
            (Some(one), Some(other)) => {
                failure.context(format_args!("{} or {}", one.display(), other.display()))
            }
        })
    }
}

fn read_file(path: &Path) -> Result<Vec<u8>, Failure> {
    fs::read(path).with_context(|| path.display())
}

/// Address of a control listener.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ControlAddress {
    Unix(PathBuf),
    Tcp {
        /// Host name or address; IPv6 addresses have brackets.
        host: String,
        port: u16,
        is_tls: bool,
    },
}

/// A bidirectional byte stream.
pub(crate) trait ControlStream: Read + Write {}
impl<T: Read + Write> ControlStream for T {}

/// A control listener and the means to connect to it.
pub(crate) struct ControlEndpoint {
    address: ControlAddress,
    tls: Option<TlsClient>,
    token: Option<String>,
}

impl ControlEndpoint {
    /// Parses an address: `HOST:PORT`, `http://HOST:PORT`, `https://HOST:PORT` or `unix:PATH`. The
    /// credentials' files are read here.
    ///
    /// # Errors
    /// The address is invalid, or a file cannot be read or has invalid content.
    pub(crate) fn new(address: &str, credentials: &ControlCredentials) -> Result<ControlEndpoint, Failure> {
        let address = parse_address(address)?;
        let (tls, token) = match &address {
            // Unix sockets need neither TLS nor a token.
            ControlAddress::Unix(_) => (None, None),
            ControlAddress::Tcp { host, is_tls, .. } => {
                let tls = is_tls.then(|| credentials.build_tls(host)).transpose()?;
                if tls.is_none() && (credentials.cacert.is_some() || credentials.cert.is_some()) {
                    return Err(Failure::new("certificates are for TLS: write https:// before the address"));
                }
                (tls, credentials.read_token()?)
            }
        };
        Ok(ControlEndpoint { address, tls, token })
    }

    /// Connects; each read of the answer may take `answer_max`. Returns the connection and the header lines
    /// that identify the server and the caller: `Host`, and `Authorization` if there is a token.
    ///
    /// # Errors
    /// The connection or the TLS handshake fails.
    pub(crate) fn connect(&self, answer_max: Duration) -> io::Result<(Box<dyn ControlStream>, String)> {
        let (host, port) = match &self.address {
            ControlAddress::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(answer_max))?;
                stream.set_write_timeout(Some(CONNECT_TIMEOUT))?;
                return Ok((Box::new(stream), "Host: localhost\r\n".to_owned()));
            }
            ControlAddress::Tcp { host, port, .. } => (host, *port),
        };
        let stream = connect_tcp(host, port)?;
        stream.set_read_timeout(Some(answer_max))?;
        stream.set_write_timeout(Some(CONNECT_TIMEOUT))?;
        let token = self.token.as_ref().map(|token| format!("Authorization: Bearer {token}\r\n"));
        let token = token.unwrap_or_default();
        Ok(match &self.tls {
            Some(tls) => {
                let fields = format!("Host: {host}:{port}\r\n{token}");
                (Box::new(tls.connect_blocking(stream)?), fields)
            }
            None => {
                // Without a token, the server accepts an IP address only (protection against DNS rebinding).
                let address = stream.peer_addr()?;
                (Box::new(stream), format!("Host: {address}\r\n{token}"))
            }
        })
    }
}

/// Reads the answer to a request after which the server closes the connection, at most `bytes_max` bytes.
///
/// # Errors
/// The connection fails, the answer is shorter than its `Content-Length`, or TLS ends without `close_notify`
/// and the length is unknown.
pub(crate) fn read_answer(stream: impl Read, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut stream = stream.take(bytes_max);
    let ended = stream.read_to_end(&mut bytes);
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").map_or(bytes.len(), |at| at + 4);
    let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
    let length =
        head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
    let is_whole = length.map(|length| bytes.len() - end >= length);
    match (ended, is_whole) {
        (_, Some(true)) | (Ok(_), None) => Ok(bytes),
        (Ok(_), Some(false)) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the answer is cut off")),
        (Err(error), _) => Err(error),
    }
}

/// Connects to the first reachable address of a host.
fn connect_tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let name = host.trim_start_matches('[').trim_end_matches(']');
    let mut outcome = Err(io::Error::other("the name has no address"));
    for address in (name, port).to_socket_addrs()? {
        outcome = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT);
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}

fn parse_address(text: &str) -> Result<ControlAddress, Failure> {
    let wrong = || {
        Failure::new(format!("`{text}` is not an address: write HOST:PORT, https://HOST:PORT or unix:PATH"))
    };
    if let Some(path) = text.strip_prefix("unix:") {
        return Ok(ControlAddress::Unix(path.trim_start_matches("//").into()));
    }
    let (rest, is_tls) = match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
        (Some(rest), _) => (rest, true),
        (_, Some(rest)) => (rest, false),
        _ if text.contains('/') => return Ok(ControlAddress::Unix(text.into())),
        _ => (text, false),
    };
    let rest = rest.trim_end_matches('/');
    let is_bare = rest.ends_with(']') || !rest.contains(':');
    let (host, port) = match (rest.rsplit_once(':'), is_tls && is_bare) {
        (_, true) => (rest, HTTPS_PORT),
        (Some((host, port)), _) => (host, port.parse().map_err(|_| wrong())?),
        (None, _) => return Err(wrong()),
    };
    let host = if host.is_empty() && !is_tls { "127.0.0.1" } else { host };
    let is_host = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let is_ipv6 = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .is_some_and(|host| host.parse::<std::net::Ipv6Addr>().is_ok());
    if is_ipv6 || (!host.is_empty() && host.chars().all(is_host)) {
        Ok(ControlAddress::Tcp { host: host.to_owned(), port, is_tls })
    } else {
        Err(wrong())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_addresses_are_parsed_in_all_forms() {
        let tcp = |host: &str, port, is_tls| ControlAddress::Tcp { host: host.into(), port, is_tls };
        for (text, want) in [
            ("127.0.0.1:9180", tcp("127.0.0.1", 9180, false)),
            (":9180", tcp("127.0.0.1", 9180, false)),
            ("http://localhost:9180/", tcp("localhost", 9180, false)),
            ("https://ops.example.com:9180", tcp("ops.example.com", 9180, true)),
            ("https://ops.example.com", tcp("ops.example.com", 443, true)),
            ("https://[::1]/", tcp("[::1]", 443, true)),
            ("[::1]:80", tcp("[::1]", 80, false)),
            ("unix:/run/k.sock", ControlAddress::Unix("/run/k.sock".into())),
            ("/run/k.sock", ControlAddress::Unix("/run/k.sock".into())),
        ] {
            assert_eq!(parse_address(text), Ok(want), "{text}");
        }
        for text in ["", "localhost", "a b:1", "a:99999", "https://:1", "http://a", "[::1:80", "a:1\r\nX: y"]
        {
            assert!(parse_address(text).unwrap_err().to_string().contains("is not an address"), "{text}");
        }
    }

    /// Bytes followed by an unexpected end, as of a truncated TLS connection.
    struct TruncatedStream<'b>(&'b [u8]);

    impl Read for TruncatedStream<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            match self.0.read(buffer)? {
                0 => Err(io::ErrorKind::UnexpectedEof.into()),
                len => Ok(len),
            }
        }
    }

    #[test]
    fn truncated_answer_is_an_error() {
        let whole = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
        assert_eq!(read_answer(&whole[..], 100).unwrap(), whole);
        assert_eq!(read_answer(TruncatedStream(whole), 100).unwrap(), whole);
        let short = &whole[..whole.len() - 1];
        assert!(read_answer(short, 100).unwrap_err().to_string().contains("cut off"));
        assert!(read_answer(TruncatedStream(short), 100).is_err());
        assert!(read_answer(TruncatedStream(b"HTTP/1.1 200 OK\r\n\r\n{}"), 100).is_err());
        assert!(read_answer(&whole[..], 20).is_ok_and(|bytes| bytes.len() == 20));
    }

    #[test]
    fn certificates_need_tls_and_an_address() {
        let credentials = ControlCredentials { cacert: Some("/nonexistent".into()), ..Default::default() };
        assert!(credentials.refuse_without_address().unwrap_err().to_string().starts_with("--cacert"));
        let failed = |address| ControlEndpoint::new(address, &credentials).err().unwrap().to_string();
        assert!(failed("127.0.0.1:1").contains("https://"));
        assert!(failed("https://127.0.0.1:1").starts_with("/nonexistent: "));
    }
}
