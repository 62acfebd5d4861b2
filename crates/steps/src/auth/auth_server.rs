//! Authentication by an external server, like nginx's `auth_request`, Traefik's `forwardAuth` and Caddy's
//! `forward_auth`.
//!
//! The subrequest is a GET without a body over keep-alive connections. A 2xx answer admits the request and
//! may set fields that identify the client; any other answer is sent to the client. Without a usable answer
//! the request is refused.

use std::io;
use std::sync::Arc;

use admission::auth::{Auth, AuthKind};
use admission::{AuthServer, ExpiringCache, ExpiringCacheKey, SignInPart};
use aws_lc_rs::hmac;
use http::{Fields, Method, Name, Reject, Status};
use logging::Level;
use logging::notice::ErrorLog;
use net::{Exchange, Fault, MemoryBudget, Peer, Request};
use proxy::{FetchError, FetchLimits, FetchRequest, Proxy};
use reload::KeptState;
use times::{Millis, Moment};

/// Maximum size of an answer that is sent to a client, in bytes.
const ANSWER_BYTES_MAX: u64 = 256 * 1024;
/// Maximum content of a 2xx answer that is read and discarded so that its connection can be reused, in bytes.
const IGNORED_BYTES_MAX: usize = 16 * 1024;
/// Memory charged to a waiting request in addition to its connection, in bytes.
const WAITING_BYTES: usize = 16 * 1024;
/// Maximum cached answers, and their bytes, of all cores together.
const CACHED_MAX: usize = 10_000;
const CACHED_BYTES_MAX: usize = 8 * 1024 * 1024;
const UNAUTHORIZED: Status = Status::of(401).expect("three digits");
const FOUND: Status = Status::of(302).expect("three digits");

/// Authentication servers of a configuration.
#[derive(Default)]
pub(super) struct AuthServerPlan(Vec<Arc<SharedAuthServer>>);

/// Cached answers of an authentication server, shared by all cores.
pub(super) struct SharedAuthServer {
    config: Auth,
    answers: ExpiringCache<Arc<Fields>, Moment>,
    /// Key of the HMAC that identifies requests in the cache.
    secret: hmac::Key,
}

/// Authentication server of one route on one core.
pub(crate) struct RouteAuthServer {
    shared: Arc<SharedAuthServer>,
    target: String,
    /// Request fields that only the answers of this server may set.
    names: Vec<Vec<u8>>,
    /// `None` if the configuration is only being checked.
    proxy: Option<Proxy>,
    limits: FetchLimits,
    cache_time: Millis,
    notices: Option<ErrorLog>,
}

/// Answer of the authentication server.
struct AuthAnswer {
    status: Status,
    fields: Fields,
    /// Empty for a 2xx answer, whose content is discarded.
    body: Vec<u8>,
}

impl AuthServerPlan {
    pub(super) fn new(
        auths: &[&Auth],
        kept: &mut KeptState,
        memory: &MemoryBudget,
    ) -> io::Result<AuthServerPlan> {
        let mut plan = AuthServerPlan::default();
        for &auth in auths {
            if !matches!(auth.kind(), Some(AuthKind::Server(_))) || plan.of(auth).is_some() {
                continue;
            }
            let is_unchanged = |shared: &Arc<SharedAuthServer>| shared.config == *auth;
            let make = || SharedAuthServer::new(auth, memory).map(Arc::new);
            plan.0.push(kept.try_keep_if((), is_unchanged, make)?);
        }
        Ok(plan)
    }

    pub(super) fn of(&self, auth: &Auth) -> Option<Arc<SharedAuthServer>> {
        self.0.iter().find(|shared| shared.config == *auth).cloned()
    }
}

impl SharedAuthServer {
    fn new(auth: &Auth, memory: &MemoryBudget) -> io::Result<SharedAuthServer> {
        let secret = hmac::Key::generate(hmac::HMAC_SHA256, &aws_lc_rs::rand::SystemRandom::new());
        let secret = secret.map_err(|_| io::Error::other("the system has no random numbers"))?;
        let memory = memory.clone();
        let account = Arc::new(move |before, after| memory.change(before, after));
        let answers = ExpiringCache::new(CACHED_MAX, CACHED_BYTES_MAX, account);
        Ok(SharedAuthServer { config: auth.clone(), answers, secret })
    }

