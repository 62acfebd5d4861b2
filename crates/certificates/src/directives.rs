//! Directives of certificates that the server obtains (ACME, RFC 8555).

use data_encoding::BASE64URL_NOPAD;
use settings::checker::{Checker, InvalidValue};
use settings::directive_table::{brief, table};
use settings::directives;
use settings::node::Node;
use settings::shape::{Maybe, OneOrMore, PathShape, Text, Time, Word};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Challenge with which the server proves control of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AcmeChallenge {
    /// A file served on port 80 (RFC 8555 section 8.3).
    Http01,
    /// A certificate served on port 443 (RFC 8737).
    TlsAlpn01,
    /// A TXT record (RFC 8555 section 8.4).
    Dns01,
}

/// Address of a DNS server.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DnsAddress {
    /// Name or IP address, without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

/// Names of directories, and their URLs.
const KNOWN_DIRECTORIES: [(&str, &str); 2] = [
    ("letsencrypt", "https://acme-v02.api.letsencrypt.org/directory"),
    ("letsencrypt-staging", "https://acme-staging-v02.api.letsencrypt.org/directory"),
];
const PROFILE: Text<String> = Text { what: "a profile such as \"shortlived\"", parse: profile };

directives! {
    /// Automatic certificates (ACME), for sites with `tls = "auto"`. Using a directory means agreeing to the
    /// terms of its certificate authority.
    ///
    /// ```toml
    /// [acme]
    /// email = "admin@example.com"
    /// directory = [
    ///     "letsencrypt",
    ///     { url = "https://acme.example.net/directory", eab = { id = "kid", key = "c2VjcmV0LXNlY3JldA" } },
    /// ]
    /// ```
    ///
    /// Each name has a certificate of its own. It is renewed after two thirds of its lifetime, or when the
    /// authority says (RFC 9773). Public authorities do not issue for `localhost`, for names below `test`,
    /// `local`, `internal` and `home.arpa`, or for addresses of private networks. These get certificates of a
    /// local authority: see `komainu trust`.
    Acme in "`[acme]`", check acme_agrees {
        /// Directories of authorities: `"letsencrypt"`, `"letsencrypt-staging"` (for tests: browsers do not trust it), or a
        /// URL. With several, the next one is tried where one fails.
        "directory" directories: Vec<AcmeDirectory> = ["letsencrypt"], OneOrMore(brief::<AcmeDirectory>("url"));
        /// Contact address of the account, to which the authority may write.
        "email" email: Option<String> = absent("none"),
            Maybe(Text { what: "an address such as \"admin@example.com\"", parse: email });
        /// The account at the authority that the server's account is bound to, for directories without an `eab` of their own.
        "eab" eab: Option<ExternalAccountBinding> = absent("none"), Maybe(table::<ExternalAccountBinding>());
        /// The profile of certificates, for directories without a `profile` of their own: at Let's Encrypt `"tlsserver"`,
        /// or `"shortlived"` for six days.
        "profile" profile: Option<String> = absent("what the authority chooses"), Maybe(PROFILE);
        /// Challenges that prove control of a name: `"http-01"` needs port 80, `"tls-alpn-01"` port 443, and
        /// `"dns-01"` `dns` or `dns_hook`. After a failure the next one is tried. Wildcards need `"dns-01"`.
        "challenge" challenges: Vec<AcmeChallenge> = absent("all that the addresses in `listen`, `dns` and `dns_hook` allow"),
            OneOrMore(Word(&[
                ("http-01", AcmeChallenge::Http01),
                ("tls-alpn-01", AcmeChallenge::TlsAlpn01),
                ("dns-01", AcmeChallenge::Dns01),
            ]));
        /// The DNS server that sets TXT records, by dynamic update (RFC 2136).
        "dns" dns: Option<AcmeDns> = absent("none"), Maybe(table::<AcmeDns>());
        /// Command that sets TXT records, if `dns` does not: a program, or a list of it and its arguments. It
        /// is called with `add` or `remove`, the record's name and its value. It must exit only when the
        /// authority can see the change.
        "dns_hook" dns_hook: Vec<String> = absent("none"),
            OneOrMore(Text { what: "a command such as \"/etc/komainu/dns-hook\"", parse: word });
        /// URL that confirms names that clients request and no site lists, for sites with `tls = "auto"` and
        /// a wildcard host or no hosts. It is requested with `?domain=NAME`. If the status is 200 to 299, a
        /// certificate for the name is obtained and kept. Other responses are remembered for a minute. At
        /// most 20 requests a second are made, and at most 10,000 names are kept.
        "ask" ask: Option<String> = absent("certificates are obtained for the hosts of sites alone"),
            Maybe(Text { what: "a URL such as \"http://127.0.0.1:9000/check\"", parse: parse_ask_url });
        /// The folder of accounts, keys and certificates. The server's user writes to it. Servers that share it order each
        /// certificate once.
        "state" state: Option<PathBuf> =
            absent("$STATE_DIRECTORY, or /var/lib/komainu started as root, or else ~/.local/state/komainu"),
            Maybe(PathShape("a folder"));
        /// Certificates (PEM) that are trusted for directories, besides those that the system trusts.
        "ca" ca: Option<PathBuf> = absent("none"), Maybe(PathShape("a file"));
    }
}

