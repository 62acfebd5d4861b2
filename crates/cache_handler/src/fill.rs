//! Receiving a response for the cache: it is stored and passed to the waiting requests, or a stored response
//! is used instead.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use cache::vary::VaryFault;
use cache::{
    Cache, FILED_BYTES_MIN, Fill, FillResponse, Freshness, InterimResponse, NotStored, Object, Outcome,
    Policy, RequestFacts, RequestVariant, ResponseTimes, SearchRule, StoredBody, Tags, Validated, answer,
    assess, stored_fields, validated_leader_fields,
};
use coding::HashedContent;
use http::{Fields, Head, HeadRef, Length, Status};
use net::{Core, DetachedRequest, DictionarySource, DictionaryTransport, Pressure, ResponseSink};

use crate::rules::{CacheRules, MatchedRules};

/// Receives the origin's response for a fill.
pub(crate) struct FillSink {
    cache: Arc<Cache>,
    rules: Rc<CacheRules>,
    matched: MatchedRules,
    /// Rule by which the query in the key was normalized, if a response has stated one.
    search: Option<Arc<SearchRule>>,
    fill: Arc<Fill>,
    core: Core,
    /// The request, for the fields that `Vary` names.
    head: Head,
    bytes: Vec<u8>,
    facts: RequestFacts,
    stale: Option<Arc<Object>>,
    /// Whether the response answers requests with any `Accept-Encoding`, because it is compressed by this
    /// server.
    is_for_all_codings: bool,
    /// Compression dictionaries and the source of this response, if clients may keep it as a dictionary.
    dictionary: Option<(Rc<DictionaryTransport>, DictionarySource)>,
    requested_s: u64,
    /// Response to store once its content is complete.
    pending: RefCell<Option<(Status, Fields, RequestVariant, Freshness)>>,
    /// Content to store, copied to the memory file if it is large.
    filed: RefCell<Option<StoredBody>>,
    /// Whether the content is a file named by an application, whose modification time says nothing about the
    /// response.
    is_named_file: Cell<bool>,
    /// Whether the response must not be stored.
    is_unstorable: Cell<bool>,
    /// Whether a stored response is the answer, so that the rest of this one is ignored.
    is_answered: Cell<bool>,
    is_concluded: Cell<bool>,
}

impl FillSink {
    pub(crate) fn new(
        (cache, rules): (&Arc<Cache>, &Rc<CacheRules>),
        (matched, search): (MatchedRules, Option<Arc<SearchRule>>),
        request: &DetachedRequest,
        fill: Arc<Fill>,
        facts: RequestFacts,
        stale: Option<Arc<Object>>,
    ) -> FillSink {
        let core = request.core().clone();
        let HeadRef { head, bytes } = request.head();
        FillSink {
            cache: cache.clone(),
            rules: rules.clone(),
            matched,
            search,
            fill,
            requested_s: core.unix_s(),
            core,
            head: head.clone(),
            bytes: bytes.to_vec(),
            facts,
            stale,
            is_for_all_codings: false,
            dictionary: None,
            pending: RefCell::default(),
            filed: RefCell::default(),
            is_named_file: Cell::new(false),
            is_unstorable: Cell::new(false),
            is_answered: Cell::new(false),
            is_concluded: Cell::new(false),
        }
    }

    /// Sets whether the response is compressed by this server, and the dictionary source if clients may keep
    /// the response as a dictionary.
    pub(crate) fn with_codings(
        mut self,
        is_for_all_codings: bool,
        dictionary: Option<(Rc<DictionaryTransport>, DictionarySource)>,
    ) -> FillSink {
        self.is_for_all_codings = is_for_all_codings;
        self.dictionary = dictionary;
        self
    }

    /// Copies large content that is to be stored to the memory file, on another thread. Called when the
    /// content is complete.
    pub(crate) async fn file_content(&self) {
        let is_pending = self.pending.borrow().is_some();
        let body = self.fill.body().filter(|body| is_pending && body.len() >= FILED_BYTES_MIN);
        if let Some(body) = body {
            let cache = self.cache.clone();
            let filed = self.core.offload(move || cache.filed(body)).await;
            *self.filed.borrow_mut() = Some(filed);
        }
    }

