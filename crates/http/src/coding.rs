//! Content codings, and the codings that a client accepts (RFC 9110 sections 8.4.1 and 12.5.3).

use crate::scan;

/// A content coding that the server can produce, or identity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Coding {
    /// No coding.
    #[default]
    Identity,
    /// Gzip (RFC 1952).
    Gzip,
    /// Zstandard (RFC 8878).
    Zstd,
    /// Brotli (RFC 7932).
    Brotli,
}

impl Coding {
    /// Every coding.
    pub const ALL: [Coding; 4] = [Coding::Identity, Coding::Gzip, Coding::Zstd, Coding::Brotli];

    /// The registered name.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Coding::Identity => "identity",
            Coding::Gzip => "gzip",
            Coding::Zstd => "zstd",
            Coding::Brotli => "br",
        }
    }

    /// Returns the coding of that name (case-insensitive); `x-gzip` is gzip.
    #[must_use]
    pub fn of(name: &[u8]) -> Option<Coding> {
        if name.eq_ignore_ascii_case(b"x-gzip") {
            return Some(Coding::Gzip);
        }
        Coding::ALL.into_iter().find(|coding| name.eq_ignore_ascii_case(coding.text().as_bytes()))
    }
}

/// The weight of each coding in an `Accept-Encoding` field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AcceptedCodings {
    /// Weight in thousandths of each listed coding.
    listed: [Option<u16>; Coding::ALL.len()],
    /// Weight of `*`.
    wildcard: Option<u16>,
}

impl AcceptedCodings {
    /// Parses the field's value; several fields are joined by commas first. Invalid elements are ignored, and
    /// of two elements for the same coding the first one is used.
    #[must_use]
    pub fn parse(value: &[u8]) -> AcceptedCodings {
        let mut accepted = AcceptedCodings::default();
        for (name, weight) in weighted_elements(value) {
            let slot = match (name, Coding::of(name)) {
                (b"*", _) => &mut accepted.wildcard,
                (_, Some(coding)) => &mut accepted.listed[coding as usize],
                _ => continue,
            };
            slot.get_or_insert(weight);
        }
        accepted
    }

    /// The weight of a coding in thousandths; 0 means not acceptable. Identity is acceptable unless it is
    /// refused, but if it is not listed, every coding with a non-zero weight is preferred.
    #[must_use]
    pub fn weight(&self, coding: Coding) -> u16 {
        let unnamed = if coding == Coding::Identity { 1 } else { 0 };
        self.listed[coding as usize].or(self.wildcard).unwrap_or(unnamed)
    }

    /// Returns the coding with the greatest weight; of equal ones the first in `available`. `None` if the
    /// client refuses all of them.
    #[must_use]
    pub fn choose(&self, available: &[Coding]) -> Option<Coding> {
        let mut best = None;
        let mut best_weight = 0;
        for &coding in available {
            let weight = self.weight(coding);
            if weight > best_weight {
                (best, best_weight) = (Some(coding), weight);
            }
        }
        best
    }
}

/// The elements of a list with weights (RFC 9110 section 12.4.2), as in `Accept` and `Accept-Encoding`: the
/// text before the first `;`, and the weight `q` in thousandths, by default 1000. Elements with an invalid
/// weight are left out.
pub fn weighted_elements(value: &[u8]) -> impl Iterator<Item = (&[u8], u16)> {
    scan::list(value).filter_map(|element| {
        let mut parts = element.split(|&byte| byte == b';').map(scan::trim);
        let name = parts.next().filter(|name| !name.is_empty())?;
        let weight = parts.find_map(|part| match part {
            [b'q' | b'Q', b'=', weight @ ..] => Some(weight),
            _ => None,
        });
        Some((name, weight.map_or(Some(1000), qvalue)?))
    })
}

