//! Session tickets (RFC 8446 section 4.6.1, RFC 5077), encrypted with rotating keys.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::SystemTime;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::hkdf;
use aws_lc_rs::hmac;
use aws_lc_rs::rand;
use failure::Failure;
use rustls::server::ProducesTickets;

/// Period in which a key encrypts tickets, in seconds; it decrypts them for one more period.
pub const PERIOD_S: u64 = 12 * 60 * 60;
/// Minimum size of a configured secret, in bytes.
pub(super) const SECRET_BYTES_MIN: usize = 32;
/// Maximum size of a configured secret, in bytes; larger files are not secrets.
const SECRET_BYTES_MAX: usize = 1024;
/// Maximum number of secrets at a time: those of three periods, made here and by a set of servers.
const SECRETS_MAX: usize = 8;
const NAME_BYTES: usize = 16;
/// Maximum size of a session in a ticket. It contains the client's certificates, and a longer ticket would
/// not fit into the ClientHello.
const PLAIN_BYTES_MAX: usize = 8 * 1024;

/// Source of the session ticket keys. Clones share the same keys, and so do all cores. Servers with the same
/// configured secrets resume each other's sessions, also after a restart.
#[derive(Clone)]
pub struct TicketKeys(Arc<SecretSource>);

enum SecretSource {
    /// A random secret for each period, known only to this process or its set of servers and deleted afterwards, so
    /// that old tickets can no longer be decrypted.
    Random(RwLock<PeriodSecrets>),
    /// Secrets from files. The first one encrypts.
    Configured(Vec<Vec<u8>>),
}

/// Secrets by period.
#[derive(Default)]
struct PeriodSecrets {
    /// Of several for a period, the first one encrypts.
    tickets: Vec<(u64, Vec<u8>)>,
    /// Keys for QUIC's address tokens, of the secrets that a set of servers shares.
    tokens: Vec<(u64, Arc<hkdf::Prk>)>,
}

/// Derives the key of QUIC's address tokens.
pub(crate) fn token_key(secret: &[u8]) -> Arc<hkdf::Prk> {
    let tokens = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), b"komainu quic tokens");
    Arc::new(hkdf::Salt::new(hkdf::HKDF_SHA256, &[]).extract(tokens.as_ref()))
}

impl TicketKeys {
    /// Creates keys of this process, which are lost when it ends.
    #[must_use]
    pub fn random() -> TicketKeys {
        TicketKeys(Arc::new(SecretSource::Random(RwLock::default())))
    }

    /// Creates keys from secrets that servers may share. The first one encrypts tickets; all decrypt them.
    ///
    /// # Errors
    /// Fails if there is no secret, or if one is shorter than 32 bytes or does not look like a secret: longer
    /// than 1 KiB, or a text with spaces or colons, such as a certificate or a configuration file.
    pub fn from_secrets(secrets: Vec<Vec<u8>>) -> Result<TicketKeys, Failure> {
        if secrets.is_empty() {
            return Err("no secret for session tickets".into());
        }
        if let Some(short) = secrets.iter().find(|secret| secret.len() < SECRET_BYTES_MIN) {
            return Err(Failure::new(format!(
                "a secret for session tickets has at least {SECRET_BYTES_MIN} bytes, and this one has {}: \
                 make one with `openssl rand -out FILE 48`",
                short.len()
            )));
        }
        let is_text = |secret: &[u8]| {
            std::str::from_utf8(secret).is_ok_and(|text| text.trim_end().contains([' ', ':']))
        };
        if let Some(other) = secrets.iter().find(|secret| secret.len() > SECRET_BYTES_MAX || is_text(secret))
        {
            return Err(Failure::new(format!(
                "a secret for session tickets is a few random bytes, and this is another file of {} bytes: \
                 make one with `openssl rand -out FILE 48`",
                other.len()
            )));
        }
        Ok(TicketKeys(Arc::new(SecretSource::Configured(secrets))))
    }