    /// Ends the fill: stores the response if it is complete (`is_whole`), otherwise fails.
    pub(crate) fn conclude(&self, is_whole: bool) {
        if self.is_concluded.replace(true) {
            return;
        }
        match (self.pending.take(), is_whole) {
            (Some((status, fields, variant, freshness)), true) => {
                let filed = self.filed.take();
                if let Some(body) = &filed {
                    self.cache.count_pieces(&self.fill, body);
                }
                if let Some(body) = filed.or_else(|| self.fill.body()) {
                    let object = Object::new(status, fields, body, variant, freshness);
                    // Waiting requests use the object even if it has been purged meanwhile.
                    let object = self.cache.accounted(object);
                    self.fill.set_owner(object.clone());
                    self.store(object);
                }
            }
            (_, false) if !self.is_answered.get() => self.record_outcome(Outcome::Incomplete),
            _ => {}
        }
        // After storing, so that every request finds either the fill or the stored response.
        self.cache.remove_fill(&self.fill);
        if is_whole { self.fill.finish() } else { self.fill.fail() }
    }

    fn store(&self, object: Arc<Object>) {
        self.record_outcome(match self.cache.store(&self.fill, object.clone()) {
            Ok(()) => {
                self.keep_dictionary(&object);
                Outcome::Stored
            }
            Err(why) => Outcome::Refused(why),
        });
    }

    /// Keeps the content as a dictionary if clients do: it may not be requested again before its next version
    /// needs it.
    fn keep_dictionary(&self, object: &Object) {
        let is_kept = object.status == Status::OK
            && object.body.len() <= coding::DICTIONARY_BYTES_MAX as u64
            && self.core.memory().pressure() < Pressure::High;
        let Some((transport, source)) = self.dictionary.clone().filter(|_| is_kept) else { return };
        let body = object.body.clone();
        let fields = object.client_fields().clone();
        let core = self.core.clone();
        self.core.spawn(async move {
            if let Some(content) = core.offload(move || hashed(&body)).await {
                transport.remember_from(&source, &fields, &content, core.unix_s());
            }
        });
    }

    /// Records that the response is not stored. If it shows that the stored response being validated is
    /// outdated, that one is invalidated.
    fn refuse(&self, status: Status, why: NotStored, now_s: u64) {
        if self.stale.is_some() && invalidates_stored(status, why) {
            self.cache.invalidate(self.fill.key(), now_s);
        }
        if why.is_of_url() {
            self.cache.record_refusal(self.fill.key(), why, now_s);
        }
    }

    /// Records the outcome for `komainu cache why`.
    fn record_outcome(&self, outcome: Outcome) {
        self.cache.record_outcome(self.fill.key(), outcome, self.core.unix_s());
    }

    fn times(&self) -> ResponseTimes {
        ResponseTimes { requested_s: self.requested_s, received_s: self.core.unix_s() }
    }

    /// Handles a 304: updates the stored response and answers with it.
    fn refresh(&self, stale: &Object, update: &Fields) {
        let times = self.times();
        if !is_of_same_version(stale.client_fields(), update) {
            // The 304 refers to a version other than the stored one (RFC 9111 section 4.3.4).
            self.cache.invalidate(self.fill.key(), times.received_s);
            self.fill.fail();
            return;
        }
        let fields = stale.updated_fields(update);
        let policy = self.policy(stale.status, &fields);
        let assessed = assess(&self.facts, stale.status, &fields, times, &policy)
            .and_then(|freshness| Ok((self.variant(&fields, &policy)?, freshness)));
        let own = validated_leader_fields(&fields, times.received_s);
        let fields = stored_fields(&fields, times.received_s);
        let object = |fields, variant, freshness| {
            self.cache.accounted(Object::new(stale.status, fields, stale.body.clone(), variant, freshness))
        };
        let (own, shared) = match assessed {
            Ok((variant, freshness)) => {
                let has_own = own.as_bytes() != fields.as_bytes();
                let stored = object(fields, variant.clone(), freshness);
                self.store(stored.clone());
                let own = if has_own { object(own, variant, freshness) } else { stored.clone() };
                // If it is not fresh, waiting requests have to validate it themselves.
                (own, Some(stored).filter(|_| freshness.is_fresh(times.received_s)))
            }
            Err(why) => {
                // Valid for the request that asked, but no longer stored: its age begins with the 304.
                let freshness =
                    Freshness { received_s: times.received_s, no_cache: true, ..Freshness::default() };
                self.cache.invalidate(self.fill.key(), times.received_s);
                self.record_outcome(Outcome::Refused(why));
                (object(own, stale.variant.clone(), freshness), None)
            }
        };
        self.fill.serve_stored(own, shared, Validated::NotModified);
    }

