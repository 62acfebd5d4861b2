//! Authentication by JSON Web Token. Verification is implemented in `admission`; this module manages keys and
//! cached tokens.
//!
//! Keys are read from a file or fetched in the background. Tokens are verified on other threads, and valid
//! tokens are cached until they expire.

use std::borrow::Cow;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use admission::auth::{Auth, AuthKind};
use admission::{ExpiringCache, JwtAuth, JwtKeys, JwtRefusal, TOKEN_BYTES_MAX, VerifiedToken};
use aws_lc_rs::hmac;
use failure::{Failure, IoFailure};
use http::{Fields, Name, Status};
use logging::Level;
use logging::notice::ErrorLog;
use net::{Core, Exchange, Fault, Request};
use process::config_files::ConfigFiles;
use proxy::{FetchLimits, FetchRequest, Proxy};
use reload::KeptState;
use times::{AtomicMoment, Millis, Moment, UnixSeconds};

use crate::auth::resources::AuthResources;

/// Maximum verifications in progress or queued, of all cores together.
const PENDING_MAX: usize = 256;
/// Maximum cached tokens, and the bytes of their claims, of all cores together.
const CACHED_MAX: usize = 50_000;
const CACHED_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Minimum interval between refreshes after one that failed or was triggered by a token with an unknown key,
/// and the shorter one while there are no keys, in milliseconds.
const REFRESH_INTERVAL: Millis = Millis(10_000);
const REFRESH_WITHOUT_KEYS: Millis = Millis(1_000);
/// Time for which keys stay in use after their refresh was due, in milliseconds: an issuer that is
/// unreachable has not revoked them.
const STALE_KEYS: Millis = Millis(24 * 60 * 60 * 1_000);
/// Maximum size of a JWKS, in bytes.
const KEYS_BYTES_MAX: u64 = 512 * 1024;
/// Time after which a request waits for keys that are being refreshed, above `timeout`: no request has come meanwhile.
const OVERDUE_TIME: Millis = Millis(1_000);
/// Interval at which a request that waits for keys polls for them, in milliseconds.
const POLL_INTERVAL: Millis = Millis(5);
/// Memory charged to a waiting request in addition to its connection, in bytes.
const WAITING_BYTES: usize = 2 * TOKEN_BYTES_MAX;
const UNAUTHORIZED: Status = Status::of(401).expect("three digits");

/// Key sets of a configuration.
#[derive(Default)]
pub(super) struct JwtPlan(Vec<Arc<SharedJwt>>);

/// Keys and cached tokens of one `auth.jwt` directive, shared by all cores.
pub(super) struct SharedJwt {
    config: Auth,
    rules: Arc<JwtAuth>,
    keys: Mutex<Option<Arc<JwtKeys>>>,
    /// Time of the next refresh, and the earliest time of one that is triggered by an unknown key, in
    /// milliseconds.
    refresh_at: AtomicMoment,
    refresh_allowed_at: AtomicMoment,
    /// Time at which keys that could not be refreshed are discarded, in milliseconds.
    expires_at: AtomicMoment,
    is_fetching: AtomicBool,
    verified: ExpiringCache<Arc<VerifiedToken>, UnixSeconds>,
    /// Key of the HMAC that identifies cached tokens.
    secret: hmac::Key,
    pending: AtomicUsize,
    files: ConfigFiles,
    notices: Option<ErrorLog>,
}

/// Token authentication of one route on one core.
pub(crate) struct JwtRoute {
    shared: Arc<SharedJwt>,
    /// Request fields that only the claims of tokens may set.
    names: Vec<Vec<u8>>,
    proxy: Option<Proxy>,
    timeout: Millis,
}

/// Counts a verification in progress until it is dropped.
struct PendingToken<'s>(&'s AtomicUsize);

impl Drop for PendingToken<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls `insert` if `used` are still the keys: a token that was verified with withdrawn keys is not remembered. The keys
/// cannot change meanwhile.
fn if_current(keys: &Mutex<Option<Arc<JwtKeys>>>, used: &Arc<JwtKeys>, insert: impl FnOnce()) {
    let current = lock(keys);
    if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, used)) {
        insert();
    }
}

