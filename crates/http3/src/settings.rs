//! Settings (RFC 9114 section 7.2.4, RFC 9204 section 5, RFC 9220).

use crate::error::{Http3Code, Http3Error};
use crate::varint;

/// Identifiers.
#[allow(missing_docs)] // each is its name in the RFC
pub mod id {
    pub const QPACK_MAX_TABLE_CAPACITY: u64 = 0x1;
    pub const MAX_FIELD_SECTION_SIZE: u64 = 0x6;
    pub const QPACK_BLOCKED_STREAMS: u64 = 0x7;
    pub const ENABLE_CONNECT_PROTOCOL: u64 = 0x8;
}

/// Maximum number of settings of a SETTINGS frame, unknown ones included. Clients send about six.
const SETTINGS_MAX: usize = 64;

/// The settings of the peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Http3Settings {
    /// Maximum size of a field section that the peer accepts (RFC 9114 section 4.2.2), in bytes; `None` for
    /// no limit.
    pub section_bytes_max: Option<u64>,
    /// Maximum size of the dynamic table for what this side sends, in bytes. Default 0.
    pub table_bytes_max: u64,
    /// Maximum number of streams that may wait for the dynamic table. Default 0.
    pub blocked_streams_max: u64,
    /// Whether extended CONNECT is accepted. Default false.
    pub connect_protocol: bool,
}

impl Http3Settings {
    /// Reads the payload of a SETTINGS frame.
    ///
    /// # Errors
    /// A setting is cut off, repeated, reserved or invalid: the connection ends.
    pub fn read(mut payload: &[u8]) -> Result<Http3Settings, Http3Error> {
        let mut settings = Http3Settings::default();
        let mut seen: Vec<u64> = Vec::new();
        while !payload.is_empty() {
            let (id, value);
            (id, payload) = integer(payload)?;
            (value, payload) = integer(payload)?;
            if seen.contains(&id) {
                return Err(settings_error("repeated setting"));
            }
            if seen.len() == SETTINGS_MAX {
                return Err(Http3Error::connection(Http3Code::EXCESSIVE_LOAD, "too many settings"));
            }
            seen.push(id);
            match id {
                id::QPACK_MAX_TABLE_CAPACITY => settings.table_bytes_max = value,
                id::MAX_FIELD_SECTION_SIZE => settings.section_bytes_max = Some(value),
                id::QPACK_BLOCKED_STREAMS => settings.blocked_streams_max = value,
                id::ENABLE_CONNECT_PROTOCOL => {
                    settings.connect_protocol = match value {
                        0 => false,
                        1 => true,
                        _ => return Err(settings_error("ENABLE_CONNECT_PROTOCOL other than 0 or 1")),
                    };
                }
                // Settings of HTTP/2 without a meaning here (RFC 9114 section 7.2.4.1).
                0x0 | 0x2..=0x5 => return Err(settings_error("setting of HTTP/2")),
                _ => {}
            }
        }
        Ok(settings)
    }
}

/// Writes settings as the payload of a frame.
pub(crate) fn write(out: &mut Vec<u8>, settings: &[(u64, u64)]) {
    for (id, value) in settings {
        varint::write(out, *id);
        varint::write(out, *value);
    }
}

fn integer(payload: &[u8]) -> Result<(u64, &[u8]), Http3Error> {
    let (value, len) = varint::read(payload)
        .ok_or(Http3Error::connection(Http3Code::FRAME_ERROR, "SETTINGS ends in a setting"))?;
    Ok((value, &payload[len..]))
}

fn settings_error(reason: &'static str) -> Http3Error {
    Http3Error::connection(Http3Code::SETTINGS_ERROR, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(settings: &[(u64, u64)]) -> Vec<u8> {
        let mut out = Vec::new();
        write(&mut out, settings);
        out
    }

    #[test]
    fn settings_are_read_and_unknown_ones_ignored() {
        let bytes = payload(&[(0x21, 7), (0x1, 4096), (0x7, 16), (0x6, 65_536), (0x8, 1), (0x33, 1)]);
        let settings = Http3Settings::read(&bytes).unwrap();
        let expected = Http3Settings {
            section_bytes_max: Some(65_536),
            table_bytes_max: 4096,
            blocked_streams_max: 16,
            connect_protocol: true,
        };
        assert_eq!(settings, expected);
        assert_eq!(Http3Settings::read(b"").unwrap(), Http3Settings::default());
    }

    /// RFC 9114 sections 7.2.4 and 7.2.4.1, RFC 9220 section 3.
    #[test]
    fn repeated_reserved_and_invalid_settings_are_errors() {
        for (settings, code) in [
            (&[(0x6, 1), (0x6, 1)][..], Http3Code::SETTINGS_ERROR),
            (&[(0x21, 1), (0x21, 1)], Http3Code::SETTINGS_ERROR),
            (&[(0x0, 1)], Http3Code::SETTINGS_ERROR),
            (&[(0x2, 1)], Http3Code::SETTINGS_ERROR),
            (&[(0x3, 1)], Http3Code::SETTINGS_ERROR),
            (&[(0x4, 1)], Http3Code::SETTINGS_ERROR),
            (&[(0x5, 1)], Http3Code::SETTINGS_ERROR),
            (&[(0x8, 2)], Http3Code::SETTINGS_ERROR),
        ] {
            assert_eq!(Http3Settings::read(&payload(settings)).unwrap_err().code, code, "{settings:?}");
        }
        let whole = payload(&[(0x6, 65_536)]);
        for len in 1..whole.len() {
            assert_eq!(Http3Settings::read(&whole[..len]).unwrap_err().code, Http3Code::FRAME_ERROR);
        }
    }

    #[test]
    fn number_of_settings_is_limited() {
        let many: Vec<(u64, u64)> = (0x100..0x100 + SETTINGS_MAX as u64).map(|id| (id, 0)).collect();
        assert!(Http3Settings::read(&payload(&many)).is_ok());
        let more: Vec<(u64, u64)> = (0x100..=0x100 + SETTINGS_MAX as u64).map(|id| (id, 0)).collect();
        assert_eq!(Http3Settings::read(&payload(&more)).unwrap_err().code, Http3Code::EXCESSIVE_LOAD);
    }
}
