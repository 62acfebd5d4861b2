//! Directives of TLS with clients.

use serde_json::json;
use settings::checker::{Checker, InvalidValue};
use settings::directive_table::{brief, table};
use settings::directives;
use settings::node::{Node, NodeData};
use settings::shape::{Flag, Maybe, OneOrMore, PathShape, Shape, ShapeKind, Text, Toggle, Word};
use shapes::pattern::ValuePattern;
use std::path::PathBuf;

/// The oldest version of TLS that clients may speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsVersion {
    /// TLS 1.2 and 1.3.
    Tls12,
    /// TLS 1.3 alone.
    Tls13,
}

/// Source of a site's certificates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CertificateSource {
    /// The server obtains them, and renews them.
    Auto,
    /// Files, or folders of them.
    Files(Vec<PathBuf>),
}

impl Default for CertificateSource {
    /// None: no file can hold it, as the directive is required.
    fn default() -> Self {
        Self::Files(Vec::new())
    }
}

directives! {
    /// TLS with clients: what holds for every site. X25519MLKEM768 is the first choice of key exchange, AES-128-GCM of ciphers;
    /// ChaCha20-Poly1305 for clients that put it first. Data before the end of the handshake (0-RTT) is not accepted.
    ///
    /// ```toml
    /// [tls]
    /// min = "1.3"
    /// ticket_keys = ["/etc/komainu/ticket.key", "/etc/komainu/ticket-before.key"]
    /// ```
    Tls in "`[tls]`" {
        /// The oldest version that clients may speak: `"1.2"` or `"1.3"`.
        "min" min: TlsVersion = "1.2", Word(&[("1.2", TlsVersion::Tls12), ("1.3", TlsVersion::Tls13)]);
        /// The `tls` of sites that have none of their own, and of routes at the top of the file: one certificate, or a folder of
        /// certificates, for all.
        "default" default_site: Option<SiteTls> = absent("`\"auto\"` for sites with a host name or IP address, where an address in `listen` speaks TLS; else none"), site_tls();
        /// Whether clients may use HTTP/3 at addresses with TLS; `http3` of an address in `listen` decides otherwise there.
        "http3" http3: bool = true, Flag;
        /// Whether clients resume their sessions, by tickets and by session IDs: a connection then costs a fraction of the first
        /// one's work.
        "tickets" tickets: bool = true, Flag;
        /// Files from which the keys of session tickets are derived, each of at least 32 random bytes
        /// (`openssl rand -out ticket.key 48`). Servers that share them resume each other's sessions, and so
        /// does a server after a restart. The keys change every 12 hours by themselves. New tickets are made
        /// with the first file; tickets of the others are still accepted. Anyone who reads such a file can
        /// decrypt recorded connections that used tickets, except for their TLS 1.3 key exchange: keep it
        /// secret, and replace it regularly.
        "ticket_keys" ticket_keys: Vec<PathBuf> = absent("keys of this process alone, which end with it"),
            OneOrMore(PathShape("a file"));
    }
}

directives! {
    /// TLS of a site. `"auto"`, a file or a folder is shorthand for `{ certificate = … }`.
    ///
    /// ```toml
    /// listen = [":80", ":443"]
    ///
    /// [[site]]
    /// hosts = ["example.com"]
    /// tls   = { certificate = "/etc/ssl/example.com.pem", key = "/etc/ssl/example.com.key" }
    ///
    /// [[site.route]]
    /// files = "public"
    /// ```
    ///
    /// The host that the client requests (SNI) selects the site, whose certificate is sent. If the site has
    /// several, one for the host is used whose signature algorithm (ECDSA, RSA) the client can verify. Hosts
    /// that no site has belong to the default site; if that has no `tls`, such clients are refused
    /// (`unrecognized_name`). On a reload the files are read again.
    SiteTls in "`tls` of a site", check site_tls_agrees {
        /// `"auto"`, or files in PEM: the certificate, followed by its intermediate certificates; the same
        /// file may contain the private key. Or folders: every `NAME.pem` or `NAME.crt` in them with its
        /// `NAME.key`, and `fullchain.pem` with `privkey.pem`, as certbot names them.
        "certificate" certificate: CertificateSource = required(""), Certificates;
        /// The private keys, in the order of the certificates: PEM, in PKCS #8, SEC1 or PKCS #1, without a passphrase.
        "key" key: Vec<PathBuf> = absent("in the files of the certificates"), OneOrMore(PathShape("a file"));
        /// Certificates that clients show.
        "client" client: Option<ClientTls> = absent("clients are not asked for one"), Maybe(brief::<ClientTls>("ca"));
        /// A name that sites of the same owner share. A request for this site is answered 421 if the client has named (SNI) a host
        /// of a site with another `scope`, or none. Browsers ask for several hosts on one connection if a certificate is for them
        /// all, and make another connection after such an answer.
        "scope" scope: Option<String> = absent("the name that the client has sent does not matter"),
            Maybe(Text { what: "a name", parse: parse_scope });
    }
}

impl SiteTls {
    /// Whether the server obtains the certificates.
    pub fn is_automatic(&self) -> bool {
        self.certificate == CertificateSource::Auto
    }
}