impl JwtPlan {
    /// Creates the key sets. Files are read at once and must contain a usable key; URLs are fetched later.
    pub(super) fn new(
        auths: &[&Auth],
        kept: &mut KeptState,
        resources: AuthResources<'_>,
    ) -> io::Result<JwtPlan> {
        let mut plan = JwtPlan::default();
        for &auth in auths {
            let Some(AuthKind::Jwt(jwt)) = auth.kind().filter(|_| plan.of(auth).is_none()) else { continue };
            let is_unchanged = |shared: &Arc<SharedJwt>| shared.config == *auth;
            let make = || SharedJwt::new(auth, jwt, resources).map(Arc::new);
            let shared = kept.try_keep_if((), is_unchanged, make)?;
            shared.read_file()?;
            if let (Some(file), Some((count, 0))) = (&jwt.jwks_file, shared.key_counts()) {
                let what = match count {
                    0 => "it has no key for signatures that can be used",
                    _ => "it has no key that fits `algorithms`",
                };
                let text = format!("`auth.jwt` {}: {what}", file.display());
                return Err(io::Error::new(io::ErrorKind::InvalidData, text).about(file));
            }
            plan.0.push(shared);
        }
        Ok(plan)
    }

    pub(super) fn of(&self, auth: &Auth) -> Option<Arc<SharedJwt>> {
        self.0.iter().find(|shared| shared.config == *auth).cloned()
    }
}

impl SharedJwt {
    fn new(auth: &Auth, jwt: &JwtAuth, resources: AuthResources<'_>) -> io::Result<SharedJwt> {
        let secret = hmac::Key::generate(hmac::HMAC_SHA256, &aws_lc_rs::rand::SystemRandom::new());
        let memory = resources.memory.clone();
        let account = Arc::new(move |before, after| memory.change(before, after));
        Ok(SharedJwt {
            config: auth.clone(),
            rules: Arc::new(jwt.clone()),
            keys: Mutex::default(),
            refresh_at: AtomicMoment::default(),
            refresh_allowed_at: AtomicMoment::default(),
            expires_at: AtomicMoment::new(Moment::NEVER),
            is_fetching: AtomicBool::new(false),
            verified: ExpiringCache::new(CACHED_MAX, CACHED_BYTES_MAX, account),
            secret: secret.map_err(|_| io::Error::other("the system has no random numbers"))?,
            pending: AtomicUsize::new(0),
            files: resources.files.clone(),
            notices: resources.notices.cloned(),
        })
    }

    fn read_file(&self) -> io::Result<()> {
        let Some(file) = &self.rules.jwks_file else { return Ok(()) };
        let bytes = self.files.read(file)?;
        let keys = JwtKeys::parse(&bytes, true);
        let named = |text| {
            let title = format!("`auth.jwt` {}: {text}", file.display());
            io::Error::new(io::ErrorKind::InvalidData, title).about(file)
        };
        self.set_keys(keys.map_err(named)?);
        Ok(())
    }

    /// Replaces the keys and discards cached tokens, which were verified with the previous ones.
    fn set_keys(&self, keys: JwtKeys) {
        let mut current = lock(&self.keys);
        *current = Some(Arc::new(keys));
        self.verified.clear();
    }

    /// Returns the number of keys, and that of those which fit the algorithms; `None` if they have not been loaded.
    fn key_counts(&self) -> Option<(usize, usize)> {
        lock(&self.keys).as_ref().map(|keys| (keys.count(), keys.count_for(&self.rules.algorithms)))
    }

    /// Discards keys that could not be refreshed for too long. Returns whether there still are keys.
    fn expire_keys(&self, now: Moment) -> bool {
        let mut keys = lock(&self.keys);
        if keys.is_some() && now >= self.expires_at.load(Ordering::Relaxed) {
            *keys = None;
            self.verified.clear();
        }
        keys.is_some()
    }