directives! {
    /// A directory of an authority. A URL alone is shorthand for `url`.
    AcmeDirectory in "`directory` of `[acme]`" {
        /// `"letsencrypt"`, `"letsencrypt-staging"`, or a URL.
        "url" url: String = required(""),
            Text { what: "\"letsencrypt\" or a URL such as \"https://acme.example.net/directory\"", parse: parse_directory };
        /// The account at the authority that the server's account is bound to (RFC 8555 section 7.3.4).
        "eab" eab: Option<ExternalAccountBinding> = absent("that of `[acme]`"), Maybe(table::<ExternalAccountBinding>());
        /// The profile of certificates.
        "profile" profile: Option<String> = absent("that of `[acme]`"), Maybe(PROFILE);
    }
}

impl AcmeDirectory {
    /// A directory at a URL.
    pub fn at(url: impl Into<String>) -> AcmeDirectory {
        AcmeDirectory { url: url.into(), ..AcmeDirectory::default() }
    }
}

directives! {
    /// A DNS server that accepts changes of its zones (RFC 2136), such as BIND, Knot and PowerDNS, and the key that they are
    /// signed with (TSIG, RFC 8945). It is reached by TCP.
    ///
    /// ```toml
    /// [acme]
    /// dns = { server = "ns1.example.com", secret_file = "/etc/komainu/dns.key" }
    /// ```
    ///
    /// `tsig-keygen komainu > dns.key` makes such a file for BIND, whose configuration includes it and has
    /// `update-policy { grant komainu zonesub TXT; };` in the zone.
    AcmeDns in "`dns` of `[acme]`" {
        /// Primary server of the zone: a name or an IP address, with its port if it is not 53.
        "server" server: DnsAddress = required(""),
            Text { what: "a server such as \"ns1.example.com\" or \"192.0.2.1:5353\"", parse: dns_address };
        /// File of the key: the secret in base64, or a `key` statement as `tsig-keygen` prints it, which
        /// contains the key's name and algorithm too.
        "secret_file" secret_file: PathBuf = required(""), PathShape("a file");
        /// The key's name.
        "key" key: Option<String> = absent("as `secret_file` says"), Maybe(Text { what: "a key's name", parse: word });
        /// The key's algorithm.
        "algorithm" algorithm: Option<&'static str> = absent("as `secret_file` says, or \"hmac-sha256\""),
            Maybe(Word(&[
                ("hmac-sha224", "hmac-sha224"),
                ("hmac-sha256", "hmac-sha256"),
                ("hmac-sha384", "hmac-sha384"),
                ("hmac-sha512", "hmac-sha512"),
            ]));
        /// The zone of the records.
        "zone" zone: Option<String> = absent("as the server says"), Maybe(Text { what: "a zone such as \"example.com\"", parse: word });
        /// Time between a change and the authority's check. By then the zone's other servers must have the
        /// change.
        "wait" wait: Duration = "10s", Time { min: Duration::ZERO, max: Duration::from_secs(3_600) };
    }
}

directives! {
    /// An account at an authority, as it shows it to its customers.
    ExternalAccountBinding in "`eab` of `[acme]`" {
        /// The key's identifier.
        "id" id: String = required(""), Text { what: "a key identifier", parse: word };
        /// The HMAC key, in base64url: a secret.
        "key" key: MacKey = required(""), Text { what: "a key in base64url", parse: mac_key };
    }
}