directives! {
    /// Client certificates. The file of the authority alone is shorthand for `ca`.
    ///
    /// ```toml
    /// [[site]]
    /// hosts = ["admin.example.com"]
    ///
    /// [site.tls]
    /// certificate = "admin.pem"
    /// client = { ca = "staff-ca.pem", crl = "staff.crl", required = true }
    ///
    /// [[site.route]]
    /// files = "admin"
    /// ```
    ///
    /// Header values may contain properties of the certificate: `$tls_client_verify` (`SUCCESS` or `NONE`),
    /// `$tls_client_subject`, `$tls_client_issuer`, `$tls_client_san`, `$tls_client_serial` and
    /// `$tls_client_fingerprint` (SHA-256). A request for this site on a connection that was made for a site
    /// with other requirements is answered 421.
    ClientTls in "`client` of a site's `tls`" {
        /// Certificates (PEM) of the authorities that sign them.
        "ca" ca: Vec<PathBuf> = required(""), OneOrMore(PathShape("a file"));
        /// Whether a client without one is refused. Otherwise the site's handlers decide by the variables.
        "required" required: bool = true, Flag;
        /// Whether any certificate, or none, lets a client in, whatever `required` says. Clients are asked for one, and nothing of it is
        /// used: `$tls_client_verify` is `NONE`.
        "unverified" unverified: bool = false, Flag;
        /// Subjects of certificates; requests with another one, or without a certificate, get 403. A text, in which `*` matches any
        /// run of characters, or `"~ REGEX"`, which is found anywhere: `"~ CN=(alice|bob)(,|$)"`.
        "subject" subject: Option<ValuePattern> = absent("every subject"),
            Maybe(Text { what: "a subject such as \"CN=alice\", or \"~ REGEX\"", parse: ValuePattern::parse });
        /// Certificate revocation lists (PEM) of the authorities.
        "crl" crl: Vec<PathBuf> = absent("none is revoked"), OneOrMore(PathShape("a file"));
    }
}

fn parse_scope(text: &str) -> Result<String, InvalidValue> {
    if text.is_empty() { Err(InvalidValue::new("an empty name", "")) } else { Ok(text.to_owned()) }
}

/// Returns the shape of a site's `tls`.
pub fn site_tls() -> impl Shape<Out = Option<SiteTls>> {
    SiteTlsValueShape(Toggle { on: None, off: || None, shape: Maybe(brief::<SiteTls>("certificate")) })
}

/// Words that people write for certificates that are obtained.
const AUTO_WORDS: [&str; 8] =
    ["auto", "automatic", "on", "true", "yes", "acme", "letsencrypt", "let's encrypt"];
const AUTO_HELP: &str =
    "write `tls = \"auto\"` to have certificates obtained, or `tls = { certificate = \"…\", key = \"…\" }`";

/// Shape of a site's `tls`; rejects `true`, which names no certificate.
struct SiteTlsValueShape<S>(S);

impl<S: Shape> Shape for SiteTlsValueShape<S> {
    type Out = S::Out;

    fn kind(&self) -> ShapeKind {
        self.0.kind()
    }

    fn read(&self, node: &Node, check: &mut Checker) -> Option<S::Out> {
        if let NodeData::Flag(true) = node.data {
            check.report_invalid(&node.span, "this is true").help(AUTO_HELP);
            return None;
        }
        self.0.read(node, check)
    }
}

/// Shape of `[tls]`; explains values that belong to a site's `tls`.
pub struct ServerTlsShape;

impl Shape for ServerTlsShape {
    type Out = Tls;

    fn kind(&self) -> ShapeKind {
        table::<Tls>().kind()
    }

    fn read(&self, node: &Node, check: &mut Checker) -> Option<Tls> {
        if let NodeData::Flag(_) | NodeData::Text(_) = node.data {
            let finding = check.report_type_mismatch(node, &self.kind().text);
            finding.help("certificates are a site's: put `tls = \"auto\"` or `tls = { certificate = \"…\", key = \"…\" }` into a `[[site]]`");
            return None;
        }
        table().read(node, check)
    }
}

/// "auto", or files and folders.
struct Certificates;

impl Shape for Certificates {
    type Out = CertificateSource;

    fn kind(&self) -> ShapeKind {
        let text = "\"auto\", a file or folder, or a list of such";
        let path = json!({ "type": "string", "minLength": 1 });
        ShapeKind::new(text, json!({ "anyOf": [path, { "type": "array", "items": path, "minItems": 1 }] }))
    }

    fn read(&self, node: &Node, check: &mut Checker) -> Option<CertificateSource> {
        match &node.data {
            NodeData::Text(text) if text == "auto" => Some(CertificateSource::Auto),
            NodeData::Text(text) if AUTO_WORDS.contains(&text.to_ascii_lowercase().as_str()) => {
                check.report_invalid(&node.span, "this is not a file").help(AUTO_HELP);
                None
            }
            _ => OneOrMore(PathShape("a file or folder")).read(node, check).map(CertificateSource::Files),
        }
    }
}

/// Checks that there are as many keys as certificates, if keys are given.
fn site_tls_agrees(tls: &mut SiteTls, node: &Node, check: &mut Checker) {
    let Some(key) = node.entry("key") else { return };
    let title = match &tls.certificate {
        CertificateSource::Auto => "`key` beside `certificate = \"auto\"`".to_owned(),
        CertificateSource::Files(files) if files.len() != tls.key.len() => {
            format!("{} keys for {} certificates", tls.key.len(), files.len())
        }
        CertificateSource::Files(_) => return,
    };
    let finding = check.error(&key.value.span, title, "of which certificate?");
    finding.help("give one key for each certificate, in the same order, or none where the files hold both");
}
