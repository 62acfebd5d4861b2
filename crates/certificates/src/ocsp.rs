//! OCSP (RFC 6960, with the profile of RFC 5019): requests, and validation of responses.

use std::time::{Duration, SystemTime};

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use failure::Failure;
use time::{Date, Month, PrimitiveDateTime, Time};
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::verify::verify_signature;
use x509_parser::x509::AlgorithmIdentifier;

/// Tolerated clock skew of the responder.
const SKEW: Duration = Duration::from_secs(300);
/// Lifetime of a response without `nextUpdate`.
const LIFETIME: Duration = Duration::from_secs(3_600);
/// Maximum size of a stapled response in bytes; every handshake carries it.
pub(crate) const RESPONSE_BYTES_MAX: usize = 16 * 1024;

/// Object identifier `id-pkix-ocsp-basic`, in DER.
const BASIC: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 0x30, 1, 1];
/// AlgorithmIdentifier of SHA-1 in DER, the hash that RFC 5019 responders support.
const SHA1: &[u8] = &[0x30, 9, 6, 5, 0x2b, 0x0e, 3, 2, 0x1a, 5, 0];

const SEQUENCE: u8 = 0x30;
const OCTETS: u8 = 0x04;
const INTEGER: u8 = 0x02;
const BITS: u8 = 0x03;
const OBJECT: u8 = 0x06;
const TIME: u8 = 0x18;

/// Identifies the certificate that a response must be about.
pub(crate) struct CertificateId {
    /// The issuer's certificate, in DER.
    issuer: Vec<u8>,
    /// Content of `CertID`, without tag and length (section 4.1.1).
    content: Vec<u8>,
}

/// A validated response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Staple {
    /// The complete response in DER.
    pub(crate) der: Vec<u8>,
    pub(crate) this_update: SystemTime,
    pub(crate) next_update: SystemTime,
}

/// Encodes a value in DER with its tag and length.
fn tlv(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut all = vec![tag];
    match u8::try_from(content.len()) {
        Ok(len) if len < 0x80 => all.push(len),
        _ => {
            let len = content.len().to_be_bytes();
            let digits = &len[len.iter().position(|byte| *byte != 0).unwrap_or(0)..];
            all.push(0x80 | digits.len() as u8);
            all.extend(digits);
        }
    }
    all.extend(content);
    all
}

/// Reader of consecutive DER values.
struct DerReader<'d>(&'d [u8]);

impl<'d> DerReader<'d> {
    /// Returns the next value: its tag, its content, and the entire encoding.
    fn next(&mut self) -> Option<(u8, &'d [u8], &'d [u8])> {
        let tag = *self.0.first()?;
        let first = usize::from(*self.0.get(1)?);
        let (len, start) = match first {
            0..=0x7f => (first, 2),
            // Four length bytes suffice for 4 GiB.
            0x81..=0x84 => {
                let digits = self.0.get(2..2 + (first & 0x7f))?;
                (digits.iter().fold(0, |all, byte| all << 8 | usize::from(*byte)), 2 + digits.len())
            }
            _ => return None,
        };
        let end = start.checked_add(len)?;
        let content = self.0.get(start..end)?;
        let whole = self.0.get(..end)?;
        self.0 = &self.0[end..];
        Some((tag, content, whole))
    }

    /// Returns the content of the next value if it has this tag.
    fn take(&mut self, tag: u8) -> Option<&'d [u8]> {
        self.next().filter(|(found, ..)| *found == tag).map(|(_, content, _)| content)
    }

    /// Returns the content of the next value if it has this tag; otherwise consumes nothing.
    fn optional(&mut self, tag: u8) -> Option<&'d [u8]> {
        (self.0.first() == Some(&tag)).then(|| self.take(tag)).flatten()
    }
}

