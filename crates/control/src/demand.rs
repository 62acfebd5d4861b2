//! Names whose certificates are obtained because a client asks for them: which questions are asked, and what is kept of the
//! answers. Clients choose the names, so everything here is bounded.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use crate::client::WebClient;
use crate::subject::{Issuer, Subject};

/// The most names that certificates are kept for on demand.
pub(crate) const NAMES_MAX: usize = 10_000;
/// Questions under way at a time.
const ASKING_MAX: usize = 8;
/// Questions that begin within a second.
const QUESTIONS_PER_S: u32 = 20;
/// Of these, how many one network of clients gets: who asks for random names does not keep others from being asked about.
const ASKING_PER_NETWORK_MAX: usize = 2;
/// Questions that begin within a second for one network of clients.
const QUESTIONS_PER_NETWORK_PER_S: u32 = 2;
/// The most names whose negative answer is remembered.
const REFUSED_MAX: usize = 10_000;
/// How long the answer no is remembered.
const REFUSED: Duration = Duration::from_secs(60);
/// How long nothing is asked about a name after a question without an answer.
const UNANSWERED: Duration = Duration::from_secs(5);

/// What the `ask` URL says about a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AskAnswer {
    /// It gets a certificate.
    Yes,
    /// It gets none.
    No,
    /// There was no answer.
    None,
}

/// The names, and the questions about others.
#[derive(Debug, Default)]
pub(crate) struct Demand {
    /// Those that were confirmed.
    names: BTreeSet<Subject>,
    /// Those that are being asked about, each with the network of the client that wants it.
    asking: BTreeMap<Subject, IpAddr>,
    /// Nothing is asked about these until then.
    refused: HashMap<Subject, Instant>,
    /// When the current second began, and how many questions began in it, by network.
    second: Option<(Instant, HashMap<IpAddr, u32>)>,
}

/// The first address of a client's network: of the /24 of IPv4, or the /48 of IPv6, of which one user can have many addresses. Clients
/// without an address are one network.
#[must_use]
pub fn client_network(client: Option<IpAddr>) -> IpAddr {
    match client.map(|client| client.to_canonical()) {
        None => Ipv4Addr::UNSPECIFIED.into(),
        Some(IpAddr::V4(client)) => Ipv4Addr::from_bits(client.to_bits() & !0xff).into(),
        Some(IpAddr::V6(client)) => Ipv6Addr::from_bits(client.to_bits() >> 80 << 80).into(),
    }
}

/// Whether clients can bring about a certificate for it: public names alone, and no patterns.
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

    /// Takes a name as confirmed; returns whether it was new and there was room for it.
    pub(crate) fn confirm(&mut self, subject: &Subject) -> bool {
        self.names.len() < NAMES_MAX && self.names.insert(subject.clone())
    }

    /// A client wants a certificate for a name that has none: whether to ask about it now.
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
        // What cannot be remembered would be asked again and again.
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

    /// Takes the answer to a question, of [`Demand::wants`] or about a name that is known; returns whether the name is new.
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

    /// Forgets everything: the URL is another one.
    pub(crate) fn clear(&mut self) {
        *self = Demand::default();
    }
}

/// Who is asked.
pub(crate) struct Confirmer {
    url: String,
    client: WebClient,
}

impl Confirmer {
    pub(crate) fn new(url: &str, client: WebClient) -> Confirmer {
        Confirmer { url: url.to_owned(), client }
    }

    /// Asks about a name: a response with a status of 200 to 299 is yes, one below 500 no. The text is for the log.
    pub(crate) async fn ask(&self, subject: &Subject) -> (AskAnswer, String) {
        let sign = if self.url.contains('?') { '&' } else { '?' };
        // A name has no characters that a URL escapes.
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
        // At its renewal it is refused.
        assert!(!demand.answered(&name, AskAnswer::No, now + 100 * REFUSED) && !demand.contains(&name));
        for other in ["*.example.com", "foo.local", "localhost", "nas", "93.184.216.34"] {
            assert!(!demand.wants(&subject(other), None, now + 200 * REFUSED), "{other}");
        }
    }

    #[test]
    fn what_clients_can_bring_about_is_bounded() {
        let (mut demand, now) = (Demand::default(), Instant::now());
        let name = |number: usize| subject(&format!("n{number}.example.com"));
        // Each from a network of its own.
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
        // One user, with many addresses of one network; nothing answers its questions.
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
        // Where its questions are answered at once, the rate is what holds it.
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
