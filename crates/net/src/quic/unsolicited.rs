//! Packets that belong to no connection: how many of them are examined.
//!
//! Anybody can send such packets from any address. Each Initial packet costs a derivation of keys and the check of a
//! token, and most are answered: by Retry, a close, or a handshake; packets of unknown versions by a list of versions. So
//! a core examines a limited number of them, and drops the others before it derives keys. The last half of a burst is for
//! networks within their own rate. Clients whose token proves their address have a rate beside the budget.
//!
//! A core completes fewer handshakes than its budget has packets, so that clients meet the limit in floods alone.
//! Stateless resets are limited by `quinn_proto`.

use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quinn_proto::ConnectionId;
use quinn_proto::crypto::rustls::QuicServerConfig;
use quinn_proto::crypto::{HandshakeTokenKey, Keys, ServerConfig, Session, UnsupportedVersion};
use quinn_proto::transport_parameters::TransportParameters;
use times::Moment;

use super::tokens;
use crate::h3::QUIC_VERSION;

/// Packets in a second, and at once, of all clients together.
const ALL: PacketRate = PacketRate { per_second: 4_000, burst: 1_000 };
/// The same of a network (IPv4 /24, IPv6 /56).
const NETWORK: PacketRate = PacketRate { per_second: 200, burst: 100 };
/// Part of the burst that is kept for networks within their rate.
const KEPT: u32 = ALL.burst / 2;
/// Number of networks that are told apart; others share their rates.
const NETWORKS: usize = 1024;
/// Size of datagrams with Initial packets, in bytes (RFC 9000 section 14.1). Smaller ones are not answered.
const INITIAL_BYTES_MIN: usize = 1200;
/// Bit of the first byte of packets with a long header, and bits of the type of these (RFC 9000 section 17.2).
const LONG_HEADER: u8 = 0x80;
const LONG_TYPE: u8 = 0x30;

/// Maximum number of packets in each second, and at once.
#[derive(Clone, Copy)]
struct PacketRate {
    per_second: u32,
    burst: u32,
}

/// Packets left of a rate: a token bucket.
#[derive(Clone, Copy)]
struct Allowance {
    /// In thousandths.
    left: u32,
    since: Moment,
}

impl Allowance {
    const fn full(rate: PacketRate) -> Allowance {
        Allowance { left: rate.burst * 1000, since: Moment(0) }
    }

    /// Takes a packet, if more than `kept` are left.
    fn take(&mut self, rate: PacketRate, kept: u32, now: Moment) -> bool {
        // After a second every burst is complete.
        let elapsed_ms = now.0.saturating_sub(self.since.0).min(1000) as u32;
        self.left = (self.left + elapsed_ms * rate.per_second).min(rate.burst * 1000);
        self.since = now;
        let is_allowed = self.left >= (kept + 1) * 1000;
        self.left -= if is_allowed { 1000 } else { 0 };
        is_allowed
    }
}

/// The packets left of each network, by a hash that clients do not know.
struct NetworkAllowances(Vec<Allowance>);

impl NetworkAllowances {
    fn take(&mut self, slot: usize, now: Moment) -> bool {
        if self.0.is_empty() {
            self.0.resize(NETWORKS, Allowance::full(NETWORK));
        }
        self.0[slot % NETWORKS].take(NETWORK, 0, now)
    }
}

/// The packet that is examined now.
struct CurrentPacket {
    client: SocketAddr,
    now: Moment,
    /// Token of an Initial packet.
    token: Vec<u8>,
}

struct Budget {
    all: Allowance,
    /// Packets of clients that have, and have not, proven their address.
    proven: NetworkAllowances,
    unproven: NetworkAllowances,
    hasher: RandomState,
    packet: CurrentPacket,
    counted: UnsolicitedPackets,
}

/// The budget of an endpoint for packets that belong to no connection.
pub(super) struct UnsolicitedBudget {
    budget: Mutex<Budget>,
    token_key: Arc<dyn HandshakeTokenKey>,
}

/// Packets that belong to no connection, as counted since the last time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct UnsolicitedPackets {
    pub(super) examined: u64,
    pub(super) dropped: u64,
}

