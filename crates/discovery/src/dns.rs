//! Lookups of names: the servers of a service, or all addresses of a host, with the time for which they hold.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use crate::message::{DnsFault, DnsResponse, RecordData, RecordType, parse, query};

/// Maximum number of servers of a name; further ones are not used.
pub(crate) const SERVERS_MAX: usize = 256;
/// Maximum number of hosts of a service whose addresses are asked for.
const TARGETS_MAX: usize = 64;
/// Maximum number of aliases of a name that are followed.
const ALIASES_MAX: usize = 8;
/// Bounds of the time for which servers are used, and for which their absence is.
const TTL: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(3_600));
const NEGATIVE_TTL: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// Time for which absence is kept if the DNS server states none.
const NEGATIVE_TTL_DEFAULT_S: u32 = 5;
/// Highest weight of a server.
const WEIGHT_MAX: u32 = 1000;
/// Bytes of a response over UDP without extensions (RFC 1035 section 4.2.1), and of larger ones that are sent anyway.
const DATAGRAM_BYTES_MAX: usize = 4096;

/// Kind of records that name the servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NameKind {
    /// SRV records: hosts with their ports, weights and priorities.
    Service,
    /// Address records, with this port.
    Host(u16),
}

/// A name whose records are followed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DiscoveredName {
    /// The name, without a final dot.
    pub name: String,
    /// The records that are asked for.
    pub kind: NameKind,
}

impl fmt::Display for DiscoveredName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.name)
    }
}

/// A server that a name has at present.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DiscoveredServer {
    /// Its address.
    pub address: SocketAddr,
    /// Its name: the host of the SRV record, or the name that was looked up.
    pub host: String,
    /// Share of the requests.
    pub weight: u32,
    /// Whether the SRV records give it a lower priority than others.
    pub is_backup: bool,
}

/// Outcome of a lookup: the servers, none of which may exist, and how long this holds.
pub(crate) type Found = (Vec<DiscoveredServer>, Duration);

/// The DNS servers that are asked in turn.
#[derive(Debug, Clone)]
pub(crate) struct DnsClient {
    pub(crate) servers: Vec<SocketAddr>,
    /// Maximum time for each of them.
    pub(crate) timeout: Duration,
}

impl DnsClient {
    /// Looks a name up. Without servers, the DNS servers have stated that there are none.
    ///
    /// # Errors
    /// No DNS server gives an answer: a text.
    pub(crate) async fn look_up(&self, name: &DiscoveredName) -> Result<Found, String> {
        match name.kind {
            NameKind::Host(port) => {
                let (addresses, ttl) = self.addresses(&name.name).await?;
                let server = |ip| DiscoveredServer {
                    address: SocketAddr::new(ip, port),
                    host: name.name.clone(),
                    weight: 1,
                    is_backup: false,
                };
                Ok((addresses.into_iter().take(SERVERS_MAX).map(server).collect(), ttl))
            }
            NameKind::Service => self.service(&name.name).await,
        }
    }

    async fn service(&self, name: &str) -> Result<Found, String> {
        let response = self.ask(name, RecordType::Srv).await?;
        let Some(asked) = resolve_aliases(&response, name) else {
            return Err("its aliases do not end".to_owned());
        };
        let mut records = Vec::new();
        let mut ttl_s = u32::MAX;
        for record in response.answer.iter().filter(|record| record.owner == asked) {
            if let RecordData::Server { priority, weight, port, target } = &record.data {
                ttl_s = ttl_s.min(record.ttl_s);
                records.push((*priority, *weight, *port, target.clone()));
            }
        }
        if records.is_empty() {
            return Ok((Vec::new(), negative_ttl(&response)));
        }
        // In an order of their own, because DNS servers rotate them.
        records.sort_unstable();
        records.dedup();
        let first = records[0].0;
        let heaviest = records.iter().map(|record| u32::from(record.1)).max().unwrap_or(0);
        let targets: BTreeSet<&String> = records.iter().map(|record| &record.3).take(TARGETS_MAX).collect();
        let mut ttl = bounded(Duration::from_secs(u64::from(ttl_s)), TTL);
        let mut addresses = BTreeMap::new();
        for target in targets {
            let known = added_addresses(&response, target);
            let (of_target, its_ttl) = match known {
                Some(known) => known,
                None => self.addresses(target).await.map_err(|text| format!("{target}: {text}"))?,
            };
            ttl = ttl.min(its_ttl);
            addresses.insert(target.clone(), of_target);
        }
        let mut servers: Vec<DiscoveredServer> = Vec::new();
        for (priority, weight, port, target) in &records {
            for ip in addresses.get(target).into_iter().flatten() {
                let address = SocketAddr::new(*ip, *port);
                if servers.len() < SERVERS_MAX && !servers.iter().any(|server| server.address == address) {
                    servers.push(DiscoveredServer {
                        address,
                        host: target.clone(),
                        weight: scaled_weight(u32::from(*weight), heaviest),
                        is_backup: *priority > first,
                    });
                }
            }
        }
        // Hosts without addresses may have been all of the first priority.
        if servers.iter().all(|server| server.is_backup) {
            servers.iter_mut().for_each(|server| server.is_backup = false);
        }
        Ok((servers, ttl))
    }

