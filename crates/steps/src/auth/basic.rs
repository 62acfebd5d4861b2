//! Basic authentication (RFC 7617). Files and hashes are implemented in `admission`; this module schedules
//! verifications and limits their number.
//!
//! Verifying a password hash is expensive, so a few dedicated threads do it, and the number of waiting
//! requests is bounded. Verified credentials are cached for a while as a keyed hash.

use std::collections::HashMap;
use std::fs::Metadata;
use std::future::poll_fn;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read};
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use admission::auth::{Auth, AuthKind};
use admission::limits::RateLimit;
use admission::{
    Credentials, LimitVerdict, Limiter, LimiterOptions, PasswordCheck, PasswordFile, Quota, SeenKeys,
};
use aws_lc_rs::hmac;
use certificates::client_network;
use failure::IoFailure;
use http::{Fields, Name, Status};
use logging::Level;
use logging::notice::ErrorLog;
use net::clock::Clock;
use net::offload::OffloadPool;
use net::{Exchange, Fault, MemoryBudget, Peer, Request};
use process::config_files::{ConfigFiles, FILE_BYTES_MAX};
use reload::KeptState;
use times::{AtomicMoment, Millis, Moment};

use crate::auth::resources::AuthResources;
use crate::limit::add_client;

/// Default time for which verified credentials are cached.
const CACHE_TIME: Duration = Duration::from_secs(60);
/// Maximum verifications in progress or queued, of all cores together.
const PENDING_MAX: usize = 64;
/// Maximum verifications of one network: a /24 of IPv4, a /48 of IPv6, or all clients of Unix sockets.
const PENDING_PER_NETWORK_MAX: usize = 16;
/// Maximum cached credentials; also the maximum clients whose failures are counted.
const KEYS_MAX: usize = 10_000;
/// Interval at which a file is checked for changes, in milliseconds.
const CHECK_INTERVAL: Millis = Millis(2_000);
/// Time after which a request waits until the file has been looked at: no request has come meanwhile.
const OVERDUE_TIME: Millis = Millis(4_000);
/// How long a request waits for that at most. A disk may not answer.
const OVERDUE_WAIT_MAX: Millis = Millis(1_000);
/// Interval at which a request that waits for it polls.
const POLL_INTERVAL: Millis = Millis(5);
/// Memory charged to a request that waits for a verification, in addition to its connection, in bytes.
const WAITING_BYTES: usize = 4096;
const UNAUTHORIZED: Status = Status::of(401).expect("three digits");
const TOO_MANY: Status = Status::of(429).expect("three digits");

/// Password files of a configuration.
pub(super) struct PasswordPlan {
    shared: Vec<Arc<SharedPasswords>>,
    /// Threads that verify passwords and read changed files.
    pool: OffloadPool,
}

/// A password file with its caches, shared by all cores.
pub(crate) struct SharedPasswords {
    config: Auth,
    path: PathBuf,
    files: ConfigFiles,
    users: Mutex<Arc<Users>>,
    /// Time at which the last check of the file began.
    checked_at: AtomicMoment,
    /// Time at which the last check that has ended began.
    confirmed_at: AtomicMoment,
    /// Error of the last attempt to read the file, kept so that it is reported only once.
    last_error: Mutex<Option<String>>,
    seen: SeenKeys,
    failures: Option<Arc<Limiter>>,
    /// Verifications in progress by the key of the credentials, with the network of the client that sent them
    /// first.
    pending: Mutex<HashMap<u64, (Arc<PendingCheck>, IpAddr)>>,
    pool: OffloadPool,
    memory: MemoryBudget,
    notices: Option<ErrorLog>,
}

/// Content of a password file.
struct Users {
    file: PasswordFile,
    /// Key of the HMAC that identifies cached credentials. Each version of the file has a new one, which
    /// invalidates the cache.
    secret: hmac::Key,
    stamp: FileStamp,
}

