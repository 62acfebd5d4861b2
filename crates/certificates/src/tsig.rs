//! Keys shared with a DNS server, and message signatures made with them (TSIG, RFC 8945).

use std::time::SystemTime;

use aws_lc_rs::hmac;
use data_encoding::BASE64;
use failure::Failure;

use crate::dns::{self, DnsMessage, DnsName, DnsRecord};

/// Tolerated clock difference between client and server, in seconds (section 10).
const FUDGE_S: u16 = 300;
/// Key algorithms, named as in BIND and Knot.
const ALGORITHMS: [(&str, &hmac::Algorithm); 4] = [
    ("hmac-sha224", &hmac::HMAC_SHA224),
    ("hmac-sha256", &hmac::HMAC_SHA256),
    ("hmac-sha384", &hmac::HMAC_SHA384),
    ("hmac-sha512", &hmac::HMAC_SHA512),
];

/// A key shared with a DNS server.
#[derive(Clone, PartialEq, Eq)]
pub struct TsigKey {
    name: DnsName,
    algorithm: &'static str,
    secret: Vec<u8>,
}

impl std::fmt::Debug for TsigKey {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "TsigKey({}, {})", self.name, self.algorithm)
    }
}

impl TsigKey {
    /// Parses a key file: the secret in base64, or a `key` statement of BIND as printed by `tsig-keygen`.
    /// `name` and `algorithm` (`hmac-sha256`, the default, or 224, 384, 512) provide what the text does not
    /// contain.
    ///
    /// # Errors
    /// Description of what is missing, invalid, or contradictory between the text and the arguments.
    pub fn parse(text: &[u8], name: Option<&str>, algorithm: Option<&str>) -> Result<TsigKey, Failure> {
        let text = std::str::from_utf8(text).map_err(|_| "this is not text: write the secret in base64")?;
        let words = words(text);
        let (secret, said_name, said_algorithm) = match words.as_slice() {
            [secret] => (secret.as_str(), None, None),
            [key, name, open, rest @ ..] if key == "key" && open == "{" => {
                let of = |what: &str| {
                    let at = rest.iter().position(|word| word == what);
                    at.and_then(|at| rest.get(at + 1)).map(String::as_str)
                };
                let secret = of("secret").ok_or("the `key` statement has no `secret`")?;
                (secret, Some(name.as_str()), of("algorithm"))
            }
            [] => return Err("it is empty: write the secret in base64, or what `tsig-keygen` prints".into()),
            _ => {
                return Err(
                    "this is neither a secret in base64 nor one `key` statement, as `tsig-keygen` prints it"
                        .into(),
                );
            }
        };
        let agree = |what: &str, said: Option<&str>, wanted: Option<&str>| match (said, wanted) {
            (Some(said), Some(wanted)) if !is_same_name(said, wanted) => Err(Failure::new(format!(
                "its {what} is {said:?}, and `{what}` is {wanted:?}: leave that out"
            ))),
            _ => Ok(()),
        };
        agree("key", said_name, name)?;
        agree("algorithm", said_algorithm, algorithm)?;
        let name = said_name.or(name).ok_or("it names no key: write the key's name with `key`")?;
        let algorithm = said_algorithm.or(algorithm).unwrap_or("hmac-sha256");
        let known = ALGORITHMS.iter().find(|(known, _)| is_same_name(known, algorithm));
        let (algorithm, _) = known.ok_or_else(|| {
            format!("the algorithm {algorithm:?} is not supported: make a key with `tsig-keygen -a hmac-sha256 NAME`")
        })?;
        let secret = BASE64.decode(secret.as_bytes()).map_err(|_| "the secret is not base64")?;
        if secret.len() < 16 {
            return Err("the secret is shorter than 16 bytes: make one with `tsig-keygen`".into());
        }
        Ok(TsigKey { name: DnsName::parse(name)?, algorithm, secret })
    }

    /// Name and algorithm of the key, for messages.
    pub(crate) fn description(&self) -> String {
        format!("{} ({})", self.name, self.algorithm)
    }