    /// Returns the addresses of a host in their order, IPv4 before IPv6.
    async fn addresses(&self, host: &str) -> Result<(BTreeSet<IpAddr>, Duration), String> {
        if let Ok(address) = host.parse() {
            return Ok((BTreeSet::from([address]), TTL.1));
        }
        let mut addresses = BTreeSet::new();
        let mut ttl = TTL.1;
        let mut negative = NEGATIVE_TTL.1;
        for kind in [RecordType::A, RecordType::Aaaa] {
            let response = match self.ask(host, kind).await {
                Ok(response) => response,
                // Some servers do not know IPv6.
                Err(_) if kind == RecordType::Aaaa && !addresses.is_empty() => break,
                Err(text) => return Err(text),
            };
            let asked = resolve_aliases(&response, host).ok_or("its aliases do not end")?;
            let mut is_empty = true;
            for record in &response.answer {
                let of_host = record.owner == asked;
                match record.data {
                    RecordData::Address(address) if of_host && is_usable(address) => {
                        addresses.insert(address);
                        is_empty = false;
                        ttl = ttl.min(Duration::from_secs(u64::from(record.ttl_s)));
                    }
                    RecordData::Alias(_) => ttl = ttl.min(Duration::from_secs(u64::from(record.ttl_s))),
                    _ => {}
                }
            }
            if is_empty {
                negative = negative.min(negative_ttl(&response));
            }
        }
        let ttl = if addresses.is_empty() { negative } else { bounded(ttl, TTL) };
        Ok((addresses, ttl))
    }

    /// Asks the servers in turn.
    async fn ask(&self, name: &str, kind: RecordType) -> Result<DnsResponse, String> {
        let mut reason = "there is no DNS server".to_owned();
        for server in &self.servers {
            reason = match timeout(self.timeout, ask_server(*server, name, kind)).await {
                Ok(Ok(response)) => return Ok(response),
                Ok(Err(text)) => format!("the DNS server {server} {text}"),
                Err(_) => format!("the DNS server {server} does not answer within {:?}", self.timeout),
            };
        }
        Err(reason)
    }
}

/// Asks a server over TCP (RFC 7766), whose answers are whole and cannot be forged by guessing numbers, or over UDP if it
/// refuses TCP.
async fn ask_server(server: SocketAddr, name: &str, kind: RecordType) -> Result<DnsResponse, String> {
    let id = fastrand::u16(..);
    let message = query(id, name, kind).map_err(|_| "cannot be asked for such a name".to_owned())?;
    let received = match TcpStream::connect(server).await {
        Ok(stream) => exchange_tcp(stream, &message).await,
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            exchange_udp(server, &message, |received| {
                parse(received, id, name, kind) != Err(DnsFault::Invalid)
            })
            .await
        }
        Err(error) => Err(error),
    };
    let received = received.map_err(|error| format!("cannot be asked: {error}"))?;
    parse(&received, id, name, kind).map_err(|fault| match fault {
        DnsFault::Invalid => "sends an invalid answer".to_owned(),
        DnsFault::Cut => "cuts its answer, and refuses TCP".to_owned(),
        DnsFault::Failed(2) => "cannot answer (SERVFAIL)".to_owned(),
        DnsFault::Failed(5) => "refuses to answer (REFUSED)".to_owned(),
        DnsFault::Failed(code) => format!("cannot answer (code {code})"),
    })
}

async fn exchange_tcp(mut stream: TcpStream, message: &[u8]) -> io::Result<Vec<u8>> {
    let mut framed = (message.len() as u16).to_be_bytes().to_vec();
    framed.extend_from_slice(message);
    stream.write_all(&framed).await?;
    let mut received = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut received).await?;
    Ok(received)
}