/// The HMAC key of an account, which `Debug` does not show.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct MacKey(pub Vec<u8>);

impl std::fmt::Debug for MacKey {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("MacKey(..)")
    }
}

fn mac_key(text: &str) -> Result<MacKey, InvalidValue> {
    base64(text).map(MacKey)
}

/// DNS-01 needs its command, which may be given relative to the file's folder.
fn acme_agrees(acme: &mut Acme, node: &Node, check: &mut Checker) {
    if let Some(program) = acme.dns_hook.first_mut()
        && program.contains('/')
        && !Path::new(program).is_absolute()
    {
        *program = check.resolve_path(program).to_string_lossy().into_owned();
    }
    let is_dns = acme.challenges.contains(&AcmeChallenge::Dns01);
    let dns = node.entry("dns");
    let hook = node.entry("dns_hook");
    if let (Some(_), Some(hook)) = (dns, hook) {
        let finding = check.error(
            &hook.key_span,
            "`dns_hook` beside `dns`".to_owned(),
            "which of them sets the records?",
        );
        finding.help("keep one of them");
    }
    match (node.entry("challenge"), dns.or(hook)) {
        (Some(entry), None) if is_dns => {
            let title = "`dns-01` without `dns` and `dns_hook`".to_owned();
            let finding = check.error(&entry.value.span, title, "who sets the records?");
            finding.help(
                "write `dns = { server = \"ns1.example.com\", secret_file = \"/etc/komainu/dns.key\" }`, or \
                 `dns_hook = \"/etc/komainu/dns-hook\"`: a command that sets TXT records",
            );
        }
        (Some(_), Some(entry)) if !is_dns => {
            let name = if dns.is_some() { "dns" } else { "dns_hook" };
            let title = format!("`{name}` without `dns-01`");
            let finding = check.warning(&entry.key_span, title, "nothing uses this");
            finding.help("add \"dns-01\" to `challenge`, or leave `challenge` out");
        }
        _ => {}
    }
}

/// A host name or IP address, with a port or without.
fn dns_address(text: &str) -> Result<DnsAddress, InvalidValue> {
    let wrong = || {
        InvalidValue::new(
            "this is not an address of a server",
            "write \"ns1.example.com\", \"192.0.2.1:5353\" or \"[2001:db8::1]:53\"",
        )
    };
    let is_v6 = text.parse::<std::net::Ipv6Addr>().is_ok();
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !is_v6 => (host, port.parse().ok().filter(|port| *port > 0).ok_or_else(wrong)?),
        _ => (text, 53),
    };
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let is_bare_v6 = bare.is_some_and(|bare| bare.parse::<std::net::Ipv6Addr>().is_ok());
    let is_name =
        !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
    if is_v6 || is_bare_v6 || is_name {
        Ok(DnsAddress { host: bare.unwrap_or(host).to_owned(), port })
    } else {
        Err(wrong())
    }
}

fn parse_directory(text: &str) -> Result<String, InvalidValue> {
    if let Some((_, url)) = KNOWN_DIRECTORIES.iter().find(|(name, _)| *name == text) {
        return Ok((*url).to_owned());
    }
    let remedy = "write \"letsencrypt\", \"letsencrypt-staging\", or the URL of a directory, which begins with https://";
    let Some(rest) = text.strip_prefix("https://") else {
        return Err(InvalidValue::new("this is not a directory", remedy));
    };
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if !host.is_empty() && !host.contains('@') && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        Ok(text.to_owned())
    } else {
        Err(InvalidValue::new("this is no URL of a directory", remedy))
    }
}

fn parse_ask_url(text: &str) -> Result<String, InvalidValue> {
    let remedy = "write a URL such as \"http://127.0.0.1:9000/check\"";
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    let host = rest.and_then(|rest| rest.split(['/', '?', '#']).next()).unwrap_or_default();
    let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic()) && !text.contains('#');
    if !host.is_empty() && !host.contains('@') && is_plain {
        Ok(text.to_owned())
    } else {
        Err(InvalidValue::new("this is no URL to ask", remedy))
    }
}

