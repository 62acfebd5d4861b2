//! The `PURGE` method: access control, and removal of stored responses.
//!
//! A purge affects only the host of its request.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::io;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};
use cache::{Cache, Purge, key, tags};
use cluster::{ClusterStore, SentPurge};
use failure::IoFailure;
use http::{Fields, Name, Status};
use logging::Level;
use logging::notice::ErrorLog;
use net::offload::BlockingKind;
use net::{Exchange, Fault, PeerSet, Request};
use process::config_files::ConfigFiles;
use steps::auth;
use times::Millis;

use crate::commands::NOT_RECORDED;
use crate::purge_order::{PurgeOrder, report_document};

/// Maximum tags in one request.
const TAGS_MAX: usize = 256;
/// Maximum concurrent purges by tag in the process, because they use threads that are shared with other work.
const WAITING_MAX: usize = 64;

/// Number of purges by tag that are running or queued.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// Counts a running or queued purge until it is dropped.
struct RunningPurge;

impl RunningPurge {
    fn new() -> Option<RunningPurge> {
        let before = WAITING.fetch_add(1, Ordering::Relaxed);
        let waiting = RunningPurge;
        (before < WAITING_MAX).then_some(waiting)
    }
}

impl Drop for RunningPurge {
    fn drop(&mut self) {
        WAITING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Token that permits purging. Only its digest is kept, and digests are compared in constant time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PurgeToken(Vec<u8>);

impl PurgeToken {
    /// Creates a token from its text.
    pub fn new(token: &[u8]) -> PurgeToken {
        PurgeToken(digest(&SHA256, token).as_ref().to_vec())
    }

    fn matches(&self, token: &[u8]) -> bool {
        verify_slices_are_equal(digest(&SHA256, token).as_ref(), &self.0).is_ok()
    }
}

/// Reads token files.
///
/// # Errors
/// A file cannot be read or has no valid token; the message names the file.
pub fn purge_tokens<'p>(
    paths: impl Iterator<Item = &'p PathBuf>,
    files: &ConfigFiles,
) -> io::Result<HashMap<PathBuf, PurgeToken>> {
    let mut tokens = HashMap::new();
    for path in paths {
        let failed =
            |text: &str| io::Error::other(format!("`token_file` {}: {text}", path.display())).about(path);
        let bytes = files.read(path)?;
        let text = std::str::from_utf8(&bytes).map_err(|_| failed("it is not text"))?;
        let token = shapes::names::token(text.trim()).map_err(|fault| failed(&fault.message))?;
        tokens.insert(path.clone(), PurgeToken::new(token.as_bytes()));
    }
    Ok(tokens)
}

/// Access control of `PURGE`.
#[derive(Clone)]
pub struct PurgeAccess {
    /// Token that a request must present, if one is required.
    pub token: Option<PurgeToken>,
    /// Addresses that are allowed to purge, if they are restricted.
    pub from: Option<PeerSet>,
    /// `None` if the configuration is only being checked.
    pub notices: Option<ErrorLog>,
    /// The set of servers that get the purges of this one.
    pub cluster: Option<ClusterStore>,
}

impl PurgeAccess {
    /// Whether a request is a purge.
    pub(crate) fn is_purge(request: &Request<'_>) -> bool {
        request.method() == http::Method::Other && request.method_name() == b"PURGE"
    }

    /// Answers a purge. `keys` are the keys of the request's URL; if there are none, nothing can be stored
    /// for it.
    ///
    /// # Errors
    /// The client is gone.
    pub(crate) async fn serve(
        &self,
        exchange: &mut Exchange<'_>,
        cache: &Arc<Cache>,
        keys: Vec<Vec<u8>>,
    ) -> Result<(), Fault> {
        if auth::has_several_authorizations(&exchange.request()) {
            return exchange.refuse(Status::BAD_REQUEST, auth::SEVERAL_AUTHORIZATIONS).await;
        }
        if let Err(why) = self.check_access(&exchange.request()) {
            let address = exchange.request().client().address;
            if let Some(notices) = &self.notices {
                let line = || format!("{address}: PURGE refused: {why}");
                notices.throttled(Level::Warn, format!("PURGE refused: {why}"), line);
            }
            return exchange.refuse(Status::FORBIDDEN, "this client may not purge").await;
        }
        if keys.is_empty() {
            return exchange.refuse(Status::BAD_REQUEST, "nothing is stored for such a URL").await;
        }
        let order = match purges(&exchange.request(), &keys) {
            Ok(purges) => PurgeOrder { purges, is_soft: is_soft(&exchange.request()) },
            Err(why) => return exchange.refuse(Status::BAD_REQUEST, why).await,
        };
        let shared = self.cluster.as_ref().map(|cluster| (cluster, order.to_bytes()));
        let purged = if order.purges.iter().all(|purge| matches!(purge, Purge::Exact(_))) {
            order.apply(cache)
        } else {
            let Some(waiting) = RunningPurge::new() else {
                return exchange.refuse(Status::SERVICE_UNAVAILABLE, "too many purges are under way").await;
            };
            let cache = cache.clone();
            let all = move || {
                let _waiting = waiting;
                order.apply(&cache)
            };
            exchange.core().offload_as(BlockingKind::CacheDisk, all).await
        };
        let pending = shared.map(|(cluster, order)| cluster.begin_purge(order));
        if cache.disk().is_some() {
            let cache = cache.clone();
            let recorded =
                exchange.core().offload_as(BlockingKind::CacheDisk, move || cache.wait_recorded()).await;
            if recorded.is_err() {
                return exchange.refuse(Status::INTERNAL_SERVER_ERROR, NOT_RECORDED).await;
            }
        }
        let mut body = format!("{{\"objects\":{},\"bytes\":{}", purged.objects, purged.bytes);
        if let Some(mut pending) = pending {
            let mut late = pin!(exchange.core().sleep(Millis::of(pending.time_left())));
            let report = poll_fn(|cx| match Pin::new(&mut pending).poll(cx) {
                Poll::Ready(report) => Poll::Ready(report),
                Poll::Pending => late.as_mut().poll(cx).map(|()| SentPurge::unanswered()),
            })
            .await;
            body += &format!(",\"servers\":{}", report_document(&report));
        }
        body += "}\n";
        let mut fields = Fields::new();
        fields.push(Name::ContentType, b"application/json");
        fields.push(Name::CacheControl, b"no-store");
        exchange.reply(Status::OK, &fields, body.as_bytes()).await
    }