    fn hmac(&self) -> hmac::Key {
        let found = ALGORITHMS.iter().find(|(name, _)| *name == self.algorithm);
        hmac::Key::new(*found.map_or(&hmac::HMAC_SHA256, |(_, algorithm)| *algorithm), &self.secret)
    }

    /// Algorithm name in wire format.
    fn algorithm_wire(&self) -> Vec<u8> {
        DnsName::parse(self.algorithm).map(|name| name.wire().to_vec()).unwrap_or_default()
    }

    /// Returns the TSIG variables that are signed in addition to the message (section 4.3.3).
    fn variables(&self, time: &[u8], fudge: &[u8], error: u16, other: &[u8]) -> Vec<u8> {
        let mut all = self.name.wire().to_vec();
        all.extend(dns::CLASS_ANY.to_be_bytes());
        all.extend(0u32.to_be_bytes());
        all.extend(self.algorithm_wire());
        all.extend(time);
        all.extend(fudge);
        all.extend(error.to_be_bytes());
        all.extend(u16::try_from(other.len()).unwrap_or_default().to_be_bytes());
        all.extend(other);
        all
    }

    /// Signs a request, and returns the signature, which is an input of the response's signature.
    pub(crate) fn sign(&self, message: &mut Vec<u8>, now: SystemTime) -> Vec<u8> {
        let now_s = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let time = &now_s.to_be_bytes()[2..];
        let fudge = FUDGE_S.to_be_bytes();
        let mut context = hmac::Context::with_key(&self.hmac());
        context.update(message);
        context.update(&self.variables(time, &fudge, 0, b""));
        let tag = context.sign();
        let mut data = self.algorithm_wire();
        data.extend(time);
        data.extend(fudge);
        data.extend(u16::try_from(tag.as_ref().len()).unwrap_or_default().to_be_bytes());
        data.extend(tag.as_ref());
        data.extend(&message[..2]);
        data.extend([0; 4]);
        dns::append(message, 3, &self.name, (dns::TSIG, dns::CLASS_ANY, 0), &data);
        tag.as_ref().to_vec()
    }

    /// Verifies the signature of a response to a request whose signature is `request`.
    ///
    /// # Errors
    /// Error reported by the server, or reason why the response's signature is invalid.
    pub(crate) fn verify(
        &self,
        message: &DnsMessage<'_>,
        request: &[u8],
        now: SystemTime,
    ) -> Result<(), Failure> {
        let Some(record) = message.records[2].last().filter(|record| record.kind == dns::TSIG) else {
            return Err(match message.code {
                0 | 3 => "its response is not signed".into(),
                code => self.refusal(code).into(),
            });
        };
        let signed = Signature::read(message, record).ok_or("its response has no valid signature")?;
        let theirs = signed
            .time_s()
            .abs_diff(now.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs()));
        match signed.error {
            0 => {}
            16 => {
                return Err(Failure::new(format!(
                    "refuses the signature by the key {} (BADSIG): its secret is another one",
                    self.description()
                )));
            }
            17 => return Err(Failure::new(format!("does not know the key {} (BADKEY)", self.description()))),
            18 => {
                return Err(Failure::new(format!(
                    "refuses the time of the request (BADTIME): its clock and that of this machine differ by more than \
                     {FUDGE_S} s"
                )));
            }
            error => {
                return Err(Failure::new(format!(
                    "refuses the signature by the key {} (TSIG error {error})",
                    self.description()
                )));
            }
        }
        // Reconstruct the message before signing (section 5.3), with one additional record less.
        let mut unsigned = message.bytes[..record.start].to_vec();
        let count = u16::try_from(message.records[2].len() - 1).unwrap_or_default();
        unsigned[..2].copy_from_slice(&signed.original_id);
        unsigned[10..12].copy_from_slice(&count.to_be_bytes());
        let mut all = u16::try_from(request.len()).unwrap_or_default().to_be_bytes().to_vec();
        all.extend(request);
        all.extend(unsigned);
        all.extend(self.variables(signed.time, signed.fudge, signed.error, signed.other));
        let is_ours = record.name == self.name && signed.algorithm == self.algorithm_wire();
        if !is_ours || hmac::verify(&self.hmac(), &all, signed.tag).is_err() {
            return Err(Failure::new(format!(
                "its response is not signed by the key {}",
                self.description()
            )));
        }
        if theirs > u64::from(FUDGE_S) {
            Err(Failure::new(format!("its response was signed {theirs} s before or after now")))
        } else {
            Ok(())
        }
    }

    /// Describes a response code to a request signed with this key.
    pub(crate) fn refusal(&self, code: u8) -> String {
        let remedy = match code {
            5 => {
                "allow it for this key, in BIND with `update-policy { grant KEY zonesub TXT; };` in the zone"
            }
            9 | 10 => "it is not the primary server of the zone, or does not know the key",
            4 => "it does not accept dynamic updates",
            _ => "its log says why",
        };
        let name = dns::code_name(code);
        format!("refuses the request that the key {} has signed ({name}): {remedy}", self.description())
    }
}

