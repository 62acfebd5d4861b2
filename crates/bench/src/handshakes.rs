//! TLS handshakes, counted by the negotiated parameters.

use net::TlsAgreement;

/// Number of handshakes for each set of negotiated parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Handshakes(Vec<(TlsAgreement, u64)>);

impl Handshakes {
    /// Adds `count` handshakes with these parameters.
    pub fn count(&mut self, agreed: TlsAgreement, count: u64) {
        match self.0.iter_mut().find(|(known, _)| *known == agreed) {
            Some((_, sum)) => *sum += count,
            None => self.0.push((agreed, count)),
        }
    }

    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &Handshakes) {
        other.0.iter().for_each(|&(agreed, count)| self.count(agreed, count));
    }

    /// Returns the total number of handshakes.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.count_matching(|_| true)
    }

    /// Returns the number of resumed handshakes.
    #[must_use]
    pub fn resumed(&self) -> u64 {
        self.count_matching(|agreed| agreed.is_resumed)
    }

    /// Returns the number of handshakes with a HelloRetryRequest, which costs one additional round trip.
    #[must_use]
    pub fn retried(&self) -> u64 {
        self.count_matching(|agreed| agreed.is_retried)
    }

    fn count_matching(&self, which: impl Fn(&TlsAgreement) -> bool) -> u64 {
        self.0.iter().filter(|(agreed, _)| which(agreed)).map(|(_, count)| count).sum()
    }

    /// Returns version, cipher and key exchange group (empty if there was none) with their counts, the most
    /// frequent first.
    #[must_use]
    pub fn kind_counts(&self) -> Vec<([&'static str; 3], u64)> {
        let mut kinds: Vec<([&'static str; 3], u64)> = Vec::new();
        for (agreed, count) in &self.0 {
            let names = [agreed.version, agreed.cipher, agreed.group];
            match kinds.iter_mut().find(|(known, _)| *known == names) {
                Some((_, sum)) => *sum += count,
                None => kinds.push((names, *count)),
            }
        }
        kinds.sort_by_key(|&(names, count)| (u64::MAX - count, names));
        kinds
    }

    /// Formats the counts in one line: `2 full, 10 resumed; TLSv1.3, TLS_AES_128_GCM_SHA256, X25519`.
    #[must_use]
    pub fn text(&self) -> String {
        let shown = |count: u64| crate::quantity::format_thousands(count as f64);
        let resumed = self.resumed();
        let mut text = format!("{} full, {} resumed", shown(self.total() - resumed), shown(resumed));
        if self.retried() > 0 {
            text += &format!(", {} with a second ClientHello", shown(self.retried()));
        }
        let kinds = self.kind_counts();
        for (names, count) in &kinds {
            let named: Vec<&str> = names.iter().copied().filter(|name| !name.is_empty()).collect();
            text += &format!("; {}", named.join(", "));
            if kinds.len() > 1 {
                text += &format!(" {}×", shown(*count));
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handshakes_are_counted_by_negotiated_parameters() {
        let full = TlsAgreement {
            version: "TLSv1.3",
            cipher: "A",
            group: "X25519",
            is_resumed: false,
            is_retried: false,
        };
        let resumed = TlsAgreement { is_resumed: true, ..full };
        let mut all = Handshakes::default();
        all.count(full, 2);
        all.count(resumed, 1_000);
        all.count(full, 1);
        assert_eq!((all.total(), all.resumed(), all.retried()), (1_003, 1_000, 0));
        assert_eq!(all.text(), "3 full, 1,000 resumed; TLSv1.3, A, X25519");
        let mut others = Handshakes::default();
        others.count(TlsAgreement { version: "TLSv1.2", group: "", ..resumed }, 1);
        others.count(TlsAgreement { is_retried: true, ..full }, 5);
        all.add(&others);
        assert_eq!(
            all.text(),
            "8 full, 1,001 resumed, 5 with a second ClientHello; TLSv1.3, A, X25519 1,008×; TLSv1.2, A 1×"
        );
    }
}