impl UnsolicitedBudget {
    pub(super) fn new(token_key: Arc<dyn HandshakeTokenKey>) -> UnsolicitedBudget {
        let budget = Budget {
            all: Allowance::full(ALL),
            proven: NetworkAllowances(Vec::new()),
            unproven: NetworkAllowances(Vec::new()),
            hasher: RandomState::new(),
            packet: CurrentPacket {
                client: SocketAddr::from(([0; 4], 0)),
                now: Moment(0),
                token: Vec::new(),
            },
            counted: UnsolicitedPackets::default(),
        };
        UnsolicitedBudget { budget: Mutex::new(budget), token_key }
    }

    fn lock(&self) -> MutexGuard<'_, Budget> {
        self.budget.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the packet that is given to QUIC next, which asks for the keys of an Initial packet if it belongs to no
    /// connection ([`LimitedKeys`]). Returns false if the packet is to be dropped.
    pub(super) fn admits(&self, client: SocketAddr, packet: &[u8], now: Moment) -> bool {
        if packet.first().is_none_or(|first| first & LONG_HEADER == 0) {
            return true;
        }
        let mut budget = self.lock();
        budget.packet.client = client;
        budget.packet.now = now;
        budget.packet.token.clear();
        if is_of_unknown_version(packet) {
            return self.take(&mut budget);
        }
        budget.packet.token.extend_from_slice(token_of(packet).unwrap_or_default());
        true
    }

    /// Takes the current packet from the budget. Returns false if it is to be dropped.
    fn take(&self, budget: &mut Budget) -> bool {
        let CurrentPacket { client, now, .. } = budget.packet;
        let slot = budget.hasher.hash_one(network_of(client.ip())) as usize;
        let kept = if budget.unproven.take(slot, now) { 0 } else { KEPT };
        let is_admitted = budget.all.take(ALL, kept, now)
            || tokens::is_of_client(&*self.token_key, &budget.packet.token, client.ip())
                && budget.proven.take(slot, now);
        let counted = &mut budget.counted;
        *(if is_admitted { &mut counted.examined } else { &mut counted.dropped }) += 1;
        is_admitted
    }

    /// Returns the packets counted since the last call.
    pub(super) fn take_counts(&self) -> UnsolicitedPackets {
        std::mem::take(&mut self.lock().counted)
    }
}

/// Keys of Initial packets that belong to no connection, for as many as the budget allows.
pub(super) struct LimitedKeys {
    pub(super) base: Arc<QuicServerConfig>,
    pub(super) budget: Arc<UnsolicitedBudget>,
}

impl ServerConfig for LimitedKeys {
    fn initial_keys(&self, version: u32, client: &ConnectionId) -> Result<Keys, UnsupportedVersion> {
        // Without keys the packet is ignored.
        let is_admitted = self.budget.take(&mut self.budget.lock());
        if is_admitted { self.base.initial_keys(version, client) } else { Err(UnsupportedVersion) }
    }

    fn retry_tag(&self, version: u32, client: &ConnectionId, packet: &[u8]) -> [u8; 16] {
        self.base.retry_tag(version, client, packet)
    }

    fn start_session(self: Arc<Self>, version: u32, parameters: &TransportParameters) -> Box<dyn Session> {
        self.base.clone().start_session(version, parameters)
    }
}

/// Returns the network of a client as a number.
fn network_of(client: IpAddr) -> u64 {
    match client.to_canonical() {
        IpAddr::V4(ip) => u64::from(ip.to_bits() >> 8),
        IpAddr::V6(ip) => 1 << 63 | (ip.to_bits() >> 72) as u64,
    }
}

/// Whether a packet with a long header is answered by a list of versions (RFC 9000 section 6).
fn is_of_unknown_version(packet: &[u8]) -> bool {
    let version = packet
        .get(1..5)
        .map_or(QUIC_VERSION, |bytes| bytes.iter().fold(0, |version, byte| version << 8 | u32::from(*byte)));
    packet.len() >= INITIAL_BYTES_MIN && version != QUIC_VERSION
}