    /// Reports the number of keys after a refresh.
    fn report_count(&self) {
        match self.key_counts().unwrap_or_default() {
            (0, _) => {
                self.report(Level::Error, "there is no key for signatures in the set: no token is valid")
            }
            (_, 0) => self.report(Level::Error, "no key of the set fits `algorithms`: no token is valid"),
            (1, _) => self.report(Level::Info, "there is 1 key"),
            (count, _) => self.report(Level::Info, &format!("there are {count} keys")),
        }
    }

    fn report(&self, level: Level, text: &str) {
        if let Some(notices) = &self.notices {
            let line = || format!("`auth.jwt`: {text}");
            notices.throttled(level, line(), line);
        }
    }
}

impl JwtRoute {
    /// Whether both routes use the same `auth` directive.
    pub(super) fn is_same(&self, other: &JwtRoute) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    pub(super) fn new(shared: Arc<SharedJwt>, proxy: Option<Proxy>) -> JwtRoute {
        JwtRoute {
            names: shared.config.identity_fields().map(|name| name.as_bytes().to_vec()).collect(),
            timeout: shared.config.timeout.into(),
            shared,
            proxy,
        }
    }

    /// Authenticates a request. Returns `false` if the request has been answered.
    pub(super) async fn authenticate(&self, exchange: &mut Exchange<'_>) -> Result<bool, Fault> {
        let (now, due) = (exchange.core().now(), self.shared.refresh_at.load(Ordering::Relaxed));
        self.refresh(exchange.core(), false);
        if now >= due + self.timeout + OVERDUE_TIME {
            // The keys may have been withdrawn since the last request.
            exchange.hold(WAITING_BYTES);
            let refreshed = self.wait_for_refresh(exchange, now + self.timeout).await;
            exchange.hold(0);
            refreshed?;
        }
        let Some(token) = self.token(&exchange.request()) else {
            return self.challenge(exchange, UNAUTHORIZED, "this address asks for a token", "").await;
        };
        let digest = hmac::sign(&self.shared.secret, &token);
        let key = *digest.as_ref().first_chunk().expect("a digest of 32 bytes");
        if let Some(known) = self.shared.verified.find(&key, UnixSeconds(exchange.core().unix_s())) {
            return Ok(self.apply_token(exchange, &known));
        }
        exchange.hold(WAITING_BYTES);
        let verified = self.verify(exchange, token).await;
        exchange.hold(0);
        match verified? {
            Ok((keys, token)) => {
                let token = Arc::new(token);
                let insert =
                    || self.shared.verified.insert(key, token.clone(), token.weight_bytes(), token.until);
                if_current(&self.shared.keys, &keys, insert);
                Ok(self.apply_token(exchange, &token))
            }
            Err(TokenRefusal::Refused(JwtRefusal::Insufficient)) => {
                let reason = "the token does not allow this";
                self.challenge(exchange, Status::FORBIDDEN, reason, ", error=\"insufficient_scope\"").await
            }
            Err(TokenRefusal::Refused(refusal)) => {
                let why = match refusal {
                    JwtRefusal::Invalid(why) => why,
                    _ => "no known key has signed it",
                };
                let error = format!(", error=\"invalid_token\", error_description=\"{why}\"");
                self.challenge(exchange, UNAUTHORIZED, "the token is not valid", &error).await
            }
            Err(TokenRefusal::Unavailable(reason)) => {
                let mut fields = Fields::new();
                fields.push(Name::RetryAfter, b"1");
                fields.push(Name::CacheControl, b"no-store");
                exchange.refuse_with(Status::SERVICE_UNAVAILABLE, reason, &fields).await?;
                Ok(false)
            }
        }
    }

    fn apply_token(&self, exchange: &mut Exchange<'_>, token: &VerifiedToken) -> bool {
        let mut own = Fields::new();
        for (name, claim) in &self.shared.rules.headers {
            if let Some(text) = token.text(claim) {
                // A claim that is not a valid field value is left out.
                let _ = own.try_push(name.as_bytes(), text.as_bytes());
            }
        }
        if !self.names.is_empty() {
            exchange.amend(&self.names, &own);
        }
        if let Some(subject) = token.text("sub") {
            exchange.set_user(subject.as_bytes(), "Bearer");
        }
        exchange.set_authorized();
        true
    }

