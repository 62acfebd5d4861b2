//! Other servers of a set, which are asked for a response before the origin. Each key has an owner, so that all servers
//! together ask the origin about as often as one.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;

use http::{Dialect, Fields, Length, Method, Name, Status};
use net::{Client, DefaultFields, Exchange, Fault, Peer, Request};
use proxy::{FetchLimits, FetchRequest, Proxy};
use times::{Millis, Moment};

use crate::removals::{is_removed, key_hash};
use crate::responses::PEER_FIELD;

/// Field in which a server asks another one: route, key, client, peer of the connection, whether the client's connection is secure, and
/// the fields in which a trusted peer reports the client.
const ASK_FIELD: &[u8] = b"Komainu-Peer-Ask";
/// Time for which a server that could not be asked is left alone.
const LEFT_ALONE: Millis = Millis(5_000);
/// Maximum time of a whole response.
const RESPONSE_MAX: Millis = Millis(600_000);

/// The servers of a set, on one core.
pub struct CachePeers {
    servers: Vec<SetServer>,
}

struct SetServer {
    name_hash: u64,
    /// `None` for this server.
    proxy: Option<Proxy>,
    left_alone_until: Cell<Moment>,
}

impl CachePeers {
    /// Creates the set from the names of its servers and the way to each; `None` for this server.
    #[must_use]
    pub fn new(servers: impl Iterator<Item = (String, Option<Proxy>)>) -> CachePeers {
        let server = |(name, proxy): (String, _)| SetServer {
            name_hash: key_hash(name.as_bytes()),
            proxy,
            left_alone_until: Cell::new(Moment::ZERO),
        };
        CachePeers { servers: servers.map(server).collect() }
    }

    /// Returns the server that owns a key (rendezvous hashing: a server that leaves changes the owner of its keys only).
    fn owner(&self, key: u64) -> Option<&SetServer> {
        self.servers.iter().max_by_key(|server| key_hash(&(server.name_hash ^ key).to_be_bytes()))
    }
}

/// The set, for one route.
#[derive(Clone)]
pub struct RoutePeers {
    /// The servers.
    pub set: Rc<CachePeers>,
    /// Index of the site, and of the route in it.
    pub route: (usize, usize),
}

/// Outcome of asking another server.
pub(crate) enum PeerOutcome {
    /// The response of that server has been passed on.
    Served,
    /// The origin has to be asked.
    AskOrigin,
}

impl RoutePeers {
    /// Asks the owner of a key, unless that is this server, and passes its response on.
    ///
    /// # Errors
    /// The response breaks off.
    pub(crate) async fn ask(&self, exchange: &mut Exchange<'_>, key: &[u8]) -> Result<PeerOutcome, Fault> {
        let key = key_hash(key);
        let Some(owner) = self.set.owner(key) else { return Ok(PeerOutcome::AskOrigin) };
        let Some(proxy) = &owner.proxy else { return Ok(PeerOutcome::AskOrigin) };
        let now = exchange.core().now();
        let is_left_alone = now < owner.left_alone_until.get();
        let Some(request) = peer_request(&exchange.request(), self.route, key).filter(|_| !is_left_alone)
        else {
            return Ok(PeerOutcome::AskOrigin);
        };
        let limits = FetchLimits { body_bytes_max: u64::MAX, total: RESPONSE_MAX };
        let proxy = proxy.bind();
        let Ok(mut response) = proxy.fetch(&request, &limits).await else {
            owner.left_alone_until.set(now + LEFT_ALONE);
            return Ok(PeerOutcome::AskOrigin);
        };
        // Anything else than a response of the cache, or one of a server that cannot reach the origin.
        if response.fields().first(PEER_FIELD).is_none() || response.status().code() >= 500 {
            return Ok(PeerOutcome::AskOrigin);
        }
        let fields = response.fields();
        let age_s = fields.first(b"age").and_then(|age| std::str::from_utf8(age).ok()?.parse::<u64>().ok());
        // The owner may not have applied a purge yet, and knows nothing of unsafe requests here.
        if age_s.is_some_and(|age_s| is_removed(key, exchange.core().unix_s().saturating_sub(age_s))) {
            return Ok(PeerOutcome::AskOrigin);
        }
        let own = DefaultFields {
            server: fields.first(b"server").is_some(),
            date: fields.first(b"date").is_some(),
        };
        let is_own =
            |name: &[u8]| name.eq_ignore_ascii_case(PEER_FIELD) || name.eq_ignore_ascii_case(b"cache-status");
        let length = response.length().map_or(Length::Unknown, Length::Known);
        exchange.begin_lines(response.status(), length, own, |lines| {
            let passed = fields.iter().filter(|(name, _)| !is_own(name));
            passed.for_each(|(name, value)| lines.line(name, value));
        });
        while let Some(piece) = response.read().await.map_err(|error| Fault::Failed(error.reason))? {
            exchange.write(piece).await?;
        }
        exchange.end(&Fields::new())?;
        Ok(PeerOutcome::Served)
    }
}