fn email(text: &str) -> Result<String, InvalidValue> {
    let bare = text.strip_prefix("mailto:").unwrap_or(text);
    let is_address = bare.split_once('@').is_some_and(|(user, host)| !user.is_empty() && host.contains('.'));
    // A comma would make it two, a question mark fields of a message (RFC 6068).
    let is_plain = bare.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b',' | b'?'));
    if is_address && is_plain {
        Ok(bare.to_owned())
    } else {
        Err(InvalidValue::new("this is not an e-mail address", "write one such as \"admin@example.com\""))
    }
}

fn profile(text: &str) -> Result<String, InvalidValue> {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if !text.is_empty() && text.len() <= 100 && text.bytes().all(is_word) {
        Ok(text.to_owned())
    } else {
        Err(InvalidValue::new("this is not a profile", "write a word such as \"shortlived\""))
    }
}

fn word(text: &str) -> Result<String, InvalidValue> {
    if text.is_empty() || text.contains('\0') {
        Err(InvalidValue::new("an empty word, or one with a NUL", ""))
    } else {
        Ok(text.to_owned())
    }
}

/// Base64, of both alphabets, with or without padding (RFC 4648 sections 4 and 5).
fn base64(text: &str) -> Result<Vec<u8>, InvalidValue> {
    let wrong = || {
        InvalidValue::new(
            "this is not a key in base64url, or a very short one",
            "copy the key as the authority shows it",
        )
    };
    // One alphabet, the other's last two letters replaced.
    let text = text.trim_end_matches('=').replace('+', "-").replace('/', "_");
    let bytes = BASE64URL_NOPAD.decode(text.as_bytes()).map_err(|_| wrong())?;
    if bytes.len() < 8 { Err(wrong()) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acme_values_are_validated() {
        assert!(parse_directory("letsencrypt").unwrap().starts_with("https://acme-v02."));
        assert_eq!(parse_directory("https://127.0.0.1:14000/dir").unwrap(), "https://127.0.0.1:14000/dir");
        for wrong in [
            "",
            "lets-encrypt",
            "http://acme.test/dir",
            "https://",
            "https:///x",
            "https://a b/",
            "https://u@h/",
        ] {
            assert!(parse_directory(wrong).unwrap_err().remedy.contains("letsencrypt"), "{wrong}");
        }
        assert!(
            parse_ask_url("http://127.0.0.1:9000/check?key=1").is_ok()
                && parse_ask_url("https://a.example").is_ok()
        );
        for wrong in ["", "127.0.0.1:9000", "http://", "ftp://a", "http://a b", "http://u@a/", "http://a/#x"]
        {
            assert!(parse_ask_url(wrong).is_err(), "{wrong}");
        }
        assert_eq!(email("mailto:a@b.c").unwrap(), "a@b.c");
        for wrong in ["", "a", "@b.c", "a@b", "a b@c.d", "a@b.c,d@e.f", "a@b.c?cc=d@e.f"] {
            assert!(email(wrong).is_err(), "{wrong}");
        }
        assert_eq!(base64("AAECAwQFBgcI-_8").unwrap(), [0, 1, 2, 3, 4, 5, 6, 7, 8, 251, 255]);
        assert_eq!(base64("AAECAwQFBgcI+/8=").unwrap(), [0, 1, 2, 3, 4, 5, 6, 7, 8, 251, 255]);
        for wrong in ["", "AAAA", "AAECAwQFBgcI-", "AAECAwQFB gcI"] {
            assert!(base64(wrong).is_err(), "{wrong}");
        }
        for (text, host, port) in [
            ("ns1.example.com", "ns1.example.com", 53),
            ("192.0.2.1:5353", "192.0.2.1", 5353),
            ("[2001:db8::1]:53", "2001:db8::1", 53),
            ("2001:db8::1", "2001:db8::1", 53),
        ] {
            assert_eq!(dns_address(text).unwrap(), DnsAddress { host: host.into(), port }, "{text}");
        }
        for wrong in ["", ":53", "a:0", "a:x", "a b", "tcp://a", "[a]", "a:70000"] {
            assert!(dns_address(wrong).is_err(), "{wrong}");
        }
        assert!(profile("short lived").is_err() && profile("").is_err() && word("").is_err());
    }
}