    /// Sets the secret of a period, which servers of a set share, in place of one of this process; tickets of the latter
    /// are still accepted. No effect if secrets are configured.
    pub fn set_period_secret(&self, period: u64, secret: Vec<u8>) {
        let SecretSource::Random(secrets) = &*self.0 else { return };
        let find = |secrets: &PeriodSecrets| secrets.tickets.iter().find(|(of, _)| *of == period).cloned();
        if find(&secrets.read().unwrap_or_else(PoisonError::into_inner)).is_some_and(|(_, old)| old == secret)
        {
            return;
        }
        let mut secrets = secrets.write().unwrap_or_else(PoisonError::into_inner);
        let PeriodSecrets { tickets, tokens } = &mut *secrets;
        tokens.retain(|(of, _)| *of != period && of.abs_diff(period) <= 2);
        tokens.push((period, token_key(&secret)));
        tickets.retain(|(of, old)| of.abs_diff(period) <= 2 && *old != secret);
        tickets.truncate(SECRETS_MAX - 1);
        tickets.insert(0, (period, secret));
    }

    /// Returns the keys that a set of servers shares for QUIC's address tokens: of the present period, which makes them,
    /// and of the one before. Empty if there are none of the present period.
    pub(crate) fn shared_token_keys(&self) -> Vec<Arc<hkdf::Prk>> {
        self.token_keys_of(unix_s() / PERIOD_S)
    }

    fn token_keys_of(&self, period: u64) -> Vec<Arc<hkdf::Prk>> {
        let SecretSource::Random(secrets) = &*self.0 else { return Vec::new() };
        let secrets = secrets.read().unwrap_or_else(PoisonError::into_inner);
        let of =
            |period: u64| secrets.tokens.iter().find(|(of, _)| *of == period).map(|(_, key)| key.clone());
        let Some(present) = of(period) else { return Vec::new() };
        std::iter::once(present).chain(period.checked_sub(1).and_then(of)).collect()
    }

    /// Returns the first configured secret; `None` for keys of this process.
    pub(crate) fn configured_secret(&self) -> Option<Vec<u8>> {
        match &*self.0 {
            SecretSource::Configured(secrets) => secrets.first().cloned(),
            SecretSource::Random(_) => None,
        }
    }

    /// Returns the secret that encrypts in a period.
    fn encryption_secret(&self, period: u64) -> Option<Vec<u8>> {
        match &*self.0 {
            SecretSource::Configured(secrets) => secrets.first().cloned(),
            SecretSource::Random(secrets) => {
                let find = |secrets: &PeriodSecrets| {
                    let mut tickets = secrets.tickets.iter();
                    tickets.find(|(of, _)| *of == period).map(|(_, secret)| secret.clone())
                };
                if let Some(secret) = find(&secrets.read().unwrap_or_else(PoisonError::into_inner)) {
                    return Some(secret);
                }
                let mut secrets = secrets.write().unwrap_or_else(PoisonError::into_inner);
                if let Some(secret) = find(&secrets) {
                    return Some(secret);
                }
                let mut secret = vec![0; SECRET_BYTES_MIN];
                rand::fill(&mut secret).ok()?;
                secrets.tickets.retain(|(of, _)| of.abs_diff(period) <= 1);
                secrets.tickets.push((period, secret.clone()));
                Some(secret)
            }
        }
    }

    /// Returns the secrets that decrypt tickets of this period or the one before, with their periods.
    /// Includes the next period, for servers whose clocks are ahead.
    fn decryption_secrets(&self, period: u64) -> Vec<(u64, Vec<u8>)> {
        match &*self.0 {
            SecretSource::Configured(secrets) => {
                let periods = [Some(period), period.checked_sub(1), period.checked_add(1)];
                let all = periods.into_iter().flatten();
                all.flat_map(|period| secrets.iter().map(move |secret| (period, secret.clone()))).collect()
            }
            SecretSource::Random(secrets) => {
                let secrets = secrets.read().unwrap_or_else(PoisonError::into_inner);
                secrets.tickets.iter().filter(|(of, _)| of.abs_diff(period) <= 1).cloned().collect()
            }
        }
    }
}