    /// Answers with the stored response instead of an error if it may be used. Returns whether it was.
    fn serve_stale(&self, status: Status, is_own_error: bool) -> bool {
        let Some(stale) = self.stale.as_ref().filter(|_| matches!(status.code(), 500 | 502..=504)) else {
            return false;
        };
        let now_s = self.core.unix_s();
        let serves = stale.freshness().serves_on_error(now_s, !is_own_error);
        if serves {
            let how = if is_own_error { Validated::Unreachable } else { Validated::Error(status) };
            self.fill.serve_stored(stale.clone(), Some(stale.clone()), how);
        }
        serves
    }

    fn policy(&self, status: Status, fields: &Fields) -> Policy {
        let policy = self.rules.policy(self.matched, status, fields);
        if self.is_named_file.get() { Policy { heuristic_s_max: 0, ..policy } } else { policy }
    }

    /// Returns the variant of the response: the requests that it answers.
    fn variant(&self, fields: &Fields, policy: &Policy) -> Result<RequestVariant, VaryFault> {
        let mut key = self.rules.variant_fields(self.matched);
        // A response that repeats the request's `Origin` depends on it, even if `Vary` does not say so.
        let allowed = fields.first(b"access-control-allow-origin");
        let is_origin = |field: &&http::Field| field.name.of(&self.bytes).eq_ignore_ascii_case(b"origin");
        if let Some(origin) = self.head.fields.iter().find(is_origin)
            && allowed == Some(origin.value.of(&self.bytes))
        {
            key.add_field("origin");
        }
        if self.is_for_all_codings && fields.first(b"content-encoding").is_none() {
            key.add_any_coding();
        }
        RequestVariant::with_key(
            fields,
            HeadRef::new(&self.head, &self.bytes),
            &key,
            policy.rule.ignores_vary,
        )
    }

    fn assess(
        &self,
        status: Status,
        fields: &Fields,
        length: Length,
    ) -> Result<(RequestVariant, Freshness), NotStored> {
        if self.is_unstorable.get() {
            return Err(NotStored::Rule);
        }
        let policy = self.policy(status, fields);
        let freshness = assess(&self.facts, status, fields, self.times(), &policy)?;
        let variant = self.variant(fields, &policy)?;
        let stated = SearchRule::of(fields);
        let is_same = stated.as_ref() == self.search.as_deref();
        self.cache.search_rules.store(self.fill.key(), stated);
        if !is_same && self.search.is_some() {
            return Err(NotStored::NoVarySearch);
        }
        Tags::of(fields)?;
        let bytes_max = self.cache.limits().object_bytes_max;
        if matches!(length, Length::Known(length) if length > bytes_max) {
            return Err(NotStored::TooLarge);
        }
        if self.core.memory().pressure() >= Pressure::High {
            return Err(NotStored::Memory);
        }
        Ok((variant, freshness))
    }
}

impl ResponseSink for FillSink {
    fn send_interim(&self, status: Status, fields: Fields) {
        // It is not known yet whether the response may be shared: with credentials or cookies, interim
        // responses go only to the request that fetches it.
        let is_shared = !self.facts.is_authorized && !self.facts.has_cookies;
        self.fill.add_interim(InterimResponse { status, fields }, is_shared);
    }