    /// Returns the cache key of a request: a digest of the client address, the method, the URL and the fields
    /// named in `remember_by`.
    fn key(&self, request: &Request<'_>) -> ExpiringCacheKey {
        let mut sign = hmac::Context::with_key(&self.secret);
        let mut add = |part: &[u8]| {
            sign.update(&(part.len() as u64).to_le_bytes());
            sign.update(part);
        };
        add(address_text(request).as_bytes());
        add(request.method_name());
        add(url(request).as_bytes());
        for name in &self.config.remember_by {
            for (_, _, value) in
                request.fields().filter(|(_, other, _)| other.eq_ignore_ascii_case(name.as_bytes()))
            {
                add(value);
            }
            add(name.as_bytes());
        }
        *sign.sign().as_ref().first_chunk().expect("a digest of 32 bytes")
    }
}

impl RouteAuthServer {
    /// Whether both routes use the same `auth` directive.
    pub(super) fn is_same(&self, other: &RouteAuthServer) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    pub(super) fn new(
        shared: Arc<SharedAuthServer>,
        server: &AuthServer,
        proxy: Option<Proxy>,
        notices: Option<ErrorLog>,
    ) -> RouteAuthServer {
        let auth = &shared.config;
        RouteAuthServer {
            target: server.path_and_query.clone(),
            names: auth.identity_fields().map(|name| name.as_bytes().to_vec()).collect(),
            proxy,
            limits: FetchLimits { body_bytes_max: ANSWER_BYTES_MAX, total: auth.timeout.into() },
            cache_time: auth.remember.map_or(Millis::ZERO, Millis::of),
            notices,
            shared,
        }
    }

    /// Asks the server, or uses a cached answer. Returns `false` if the request has been answered.
    pub(super) async fn authenticate(&self, exchange: &mut Exchange<'_>) -> Result<bool, Fault> {
        let key = (!self.cache_time.is_zero()).then(|| self.shared.key(&exchange.request()));
        if let Some(own) = key.and_then(|key| self.shared.answers.find(&key, exchange.core().now())) {
            set_user(exchange, &own);
            exchange.amend(&self.names, &own);
            exchange.set_authorized();
            return Ok(true);
        }
        let question = match build_request(&exchange.request(), &self.target) {
            Ok(question) => question,
            Err(reject) => {
                exchange.refuse(reject.status, reject.reason).await?;
                return Ok(false);
            }
        };
        exchange.hold(WAITING_BYTES);
        let answer = exchange.unless_disconnected(self.query(&question)).await;
        exchange.hold(0);
        match answer? {
            Ok(answer) if matches!(answer.status.code(), 200..300) => {
                self.apply_approval(exchange, &answer, key);
                Ok(true)
            }
            Ok(answer) => {
                self.send_answer(exchange, answer).await?;
                Ok(false)
            }
            Err(error) => {
                self.report(error.reason);
                let mut fields = Fields::new();
                fields.push(Name::CacheControl, b"no-store");
                exchange.refuse_with(error.status, error.reason, &fields).await?;
                Ok(false)
            }
        }
    }

    async fn query(&self, question: &FetchRequest) -> Result<AuthAnswer, FetchError> {
        let Some(proxy) = &self.proxy else {
            let reason = "there is no authentication server";
            return Err(FetchError { status: Status::SERVICE_UNAVAILABLE, reason });
        };
        let proxy = proxy.bind();
        let mut response = proxy.fetch(question, &self.limits).await?;
        let status = response.status();
        let fields = response.fields().clone();
        let mut body = Vec::new();
        let mut ignored = 0;
        // The content of a 2xx answer is not used: it is read only so that the connection can be reused.
        let lets_in = matches!(status.code(), 200..300);
        loop {
            match response.read().await {
                Ok(Some(bytes)) if lets_in => {
                    ignored += bytes.len();
                    if ignored > IGNORED_BYTES_MAX {
                        break;
                    }
                }
                Ok(Some(bytes)) => body.extend_from_slice(bytes),
                Ok(None) => break,
                Err(_) if lets_in => break,
                Err(error) => return Err(error),
            }
        }
        match status.code() {
            200..=303 | 305.. => Ok(AuthAnswer { status, fields, body }),
            _ => {
                let reason = "the authentication server's answer decides nothing";
                Err(FetchError { status: Status::BAD_GATEWAY, reason })
            }
        }
    }

