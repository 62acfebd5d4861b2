//! On-demand certificates: decides about which names the `ask` URL is queried, and remembers the answers.
//! Clients choose the names, so everything here is bounded.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use crate::subject::{Issuer, Subject};
use web_client::WebClient;

/// Maximum number of names with on-demand certificates.
pub(crate) const NAMES_MAX: usize = 10_000;
/// Maximum number of concurrent queries.
const ASKING_MAX: usize = 8;
/// Maximum number of queries started per second.
const QUESTIONS_PER_S: u32 = 20;
/// Maximum number of concurrent queries per client network, so that a client that requests random names does
/// not block the queries of others.
const ASKING_PER_NETWORK_MAX: usize = 2;
/// Maximum number of queries started per second for one client network.
const QUESTIONS_PER_NETWORK_PER_S: u32 = 2;
/// Maximum number of remembered negative answers.
const REFUSED_MAX: usize = 10_000;
/// Time for which a negative answer is remembered.
const REFUSED: Duration = Duration::from_secs(60);
/// Time for which a name is not queried again after a query without an answer.
const UNANSWERED: Duration = Duration::from_secs(5);

/// Answer of the `ask` URL about a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AskAnswer {
    /// The name gets a certificate.
    Yes,
    /// The name gets no certificate.
    No,
    /// The URL did not answer.
    None,
}

/// Confirmed names, and the state of queries about others.
#[derive(Debug, Default)]
pub(crate) struct Demand {
    /// Names that were confirmed.
    names: BTreeSet<Subject>,
    /// Names being queried, with the network of the requesting client.
    asking: BTreeMap<Subject, IpAddr>,
    /// Names that are not queried again before the given time.
    refused: HashMap<Subject, Instant>,
    /// Start of the current second, and the number of queries started in it per network.
    second: Option<(Instant, HashMap<IpAddr, u32>)>,
}

/// Returns the first address of a client's network: the /24 for IPv4, or the /48 for IPv6, of which a single
/// user may have many addresses. Clients without an address count as one network.
#[must_use]
pub fn client_network(client: Option<IpAddr>) -> IpAddr {
    match client.map(|client| client.to_canonical()) {
        None => Ipv4Addr::UNSPECIFIED.into(),
        Some(IpAddr::V4(client)) => Ipv4Addr::from_bits(client.to_bits() & !0xff).into(),
        Some(IpAddr::V6(client)) => Ipv6Addr::from_bits(client.to_bits() >> 80 << 80).into(),
    }
}

/// Whether clients can request a certificate for the subject: only public names, no wildcards.
pub(crate) fn is_demandable(subject: &Subject) -> bool {
    matches!(subject, Subject::Dns(_)) && !subject.is_wildcard() && subject.issuer() == Issuer::Public
}

impl Demand {
    pub(crate) fn names(&self) -> impl Iterator<Item = &Subject> {
        self.names.iter()
    }

    pub(crate) fn contains(&self, subject: &Subject) -> bool {
        self.names.contains(subject)
    }

    /// Adds a confirmed name; returns whether it was new and there was room for it.
    pub(crate) fn confirm(&mut self, subject: &Subject) -> bool {
        self.names.len() < NAMES_MAX && self.names.insert(subject.clone())
    }

    /// Returns whether to query about a name without a certificate that a client requests, and records the
    /// query.
    pub(crate) fn wants(&mut self, subject: &Subject, client: Option<IpAddr>, now: Instant) -> bool {
        let is_known = self.names.contains(subject) || self.asking.contains_key(subject);
        if !is_demandable(subject) || is_known || self.names.len() + self.asking.len() >= NAMES_MAX {
            return false;
        }
        if self.refused.get(subject).is_some_and(|until| *until > now) || self.asking.len() >= ASKING_MAX {
            return false;
        }
        let network = client_network(client);
        if self.asking.values().filter(|other| **other == network).count() >= ASKING_PER_NETWORK_MAX {
            return false;
        }
        if self.refused.len() >= REFUSED_MAX {
            self.refused.retain(|_, until| *until > now);
        }
        let (begun, counts) = self.second.get_or_insert_with(|| (now, HashMap::new()));
        if now.duration_since(*begun) >= Duration::from_secs(1) {
            (*begun, *counts) = (now, HashMap::new());
        }
        // A name whose refusal cannot be remembered would be queried again and again.
        if counts.values().sum::<u32>() >= QUESTIONS_PER_S || self.refused.len() >= REFUSED_MAX {
            return false;
        }
        let own = counts.entry(network).or_default();
        if *own >= QUESTIONS_PER_NETWORK_PER_S {
            return false;
        }
        *own += 1;
        self.asking.insert(subject.clone(), network);
        true
    }

    /// Records the answer to a query started by [`Demand::wants`], or about a known name; returns whether the
    /// name is new.
    pub(crate) fn answered(&mut self, subject: &Subject, answer: AskAnswer, now: Instant) -> bool {
        self.asking.remove(subject);
        let pause = match answer {
            AskAnswer::Yes => return self.confirm(subject),
            AskAnswer::No => REFUSED,
            AskAnswer::None => UNANSWERED,
        };
        if answer == AskAnswer::No {
            self.names.remove(subject);
        }
        self.refused.insert(subject.clone(), now + pause);
        false
    }

    /// Removes all state, because the URL has changed.
    pub(crate) fn clear(&mut self) {
        *self = Demand::default();
    }
}

/// Client of the `ask` URL.
pub(crate) struct Confirmer {
    url: String,
    client: WebClient,
}

