//! Messages of DNS (RFC 1035): queries, and the records of responses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Type of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RecordType {
    /// IPv4 addresses.
    A,
    /// IPv6 addresses.
    Aaaa,
    /// Servers of a service (RFC 2782).
    Srv,
}

impl RecordType {
    fn number(self) -> u16 {
        match self {
            RecordType::A => 1,
            RecordType::Aaaa => 28,
            RecordType::Srv => 33,
        }
    }
}

const CNAME: u16 = 5;
const SOA: u16 = 6;
const INTERNET: u16 = 1;
/// Maximum number of records of a response that are read; further ones are ignored.
const RECORDS_MAX: usize = 1024;
/// Maximum length of a name, in bytes (RFC 1035 section 2.3.4).
const NAME_BYTES_MAX: usize = 253;
const NO_ERROR: u8 = 0;
const NO_SUCH_NAME: u8 = 3;

/// Content of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RecordData {
    Address(IpAddr),
    /// Another name for the same.
    Alias(String),
    Server {
        priority: u16,
        weight: u16,
        port: u16,
        target: String,
    },
}

/// A record of the answer or of the additional section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) owner: String,
    pub(crate) ttl_s: u32,
    pub(crate) data: RecordData,
}

/// A response that answers the question.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct DnsResponse {
    /// Records of the answer.
    pub(crate) answer: Vec<Record>,
    /// Records that the server has added.
    pub(crate) additional: Vec<Record>,
    /// Seconds for which the absence of records may be kept (RFC 2308 section 5), if the server states it.
    pub(crate) negative_ttl_s: Option<u32>,
}

/// Reason why a message is no answer to the question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DnsFault {
    /// The message belongs to another question, or is damaged.
    Invalid,
    /// The message is cut: ask over TCP.
    Cut,
    /// The server cannot answer, with this code.
    Failed(u8),
}

/// Returns the query for records of a name, which has no final dot.
///
/// # Errors
/// The name has empty or long labels.
pub(crate) fn query(id: u16, name: &str, kind: RecordType) -> Result<Vec<u8>, DnsFault> {
    let mut message = Vec::with_capacity(18 + name.len());
    message.extend(id.to_be_bytes());
    // Recursion desired; one question.
    message.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    if name.len() > NAME_BYTES_MAX {
        return Err(DnsFault::Invalid);
    }
    for label in name.split('.') {
        let len = u8::try_from(label.len()).ok().filter(|len| (1..=63).contains(len));
        message.push(len.ok_or(DnsFault::Invalid)?);
        message.extend(label.bytes());
    }
    message.push(0);
    message.extend(kind.number().to_be_bytes());
    message.extend(INTERNET.to_be_bytes());
    Ok(message)
}

/// Parses the response to a query.
///
/// # Errors
/// See [`DnsFault`].
pub(crate) fn parse(message: &[u8], id: u16, name: &str, kind: RecordType) -> Result<DnsResponse, DnsFault> {
    parse_answer(message, id, name, kind).unwrap_or(Err(DnsFault::Invalid))
}

/// The same; `None` if the message is damaged.
fn parse_answer(
    message: &[u8],
    id: u16,
    name: &str,
    kind: RecordType,
) -> Option<Result<DnsResponse, DnsFault>> {
    let mut at = 0;
    let is_own = read_u16(message, &mut at)? == id;
    let flags = read_u16(message, &mut at)?;
    let mut counts = [0usize; 4];
    for count in &mut counts {
        *count = usize::from(read_u16(message, &mut at)?);
    }
    let is_response = flags & 0x8000 != 0 && flags & 0x7800 == 0;
    if !is_own || !is_response || counts[0] != 1 {
        return None;
    }
    let asked = read_name(message, &mut at)??;
    let asked_kind = (read_u16(message, &mut at)?, read_u16(message, &mut at)?);
    if !asked.eq_ignore_ascii_case(name) || asked_kind != (kind.number(), INTERNET) {
        return None;
    }
    if flags & 0x0200 != 0 {
        return Some(Err(DnsFault::Cut));
    }
    let code = (flags & 15) as u8;
    if code != NO_ERROR && code != NO_SUCH_NAME {
        return Some(Err(DnsFault::Failed(code)));
    }
    let mut response = DnsResponse::default();
    let mut left = RECORDS_MAX;
    for (section, count) in counts[1..].iter().enumerate() {
        for _ in 0..*count {
            if left == 0 {
                return Some(Ok(response));
            }
            left -= 1;
            let owner = read_name(message, &mut at)?;
            let (of_type, class) = (read_u16(message, &mut at)?, read_u16(message, &mut at)?);
            let ttl_s = u32::from(read_u16(message, &mut at)?) << 16 | u32::from(read_u16(message, &mut at)?);
            // RFC 2181 section 8: a value with the first bit set counts as 0.
            let ttl_s = if ttl_s >> 31 == 0 { ttl_s } else { 0 };
            let end = usize::from(read_u16(message, &mut at)?) + at;
            let from = std::mem::replace(&mut at, end);
            let data = message.get(from..end)?;
            let Some(owner) = owner.filter(|_| class == INTERNET) else { continue };
            if section == 1 {
                if of_type == SOA && data.len() >= 4 {
                    let minimum = data.last_chunk::<4>().map_or(0, |bytes| u32::from_be_bytes(*bytes));
                    response.negative_ttl_s = Some(minimum.min(ttl_s));
                }
                continue;
            }
            // A damaged message must not count as one without addresses.
            if (of_type == 1 && data.len() != 4) || (of_type == 28 && data.len() != 16) {
                return None;
            }
            let Some(data) = record_data(message, from..end, of_type) else { continue };
            let record = Record { owner, ttl_s, data };
            if section == 0 { response.answer.push(record) } else { response.additional.push(record) }
        }
    }
    Some(Ok(response))
}