    /// Applies a 2xx answer to the request and caches it.
    fn apply_approval(
        &self,
        exchange: &mut Exchange<'_>,
        answer: &AuthAnswer,
        key: Option<ExpiringCacheKey>,
    ) {
        let mut own = Fields::new();
        let mut cookies = Fields::new();
        for (name, value) in answer.fields.iter() {
            if self.shared.config.identity_fields().any(|known| known.as_bytes().eq_ignore_ascii_case(name)) {
                own.try_push(name, value).expect("a field that was read is valid");
            }
            if name.eq_ignore_ascii_case(b"set-cookie") {
                cookies.try_push(name, value).expect("a field that was read is valid");
            }
        }
        set_user(exchange, &own);
        exchange.amend(&self.names, &own);
        exchange.set_authorized();
        // An answer that sets cookies must not be cached: they belong to this client.
        if !cookies.is_empty() {
            exchange.add_fields(&cookies);
        } else if let Some(key) = key {
            let until = exchange.core().now() + self.cache_time;
            let bytes = own.as_bytes().len();
            self.shared.answers.insert(key, Arc::new(own), bytes, until);
        }
    }

    /// Sends an answer other than 2xx to the client, or redirects it to the sign-in page.
    async fn send_answer(&self, exchange: &mut Exchange<'_>, mut answer: AuthAnswer) -> Result<(), Fault> {
        let request = exchange.request();
        let head = request.head();
        // A WebSocket handshake is a GET too, but browsers do not follow redirects of it.
        let is_page =
            matches!(request.method(), Method::Get | Method::Head) && head.upgrade(head.bytes).is_none();
        let fields = &mut answer.fields;
        if answer.status == UNAUTHORIZED
            && is_page
            && let Some(location) = self.sign_in_url(&exchange.request(), fields)
        {
            let mut found = Fields::new();
            let cookies = fields.iter().filter(|(name, _)| name.eq_ignore_ascii_case(b"set-cookie"));
            for (name, value) in [(&b"Location"[..], &location[..])].into_iter().chain(cookies) {
                // An invalid `Location` is left out.
                let _ = found.try_push(name, value);
            }
            found.push(Name::CacheControl, b"no-store");
            return exchange.refuse_with(FOUND, "sign in first", &found).await;
        }
        if exchange.request().is_grpc_call() {
            return exchange
                .refuse_with(answer.status, "the authentication server refuses this", &Fields::new())
                .await;
        }
        let mut kept = Fields::new();
        for (name, value) in fields.iter() {
            let is_ours = matches!(Name::of(name), Name::Server | Name::Date) || http::is_internal(name);
            if !is_ours {
                kept.try_push(name, value).expect("a field that was read is valid");
            }
        }
        if kept.first(b"cache-control").is_none() {
            kept.push(Name::CacheControl, b"no-store");
        }
        exchange.hold(answer.body.len());
        exchange.notes().refusal = Some("the authentication server refuses this");
        exchange.reply(answer.status, &kept, &answer.body).await
    }

    /// Returns the URL of the sign-in page. `None` if none is configured, or if it contains the answer's
    /// `Location` and the answer has none.
    fn sign_in_url(&self, request: &Request<'_>, answer: &Fields) -> Option<Vec<u8>> {
        let mut location = Vec::new();
        for part in &self.shared.config.sign_in {
            match part {
                SignInPart::Text(text) => location.extend_from_slice(text.as_bytes()),
                SignInPart::Url => location.extend_from_slice(&parameter(url(request).as_bytes())),
                SignInPart::Location => location.extend_from_slice(answer.first(b"location")?),
            }
        }
        (!location.is_empty()).then_some(location)
    }

    fn report(&self, reason: &'static str) {
        if let Some(notices) = &self.notices {
            let line = || format!("`auth.ask` {}: {reason}", self.target);
            notices.throttled(Level::Error, line(), line);
        }
    }
}

