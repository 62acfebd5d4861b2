//! Reads the server name from a client's first TLS message without taking part in the handshake (RFC 8446
//! sections 4.1.2 and 5.1, RFC 6066 section 3).

/// Classification of the first bytes of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FirstMessage {
    /// A ClientHello and its server name, in lower case and without a final dot.
    Tls(Option<Box<str>>),
    /// Anything else.
    Other,
}

/// Error: the ClientHello is longer than [`HELLO_BYTES_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HelloTooLong;

/// Maximum size of a ClientHello, including its record headers; browsers send at most 2 KiB.
pub(crate) const HELLO_BYTES_MAX: usize = 16 * 1024;

const RECORD_HEADER_BYTES: usize = 5;
/// Maximum content length of a plaintext record.
const RECORD_BYTES_MAX: usize = 1 << 14;
const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
const HOST_NAME: u8 = 0;
/// Maximum length of a host name (RFC 1035 section 2.3.4).
const NAME_BYTES_MAX: usize = 253;

/// The bytes received so far. Each byte is examined only once, even if they arrive one at a time.
#[derive(Debug, Default)]
pub(crate) struct HelloReader {
    bytes: Vec<u8>,
    /// Offset of the header of the first incomplete record.
    record_at: usize,
    /// Message bytes in the complete records before `record_at`.
    message_bytes: usize,
    /// The handshake header: message type and length.
    handshake_header: [u8; 4],
}

impl HelloReader {
    /// Adds bytes that were received. Memory is allocated for exactly these.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.bytes.reserve_exact(bytes.len());
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns all bytes received.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Returns the number of bytes received.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Classifies the bytes; returns `None` if more are needed.
    ///
    /// # Errors
    /// The ClientHello is longer than [`HELLO_BYTES_MAX`].
    pub(crate) fn classify(&mut self) -> Result<Option<FirstMessage>, HelloTooLong> {
        loop {
            let Some(&kind) = self.bytes.get(self.record_at) else { return self.need_more() };
            if kind != HANDSHAKE {
                return Ok(Some(FirstMessage::Other));
            }
            if self.bytes.get(self.record_at + 1).is_some_and(|&major| major != 3) {
                return Ok(Some(FirstMessage::Other));
            }
            let content_at = self.record_at + RECORD_HEADER_BYTES;
            let Some(header) = self.bytes.get(self.record_at..content_at) else { return self.need_more() };
            let content_bytes = usize::from(u16::from_be_bytes([header[3], header[4]]));
            if content_bytes == 0 || content_bytes > RECORD_BYTES_MAX {
                return Ok(Some(FirstMessage::Other));
            }
            // Type and length may arrive before the rest of the record.
            let here = (self.bytes.len() - content_at).min(content_bytes);
            for at in self.message_bytes..self.handshake_header.len().min(self.message_bytes + here) {
                self.handshake_header[at] = self.bytes[content_at + at - self.message_bytes];
            }
            let known = self.message_bytes + here;
            if known > 0 && self.handshake_header[0] != CLIENT_HELLO {
                return Ok(Some(FirstMessage::Other));
            }
            if known >= self.handshake_header.len() {
                let [_, high, middle, low] = self.handshake_header;
                let whole = self.handshake_header.len() + u32::from_be_bytes([0, high, middle, low]) as usize;
                if whole > HELLO_BYTES_MAX {
                    return Err(HelloTooLong);
                }
                if known >= whole {
                    return Ok(Some(self.parse(whole)));
                }
            }
            if here < content_bytes {
                return self.need_more();
            }
            self.message_bytes = known;
            self.record_at = content_at + content_bytes;
        }
    }

    fn need_more(&self) -> Result<Option<FirstMessage>, HelloTooLong> {
        if self.bytes.len() > HELLO_BYTES_MAX { Err(HelloTooLong) } else { Ok(None) }
    }

    /// Parses the message of `whole` bytes, all of which have been received.
    fn parse(&self, whole: usize) -> FirstMessage {
        let mut joined = Vec::new();
        let mut rest = &self.bytes[..];
        let first = usize::from(u16::from_be_bytes([rest[3], rest[4]]));
        let message = if first >= whole {
            &rest[RECORD_HEADER_BYTES..RECORD_HEADER_BYTES + whole]
        } else {
            while joined.len() < whole {
                let content_bytes = usize::from(u16::from_be_bytes([rest[3], rest[4]]));
                let end = (RECORD_HEADER_BYTES + content_bytes).min(rest.len());
                joined.extend_from_slice(&rest[RECORD_HEADER_BYTES..end]);
                rest = &rest[end..];
            }
            &joined[..whole]
        };
        match server_name(&message[self.handshake_header.len()..]) {
            Ok(name) => FirstMessage::Tls(name),
            Err(NotClientHello) => FirstMessage::Other,
        }
    }
}

/// Error: the bytes are not a ClientHello.
struct NotClientHello;

/// A cursor over bytes.
struct HelloFields<'x>(&'x [u8]);

