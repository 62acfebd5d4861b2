//! The cache in front of a handler: serves stored responses, and fetches others from the handler for all
//! requests that wait for them.
//!
//! A response that may be stored is fetched by a request without a client (`net::DetachedRequest`): it
//! arrives at the origin's pace, for all waiting requests and for the store. Other responses are served as
//! without a cache.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cache::{
    Cache, CacheEntry, DiskLoad, FillHead, FillReader, FillResponse, FillStart, ForwardReason, Freshness,
    NotStored, Object, RequestFacts, SearchRule, Selected, Validated, answer, cache_status, key, tags, vary,
};
use http::{BodySize, Fields, HeadRef, Method, Name, Status};
use net::offload::BlockingKind;
use net::{CacheOutcome, Core, DictionaryTransport, Exchange, Fault, HeadTap, Request};
use steps::flow::Flow;
use steps::limit::{CountedRequests, RateRules};

use crate::coded::{CodedResponse, coded};
use crate::fill::FillSink;
use crate::peers::{PeerAsk, PeerOutcome, RoutePeers};
use crate::purge_method::PurgeAccess;
use crate::removals::{self, key_hash};
use crate::request::{is_unkeyed, origin_request};
use crate::responses::{unless_disconnected, write_filled, write_stored};
use crate::rules::{CacheRules, MatchedRules};

/// Maximum bytes of a response that is not stored which are read and discarded before the part that a client
/// wants.
const SKIPPED_BYTES_MAX: u64 = 256 * 1024;
/// Maximum groups that one response may invalidate; further ones are ignored (RFC 9875 asks for 32).
const GROUPS_MAX: usize = 128;

/// Handler behind the cache: the origin.
#[expect(async_fn_in_trait, reason = "futures stay on one core")]
pub trait CachedHandler: 'static {
    /// Serves a request without the cache.
    async fn serve(&self, exchange: &mut Exchange<'_>) -> Result<(), Fault>;

    /// Whether a request ends when its client disconnects (`Exchange::has_disconnected`).
    fn cancels_on_disconnect(&self) -> bool;
}

/// Cache of one route, on one core.
#[derive(Clone)]
pub struct RouteCache {
    /// Store, shared by all cores.
    pub cache: Arc<Cache>,
    /// Rules of the route.
    pub rules: Rc<CacheRules>,
    /// Whether this server compresses the route's responses. Stored content is then uncompressed, with its
    /// compressed forms next to it.
    pub compresses: bool,
    /// Compression dictionaries, if the route uses them.
    pub dictionaries: Option<Rc<DictionaryTransport>>,
    /// Access control of `PURGE`. With `None`, such requests go to the origin.
    pub purge: Option<Rc<PurgeAccess>>,
    /// Other servers of the set, which are asked before the origin.
    pub peers: Option<RoutePeers>,
    /// Hash of the key that another server of the set asks for. Only what the cache may answer is served then, with all
    /// fields of the origin.
    pub asked_key: Option<u64>,
}

