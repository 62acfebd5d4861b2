//! Files ready to be sent: every representation with its fields, which are created once and then copied.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use coding::{DictionaryCoding, DictionaryHash};
use http::condition::{Validators, date_text};
use http::{Coding, Fields, Name};
use net::dictionary;
use times::Moment;

use crate::media;
use crate::open::Stamp;
use crate::options::Options;
use crate::tree::{Content, FilePiece, LoadedFile};

/// Approximate memory of an entry without its contents.
const ENTRY_BYTES: u64 = 1024;
/// Age in seconds up to which a file counts as unsettled: it may change again without a change of its
/// timestamps.
const RECENTLY_MODIFIED_S: i64 = 2;

/// A cached file.
#[derive(Debug)]
pub struct FileEntry {
    /// Key in the cache.
    pub key: Box<[u8]>,
    /// Representations: the file itself, followed by the siblings.
    pub variants: Vec<Rc<Variant>>,
    /// Available codings in order of preference, identity last; empty if the file has only one
    /// representation.
    pub codings: Vec<Coding>,
    /// Time of the last check that the path still names this file, in milliseconds of the core's clock.
    pub checked_at: Cell<Moment>,
    /// Stamp of each variant's file.
    stamps: Vec<Stamp>,
    /// Whether any change after opening shows in the modification time.
    is_settled: bool,
    /// Whether the codings come from live compression instead of siblings.
    is_live_compressed: bool,
    compressed_states: RefCell<Vec<(Coding, CompressedState)>>,
    /// Hash of the file itself, if it was needed.
    pub(crate) hash: Cell<HashState>,
}

/// State of a file's SHA-256 hash.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum HashState {
    /// Not requested yet.
    #[default]
    Unknown,
    /// Being computed.
    Running,
    /// The hash.
    Known(DictionaryHash),
}

/// A representation of a file.
#[derive(Debug)]
pub struct Variant {
    /// Length in bytes.
    pub length: u64,
    /// Value of `Content-Type`.
    pub content_type: String,
    /// Value of `ETag`. Strong: modification time in nanoseconds and length, in hexadecimal, and the coding
    /// of a sibling. Weak for live compression, because another release may compress to different bytes.
    pub etag: Vec<u8>,
    /// Modification time for `Last-Modified`, in seconds since 1970.
    pub modified_s: u64,
    /// Content of the representation.
    pub content: Content,
    /// Fields of a 200 response.
    pub fields: Fields,
    /// Fields of a 304 response.
    pub fields_not_modified: Fields,
    /// Whether range requests are supported.
    pub ranges: bool,
    /// Time until which the file is assumed to be in the page cache, in milliseconds of the core's clock.
    pub warm_until: Cell<Moment>,
}

/// State of live compression with one coding.
#[derive(Clone, Debug)]
pub enum CompressedState {
    /// In progress.
    Running,
    /// Completed; the result is smaller than the file.
    Ready(Rc<Variant>),
    /// Completed, but the result is not smaller.
    Useless,
}

impl FileEntry {
    /// Creates the entry of a file for `key`. `now_s` is the wall-clock time, `now` that of the core's
    /// clock.
    #[must_use]
    pub fn new(key: &[u8], loaded: &LoadedFile, options: &Options, now_s: u64, now: Moment) -> FileEntry {
        let media = options.media_type(&loaded.path);
        let plain = &loaded.plain;
        // A media type for compressed content already implies the coding.
        let stored =
            if http::media::is_compressed(media) { Coding::Identity } else { media::coding(&loaded.path) };
        let is_coded = stored != Coding::Identity;
        let live =
            loaded.siblings.is_empty() && !is_coded && is_worth_compressing(media, plain.stamp.size, options);
        let codings = match &options.files.compress {
            Some(compression) if live => with_identity(compression.codings.iter().copied()),
            _ if loaded.siblings.is_empty() => Vec::new(),
            _ => with_identity(loaded.siblings.iter().map(|(coding, _)| *coding)),
        };
        let maker = VariantBuilder {
            options,
            content_type: media::content_type(media, options.files.charset.as_deref()).into_owned(),
            cache_control: cache_control(options, &loaded.path, media),
            vary: match &options.dictionaries {
                Some(of) if !is_coded && http::media::matches_any(media, &of.media) => {
                    "Accept-Encoding, Available-Dictionary"
                }
                _ if codings.is_empty() => "",
                _ => "Accept-Encoding",
            },
            stored,
            now_s,
        };
        let mut variants = vec![Rc::new(maker.variant(plain, Coding::Identity))];
        let mut stamps = vec![plain.stamp];
        for (coding, piece) in &loaded.siblings {
            variants.push(Rc::new(maker.variant(piece, *coding)));
            stamps.push(piece.stamp);
        }
        let settled =
            stamps.iter().all(|stamp| stamp.modified_s.saturating_add(RECENTLY_MODIFIED_S) < now_s as i64);
        FileEntry {
            key: key.into(),
            variants,
            codings,
            checked_at: Cell::new(now),
            stamps,
            is_settled: settled,
            is_live_compressed: live,
            compressed_states: RefCell::default(),
            hash: Cell::default(),
        }
    }