impl<'x> HelloFields<'x> {
    fn take(&mut self, len: usize) -> Result<&'x [u8], NotClientHello> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(NotClientHello)?;
        self.0 = rest;
        Ok(taken)
    }

    fn read_number(&mut self, bytes: usize) -> Result<usize, NotClientHello> {
        Ok(self.take(bytes)?.iter().fold(0, |sum, &byte| sum << 8 | usize::from(byte)))
    }

    /// Reads a vector with a length prefix of `length_bytes` bytes.
    fn read_vector(&mut self, length_bytes: usize) -> Result<&'x [u8], NotClientHello> {
        let len = self.read_number(length_bytes)?;
        self.take(len)
    }
}

/// Returns the server name of a ClientHello.
fn server_name(message: &[u8]) -> Result<Option<Box<str>>, NotClientHello> {
    let mut fields = HelloFields(message);
    // Version and random; session ID; cipher suites; compression methods.
    fields.take(2 + 32)?;
    fields.read_vector(1)?;
    fields.read_vector(2)?;
    fields.read_vector(1)?;
    if fields.0.is_empty() {
        // TLS 1.2 allows a message without extensions.
        return Ok(None);
    }
    let mut extensions = HelloFields(fields.read_vector(2)?);
    if !fields.0.is_empty() {
        return Err(NotClientHello);
    }
    let mut found = None;
    while !extensions.0.is_empty() {
        let kind = extensions.read_number(2)?;
        let content = extensions.read_vector(2)?;
        if kind != usize::from(SERVER_NAME) {
            continue;
        }
        if found.is_some() {
            // Two names: the upstream server might use the other one.
            return Err(NotClientHello);
        }
        found = Some(host_name(content)?);
    }
    Ok(found)
}