/// Returns the token of an Initial packet (RFC 9000 section 17.2.2).
fn token_of(packet: &[u8]) -> Option<&[u8]> {
    if packet.first()? & LONG_TYPE != 0 {
        return None;
    }
    let mut rest = packet.get(5..)?;
    for _ in 0..2 {
        let (len, identifier) = rest.split_first()?;
        rest = identifier.get(usize::from(*len)..)?;
    }
    let (first, _) = rest.split_first()?;
    let (length, rest) = rest.split_at_checked(1 << (first >> 6))?;
    let bytes = length.iter().skip(1);
    let len = bytes.fold(usize::from(first & 0x3f), |len, byte| len << 8 | usize::from(*byte));
    rest.get(..len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::h3::initial_keys;
    use crate::quic::keys::EndpointKeys;
    use crate::quic::tokens::TokenKeys;
    use crate::tls::{TICKET_PERIOD_S, TicketKeys};

    use bytes::BytesMut;
    use quinn_proto::{DatagramEvent, Endpoint, EndpointConfig, Incoming};
    use std::time::Instant;

    /// Offset of the packet number in a packet without a token.
    const NUMBER_AT: usize = 5 + 9 + 9 + 1 + 2;

    struct Server {
        budget: Arc<UnsolicitedBudget>,
        quic: Endpoint,
        base: Arc<QuicServerConfig>,
        now: Moment,
        sent: u64,
    }

    impl Server {
        fn new() -> Server {
            Server::with(b"secret", None)
        }

        /// A server with this secret of its own, and these keys of session tickets.
        fn with(secret: &[u8], tickets: Option<TicketKeys>) -> Server {
            let keys = EndpointKeys::new(secret);
            let tokens = Arc::new(TokenKeys { own: keys.tokens, tickets: Box::new(move || tickets.clone()) });
            let base = initial_keys().unwrap();
            let budget = Arc::new(UnsolicitedBudget::new(tokens.clone()));
            let limited = LimitedKeys { base: base.clone(), budget: budget.clone() };
            let server = quinn_proto::ServerConfig::new(Arc::new(limited), tokens);
            let config = EndpointConfig::new(keys.reset);
            let quic = Endpoint::new(Arc::new(config), Some(Arc::new(server)), false, None);
            Server { budget, quic, base, now: Moment(1_000_000), sent: 0 }
        }

        /// Sends the Initial packet of another connection.
        fn receive(&mut self, client: SocketAddr, token: &[u8]) -> Option<Incoming> {
            self.sent += 1;
            let identifier = self.sent.to_be_bytes();
            let mut packet = [&[0xc0, 0, 0, 0, 1, 8][..], &identifier, &[8], &identifier].concat();
            let number_at = NUMBER_AT + token.len() + usize::from(token.len() > 63);
            match token.len() {
                0..64 => packet.push(token.len() as u8),
                len => packet.extend((len as u16 | 0x4000).to_be_bytes()),
            }
            packet.extend(token);
            packet.extend(((INITIAL_BYTES_MIN - number_at) as u16 | 0x4000).to_be_bytes());
            packet.resize(INITIAL_BYTES_MIN, 0);
            let keys = self.base.initial_keys(QUIC_VERSION, &ConnectionId::new(&identifier)).unwrap();
            keys.packet.remote.encrypt(0, &mut packet, number_at + 1);
            keys.header.remote.encrypt(number_at, &mut packet);
            if !self.budget.admits(client, &packet, self.now) {
                return None;
            }
            let packet = BytesMut::from(&packet[..]);
            match self.quic.handle(Instant::now(), client, None, None, packet, &mut Vec::new()) {
                Some(DatagramEvent::NewConnection(incoming)) => Some(incoming),
                _ => None,
            }
        }

        /// Returns the number of packets of `count` that are examined.
        fn examined(&mut self, count: u32, client: impl Fn(u32) -> SocketAddr) -> u32 {
            (0..count).filter(|at| self.receive(client(*at), b"").is_some_and(|new| self.forget(new))).count()
                as u32
        }

        fn forget(&mut self, incoming: Incoming) -> bool {
            self.quic.ignore(incoming);
            true
        }

        /// Asks the client to prove its address, and returns the token.
        fn retry(&mut self, client: SocketAddr) -> Vec<u8> {
            let incoming = self.receive(client, b"").unwrap();
            let mut retry = Vec::new();
            let sent = self.quic.retry(incoming, &mut retry).unwrap();
            assert_eq!(sent.size, retry.len());
            // Between the identifiers and the tag.
            let identifier = usize::from(retry[5 + 9]);
            retry[5 + 9 + 1 + identifier..retry.len() - 16].to_vec()
        }
    }

    fn client(network: u32) -> SocketAddr {
        SocketAddr::new(IpAddr::from((10 << 24 | network << 8 | 1u32).to_be_bytes()), 443)
    }

    #[test]
    fn packets_are_examined_within_the_rate() {
        let mut server = Server::new();
        assert_eq!(server.examined(3_000, client), ALL.burst);
        let counts =
            UnsolicitedPackets { examined: u64::from(ALL.burst), dropped: u64::from(3_000 - ALL.burst) };
        assert_eq!(server.budget.take_counts(), counts);
        assert_eq!(server.budget.take_counts(), UnsolicitedPackets::default());
        server.now.0 += 100;
        assert_eq!(server.examined(3_000, client), ALL.per_second / 10);
        // A burst is all that is left of a long time.
        server.now.0 += 1_000_000;
        assert_eq!(server.examined(3_000, client), ALL.burst);
    }

    #[test]
    fn one_network_leaves_packets_for_others() {
        let mut server = Server::new();
        let many = |port: u32| SocketAddr::new(client(7).ip(), port as u16);
        let first = server.examined(3_000, many);
        assert!((ALL.burst - KEPT..ALL.burst).contains(&first), "{first}");
        let served = (100..200).filter(|other| server.examined(1, |_| client(*other)) == 1).count();
        // Some may share the rate of the first network.
        assert!(served >= 95, "{served}");
    }

    #[test]
    fn proven_clients_have_a_share_of_their_own() {
        let mut server = Server::new();
        let token = &server.retry(client(1))[..];
        assert!(server.examined(3_000, client) > 0);
        assert_eq!(server.examined(100, client), 0, "nothing is left");
        for _ in 0..NETWORK.burst {
            let incoming = server.receive(client(1), token).unwrap();
            assert!(incoming.remote_address_validated());
            server.forget(incoming);
        }
        assert!(server.receive(client(1), token).is_none(), "more than its share");
        // Others' tokens, and those of nobody.
        assert!(server.receive(client(3), token).is_none());
        let mut changed = token.to_vec();
        changed[20] ^= 1;
        for token in [&changed[..], &token[..token.len() - 1], &token[1..], &[7; 64], &[7; 400]] {
            assert!(server.receive(client(4), token).is_none());
        }
    }

    #[test]
    fn servers_of_a_set_take_each_others_tokens() {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        let of_set = || {
            let tickets = TicketKeys::random();
            let period = now / TICKET_PERIOD_S;
            (period..period + 2).for_each(|at| tickets.set_period_secret(at, vec![at as u8; 32]));
            Some(tickets)
        };
        let mut one = Server::with(b"of one", of_set());
        let token = one.retry(client(1));
        let takes = |mut server: Server, client| {
            let received = server.receive(client, &token);
            received.is_some_and(|new| new.remote_address_validated() && server.forget(new))
        };
        assert!(takes(Server::with(b"of two", of_set()), client(1)));
        assert!(!takes(Server::with(b"of two", of_set()), client(2)), "another client's");
        assert!(!takes(Server::with(b"of two", Some(TicketKeys::random())), client(1)), "of no set");
    }

    #[test]
    fn unknown_versions_are_of_the_budget() {
        let server = Server::new();
        let mut packet = [&[0xc0, 1, 2, 3, 4, 8][..], &[0; 8], &[0]].concat();
        packet.resize(INITIAL_BYTES_MIN, 0);
        let admitted = |packet: &[u8]| {
            (0..3_000).filter(|network| server.budget.admits(client(*network), packet, server.now)).count()
                as u32
        };
        assert_eq!(admitted(&packet), ALL.burst);
        // These are not answered, or belong to connections.
        assert_eq!(admitted(&packet[..INITIAL_BYTES_MIN - 1]), 3_000);
        packet[0] = 0x40;
        assert_eq!(admitted(&packet), 3_000);
    }

    #[test]
    fn tokens_are_found_in_packets_however_cut() {
        let mut packet =
            [&[0xc0, 0, 0, 0, 1, 2, 1, 2, 3, 1, 2, 3][..], &[0x40, 100], &[9; 100], &[0; 50]].concat();
        assert_eq!(token_of(&packet), Some(&[9; 100][..]));
        (0..packet.len() - 50).for_each(|len| assert_eq!(token_of(&packet[..len]), None, "{len}"));
        packet[0] = 0xe0;
        assert_eq!(token_of(&packet), None, "a packet of the handshake");
    }

    #[test]
    fn networks_are_those_of_providers() {
        let network = |ip: &str| network_of(ip.parse().unwrap());
        assert_eq!(network("192.0.2.1"), network("::ffff:192.0.2.99"));
        assert_ne!(network("192.0.2.1"), network("192.0.3.1"));
        assert_eq!(network("2001:db8:0:ff::1"), network("2001:db8:0:01::2"));
        assert_ne!(network("2001:db8:0:100::1"), network("2001:db8::1"));
    }
}