thread_local! {
    /// Buffer for the key of a request, so that a hit does not allocate one.
    static KEY_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// State of a cache miss.
struct Miss {
    key: Vec<u8>,
    /// Rule by which the query in the key was normalized, if a response has stated one.
    search: Option<Arc<SearchRule>>,
    matched: MatchedRules,
    forward_reason: ForwardReason,
    stale: Option<Arc<Object>>,
    /// Whether other requests may wait for the same response.
    is_shared: bool,
    /// Whether the response may be stored.
    may_store: bool,
}

/// Result of looking up a request in the store.
enum Lookup {
    Fresh(Arc<Object>),
    /// Stale, but served while it is revalidated.
    Stale(Arc<Object>, Miss),
    Miss(Miss),
}

/// Applies the limits of requests that the cache does not answer. Returns whether the request has been refused.
async fn is_refused(rates: Option<&RateRules>, exchange: &mut Exchange<'_>) -> Result<bool, Fault> {
    match rates {
        Some(rates) => Ok(rates.run(exchange, CountedRequests::Misses).await? == Flow::Answered),
        None => Ok(false),
    }
}

impl RouteCache {
    /// Returns the cache as other servers of the set see it, one of which asks for the response with this key.
    #[must_use]
    pub fn for_peer(&self, key: u64) -> RouteCache {
        RouteCache { purge: None, peers: None, asked_key: Some(key), ..self.clone() }
    }

    /// Serves a request from the cache or by the handler that `origin` creates on demand. Requests that the
    /// cache does not answer are counted by `rates`.
    ///
    /// # Errors
    /// The client is gone, or a response in progress cannot be completed.
    pub async fn serve<O: CachedHandler>(
        &self,
        exchange: &mut Exchange<'_>,
        origin: impl FnOnce() -> O,
        rates: Option<&RateRules>,
    ) -> Result<(), Fault> {
        let matched = self.rules.matched(&exchange.request());
        if let Some(access) = self.purge.as_ref().filter(|_| PurgeAccess::is_purge(&exchange.request())) {
            let keys = self.keys(&exchange.request(), matched);
            return Box::pin(access.serve(exchange, &self.cache, keys)).await;
        }
        let mut lookup = match self.look_up(&exchange.request(), matched, exchange.core().unix_s(), None) {
            Ok(lookup) => lookup,
            Err(_) if self.asked_key.is_some() => return refuse_peer(exchange).await,
            Err(_) if is_refused(rates, exchange).await? => return Ok(()),
            Err(why) => return self.bypass(exchange, origin(), matched, why).await,
        };
        if let Lookup::Miss(miss) = &lookup
            && miss.stale.is_none()
            && let Some(load) = self.cache.begin_load(&miss.key)
        {
            // Boxed because it is rare.
            let loaded = Box::pin(self.load(exchange, load, &miss.key)).await;
            if let Ok(again) = self.look_up(&exchange.request(), matched, exchange.core().unix_s(), loaded) {
                lookup = again;
            }
        }
        match lookup {
            Lookup::Fresh(object) => {
                self.cache.counters.hits.increment();
                exchange.notes().cache = Some(CacheOutcome::Hit);
                object.count_hit();
                let ttl_s = object.freshness().ttl_s(exchange.core().unix_s());
                self.send_stored(exchange, &object, &cache_status::hit(ttl_s), matched).await
            }
            Lookup::Stale(object, miss) => {
                self.revalidate(exchange, &miss, origin());
                count(&self.cache.counters.stale);
                exchange.notes().cache = Some(CacheOutcome::Stale);
                object.count_hit();
                let ttl_s = object.freshness().ttl_s(exchange.core().unix_s());
                self.send_stored(exchange, &object, &cache_status::hit(ttl_s), matched).await
            }
            Lookup::Miss(_) if is_refused(rates, exchange).await? => Ok(()),
            // Boxed because it is rare and large.
            Lookup::Miss(miss) => Box::pin(self.fetch_or_wait(exchange, miss, origin())).await,
        }
    }

    /// Loads a response from disk into memory. `None` if there is none for this request, or another request
    /// has loaded it.
    async fn load(&self, exchange: &Exchange<'_>, load: DiskLoad, key: &[u8]) -> Option<Arc<Object>> {
        match load {
            DiskLoad::Read(on_disk, _guard) => {
                let request = exchange.detach();
                let (head, bytes) = (request.head().head.clone(), request.head().bytes.to_vec());
                let cache = self.cache.clone();
                let read = move || {
                    let read = on_disk.read(HeadRef::new(&head, &bytes))?;
                    Some(cache.filed_from_disk(read))
                };
                let read = exchange.core().offload_as(BlockingKind::CacheDisk, read).await?;
                let keeps = exchange.core().memory().pressure() < net::Pressure::High;
                self.cache.add_from_disk(key, read, keeps)
            }
            DiskLoad::Wait(waiter) => {
                poll_fn(|cx| waiter.poll(cx)).await;
                None
            }
        }
    }

    /// Looks up the stored response for a request. `loaded` has just been read from disk.
    ///
    /// # Errors
    /// The reason why the request bypasses the cache.
    fn look_up(
        &self,
        request: &Request<'_>,
        matched: MatchedRules,
        now_s: u64,
        loaded: Option<Arc<Object>>,
    ) -> Result<Lookup, ForwardReason> {
        match request.method() {
            Method::Get | Method::Head => {}
            _ => return Err(ForwardReason::Method),
        }
        if request.body() != BodySize::None || is_unkeyed(request) || self.rules.bypasses(matched) {
            return Err(ForwardReason::Bypass);
        }
        let rule = self.rules.key(matched);
        KEY_BUFFER.with_borrow_mut(|key| {
            if !self.rules.write_key(matched, key, request) {
                return Err(ForwardReason::Bypass);
            }
            let search = self.cache.search_rules.find(key);
            if let Some(search) = &search {
                key::rewrite_query(key, |query| search.normal(query));
            }
            // The configuration of the other server is another one.
            if self.asked_key.is_some_and(|asked| asked != key_hash(key)) {
                return Err(ForwardReason::Bypass);
            }
            let entry = self.cache.find(key);
            let object = entry.as_ref().and_then(|entry| entry.select(request.head()));
            let object = object.or(loaded.as_ref());
            // A response stored under another configuration may lack the key fields of the current rule.
            let is_of_rule =
                |object: &&Arc<Object>| rule.is_none_or(|rule| object.variant.covers_key(&rule.fields));
            let object = object.filter(is_of_rule);
            // A heuristic lifetime does not apply to requests with cookies, whose pages may differ.
            let is_guessed = object.is_some_and(|object| object.freshness().is_guessed);
            if is_guessed && self.rules.has_cookies(matched, request) {
                return Err(ForwardReason::Bypass);
            }
            match object {
                Some(object) if object.freshness().is_fresh(now_s) => Ok(Lookup::Fresh(object.clone())),
                object => Ok(self.miss(request, (key, search, matched), entry.as_ref(), object, now_s)),
            }
        })
    }

    fn miss(
        &self,
        request: &Request<'_>,
        (key, search, matched): (&[u8], Option<Arc<SearchRule>>, MatchedRules),
        entry: Option<&Arc<CacheEntry>>,
        object: Option<&Arc<Object>>,
        now_s: u64,
    ) -> Lookup {
        let object = object.filter(|object| object.freshness().is_kept(now_s));
        let refusal = entry.and_then(|entry| entry.refusal(now_s));
        let is_refused = match refusal {
            // Fetching the whole response each time would cost more than the part that is wanted.
            Some(NotStored::TooLarge) => true,
            // Requests without cookies may get a response that can be stored.
            Some(_) => request.field(Name::Cookie).is_some() || request.is_authorized(),
            None => false,
        };
        // A response that is never fresh is validated for each request separately and never shared.
        let is_never_fresh = object.is_some_and(|object| {
            // A soft purge ends the lifetime too, but such a response may still be shared.
            object.freshness().lifetime_s == 0 && !object.is_expired() || object.freshness().no_cache
        });
        let why = match (object, entry) {
            (Some(_), _) => ForwardReason::Stale,
            (None, Some(entry)) if !entry.objects().is_empty() => ForwardReason::VaryMiss,
            _ => ForwardReason::UriMiss,
        };
        let miss = Miss {
            key: key.to_vec(),
            search,
            matched,
            forward_reason: why,
            stale: object.cloned(),
            is_shared: refusal.is_none() && !is_never_fresh,
            may_store: request.method() == Method::Get && !is_refused,
        };
        match object {
            Some(object) if object.freshness().serves_while_revalidating(now_s) && miss.may_store => {
                Lookup::Stale(object.clone(), miss)
            }
            _ => Lookup::Miss(miss),
        }
    }

    /// Returns the keys under which responses for a request's URL may be stored; empty if there are none.
    fn keys(&self, request: &Request<'_>, matched: MatchedRules) -> Vec<Vec<u8>> {
        let mut keys = Vec::new();
        let mut key = Vec::new();
        if self.rules.write_key(matched, &mut key, request) {
            keys.extend(self.rules.other_keys(&key));
            if let Some(search) = self.cache.search_rules.find(&key) {
                // Responses stored before the origin stated this rule have the whole query in their key.
                keys.push(key.clone());
                key::rewrite_query(&mut key, |query| search.normal(query));
            }
            keys.push(key);
        }
        keys
    }

    /// Serves a request without the cache. A successful unsafe request invalidates the stored responses for
    /// its URL.
    async fn bypass(
        &self,
        exchange: &mut Exchange<'_>,
        origin: impl CachedHandler,
        matched: MatchedRules,
        why: ForwardReason,
    ) -> Result<(), Fault> {
        count(&self.cache.counters.bypassed);
        exchange.notes().cache = Some(CacheOutcome::Bypass);
        let request = exchange.request();
        let changes = !request.method().is_safe() && request.method() != Method::Connect;
        let keys = if changes { self.keys(&request, matched) } else { Vec::new() };
        let host = request.authority().to_vec();
        let changes = changes.then(|| (self.cache.clone(), exchange.core().clone()));
        exchange.set_tap(Box::new(BypassTap { changes, keys, host, forward_reason: why }));
        origin.serve(exchange).await
    }

    /// Fetches the response from the origin, or waits for one that is being fetched.
    async fn fetch_or_wait(
        &self,
        exchange: &mut Exchange<'_>,
        mut miss: Miss,
        origin: impl CachedHandler,
    ) -> Result<(), Fault> {
        let facts = self.request_facts(&exchange.request(), miss.matched);
        if facts.directives.only_if_cached {
            return exchange.refuse(Status::GATEWAY_TIMEOUT, "the response is not in the cache").await;
        }
        let is_short = exchange.core().memory().pressure() >= net::Pressure::High;
        let is_stored = miss.may_store && !facts.directives.no_store && !is_short;
        if self.asked_key.is_some() && !is_stored {
            return refuse_peer(exchange).await;
        }
        if !miss.may_store || facts.directives.no_store || is_short {
            return self.bypass(exchange, origin, miss.matched, miss.forward_reason).await;
        }
        let min_uses = self.rules.min_uses(miss.matched);
        if min_uses > 1
            && miss.stale.is_none()
            && self.asked_key.is_none()
            && self.cache.uses.count(&miss.key) < min_uses
        {
            return self.bypass(exchange, origin, miss.matched, miss.forward_reason).await;
        }
        count(&self.cache.counters.misses);
        exchange.notes().cache = Some(CacheOutcome::Miss);
        let common = self.shared_properties(&exchange.request(), miss.matched);
        let origin = Rc::new(origin);
        // At most two more attempts: a request that waited for a response that is not for it fetches its own,
        // and one whose validation failed for another version drops the condition.
        for is_shared in [miss.is_shared, false, false] {
            let reader = match self.cache.begin_fill(&miss.key, is_shared.then_some(&common[..])) {
                FillStart::Full => return self.bypass_shared(exchange, &origin, miss.forward_reason).await,
                FillStart::Follow(reader) => reader,
                FillStart::Lead(fill, reader) => {
                    self.spawn(exchange, &miss, fill, &facts, origin.clone());
                    reader
                }
            };
            let leads = reader.is_leader();
            let cancels = origin.cancels_on_disconnect();
            forward_interims(exchange, &reader, cancels).await?;
            let head = unless_disconnected(exchange, cancels, |cx| reader.poll_head(cx)).await?;
            if leads
                && let FillHead::Response(response) = &head
                && is_distant_range(&exchange.request(), response)
            {
                // Only a part far into the response is wanted, so ask the origin for that part.
                drop((reader, head));
                return self.bypass_shared(exchange, &origin, miss.forward_reason).await;
            }
            // If the origin has validated a version other than the stored one, fetch the whole response.
            let is_other = leads && matches!(head, FillHead::Failed) && miss.stale.take().is_some();
            let is_for_it = !is_other && (leads || is_usable_for(&head, &exchange.request(), &facts));
            if !is_for_it {
                continue;
            }
            if !leads {
                count(&self.cache.counters.collapsed);
                exchange.notes().cache = Some(CacheOutcome::Collapsed);
            }
            return match head {
                FillHead::Response(response) => {
                    self.send_response(exchange, &response, reader, cancels, &miss).await
                }
                FillHead::Stored(object, how) => {
                    self.send_validated(exchange, &object, how, miss.matched).await
                }
                FillHead::NotShared | FillHead::Failed => Err(Fault::Failed("the handler gave no response")),
            };
        }
        Err(Fault::Failed("the handler gave no response"))
    }

    /// Sends a stored response after validation by the origin, or in place of an error.
    async fn send_validated(
        &self,
        exchange: &mut Exchange<'_>,
        object: &Arc<Object>,
        how: Validated,
        matched: MatchedRules,
    ) -> Result<(), Fault> {
        let (status, detail) = match how {
            Validated::NotModified => (Some(304), ""),
            Validated::Error(status) => (Some(status.code()), "stale-if-error"),
            Validated::Unreachable => (None, "unreachable"),
        };
        count(&self.cache.counters.validations);
        exchange.notes().cache = Some(CacheOutcome::Validated);
        object.count_hit();
        let ttl_s = object.freshness().ttl_s(exchange.core().unix_s());
        self.send_stored(exchange, object, &cache_status::validated(status, ttl_s, detail), matched).await
    }

    async fn bypass_shared<O: CachedHandler>(
        &self,
        exchange: &mut Exchange<'_>,
        origin: &Rc<O>,
        why: ForwardReason,
    ) -> Result<(), Fault> {
        exchange.set_tap(Box::new(BypassTap {
            changes: None,
            keys: Vec::new(),
            host: Vec::new(),
            forward_reason: why,
        }));
        origin.serve(exchange).await
    }

    /// Revalidates the stored response in the background, unless a fetch is in progress.
    fn revalidate(&self, exchange: &Exchange<'_>, miss: &Miss, origin: impl CachedHandler) {
        let common = self.shared_properties(&exchange.request(), miss.matched);
        // No request waits for the response, so the reader is dropped.
        if let FillStart::Lead(fill, reader) = self.cache.begin_fill(&miss.key, Some(&common)) {
            reader.leave_to_background();
            let facts = self.request_facts(&exchange.request(), miss.matched);
            self.spawn(exchange, miss, fill, &facts, Rc::new(origin));
        }
    }

    /// Returns the properties, in addition to the key, that requests must share to wait for the same
    /// response.
    fn shared_properties(&self, request: &Request<'_>, matched: MatchedRules) -> Vec<u8> {
        let mut common = if self.compresses { Vec::new() } else { vary::accepted_codings(request.head()) };
        if let Some(key) = self.rules.key(matched) {
            key.fields.write(&mut common, request.head());
        }
        common
    }

    fn request_facts(&self, request: &Request<'_>, matched: MatchedRules) -> RequestFacts {
        let mut facts = RequestFacts {
            is_authorized: request.is_authorized(),
            has_cookies: self.rules.has_cookies(matched, request),
            ..RequestFacts::default()
        };
        for (_, _, value) in request.fields().filter(|(id, ..)| *id == Name::CacheControl) {
            facts.directives.add(value);
        }
        facts
    }

    /// Spawns a task that fetches the response from the origin.
    fn spawn<O: CachedHandler>(
        &self,
        exchange: &Exchange<'_>,
        miss: &Miss,
        fill: Arc<cache::Fill>,
        facts: &RequestFacts,
        origin: Rc<O>,
    ) {
        let mut request = origin_request(exchange, miss.stale.as_deref(), !self.compresses);
        self.rules.prepare(miss.matched, &mut request);
        let core = request.core().clone();
        let rules = (miss.matched, miss.search.clone());
        let stale = miss.stale.clone();
        let sink = FillSink::new((&self.cache, &self.rules), rules, &request, fill, *facts, stale);
        let source = self
            .dictionaries_for(miss.matched)
            .and_then(|transport| Some((transport.clone(), transport.source(&exchange.request())?)));
        let sink = Rc::new(sink.with_codings(self.compresses, source));
        let peers = self.peers.clone().map(|peers| (peers, miss.key.clone()));
        core.spawn(async move {
            let served = request
                .serve(sink.clone(), async |exchange: &mut Exchange<'_>| {
                    if let Some((peers, key)) = &peers
                        && let PeerOutcome::Served = Box::pin(peers.ask(exchange, key)).await?
                    {
                        return Ok(());
                    }
                    origin.serve(exchange).await
                })
                .await;
            if served.is_ok() {
                sink.file_content().await;
            }
            sink.conclude(served.is_ok());
        });
    }

    /// Sends a stored response, compressed if the route compresses.
    async fn send_stored(
        &self,
        exchange: &mut Exchange<'_>,
        object: &Arc<Object>,
        cache_status: &str,
        matched: MatchedRules,
    ) -> Result<(), Fault> {
        let transport = self.dictionaries_for(matched).map(Rc::as_ref);
        let coded = if self.compresses || transport.is_some() {
            let key = || self.keys(&exchange.request(), matched).pop();
            Box::pin(coded(&self.cache, transport, exchange, object, key)).await
        } else {
            CodedResponse::default()
        };
        write_stored(exchange, object, cache_status, &coded, self.asked_key.is_some()).await
    }

    /// Sends a response while it is being received, with its `Use-As-Dictionary` if the route has one.
    async fn send_response(
        &self,
        exchange: &mut Exchange<'_>,
        response: &FillResponse,
        reader: FillReader,
        cancels: bool,
        miss: &Miss,
    ) -> Result<(), Fault> {
        let transport = self.dictionaries_for(miss.matched).filter(|_| response.outcome.is_ok());
        let dictionary = transport.and_then(|transport| {
            let fields = exchange.edited(&response.fields);
            transport.use_of(&exchange.request(), response.status, &fields)
        });
        let value = dictionary.map(|used| used.value);
        let (reason, for_peer) = (miss.forward_reason, self.asked_key.is_some());
        write_filled(exchange, response, reader, cancels, reason, value.as_deref(), for_peer).await
    }

    /// Returns the compression dictionaries of the route. `None` if responses under these rules may be
    /// personal.
    fn dictionaries_for(&self, matched: MatchedRules) -> Option<&Rc<DictionaryTransport>> {
        self.dictionaries.as_ref().filter(|_| !self.rules.are_personal(matched))
    }
}