/// Parses the extension's content: a list of exactly one host name.
fn host_name(content: &[u8]) -> Result<Box<str>, NotClientHello> {
    let mut content = HelloFields(content);
    let mut names = HelloFields(content.read_vector(2)?);
    if names.read_number(1)? != usize::from(HOST_NAME) {
        return Err(NotClientHello);
    }
    let name = names.read_vector(2)?;
    if !names.0.is_empty() || !content.0.is_empty() {
        return Err(NotClientHello);
    }
    let name = name.strip_suffix(b".").unwrap_or(name);
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(byte);
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.iter().all(is_name) {
        return Err(NotClientHello);
    }
    let name = std::str::from_utf8(name).map_err(|_| NotClientHello)?;
    Ok(name.to_ascii_lowercase().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ClientHello made by rustls.
    fn of_rustls(name: &str, versions: &[&'static rustls::SupportedProtocolVersion]) -> Vec<u8> {
        let provider = std::sync::Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        let name = rustls::pki_types::ServerName::try_from(name.to_owned()).unwrap();
        let mut client = rustls::ClientConnection::new(config.into(), name).unwrap();
        let mut bytes = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut bytes).unwrap();
        }
        bytes
    }

    /// A complete ClientHello with these extensions.
    fn message(extensions: &[u8]) -> Vec<u8> {
        let mut body = vec![3, 3];
        body.extend_from_slice(&[7; 32]);
        body.extend_from_slice(&[0, 0, 2, 0x13, 1, 1, 0]);
        body.extend_from_slice(&u16::try_from(extensions.len()).unwrap().to_be_bytes());
        body.extend_from_slice(extensions);
        let mut message = vec![CLIENT_HELLO, 0];
        message.extend_from_slice(&u16::try_from(body.len()).unwrap().to_be_bytes());
        message.extend_from_slice(&body);
        message
    }

    /// A `server_name` extension.
    fn named(name: &[u8]) -> Vec<u8> {
        let len = u8::try_from(name.len()).unwrap();
        [&[0, 0, 0, len + 5, 0, len + 3, 0, 0, len], name].concat()
    }

    /// The message, split into records of at most `bytes_max` bytes.
    fn records(message: &[u8], bytes_max: usize) -> Vec<u8> {
        let record = |part: &[u8]| {
            [&[HANDSHAKE, 3, 1][..], &u16::try_from(part.len()).unwrap().to_be_bytes(), part].concat()
        };
        message.chunks(bytes_max).flat_map(record).collect()
    }

    fn read(parts: &[&[u8]]) -> Result<Option<FirstMessage>, HelloTooLong> {
        let mut reader = HelloReader::default();
        for (at, part) in parts.iter().enumerate() {
            reader.add(part);
            match reader.classify() {
                Ok(None) if at + 1 < parts.len() => {}
                known => return known,
            }
        }
        Ok(None)
    }

    fn tls(name: &str) -> Result<Option<FirstMessage>, HelloTooLong> {
        Ok(Some(FirstMessage::Tls(Some(name.into()))))
    }

    #[test]
    fn server_name_is_found_wherever_the_message_is_split() {
        use rustls::version::{TLS12, TLS13};
        let own = message(&[&[0, 23, 0, 0][..], &named(b"Git.Example.com."), &[0, 11, 0, 1, 9]].concat());
        let cases = [
            (of_rustls("git.example.com", &[&TLS13]), "git.example.com"),
            (of_rustls("git.example.com", &[&TLS12]), "git.example.com"),
            (records(&own, 1 << 14), "git.example.com"),
            (records(&own, 1), "git.example.com"),
            (records(&own, 3), "git.example.com"),
            (records(&own, 50), "git.example.com"),
        ];
        for (bytes, name) in cases {
            assert_eq!(read(&[&bytes]), tls(name));
            for cut in 0..bytes.len() {
                assert_eq!(read(&[&bytes[..cut]]), Ok(None), "cut at {cut}");
                assert_eq!(read(&[&bytes[..cut], &bytes[cut..]]), tls(name), "cut at {cut}");
            }
            let each: Vec<&[u8]> = bytes.chunks(1).collect();
            assert_eq!(read(&each), tls(name));
            // Data behind the ClientHello is ignored: a client may send early.
            assert_eq!(read(&[&[&bytes[..], b"more"].concat()]), tls(name));
        }
    }

    #[test]
    fn client_hello_without_server_name_is_tls() {
        let none = Ok(Some(FirstMessage::Tls(None)));
        assert_eq!(read(&[&records(&message(&[0, 23, 0, 0]), 100)]), none);
        assert_eq!(read(&[&of_rustls("192.0.2.1", &[&rustls::version::TLS13])]), none);
        // Without any extension.
        let mut bare = message(b"");
        bare.truncate(bare.len() - 2);
        bare[3] -= 2;
        assert_eq!(read(&[&records(&bare, 100)]), none);
    }

    #[test]
    fn input_that_is_not_a_client_hello_is_other() {
        let other = Ok(Some(FirstMessage::Other));
        for bytes in [
            &b"GET / HTTP/1.1\r\n"[..],
            b"SSH-2.0-x",
            b"\0",
            b"\x80\x2e\x01",
            b"\x16\x02",
            b"\x16\x03\x01\0\0",
        ] {
            assert_eq!(read(&[bytes]), other, "{}", bytes.escape_ascii());
        }
        // A record that is too long; another handshake message; a record of another type within the message.
        assert_eq!(read(&[b"\x16\x03\x01\x40\x01"]), other);
        assert_eq!(read(&[b"\x16\x03\x01\0\x04\x02"]), other);
        let mut mixed = records(&message(&named(b"a.example")), 10);
        mixed[15] = 23;
        assert_eq!(read(&[&mixed]), other);
    }

    #[test]
    fn ambiguous_server_names_are_not_accepted() {
        let other = Ok(Some(FirstMessage::Other));
        let twice = [named(b"a.example"), named(b"b.example")].concat();
        let two_in_one = [0, 0, 0, 10, 0, 8, 0, 0, 1, b'a', 0, 0, 1, b'b'];
        let cases: [&[u8]; 9] = [
            &twice,
            &two_in_one,
            &named(b""),
            &named(b"."),
            &named(b"a b"),
            &named(b"a\0.example"),
            &named("\u{e9}.example".as_bytes()),
            // Inconsistent lengths.
            &[0, 0, 0, 9, 0, 4, 0, 0, 1, b'a'],
            &[0, 0, 0, 5, 0, 3, 0, 0, 9],
        ];
        for extensions in cases {
            assert_eq!(read(&[&records(&message(extensions), 1000)]), other, "{extensions:?}");
        }
    }

    #[test]
    fn client_hello_above_the_size_limit_is_rejected() {
        // The fourth byte of the handshake header reveals a length beyond the limit.
        assert_eq!(read(&[b"\x16\x03\x01\x40\0\x01\x01\0\0"]), Err(HelloTooLong));
        // Many small records.
        let mut endless = Vec::new();
        while endless.len() <= HELLO_BYTES_MAX {
            endless.extend_from_slice(&[HANDSHAKE, 3, 1, 0, 1, if endless.is_empty() { 1 } else { 0 }]);
        }
        // The message length is 0 there, so the message is malformed before it is too long.
        assert_eq!(read(&[&endless]), Ok(Some(FirstMessage::Other)));
        let long = [&[CLIENT_HELLO, 0, 0x3f, 0xf0][..], &[0; 0x3ff0]].concat();
        assert_eq!(read(&[&records(&long, 1)[..HELLO_BYTES_MAX + 1]]), Err(HelloTooLong));
    }

    #[test]
    fn damaged_client_hello_is_read_alike_whole_and_split() {
        let own = records(&message(&named(b"a.example")), 20);
        for at in 0..own.len() {
            for byte in 0..=255 {
                let mut damaged = own.clone();
                damaged[at] = byte;
                let whole = read(&[&damaged]);
                let (one, other) = damaged.split_at(at);
                let split = read(&[one, other]);
                assert_eq!(whole, split, "byte {at} = {byte}");
            }
        }
    }
}