    /// Returns the variant of the file itself, uncompressed.
    #[must_use]
    pub fn plain(&self) -> &Rc<Variant> {
        &self.variants[0]
    }

    /// Returns the stamp of the plain file when it was opened.
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        self.stamps[0]
    }

    /// Returns the representation in a coding if it exists as a file: the file itself or a sibling.
    #[must_use]
    pub fn variant(&self, coding: Coding) -> Option<&Rc<Variant>> {
        match coding {
            Coding::Identity => self.variants.first(),
            _ if self.is_live_compressed => None,
            // The codings are those of the siblings, in the same order.
            _ => self
                .codings
                .iter()
                .position(|&other| other == coding)
                .and_then(|at| self.variants.get(at + 1)),
        }
    }

    /// Returns the state of live compression with a coding.
    #[must_use]
    pub fn compressed_state(&self, coding: Coding) -> Option<CompressedState> {
        self.compressed_states
            .borrow()
            .iter()
            .find(|(other, _)| *other == coding)
            .map(|(_, made)| made.clone())
    }

    /// Sets the state of live compression with a coding; `None` removes it.
    pub fn set_compressed_state(&self, coding: Coding, state: Option<CompressedState>) {
        let mut all = self.compressed_states.borrow_mut();
        all.retain(|(other, _)| *other != coding);
        all.extend(state.map(|made| (coding, made)));
    }

    /// Creates the variant with the compressed bytes, which has no ranges and a weak tag.
    #[must_use]
    pub fn compressed(&self, coding: Coding, bytes: Vec<u8>) -> Variant {
        let plain = self.plain();
        let etag = etag(&self.stamps[0], coding, true).into_bytes();
        let retagged = |fields: &Fields| {
            let mut fields = fields.clone();
            fields.remove(b"ETag");
            fields.push(Name::Etag, &etag);
            fields
        };
        let mut fields = retagged(&plain.fields);
        fields.remove(b"Accept-Ranges");
        fields.push(Name::ContentEncoding, coding.text().as_bytes());
        Variant {
            length: bytes.len() as u64,
            content_type: plain.content_type.clone(),
            modified_s: plain.modified_s,
            content: Content::Memory(bytes.into()),
            fields,
            fields_not_modified: retagged(&plain.fields_not_modified),
            ranges: false,
            warm_until: Cell::new(Moment::ZERO),
            etag,
        }
    }

    /// Returns the tag of variants that are compressed with a dictionary. It is the same for all
    /// dictionaries.
    #[must_use]
    pub fn dictionary_etag(&self) -> Vec<u8> {
        etag(&self.stamps[0], Coding::Identity, true).into_bytes()
    }

    /// Creates a variant that is compressed with a dictionary, which has no ranges and a weak tag.
    #[must_use]
    pub fn compressed_with(&self, coding: DictionaryCoding, bytes: Arc<[u8]>) -> Variant {
        let plain = self.plain();
        let mut fields = plain.fields.clone();
        let mut fields_not_modified = plain.fields_not_modified.clone();
        dictionary::set_dictionary_coded_fields(&mut fields, coding);
        dictionary::weaken_tag(&mut fields_not_modified);
        Variant {
            length: bytes.len() as u64,
            content_type: plain.content_type.clone(),
            etag: self.dictionary_etag(),
            modified_s: plain.modified_s,
            content: Content::Memory(bytes),
            fields,
            fields_not_modified,
            ranges: false,
            warm_until: Cell::new(Moment::ZERO),
        }
    }

    /// Whether `other`, opened later, is the same file in the same state.
    #[must_use]
    pub fn is_same_as(&self, other: &FileEntry) -> bool {
        let same_bytes = |(one, other): (&Rc<Variant>, &Rc<Variant>)| match (&one.content, &other.content) {
            (Content::Memory(one), Content::Memory(other)) => one == other,
            _ => false,
        };
        self.stamps == other.stamps
            && self.codings == other.codings
            && (self.is_settled || self.variants.iter().zip(&other.variants).all(same_bytes))
    }

    /// Memory in use, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        ENTRY_BYTES + self.variants.iter().map(|variant| variant.memory_bytes()).sum::<u64>()
    }
}