/// Returns the request to the owner of a key; `None` if its response may depend on more than another server would know.
fn peer_request(request: &Request<'_>, route: (usize, usize), key: u64) -> Option<FetchRequest> {
    let is_plain = request.method() == Method::Get
        && request.target() == request.sent_target()
        && request.user().is_none()
        && !request.is_authorized()
        && request.field(Name::Cookie).is_none();
    if !is_plain {
        return None;
    }
    let mut fields = Fields::new();
    for (id, name, value) in request.fields() {
        let is_passed = id != Name::Host && !id.is_hop_by_hop() && !id.is_framing();
        if is_passed && !http::is_internal(name) {
            fields.try_push(name, value).ok()?;
        }
    }
    let ask = PeerAsk { route, key, client: request.client(), peer: request.peer() };
    fields.try_push(ASK_FIELD, ask.text().as_bytes()).ok()?;
    let authority = std::str::from_utf8(request.authority()).ok()?;
    let target = std::str::from_utf8(request.target()).ok()?;
    let asked = FetchRequest::new("GET", authority, target, &fields, Vec::new()).ok()?;
    Some(asked.with_own_last_field().in_place_of(request))
}

/// A request of another server of the set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerAsk {
    /// Index of the site, and of the route in it.
    pub route: (usize, usize),
    /// Hash of the key of the response.
    pub key: u64,
    /// The client of the other server, as that has judged it.
    pub client: Client,
    /// The peer of the client's connection.
    pub peer: Peer,
}

/// Words for the fields in which a trusted peer has reported the client.
const DIALECTS: [(&str, Option<Dialect>); 3] =
    [("-", None), ("x", Some(Dialect::XForwarded)), ("f", Some(Dialect::Standard))];

impl PeerAsk {
    /// Reads what the other server asks for.
    #[must_use]
    pub fn of(request: &Request<'_>) -> Option<PeerAsk> {
        let mut values = request.fields().filter(|(_, name, _)| name.eq_ignore_ascii_case(ASK_FIELD));
        let value = values.next().filter(|_| values.next().is_none())?.2;
        PeerAsk::parse(value)
    }

    fn parse(value: &[u8]) -> Option<PeerAsk> {
        let mut words = std::str::from_utf8(value).ok()?.split(' ');
        let route = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let key = u64::from_str_radix(words.next()?, 16).ok()?;
        let mut address = || match words.next()? {
            "-" => Some(Peer::Unix),
            text => Some(Peer::Tcp(text.parse::<SocketAddr>().ok()?)),
        };
        let (address, peer) = (address()?, address()?);
        let is_secure = match words.next()? {
            "0" => false,
            "1" => true,
            _ => return None,
        };
        let dialect = words.next()?;
        let trusted_dialect = DIALECTS.iter().find(|(word, _)| *word == dialect)?.1;
        let client = Client { address, is_secure, trusted_dialect };
        words.next().is_none().then_some(PeerAsk { route, key, client, peer })
    }

    fn text(&self) -> String {
        let address = |peer| match peer {
            Peer::Tcp(address) => address.to_string(),
            Peer::Unix => "-".to_owned(),
        };
        let Client { address: client, is_secure, trusted_dialect } = self.client;
        let dialect = DIALECTS.iter().find(|(_, dialect)| *dialect == trusted_dialect);
        format!(
            "{} {} {:016x} {} {} {} {}",
            self.route.0,
            self.route.1,
            self.key,
            address(client),
            address(self.peer),
            u8::from(is_secure),
            dialect.map_or("-", |(word, _)| word)
        )
    }

    /// Names of the fields that neither the origin nor the key has.
    #[must_use]
    pub fn own_fields() -> Vec<Vec<u8>> {
        vec![ASK_FIELD.to_ascii_lowercase()]
    }

    /// The status of refusals, for which the other server asks the origin.
    pub const REFUSED: Status = Status::of(421).expect("three digits");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str]) -> CachePeers {
        CachePeers::new(names.iter().map(|name| ((*name).to_owned(), None)))
    }

    #[test]
    fn keys_are_shared_evenly_and_stay_with_their_owner() {
        let owner = |set: &CachePeers, key: u64| set.owner(key_hash(&key.to_be_bytes())).unwrap().name_hash;
        let (three, two) = (set(&["a", "b", "c"]), set(&["a", "b"]));
        let gone = key_hash(b"c");
        let mut counts = std::collections::BTreeMap::new();
        for key in 0..30_000 {
            let before = owner(&three, key);
            *counts.entry(before).or_insert(0) += 1;
            if before != gone {
                assert_eq!(owner(&two, key), before);
            }
        }
        assert!(
            counts.len() == 3 && counts.values().all(|count| (9_000..11_000).contains(count)),
            "{counts:?}"
        );
        assert!(set(&[]).owner(1).is_none());
    }

    #[test]
    fn asks_are_read_as_they_are_written() {
        let address = |text: &str| Peer::Tcp(text.parse().unwrap());
        for client in [Peer::Unix, address("192.0.2.1:5"), address("[2001:db8::1]:65535")] {
            for (peer, dialect) in [(Peer::Unix, None), (address("10.0.0.1:0"), Some(Dialect::Standard))] {
                let client =
                    Client { address: client, is_secure: dialect.is_none(), trusted_dialect: dialect };
                let ask = PeerAsk { route: (1, 2), key: u64::MAX, client, peer };
                assert_eq!(PeerAsk::parse(ask.text().as_bytes()), Some(ask), "{}", ask.text());
            }
        }
        for wrong in [
            "",
            "1",
            "1 2 ff - - 2 -",
            "1 2 xyz - - 1 -",
            "1 2 ff x - 1 -",
            "1 2 ff - - 1 y",
            "1 2 ff - - 1 - x",
            "1 2 ff - - 1",
            "-1 2 ff - - 1 -",
            "1  2 ff - - 1 -",
        ] {
            assert_eq!(PeerAsk::parse(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
