//! The PROXY protocol, versions 1 and 2: a header at the beginning of a connection that names the client. The
//! server writes it to upstream servers, and reads it on listeners behind another proxy
//! (haproxy.org/download/3.2/doc/proxy-protocol.txt).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use http::Reject;

/// Version of the PROXY protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProxyProtocol {
    /// The text format.
    V1,
    /// The binary format.
    V2,
}

/// Both ends of the client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoints {
    /// The client.
    pub source: SocketAddr,
    /// The address that the client connected to.
    pub destination: SocketAddr,
}

/// Result of parsing the first bytes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderParse {
    /// More bytes are needed.
    NeedMore,
    /// A complete header and its length in bytes.
    Complete(usize, ProxyHeader),
}

/// Content of a PROXY protocol header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProxyHeader {
    /// Addresses of the client's connection. `None` for a connection of the proxy itself (`LOCAL`) or without
    /// addresses; the addresses of the socket apply.
    pub endpoints: Option<Endpoints>,
    /// Whether the client speaks TLS with the proxy (only reported by version 2).
    pub is_secure: bool,
}

const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// Maximum length of a version 1 header, including its CRLF.
const LINE_BYTES_MAX: usize = 107;
/// Maximum length of the addresses and extensions of a version 2 header; more than all registered ones need.
const EXTENSIONS_BYTES_MAX: usize = 4096;
/// Maximum length of a header.
pub(crate) const HEADER_BYTES_MAX: usize = 16 + EXTENSIONS_BYTES_MAX;
/// Supported extensions: PP2_TYPE_CRC32C and PP2_TYPE_SSL.
const TYPE_CRC32C: u8 = 0x03;
const TYPE_TLS: u8 = 0x20;
/// Transport of the client's connection in a version 2 header.
const STREAM: u8 = 1;
const DATAGRAM: u8 = 2;

/// Writes the header. Without `ends`, it declares a connection of the proxy itself.
pub fn write(out: &mut Vec<u8>, version: ProxyProtocol, endpoints: Option<Endpoints>) {
    let ends = endpoints.map(same_family);
    match (version, ends) {
        (ProxyProtocol::V1, None) => out.extend_from_slice(b"PROXY UNKNOWN\r\n"),
        (ProxyProtocol::V1, Some(Endpoints { source, destination })) => {
            let family = if source.is_ipv4() { "TCP4" } else { "TCP6" };
            let line = format!(
                "PROXY {family} {} {} {} {}\r\n",
                source.ip(),
                destination.ip(),
                source.port(),
                destination.port()
            );
            out.extend_from_slice(line.as_bytes());
        }
        (ProxyProtocol::V2, ends) => write_binary(out, ends, STREAM),
    }
}

/// Writes the header of version 2 that precedes a datagram.
pub(crate) fn write_datagram(out: &mut Vec<u8>, endpoints: Option<Endpoints>) {
    write_binary(out, endpoints.map(same_family), DATAGRAM);
}

fn write_binary(out: &mut Vec<u8>, endpoints: Option<Endpoints>, transport: u8) {
    out.extend_from_slice(SIGNATURE);
    let Some(ends) = endpoints else { return out.extend_from_slice(&[0x20, 0, 0, 0]) };
    let (family, len) = if ends.source.is_ipv4() { (0x10, 12) } else { (0x20, 36) };
    out.extend_from_slice(&[0x21, family | transport, 0, len]);
    for end in [ends.source, ends.destination] {
        match end.ip() {
            IpAddr::V4(ip) => out.extend_from_slice(&ip.octets()),
            IpAddr::V6(ip) => out.extend_from_slice(&ip.octets()),
        }
    }
    for end in [ends.source, ends.destination] {
        out.extend_from_slice(&end.port().to_be_bytes());
    }
}

/// Converts both addresses to IPv4 or both to IPv6, because a header has one address family.
fn same_family(ends: Endpoints) -> Endpoints {
    let plain = |end: SocketAddr| SocketAddr::new(end.ip().to_canonical(), end.port());
    let source = plain(ends.source);
    let destination = plain(ends.destination);
    if source.is_ipv4() == destination.is_ipv4() {
        return Endpoints { source, destination };
    }
    let wide = |end: SocketAddr| match end.ip() {
        IpAddr::V4(ip) => SocketAddr::new(ip.to_ipv6_mapped().into(), end.port()),
        IpAddr::V6(_) => end,
    };
    Endpoints { source: wide(source), destination: wide(destination) }
}