/// Parses a GeneralizedTime of RFC 5280: `20261122170000Z`.
fn parse_time(text: &[u8]) -> Option<SystemTime> {
    let text = std::str::from_utf8(text).ok()?.strip_suffix('Z')?;
    if text.len() != 14 || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number = |at: usize, len: usize| text[at..at + len].parse::<u16>().ok();
    let small = |at: usize| number(at, 2).and_then(|number| u8::try_from(number).ok());
    let date =
        Date::from_calendar_date(number(0, 4)?.into(), Month::try_from(small(4)?).ok()?, small(6)?).ok()?;
    let time = Time::from_hms(small(8)?, small(10)?, small(12)?).ok()?;
    Some(PrimitiveDateTime::new(date, time).assume_utc().into())
}

impl CertificateId {
    /// Creates the identifier of a certificate from it and its issuer's certificate, both in DER.
    ///
    /// # Errors
    /// Fails if one of them cannot be parsed, or the second did not sign the first.
    pub(crate) fn new(certificate: &[u8], issuer: &[u8]) -> Result<CertificateId, Failure> {
        let (_, certificate) = X509Certificate::from_der(certificate).map_err(Failure::new)?;
        let (_, authority) = X509Certificate::from_der(issuer).map_err(Failure::new)?;
        if certificate.issuer().as_raw() != authority.subject().as_raw() {
            return Err("the certificate after it in the chain is not its issuer's".into());
        }
        let hash = |bytes: &[u8]| tlv(OCTETS, digest(&SHA1_FOR_LEGACY_USE_ONLY, bytes).as_ref());
        let mut content = SHA1.to_vec();
        content.extend(hash(authority.subject().as_raw()));
        content.extend(hash(&authority.public_key().subject_public_key.data));
        content.extend(tlv(INTEGER, certificate.raw_serial()));
        Ok(CertificateId { issuer: issuer.to_vec(), content })
    }

    /// Returns the request (section 4.1.1). It has no nonce, because RFC 5019 responders sign responses in
    /// advance.
    pub(crate) fn request(&self) -> Vec<u8> {
        let mut all = tlv(SEQUENCE, &self.content);
        // OCSPRequest, TBSRequest, requestList and Request wrap CertID.
        for _ in 0..4 {
            all = tlv(SEQUENCE, &all);
        }
        all
    }

    /// Parses a response and verifies that it is signed by the issuer, about this certificate, good and
    /// current.
    ///
    /// # Errors
    /// Reason why the response is not stapled.
    pub(crate) fn validate(&self, der: &[u8], now: SystemTime) -> Result<Staple, Failure> {
        if der.len() > RESPONSE_BYTES_MAX {
            return Err(Failure::new(format!(
                "a response of {} bytes, and {RESPONSE_BYTES_MAX} are the most",
                der.len()
            )));
        }
        let malformed = || Failure::new("no OCSP response");
        let basic = basic_response(der).ok_or_else(malformed)??;
        let mut parts = DerReader(DerReader(basic).take(SEQUENCE).ok_or_else(malformed)?);
        let (_, data, signed) = parts.next().filter(|(tag, ..)| *tag == SEQUENCE).ok_or_else(malformed)?;
        let (_, _, algorithm) = parts
            .next()
            .filter(|(tag, name, _)| *tag == SEQUENCE && name.first() == Some(&OBJECT))
            .ok_or_else(malformed)?;
        // The signature consists of whole bytes.
        let (_, _, signature) = parts
            .next()
            .filter(|(tag, bits, _)| *tag == BITS && bits.first() == Some(&0))
            .ok_or_else(malformed)?;
        let certificates = parts.optional(0xa0).unwrap_or_default();
        self.verify(signed, algorithm, signature, certificates, now)?;
        let single = self.single(data).ok_or("a response about another certificate")?;
        let mut single = DerReader(single);
        match single.next().map(|(tag, ..)| tag) {
            Some(0x80) => {}
            Some(0xa1 | 0x81) => return Err("the certificate is revoked: replace it".into()),
            _ => return Err("the responder does not know the certificate (unknown)".into()),
        }
        let this_update = single.take(TIME).and_then(parse_time).ok_or_else(malformed)?;
        let next_update = match single.optional(0xa0) {
            Some(next) => DerReader(next).take(TIME).and_then(parse_time).ok_or_else(malformed)?,
            None => this_update.max(now) + LIFETIME,
        };
        if this_update > now + SKEW {
            return Err("a response of the future (thisUpdate): is the clock right?".into());
        }
        if next_update > now {
            Ok(Staple { der: der.to_vec(), this_update, next_update })
        } else {
            Err("a response that has expired (nextUpdate)".into())
        }
    }