impl fmt::Debug for TicketKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TicketKeys")
    }
}

/// Encrypts the tickets of one policy, so that sessions admitted under one policy on client certificates are
/// not resumed under another.
pub(super) struct Ticketer {
    keys: TicketKeys,
    policy: Vec<u8>,
    clock: fn() -> u64,
}

impl Ticketer {
    pub(super) fn new(keys: TicketKeys, policy: &[u8]) -> Ticketer {
        Ticketer { keys, policy: policy.to_vec(), clock: unix_s }
    }

    fn derive(&self, secret: &[u8], period: u64, what: &[u8]) -> hmac::Tag {
        let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, secret));
        context.update(b"komainu session ticket ");
        context.update(what);
        context.update(&period.to_be_bytes());
        context.update(&self.policy);
        context.sign()
    }

    fn key(&self, secret: &[u8], period: u64) -> Option<LessSafeKey> {
        let bytes = self.derive(secret, period, b"key ");
        UnboundKey::new(&AES_256_GCM, bytes.as_ref()).ok().map(LessSafeKey::new)
    }

    fn name(&self, secret: &[u8], period: u64) -> [u8; NAME_BYTES] {
        let bytes = self.derive(secret, period, b"name ");
        *bytes.as_ref().first_chunk().expect("SHA-256 has 32 bytes")
    }
}

impl ProducesTickets for Ticketer {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        PERIOD_S as u32
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        if plain.len() > PLAIN_BYTES_MAX {
            return None;
        }
        let period = (self.clock)() / PERIOD_S;
        let secret = self.keys.encryption_secret(period)?;
        let name = self.name(&secret, period);
        let mut nonce = [0; NONCE_LEN];
        rand::fill(&mut nonce).ok()?;
        let mut ticket = [&name[..], &nonce[..]].concat();
        let mut sealed = plain.to_vec();
        let nonce = Nonce::assume_unique_for_key(nonce);
        self.key(&secret, period)?.seal_in_place_append_tag(nonce, Aad::from(name), &mut sealed).ok()?;
        ticket.append(&mut sealed);
        Some(ticket)
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        let (name, rest) = ticket.split_first_chunk::<NAME_BYTES>()?;
        let (nonce, sealed) = rest.split_first_chunk::<NONCE_LEN>()?;
        let period = (self.clock)() / PERIOD_S;
        let secrets = self.keys.decryption_secrets(period);
        let (period, secret) = secrets.into_iter().find(|(of, secret)| self.name(secret, *of) == *name)?;
        let mut plain = sealed.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let len = self.key(&secret, period)?.open_in_place(nonce, Aad::from(*name), &mut plain).ok()?.len();
        plain.truncate(len);
        Some(plain)
    }
}

impl fmt::Debug for Ticketer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ticketer")
    }
}