impl Variant {
    /// Returns the validators of this representation.
    #[must_use]
    pub fn validators(&self) -> Validators<'_> {
        Validators { etag: Some(&self.etag), modified_s: Some(self.modified_s) }
    }

    /// Memory used by the content, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        match &self.content {
            Content::Memory(bytes) => bytes.len() as u64,
            Content::File(_) => 0,
        }
    }
}

/// Common properties of the variants of one file.
struct VariantBuilder<'o> {
    options: &'o Options,
    content_type: String,
    cache_control: Option<&'o str>,
    /// Value of `Vary`; empty for none.
    vary: &'static str,
    /// Coding in which the file is stored.
    stored: Coding,
    now_s: u64,
}

impl VariantBuilder<'_> {
    fn variant(&self, piece: &FilePiece, coding: Coding) -> Variant {
        let stamp = piece.stamp;
        let content = piece.content.clone();
        let length = match &content {
            Content::Memory(bytes) => bytes.len() as u64,
            Content::File(_) => stamp.size,
        };
        let etag = etag(&stamp, coding, false).into_bytes();
        // Last-Modified must not lie in the future (RFC 9110 section 8.8.2.1).
        let modified_s = (stamp.modified_s.max(0) as u64).min(self.now_s);
        let ranges = self.options.files.ranges_max > 0;
        let mut fields_not_modified = Fields::new();
        fields_not_modified.push(Name::Etag, &etag);
        fields_not_modified.push(Name::LastModified, date_text(modified_s).as_bytes());
        if let Some(value) = self.cache_control {
            fields_not_modified.push(Name::CacheControl, value.as_bytes());
        }
        if !self.vary.is_empty() {
            fields_not_modified.push(Name::Vary, self.vary.as_bytes());
        }
        fields_not_modified.extend(&self.options.fields);
        let mut fields = Fields::new();
        fields.push(Name::ContentType, self.content_type.as_bytes());
        if let Some(coding) = [coding, self.stored].into_iter().find(|one| *one != Coding::Identity) {
            fields.push(Name::ContentEncoding, coding.text().as_bytes());
        }
        if ranges {
            fields.push(Name::AcceptRanges, b"bytes");
        }
        fields.extend(&fields_not_modified);
        let content_type = self.content_type.clone();
        let warm_until = Cell::new(Moment::ZERO);
        Variant {
            length,
            content_type,
            etag,
            modified_s,
            content,
            fields,
            fields_not_modified,
            ranges,
            warm_until,
        }
    }
}

fn etag(stamp: &Stamp, coding: Coding, live: bool) -> String {
    let modified_ns =
        (stamp.modified_s as u64).wrapping_mul(1_000_000_000).wrapping_add(stamp.modified_ns as u64);
    let weak = if live { "W/" } else { "" };
    let size = stamp.size;
    match coding {
        Coding::Identity => format!("{weak}\"{modified_ns:x}-{size:x}\""),
        coding => format!("{weak}\"{modified_ns:x}-{size:x}-{}\"", coding.text()),
    }
}

fn is_worth_compressing(media: &str, size: u64, options: &Options) -> bool {
    options.files.compress.as_ref().is_some_and(|compression| {
        (compression.min_bytes..=compression.max_bytes).contains(&size)
            && http::media::matches_any(media, &compression.types)
            && !http::media::is_compressed(media)
    })
}

fn cache_control<'o>(options: &'o Options, path: &[u8], media: &str) -> Option<&'o str> {
    let rule = options.files.cache_control.iter().find(|(files, _)| files.selects(path, media));
    rule.map(|(_, value)| value.as_str())
}

fn with_identity(codings: impl Iterator<Item = Coding>) -> Vec<Coding> {
    codings.filter(|&coding| coding != Coding::Identity).chain([Coding::Identity]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extreme_modification_times_are_accepted() {
        for modified_s in [i64::MIN, -1, 0, i64::MAX] {
            let mut stamp = Stamp::default();
            stamp.modified_s = modified_s;
            let plain = FilePiece { stamp, content: Content::Memory(Arc::default()) };
            let loaded = LoadedFile { path: b"/a".to_vec(), plain, siblings: Vec::new() };
            let entry = FileEntry::new(b"/a", &loaded, &Options::default(), 1_800_000_000, Moment::ZERO);
            assert!(entry.plain().modified_s <= 1_800_000_000);
            assert_eq!(entry.is_settled, modified_s < i64::MAX, "what will be changed yet is not settled");
        }
    }
}