    /// Returns the SingleResponse about this certificate, after its CertID.
    fn single<'d>(&self, data: &'d [u8]) -> Option<&'d [u8]> {
        let mut data = DerReader(data);
        // version, responderID, producedAt
        data.optional(0xa0);
        data.next()?;
        data.take(TIME)?;
        let mut singles = DerReader(data.take(SEQUENCE)?);
        while let Some(content) = singles.take(SEQUENCE) {
            let mut single = DerReader(content);
            let id = single.take(SEQUENCE)?;
            if same_id(id, &self.content) {
                return Some(single.0);
            }
        }
        None
    }

    /// Verifies the signature by the issuer itself, or by a delegated responder (section 4.2.2.2).
    fn verify(
        &self,
        signed: &[u8],
        algorithm: &[u8],
        signature: &[u8],
        certificates: &[u8],
        now: SystemTime,
    ) -> Result<(), Failure> {
        let malformed = || Failure::new("no OCSP response");
        let (_, issuer) = X509Certificate::from_der(&self.issuer).map_err(|_| malformed())?;
        let (_, algorithm) = AlgorithmIdentifier::from_der(algorithm).map_err(|_| malformed())?;
        let (_, signature) = x509_parser::asn1_rs::BitString::from_der(signature).map_err(|_| malformed())?;
        if verify_signature(issuer.public_key(), &algorithm, &signature, signed).is_ok() {
            return Ok(());
        }
        let mut list = DerReader(DerReader(certificates).take(SEQUENCE).unwrap_or_default());
        while let Some((_, _, der)) = list.next() {
            let Ok((_, delegate)) = X509Certificate::from_der(der) else { continue };
            let is_allowed =
                delegate.extended_key_usage().ok().flatten().is_some_and(|usage| usage.value.ocsp_signing);
            let now_s = now.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
            let now_s = i64::try_from(now_s).unwrap_or(i64::MAX);
            let validity = delegate.validity();
            let is_valid =
                (validity.not_before.timestamp()..=validity.not_after.timestamp()).contains(&now_s);
            if is_allowed
                && is_valid
                && delegate.verify_signature(Some(issuer.public_key())).is_ok()
                && verify_signature(delegate.public_key(), &algorithm, &signature, signed).is_ok()
            {
                return Ok(());
            }
        }
        Err("a response that neither the issuer nor one of its delegates has signed".into())
    }
}

/// Returns the BasicOCSPResponse of a response (section 4.2.1); an error if the responder reports a failure.
fn basic_response(der: &[u8]) -> Option<Result<&[u8], &'static str>> {
    let mut outer = DerReader(der);
    let mut response = DerReader(outer.take(SEQUENCE).filter(|_| outer.0.is_empty())?);
    match response.take(0x0a)? {
        [0] => {}
        [1] => return Some(Err("the responder says malformedRequest")),
        [2] => return Some(Err("the responder says internalError")),
        [3] => return Some(Err("the responder says tryLater")),
        [5] => return Some(Err("the responder says sigRequired")),
        [6] => return Some(Err("the responder says unauthorized: it does not know the certificate")),
        _ => return None,
    }
    let mut bytes = DerReader(DerReader(response.take(0xa0)?).take(SEQUENCE)?);
    (bytes.take(OBJECT)? == BASIC).then_some(())?;
    Some(Ok(bytes.take(OCTETS)?))
}

