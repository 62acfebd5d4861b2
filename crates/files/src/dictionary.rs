//! Compression dictionary transport: files that clients keep as dictionaries, and files compressed with them.

use std::rc::Rc;
use std::sync::Arc;

use coding::{DICTIONARY_BYTES_MAX, DictionaryHash, HashedContent};
use http::Status;
use http::condition::Validators;
use net::offload::BlockingKind;
use net::{DeltaStart, DictionaryChoice, DictionaryTransport, Exchange, Pressure};

use crate::entry::{FileEntry, HashState, Variant};
use crate::finder::read_content;
use crate::request_fields::{RequestFields, SendPlan};

/// Effects of dictionary transport on the response to one request.
#[derive(Default)]
pub(crate) struct DictionaryEffects {
    /// Value of `Use-As-Dictionary`.
    pub(crate) value: Option<Vec<u8>>,
    /// The file compressed with the client's dictionary.
    pub(crate) variant: Option<Rc<Variant>>,
}

/// Determines the effects of dictionary transport on the response with this file.
pub(crate) async fn evaluate(
    transport: &DictionaryTransport,
    exchange: &Exchange<'_>,
    entry: &Rc<FileEntry>,
) -> DictionaryEffects {
    let plain = entry.plain();
    let now_s = exchange.core().unix_s();
    let (used, choice) = {
        let request = exchange.request();
        let fields = exchange.edited(&plain.fields);
        let may_compress = transport.may_compress(&request, Status::OK, &fields);
        let choice = may_compress.then(|| transport.choose(&request, &fields, now_s)).flatten();
        (transport.use_of(&request, Status::OK, &fields), choice)
    };
    if plain.length > DICTIONARY_BYTES_MAX as u64 || used.is_none() && choice.is_none() {
        return DictionaryEffects::default();
    }
    let until_s = used.as_ref().map(|used| now_s + used.lifetime_s);
    let value = used.map(|used| used.value);
    let Some(hash) = hash(transport, exchange, entry, until_s).await else {
        return DictionaryEffects { value, variant: None };
    };
    let variant = match choice {
        Some(choice) => compressed(transport, exchange, entry, &hash, &choice).await,
        None => None,
    };
    DictionaryEffects { value, variant }
}

/// Returns the hash of the file; with `until_s`, the file is also registered as a dictionary. `None` if the
/// hash is being computed, or the file has changed.
async fn hash(
    transport: &DictionaryTransport,
    exchange: &Exchange<'_>,
    entry: &Rc<FileEntry>,
    until_s: Option<u64>,
) -> Option<DictionaryHash> {
    match entry.hash.get() {
        HashState::Running => None,
        HashState::Known(hash) => {
            if let Some(until_s) = until_s {
                // A dictionary that was evicted is registered again when the file is opened again.
                let _ = transport.touch(&exchange.request(), &hash, until_s);
            }
            Some(hash)
        }
        HashState::Unknown => {
            let running = HashingFile::begin(entry);
            let content = entry.plain().content.clone();
            let stamp = entry.stamp();
            let read =
                move || read_content(&content, &stamp).ok()?.map(|bytes| HashedContent::new([bytes].into()));
            let content = exchange.core().offload_as(BlockingKind::Files, read).await?;
            running.end(content.hash);
            if let Some(until_s) = until_s.filter(|_| exchange.core().memory().pressure() < Pressure::High) {
                transport.remember(&exchange.request(), &content, until_s);
            }
            Some(content.hash)
        }
    }
}

/// Returns the file compressed with the client's dictionary; `None` if another coding is as good.
async fn compressed(
    transport: &DictionaryTransport,
    exchange: &Exchange<'_>,
    entry: &Rc<FileEntry>,
    hash: &DictionaryHash,
    choice: &DictionaryChoice,
) -> Option<Rc<Variant>> {
    let variant = |bytes: Arc<[u8]>| Some(Rc::new(entry.compressed_with(choice.coding, bytes)));
    if has_current_copy(exchange, entry) {
        return variant(Arc::default());
    }
    match transport.start(choice, hash, entry.plain().length)? {
        DeltaStart::Ready(bytes) => variant(bytes),
        DeltaStart::Compress(..) if exchange.core().memory().pressure() >= Pressure::High => None,
        DeltaStart::Compress(job, effort) => {
            let content = entry.plain().content.clone();
            let stamp = entry.stamp();
            // The result is kept for other clients even if this one disconnects.
            let make = move || job.run(effort, &read_content(&content, &stamp).ok()??);
            variant(exchange.core().offload(make).await?)
        }
    }
}

/// Whether the client has this file already, compressed or not, so that no content is sent.
fn has_current_copy(exchange: &Exchange<'_>, entry: &FileEntry) -> bool {
    let request = exchange.request();
    let tag = entry.dictionary_etag();
    let asked = RequestFields::of(request.fields().map(|(name, _, value)| (name, value)));
    let validators = Validators { etag: Some(&tag), ..entry.plain().validators() };
    asked.plan(request.method(), &validators, entry.plain().length, 0) == SendPlan::NotModified
}

/// Guard of a hash computation; if it is dropped before the end, the next request starts over.
struct HashingFile<'e>(&'e FileEntry);

impl HashingFile<'_> {
    fn begin(entry: &FileEntry) -> HashingFile<'_> {
        entry.hash.set(HashState::Running);
        HashingFile(entry)
    }

    fn end(self, hash: DictionaryHash) {
        self.0.hash.set(HashState::Known(hash));
    }
}

impl Drop for HashingFile<'_> {
    fn drop(&mut self) {
        if matches!(self.0.hash.get(), HashState::Running) {
            self.0.hash.set(HashState::Unknown);
        }
    }
}
