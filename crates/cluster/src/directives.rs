//! The table `[cluster]`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use settings::checker::{Checker, InvalidValue};
use settings::directives;
use settings::node::Node;
use settings::shape::{Maybe, OneOrMore, PathShape, Text, Time};

use crate::address::{StoreAddress, StoreEndpoint, prefix};

/// Longest name of a server or of a Sentinel's primary.
const NAME_CHARS_MAX: usize = 100;

directives! {
    /// A set of servers that share certificates, the keys of session tickets, and purges through a Valkey or Redis
    /// server. Without it, each server is by itself.
    ///
    /// ```toml
    /// [cluster]
    /// store         = "rediss://komainu@10.0.0.5:6379"
    /// password_file = "/etc/komainu/store.password"
    /// key           = "/etc/komainu/cluster.key"
    /// ```
    ///
    /// The store is not needed to serve: certificates are also in the state folder of each server, and while the
    /// store is away, each server continues by itself. The log reports this once, and
    /// `komainu_cluster_store_up` is 0.
    ClusterTable in "`[cluster]`", check cluster_agrees {
        /// Address of the store: `redis://[USER@]HOST[:PORT][/DATABASE]`, `rediss://…` for TLS, or `unix:PATH`. With
        /// `sentinel`: the addresses of the Sentinels, which are tried in turn.
        "store" store: Vec<StoreAddress> = required(""),
            OneOrMore(Text { what: "an address such as \"redis://127.0.0.1:6379\"", parse: StoreAddress::parse });
        /// A file with the password of the store.
        "password_file" password_file: Option<PathBuf> = absent("no password"), Maybe(PathShape("a file"));
        /// Name of the primary that the Sentinels at `store` watch. The user of `store` and `password_file` are for the
        /// primary.
        "sentinel" sentinel: Option<String> = absent("no Sentinels"), Maybe(Text { what: "a name", parse: name });
        /// A file with the password of the Sentinels.
        "sentinel_password_file" sentinel_password_file: Option<PathBuf> = absent("no password"), Maybe(PathShape("a file"));
        /// A file with the authorities that may sign the certificate of the store.
        "ca" ca: Option<PathBuf> = absent("those that the system trusts"), Maybe(PathShape("a file"));
        /// A file with the certificate that the server presents to the store, and its chain.
        "certificate" certificate: Option<PathBuf> = absent("none"), Maybe(PathShape("a file"));
        /// A file with the key of `certificate`.
        "certificate_key" certificate_key: Option<PathBuf> = absent("in the file of `certificate`"), Maybe(PathShape("a file"));
        /// A file with a secret of at least 32 random bytes (`openssl rand -out cluster.key 48`), equal on all servers.
        /// Everything that is written to the store is encrypted and authenticated with it (AES-256-GCM): the store
        /// cannot read private keys, nor give the servers others.
        "key" key: Option<PathBuf> = absent("values are not encrypted"), Maybe(PathShape("a file"));
        /// Name of this server in the set. Each server needs another one.
        "name" name: Option<String> = absent("the host name"), Maybe(Text { what: "a name", parse: name });
        /// Prefix of the keys in the store. Servers with the same prefix are one set.
        "prefix" prefix: String = "komainu", Text { what: "a name", parse: prefix };
        /// Maximum time for connecting, and for each answer of the store. Then the store counts as away until it is
        /// reached again.
        "timeout" timeout: Duration = "1s", Time { min: Duration::from_millis(10), max: Duration::from_secs(60) };
        /// Maximum time that a purge waits for the other servers. Servers that have not applied it by then are named
        /// in the answer, and apply it as soon as they reach the store.
        "purge_timeout" purge_timeout: Duration = "2s", Time { min: Duration::from_millis(10), max: Duration::from_secs(60) };
        /// Address of this server for the others, which ask it for cached responses before they ask upstream servers: each
        /// response has an owner in the set. The server listens there over TLS, and admits only servers with the same
        /// `key`.
        "peers" peers: Option<SocketAddr> = absent("responses are not shared"),
            Maybe(Text { what: "an address such as \"10.0.0.1:8700\"", parse: peer_address });
        /// Maximum time for the head of another server's response. Then the upstream server is asked, and the other
        /// server is left alone for 5 seconds.
        "peer_timeout" peer_timeout: Duration = "1s", Time { min: Duration::from_millis(10), max: Duration::from_secs(60) };
    }
}

impl ClusterTable {
    /// Returns the files that the table names.
    pub fn files(&self) -> impl Iterator<Item = &PathBuf> {
        let files = [
            &self.password_file,
            &self.sentinel_password_file,
            &self.ca,
            &self.certificate,
            &self.certificate_key,
            &self.key,
        ];
        files.into_iter().flatten()
    }
}

fn name(text: &str) -> Result<String, InvalidValue> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    if (1..=NAME_CHARS_MAX).contains(&text.len()) && text.chars().all(is_name) {
        Ok(text.to_owned())
    } else {
        Err(InvalidValue::new("this is not a name", "write letters, digits, `.`, `-` and `_`: at most 100"))
    }
}

fn peer_address(text: &str) -> Result<SocketAddr, InvalidValue> {
    let address: Option<SocketAddr> = text.parse().ok();
    let address = address.filter(|address| !address.ip().is_unspecified() && address.port() > 0);
    address.ok_or_else(|| {
        InvalidValue::new(
            "this is not an address at which other servers reach this one",
            "write an IP address and a port, such as \"10.0.0.1:8700\"",
        )
    })
}

fn cluster_agrees(cluster: &mut ClusterTable, node: &Node, check: &mut Checker) {
    let is_tls = |address: &StoreAddress| matches!(address.endpoint, StoreEndpoint::Tcp { is_tls: true, .. });
    let has_tls = cluster.store.iter().any(is_tls);
    if let Some(entry) = node.entry("peers").filter(|_| cluster.key.is_none()) {
        check.error(&entry.key_span, "`peers` without `key`".to_owned(), "who may ask?").help(
            "set `key`: servers prove by it that they are of the set (`openssl rand -out cluster.key 48`)",
        );
    }
    if let Some(entry) = node.entry("peer_timeout").filter(|_| cluster.peers.is_none()) {
        check
            .error(&entry.key_span, "`peer_timeout` without `peers`".to_owned(), "no server is asked")
            .help("set `peers`, or remove it");
    }
    for tls in ["ca", "certificate", "certificate_key"] {
        if let Some(entry) = node.entry(tls).filter(|_| !has_tls) {
            let finding = check.error(&entry.key_span, format!("`{tls}` without TLS"), "no `rediss://`");
            finding.help("write \"rediss://HOST:PORT\" in `store`, or remove it");
        }
    }
    if let Some(entry) = node.entry("certificate_key").filter(|_| cluster.certificate.is_none()) {
        check
            .error(
                &entry.key_span,
                "`certificate_key` without `certificate`".to_owned(),
                "of which certificate?",
            )
            .help("name the certificate in `certificate`");
    }
    if let Some(entry) = node.entry("sentinel_password_file").filter(|_| cluster.sentinel.is_none()) {
        check
            .error(&entry.key_span, "`sentinel_password_file` without `sentinel`".to_owned(), "no Sentinels")
            .help("name the primary in `sentinel`");
    }
    if let Some(entry) = node.entry("store").filter(|_| cluster.sentinel.is_none() && cluster.store.len() > 1)
    {
        check
            .error(&entry.value.span, "several stores without `sentinel`".to_owned(), "which one is used?")
            .help("name one store; or the Sentinels, and the primary in `sentinel`");
    }
}