/// Whether two CertIDs are equal; the hash algorithm's parameters may be absent or NULL.
fn same_id(one: &[u8], other: &[u8]) -> bool {
    let parts = |id| {
        let mut id = DerReader(id);
        let algorithm = DerReader(id.take(SEQUENCE)?).take(OBJECT)?;
        Some((algorithm, id.take(OCTETS)?, id.take(OCTETS)?, id.take(INTEGER)?))
    };
    parts(one).is_some_and(|one| parts(other) == Some(one))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{
        BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
        SigningKey,
    };

    struct Authority {
        der: Vec<u8>,
        issuer: Issuer<'static, KeyPair>,
    }

    fn authority(name: &str) -> Authority {
        let key = KeyPair::generate().unwrap();
        let mut parameters = CertificateParams::default();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.distinguished_name.push(DnType::CommonName, name);
        let der = parameters.self_signed(&key).unwrap().der().to_vec();
        Authority { der, issuer: Issuer::new(parameters, key) }
    }

    fn leaf(
        authority: &Authority,
        serial: u64,
        purpose: Option<ExtendedKeyUsagePurpose>,
    ) -> (Vec<u8>, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let mut parameters = CertificateParams::new(["a.test".to_owned()]).unwrap();
        parameters.serial_number = Some(serial.into());
        parameters.extended_key_usages.extend(purpose);
        (parameters.signed_by(&key, &authority.issuer).unwrap().der().to_vec(), key)
    }

    /// Creates a response as a responder would.
    fn response(
        id: &CertificateId,
        status: &[u8],
        times: [&str; 2],
        key: &KeyPair,
        certificates: &[u8],
    ) -> Vec<u8> {
        let mut single = tlv(SEQUENCE, &id.content);
        single.extend(status);
        single.extend(tlv(TIME, times[0].as_bytes()));
        if !times[1].is_empty() {
            single.extend(tlv(0xa0, &tlv(TIME, times[1].as_bytes())));
        }
        let mut data = tlv(0xa2, &tlv(OCTETS, &[7; 20]));
        data.extend(tlv(TIME, times[0].as_bytes()));
        data.extend(tlv(SEQUENCE, &tlv(SEQUENCE, &single)));
        let signed = tlv(SEQUENCE, &data);
        let mut bits = vec![0];
        bits.extend(key.sign(&signed).unwrap());
        let mut basic = signed;
        basic.extend([0x30, 0x0a, 6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2]);
        basic.extend(tlv(3, &bits));
        if !certificates.is_empty() {
            basic.extend(tlv(0xa0, &tlv(SEQUENCE, certificates)));
        }
        let mut bytes = tlv(6, BASIC);
        bytes.extend(tlv(OCTETS, &tlv(SEQUENCE, &basic)));
        let mut all = vec![0x0a, 1, 0];
        all.extend(tlv(0xa0, &tlv(SEQUENCE, &bytes)));
        tlv(SEQUENCE, &all)
    }

    const GOOD: &[u8] = &[0x80, 0];
    const TIMES: [&str; 2] = ["20261101000000Z", "20261108000000Z"];

    fn now() -> SystemTime {
        parse_time(b"20261103120000Z").unwrap()
    }

    #[test]
    fn only_a_good_fresh_signed_ocsp_response_is_stapled() {
        let ours = authority("ours");
        let other = authority("other");
        let (certificate, own_key) = leaf(&ours, 0x00c0_ffee, None);
        let id = CertificateId::new(&certificate, &ours.der).unwrap();
        assert!(
            CertificateId::new(&certificate, &other.der)
                .is_err_and(|error| error.to_string().contains("issuer"))
        );
        let key = ours.issuer.key();
        let good = response(&id, GOOD, TIMES, key, b"");
        let staple = id.validate(&good, now()).unwrap();
        assert_eq!(
            (staple.this_update, staple.next_update),
            (parse_time(b"20261101000000Z").unwrap(), parse_time(b"20261108000000Z").unwrap())
        );
        assert_eq!(staple.der, good);
        let refused = |response: &[u8]| id.validate(response, now()).unwrap_err().to_string();
        let revoked = tlv(0xa1, &tlv(TIME, b"20261101000000Z"));
        assert!(refused(&response(&id, &revoked, TIMES, key, b"")).contains("revoked"));
        assert!(refused(&response(&id, &[0x82, 0], TIMES, key, b"")).contains("unknown"));
        assert!(refused(&response(&id, GOOD, ["20261104000000Z", TIMES[1]], key, b"")).contains("future"));
        assert!(refused(&response(&id, GOOD, [TIMES[0], "20261102000000Z"], key, b"")).contains("expired"));
        let unlimited = id.validate(&response(&id, GOOD, [TIMES[0], ""], key, b""), now()).unwrap();
        assert_eq!(unlimited.next_update, now() + LIFETIME);
        assert!(refused(&response(&id, GOOD, TIMES, other.issuer.key(), b"")).contains("signed"));
        assert!(refused(&response(&id, GOOD, TIMES, &own_key, b"")).contains("signed"));
        // Response about another certificate of the same issuer.
        let another = CertificateId::new(&leaf(&ours, 5, None).0, &ours.der).unwrap();
        assert!(refused(&response(&another, GOOD, TIMES, key, b"")).contains("another certificate"));
        assert!(refused(&vec![0x30; RESPONSE_BYTES_MAX + 1]).contains("bytes"));
        assert!(refused(&[0x30, 3, 0x0a, 1, 6]).contains("unauthorized"));
        assert!(refused(&[0x30, 3, 0x0a, 1, 3]).contains("tryLater"));
    }

    #[test]
    fn delegated_ocsp_signer_needs_purpose_and_issuer_signature() {
        let ours = authority("ours");
        let other = authority("ours");
        let id = CertificateId::new(&leaf(&ours, 9, None).0, &ours.der).unwrap();
        let delegated = |authority: &Authority, purpose| {
            let (der, key) = leaf(authority, 2, purpose);
            id.validate(&response(&id, GOOD, TIMES, &key, &der), now())
        };
        let purpose = || Some(ExtendedKeyUsagePurpose::OcspSigning);
        assert!(delegated(&ours, purpose()).is_ok());
        assert!(delegated(&ours, Some(ExtendedKeyUsagePurpose::ServerAuth)).is_err());
        assert!(delegated(&ours, None).is_err());
        assert!(delegated(&other, purpose()).is_err());
    }

    #[test]
    fn modified_ocsp_responses_are_rejected() {
        let ours = authority("ours");
        let id = CertificateId::new(&leaf(&ours, 9, None).0, &ours.der).unwrap();
        let good = response(&id, GOOD, TIMES, ours.issuer.key(), b"");
        for end in 0..good.len() {
            id.validate(&good[..end], now()).unwrap_err();
        }
        for place in 0..good.len() {
            let mut changed = good.clone();
            changed[place] ^= 1;
            assert!(
                id.validate(&changed, now()).is_err(),
                "{place}: {:02x?}",
                &good[place.saturating_sub(4)..place + 4]
            );
        }
        let mut longer = good;
        longer.push(0);
        id.validate(&longer, now()).unwrap_err();
    }

    #[test]
    fn generalized_times_are_parsed() {
        assert_eq!(
            parse_time(b"19700102000000Z"),
            Some(SystemTime::UNIX_EPOCH + Duration::from_secs(86_400))
        );
        for wrong in [
            "",
            "Z",
            "20261301000000Z",
            "20260230000000Z",
            "2026110100000Z",
            "20261101000000+0100",
            "+0261101000000Z",
        ] {
            assert_eq!(parse_time(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