/// Returns the content of a record; `None` if it is of another type, or invalid.
fn record_data(message: &[u8], range: std::ops::Range<usize>, of_type: u16) -> Option<RecordData> {
    let data = &message[range.clone()];
    let mut at = range.start;
    match of_type {
        1 => Some(RecordData::Address(Ipv4Addr::from(<[u8; 4]>::try_from(data).ok()?).into())),
        28 => Some(RecordData::Address(Ipv6Addr::from(<[u8; 16]>::try_from(data).ok()?).into())),
        CNAME => Some(RecordData::Alias(read_name(message, &mut at)??)),
        33 => {
            let (priority, weight) = (read_u16(message, &mut at)?, read_u16(message, &mut at)?);
            let port = read_u16(message, &mut at)?;
            // The root: the service is not offered (RFC 2782).
            let target = read_name(message, &mut at)?.filter(|name| !name.is_empty())?;
            (at <= range.end && port > 0).then_some(RecordData::Server { priority, weight, port, target })
        }
        _ => None,
    }
}

fn read_u16(message: &[u8], at: &mut usize) -> Option<u16> {
    let bytes = message.get(*at..*at + 2)?;
    *at += 2;
    Some(u16::from(bytes[0]) << 8 | u16::from(bytes[1]))
}

/// Reads a name in lower case. The outer `None`: the message is damaged; the inner one: the name is not that of a host or
/// a service.
fn read_name(message: &[u8], at: &mut usize) -> Option<Option<String>> {
    let mut name = String::new();
    let mut is_usual = true;
    let mut from = *at;
    let mut end = None;
    loop {
        let len = *message.get(from)?;
        match len {
            0 => {
                *at = end.unwrap_or(from + 1);
                return Some(is_usual.then_some(name));
            }
            1..=63 => {
                let label = message.get(from + 1..from + 1 + usize::from(len))?;
                is_usual &= label.iter().all(|&byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
                if name.len() + label.len() >= NAME_BYTES_MAX {
                    return None;
                }
                if !name.is_empty() {
                    name.push('.');
                }
                name.extend(label.iter().map(|byte| char::from(byte.to_ascii_lowercase())));
                from += 1 + usize::from(len);
            }
            0xc0.. => {
                let to = usize::from(read_u16(message, &mut { from })? & 0x3fff);
                end.get_or_insert(from + 2);
                // Only backwards, so that names end.
                if to >= from {
                    return None;
                }
                from = to;
            }
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A response with two servers, one of whose addresses is added, as a name server compresses it.
    fn srv_response() -> Vec<u8> {
        let mut message = query(7, "_web._tcp.example.test", RecordType::Srv).unwrap();
        message[2] = 0x81;
        message[3] = 0x80;
        message[7] = 2;
        message[11] = 1;
        let suffix = 12 + 5 + 5;
        let one = message.len() + 12 + 6;
        for (host, port, ttl) in [("one", 8080u16, 30u8), ("two", 8081, 20)] {
            message.extend([0xc0, 12, 0, 33, 0, 1, 0, 0, 0, ttl]);
            message.extend((6 + 4 + 2u16).to_be_bytes());
            message.extend([0, 1, 0, 5]);
            message.extend(port.to_be_bytes());
            message.push(3);
            message.extend(host.bytes());
            message.extend([0xc0, suffix]);
        }
        message.extend([0xc0, one as u8, 0, 1, 0, 1, 0, 0, 0, 9, 0, 4, 192, 0, 2, 1]);
        message
    }

    const NAME: &str = "_web._tcp.example.test";

    #[test]
    fn servers_and_their_addresses_are_read() {
        let response = parse(&srv_response(), 7, "_WEB._tcp.example.test", RecordType::Srv).unwrap();
        let server = |target: &str, port, ttl_s| Record {
            owner: NAME.into(),
            ttl_s,
            data: RecordData::Server { priority: 1, weight: 5, port, target: target.into() },
        };
        assert_eq!(
            response.answer,
            [server("one.example.test", 8080, 30), server("two.example.test", 8081, 20)]
        );
        let address = RecordData::Address(Ipv4Addr::new(192, 0, 2, 1).into());
        assert_eq!(
            response.additional,
            [Record { owner: "one.example.test".into(), ttl_s: 9, data: address }]
        );
    }

    #[test]
    fn messages_of_other_questions_and_damaged_ones_are_refused() {
        let whole = srv_response();
        let refused = |message: &[u8], id, name, kind| parse(message, id, name, kind).unwrap_err();
        assert_eq!(refused(&whole, 8, NAME, RecordType::Srv), DnsFault::Invalid);
        assert_eq!(refused(&whole, 7, "_other._tcp.example.test", RecordType::Srv), DnsFault::Invalid);
        assert_eq!(refused(&whole, 7, NAME, RecordType::A), DnsFault::Invalid);
        for len in 0..whole.len() {
            assert_eq!(refused(&whole[..len], 7, NAME, RecordType::Srv), DnsFault::Invalid, "{len}");
        }
        for (at, value, fault) in
            [(3, 0x82, DnsFault::Failed(2)), (2, 0x83, DnsFault::Cut), (2, 0x01, DnsFault::Invalid)]
        {
            let mut changed = whole.clone();
            changed[at] = value;
            assert_eq!(refused(&changed, 7, NAME, RecordType::Srv), fault);
        }
        // Nothing panics, and nothing takes long, whatever the bytes are.
        for at in 0..whole.len() {
            for value in [0, 1, 63, 64, 0xc0, 0xff, at as u8] {
                let mut changed = whole.clone();
                changed[at] = value;
                let _ = parse(&changed, 7, NAME, RecordType::Srv);
            }
        }
    }

    #[test]
    fn pointers_of_names_only_go_back() {
        let mut message = query(7, "a.test", RecordType::A).unwrap();
        message[2] = 0x80;
        message[7] = 1;
        let own = message.len() as u8;
        for pointer in [own, own + 2, 0xff] {
            let mut looped = message.clone();
            looped.extend([0xc0, pointer, 0, 1, 0, 1, 0, 0, 0, 9, 0, 4, 192, 0, 2, 1]);
            assert_eq!(parse(&looped, 7, "a.test", RecordType::A), Err(DnsFault::Invalid));
        }
        message.extend([0xc0, 12, 0, 1, 0, 1, 0xff, 0, 0, 9, 0, 4, 192, 0, 2, 1]);
        let response = parse(&message, 7, "a.test", RecordType::A).unwrap();
        assert_eq!((response.answer.len(), response.answer[0].ttl_s), (1, 0));
    }

    #[test]
    fn absence_lasts_as_long_as_the_server_states() {
        let mut message = query(7, "a.test", RecordType::A).unwrap();
        message[2] = 0x80;
        message[3] = 3;
        message[9] = 1;
        message.extend([0xc0, 14, 0, 6, 0, 1, 0, 0, 0, 60, 0, 22, 0, 0]);
        message.extend([[0, 0, 0, 1]; 4].concat());
        message.extend([0, 0, 0, 20]);
        let response = parse(&message, 7, "a.test", RecordType::A).unwrap();
        assert_eq!((response.answer.len(), response.negative_ttl_s), (0, Some(20)));
    }

    #[test]
    fn names_that_cannot_be_asked_for_are_refused() {
        for name in ["", "a..b", &"a".repeat(64), &"a.".repeat(127)] {
            assert!(query(1, name, RecordType::A).is_err(), "{name}");
        }
    }
}