/// Parses the header at the beginning of `bytes`.
///
/// # Errors
/// 400 for anything but a header: a listener that expects one must close other connections.
pub fn read(bytes: &[u8]) -> Result<HeaderParse, Reject> {
    if bytes.starts_with(b"PROXY ") {
        return read_line(bytes);
    }
    let begun = bytes.len().min(SIGNATURE.len());
    if bytes[..begun] == SIGNATURE[..begun] {
        return read_binary(bytes, STREAM);
    }
    if b"PROXY ".starts_with(bytes) { Ok(HeaderParse::NeedMore) } else { Err(MISSING) }
}

/// Parses the header of version 2 at the beginning of a datagram; returns its length and content.
///
/// # Errors
/// 400 for a datagram without a complete header.
pub(crate) fn read_datagram(bytes: &[u8]) -> Result<(usize, ProxyHeader), Reject> {
    match bytes.starts_with(SIGNATURE).then(|| read_binary(bytes, DATAGRAM)) {
        Some(Ok(HeaderParse::Complete(len, header))) => Ok((len, header)),
        Some(Err(reject)) => Err(reject),
        Some(Ok(HeaderParse::NeedMore)) => Err(INVALID),
        None => Err(MISSING),
    }
}

const MISSING: Reject = Reject::bad_request("no PROXY protocol header");
const INVALID: Reject = Reject::bad_request("invalid PROXY protocol header");

fn read_line(bytes: &[u8]) -> Result<HeaderParse, Reject> {
    let window = &bytes[..bytes.len().min(LINE_BYTES_MAX)];
    let Some(end) = window.windows(2).position(|two| two == b"\r\n") else {
        return if window.len() == LINE_BYTES_MAX { Err(INVALID) } else { Ok(HeaderParse::NeedMore) };
    };
    let line = std::str::from_utf8(&window[..end]).map_err(|_| INVALID)?;
    let mut words = line.split(' ').skip(1);
    let family = words.next().unwrap_or_default();
    if family == "UNKNOWN" {
        return Ok(HeaderParse::Complete(end + 2, ProxyHeader::default()));
    }
    let mut ip = || words.next().and_then(|word| word.parse::<IpAddr>().ok()).ok_or(INVALID);
    let source = ip()?;
    let destination = ip()?;
    let mut port = || words.next().and_then(port).ok_or(INVALID);
    let source_port = port()?;
    let destination_port = port()?;
    let fits = |ip: IpAddr| match family {
        "TCP4" => ip.is_ipv4(),
        "TCP6" => ip.is_ipv6(),
        _ => false,
    };
    if words.next().is_some() || !fits(source) || !fits(destination) {
        return Err(INVALID);
    }
    let source = SocketAddr::new(source, source_port);
    let destination = SocketAddr::new(destination, destination_port);
    let ends = Some(Endpoints { source, destination });
    Ok(HeaderParse::Complete(end + 2, ProxyHeader { endpoints: ends, is_secure: false }))
}

fn port(word: &str) -> Option<u16> {
    word.bytes().all(|byte| byte.is_ascii_digit()).then(|| word.parse().ok())?
}

/// Addresses of clients with another transport are not used.
fn read_binary(bytes: &[u8], transport: u8) -> Result<HeaderParse, Reject> {
    let Some(head) = bytes.get(12..16) else { return Ok(HeaderParse::NeedMore) };
    let len = usize::from(u16::from_be_bytes([head[2], head[3]]));
    if head[0] >> 4 != 2 || len > EXTENSIONS_BYTES_MAX {
        return Err(INVALID);
    }
    let Some(rest) = bytes.get(16..16 + len) else { return Ok(HeaderParse::NeedMore) };
    let (ends, addresses_len) = match (head[0] & 15, head[1]) {
        // A `LOCAL` connection: the rest is skipped.
        (0, _) => return Ok(HeaderParse::Complete(16 + len, ProxyHeader::default())),
        (1, family @ (0x11 | 0x12)) => {
            let ends = v4_endpoints(rest.first_chunk().ok_or(INVALID)?);
            ((family & 15 == transport).then_some(ends), 12)
        }
        (1, family @ (0x21 | 0x22)) => {
            let ends = v6_endpoints(rest.first_chunk().ok_or(INVALID)?);
            ((family & 15 == transport).then_some(ends), 36)
        }
        // Unix sockets: valid, but without addresses that this server uses.
        (1, 0x31 | 0x32) => (None, 216),
        (1, _) => return Ok(HeaderParse::Complete(16 + len, ProxyHeader::default())),
        _ => return Err(INVALID),
    };
    let secure = read_extensions(&bytes[..16 + len], 16 + addresses_len)?;
    Ok(HeaderParse::Complete(16 + len, ProxyHeader { endpoints: ends, is_secure: secure }))
}

