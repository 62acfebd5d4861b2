//! TXT records set and removed by dynamic update (RFC 2136), signed with a shared key (TSIG, RFC 8945).
//!
//! Implemented here because one TXT record takes only two kinds of message: with TSIG, hickory-proto adds
//! about forty crates (internationalised names, a second random generator), and `domain` a second
//! cryptography library.

use std::time::{Duration, SystemTime};

use failure::{Failure, FailureContext};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::dns::{self, DnsMessage, DnsName};
use crate::tsig::TsigKey;

/// TTL of the record in seconds.
const TTL_S: u32 = 60;
/// Maximum number of aliases that are followed.
const ALIASES_MAX: usize = 8;
const QUERY: u16 = 0;
const UPDATE: u16 = 5;

/// A DNS server that accepts dynamic updates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DnsServer {
    /// Name or IP address.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// Zone of the records; `None` to query the server for it.
    pub zone: Option<String>,
    /// Key that signs the requests.
    pub key: TsigKey,
    /// Time after an update before the authority validates, within which secondary servers of the zone are
    /// updated.
    pub wait: Duration,
}

impl DnsServer {
    fn address(&self) -> String {
        format!("the DNS server {}:{}", self.host, self.port)
    }

    /// Adds (or removes) a TXT record with this value; other records of the name remain.
    ///
    /// # Errors
    /// Reason why the server rejected the update, or that it did not respond within `longest`.
    pub(crate) async fn change(
        &self,
        is_added: bool,
        record: &str,
        value: &str,
        now: SystemTime,
        timeout: Duration,
    ) -> Result<(), Failure> {
        let done = tokio::time::timeout(timeout, self.exchange(is_added, record, value, now)).await;
        let done = done.map_err(|_| Failure::new(format!("no response within {} s", timeout.as_secs_f32())));
        done.flatten().context(self.address())
    }

    async fn exchange(
        &self,
        is_added: bool,
        record: &str,
        value: &str,
        now: SystemTime,
    ) -> Result<(), Failure> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await;
        let mut stream = stream.map_err(|error| format!("cannot connect: {error}"))?;
        let mut name = DnsName::parse(record)?;
        let zone = match &self.zone {
            Some(zone) => DnsName::parse(zone)?,
            None => self.find_zone(&mut stream, &mut name, now).await?,
        };
        if !name.is_in(&zone) {
            return Err(Failure::new(format!(
                "{name} is not in the zone {zone}: remove `zone`, or name another one"
            )));
        }
        let mut update = dns::question(fastrand::u16(..), UPDATE, &zone, dns::SOA);
        let len = u8::try_from(value.len()).map_err(|_| "the value is longer than 255 bytes")?;
        let data: Vec<u8> = std::iter::once(len).chain(value.bytes()).collect();
        // RFC 2136 section 2.5.1, and section 2.5.4 to remove only this value.
        let (class, ttl_s) = if is_added { (dns::CLASS_IN, TTL_S) } else { (dns::CLASS_NONE, 0) };
        dns::append(&mut update, 2, &name, (dns::TXT, class, ttl_s), &data);
        let response = self.query(&mut stream, update, now).await?;
        match DnsMessage::read(&response).map(|message| message.code) {
            Some(0) => Ok(()),
            Some(code) => Err(Failure::new(format!("{} (the zone {zone})", self.key.refusal(code)))),
            None => Err("its response is no DNS message".into()),
        }
    }

    /// Returns the zone of a name, according to the SOA record that the server returns. If `name` is an
    /// alias, it is replaced by its target.
    async fn find_zone(
        &self,
        stream: &mut TcpStream,
        name: &mut DnsName,
        now: SystemTime,
    ) -> Result<DnsName, Failure> {
        for _ in 0..ALIASES_MAX {
            let query = dns::question(fastrand::u16(..), QUERY, name, dns::SOA);
            let response = self.query(stream, query, now).await?;
            let message = DnsMessage::read(&response).ok_or("its response is no DNS message")?;
            let alias = message.first(dns::CNAME).filter(|record| record.name == *name);
            if let Some(target) = alias.and_then(|record| message.target(record)) {
                *name = target;
                continue;
            }
            let zone = message.first(dns::SOA).map(|record| record.name.clone());
            return match zone.filter(|zone| name.is_in(zone) && matches!(message.code, 0 | 3)) {
                Some(zone) => Ok(zone),
                None => Err(Failure::new(format!(
                    "it has no zone for {name} ({}): name its primary server with `server`",
                    if message.code == 0 { "no SOA record".into() } else { dns::code_name(message.code) }
                ))),
            };
        }
        Err(Failure::new(format!("{name} is an alias of an alias, and so on")))
    }

    /// Signs and sends a request; returns the verified response.
    async fn query(
        &self,
        stream: &mut TcpStream,
        mut request: Vec<u8>,
        now: SystemTime,
    ) -> Result<Vec<u8>, Failure> {
        let tag = self.key.sign(&mut request, now);
        let len = u16::try_from(request.len()).map_err(|_| "the request is too long")?;
        let mut framed = len.to_be_bytes().to_vec();
        framed.extend(&request);
        let closed = |error: std::io::Error| format!("the connection: {error}");
        stream.write_all(&framed).await.map_err(closed)?;
        let len = stream.read_u16().await.map_err(closed)?;
        let mut response = vec![0; usize::from(len)];
        stream.read_exact(&mut response).await.map_err(closed)?;
        let message = DnsMessage::read(&response).ok_or("its response is no DNS message")?;
        if message.id.to_be_bytes() != request[..2] {
            return Err("its response is to another request".into());
        }
        self.key.verify(&message, &tag, now)?;
        Ok(response)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    /// Returns the result of an update if the server answers the first request with these bytes, or not at
    /// all.
    fn change(response: Option<&[u8]>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let response = response.map(<[u8]>::to_vec);
        let longest = Duration::from_millis(if response.is_some() { 30_000 } else { 50 });
        let (ended, end) = std::sync::mpsc::channel::<()>();
        let served = std::thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            match response {
                Some(response) => {
                    let _ = client.read(&mut [0; 512]);
                    let _ = client.write_all(&response);
                }
                None => _ = end.recv(),
            }
        });
        let key = TsigKey::parse(&[b'A'; 64], Some("k"), None).unwrap();
        let server = DnsServer { host: "127.0.0.1".into(), port, zone: None, key, wait: Duration::ZERO };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let done = server.change(true, "_acme-challenge.a.test", "value", SystemTime::now(), longest);
        let error = runtime.block_on(done).unwrap_err().to_string();
        drop(ended);
        served.join().unwrap();
        assert!(error.starts_with(&format!("the DNS server 127.0.0.1:{port}: ")), "{error}");
        error
    }

    #[test]
    fn silent_or_invalid_dns_server_is_reported() {
        assert!(change(None).contains("no response within 0.05 s"));
        assert!(change(Some(b"")).contains("the connection: "));
        assert!(change(Some(b"\xff\xff short")).contains("the connection: "));
        assert!(change(Some(b"\0\x0cHTTP/1.1 400")).contains("no DNS message"));
        // A response without a question.
        assert!(change(Some(b"\0\x0c\0\0\x80\0\0\0\0\0\0\0\0\0")).contains("another request"));
    }
}