/// Builds the request to the authentication server.
///
/// # Errors
/// The request has fields or an authority that cannot be forwarded.
fn build_request(request: &Request<'_>, target: &str) -> Result<FetchRequest, Reject> {
    const REFUSED: Reject =
        Reject::bad_request("a request that the authentication server cannot be asked about");
    let mut fields = Fields::new();
    for (id, name, value) in request.fields() {
        if !is_not_forwarded(id, name) {
            fields.try_push(name, value).map_err(|_| REFUSED)?;
        }
    }
    let uri = uri(request);
    let address = address_text(request);
    let scheme = if request.client().is_secure { "https" } else { "http" };
    let method = request.method_name();
    let host = request.authority();
    let url = url(request);
    for (name, value) in [
        ("X-Forwarded-For", address.as_bytes()),
        ("X-Real-IP", address.as_bytes()),
        ("X-Forwarded-Method", method),
        ("X-Forwarded-Proto", scheme.as_bytes()),
        ("X-Forwarded-Host", host),
        ("X-Forwarded-Uri", uri.as_bytes()),
        ("X-Original-Method", method),
        ("X-Original-URL", url.as_bytes()),
    ] {
        if !value.is_empty() {
            fields.try_push(name.as_bytes(), value).map_err(|_| REFUSED)?;
        }
    }
    let host = std::str::from_utf8(host).map_err(|_| REFUSED)?;
    Ok(FetchRequest::new("GET", host, target, &fields, Vec::new())?.on_behalf_of(request))
}

/// Whether a field is not forwarded to the authentication server: framing, hop-by-hop, conditional and body
/// fields, and those that this server sets itself.
fn is_not_forwarded(id: Name, name: &[u8]) -> bool {
    id.is_framing()
        || id.is_hop_by_hop()
        || id.is_conditional()
        || matches!(
            id,
            Name::Host
                | Name::Expect
                | Name::Range
                | Name::ContentType
                | Name::ContentEncoding
                | Name::Forwarded
        )
        || http::has_confusable_prefix(name, b"x-forwarded-")
        || http::has_confusable_prefix(name, b"x-original-")
        || http::is_confusable(name, b"x-real-ip")
        || http::is_confusable(name, b"x-rewrite-url")
}

/// Returns the client's address; empty for a Unix socket.
fn address_text(request: &Request<'_>) -> String {
    match request.client().address {
        Peer::Tcp(address) => address.ip().to_canonical().to_string(),
        Peer::Unix => String::new(),
    }
}

/// Returns the path, as routes and upstream servers see it, and the query.
fn uri(request: &Request<'_>) -> String {
    let path = request.encoded_path().unwrap_or_default();
    let mut uri = String::from_utf8_lossy(&path).into_owned();
    if let Some(query) = request.encoded_query() {
        uri.push('?');
        uri.push_str(&String::from_utf8_lossy(&query));
    }
    uri
}

fn url(request: &Request<'_>) -> String {
    let scheme = if request.client().is_secure { "https" } else { "http" };
    format!("{scheme}://{}{}", String::from_utf8_lossy(request.authority()), uri(request))
}

/// Percent-encodes a text as the value of a query parameter.
fn parameter(text: &[u8]) -> Vec<u8> {
    let mut encoded = Vec::with_capacity(text.len() * 3);
    for &byte in text {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(byte)
        } else {
            encoded.extend_from_slice(format!("%{byte:02X}").as_bytes())
        }
    }
    encoded
}

/// Fields in which Authelia, oauth2-proxy and Authentik return the user name.
const USER_FIELDS: [&[u8]; 4] =
    [b"remote-user", b"x-auth-request-user", b"x-forwarded-user", b"x-authentik-username"];

/// Sets the user of the request if one of the server's fields names it.
fn set_user(exchange: &mut Exchange<'_>, own: &Fields) {
    let is_user = |name: &[u8]| USER_FIELDS.iter().any(|known| known.eq_ignore_ascii_case(name));
    if let Some((_, user)) = own.iter().find(|(name, _)| is_user(name)) {
        exchange.set_user(user, "Ask");
    }
}