/// Refuses what another server of the set asks for; it asks the origin then.
async fn refuse_peer(exchange: &mut Exchange<'_>) -> Result<(), Fault> {
    exchange.refuse(PeerAsk::REFUSED, "the cache of this server cannot answer").await
}

/// Forwards interim responses until the head arrives. Requests that wait for another's response get only the
/// `Link` fields, because it is not known yet whether the response is for them.
async fn forward_interims(
    exchange: &mut Exchange<'_>,
    reader: &FillReader,
    cancels: bool,
) -> Result<(), Fault> {
    while let Some(interim) = unless_disconnected(exchange, cancels, |cx| reader.poll_interim(cx)).await? {
        let is_for_it = |name: &[u8]| reader.is_leader() || name.eq_ignore_ascii_case(b"link");
        if reader.is_leader() || interim.fields.iter().any(|(name, _)| is_for_it(name)) {
            exchange.send_interim(interim.status, |lines| {
                let fields = interim.fields.iter().filter(|(name, _)| is_for_it(name));
                fields.for_each(|(name, value)| lines.line(name, value));
            });
            exchange.flush().await?;
        }
    }
    Ok(())
}

/// Whether a response may be used for a request that waited for it.
fn is_usable_for(head: &FillHead, request: &Request<'_>, facts: &RequestFacts) -> bool {
    let may_have = |freshness: &Freshness| !(freshness.is_guessed && facts.has_cookies);
    match head {
        FillHead::Response(response) => match &response.outcome {
            Ok((variant, freshness)) => may_have(freshness) && variant.answers(request.head()),
            // An error page of this server, which is the same for all requests.
            Err(_) => true,
        },
        FillHead::Stored(object, _) => {
            may_have(&object.freshness()) && object.variant.answers(request.head())
        }
        FillHead::NotShared | FillHead::Failed => false,
    }
}

