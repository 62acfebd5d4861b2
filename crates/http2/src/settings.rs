//! SETTINGS frames (RFC 9113 section 6.5).

use crate::error::{ConnectionError, ErrorCode};
use crate::frame::{MAX_31_BITS, PAYLOAD_BYTES_MAX};

/// The identifiers of settings.
pub(crate) mod id {
    pub(crate) const HEADER_TABLE_SIZE: u16 = 0x1;
    pub(crate) const ENABLE_PUSH: u16 = 0x2;
    pub(crate) const MAX_CONCURRENT_STREAMS: u16 = 0x3;
    pub(crate) const INITIAL_WINDOW_SIZE: u16 = 0x4;
    pub(crate) const MAX_FRAME_SIZE: u16 = 0x5;
    pub(crate) const MAX_HEADER_LIST_SIZE: u16 = 0x6;
    /// RFC 8441 section 3.
    pub(crate) const ENABLE_CONNECT_PROTOCOL: u16 = 0x8;
    /// RFC 9218 section 2.1.
    pub(crate) const NO_RFC7540_PRIORITIES: u16 = 0x9;
}

/// Initial window of every connection and stream, in bytes.
pub(crate) const WINDOW_BYTES_INITIAL: u32 = 65_535;
/// Initial size of the dynamic table, in bytes.
pub(crate) const TABLE_BYTES_INITIAL: u32 = 4096;

/// The settings announced by the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerSettings {
    /// Maximum size of the dynamic table of the peer's decoder, in bytes.
    pub table_bytes_max: u32,
    /// Maximum number of concurrent streams; `u32::MAX` until announced.
    pub streams_max: u32,
    /// Initial window of a new stream, in bytes.
    pub stream_window: u32,
    /// Maximum frame payload that the peer accepts, in bytes.
    pub frame_bytes_max: u32,
    /// Maximum size of a field section that the peer accepts, in bytes, plus 32 for each field; advisory.
    pub head_bytes_max: u32,
    /// Whether the peer accepts extended CONNECT (RFC 8441).
    pub connect_protocol: bool,
    no_rfc7540_priorities: Option<bool>,
}

impl Default for PeerSettings {
    fn default() -> PeerSettings {
        PeerSettings {
            table_bytes_max: TABLE_BYTES_INITIAL,
            streams_max: u32::MAX,
            stream_window: WINDOW_BYTES_INITIAL,
            frame_bytes_max: PAYLOAD_BYTES_MAX as u32,
            head_bytes_max: u32::MAX,
            connect_protocol: false,
            no_rfc7540_priorities: None,
        }
    }
}

impl PeerSettings {
    /// Applies the payload of a SETTINGS frame; `from_server`: the sender is a server.
    pub(crate) fn take(&mut self, payload: &[u8], from_server: bool) -> Result<(), ConnectionError> {
        let first = self.no_rfc7540_priorities.is_none();
        for setting in payload.as_chunks::<6>().0 {
            let [a, b, value @ ..] = *setting;
            let value = u32::from_be_bytes(value);
            match u16::from_be_bytes([a, b]) {
                id::HEADER_TABLE_SIZE => self.table_bytes_max = value,
                id::ENABLE_PUSH if flag(value)? && from_server => {
                    return Err(ConnectionError::protocol("server enables push"));
                }
                id::MAX_CONCURRENT_STREAMS => self.streams_max = value,
                id::INITIAL_WINDOW_SIZE if value > MAX_31_BITS => {
                    return Err(ConnectionError::new(
                        ErrorCode::FLOW_CONTROL_ERROR,
                        "initial window too large",
                    ));
                }
                id::INITIAL_WINDOW_SIZE => self.stream_window = value,
                id::MAX_FRAME_SIZE if !(PAYLOAD_BYTES_MAX as u32..1 << 24).contains(&value) => {
                    return Err(ConnectionError::protocol("invalid frame size in settings"));
                }
                id::MAX_FRAME_SIZE => self.frame_bytes_max = value,
                id::MAX_HEADER_LIST_SIZE => self.head_bytes_max = value,
                id::ENABLE_CONNECT_PROTOCOL if !flag(value)? && self.connect_protocol => {
                    return Err(ConnectionError::protocol("extended CONNECT taken back"));
                }
                id::ENABLE_CONNECT_PROTOCOL => self.connect_protocol = value == 1,
                id::NO_RFC7540_PRIORITIES => {
                    let value = flag(value)?;
                    if !first && self.no_rfc7540_priorities != Some(value) {
                        return Err(ConnectionError::protocol("priorities changed in settings"));
                    }
                    self.no_rfc7540_priorities = Some(value);
                }
                _ => {}
            }
        }
        // The first frame decides: a setting that it lacks has its default permanently (RFC 9218 section
        // 2.1).
        self.no_rfc7540_priorities.get_or_insert(false);
        Ok(())
    }
}

fn flag(value: u32) -> Result<bool, ConnectionError> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(ConnectionError::protocol("setting is neither 0 nor 1")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(settings: &[(u16, u32)], from_server: bool) -> Result<PeerSettings, ErrorCode> {
        let payload: Vec<u8> = settings
            .iter()
            .flat_map(|(id, value)| [&id.to_be_bytes()[..], &value.to_be_bytes()].concat())
            .collect();
        let mut peer = PeerSettings::default();
        peer.take(&payload, from_server).map(|()| peer).map_err(|error| error.code)
    }

    #[test]
    fn setting_values_out_of_range_are_rejected() {
        use id::*;
        let good = taken(
            &[(MAX_FRAME_SIZE, 16_384), (MAX_FRAME_SIZE, 16_777_215), (0x99, 7), (ENABLE_PUSH, 1)],
            false,
        );
        assert_eq!(good.map(|peer| peer.frame_bytes_max), Ok(16_777_215));
        assert!(taken(&[(INITIAL_WINDOW_SIZE, MAX_31_BITS), (ENABLE_PUSH, 0)], true).is_ok());
        for (setting, code) in [
            ((ENABLE_PUSH, 2), ErrorCode::PROTOCOL_ERROR),
            ((ENABLE_PUSH, 1), ErrorCode::PROTOCOL_ERROR),
            ((INITIAL_WINDOW_SIZE, 1 << 31), ErrorCode::FLOW_CONTROL_ERROR),
            ((MAX_FRAME_SIZE, 16_383), ErrorCode::PROTOCOL_ERROR),
            ((MAX_FRAME_SIZE, 1 << 24), ErrorCode::PROTOCOL_ERROR),
            ((ENABLE_CONNECT_PROTOCOL, 2), ErrorCode::PROTOCOL_ERROR),
            ((NO_RFC7540_PRIORITIES, 2), ErrorCode::PROTOCOL_ERROR),
        ] {
            assert_eq!(taken(&[setting], true), Err(code), "{setting:?}");
        }
        assert!(taken(&[(ENABLE_CONNECT_PROTOCOL, 1), (ENABLE_CONNECT_PROTOCOL, 0)], true).is_err());
    }
}