impl Confirmer {
    pub(crate) fn new(url: &str, client: WebClient) -> Confirmer {
        Confirmer { url: url.to_owned(), client }
    }

    /// Queries the URL about a name: a status of 200 to 299 means yes, 300 to 499 no. The text is for the
    /// log.
    pub(crate) async fn ask(&self, subject: &Subject) -> (AskAnswer, String) {
        let sign = if self.url.contains('?') { '&' } else { '?' };
        // Names contain no characters that need to be escaped in a URL.
        match self.client.get(&format!("{}{sign}domain={subject}", self.url)).await {
            Ok(status @ 200..300) => (AskAnswer::Yes, format!("`ask` confirms it with status {status}")),
            Ok(status @ 300..500) => (AskAnswer::No, format!("`ask` refuses it with status {status}")),
            Ok(status) => (AskAnswer::None, format!("`ask` responds with status {status}")),
            Err(error) => (AskAnswer::None, format!("`ask`: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(text: &str) -> Subject {
        Subject::parse(text).unwrap()
    }

    #[test]
    fn one_question_a_name_at_a_time_and_a_no_is_remembered() {
        let (mut demand, now) = (Demand::default(), Instant::now());
        let name = subject("a.example.com");
        assert!(demand.wants(&name, None, now));
        assert!(!demand.wants(&name, None, now), "it is being asked");
        assert!(!demand.answered(&name, AskAnswer::No, now));
        assert!(!demand.wants(&name, None, now + REFUSED - Duration::from_millis(1)));
        assert!(demand.wants(&name, None, now + REFUSED));
        assert!(!demand.answered(&name, AskAnswer::None, now + REFUSED));
        assert!(!demand.wants(&name, None, now + REFUSED));
        assert!(demand.wants(&name, None, now + REFUSED + UNANSWERED));
        assert!(demand.answered(&name, AskAnswer::Yes, now + REFUSED + UNANSWERED));
        assert!(!demand.wants(&name, None, now + 100 * REFUSED), "it has a certificate, or gets one");
        // The name is refused when it is to be renewed.
        assert!(!demand.answered(&name, AskAnswer::No, now + 100 * REFUSED) && !demand.contains(&name));
        for other in ["*.example.com", "foo.local", "localhost", "nas", "93.184.216.34"] {
            assert!(!demand.wants(&subject(other), None, now + 200 * REFUSED), "{other}");
        }
    }

    #[test]
    fn what_clients_can_bring_about_is_bounded() {
        let (mut demand, now) = (Demand::default(), Instant::now());
        let name = |number: usize| subject(&format!("n{number}.example.com"));
        // Each client is in a network of its own.
        let client = |number: usize| Some(IpAddr::from([10, 0, (number % 250) as u8, 1]));
        let asked = (0..1_000).filter(|number| demand.wants(&name(*number), client(*number), now)).count();
        assert_eq!(asked, ASKING_MAX, "at a time");
        let (mut demand, mut asked) = (Demand::default(), 0);
        for number in 0..1_000 {
            if demand.wants(&name(number), client(number), now) {
                asked += 1;
                demand.answered(&name(number), AskAnswer::No, now);
            }
        }
        assert_eq!(asked, QUESTIONS_PER_S, "within a second");
        let mut demand = Demand::default();
        for number in 0..REFUSED_MAX + 10 {
            demand.answered(&name(number), AskAnswer::No, now);
        }
        assert!(!demand.wants(&name(1_000_000), None, now), "as many are remembered as can be");
        assert!(demand.wants(&name(1_000_000), None, now + REFUSED));
        let mut demand = Demand::default();
        assert_eq!((0..NAMES_MAX + 10).filter(|number| demand.confirm(&name(*number))).count(), NAMES_MAX);
        assert!(!demand.wants(&name(1_000_000), None, now));
    }

    #[test]
    fn a_flood_of_names_does_not_keep_others_from_being_asked_about() {
        let (mut demand, mut now) = (Demand::default(), Instant::now());
        let flood = |number: usize| subject(&format!("n{number}.example.com"));
        // One user with many addresses of one network; the queries get no answer.
        let attacker = |number: usize| Some(IpAddr::from([203, 0, 113, (number % 250) as u8]));
        let attacker_v6 =
            |number: usize| Some(IpAddr::from([0x2001, 0xdb8, 1, number as u16, number as u16, 0, 0, 1]));
        let honest = Some(IpAddr::from([198, 51, 100, 7]));
        let mut asked = 0;
        for second in 0..100 {
            for number in 0..500 {
                asked += usize::from(demand.wants(&flood(second * 1_000 + number), attacker(number), now));
                let other = flood(second * 1_000 + 500 + number);
                asked += usize::from(demand.wants(&other, attacker_v6(number), now));
            }
            let new = subject(&format!("new{second}.example.net"));
            assert!(demand.wants(&new, honest, now), "second {second}");
            demand.answered(&new, AskAnswer::Yes, now);
            now += Duration::from_secs(1);
        }
        assert_eq!(asked, 2 * ASKING_PER_NETWORK_MAX, "at a time");
        // If the queries are answered at once, the rate is limited.
        let mut demand = Demand::default();
        let mut asked = 0;
        for number in 0..1_000 {
            if demand.wants(&flood(number), attacker(number), now) {
                demand.answered(&flood(number), AskAnswer::No, now);
                asked += 1;
            }
        }
        assert_eq!(asked, QUESTIONS_PER_NETWORK_PER_S);
        assert!(demand.wants(&subject("new.example.net"), honest, now));
    }
}