/// Reads the extensions (TLVs) of a header from `at` on. Verifies the checksum, skips unknown ones, and
/// returns whether the client speaks TLS.
fn read_extensions(header: &[u8], mut at: usize) -> Result<bool, Reject> {
    let mut secure = false;
    while at < header.len() {
        let start = header.get(at..at + 3).ok_or(INVALID)?;
        let len = usize::from(u16::from_be_bytes([start[1], start[2]]));
        let value = header.get(at + 3..at + 3 + len).ok_or(INVALID)?;
        match start[0] {
            TYPE_CRC32C => {
                let reported = u32::from_be_bytes(value.try_into().map_err(|_| INVALID)?);
                let zeros = [0; 4];
                let sum = [&header[..at + 3], &zeros, &header[at + 7..]].into_iter().fold(!0, crc32c);
                if !sum != reported {
                    return Err(Reject::bad_request("a PROXY protocol header with a wrong checksum"));
                }
            }
            TYPE_TLS => secure = value.first().is_some_and(|client| client & 1 != 0),
            _ => {}
        }
        at += 3 + len;
    }
    Ok(secure)
}

/// CRC-32C (RFC 9260 appendix A), bit by bit: few headers have one, and they are short.
fn crc32c(sum: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(sum, |sum, &byte| {
        (0..8).fold(sum ^ u32::from(byte), |sum, _| (sum >> 1) ^ if sum & 1 == 1 { 0x82f6_3b78 } else { 0 })
    })
}

fn v4_endpoints(bytes: &[u8; 12]) -> Endpoints {
    let end = |at: usize, port_at: usize| {
        let ip = Ipv4Addr::new(bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]);
        SocketAddr::new(ip.into(), u16::from_be_bytes([bytes[port_at], bytes[port_at + 1]]))
    };
    Endpoints { source: end(0, 8), destination: end(4, 10) }
}