/// Compares names of domains and algorithms without case and trailing dots.
fn is_same_name(one: &str, other: &str) -> bool {
    one.trim_end_matches('.').eq_ignore_ascii_case(other.trim_end_matches('.'))
}

/// Splits a file into words without quotes, semicolons and comments; braces are words.
fn words(text: &str) -> Vec<String> {
    let lines = text
        .lines()
        .filter(|line| !line.trim_start().starts_with(['#']) && !line.trim_start().starts_with("//"));
    let spaced = lines
        .map(|line| line.replace(['"', ';'], " ").replace('{', " { ").replace('}', " } "))
        .collect::<Vec<_>>();
    spaced.iter().flat_map(|line| line.split_whitespace()).map(str::to_owned).collect()
}

/// Data of a TSIG record (section 4.2).
struct Signature<'m> {
    algorithm: Vec<u8>,
    /// Six bytes, in seconds since 1970.
    time: &'m [u8],
    fudge: &'m [u8],
    tag: &'m [u8],
    original_id: [u8; 2],
    error: u16,
    other: &'m [u8],
}

impl<'m> Signature<'m> {
    fn read(message: &DnsMessage<'m>, record: &DnsRecord) -> Option<Signature<'m>> {
        let data = &message.bytes[record.data.clone()];
        // The algorithm name is never compressed.
        let end = data.iter().position(|byte| *byte == 0)? + 1;
        let (algorithm, rest) = data.split_at(end);
        let (time, rest) = rest.split_at_checked(6)?;
        let (fudge, rest) = rest.split_at_checked(2)?;
        let (len, rest) = rest.split_first_chunk::<2>()?;
        let (tag, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*len)))?;
        let (original_id, rest) = rest.split_first_chunk::<2>()?;
        let (error, rest) = rest.split_first_chunk::<2>()?;
        let (len, other) = rest.split_first_chunk::<2>()?;
        let is_whole = other.len() == usize::from(u16::from_be_bytes(*len));
        is_whole.then(|| Signature {
            algorithm: algorithm.to_ascii_lowercase(),
            time,
            fudge,
            tag,
            original_id: *original_id,
            error: u16::from_be_bytes(*error),
            other,
        })
    }

    fn time_s(&self) -> u64 {
        self.time.iter().fold(0, |all, byte| all << 8 | u64::from(*byte))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn moment() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000)
    }

    const SECRET: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

    #[test]
    fn tsig_key_is_parsed_from_both_file_formats() {
        let plain = TsigKey::parse(format!("{SECRET}\n").as_bytes(), Some("Komainu."), None).unwrap();
        assert_eq!(plain.description(), "komainu (hmac-sha256)");
        let statement = format!(
            "# of tsig-keygen\nkey \"komainu\" {{\n\talgorithm hmac-sha256;\n\tsecret \"{SECRET}\";\n}};\n"
        );
        assert_eq!(TsigKey::parse(statement.as_bytes(), None, None).unwrap(), plain);
        assert_eq!(
            TsigKey::parse(statement.as_bytes(), Some("KOMAINU"), Some("HMAC-SHA256")).unwrap(),
            plain
        );
        let other = statement.replace("sha256", "sha512");
        assert_eq!(
            TsigKey::parse(other.as_bytes(), None, None).unwrap().description(),
            "komainu (hmac-sha512)"
        );
        let wrong = |text: &str, name, algorithm| {
            TsigKey::parse(text.as_bytes(), name, algorithm).unwrap_err().to_string()
        };
        assert!(wrong("", Some("k"), None).contains("empty"));
        assert!(wrong(SECRET, None, None).contains("`key`"));
        assert!(wrong("AAAA", Some("k"), None).contains("16 bytes"));
        assert!(wrong("!!!!", Some("k"), None).contains("base64"));
        assert!(wrong("two words", Some("k"), None).contains("tsig-keygen"));
        assert!(wrong(SECRET, Some("k"), Some("hmac-md5")).contains("hmac-md5"));
        assert!(wrong(SECRET, Some("a..b"), None).contains("domain name"));
        assert!(wrong(&statement, Some("other"), None).contains("other"));
        assert!(wrong("key \"a\" { algorithm hmac-sha256; };", None, None).contains("`secret`"));
    }

    /// Returns a request and a signed response to it.
    fn exchange(key: &TsigKey, change: impl FnOnce(&mut Vec<u8>)) -> (Vec<u8>, Vec<u8>) {
        let name = DnsName::parse("a.example").unwrap();
        let mut request = dns::question(9, 5, &name, dns::SOA);
        let tag = key.sign(&mut request, moment());
        let mut response = dns::question(9, 5, &name, dns::SOA);
        response[2] |= 0x80;
        change(&mut response);
        let time = &1_700_000_001u64.to_be_bytes()[2..];
        let fudge = FUDGE_S.to_be_bytes();
        let mut all = u16::try_from(tag.len()).unwrap().to_be_bytes().to_vec();
        all.extend(&tag);
        all.extend(&response);
        all.extend(key.variables(time, &fudge, 0, b""));
        let signed = hmac::sign(&key.hmac(), &all);
        let mut data = key.algorithm_wire();
        data.extend(time);
        data.extend(fudge);
        data.extend(u16::try_from(signed.as_ref().len()).unwrap().to_be_bytes());
        data.extend(signed.as_ref());
        data.extend([0, 9, 0, 0, 0, 0]);
        dns::append(&mut response, 3, &key.name, (dns::TSIG, dns::CLASS_ANY, 0), &data);
        (response, tag)
    }

    #[test]
    fn response_is_accepted_only_with_a_valid_signature() {
        let key = TsigKey::parse(SECRET.as_bytes(), Some("k"), Some("hmac-sha384")).unwrap();
        let (response, tag) = exchange(&key, |_| ());
        let verify = |bytes: &[u8], tag: &[u8], now| {
            key.verify(&DnsMessage::read(bytes).ok_or("no message")?, tag, now)
        };
        assert_eq!(verify(&response, &tag, moment()), Ok(()));
        assert!(verify(&response, &tag[1..], moment()).is_err(), "of another request");
        let later = moment() + Duration::from_secs(600);
        assert!(verify(&response, &tag, later).unwrap_err().to_string().contains("599 s"));
        // Every byte that may be modified in transit.
        for place in 0..response.len() {
            let mut changed = response.clone();
            changed[place] ^= 1;
            // Not covered by the signature: the case of names (bit 0x20), the id in the header, which the
            // caller compares, and the class and TTL of the TSIG record itself, which are fixed.
            let is_same = DnsMessage::read(&changed).is_some_and(|read| read.id != 9);
            let start = DnsMessage::read(&response).unwrap().records[2][0].start;
            let is_fixed = (start + 5..start + 11).contains(&place);
            assert!(is_same || is_fixed || verify(&changed, &tag, moment()).is_err(), "{place}");
        }
        let mut unsigned = response[..DnsMessage::read(&response).unwrap().records[2][0].start].to_vec();
        unsigned[11] = 0;
        assert!(verify(&unsigned, &tag, moment()).unwrap_err().to_string().contains("not signed"));
        unsigned[3] |= 5;
        assert!(verify(&unsigned, &tag, moment()).unwrap_err().to_string().contains("REFUSED"));
    }
}
