//! DNS messages (RFC 1035), as far as dynamic updates need them: encoding and parsing.

use std::fmt;
use std::ops::Range;

use failure::Failure;

/// Record type: start of a zone of authority.
pub(crate) const SOA: u16 = 6;
/// Record type: canonical name of an alias.
pub(crate) const CNAME: u16 = 5;
/// Record type: text.
pub(crate) const TXT: u16 = 16;
/// Record type: transaction signature (RFC 8945).
pub(crate) const TSIG: u16 = 250;
/// Class: Internet.
pub(crate) const CLASS_IN: u16 = 1;
/// Class of a record that an update deletes (RFC 2136 section 2.5.4).
pub(crate) const CLASS_NONE: u16 = 254;
/// Class of a TSIG record.
pub(crate) const CLASS_ANY: u16 = 255;

/// Size of the header in bytes.
pub(crate) const HEADER_BYTES: usize = 12;
/// Maximum length of a name in wire format.
const NAME_BYTES_MAX: usize = 255;
/// Header flag of a response (QR).
const RESPONSE: u16 = 0x8000;

/// A domain name in wire format, in lower case.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct DnsName(Vec<u8>);

impl DnsName {
    /// Parses `_acme-challenge.example.com`, with or without a trailing dot.
    ///
    /// # Errors
    /// Fails if the text is not a valid name.
    pub(crate) fn parse(text: &str) -> Result<DnsName, Failure> {
        let mut wire = Vec::with_capacity(text.len() + 2);
        for label in text.strip_suffix('.').unwrap_or(text).split('.') {
            match u8::try_from(label.len()) {
                Ok(len @ 1..=63) => wire.push(len),
                _ => return Err(Failure::new(format!("{text:?} is not a domain name"))),
            }
            wire.extend(label.bytes().map(|byte| byte.to_ascii_lowercase()));
        }
        wire.push(0);
        if wire.len() <= NAME_BYTES_MAX && text.bytes().all(|byte| byte.is_ascii_graphic()) {
            Ok(DnsName(wire))
        } else {
            Err(Failure::new(format!("{text:?} is not a domain name")))
        }
    }

    /// Returns the name in wire format, without compression.
    pub(crate) fn wire(&self) -> &[u8] {
        &self.0
    }

    /// Whether the name equals `zone` or is below it.
    pub(crate) fn is_in(&self, zone: &DnsName) -> bool {
        let mut rest = self.0.as_slice();
        loop {
            match rest {
                _ if rest == zone.0 => return true,
                [len, after @ ..] if *len > 0 => rest = after.get(usize::from(*len)..).unwrap_or_default(),
                _ => return false,
            }
        }
    }

    /// Parses the name at offset `at` of a message; returns it with the offset after it.
    fn read(message: &[u8], at: usize) -> Option<(DnsName, usize)> {
        let mut wire = Vec::new();
        let mut at = at;
        let mut after = None;
        loop {
            let len = *message.get(at)?;
            match len {
                0 => {
                    wire.push(0);
                    return Some((DnsName(wire), after.unwrap_or(at + 1)));
                }
                1..=63 => {
                    wire.push(len);
                    let label = message.get(at + 1..at + 1 + usize::from(len))?;
                    wire.extend(label.iter().map(u8::to_ascii_lowercase));
                    at += 1 + usize::from(len);
                }
                0xc0.. => {
                    let to = usize::from(len & 0x3f) << 8 | usize::from(*message.get(at + 1)?);
                    after = after.or(Some(at + 2));
                    // Pointers must point backwards, which excludes loops.
                    if to >= at {
                        return None;
                    }
                    at = to;
                }
                _ => return None,
            }
            if wire.len() >= NAME_BYTES_MAX {
                return None;
            }
        }
    }
}