/// Length, modification time (seconds and nanoseconds) and inode number; a file is read again if one differs. Of a file in memory:
/// its length, a hash, [`IN_MEMORY_NS`] and 0.
type FileStamp = (u64, i64, i64, u64);
/// Nanoseconds that no file of the disk has.
const IN_MEMORY_NS: i64 = -1;

/// A verification in progress, shared by all requests with the same credentials.
#[derive(Default)]
struct PendingCheck(Mutex<PendingState>);

#[derive(Default)]
struct PendingState {
    /// Whether the password is valid; `None` until it has been verified.
    is_valid: Option<bool>,
    wakers: Vec<Waker>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PasswordPlan {
    /// Reads the files. Those that are configured as before keep their caches.
    ///
    /// # Errors
    /// A file cannot be read or contains an invalid line; the message names the file.
    pub(super) fn new(
        auths: &[&Auth],
        kept: &mut KeptState,
        resources: AuthResources<'_>,
        cores: usize,
    ) -> io::Result<PasswordPlan> {
        let pool = kept.share("passwords", || OffloadPool::new(cores.div_ceil(2)));
        let mut plan = PasswordPlan { shared: Vec::new(), pool };
        for &auth in auths {
            let Some(AuthKind::Basic(path)) = auth.kind().filter(|_| plan.of(auth).is_none()) else {
                continue;
            };
            let is_unchanged = |shared: &Arc<SharedPasswords>| shared.config == *auth;
            let make = || SharedPasswords::new(auth, path, resources, plan.pool.clone()).map(Arc::new);
            let named = |error: io::Error| {
                error.attempting(format_args!("`auth.basic` {}", path.display())).about(path)
            };
            plan.shared.push(kept.try_keep_if((), is_unchanged, make).map_err(named)?);
        }
        Ok(plan)
    }

    /// Returns the password file of an `auth` directive.
    pub(super) fn of(&self, auth: &Auth) -> Option<Arc<SharedPasswords>> {
        self.shared.iter().find(|shared| shared.config == *auth).cloned()
    }
}

impl SharedPasswords {
    fn new(
        auth: &Auth,
        path: &Path,
        resources: AuthResources<'_>,
        pool: OffloadPool,
    ) -> io::Result<SharedPasswords> {
        let AuthResources { files, memory, notices } = resources;
        let users = Users::read(files, path, None)?.ok_or_else(|| io::Error::other("it cannot be read"))?;
        let account = || {
            let memory = memory.clone();
            Arc::new(move |before, after| memory.change(before, after))
        };
        let failures = auth.failures.map(|rate| {
            let quota = Quota::new(rate.count, rate.period, rate.count.saturating_sub(1));
            let options =
                LimiterOptions { quota, delay_max: Duration::ZERO, delayed_max: 0, keys_max: KEYS_MAX };
            Arc::new(Limiter::new(options, account()))
        });
        Ok(SharedPasswords {
            config: auth.clone(),
            path: path.to_owned(),
            files: files.clone(),
            users: Mutex::new(Arc::new(users)),
            checked_at: AtomicMoment::default(),
            confirmed_at: AtomicMoment::default(),
            last_error: Mutex::default(),
            seen: SeenKeys::new(KEYS_MAX, account()),
            failures,
            pending: Mutex::default(),
            pool,
            memory: memory.clone(),
            notices: notices.cloned(),
        })
    }

    /// Checks the file for changes on another thread if the interval has passed. Changes apply to later
    /// requests.
    fn check_for_changes(self: &Arc<Self>, now: Moment) {
        let looked_at = self.checked_at.load(Ordering::Relaxed);
        let is_due = now >= looked_at + CHECK_INTERVAL;
        if is_due && self.checked_at.advance(looked_at, now, Ordering::Relaxed) {
            let shared = self.clone();
            self.pool.run(move || {
                shared.reload();
                shared.confirmed_at.store(now, Ordering::Relaxed);
            });
        }
    }

    /// Whether no request has had the file checked for long.
    fn is_overdue(&self, now: Moment) -> bool {
        now >= self.confirmed_at.load(Ordering::Relaxed) + OVERDUE_TIME
    }

