//! The cache in front of a handler: what is served from it, what is asked of the handler for it, and who waits for that.
//!
//! A response that may be stored is asked for without its client (`net::DetachedRequest`): it arrives at the origin's pace, for
//! everyone who waits for it and for the store. What cannot be stored is served as if there were no cache.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use cache::{
    BrokenOff, Cache, CacheEntry, DiskLoad, FillHead, FillReader, FillResponse, FillStart, ForwardReason,
    Object, Policy, RequestFacts, Selected, Validated, answer, key, status, vary,
};
use http::{BodySize, Fields, Length, Method, Name, Status};
use net::{DefaultFields, DetachedRequest, Exchange, Fault, HeadTap, Request};

use crate::filling::FillSink;

const PARTIAL_CONTENT: Status = Status::of(206).expect("three digits");
const PRECONDITION_FAILED: Status = Status::of(412).expect("three digits");
const UNSATISFIABLE: Status = Status::of(416).expect("three digits");

/// Fields that some applications take their URL or method from, and that no key holds: a request that has one is not answered
/// from the cache, and its response is not stored.
const UNKEYED: [&str; 10] = [
    "x-http-method-override",
    "x-http-method",
    "x-method-override",
    "x-original-url",
    "x-rewrite-url",
    "x-original-host",
    "x-host",
    "x-http-host-override",
    "x-forwarded-scheme",
    "x-forwarded-server",
];

/// What asks the origin: the handler that the cache is in front of.
pub(crate) trait CachedHandler: 'static {
    /// Serves without the cache.
    async fn serve(&self, x: &mut Exchange<'_>) -> Result<(), Fault>;
}

/// The cache of one route.
#[derive(Clone)]
pub(crate) struct RouteCache {
    pub(crate) cache: Arc<Cache>,
    pub(crate) policy: Policy,
}

