//! Connection identifiers.
//!
//! ```text
//! core (1 byte)   generation (1)   random (6)   tag (4)
//! ```
//!
//! The kernel chooses the socket of a packet by the first byte, so a client whose address changes stays with its
//! core. The tag authenticates the others, so that an identifier can neither be guessed nor aimed at a core.

use std::sync::Arc;

use aws_lc_rs::hmac;
use aws_lc_rs::rand;
use quinn_proto::{ConnectionId, ConnectionIdGenerator, InvalidCid};

/// Bit of the first byte of packets with a long header (RFC 9000 section 17.2).
const LONG_HEADER: u8 = 0x80;
const NONCE_BYTES: usize = 8;
const TAG_BYTES: usize = 4;
/// Size of an identifier, in bytes.
pub(super) const IDENTIFIER_BYTES: usize = NONCE_BYTES + TAG_BYTES;

/// Makes the identifiers of one core.
#[derive(Clone)]
pub(super) struct IdentifierGenerator {
    /// Index of the core's socket in its reuseport group.
    pub(super) core: u8,
    /// Number of the process among those that have passed the sockets on.
    pub(super) generation: u8,
    pub(super) key: Arc<hmac::Key>,
}

impl IdentifierGenerator {
    fn tag(&self, nonce: &[u8]) -> [u8; TAG_BYTES] {
        let tag = hmac::sign(&self.key, nonce);
        let mut short = [0; TAG_BYTES];
        short.copy_from_slice(&tag.as_ref()[..TAG_BYTES]);
        short
    }
}

impl IdentifierGenerator {
    /// Returns the generation named by the identifier of a packet, if that was made with this key and is of
    /// another one.
    pub(super) fn generation_of(&self, packet: &[u8]) -> Option<u8> {
        let first = *packet.first()?;
        let identifier = if first & LONG_HEADER == 0 {
            packet.get(1..1 + IDENTIFIER_BYTES)?
        } else {
            // Version, and length of the identifier (RFC 9000 section 17.2).
            let len = usize::from(*packet.get(5)?);
            packet.get(6..6 + len).filter(|identifier| identifier.len() == IDENTIFIER_BYTES)?
        };
        let generation = identifier[1];
        let is_other = generation != self.generation && self.validate(&ConnectionId::new(identifier)).is_ok();
        is_other.then_some(generation)
    }
}

impl ConnectionIdGenerator for IdentifierGenerator {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut identifier = [0; IDENTIFIER_BYTES];
        // Without random bytes the endpoint asks again until the identifier is free.
        let _ = rand::fill(&mut identifier[2..NONCE_BYTES]);
        identifier[0] = self.core;
        identifier[1] = self.generation;
        let tag = self.tag(&identifier[..NONCE_BYTES]);
        identifier[NONCE_BYTES..].copy_from_slice(&tag);
        ConnectionId::new(&identifier)
    }

    fn validate(&self, identifier: &ConnectionId) -> Result<(), InvalidCid> {
        let (nonce, tag) = identifier.split_at_checked(NONCE_BYTES).ok_or(InvalidCid)?;
        if self.tag(nonce) == tag { Ok(()) } else { Err(InvalidCid) }
    }

    fn cid_len(&self) -> usize {
        IDENTIFIER_BYTES
    }

    fn cid_lifetime(&self) -> Option<std::time::Duration> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generator(core: u8, key: &[u8]) -> IdentifierGenerator {
        let key = Arc::new(hmac::Key::new(hmac::HMAC_SHA256, key));
        IdentifierGenerator { core, generation: 3, key }
    }

    #[test]
    fn packets_of_other_generations_are_recognized() {
        let own = generator(1, &[1; 32]);
        let mut other = IdentifierGenerator { generation: 9, ..own.clone() };
        let identifier = other.generate_cid();
        let short = [&[0x40][..], &identifier, b"rest"].concat();
        let long = [&[0xe0, 0, 0, 0, 1, IDENTIFIER_BYTES as u8][..], &identifier, &[0]].concat();
        for packet in [&short, &long] {
            assert_eq!(own.generation_of(packet), Some(9));
            assert_eq!(other.generation_of(packet), None);
            let mut changed = packet.clone();
            let at = packet.windows(IDENTIFIER_BYTES).position(|part| part == &identifier[..]).unwrap();
            changed[at + 3] ^= 1;
            assert_eq!(own.generation_of(&changed), None);
            for len in 0..packet.len().min(13) {
                assert_eq!(own.generation_of(&packet[..len]), None);
            }
        }
    }

    #[test]
    fn identifiers_name_core_and_generation_and_are_authenticated() {
        let mut own = generator(5, &[1; 32]);
        let other = generator(5, &[2; 32]);
        for _ in 0..100 {
            let made = own.generate_cid();
            assert_eq!((made.len(), made[0], made[1]), (IDENTIFIER_BYTES, 5, 3));
            assert!(own.validate(&made).is_ok());
            assert!(other.validate(&made).is_err());
            for at in 0..made.len() {
                let mut changed = made;
                changed[at] ^= 1;
                assert!(own.validate(&changed).is_err(), "byte {at}");
            }
        }
        assert!(own.validate(&ConnectionId::new(&[5, 3])).is_err());
    }
}