    /// Waits until the file has been checked: it may have lost users since the last request.
    ///
    /// # Errors
    /// The client is gone.
    async fn wait_for_check(&self, exchange: &mut Exchange<'_>) -> Result<(), Fault> {
        let now = exchange.core().now();
        exchange.hold(WAITING_BYTES);
        let checked = exchange.unless_disconnected(async {
            while self.is_overdue(now) && exchange.core().now() < now + OVERDUE_WAIT_MAX {
                exchange.core().sleep(POLL_INTERVAL).await;
            }
        });
        let checked = checked.await;
        exchange.hold(0);
        checked
    }

    fn reload(&self) {
        let stamp = lock(&self.users).stamp;
        match Users::read(&self.files, &self.path, Some(stamp)) {
            Ok(None) => *lock(&self.last_error) = None,
            Ok(Some(users)) => {
                let count = users.file.len();
                *lock(&self.users) = Arc::new(users);
                *lock(&self.last_error) = None;
                self.report(Level::Info, &format!("the file has changed: {count} users"));
            }
            Err(error) => {
                let error = error.to_string();
                let mut failed = lock(&self.last_error);
                if failed.as_ref() != Some(&error) {
                    self.report(Level::Error, &format!("{error}; the users stay as they were"));
                    *failed = Some(error);
                }
            }
        }
    }

    fn report(&self, level: Level, text: &str) {
        if let Some(notices) = &self.notices {
            let kind = format!("`auth.basic` {}: {text}", self.path.display());
            notices.throttled(level, kind.clone(), || kind);
        }
    }

    /// Whether these credentials have been verified recently.
    fn is_recently_verified(&self, credentials: &Credentials, now_us: u64) -> bool {
        let key = lock(&self.users).key(credentials);
        self.seen.contains(key, now_us.saturating_mul(1_000))
    }

    /// Verifies the credentials of a request. Returns `false` if the request has been answered.
    async fn authenticate(self: &Arc<Self>, exchange: &mut Exchange<'_>) -> Result<bool, Fault> {
        let client = exchange.request().client().address;
        let Some(credentials) = credentials(&exchange.request()) else {
            return self.challenge(exchange).await;
        };
        let users = lock(&self.users).clone();
        let Some(check) = users.file.check(credentials.user()) else { return self.challenge(exchange).await };
        let key = users.key(&credentials);
        let pending = match self.join_or_start(
            key,
            client,
            exchange.core().now_us().saturating_mul(1_000),
            check,
            &credentials,
        ) {
            Ok(pending) => pending,
            Err(refused) => {
                let mut fields = Fields::new();
                let retry_s = refused.retry_ns.div_ceil(1_000_000_000).max(1);
                fields.push(Name::RetryAfter, retry_s.to_string().as_bytes());
                fields.push(Name::CacheControl, b"no-store");
                exchange.refuse_with(refused.status, refused.reason, &fields).await?;
                return Ok(false);
            }
        };
        exchange.hold(WAITING_BYTES);
        let is_valid = exchange.unless_disconnected(poll_fn(|cx| pending.poll(cx.waker()))).await;
        exchange.hold(0);
        if is_valid? {
            return Ok(true);
        }
        let kind = format!("`auth.basic` {}: wrong user or password", self.path.display());
        if let Some(notices) = &self.notices {
            let user = String::from_utf8_lossy(credentials.user()).into_owned();
            notices.throttled(Level::Warn, kind.clone(), || format!("{client}: {kind}: {user:?}"));
        }
        self.challenge(exchange).await
    }

    async fn challenge(&self, exchange: &mut Exchange<'_>) -> Result<bool, Fault> {
        let mut fields = Fields::new();
        let value = format!("Basic realm=\"{}\", charset=\"UTF-8\"", self.config.realm);
        fields.push(Name::WwwAuthenticate, value.as_bytes());
        fields.push(Name::CacheControl, b"no-store");
        exchange
            .refuse_with(UNAUTHORIZED, "this address asks for a user name and a password", &fields)
            .await?;
        Ok(false)
    }