fn v6_endpoints(bytes: &[u8; 36]) -> Endpoints {
    let end = |at: usize, port_at: usize| {
        let mut octets = [0; 16];
        octets.copy_from_slice(&bytes[at..at + 16]);
        let ip = Ipv6Addr::from(octets);
        SocketAddr::new(ip.into(), u16::from_be_bytes([bytes[port_at], bytes[port_at + 1]]))
    };
    Endpoints { source: end(0, 32), destination: end(16, 34) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(source: &str, destination: &str) -> Option<Endpoints> {
        Some(Endpoints { source: source.parse().unwrap(), destination: destination.parse().unwrap() })
    }

    #[test]
    fn written_proxy_headers_are_read_back_only_when_complete() {
        for reported in
            [ends("192.0.2.1:1234", "192.0.2.2:80"), ends("[2001:db8::1]:65535", "[2001:db8::2]:443"), None]
        {
            for version in [ProxyProtocol::V1, ProxyProtocol::V2] {
                let mut bytes = Vec::new();
                write(&mut bytes, version, reported);
                let len = bytes.len();
                bytes.extend_from_slice(b"GET / HTTP/1.1\r\n");
                let reported = ProxyHeader { endpoints: reported, is_secure: false };
                assert_eq!(read(&bytes), Ok(HeaderParse::Complete(len, reported)), "{version:?}");
                for cut in 0..len {
                    assert_eq!(read(&bytes[..cut]), Ok(HeaderParse::NeedMore), "{version:?} cut at {cut}");
                }
            }
        }
    }

    #[test]
    fn proxy_headers_match_the_specification() {
        let mut line = Vec::new();
        write(&mut line, ProxyProtocol::V1, ends("[::ffff:192.0.2.1]:1", "192.0.2.2:80"));
        assert_eq!(line, b"PROXY TCP4 192.0.2.1 192.0.2.2 1 80\r\n");
        let mut mixed = Vec::new();
        write(&mut mixed, ProxyProtocol::V1, ends("[2001:db8::1]:1", "192.0.2.2:80"));
        assert_eq!(mixed, b"PROXY TCP6 2001:db8::1 ::ffff:192.0.2.2 1 80\r\n");
        let mut binary = Vec::new();
        write(&mut binary, ProxyProtocol::V2, ends("1.2.3.4:258", "5.6.7.8:80"));
        assert_eq!(
            binary,
            b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\x01\x02\x03\x04\x05\x06\x07\x08\x01\x02\0\x50"
        );
    }

    const ENDS: &[u8] = b"\x01\x02\x03\x04\x05\x06\x07\x08\0\x01\0\x50";

    /// A version 2 header for TCP over IPv4 with these extensions.
    fn with(extensions: &[u8]) -> Vec<u8> {
        let len = u8::try_from(ENDS.len() + extensions.len()).unwrap();
        [&SIGNATURE[..], b"\x21\x11\0", &[len], ENDS, extensions].concat()
    }

    #[test]
    fn extensions_are_read_and_unknown_families_are_accepted() {
        let reported = |secure| ProxyHeader { endpoints: ends("1.2.3.4:1", "5.6.7.8:80"), is_secure: secure };
        // An unknown extension; TLS; TLS that the client does not speak.
        assert_eq!(read(&with(b"\xee\0\x02ab")), Ok(HeaderParse::Complete(33, reported(false))));
        assert_eq!(read(&with(b"\x20\0\x05\x01\0\0\0\0")), Ok(HeaderParse::Complete(36, reported(true))));
        assert_eq!(read(&with(b"\x20\0\x05\0\0\0\0\0")), Ok(HeaderParse::Complete(36, reported(false))));
        let unix = [&SIGNATURE[..], b"\x21\x31\0\xd8", &[b'x'; 216]].concat();
        assert_eq!(read(&unix), Ok(HeaderParse::Complete(232, ProxyHeader::default())));
        let own = [&SIGNATURE[..], b"\x20\0\0\x01x"].concat();
        assert_eq!(read(&own), Ok(HeaderParse::Complete(17, ProxyHeader::default())));
        let line = b"PROXY UNKNOWN ffff::1 ffff::1 1 2\r\n";
        assert_eq!(read(line), Ok(HeaderParse::Complete(35, ProxyHeader::default())));
    }

    #[test]
    fn datagram_headers_are_read_back_and_streams_ignore_them() {
        for reported in
            [ends("192.0.2.1:53", "192.0.2.2:5353"), ends("[2001:db8::1]:1", "[2001:db8::2]:2"), None]
        {
            let mut bytes = Vec::new();
            write_datagram(&mut bytes, reported);
            let len = bytes.len();
            bytes.extend_from_slice(b"query");
            let header = ProxyHeader { endpoints: reported, is_secure: false };
            assert_eq!(read_datagram(&bytes), Ok((len, header)));
            assert_eq!(read(&bytes), Ok(HeaderParse::Complete(len, ProxyHeader::default())));
            (0..len).for_each(|cut| assert!(read_datagram(&bytes[..cut]).is_err(), "cut at {cut}"));
        }
        let mut stream = Vec::new();
        write(&mut stream, ProxyProtocol::V2, ends("192.0.2.1:53", "192.0.2.2:5353"));
        assert_eq!(read_datagram(&stream), Ok((28, ProxyHeader::default())));
        assert!(read_datagram(b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\nquery").is_err());
    }

    #[test]
    fn proxy_header_checksum_is_verified() {
        // The well-known check value of the polynomial.
        assert_eq!(!crc32c(!0, b"123456789"), 0xe306_9283);
        let mut header = with(b"\x03\0\x04\0\0\0\0\x04\0\x01x");
        let sum = !crc32c(!0, &header);
        header[31..35].copy_from_slice(&sum.to_be_bytes());
        assert!(matches!(
            read(&header),
            Ok(HeaderParse::Complete(39, ProxyHeader { endpoints: Some(_), .. }))
        ));
        for at in [16, 31, 38] {
            let mut damaged = header.clone();
            damaged[at] ^= 1;
            assert!(read(&damaged).is_err(), "byte {at}");
        }
    }

    #[test]
    fn invalid_proxy_headers_are_rejected() {
        let endless = [&b"PROXY TCP4 "[..], &[b'1'; 200]].concat();
        let cases: [&[u8]; 15] = [
            b"GET / HTTP/1.1\r\n",
            b"PROXYX",
            b"PROXY TCP4 1.2.3.4 5.6.7.8 1\r\n",
            b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2 3\r\n",
            b"PROXY TCP4 1.2.3.4 ::1 1 2\r\n",
            b"PROXY TCP4 1.2.3.4 5.6.7.8 1 65536\r\n",
            b"PROXY TCP4 1.2.3.4 5.6.7.8 +1 2\r\n",
            b"PROXY UDP4 1.2.3.4 5.6.7.8 1 2\r\n",
            &endless,
            b"\r\n\r\n\0\r\nQUIT\n\x11\x11\0\0",
            b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x04abcd",
            b"\r\n\r\n\0\r\nQUIT\n\x22\x11\0\0",
            // Truncated extensions, and a checksum of the wrong length.
            &with(b"\xee\0"),
            &with(b"\xee\0\x05abcd"),
            &with(b"\x03\0\x02ab"),
        ];
        for bytes in cases {
            assert!(read(bytes).is_err(), "{}", bytes.escape_ascii());
        }
    }
}