/// Whether a request is for a part far into a response that is too large to be stored. Everything before the
/// part would be read only to be discarded.
fn is_distant_range(request: &Request<'_>, response: &FillResponse) -> bool {
    matches!(response.outcome, Err(NotStored::TooLarge))
        && matches!(
            answer::select(request.head(), response.status, &response.fields, response.length),
            Selected::Part(part, _) if part.start >= SKIPPED_BYTES_MAX
        )
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Marks a response that bypasses the cache, and invalidates stored responses after an unsafe request (RFC
/// 9111 section 4.4).
struct BypassTap {
    /// Cache to invalidate; `None` if the request is safe.
    changes: Option<(Arc<Cache>, Core)>,
    /// Keys of the request's URL.
    keys: Vec<Vec<u8>>,
    host: Vec<u8>,
    forward_reason: ForwardReason,
}

impl HeadTap for BypassTap {
    fn head(self: Box<Self>, status: Status, fields: &mut Fields) {
        if let Some((cache, core)) = self.changes.as_ref().filter(|_| matches!(status.code(), 200..400)) {
            let now_s = core.unix_s();
            for key in &self.keys {
                removals::note_key(key, now_s);
                cache.invalidate(key, now_s);
                for name in [&b"location"[..], b"content-location"] {
                    if let Some(other) =
                        fields.first(name).and_then(|to| key::same_host_key(key, &self.host, to))
                    {
                        removals::note_key(&other, now_s);
                        cache.invalidate(&other, now_s);
                    }
                }
                invalidate_groups(cache, core, key, fields);
            }
        }
        tags::strip(fields);
        let value = cache_status::forwarded(self.forward_reason, false, None);
        fields.try_push(b"Cache-Status", value.as_bytes()).expect("made of valid characters");
    }
}

/// Invalidates the groups named by the response to an unsafe request (RFC 9875).
fn invalidate_groups(cache: &Arc<Cache>, core: &Core, key: &[u8], fields: &Fields) {
    let now_s = core.unix_s();
    for group in tags::groups_in(fields, b"cache-group-invalidation").into_iter().take(GROUPS_MAX) {
        removals::note_all(now_s);
        // A large group is invalidated by another thread.
        if let Some(rest) = cache.invalidate_group(key, &group, now_s) {
            let cache = cache.clone();
            let pool = core.clone();
            core.spawn(async move {
                _ = pool.offload_as(BlockingKind::CacheDisk, move || cache.purge(&rest, false, now_s)).await
            });
        }
    }
}