impl fmt::Display for DnsName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0.as_slice();
        let mut dot = "";
        while let [len, after @ ..] = rest
            && *len > 0
        {
            let (label, next) = after.split_at_checked(usize::from(*len)).ok_or(fmt::Error)?;
            out.write_str(dot)?;
            // Some names are chosen by a server; escape them, because the log is read by people.
            for byte in label {
                let is_plain = byte.is_ascii_graphic() && !matches!(byte, b'.' | b'\\');
                if is_plain { write!(out, "{}", char::from(*byte))? } else { write!(out, "\\{byte:03}")? }
            }
            (rest, dot) = (next, ".");
        }
        if dot.is_empty() { out.write_str(".") } else { Ok(()) }
    }
}

impl fmt::Debug for DnsName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{self}")
    }
}

/// Creates a message with one question and no records: a query (opcode 0), or an update of the zone that the
/// question names (opcode 5, RFC 2136 section 2).
pub(crate) fn question(id: u16, opcode: u16, name: &DnsName, kind: u16) -> Vec<u8> {
    let mut message = Vec::with_capacity(512);
    for word in [id, opcode << 11, 1, 0, 0, 0] {
        message.extend(word.to_be_bytes());
    }
    message.extend(name.wire());
    message.extend(kind.to_be_bytes());
    message.extend(CLASS_IN.to_be_bytes());
    message
}

/// Appends a record to a message and counts it in its section: 1 answer (prerequisite), 2 authority (update),
/// 3 additional.
pub(crate) fn append(
    message: &mut Vec<u8>,
    section: usize,
    name: &DnsName,
    (kind, class, ttl_s): (u16, u16, u32),
    data: &[u8],
) {
    let at = 4 + 2 * section;
    let count = u16::from_be_bytes([message[at], message[at + 1]]) + 1;
    message[at..at + 2].copy_from_slice(&count.to_be_bytes());
    message.extend(name.wire());
    message.extend(kind.to_be_bytes());
    message.extend(class.to_be_bytes());
    message.extend(ttl_s.to_be_bytes());
    message.extend(u16::try_from(data.len()).unwrap_or(u16::MAX).to_be_bytes());
    message.extend(data);
}

/// A record of a message.
pub(crate) struct DnsRecord {
    pub(crate) name: DnsName,
    pub(crate) kind: u16,
    /// Offset of the record in the message.
    pub(crate) start: usize,
    pub(crate) data: Range<usize>,
}

/// A response message.
pub(crate) struct DnsMessage<'m> {
    pub(crate) bytes: &'m [u8],
    pub(crate) id: u16,
    /// Response code (RCODE).
    pub(crate) code: u8,
    /// Records of the sections answer, authority and additional.
    pub(crate) records: [Vec<DnsRecord>; 3],
}

impl<'m> DnsMessage<'m> {
    /// Parses a response; `None` if the bytes are not a valid response.
    pub(crate) fn read(bytes: &'m [u8]) -> Option<DnsMessage<'m>> {
        let word = |at: usize| Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]));
        let id = word(0)?;
        let flags = word(2)?;
        if flags & RESPONSE == 0 {
            return None;
        }
        let mut at = HEADER_BYTES;
        for _ in 0..word(4)? {
            at = DnsName::read(bytes, at)?.1 + 4;
        }
        let mut records = [const { Vec::new() }; 3];
        for (section, into) in records.iter_mut().enumerate() {
            // A record takes at least 11 bytes, so that a wrong count fails at the end of the message.
            for _ in 0..word(6 + 2 * section)? {
                let (name, fixed) = DnsName::read(bytes, at)?;
                let kind = word(fixed)?;
                let len = usize::from(word(fixed + 8)?);
                let data = fixed + 10..fixed + 10 + len;
                bytes.get(data.clone())?;
                into.push(DnsRecord { name, kind, start: at, data: data.clone() });
                at = data.end;
            }
        }
        (at == bytes.len()).then_some(DnsMessage { bytes, id, code: (flags & 15) as u8, records })
    }

    /// Returns the first record of a type in the answer and authority sections.
    pub(crate) fn first(&self, kind: u16) -> Option<&DnsRecord> {
        self.records[..2].iter().flatten().find(|record| record.kind == kind)
    }

    /// Returns the name that a record's data consists of.
    pub(crate) fn target(&self, record: &DnsRecord) -> Option<DnsName> {
        let (name, after) = DnsName::read(self.bytes, record.data.start)?;
        (after == record.data.end).then_some(name)
    }
}