    async fn challenge(
        &self,
        exchange: &mut Exchange<'_>,
        status: Status,
        reason: &'static str,
        error: &str,
    ) -> Result<bool, Fault> {
        let mut fields = Fields::new();
        let value = format!("Bearer realm=\"{}\"{error}", self.shared.config.realm);
        fields.push(Name::WwwAuthenticate, value.as_bytes());
        fields.push(Name::CacheControl, b"no-store");
        exchange.refuse_with(status, reason, &fields).await?;
        Ok(false)
    }

    /// Returns the token of a request. `None` if the request has several, because servers differ in which one
    /// they use.
    fn token(&self, request: &Request<'_>) -> Option<Vec<u8>> {
        let mut given =
            request.fields().filter(|(id, _, _)| *id == Name::Authorization).map(|(_, _, value)| value);
        if let Some(value) = given.next() {
            let (scheme, token) = value.split_at(value.iter().position(|&byte| byte == b' ')?);
            let is_bearer = scheme.eq_ignore_ascii_case(b"bearer") && given.next().is_none();
            return is_bearer.then(|| token.trim_ascii().to_vec());
        }
        if let Some(name) = &self.shared.rules.cookie {
            let cookies = cache::vary::cookies(request.head());
            let mut named = cookies.filter(|(other, _)| *other == name.as_bytes()).map(|(_, value)| value);
            if let Some(value) = named.next() {
                return named.next().is_none().then(|| value.to_vec());
            }
        }
        let name = self.shared.rules.query.as_ref()?;
        let mut values = http::form::values(request.query().unwrap_or_default(), name.as_bytes());
        match (values.next(), values.next()) {
            (Some(value), None) => value.map(Cow::into_owned),
            _ => None,
        }
    }

    /// Verifies a token on another thread. If no key matches, refreshes the keys and verifies it once more.
    async fn verify(
        &self,
        exchange: &Exchange<'_>,
        token: Vec<u8>,
    ) -> Result<Result<(Arc<JwtKeys>, VerifiedToken), TokenRefusal>, Fault> {
        let by = exchange.core().now() + self.timeout;
        let mut asks_again = true;
        loop {
            let keys = lock(&self.shared.keys).clone();
            let Some(keys) = keys else {
                self.refresh(exchange.core(), true);
                if !self.shared.is_fetching.load(Ordering::Relaxed) || exchange.core().now() >= by {
                    let reason = "the keys of tokens are not there";
                    return Ok(Err(TokenRefusal::Unavailable(reason)));
                }
                exchange.unless_disconnected(exchange.core().sleep(POLL_INTERVAL)).await?;
                continue;
            };
            if self.shared.pending.fetch_add(1, Ordering::Relaxed) >= PENDING_MAX {
                self.shared.pending.fetch_sub(1, Ordering::Relaxed);
                let reason = "too many tokens are being verified: try again later";
                return Ok(Err(TokenRefusal::Unavailable(reason)));
            }
            let pending = PendingToken(&self.shared.pending);
            let rules = self.shared.rules.clone();
            let now = UnixSeconds(exchange.core().unix_s());
            let copy = token.clone();
            let used = keys.clone();
            let verified = exchange.core().offload(move || keys.verify(&rules, &copy, now)).await;
            drop(pending);
            match verified {
                Err(JwtRefusal::UnknownKey) if asks_again => {
                    asks_again = false;
                    self.refresh(exchange.core(), true);
                    self.wait_for_refresh(exchange, by).await?;
                }
                verified => {
                    return Ok(verified.map(|token| (used, token)).map_err(TokenRefusal::Refused));
                }
            }
        }
    }

    /// Waits until no refresh is under way, or until `by`.
    ///
    /// # Errors
    /// The client is gone.
    async fn wait_for_refresh(&self, exchange: &Exchange<'_>, by: Moment) -> Result<(), Fault> {
        while self.shared.is_fetching.load(Ordering::Relaxed) && exchange.core().now() < by {
            exchange.unless_disconnected(exchange.core().sleep(POLL_INTERVAL)).await?;
        }
        Ok(())
    }