thread_local! {
    /// Room for the key of a request, so that a hit allocates none.
    static KEY: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// What is done with a request that finds nothing fresh.
struct Miss {
    key: Vec<u8>,
    why: ForwardReason,
    stale: Option<Arc<Object>>,
    /// Whether others may wait for its response.
    is_shared: bool,
    /// Whether its response may be stored.
    may_store: bool,
}

/// What the store says of a request.
enum Lookup {
    Fresh(Arc<Object>),
    /// Stale, and used while it is validated.
    Stale(Arc<Object>, Miss),
    Miss(Miss),
}

impl RouteCache {
    /// Serves a request from the cache, or by `origin`, which is only made where it is needed.
    ///
    /// # Errors
    /// The client is gone, or a response under way cannot be completed: pass it up.
    pub(crate) async fn serve<O: CachedHandler>(
        &self,
        x: &mut Exchange<'_>,
        origin: impl FnOnce() -> O,
    ) -> Result<(), Fault> {
        let mut lookup = match self.look_up(&x.request(), x.core().unix_s(), None) {
            Ok(lookup) => lookup,
            Err(why) => return self.pass(x, origin(), why).await,
        };
        if let Lookup::Miss(miss) = &lookup
            && miss.stale.is_none()
            && let Some(load) = self.cache.begin_load(&miss.key)
        {
            // Boxed, as it is seldom.
            let loaded = Box::pin(self.load(x, load, &miss.key)).await;
            if let Ok(again) = self.look_up(&x.request(), x.core().unix_s(), loaded) {
                lookup = again;
            }
        }
        match lookup {
            Lookup::Fresh(object) => {
                count(&self.cache.counters.hits);
                let ttl_s = object.freshness().ttl_s(x.core().unix_s());
                self.send_stored(x, &object, &status::hit(ttl_s)).await
            }
            Lookup::Stale(object, miss) => {
                self.revalidate(x, &miss, origin());
                count(&self.cache.counters.stale);
                let ttl_s = object.freshness().ttl_s(x.core().unix_s());
                self.send_stored(x, &object, &status::hit(ttl_s)).await
            }
            // Boxed, as it is seldom, and large.
            Lookup::Miss(miss) => Box::pin(self.ask(x, miss, origin())).await,
        }
    }

    /// The response on disk, which is in memory from now on.
    async fn load(&self, x: &Exchange<'_>, load: DiskLoad, key: &[u8]) -> Option<Arc<Object>> {
        match load {
            DiskLoad::Read(on_disk, _guard) => {
                let request = x.detach();
                let (head, bytes) = (request.head().0.clone(), request.head().1.to_vec());
                let read = x.core().offload(move || on_disk.read((&head, &bytes))).await?;
                let keeps = x.core().memory().pressure() < net::Pressure::High;
                self.cache.admit(key, read, keeps)
            }
            DiskLoad::Wait(waiter) => {
                poll_fn(|cx| waiter.poll(cx)).await;
                None
            }
        }
    }

    /// What is stored for a request, where `loaded` was read from disk.
    ///
    /// # Errors
    /// Why the cache has no part in it.
    fn look_up(
        &self,
        request: &Request<'_>,
        now_s: u64,
        loaded: Option<Arc<Object>>,
    ) -> Result<Lookup, ForwardReason> {
        match request.method() {
            Method::Get | Method::Head => {}
            _ => return Err(ForwardReason::Method),
        }
        if request.body() != BodySize::None || is_unkeyed(request) {
            return Err(ForwardReason::Bypass);
        }
        KEY.with_borrow_mut(|key| {
            if !write_key(key, request) {
                return Err(ForwardReason::Bypass);
            }
            let entry = self.cache.find(key);
            let object = entry.as_ref().and_then(|entry| entry.select(request.head()));
            let object = object.or(loaded.as_ref());
            match object {
                Some(object) if object.freshness().is_fresh(now_s) => Ok(Lookup::Fresh(object.clone())),
                object => Ok(self.miss(request, key, entry.as_ref(), object, now_s)),
            }
        })
    }

    fn miss(
        &self,
        request: &Request<'_>,
        key: &[u8],
        entry: Option<&Arc<CacheEntry>>,
        object: Option<&Arc<Object>>,
        now_s: u64,
    ) -> Lookup {
        let refusal = entry.and_then(|entry| entry.refusal(now_s));
        let has = |name| request.field(name).is_some();
        let is_refused = match refusal {
            // Asking for all of it again and again would cost more than the part.
            Some(cache::NotStored::TooLarge) => true,
            // Those without a cookie may get what can be stored.
            Some(_) => has(Name::Cookie) || has(Name::Authorization),
            None => false,
        };
        // What is never fresh is validated for each request by itself: nobody may have another one's response.
        let is_never_fresh =
            object.is_some_and(|object| object.freshness().lifetime_s == 0 || object.freshness().no_cache);
        let why = match (object, entry) {
            (Some(_), _) => ForwardReason::Stale,
            (None, Some(entry)) if !entry.objects().is_empty() => ForwardReason::VaryMiss,
            _ => ForwardReason::UriMiss,
        };
        let miss = Miss {
            key: key.to_vec(),
            why,
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

    /// Serves without the cache; an unsafe request that succeeds removes what is stored for its URL.
    async fn pass(
        &self,
        x: &mut Exchange<'_>,
        origin: impl CachedHandler,
        why: ForwardReason,
    ) -> Result<(), Fault> {
        count(&self.cache.counters.bypassed);
        let request = x.request();
        let mut keys = Vec::new();
        let changes = !request.method().is_safe() && request.method() != Method::Connect;
        if changes {
            let mut key = Vec::new();
            if write_key(&mut key, &request) {
                keys.push(key);
            }
        }
        let host = request.authority().to_vec();
        x.set_tap(Box::new(PassTap { cache: changes.then(|| self.cache.clone()), keys, host, why }));
        origin.serve(x).await
    }

    /// Asks the origin, or waits for the response to one who does.
    async fn ask(&self, x: &mut Exchange<'_>, miss: Miss, origin: impl CachedHandler) -> Result<(), Fault> {
        let facts = facts(&x.request());
        if facts.directives.only_if_cached {
            return x.refuse(Status::GATEWAY_TIMEOUT, "the response is not in the cache").await;
        }
        let is_short = x.core().memory().pressure() >= net::Pressure::High;
        if !miss.may_store || facts.directives.no_store || is_short {
            return self.pass(x, origin, miss.why).await;
        }
        count(&self.cache.counters.misses);
        let codings = vary::accepted_codings(x.request().head());
        let origin = Rc::new(origin);
        // At most once more: a request that waited for what is not for it asks for itself.
        for is_shared in [miss.is_shared, false] {
            let reader = match self.cache.begin(&miss.key, is_shared.then_some(&codings)) {
                FillStart::Full => return self.pass_shared(x, &origin, miss.why).await,
                FillStart::Follow(reader) => reader,
                FillStart::Lead(fill, reader) => {
                    let request = asked(x, miss.stale.as_deref(), &codings);
                    self.spawn(request, fill, &facts, miss.stale.clone(), origin.clone());
                    reader
                }
            };
            let leads = reader.leads();
            let head = poll_fn(|cx| reader.poll_head(cx)).await;
            let is_for_it = match &head {
                _ if leads => true,
                FillHead::Response(response) => match &response.outcome {
                    Ok((variant, _)) => variant.answers(x.request().head()),
                    // An error of this server, for all.
                    Err(_) => true,
                },
                FillHead::Stored(object, _) => object.variant.answers(x.request().head()),
                FillHead::Alone | FillHead::Failed => false,
            };
            if !is_for_it {
                continue;
            }
            if !leads {
                count(&self.cache.counters.collapsed);
            }
            return match head {
                FillHead::Response(response) => send_response(x, &response, reader, miss.why).await,
                FillHead::Stored(object, how) => {
                    let (status, detail) = match how {
                        Validated::NotModified => (Some(304), ""),
                        Validated::Error(status) => (Some(status.code()), "stale-if-error"),
                        Validated::Unreachable => (None, "unreachable"),
                    };
                    count(&self.cache.counters.validations);
                    let ttl_s = object.freshness().ttl_s(x.core().unix_s());
                    self.send_stored(x, &object, &status::validated(status, ttl_s, detail)).await
                }
                FillHead::Alone | FillHead::Failed => Err(Fault::Broken("the handler gave no response")),
            };
        }
        Err(Fault::Broken("the handler gave no response"))
    }

    async fn pass_shared<O: CachedHandler>(
        &self,
        x: &mut Exchange<'_>,
        origin: &Rc<O>,
        why: ForwardReason,
    ) -> Result<(), Fault> {
        x.set_tap(Box::new(PassTap { cache: None, keys: Vec::new(), host: Vec::new(), why }));
        origin.serve(x).await
    }

    /// Validates what is stored in the background, unless that is under way.
    fn revalidate(&self, x: &Exchange<'_>, miss: &Miss, origin: impl CachedHandler) {
        let codings = vary::accepted_codings(x.request().head());
        // Its reader is not kept: nobody waits.
        if let FillStart::Lead(fill, _) = self.cache.begin(&miss.key, Some(&codings)) {
            let request = asked(x, miss.stale.as_deref(), &codings);
            self.spawn(request, fill, &facts(&x.request()), miss.stale.clone(), Rc::new(origin));
        }
    }

    /// Has the origin asked by a task of its own.
    fn spawn<O: CachedHandler>(
        &self,
        request: DetachedRequest,
        fill: Arc<cache::Fill>,
        facts: &RequestFacts,
        stale: Option<Arc<Object>>,
        origin: Rc<O>,
    ) {
        let core = request.core().clone();
        let sink = Rc::new(FillSink::new((&self.cache, &self.policy), &request, fill, *facts, stale));
        core.spawn(async move {
            let served =
                request.serve(sink.clone(), async |x: &mut Exchange<'_>| origin.serve(x).await).await;
            sink.conclude(served.is_ok());
        });
    }

    /// Sends what is stored.
    async fn send_stored(
        &self,
        x: &mut Exchange<'_>,
        object: &Object,
        cache_status: &str,
    ) -> Result<(), Fault> {
        let age_s = object.freshness().age_s(x.core().unix_s());
        let selected =
            answer::select(x.request().head(), object.status, &object.fields, Some(object.body.len()));
        let sent =
            HeadToSend { status: object.status, fields: &object.fields, age_s: Some(age_s), cache_status };
        let range = match sent.begin(x, &selected, Length::Known(object.body.len())).await? {
            Some(range) => range,
            None => return Ok(()),
        };
        if x.content_wanted() {
            for slice in object.body.slices(range) {
                x.write(slice).await?;
            }
        }
        Ok(())
    }
}

/// The head of a response, and what this server adds to it.
struct HeadToSend<'h> {
    status: Status,
    fields: &'h Fields,
    age_s: Option<u64>,
    cache_status: &'h str,
}

impl HeadToSend<'_> {
    /// Begins the response that the client gets. Returns which bytes of the content follow; `None` for none.
    async fn begin(
        &self,
        x: &mut Exchange<'_>,
        selected: &Selected,
        length: Length,
    ) -> Result<Option<std::ops::Range<u64>>, Fault> {
        // It was compressed before it was stored, where that is asked for.
        x.set_compression(None);
        match selected {
            Selected::Whole => {
                self.begin_as(x, self.status, self.fields, length, None);
                Ok(Some(0..u64::MAX))
            }
            Selected::Part(part, of) => {
                let range = http::range::content_range(part, *of);
                let length = Length::Known(part.end - part.start);
                self.begin_as(x, PARTIAL_CONTENT, self.fields, length, Some(&range));
                Ok(Some(part.clone()))
            }
            Selected::NotModified => {
                let fields = answer::not_modified_fields(self.fields);
                self.begin_as(x, Status::NOT_MODIFIED, &fields, Length::Known(0), None);
                Ok(None)
            }
            Selected::Failed => {
                x.refuse(PRECONDITION_FAILED, "the resource has changed").await?;
                Ok(None)
            }
            Selected::Unsatisfiable(of) => {
                let mut more = Fields::new();
                more.push(Name::ContentRange, http::range::unsatisfied_range(*of).as_bytes());
                x.refuse_with(UNSATISFIABLE, "the range is beyond the end", &more).await?;
                Ok(None)
            }
        }
    }

    fn begin_as(
        &self,
        x: &mut Exchange<'_>,
        status: Status,
        fields: &Fields,
        length: Length,
        range: Option<&str>,
    ) {
        let own = DefaultFields {
            server: fields.first(b"server").is_some(),
            date: fields.first(b"date").is_some(),
        };
        x.begin_lines(status, length, own, |lines| {
            lines.whole(fields.wire());
            if let Some(age_s) = self.age_s {
                lines.begin(b"Age");
                lines.number(age_s);
                lines.end();
            }
            if let Some(range) = range {
                lines.line(b"Content-Range", range.as_bytes());
            }
            lines.line(b"Cache-Status", self.cache_status.as_bytes());
        });
    }
}

/// Sends a response while it arrives.
async fn send_response(
    x: &mut Exchange<'_>,
    response: &FillResponse,
    reader: FillReader,
    why: ForwardReason,
) -> Result<(), Fault> {
    let now_s = x.core().unix_s();
    let outcome = match &response.outcome {
        Ok((_, freshness)) => Ok(freshness.ttl_s(now_s)),
        Err(why) => Err(*why),
    };
    let cache_status = status::forwarded(why, !reader.leads(), Some(outcome));
    let selected = answer::select(x.request().head(), response.status, &response.fields, response.length);
    let length = response.length.map_or(Length::Unknown, Length::Known);
    let sent = HeadToSend {
        status: response.status,
        fields: &response.fields,
        age_s: None,
        cache_status: &cache_status,
    };
    let Some(range) = sent.begin(x, &selected, length).await? else { return Ok(()) };
    if !x.content_wanted() {
        return Ok(());
    }
    let mut at = 0u64;
    while let Some(piece) = next_piece(x, &reader).await? {
        let end = at + piece.len() as u64;
        let (from, to) = (range.start.max(at), range.end.min(end));
        if from < to {
            x.write(&piece[(from - at) as usize..(to - at) as usize]).await?;
        }
        at = end;
        if at >= range.end {
            break;
        }
    }
    Ok(())
}

/// The next piece; what was written before goes out ahead of a wait.
async fn next_piece(x: &mut Exchange<'_>, reader: &FillReader) -> Result<Option<Arc<[u8]>>, Fault> {
    const BROKEN: fn(BrokenOff) -> Fault = |_| Fault::Broken("the response of the origin broke off");
    let now = poll_fn(|cx| match reader.poll_piece(cx) {
        Poll::Ready(piece) => Poll::Ready(Some(piece)),
        Poll::Pending => Poll::Ready(None),
    });
    if let Some(piece) = now.await {
        return piece.map_err(BROKEN);
    }
    x.flush().await?;
    poll_fn(|cx| reader.poll_piece(cx)).await.map_err(BROKEN)
}

/// The request for the origin: complete and unconditional, or a question whether what is stored is valid.
fn asked(x: &Exchange<'_>, stale: Option<&Object>, codings: &[u8]) -> DetachedRequest {
    let mut request = x.detach();
    let is_vouched = x.request().client().vouched.is_some();
    request.retain(|id, name| {
        let is_claim = name.len() > 12 && name[..12].eq_ignore_ascii_case(b"x-forwarded-")
            || matches!(
                id,
                Name::Forwarded | Name::XForwardedFor | Name::XForwardedHost | Name::XForwardedProto
            )
            || name.eq_ignore_ascii_case(b"x-real-ip");
        let is_ours = answer::is_conditional(id) || matches!(id, Name::Range | Name::AcceptEncoding);
        !is_ours && (is_vouched || !is_claim)
    });
    if !codings.is_empty() {
        request.add(Name::AcceptEncoding, codings);
    }
    if let Some(stale) = stale {
        if let Some(etag) = stale.fields.first(b"etag") {
            request.add(Name::IfNoneMatch, etag);
        }
        if let Some(modified) = stale.fields.first(b"last-modified") {
            request.add(Name::IfModifiedSince, modified);
        }
    }
    request
}

fn facts(request: &Request<'_>) -> RequestFacts {
    let mut facts = RequestFacts {
        is_authorized: request.field(Name::Authorization).is_some(),
        ..RequestFacts::default()
    };
    for (_, _, value) in request.fields().filter(|(id, ..)| *id == Name::CacheControl) {
        facts.directives.add(value);
    }
    facts
}

/// Whether its response may depend on what the key does not hold.
fn is_unkeyed(request: &Request<'_>) -> bool {
    request.fields().any(|(id, name, _)| match id {
        Name::Upgrade => true,
        Name::Other => UNKEYED.iter().any(|one| name.eq_ignore_ascii_case(one.as_bytes())),
        _ => false,
    })
}

/// Writes the key of a request; false where it has none.
fn write_key(key: &mut Vec<u8>, request: &Request<'_>) -> bool {
    let Ok(path) = request.encoded_path() else { return false };
    let query = request.encoded_query();
    let client = request.client();
    let mut variation = Vec::new();
    if client.vouched.is_some() {
        // A trusted proxy passes on what its clients claim, and so does this server.
        for (id, name, value) in request.fields() {
            let is_other =
                id == Name::Other && name.len() > 12 && name[..12].eq_ignore_ascii_case(b"x-forwarded-");
            if is_other || id == Name::XForwardedHost {
                variation.extend_from_slice(&[name, b"=", value, b" "].concat());
            }
        }
    }
    key::write_key(key, client.secure, request.authority(), &path, query.as_deref(), &variation)
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Marks a response that the cache has no part in, and removes what it has made invalid (RFC 9111 section 4.4).
struct PassTap {
    /// `None` for a safe request.
    cache: Option<Arc<Cache>>,
    /// The request's own.
    keys: Vec<Vec<u8>>,
    host: Vec<u8>,
    why: ForwardReason,
}

impl HeadTap for PassTap {
    fn head(self: Box<Self>, status: Status, fields: &mut Fields) {
        if let Some(cache) = self.cache.as_ref().filter(|_| matches!(status.code(), 200..400)) {
            for key in &self.keys {
                cache.invalidate(key);
                for name in [&b"location"[..], b"content-location"] {
                    if let Some(other) = fields.first(name).and_then(|to| key::sibling(key, &self.host, to)) {
                        cache.invalidate(&other);
                    }
                }
            }
        }
        let value = status::forwarded(self.why, false, None);
        fields.try_push(b"Cache-Status", value.as_bytes()).expect("made of valid characters");
    }
}