/// Returns the name of a response code (RFC 1035, 2136, 8945).
pub(crate) fn code_name(code: u8) -> String {
    let name = match code {
        1 => "FORMERR",
        2 => "SERVFAIL",
        3 => "NXDOMAIN",
        4 => "NOTIMP",
        5 => "REFUSED",
        6 => "YXDOMAIN",
        7 => "YXRRSET",
        8 => "NXRRSET",
        9 => "NOTAUTH",
        10 => "NOTZONE",
        _ => return format!("RCODE {code}"),
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domain_names_are_parsed_and_printed() {
        let name = DnsName::parse("_acme-challenge.Example.COM.").unwrap();
        assert_eq!(name.to_string(), "_acme-challenge.example.com");
        assert_eq!(name.wire(), b"\x0f_acme-challenge\x07example\x03com\0");
        let zone = |text| DnsName::parse(text).unwrap();
        assert!(name.is_in(&zone("example.com")) && name.is_in(&name) && name.is_in(&DnsName(vec![0])));
        assert!(!name.is_in(&zone("ample.com")) && !zone("com").is_in(&name));
        for wrong in ["", ".", "a..b", "a b", &"a".repeat(64), &["a"; 130].join(".")] {
            assert!(DnsName::parse(wrong).is_err(), "{wrong}");
        }
        // Bytes from a server must not break a log line.
        assert_eq!(DnsName::read(b"\x03a.\n\0", 0).unwrap().0.to_string(), "a\\046\\010");
    }

    /// Returns a response with one answer, an SOA record whose name is compressed.
    fn response() -> Vec<u8> {
        let name = DnsName::parse("a.example.com").unwrap();
        let mut message = question(7, 0, &name, SOA);
        message[2] |= 0x80;
        message[3] |= 3;
        message[9] = 1;
        // The name is that of the question without its first label.
        message.extend([0xc0, 14, 0, 6, 0, 1, 0, 0, 0, 60, 0, 2, 0xc0, 14]);
        message
    }

    #[test]
    fn dns_response_is_parsed() {
        let bytes = response();
        let read = DnsMessage::read(&bytes).unwrap();
        assert_eq!((read.id, read.code), (7, 3));
        let soa = read.first(SOA).unwrap();
        assert_eq!(soa.name, DnsName::parse("example.com").unwrap());
        assert_eq!(read.target(soa), Some(DnsName::parse("example.com").unwrap()));
        assert!(read.first(CNAME).is_none());
    }

    #[test]
    fn malformed_dns_messages_are_rejected() {
        let bytes = response();
        for end in 0..bytes.len() {
            assert!(DnsMessage::read(&bytes[..end]).is_none(), "{end}");
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert!(DnsMessage::read(&longer).is_none());
        // A name that points to itself, and one that points forwards.
        let at = bytes.len() - 14;
        for to in [at, at + 2] {
            let mut circle = bytes.clone();
            circle[at..at + 2].copy_from_slice(&[0xc0, u8::try_from(to).unwrap()]);
            assert!(DnsMessage::read(&circle).is_none());
        }
        // Parsing must not panic for any value of any byte.
        for place in 0..bytes.len() {
            for value in 0..=255 {
                let mut changed = bytes.clone();
                changed[place] = value;
                let read = DnsMessage::read(&changed);
                let names = read.iter().flat_map(|one| one.records.iter().flatten());
                names.for_each(|record| _ = record.name.to_string());
            }
        }
    }
}