    fn begin(&self, mut status: Status, mut fields: Fields, length: Length, is_own_error: bool) {
        self.rules.strip_response(self.matched, &mut fields);
        if answer::is_whole_part(status, &fields, length) {
            status = Status::OK;
            fields.remove(b"content-range");
        }
        let is_valid = status == Status::NOT_MODIFIED;
        if let Some(stale) = self.stale.as_ref().filter(|stale| is_valid && stale.has_validator()) {
            self.is_answered.set(true);
            self.refresh(stale, &fields);
            return;
        }
        if self.serve_stale(status, is_own_error) {
            self.is_answered.set(true);
            return;
        }
        let now_s = self.core.unix_s();
        let outcome =
            if is_own_error { Err(NotStored::Status) } else { self.assess(status, &fields, length) };
        let is_shared = match &outcome {
            Ok((_, freshness)) => freshness.is_fresh(now_s),
            // Waiting requests would get the same error.
            Err(_) => is_own_error && !self.is_unstorable.get(),
        };
        if let Err(why) = &outcome {
            self.record_outcome(if is_own_error { Outcome::Incomplete } else { Outcome::Refused(*why) });
        }
        match &outcome {
            Ok((variant, freshness)) => {
                let stored = stored_fields(&fields, now_s);
                *self.pending.borrow_mut() = Some((status, stored, variant.clone(), *freshness));
            }
            Err(why) if !is_own_error => self.refuse(status, *why, now_s),
            Err(_) => {}
        }
        let length = match length {
            Length::Known(length) => Some(length),
            Length::Unknown => None,
        };
        self.fill.respond(FillResponse { status, fields, length, outcome, is_shared });
    }

    fn note_named_file(&self) {
        self.is_named_file.set(true);
    }

    fn forbid_storing(&self) {
        self.is_unstorable.set(true);
    }

    fn write(&self, bytes: &[u8]) {
        if self.is_answered.get() {
            return;
        }
        if self.core.memory().pressure() >= Pressure::High && self.pending.take().is_some() {
            self.record_outcome(Outcome::Refused(NotStored::Memory));
            self.fill.stop_keeping();
        }
        self.fill.write(bytes);
        if !self.fill.is_kept()
            && let Some((status, ..)) = self.pending.take()
        {
            // The length was not announced. Further requests go to the origin individually.
            self.record_outcome(Outcome::Refused(NotStored::TooLarge));
            self.refuse(status, NotStored::TooLarge, self.core.unix_s());
        }
    }

    fn end(&self, trailers: Fields) {
        if !self.is_answered.get() {
            self.fill.end(trailers);
        }
    }

    fn backlog(&self) -> usize {
        usize::try_from(self.fill.backlog()).unwrap_or(usize::MAX)
    }

    fn held_bytes(&self) -> usize {
        self.fill.held_bytes()
    }

    fn is_abandoned(&self) -> bool {
        self.fill.is_abandoned()
    }

    fn set_waker(&self, waker: &Waker) {
        self.fill.set_writer(waker);
    }
}

/// Returns the content and its hash, which is also kept in `body`. `None` if it cannot be read. Blocks: must
/// not be called on serving threads.
pub(crate) fn hashed(body: &StoredBody) -> Option<HashedContent> {
    let content = HashedContent::new(body.to_pieces().ok()?);
    body.set_hash(content.hash);
    Some(content)
}

/// Whether a response to a conditional request shows that the stored response is outdated although the new
/// one is not stored (RFC 9111 section 4.3.3). Partial content, temporary errors and refusals that are
/// specific to this request do not.
fn invalidates_stored(status: Status, why: NotStored) -> bool {
    let is_of_content = matches!(status.code(), 200..=205 | 207..=303 | 305..=399 | 404 | 410);
    is_of_content && why.is_of_url() && why != NotStored::Cookie
}

/// Whether a 304 with the fields `update` is about the stored response: a strong `ETag` in it must match.
fn is_of_same_version(stored: &Fields, update: &Fields) -> bool {
    match update.first(b"etag") {
        Some(tag) if !tag.starts_with(b"W/") => stored
            .first(b"etag")
            .is_some_and(|stored| stored == tag || stored.strip_prefix(b"W/") == Some(tag)),
        _ => true,
    }
}

impl Drop for FillSink {
    fn drop(&mut self) {
        // No effect unless the server stops or the task has panicked.
        self.conclude(false);
    }
}