    /// Checks whether a request may purge.
    ///
    /// # Errors
    /// The reason why it may not, for the log.
    fn check_access(&self, request: &Request<'_>) -> Result<(), &'static str> {
        let client = request.client();
        if self.from.as_ref().is_some_and(|from| !from.contains(client.address)) {
            return Err("the address is not one of `from`");
        }
        let Some(token) = &self.token else {
            // All clients of an untrusted proxy have its address.
            let is_forwarded = client.trusted_dialect.is_none()
                && request.fields().any(|(id, name, _)| is_forwarding_field(id, name));
            return if is_forwarded {
                Err("it comes through a proxy that is not in `trusted_proxies`")
            } else {
                Ok(())
            };
        };
        let given = request.field(Name::Authorization).and_then(bearer);
        if given.is_some_and(|given| token.matches(given)) {
            Ok(())
        } else if given.is_none() {
            Err("there is no token")
        } else {
            Err("the token is wrong")
        }
    }
}

/// Fields added by proxies, in addition to all that begin with `X-Forwarded-`.
const FORWARDING_FIELDS: [&str; 12] = [
    "x-real-ip",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-original-forwarded-for",
    "x-original-host",
    "x-envoy-external-address",
    "x-azure-clientip",
    "true-client-ip",
    "client-ip",
    "cf-connecting-ip",
    "fastly-client-ip",
    "cdn-loop",
];

fn is_forwarding_field(id: Name, name: &[u8]) -> bool {
    const PREFIX: &[u8] = b"x-forwarded-";
    matches!(id, Name::Forwarded | Name::Via)
        || name.get(..PREFIX.len()).is_some_and(|start| start.eq_ignore_ascii_case(PREFIX))
        || FORWARDING_FIELDS.iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes()))
}

/// Returns the token of `Authorization: Bearer TOKEN`.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| http::scan::trim(token))
}

/// Whether the request has `Soft-Purge: 1`, as supported by Fastly.
fn is_soft(request: &Request<'_>) -> bool {
    let is_it = |name: &[u8], value: &[u8]| name.eq_ignore_ascii_case(b"soft-purge") && value == b"1";
    request.fields().any(|(_, name, value)| is_it(name, value))
}

/// Returns the purges of a request: the tags that it names, or else its URL.
///
/// # Errors
/// The request has too many tags, or a tag field without tags.
fn purges(request: &Request<'_>, keys: &[Vec<u8>]) -> Result<Vec<Purge>, &'static str> {
    // Both schemes are purged.
    let mut urls: Vec<&[u8]> = keys.iter().map(|key| key::without_scheme(key::url(key))).collect();
    urls.sort_unstable();
    urls.dedup();
    let host = urls.first().map_or(&b""[..], |url| key::host(url));
    let names = request.fields().filter(|(_, name, _)| tags::is_tag_field(name));
    let mut found = Vec::new();
    let mut is_by_tag = false;
    for (_, _, value) in names {
        is_by_tag = true;
        for tag in tags::tags_in(value) {
            if found.len() == TAGS_MAX {
                return Err("more than 256 tags in one request");
            }
            found.push(Purge::Tag { tag: tag.to_vec(), host: Some(host.to_vec()) });
        }
    }
    match (is_by_tag, found.is_empty()) {
        // A request with a tag field never purges its URL.
        (true, true) => Err("the field names no tag"),
        (true, false) => Ok(found),
        (false, _) => Ok(urls.into_iter().map(|url| Purge::Exact(url.to_vec())).collect()),
    }
}
