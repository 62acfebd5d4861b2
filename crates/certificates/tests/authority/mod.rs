//! An ACME authority that issues for every name without validation, and breaks the rule that its mode names.
#![allow(clippy::unwrap_used, reason = "support of tests")]

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use data_encoding::BASE64URL_NOPAD;
use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, PublicKeyData,
    SanType, SubjectPublicKeyInfo,
};
use serde_json::{Value, json};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer;

/// State of the authority, shared with its threads.
struct AuthorityState {
    /// `https://localhost:PORT`.
    base: String,
    /// The same for a port without TLS, which counts connections.
    plain: String,
    mode: Mutex<&'static str>,
    counts: Mutex<HashMap<String, usize>>,
    /// Name of the last order.
    name: Mutex<String>,
    /// Public key of the last request for a certificate.
    requested: Mutex<Option<Vec<u8>>>,
    issuer: Issuer<'static, KeyPair>,
}

/// A running authority; its threads end with the test.
pub(crate) struct MockAuthority {
    state: Arc<AuthorityState>,
    pub(crate) root_pem: String,
}

impl MockAuthority {
    pub(crate) fn start() -> MockAuthority {
        let key = KeyPair::generate().unwrap();
        let mut parameters = CertificateParams::default();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let root_pem = parameters.self_signed(&key).unwrap().pem();
        let issuer = Issuer::new(parameters, key);
        let key = KeyPair::generate().unwrap();
        let own = CertificateParams::new(["localhost".to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let key = rustls::pki_types::PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![own.der().clone()], key)
            .unwrap();
        let tls = Arc::new(tls);
        let [encrypted, plain] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let port = |listener: &TcpListener| listener.local_addr().unwrap().port();
        let state = Arc::new(AuthorityState {
            base: format!("https://localhost:{}", port(&encrypted)),
            plain: format!("http://127.0.0.1:{}", port(&plain)),
            mode: Mutex::new("honest"),
            counts: Mutex::default(),
            name: Mutex::default(),
            requested: Mutex::default(),
            issuer,
        });
        let theirs = state.clone();
        std::thread::spawn(move || plain.incoming().for_each(|_| theirs.count("plain")));
        let theirs = state.clone();
        std::thread::spawn(move || {
            for client in encrypted.incoming() {
                let (state, tls) = (theirs.clone(), tls.clone());
                std::thread::spawn(move || state.serve(client.unwrap(), tls));
            }
        });
        MockAuthority { state, root_pem }
    }

    pub(crate) fn directory(&self) -> String {
        format!("{}/dir", self.state.base)
    }

    /// Sets the rule to break.
    pub(crate) fn set_mode(&self, mode: &'static str) {
        *self.state.mode.lock().unwrap() = mode;
    }

    /// Number of requests for paths that begin with this segment; of connections without TLS for `plain`.
    pub(crate) fn count(&self, path: &str) -> usize {
        self.state.counts.lock().unwrap().get(path).copied().unwrap_or_default()
    }
}

/// Status, header fields and body of a response.
type MockResponse = (u16, Vec<(&'static str, String)>, Vec<u8>);

impl AuthorityState {
    fn count(&self, path: &str) {
        *self.counts.lock().unwrap().entry(path.to_owned()).or_default() += 1;
    }

    fn serve(&self, client: TcpStream, tls: Arc<rustls::ServerConfig>) {
        let connection = rustls::ServerConnection::new(tls).unwrap();
        let mut client = BufReader::new(rustls::StreamOwned::new(connection, client));
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            // The client may have closed the connection.
            if client.read_line(&mut head).unwrap_or_default() == 0 {
                return;
            }
        }
        let length = head
            .lines()
            .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
        let mut body = vec![0; length.unwrap_or(0)];
        client.read_exact(&mut body).unwrap();
        let sent: Value = serde_json::from_slice(&body).unwrap_or_default();
        let payload = sent["payload"].as_str().map(|text| BASE64URL_NOPAD.decode(text.as_bytes()).unwrap());
        let payload = serde_json::from_slice(&payload.unwrap_or_default()).unwrap_or_default();
        let path = head.split(' ').nth(1).unwrap();
        let folder = path[1..].find('/').map_or(path, |len| &path[..=len]);
        self.count(folder);
        let (status, fields, body) = self.response(path, &payload);
        let mut text =
            format!("HTTP/1.1 {status} X\r\nReplay-Nonce: nonce\r\nContent-Length: {}\r\n", body.len());
        fields.iter().for_each(|(name, value)| text += &format!("{name}: {value}\r\n"));
        text += "\r\n";
        let mut bytes = text.into_bytes();
        if !head.starts_with("HEAD") {
            bytes.extend(body);
        }
        let client = client.get_mut();
        let _ = client.write_all(&bytes);
        client.conn.send_close_notify();
        let _ = client.flush();
    }

    fn response(&self, path: &str, payload: &Value) -> MockResponse {
        let mode = *self.mode.lock().unwrap();
        let (base, plain) = (&self.base, &self.plain);
        let of = |path: &str| format!("{base}{path}");
        let foreign =
            |wanted: &str, path: &str| format!("{}{path}", if mode == wanted { plain } else { base });
        let json = |status: u16, fields: Vec<(&'static str, String)>, value: Value| {
            (status, fields, value.to_string().into_bytes())
        };
        let name = self.name.lock().unwrap().clone();
        let order = |status: &str| {
            let mut authorizations = vec![foreign("authorization over HTTP", "/authorization")];
            if mode == "many authorizations" {
                authorizations.extend((0..20_000).map(|number| of(&format!("/authorization/{number}"))));
            }
            json!({
                "status": status, "authorizations": authorizations,
                "finalize": foreign("finalize over HTTP", "/finalize"),
                "certificate": foreign("certificate over HTTP", "/certificate"),
            })
        };
        let soon = ("Retry-After", if mode == "endless wait" { u64::MAX } else { 0 }.to_string());
        if mode == path {
            return (307, vec![("Location", format!("{plain}{path}"))], Vec::new());
        }
        match path {
            "/dir" => {
                let nonce = if mode == "nonce of no URL" {
                    "no URL".into()
                } else {
                    foreign("nonce over HTTP", "/nonce")
                };
                json(
                    200,
                    vec![],
                    json!({
                        "newNonce": nonce, "newAccount": of("/account"), "newOrder": foreign("order over HTTP", "/order"),
                        "renewalInfo": foreign("window over HTTP", "/window"),
                    }),
                )
            }
            "/nonce" => (200, vec![], Vec::new()),
            "/account" => json(201, vec![("Location", of("/account/1"))], json!({ "status": "valid" })),
            "/order" => {
                *self.name.lock().unwrap() = payload["identifiers"][0]["value"].as_str().unwrap().to_owned();
                *self.requested.lock().unwrap() = None;
                let mut order = order("pending");
                order["replaces"] = payload["replaces"].clone();
                json(201, vec![("Location", foreign("location over HTTP", "/order/1"))], order)
            }
            "/order/1" if mode == "endless wait" => json(200, vec![soon], order("pending")),
            "/order/1" if self.requested.lock().unwrap().is_none() => json(200, vec![soon], order("ready")),
            "/order/1" => json(200, vec![soon], order("valid")),
            "/challenge" => json(
                200,
                vec![],
                json!({
                    "type": "http-01", "url": of("/challenge"), "token": "token", "status": "processing"
                }),
            ),
            "/finalize" => {
                let request = BASE64URL_NOPAD.decode(payload["csr"].as_str().unwrap().as_bytes()).unwrap();
                let (_, request) = X509CertificationRequest::from_der(&request).unwrap();
                let key = request.certification_request_info.subject_pki.raw.to_vec();
                *self.requested.lock().unwrap() = Some(key);
                json(200, vec![], order("processing"))
            }
            "/certificate" => (200, vec![], self.issue(mode, &name).into_bytes()),
            _ if path.starts_with("/authorization") => {
                let name = if mode == "another authorization" { "victim.komainu-test.com" } else { &name };
                let token = if mode == "token of a path" { "../../x\r\n" } else { "token" };
                let token = if mode == "long token" { "t".repeat(201) } else { token.to_owned() };
                json(
                    200,
                    vec![],
                    json!({
                        "status": "pending", "identifier": { "type": "dns", "value": name },
                        "wildcard": mode == "wildcard authorization",
                        "challenges": [{
                            "type": "http-01", "url": foreign("challenge over HTTP", "/challenge"), "token": token,
                            "status": "pending"
                        }],
                    }),
                )
            }
            _ if path.starts_with("/window") => json(
                200,
                vec![soon],
                json!({
                    "suggestedWindow": { "start": "2020-01-01T00:00:00Z", "end": "2020-01-02T00:00:00Z" }
                }),
            ),
            _ => (404, vec![], Vec::new()),
        }
    }

    /// Returns a chain that begins yesterday and ends in 90 days, unless the mode says otherwise.
    fn issue(&self, mode: &str, name: &str) -> String {
        const HOUR: Duration = Duration::from_secs(3_600);
        let key = self.requested.lock().unwrap().clone().unwrap();
        let key = SubjectPublicKeyInfo::from_der(&key).unwrap();
        let names = match mode {
            "another name" => vec!["victim.komainu-test.com".to_owned()],
            "no name" => vec![],
            "more names" => vec![name.to_owned(), "*.com".to_owned()],
            _ => vec![name.to_owned()],
        };
        let mut parameters = CertificateParams::new(names).unwrap();
        if mode == "mail address" {
            parameters.subject_alt_names.push(SanType::Rfc822Name("a@komainu-test.com".try_into().unwrap()));
        }
        let now = SystemTime::now();
        let (begins, ends) = match mode {
            "ended" => (now - 24 * HOUR, now - 12 * HOUR),
            "ends soon" => (now - 24 * HOUR, now + HOUR / 2),
            "begins later" => (now + 240 * HOUR, now + 2_160 * HOUR),
            _ => (now - 24 * HOUR, now + 2_160 * HOUR),
        };
        (parameters.not_before, parameters.not_after) = (begins.into(), ends.into());
        if mode == "an authority" {
            parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        }
        if mode == "for clients" {
            parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        }
        parameters.use_authority_key_identifier_extension = true;
        let other = KeyPair::generate().unwrap();
        let key: &dyn PublicKeyData = if mode == "another key" { &other } else { &key };
        let pem = parameters.signed_by(&key, &self.issuer).unwrap().pem();
        match mode {
            "text" => format!("garbage\n{pem}"),
            "a key" => pem + "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
            "broken chain" => pem + "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
            "cut chain" => format!("{pem}-----BEGIN CERTIFICATE-----\nAAAA\n"),
            "long chain" => pem.repeat(11),
            "empty chain" => String::new(),
            _ => pem,
        }
    }
}