/// Returns the seconds since 1970.
pub(super) fn unix_s() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(keys: &TicketKeys, policy: &[u8], clock: fn() -> u64) -> Ticketer {
        Ticketer { clock, ..Ticketer::new(keys.clone(), policy) }
    }

    const EARLY: fn() -> u64 = || 1_000 * PERIOD_S + 5;
    const NEXT: fn() -> u64 = || 1_001 * PERIOD_S + 5;
    const LATE: fn() -> u64 = || 1_002 * PERIOD_S + 5;

    #[test]
    fn ticket_is_accepted_in_its_period_and_the_next() {
        let secret = || vec![7; 48];
        for keys in [TicketKeys::random(), TicketKeys::from_secrets(vec![secret()]).unwrap()] {
            let ticket = at(&keys, b"", EARLY).encrypt(b"a session").unwrap();
            assert_eq!(at(&keys, b"", EARLY).decrypt(&ticket).unwrap(), b"a session");
            assert_eq!(at(&keys, b"", NEXT).decrypt(&ticket).unwrap(), b"a session");
            assert_eq!(at(&keys, b"", LATE).decrypt(&ticket), None);
            let ahead = at(&keys, b"", NEXT).encrypt(b"a session").unwrap();
            assert_eq!(
                at(&keys, b"", EARLY).decrypt(&ahead).unwrap(),
                b"a session",
                "a clock that is behind"
            );
        }
    }

    #[test]
    fn servers_of_a_set_resume_each_others_sessions() {
        let (one, two) = (TicketKeys::random(), TicketKeys::random());
        let before = at(&one, b"", EARLY).encrypt(b"a session").unwrap();
        for keys in [&one, &two] {
            for period in [1_000, 1_001] {
                keys.set_period_secret(period, vec![period as u8; 32]);
            }
        }
        for clock in [EARLY, NEXT] {
            let ticket = at(&one, b"", clock).encrypt(b"a session").unwrap();
            assert_eq!(at(&two, b"", clock).decrypt(&ticket).unwrap(), b"a session");
        }
        assert_eq!(at(&one, b"", EARLY).decrypt(&before).unwrap(), b"a session", "made before");
        for period in 0..100 {
            one.set_period_secret(1_000, vec![period; 32]);
        }
        assert!(one.decryption_secrets(1_000).len() <= SECRETS_MAX);
    }

    #[test]
    fn tickets_are_accepted_only_by_servers_with_the_same_secret() {
        let ticketer = |secrets: &[u8]| {
            let secrets = secrets.iter().map(|&byte| vec![byte; 32]).collect();
            at(&TicketKeys::from_secrets(secrets).unwrap(), b"policy", EARLY)
        };
        let ticket = ticketer(&[1]).encrypt(b"a session").unwrap();
        assert_eq!(ticketer(&[1]).decrypt(&ticket).unwrap(), b"a session");
        assert_eq!(ticketer(&[2, 1]).decrypt(&ticket).unwrap(), b"a session", "the secret before");
        assert_eq!(ticketer(&[2]).decrypt(&ticket), None);
        let other_policy = Ticketer { policy: b"other".to_vec(), ..ticketer(&[1]) };
        assert_eq!(other_policy.decrypt(&ticket), None);
        assert_eq!(at(&TicketKeys::random(), b"policy", EARLY).decrypt(&ticket), None);
    }

    #[test]
    fn modified_ticket_is_rejected() {
        let ticketer = at(&TicketKeys::random(), b"", EARLY);
        let ticket = ticketer.encrypt(b"a session").unwrap();
        for index in 0..ticket.len() {
            let mut changed = ticket.clone();
            changed[index] ^= 1;
            assert_eq!(ticketer.decrypt(&changed), None, "byte {index}");
            assert_eq!(ticketer.decrypt(&ticket[..index]), None, "cut at {index}");
        }
    }

    #[test]
    fn oversized_session_gets_no_ticket() {
        let ticketer = at(&TicketKeys::random(), b"", EARLY);
        assert!(ticketer.encrypt(&vec![0; PLAIN_BYTES_MAX]).is_some());
        assert!(ticketer.encrypt(&vec![0; PLAIN_BYTES_MAX + 1]).is_none());
    }

    #[test]
    fn short_or_implausible_ticket_secret_is_rejected() {
        assert!(TicketKeys::from_secrets(vec![vec![0; 31]]).unwrap_err().to_string().contains("32 bytes"));
        assert!(TicketKeys::from_secrets(Vec::new()).is_err());
        let base64 = b"q83vEjRWeJCrze8SNFZ4kKvN7xI0VniQq83vEjRWeJA=\n".to_vec();
        assert!(TicketKeys::from_secrets(vec![base64]).is_ok());
        for other in [
            b"root:x:0:0:root:/root:/bin/bash\nbin:x:1:1\n".to_vec(),
            b"-----BEGIN CERTIFICATE-----\nMIIB".to_vec(),
            vec![0x80; 2_000],
        ] {
            assert!(TicketKeys::from_secrets(vec![other]).unwrap_err().to_string().contains("another file"));
        }
    }
}
