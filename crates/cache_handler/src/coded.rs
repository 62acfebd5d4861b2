//! Compression of stored responses: with a coding whose result is kept next to the content, or with a
//! dictionary that the client has.

use std::sync::Arc;

use cache::{Cache, CodedLookup, Object, Selected, answer};
use coding::{DICTIONARY_BYTES_MAX, DictionaryHash, HashedContent};
use http::{Fields, Length, Name, Status};
use net::{DeltaStart, DictionaryTransport, Exchange, Pressure, coded_fields, dictionary};

use crate::fill::hashed;

/// Maximum length of content whose compressed form is kept, in bytes. Longer content is compressed while it
/// is sent.
const CONTENT_BYTES_MAX: u64 = 8 << 20;

/// Parts of a stored response that compression replaces.
#[derive(Default)]
pub(crate) struct CodedResponse {
    /// Fields that replace those of the stored response.
    pub(crate) fields: Option<Fields>,
    /// Content that replaces the stored one.
    pub(crate) body: Option<Arc<[u8]>>,
    /// Value of `Use-As-Dictionary`.
    pub(crate) dictionary: Option<Vec<u8>>,
}

/// Returns the compressed form of a stored response for this client. `key` returns the key under which the
/// response is stored.
pub(crate) async fn coded(
    cache: &Arc<Cache>,
    transport: Option<&DictionaryTransport>,
    exchange: &Exchange<'_>,
    object: &Arc<Object>,
    key: impl FnOnce() -> Option<Vec<u8>>,
) -> CodedResponse {
    let mut response = CodedResponse::default();
    let mut shown = object.client_fields().clone();
    if let Some(transport) = transport {
        let delta = StoredDelta { transport, exchange, object };
        if transport.may_compress(&exchange.request(), object.status, &exchange.edited(&shown)) {
            dictionary::add_dictionary_vary(&mut shown);
        }
        response.dictionary = delta.keep_dictionary(&shown).await;
        if let Some((fields, body)) = delta.body(&shown).await {
            return CodedResponse { fields: Some(fields), body: Some(body), ..response };
        }
    }
    if exchange.request().field(Name::Range).is_none() {
        response.body = compressed(cache, exchange, object, &mut shown, key).await;
    }
    response.fields = Some(shown);
    response
}

/// Returns the content in the client's preferred coding and sets `shown` to its fields. `None` if the content
/// is sent uncompressed, or compressed while it is sent.
async fn compressed(
    cache: &Arc<Cache>,
    exchange: &Exchange<'_>,
    object: &Arc<Object>,
    shown: &mut Fields,
    key: impl FnOnce() -> Option<Vec<u8>>,
) -> Option<Arc<[u8]>> {
    let length = object.body.len();
    let (coding, effort) = exchange.coding_of(object.status, shown, Length::Known(length))?;
    let fields = coded_fields(shown, coding);
    if !sends_whole_content(exchange, object.status, &fields) {
        *shown = fields;
        return Some(Arc::default());
    }
    let body = match cache.coded(object, coding) {
        CodedLookup::Ready(body) => body,
        CodedLookup::Start(job)
            if length <= CONTENT_BYTES_MAX && exchange.core().memory().pressure() < Pressure::High =>
        {
            let cache = cache.clone();
            let body = object.body.clone();
            let key = key()?;
            // Kept for other requests even if this client disconnects.
            let make = move || {
                let content = body.to_pieces().ok()?.concat();
                let made = coding::compress(coding, effort, &content).ok()?;
                let made = (made.len() < content.len()).then(|| Arc::from(made));
                cache.add_coded(&key, &job, made.clone());
                made
            };
            exchange.core().offload(make).await?
        }
        CodedLookup::Start(_) | CodedLookup::Unavailable => return None,
    };
    *shown = fields;
    Some(body)
}

/// Whether the whole content is sent: the client's copy is not current.
fn sends_whole_content(exchange: &Exchange<'_>, status: Status, fields: &Fields) -> bool {
    answer::select(exchange.request().head(), status, fields, None) == Selected::Whole
}

/// A stored response and the compression dictionaries of its route.
struct StoredDelta<'d, 'x> {
    transport: &'d DictionaryTransport,
    exchange: &'d Exchange<'x>,
    object: &'d Arc<Object>,
}

impl StoredDelta<'_, '_> {
    /// Returns the value of `Use-As-Dictionary` if clients may keep the response as a dictionary, and keeps
    /// its content as one.
    async fn keep_dictionary(&self, shown: &Fields) -> Option<Vec<u8>> {
        let fields = self.exchange.edited(shown);
        let used = self.transport.use_of(&self.exchange.request(), self.object.status, &fields)?;
        let until_s = self.exchange.core().unix_s() + used.lifetime_s;
        if let Some(hash) = self.object.body.hash() {
            // A dictionary that has been evicted is added again with its next version.
            let _ = self.transport.touch(&self.exchange.request(), &hash, until_s);
        } else if self.exchange.core().memory().pressure() < Pressure::High
            && let Some(content) = self.hashed().await
        {
            self.transport.remember(&self.exchange.request(), &content, until_s);
        }
        Some(used.value)
    }

    /// Returns the fields, and the content compressed with the client's dictionary.
    async fn body(&self, shown: &Fields) -> Option<(Fields, Arc<[u8]>)> {
        let choice = {
            let request = self.exchange.request();
            let fields = self.exchange.edited(shown);
            let may_compress = self.transport.may_compress(&request, self.object.status, &fields);
            may_compress
                .then(|| self.transport.choose(&request, &fields, self.exchange.core().unix_s()))
                .flatten()?
        };
        let mut fields = shown.clone();
        dictionary::set_dictionary_coded_fields(&mut fields, choice.coding);
        if !sends_whole_content(self.exchange, self.object.status, &fields) {
            return Some((fields, Arc::default()));
        }
        let hash: DictionaryHash = match self.object.body.hash() {
            Some(hash) => hash,
            None => self.hashed().await?.hash,
        };
        let body = match self.transport.start(&choice, &hash, self.object.body.len())? {
            DeltaStart::Ready(body) => body,
            DeltaStart::Compress(..) if self.exchange.core().memory().pressure() >= Pressure::High => {
                return None;
            }
            DeltaStart::Compress(job, effort) => {
                let body = self.object.body.clone();
                self.exchange
                    .core()
                    .offload(move || job.run(effort, &body.to_pieces().ok()?.concat()))
                    .await?
            }
        };
        Some((fields, body))
    }

    async fn hashed(&self) -> Option<HashedContent> {
        if self.object.body.len() > DICTIONARY_BYTES_MAX as u64 {
            return None;
        }
        let body = self.object.body.clone();
        self.exchange.core().offload(move || hashed(&body)).await
    }
}