/// Parses `0`, `0.5`, `0.125`, `1`, `1.000` into thousandths.
fn qvalue(bytes: &[u8]) -> Option<u16> {
    let (whole, decimals) = match bytes {
        [whole @ (b'0' | b'1')] => (whole, &[][..]),
        [whole @ (b'0' | b'1'), b'.', decimals @ ..] if decimals.len() <= 3 => (whole, decimals),
        _ => return None,
    };
    let mut thousandths = u16::from(whole - b'0');
    for place in 0..3 {
        let digit = *decimals.get(place).unwrap_or(&b'0');
        thousandths = thousandths * 10 + digit.is_ascii_digit().then(|| u16::from(digit - b'0'))?;
    }
    (thousandths <= 1000).then_some(thousandths)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: [Coding; 4] = [Coding::Brotli, Coding::Zstd, Coding::Gzip, Coding::Identity];

    #[test]
    fn coding_follows_client_weights_then_server_preference() {
        for (value, want) in [
            ("gzip, deflate, br, zstd", Some(Coding::Brotli)),
            ("gzip, deflate", Some(Coding::Gzip)),
            ("GZIP", Some(Coding::Gzip)),
            ("x-gzip", Some(Coding::Gzip)),
            ("gzip;q=1, br;q=0.9", Some(Coding::Gzip)),
            ("gzip; q=0.5 , br ; q=0.500", Some(Coding::Brotli)),
            ("gzip;q=0", Some(Coding::Identity)),
            ("identity, gzip;q=0.5", Some(Coding::Identity)),
            ("gzip;q=0.001", Some(Coding::Gzip)),
            ("", Some(Coding::Identity)),
            ("deflate", Some(Coding::Identity)),
            ("*", Some(Coding::Brotli)),
            ("*;q=0.5, gzip", Some(Coding::Gzip)),
            ("br;q=0, *", Some(Coding::Zstd)),
            ("*;q=0", None),
            ("identity;q=0", None),
            ("identity;q=0, gzip;q=0.1", Some(Coding::Gzip)),
            ("identity, *;q=0", Some(Coding::Identity)),
            ("gzip;q=0, gzip", Some(Coding::Identity)),
            ("gzip;q=2, br;q=-1, zstd;q=x", Some(Coding::Identity)),
            (" , ,gzip,, ", Some(Coding::Gzip)),
            (";q=1", Some(Coding::Identity)),
        ] {
            assert_eq!(AcceptedCodings::parse(value.as_bytes()).choose(&SERVER), want, "{value}");
        }
    }

    #[test]
    fn only_available_codings_are_chosen() {
        let accepted = AcceptedCodings::parse(b"br, gzip");
        assert_eq!(accepted.choose(&[Coding::Identity]), Some(Coding::Identity));
        assert_eq!(accepted.choose(&[Coding::Identity, Coding::Gzip]), Some(Coding::Gzip));
        assert_eq!(accepted.choose(&[]), None);
    }

    #[test]
    fn qvalues_are_parsed_strictly() {
        for (text, want) in [
            ("0", Some(0)),
            ("1", Some(1000)),
            ("1.", Some(1000)),
            ("0.5", Some(500)),
            ("0.05", Some(50)),
            ("0.125", Some(125)),
            ("1.000", Some(1000)),
            ("1.001", None),
            ("0.1234", None),
            ("2", None),
            ("", None),
            (".5", None),
            ("0.x", None),
            ("0,5", None),
        ] {
            assert_eq!(qvalue(text.as_bytes()), want, "{text}");
        }
        let media: Vec<_> =
            weighted_elements(b"text/html;level=1;q=0.7, application/json, */*;q=0.1").collect();
        assert_eq!(media, [(&b"text/html"[..], 700), (b"application/json", 1000), (b"*/*", 100)]);
    }

    /// Law: for arbitrary bytes, a chosen coding is available, and its weight is non-zero and the greatest of
    /// all.
    #[test]
    fn chosen_coding_always_has_the_greatest_weight() {
        const PIECES: [&str; 16] = [
            "gzip", "br", "zstd", "identity", "*", ";q=", "; q=0", ",", "0.5", "1", "\"", "\\", " ", "\t",
            "=", "\u{ff}",
        ];
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..20_000 {
            let mut value = String::new();
            for _ in 0..8 {
                value.push_str(random.choice(PIECES).unwrap());
            }
            let accepted = AcceptedCodings::parse(value.as_bytes());
            let greatest = SERVER.iter().map(|&coding| accepted.weight(coding)).max().unwrap();
            match accepted.choose(&SERVER) {
                Some(coding) => assert!(greatest > 0 && accepted.weight(coding) == greatest, "{value}"),
                None => assert_eq!(greatest, 0, "{value}"),
            }
        }
    }
}
