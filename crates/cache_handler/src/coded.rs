//! Stored responses as clients get them compressed: in a coding that is made once and kept beside the content, or with the
//! dictionary that the client has.

use std::sync::Arc;

use cache::{Cache, CodedLookup, Object, Selected, answer};
use coding::{DICTIONARY_BYTES_MAX, DictionaryHash, HashedContent};
use http::{Fields, Length, Name, Status};
use net::{DeltaStart, DictionaryTransport, Exchange, Pressure, coded_fields, dictionary};

use crate::fill::hashed;

/// The longest content that is compressed to be kept; longer ones are compressed while they are sent.
const CONTENT_BYTES_MAX: u64 = 8 << 20;

/// What compression changes in a stored response.
#[derive(Default)]
pub(crate) struct CodedResponse {
    /// The fields in place of its own.
    pub(crate) fields: Option<Fields>,
    /// The content in place of its own.
    pub(crate) body: Option<Arc<[u8]>>,
    /// The value of `Use-As-Dictionary`.
    pub(crate) dictionary: Option<Vec<u8>>,
}

/// How this client gets a stored response. `key` is what it is stored under.
pub(crate) async fn coded(
    cache: &Arc<Cache>,
    transport: Option<&DictionaryTransport>,
    x: &Exchange<'_>,
    object: &Arc<Object>,
    key: impl FnOnce() -> Option<Vec<u8>>,
) -> CodedResponse {
    let mut response = CodedResponse::default();
    let mut shown = object.shown_fields().clone();
    if let Some(transport) = transport {
        let delta = StoredDelta { transport, x, object };
        if transport.may_compress(&x.request(), object.status, &x.edited(&shown)) {
            dictionary::vary_by_dictionary(&mut shown);
        }
        response.dictionary = delta.keep(&shown).await;
        if let Some((fields, body)) = delta.body(&shown).await {
            return CodedResponse { fields: Some(fields), body: Some(body), ..response };
        }
    }
    if x.request().field(Name::Range).is_none() {
        response.body = compressed(cache, x, object, &mut shown, key).await;
    }
    response.fields = Some(shown);
    response
}

/// The content in the coding that the client likes best; `shown` are its fields then. `None` where it is sent as it is, or
/// compressed while it is sent.
async fn compressed(
    cache: &Arc<Cache>,
    x: &Exchange<'_>,
    object: &Arc<Object>,
    shown: &mut Fields,
    key: impl FnOnce() -> Option<Vec<u8>>,
) -> Option<Arc<[u8]>> {
    let length = object.body.len();
    let (coding, effort) = x.coding_of(object.status, shown, Length::Known(length))?;
    let fields = coded_fields(shown, coding);
    if !is_sent(x, object.status, &fields) {
        *shown = fields;
        return Some(Arc::default());
    }
    let body = match cache.coded(object, coding) {
        CodedLookup::Made(body) => body,
        CodedLookup::Begun(job)
            if length <= CONTENT_BYTES_MAX && x.core().memory().pressure() < Pressure::High =>
        {
            let (cache, body, key) = (cache.clone(), object.body.clone(), key()?);
            // It is kept for others even if this client disconnects.
            let make = move || {
                let content = body.to_pieces().ok()?.concat();
                let made = coding::compress(coding, effort, &content).ok()?;
                let made = (made.len() < content.len()).then(|| Arc::from(made));
                cache.add_coded(&key, &job, made.clone());
                made
            };
            x.core().offload(make).await?
        }
        CodedLookup::Begun(_) | CodedLookup::None => return None,
    };
    *shown = fields;
    Some(body)
}

/// Whether content is sent: the client does not have it already.
fn is_sent(x: &Exchange<'_>, status: Status, fields: &Fields) -> bool {
    answer::select(x.request().head(), status, fields, None) == Selected::Whole
}

/// A stored response, and the dictionaries of its route.
struct StoredDelta<'d, 'x> {
    transport: &'d DictionaryTransport,
    x: &'d Exchange<'x>,
    object: &'d Arc<Object>,
}

impl StoredDelta<'_, '_> {
    /// The value of `Use-As-Dictionary`, where clients keep the response: the content is remembered then.
    async fn keep(&self, shown: &Fields) -> Option<Vec<u8>> {
        let fields = self.x.edited(shown);
        let used = self.transport.use_of(&self.x.request(), self.object.status, &fields)?;
        let until_s = self.x.core().unix_s() + used.lifetime_s;
        if let Some(hash) = self.object.body.hash() {
            // What was forgotten is remembered with the next version.
            let _ = self.transport.touch(&self.x.request(), &hash, until_s);
        } else if self.x.core().memory().pressure() < Pressure::High
            && let Some(content) = self.hashed().await
        {
            self.transport.remember(&self.x.request(), &content, until_s);
        }
        Some(used.value)
    }

    /// Fields and content compressed with the client's dictionary.
    async fn body(&self, shown: &Fields) -> Option<(Fields, Arc<[u8]>)> {
        let choice = {
            let (request, fields) = (self.x.request(), self.x.edited(shown));
            let may_compress = self.transport.may_compress(&request, self.object.status, &fields);
            may_compress
                .then(|| self.transport.choose(&request, &fields, self.x.core().unix_s()))
                .flatten()?
        };
        let mut fields = shown.clone();
        dictionary::say_compressed_with(&mut fields, choice.coding);
        if !is_sent(self.x, self.object.status, &fields) {
            return Some((fields, Arc::default()));
        }
        let hash: DictionaryHash = match self.object.body.hash() {
            Some(hash) => hash,
            None => self.hashed().await?.hash,
        };
        let body = match self.transport.start(&choice, (&hash, self.object.body.len()))? {
            DeltaStart::Ready(body) => body,
            DeltaStart::Make(..) if self.x.core().memory().pressure() >= Pressure::High => return None,
            DeltaStart::Make(job, effort) => {
                let body = self.object.body.clone();
                self.x.core().offload(move || job.run(effort, &body.to_pieces().ok()?.concat())).await?
            }
        };
        Some((fields, body))
    }

    async fn hashed(&self) -> Option<HashedContent> {
        if self.object.body.len() > DICTIONARY_BYTES_MAX as u64 {
            return None;
        }
        let body = self.object.body.clone();
        self.x.core().offload(move || hashed(&body)).await
    }
}