/// Sends a datagram, and returns the first one that `fits`; others may be forged.
async fn exchange_udp(
    server: SocketAddr,
    message: &[u8],
    fits: impl Fn(&[u8]) -> bool,
) -> io::Result<Vec<u8>> {
    let any: IpAddr =
        if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    // A port of its own for each query.
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    socket.send(message).await?;
    let mut received = vec![0; DATAGRAM_BYTES_MAX];
    loop {
        let len = socket.recv(&mut received).await?;
        if fits(&received[..len]) {
            received.truncate(len);
            return Ok(received);
        }
    }
}

/// Returns the last name of the chain of aliases that begins with `name`; `None` if it has no end.
fn resolve_aliases(response: &DnsResponse, name: &str) -> Option<String> {
    let mut name = name.to_ascii_lowercase();
    for _ in 0..=ALIASES_MAX {
        let alias = response.answer.iter().find_map(|record| match &record.data {
            RecordData::Alias(target) if record.owner == name => Some(target),
            _ => None,
        });
        match alias {
            Some(target) => name.clone_from(target),
            None => return Some(name),
        }
    }
    None
}

/// Returns the addresses of a host that the server has added to its answer, if any.
fn added_addresses(response: &DnsResponse, host: &str) -> Option<(BTreeSet<IpAddr>, Duration)> {
    let mut addresses = BTreeSet::new();
    let mut ttl_s = u32::MAX;
    for record in response.additional.iter().filter(|record| record.owner == host) {
        if let RecordData::Address(address) = record.data
            && is_usable(address)
        {
            ttl_s = ttl_s.min(record.ttl_s);
            addresses.insert(address);
        }
    }
    (!addresses.is_empty()).then(|| (addresses, bounded(Duration::from_secs(u64::from(ttl_s)), TTL)))
}

/// Whether a server can have the address.
fn is_usable(address: IpAddr) -> bool {
    !address.is_unspecified() && !address.is_multicast() && address != IpAddr::V4(Ipv4Addr::BROADCAST)
}

fn negative_ttl(response: &DnsResponse) -> Duration {
    let seconds = response.negative_ttl_s.unwrap_or(NEGATIVE_TTL_DEFAULT_S);
    bounded(Duration::from_secs(u64::from(seconds)), NEGATIVE_TTL)
}

fn bounded(time: Duration, (min, max): (Duration, Duration)) -> Duration {
    time.clamp(min, max)
}

/// Returns a weight in the range of this server. A weight of 0 beside others is a very small one (RFC 2782).
fn scaled_weight(weight: u32, heaviest: u32) -> u32 {
    match heaviest {
        0 => 1,
        1..=WEIGHT_MAX => weight.max(1),
        _ => (weight * WEIGHT_MAX / heaviest).max(1),
    }
}

/// Returns the DNS servers of the system (resolv.conf(5)).
pub(crate) fn system_servers(resolv_conf: &str) -> Vec<SocketAddr> {
    let address = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let address = words.next().filter(|word| *word == "nameserver").and(words.next())?;
        address.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, 53))
    };
    resolv_conf.lines().filter_map(address).take(3).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_fit_the_range_of_this_server() {
        let scaled = |weights: &[u32]| {
            let heaviest = *weights.iter().max().unwrap();
            weights.iter().map(|weight| scaled_weight(*weight, heaviest)).collect::<Vec<_>>()
        };
        assert_eq!(scaled(&[0, 0]), [1, 1]);
        assert_eq!(scaled(&[0, 10, 1000]), [1, 10, 1000]);
        assert_eq!(scaled(&[0, 1, 30_000, 60_000]), [1, 1, 500, 1000]);
        assert_eq!(scaled(&[65_535]), [1000]);
    }

    #[test]
    fn servers_of_the_system_are_read() {
        let text = "# nameserver 192.0.2.9\nsearch example.test\nnameserver 192.0.2.1\noptions edns0\n\
                    nameserver ::1 # one\nnameserver x\nnameserver 192.0.2.3\nnameserver 192.0.2.4\n";
        let servers: Vec<String> = system_servers(text).iter().map(ToString::to_string).collect();
        assert_eq!(servers, ["192.0.2.1:53", "[::1]:53", "192.0.2.3:53"]);
    }

    #[test]
    fn endless_aliases_are_refused() {
        let alias = |owner: &str, target: &str| crate::message::Record {
            owner: owner.into(),
            ttl_s: 1,
            data: RecordData::Alias(target.into()),
        };
        let of = |answer| DnsResponse { answer, ..DnsResponse::default() };
        let chain = of(vec![alias("b", "c"), alias("a", "b")]);
        assert_eq!(resolve_aliases(&chain, "A").as_deref(), Some("c"));
        assert_eq!(resolve_aliases(&of(vec![alias("a", "b"), alias("b", "a")]), "a"), None);
    }
}