    /// Joins the verification of these credentials, or starts one.
    fn join_or_start(
        self: &Arc<Self>,
        key: u64,
        client: Peer,
        now_ns: u64,
        check: PasswordCheck,
        credentials: &Credentials,
    ) -> Result<Arc<PendingCheck>, RefusedCheck> {
        let mut all = lock(&self.pending);
        if let Some((pending, _)) = all.get(&key) {
            return Ok(pending.clone());
        }
        let address = if let Peer::Tcp(address) = client { Some(address.ip()) } else { None };
        let network = client_network(address);
        let of_network = all.values().filter(|(_, other)| *other == network).count();
        if all.len() >= PENDING_MAX || of_network >= PENDING_PER_NETWORK_MAX {
            let reason = "too many passwords are being verified: try again later";
            return Err(RefusedCheck { status: Status::SERVICE_UNAVAILABLE, reason, retry_ns: 0 });
        }
        // Counted as a failure in advance; a success is refunded.
        let mut client_key = 0;
        if let Some(failures) = &self.failures {
            let mut hasher = failures.hasher();
            add_client(&mut hasher, client, &RateLimit::default());
            client_key = hasher.key();
            if let LimitVerdict::Refuse { retry_ns } = failures.admit(client_key, now_ns) {
                let reason = "too many wrong passwords: try again later";
                return Err(RefusedCheck { status: TOO_MANY, reason, retry_ns });
            }
        }
        let pending = Arc::new(PendingCheck::default());
        all.insert(key, (pending.clone(), network));
        drop(all);
        let job =
            CheckJob { shared: self.clone(), key, client_key, pending: pending.clone(), is_valid: false };
        let password = credentials.password().to_vec();
        self.pool.run(move || job.verify(&check, &password));
        Ok(pending)
    }
}

/// Response to a request whose password is not verified.
struct RefusedCheck {
    status: Status,
    reason: &'static str,
    retry_ns: u64,
}

/// Job of one verification. Dropping it publishes the outcome: failure if it did not finish.
struct CheckJob {
    shared: Arc<SharedPasswords>,
    key: u64,
    client_key: u64,
    pending: Arc<PendingCheck>,
    is_valid: bool,
}

impl CheckJob {
    fn verify(mut self, check: &PasswordCheck, password: &[u8]) {
        let bytes = check.memory_bytes();
        self.shared.memory.change(0, bytes);
        self.is_valid = check.verify(password);
        self.shared.memory.change(bytes, 0);
    }
}

impl Drop for CheckJob {
    fn drop(&mut self) {
        let shared = &self.shared;
        if self.is_valid {
            let now_ns = Clock::new().now_us().saturating_mul(1_000);
            let remember_ns = times::nanos(shared.config.remember.unwrap_or(CACHE_TIME));
            shared.seen.insert(self.key, now_ns, now_ns.saturating_add(remember_ns));
            if let Some(failures) = &shared.failures {
                failures.refund(self.client_key, now_ns);
            }
        }
        lock(&shared.pending).remove(&self.key);
        let mut state = lock(&self.pending.0);
        state.is_valid = Some(self.is_valid);
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl PendingCheck {
    fn poll(&self, waker: &Waker) -> Poll<bool> {
        let mut state = lock(&self.0);
        if let Some(is_valid) = state.is_valid {
            return Poll::Ready(is_valid);
        }
        if !state.wakers.iter().any(|other| other.will_wake(waker)) {
            state.wakers.push(waker.clone());
        }
        Poll::Pending
    }
}

impl Users {
    /// Reads the file. Returns `None` if it has not changed since `before`.
    fn read(files: &ConfigFiles, path: &Path, before: Option<FileStamp>) -> io::Result<Option<Users>> {
        let (stamp, bytes) = match files.in_memory(path) {
            Some(bytes) if before == Some(memory_stamp(&bytes)) => return Ok(None),
            Some(bytes) => (memory_stamp(&bytes), bytes),
            // It belongs to a configuration that is no longer in force, but still serves requests.
            None if before.is_some_and(|before| before.2 == IN_MEMORY_NS) => return Ok(None),
            None => {
                let file = files.open(path)?;
                let stamp = stamp(&file.metadata()?);
                if before == Some(stamp) {
                    return Ok(None);
                }
                let mut bytes = Vec::new();
                file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
                (stamp, bytes)
            }
        };
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(io::Error::other("it is larger than 16 MiB"));
        }
        let file = PasswordFile::parse(&bytes).map_err(io::Error::other)?;
        let secret = hmac::Key::generate(hmac::HMAC_SHA256, &aws_lc_rs::rand::SystemRandom::new());
        let secret = secret.map_err(|_| io::Error::other("the system has no random numbers"))?;
        Ok(Some(Users { file, secret, stamp }))
    }

    /// Returns the cache key of credentials.
    fn key(&self, credentials: &Credentials) -> u64 {
        let tag = hmac::sign(&self.secret, credentials.bytes());
        u64::from_le_bytes(*tag.as_ref().first_chunk().expect("a digest of 32 bytes"))
    }
}

fn memory_stamp(bytes: &[u8]) -> FileStamp {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    (bytes.len() as u64, hasher.finish().cast_signed(), IN_MEMORY_NS, 0)
}

fn stamp(metadata: &Metadata) -> FileStamp {
    (metadata.len(), metadata.mtime(), metadata.mtime_nsec(), metadata.ino())
}

/// Authenticates a request. Returns `false` if the request has been answered.
///
/// # Errors
/// The client is gone.
pub(super) async fn authenticate(
    auth: &Arc<SharedPasswords>,
    exchange: &mut Exchange<'_>,
) -> Result<bool, Fault> {
    let now = exchange.core().now();
    auth.check_for_changes(now);
    if auth.is_overdue(now) {
        // Boxed because it is rare.
        Box::pin(auth.wait_for_check(exchange)).await?;
    }
    let credentials = credentials(&exchange.request());
    let now_us = exchange.core().now_us();
    let is_let_in = if credentials.as_ref().is_some_and(|known| auth.is_recently_verified(known, now_us)) {
        true
    } else {
        // Boxed because it is rare.
        Box::pin(auth.authenticate(exchange)).await?
    };
    if let Some(credentials) = credentials.filter(|_| is_let_in) {
        exchange.set_user(credentials.user(), "Basic");
    }
    Ok(is_let_in)
}

/// Returns the credentials of a request. `None` if there are several `Authorization` fields, because servers
/// differ in which one they use.
fn credentials(request: &Request<'_>) -> Option<Credentials> {
    let mut given = request.head().values(Name::Authorization);
    let credentials = Credentials::parse(given.next()?)?;
    given.next().is_none().then_some(credentials)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn file_in_memory_is_read_again_when_its_content_changes() {
        let files = ConfigFiles::default();
        let path = Path::new("/memory/users");
        let set = |text: &str| files.set_memory([(path.to_owned(), text.as_bytes().to_vec())].into());
        let line =
            |name: &str| format!("{name}:$2y$05$c4WoMPo3SXsafkva.HHa6uXQZWr7oboPiC2bT/r7q1BB8I2s0BRqC\n");
        set(&line("alice"));
        let first = Users::read(&files, path, None).unwrap().unwrap();
        let lets_in =
            |users: &Users, name: &str| users.file.check(name.as_bytes()).unwrap().verify(b"myPassword");
        assert!(lets_in(&first, "alice") && !lets_in(&first, "berta"));
        assert!(Users::read(&files, path, Some(first.stamp)).unwrap().is_none());
        set(&line("berta"));
        let second = Users::read(&files, path, Some(first.stamp)).unwrap().unwrap();
        assert!(!lets_in(&second, "alice") && lets_in(&second, "berta"));
        // A later configuration does not name it.
        files.set_memory(BTreeMap::new());
        assert!(Users::read(&files, path, Some(second.stamp)).unwrap().is_none());
        assert!(Users::read(&files, path, None).is_err());
    }
}
