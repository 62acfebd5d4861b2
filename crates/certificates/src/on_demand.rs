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
const QUERIES_MAX: usize = 8;
/// Maximum number of queries started per second.
const QUERIES_PER_S: u32 = 20;
/// Maximum number of concurrent queries per client network, so that a client that requests random names does
/// not block the queries of others.
const QUERIES_PER_NETWORK_MAX: usize = 2;
/// Maximum number of queries started per second for one client network.
const QUERIES_PER_NETWORK_PER_S: u32 = 2;
/// Maximum number of remembered negative answers.
const REFUSED_MAX: usize = 10_000;
/// Time for which a negative answer is remembered.
const REFUSED_TIME: Duration = Duration::from_secs(60);
/// Time for which a name is not queried again after a query without an answer.
const UNANSWERED_TIME: Duration = Duration::from_secs(5);

/// Answer of the `ask` URL about a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AskAnswer {
    /// The name gets a certificate.
    Yes,
    /// The name gets no certificate.
    No,
    /// The URL did not answer.
    Unanswered,
}

/// Confirmed names, and the state of queries about others.
#[derive(Debug, Default)]
pub(crate) struct OnDemandNames {
    /// Names that were confirmed.
    names: BTreeSet<Subject>,
    /// Names being queried, with the network of the requesting client.
    queried: BTreeMap<Subject, IpAddr>,
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
pub(crate) fn allows_on_demand(subject: &Subject) -> bool {
    matches!(subject, Subject::Dns(_)) && !subject.is_wildcard() && subject.issuer() == Issuer::Public
}

impl OnDemandNames {
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
    pub(crate) fn begin_query(&mut self, subject: &Subject, client: Option<IpAddr>, now: Instant) -> bool {
        let is_known = self.names.contains(subject) || self.queried.contains_key(subject);
        if !allows_on_demand(subject) || is_known || self.names.len() + self.queried.len() >= NAMES_MAX {
            return false;
        }
        if self.refused.get(subject).is_some_and(|until| *until > now) || self.queried.len() >= QUERIES_MAX {
            return false;
        }
        let network = client_network(client);
        if self.queried.values().filter(|other| **other == network).count() >= QUERIES_PER_NETWORK_MAX {
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
        if counts.values().sum::<u32>() >= QUERIES_PER_S || self.refused.len() >= REFUSED_MAX {
            return false;
        }
        let own = counts.entry(network).or_default();
        if *own >= QUERIES_PER_NETWORK_PER_S {
            return false;
        }
        *own += 1;
        self.queried.insert(subject.clone(), network);
        true
    }

    /// Records the answer to a query started by [`OnDemandNames::begin_query`], or about a known name; returns whether the
    /// name is new.
    pub(crate) fn record_answer(&mut self, subject: &Subject, answer: AskAnswer, now: Instant) -> bool {
        self.queried.remove(subject);
        let pause = match answer {
            AskAnswer::Yes => return self.confirm(subject),
            AskAnswer::No => REFUSED_TIME,
            AskAnswer::Unanswered => UNANSWERED_TIME,
        };
        if answer == AskAnswer::No {
            self.names.remove(subject);
        }
        self.refused.insert(subject.clone(), now + pause);
        false
    }

    /// Removes all state, because the URL has changed.
    pub(crate) fn clear(&mut self) {
        *self = OnDemandNames::default();
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
    pub(crate) async fn query(&self, subject: &Subject) -> (AskAnswer, String) {
        let sign = if self.url.contains('?') { '&' } else { '?' };
        // Names contain no characters that need to be escaped in a URL.
        match self.client.get(&format!("{}{sign}domain={subject}", self.url)).await {
            Ok(status @ 200..300) => (AskAnswer::Yes, format!("`ask` confirms it with status {status}")),
            Ok(status @ 300..500) => (AskAnswer::No, format!("`ask` refuses it with status {status}")),
            Ok(status) => (AskAnswer::Unanswered, format!("`ask` responds with status {status}")),
            Err(error) => (AskAnswer::Unanswered, format!("`ask`: {error}")),
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
    fn name_is_asked_about_once_and_refusals_are_remembered() {
        let mut demand = OnDemandNames::default();
        let now = Instant::now();
        let name = subject("a.example.com");
        assert!(demand.begin_query(&name, None, now));
        assert!(!demand.begin_query(&name, None, now), "it is being asked");
        assert!(!demand.record_answer(&name, AskAnswer::No, now));
        assert!(!demand.begin_query(&name, None, now + REFUSED_TIME - Duration::from_millis(1)));
        assert!(demand.begin_query(&name, None, now + REFUSED_TIME));
        assert!(!demand.record_answer(&name, AskAnswer::Unanswered, now + REFUSED_TIME));
        assert!(!demand.begin_query(&name, None, now + REFUSED_TIME));
        assert!(demand.begin_query(&name, None, now + REFUSED_TIME + UNANSWERED_TIME));
        assert!(demand.record_answer(&name, AskAnswer::Yes, now + REFUSED_TIME + UNANSWERED_TIME));
        assert!(
            !demand.begin_query(&name, None, now + 100 * REFUSED_TIME),
            "it has a certificate, or gets one"
        );
        // The name is refused when it is to be renewed.
        assert!(
            !demand.record_answer(&name, AskAnswer::No, now + 100 * REFUSED_TIME) && !demand.contains(&name)
        );
        for other in ["*.example.com", "foo.local", "localhost", "nas", "93.184.216.34"] {
            assert!(!demand.begin_query(&subject(other), None, now + 200 * REFUSED_TIME), "{other}");
        }
    }

    #[test]
    fn questions_and_remembered_names_are_bounded() {
        let mut demand = OnDemandNames::default();
        let now = Instant::now();
        let name = |number: usize| subject(&format!("n{number}.example.com"));
        // Each client is in a network of its own.
        let client = |number: usize| Some(IpAddr::from([10, 0, (number % 250) as u8, 1]));
        let asked =
            (0..1_000).filter(|number| demand.begin_query(&name(*number), client(*number), now)).count();
        assert_eq!(asked, QUERIES_MAX, "at a time");
        let mut demand = OnDemandNames::default();
        let mut asked = 0;
        for number in 0..1_000 {
            if demand.begin_query(&name(number), client(number), now) {
                asked += 1;
                demand.record_answer(&name(number), AskAnswer::No, now);
            }
        }
        assert_eq!(asked, QUERIES_PER_S, "within a second");
        let mut demand = OnDemandNames::default();
        for number in 0..REFUSED_MAX + 10 {
            demand.record_answer(&name(number), AskAnswer::No, now);
        }
        assert!(!demand.begin_query(&name(1_000_000), None, now), "as many are remembered as can be");
        assert!(demand.begin_query(&name(1_000_000), None, now + REFUSED_TIME));
        let mut demand = OnDemandNames::default();
        assert_eq!((0..NAMES_MAX + 10).filter(|number| demand.confirm(&name(*number))).count(), NAMES_MAX);
        assert!(!demand.begin_query(&name(1_000_000), None, now));
    }

    #[test]
    fn flood_of_names_does_not_block_other_clients() {
        let mut demand = OnDemandNames::default();
        let mut now = Instant::now();
        let flood = |number: usize| subject(&format!("n{number}.example.com"));
        // One user with many addresses of one network; the queries get no answer.
        let attacker = |number: usize| Some(IpAddr::from([203, 0, 113, (number % 250) as u8]));
        let attacker_v6 =
            |number: usize| Some(IpAddr::from([0x2001, 0xdb8, 1, number as u16, number as u16, 0, 0, 1]));
        let honest = Some(IpAddr::from([198, 51, 100, 7]));
        let mut asked = 0;
        for second in 0..100 {
            for number in 0..500 {
                asked +=
                    usize::from(demand.begin_query(&flood(second * 1_000 + number), attacker(number), now));
                let other = flood(second * 1_000 + 500 + number);
                asked += usize::from(demand.begin_query(&other, attacker_v6(number), now));
            }
            let new = subject(&format!("new{second}.example.net"));
            assert!(demand.begin_query(&new, honest, now), "second {second}");
            demand.record_answer(&new, AskAnswer::Yes, now);
            now += Duration::from_secs(1);
        }
        assert_eq!(asked, 2 * QUERIES_PER_NETWORK_MAX, "at a time");
        // If the queries are answered at once, the rate is limited.
        let mut demand = OnDemandNames::default();
        let mut asked = 0;
        for number in 0..1_000 {
            if demand.begin_query(&flood(number), attacker(number), now) {
                demand.record_answer(&flood(number), AskAnswer::No, now);
                asked += 1;
            }
        }
        assert_eq!(asked, QUERIES_PER_NETWORK_PER_S);
        assert!(demand.begin_query(&subject("new.example.net"), honest, now));
    }
}