    /// Refreshes the keys in the background if this is due or, with `is_wanted`, if the last attempt was long
    /// enough ago.
    pub(super) fn refresh(&self, core: &Core, is_wanted: bool) {
        let shared = &self.shared;
        let now = core.now();
        let is_due = now >= shared.refresh_at.load(Ordering::Relaxed)
            || is_wanted && now >= shared.refresh_allowed_at.load(Ordering::Relaxed);
        if !is_due {
            return;
        }
        shared.expire_keys(now);
        if shared.is_fetching.swap(true, Ordering::Relaxed) {
            return;
        }
        let shared = shared.clone();
        let proxy = self.proxy.clone();
        let theirs = core.clone();
        let timeout = self.timeout;
        core.spawn(async move {
            let outcome = match &shared.rules.jwks {
                Some(url) => fetch(proxy.as_ref(), &url.path_and_query, timeout).await,
                None => {
                    let shared = shared.clone();
                    let read = move || shared.read_file().map_err(Failure::from);
                    theirs.offload(read).await.map(|()| None)
                }
            };
            let now = theirs.now();
            let has_some = shared.expire_keys(now);
            let again_after = match outcome {
                Ok(fetched) => {
                    if let Some(keys) = fetched {
                        shared.set_keys(keys);
                        shared.report_count();
                    }
                    let due = now + shared.rules.refresh.into();
                    shared.refresh_at.store(due, Ordering::Relaxed);
                    shared.expires_at.store(due + STALE_KEYS, Ordering::Relaxed);
                    REFRESH_INTERVAL
                }
                Err(why) => {
                    let rest = if has_some { "those from before stay for a day" } else { "requests get 503" };
                    shared.report(Level::Error, &format!("the keys cannot be had: {why}; {rest}"));
                    let again_after = if has_some { REFRESH_INTERVAL } else { REFRESH_WITHOUT_KEYS };
                    shared.refresh_at.store(now + again_after, Ordering::Relaxed);
                    again_after
                }
            };
            shared.refresh_allowed_at.store(now + again_after, Ordering::Relaxed);
            shared.is_fetching.store(false, Ordering::Relaxed);
        });
    }
}

/// Why a request with a token is not served.
enum TokenRefusal {
    Refused(JwtRefusal),
    /// The token cannot be verified at present; the text is the reason.
    Unavailable(&'static str),
}

/// Fetches a JWKS from the server of `proxy`.
async fn fetch(proxy: Option<&Proxy>, target: &str, timeout: Millis) -> Result<Option<JwtKeys>, Failure> {
    let proxy = proxy.ok_or("there is no server to ask")?.bind();
    let mut fields = Fields::new();
    fields.push(Name::Accept, b"application/jwk-set+json, application/json");
    let request = FetchRequest::new("GET", "jwks", target, &fields, Vec::new());
    let request = request.map_err(|reject| reject.reason)?;
    let limits = FetchLimits { body_bytes_max: KEYS_BYTES_MAX, total: timeout };
    let reason = |error: proxy::FetchError| error.reason;
    let mut response = proxy.fetch(&request, &limits).await.map_err(reason)?;
    if response.status() != Status::OK {
        return Err(Failure::new(format!("the answer has the status {}", response.status().code())));
    }
    let mut body = Vec::new();
    while let Some(bytes) = response.read().await.map_err(reason)? {
        body.extend_from_slice(bytes);
    }
    JwtKeys::parse(&body, false).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_verified_with_withdrawn_keys_are_not_cached() {
        let set = br#"{"keys":[{"kty":"oct","k":"c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LTEyMzQ1Ng"}]}"#;
        let keys = || Arc::new(JwtKeys::parse(set, true).unwrap());
        let before = keys();
        let after = keys();
        let current = Mutex::new(Some(before.clone()));
        let remembered = |used: &Arc<JwtKeys>| {
            let mut is_remembered = false;
            if_current(&current, used, || is_remembered = true);
            is_remembered
        };
        assert!(remembered(&before));
        *lock(&current) = Some(after.clone());
        assert_eq!((remembered(&before), remembered(&after)), (false, true));
        *lock(&current) = None;
        assert!(!remembered(&after));
    }
}
