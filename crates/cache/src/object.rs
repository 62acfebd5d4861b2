//! Stored responses.

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use http::{Fields, Name, Status};

use crate::cache_control::ResponseDirectives;
use crate::coded::CodedForms;
use crate::content_file::{ContentFile, FILED_BYTES_MIN, FiledContent};
use crate::freshness::{Freshness, NEVER_S, stated_s};
use crate::held::{Account, HeldBytes};
use crate::tags::{Indexed, Tags, strip};
use crate::vary::RequestVariant;

/// Overhead of an object in bytes, for allocations and tables.
const OBJECT_BYTES: usize = 512;

/// A complete stored response.
#[derive(Debug)]
pub struct Object {
    /// The status.
    pub status: Status,
    /// The fields as they are sent to clients, with `Date` and without `Age`.
    pub fields: Fields,
    /// The content.
    pub body: StoredBody,
    /// Requests that the response answers.
    pub variant: RequestVariant,
    freshness: Freshness,
    /// Fields for clients, if different: without tags.
    client_fields: Option<Fields>,
    tags: Tags,
    /// Index entries by tag, while the object is stored.
    indexed: OnceLock<Indexed>,
    /// Number of times the object was served.
    hits: AtomicU64,
    /// Time at which a soft purge made the object stale, in seconds since 1970; [`NEVER_S`] if never.
    expired_s: AtomicU64,
    held: Option<HeldBytes>,
}

/// Content in pieces, or in a memory file. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct StoredBody {
    pieces: Arc<[Arc<[u8]>]>,
    /// The content in a memory file, instead of `pieces`.
    filed: Option<Arc<FiledContent>>,
    len: u64,
    pub(crate) forms: Arc<CodedForms>,
}

impl StoredBody {
    /// Creates a content from pieces.
    #[must_use]
    pub fn new(pieces: Vec<Arc<[u8]>>) -> StoredBody {
        let len = pieces.iter().map(|piece| piece.len() as u64).sum();
        StoredBody { pieces: pieces.into(), filed: None, len, forms: Arc::default() }
    }

    /// Copies a large content to the memory file, if possible; otherwise returns it unchanged.
    pub(crate) fn filed_in(self, file: &ContentFile) -> StoredBody {
        if self.len < FILED_BYTES_MIN || self.filed.is_some() {
            return self;
        }
        match file.add(self.len, self.slices(0..self.len)) {
            Ok(filed) => StoredBody { pieces: Arc::default(), filed: Some(Arc::new(filed)), ..self },
            Err(_) => self,
        }
    }

    /// Returns the file and the range in it for a range of the content, which is limited to its length;
    /// `None` if the content is in pieces.
    #[must_use]
    pub fn file_range(&self, range: std::ops::Range<u64>) -> Option<(&Arc<File>, std::ops::Range<u64>)> {
        self.filed.as_ref().map(|filed| filed.locate(range))
    }

    /// Returns the bytes of memory that the content uses.
    fn weight_bytes(&self) -> u64 {
        self.filed.as_ref().map_or(self.len, |filed| filed.weight_bytes())
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the content is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns all pieces. Blocks to read them if the content is in a file.
    ///
    /// # Errors
    /// Errors of the file.
    pub fn to_pieces(&self) -> io::Result<Arc<[Arc<[u8]>]>> {
        if self.filed.is_none() {
            return Ok(self.pieces.clone());
        }
        self.read(0..self.len).map(|piece| piece.map(|piece| Arc::from(&piece[..]))).collect()
    }

    /// Returns the SHA-256 of the content, if [`StoredBody::set_hash`] was called.
    #[must_use]
    pub fn hash(&self) -> Option<[u8; 32]> {
        self.forms.hash.get().copied()
    }

    /// Stores the SHA-256 of the content.
    pub fn set_hash(&self, hash: [u8; 32]) {
        // A concurrent call has set the same value.
        let _ = self.forms.hash.set(hash);
    }

    /// Reads the bytes of a range, piece by piece, from memory or the file. The range is limited to the
    /// content's length.
    ///
    /// # Errors
    /// Errors of the file.
    pub fn read(&self, range: std::ops::Range<u64>) -> impl Iterator<Item = io::Result<Cow<'_, [u8]>>> {
        let filed = self.filed.iter().flat_map({
            let range = range.clone();
            move |filed| filed.read(range.clone()).map(|piece| piece.map(Cow::Owned))
        });
        self.slices(range).map(|slice| Ok(Cow::Borrowed(slice))).chain(filed)
    }

    /// Returns the bytes of a range for content in pieces; nothing if it is in a file. The range is limited
    /// to the content's length.
    pub fn slices(&self, range: std::ops::Range<u64>) -> impl Iterator<Item = &[u8]> {
        let mut at = 0u64;
        self.pieces.iter().filter_map(move |piece| {
            let start = at;
            let end = at + piece.len() as u64;
            at = end;
            let from = range.start.max(start);
            let to = range.end.min(end);
            (from < to).then(|| &piece[(from - start) as usize..(to - start) as usize])
        })
    }
}

impl Object {
    /// Creates a response to store. `fields` is the result of [`stored_fields`].
    #[must_use]
    pub fn new(
        status: Status,
        fields: Fields,
        body: StoredBody,
        variant: RequestVariant,
        freshness: Freshness,
    ) -> Object {
        let mut shown = fields.clone();
        let shown = strip(&mut shown).then_some(shown);
        // A response with too many tags is not stored.
        let tags = Tags::of(&fields).unwrap_or_default();
        let hits = AtomicU64::new(0);
        let expired_s = AtomicU64::new(NEVER_S);
        let indexed = OnceLock::new();
        Object {
            status,
            fields,
            body,
            variant,
            freshness,
            client_fields: shown,
            tags,
            indexed,
            hits,
            expired_s,
            held: None,
        }
    }

    /// Returns the fields for clients.
    #[must_use]
    pub fn client_fields(&self) -> &Fields {
        self.client_fields.as_ref().unwrap_or(&self.fields)
    }

    /// Returns the tags and groups of the response.
    #[must_use]
    pub fn tags(&self) -> &Tags {
        &self.tags
    }

    /// Keeps the index entries for as long as the object lives.
    pub(crate) fn index(&self, indexed: Indexed) {
        // A response is stored only once.
        let _ = self.indexed.set(indexed);
    }

    /// Counts a hit.
    pub fn count_hit(&self) {
        self.hits.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of hits.
    #[must_use]
    pub fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }

    /// Accounts for the object's bytes for as long as it lives.
    pub(crate) fn accounted(mut self, account: &Account) -> Arc<Object> {
        self.held = Some(HeldBytes::new(account, self.own_bytes()));
        Arc::new(self)
    }

    /// Returns the freshness, with the effect of a soft purge.
    #[must_use]
    pub fn freshness(&self) -> Freshness {
        let mut freshness = self.freshness;
        if let Some(expired_s) = self.expired_s() {
            freshness.lifetime_s = freshness.lifetime_s.min(freshness.age_s(expired_s));
        }
        freshness
    }

    /// Returns the freshness without the effect of a soft purge.
    pub(crate) fn freshness_when_stored(&self) -> Freshness {
        self.freshness
    }

    /// Returns when a soft purge made the object stale, in seconds since 1970.
    pub(crate) fn expired_s(&self) -> Option<u64> {
        stated_s(self.expired_s.load(Ordering::Acquire))
    }

    /// Replaces the content.
    pub(crate) fn with_body(self, body: StoredBody) -> Object {
        Object { body, ..self }
    }

    /// Makes the object stale at `now_s`; stale use remains possible. False if it was already expired by a
    /// soft purge.
    pub fn expire(&self, now_s: u64) -> bool {
        self.expired_s.fetch_min(now_s, Ordering::AcqRel) == NEVER_S
    }

    /// Whether a soft purge has made it stale.
    #[must_use]
    pub fn is_expired(&self) -> bool {
        self.expired_s().is_some()
    }

    /// Returns the accounted bytes of memory, including compressed forms.
    #[must_use]
    pub fn weight_bytes(&self) -> u64 {
        self.own_bytes() + self.body.forms.held_bytes()
    }

    /// Returns the accounted bytes without compressed forms, which are accounted separately.
    fn own_bytes(&self) -> u64 {
        let shown = self.client_fields.as_ref().map_or(0, |shown| shown.as_bytes().len());
        let fields = self.fields.as_bytes().len() + shown + self.tags.weight_bytes();
        (OBJECT_BYTES + fields + self.variant.weight_bytes()) as u64 + self.body.weight_bytes()
    }

    /// Whether the object has a validator (`ETag` or `Last-Modified`).
    #[must_use]
    pub fn has_validator(&self) -> bool {
        self.fields.first(b"etag").is_some() || self.fields.first(b"last-modified").is_some()
    }

    /// Returns the stored fields, updated by those of a 304 (RFC 9111 section 3.2). If the 304 has no `Date`, they
    /// have none, so that the time of its receipt counts (RFC 9110 section 6.6.1).
    #[must_use]
    pub fn updated_fields(&self, update: &Fields) -> Fields {
        let keeps = |name: &[u8]| {
            is_hop_by_hop(name)
                || name.eq_ignore_ascii_case(b"content-encoding")
                || name.eq_ignore_ascii_case(b"content-range")
        };
        let mut fields = self.fields.clone();
        fields.remove(b"date");
        for (name, _) in update.iter().filter(|(name, _)| !keeps(name)) {
            fields.remove(name);
        }
        for (name, value) in update.iter().filter(|(name, _)| !keeps(name)) {
            fields.try_push(name, value).expect("a field that was read is valid");
        }
        fields
    }
}

/// Whether a field is for one connection or proxy only, and is never stored (RFC 9111 section 3.1).
fn is_hop_by_hop(name: &[u8]) -> bool {
    let id = Name::of(name);
    id.is_framing()
        || matches!(id, Name::ProxyAuthenticate | Name::ProxyAuthorization)
        || name.eq_ignore_ascii_case(b"proxy-authentication-info")
}

/// Returns the fields of a response to store: without `Age`, which is calculated for each hit, and with a `Date`
/// of its arrival if it has none. Only these are for requests other than the one that fetched it.
#[must_use]
pub fn stored_fields(fields: &Fields, received_s: u64) -> Fields {
    fields_without(fields, &ResponseDirectives::of(fields).unstored, received_s)
}

/// Returns the fields, after a 304, for the request that validated the response: [`stored_fields`] and those that
/// `private` and `no-cache` name.
#[must_use]
pub fn validated_leader_fields(fields: &Fields, received_s: u64) -> Fields {
    fields_without(fields, &[], received_s)
}

fn fields_without(fields: &Fields, unstored: &[Vec<u8>], received_s: u64) -> Fields {
    let mut stored = Fields::new();
    for (name, value) in fields.iter() {
        let is_named = unstored.iter().any(|one| one.eq_ignore_ascii_case(name));
        if !is_named && !is_hop_by_hop(name) && !name.eq_ignore_ascii_case(b"age") {
            stored.try_push(name, value).expect("a field that was read is valid");
        }
    }
    if stored.first(b"date").is_none() {
        stored.push(Name::Date, http::condition::date_text(received_s).as_bytes());
    }
    stored
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::freshness::{RequestFacts, ResponseTimes, assess};
    use crate::policy::Policy;

    pub(crate) fn fields(lines: &[(&str, &str)]) -> Fields {
        let mut fields = Fields::new();
        for (name, value) in lines {
            fields.try_push(name.as_bytes(), value.as_bytes()).unwrap();
        }
        fields
    }

    pub(crate) fn freshness(received_s: u64, lifetime_s: u64) -> Freshness {
        Freshness {
            received_s,
            initial_age_s: 0,
            lifetime_s,
            while_revalidate_s: 5,
            if_error_s: 0,
            unreachable_s: 0,
            keep_s: None,
            no_cache: false,
            is_guessed: false,
        }
    }

    pub(crate) fn object(lines: &[(&str, &str)], body: &str) -> Object {
        let body = StoredBody::new(vec![body.as_bytes().into()]);
        Object::new(Status::OK, fields(lines), body, RequestVariant::default(), freshness(100, 10))
    }

    #[test]
    fn a_body_is_read_in_ranges() {
        let body = StoredBody::new(vec![b"abc"[..].into(), b"de"[..].into(), b"f"[..].into()]);
        let read = |range| String::from_utf8(body.slices(range).flatten().copied().collect()).unwrap();
        assert_eq!(
            (body.len(), read(0..6), read(2..4), read(3..5)),
            (6, "abcdef".into(), "cd".into(), "de".into())
        );
        assert_eq!((read(5..99), read(6..9), read(2..2)), ("f".into(), String::new(), String::new()));
    }

    #[test]
    fn connection_fields_are_not_stored() {
        let sent = fields(&[
            ("A", "1"),
            ("Cache-Control", "no-cache=\"b\", max-age=9"),
            ("B", "2"),
            ("Age", "3"),
            ("Connection", "x"),
            ("Proxy-Authenticate", "x"),
            ("Proxy-Authentication-Info", "x"),
            ("Transfer-Encoding", "x"),
            ("Content-Length", "1"),
        ]);
        let stored = stored_fields(&sent, 0);
        let names: Vec<&[u8]> = stored.iter().map(|(name, _)| name).collect();
        assert_eq!(names, [&b"A"[..], b"Cache-Control", b"Date"]);
    }

    #[test]
    fn not_modified_response_updates_only_metadata_fields() {
        let lines = [("A", "1"), ("B", "1"), ("Content-Encoding", "gzip"), ("ETag", "\"a\"")];
        let updated = object(&lines, "x").updated_fields(&fields(&[
            ("a", "2"),
            ("A", "3"),
            ("Content-Encoding", "br"),
            ("Content-Length", "9"),
            ("C", "1"),
        ]));
        let shown = String::from_utf8(updated.as_bytes().to_vec()).unwrap();
        assert_eq!(shown, "B: 1\r\nContent-Encoding: gzip\r\nETag: \"a\"\r\na: 2\r\nA: 3\r\nC: 1\r\n");
    }

    #[test]
    fn the_age_of_a_response_begins_again_with_a_304_without_date() {
        let date = |second: u64| http::condition::date_text(1_000_000 + second);
        let lines = [("Cache-Control", "max-age=60"), ("Date", &date(0)), ("ETag", "\"a\"")];
        let times = ResponseTimes { requested_s: 1_000_100, received_s: 1_000_100 };
        let age_s = |update: &[(&str, &str)]| {
            let fields = object(&lines, "x").updated_fields(&fields(update));
            let assessed =
                assess(&RequestFacts::default(), Status::OK, &fields, times, &Policy::default()).unwrap();
            assessed.age_s(1_000_100)
        };
        assert_eq!(age_s(&[("ETag", "\"a\"")]), 0);
        assert_eq!(age_s(&[("Date", &date(90))]), 10);
        assert_eq!(age_s(&[("Age", "7")]), 7);
    }

    #[test]
    fn soft_purge_keeps_the_stale_while_revalidate_period() {
        let object = object(&[], "x");
        assert!(object.freshness().is_fresh(105));
        object.expire(105);
        assert!(!object.freshness().is_fresh(105) && object.freshness().serves_while_revalidating(109));
        assert!(!object.freshness().serves_while_revalidating(110));
    }

    #[test]
    fn tags_are_kept_for_purging_and_hidden_from_clients() {
        let object = object(&[("A", "1"), ("Surrogate-Key", "a b")], "");
        assert_eq!(
            (object.tags().text(), object.client_fields().as_bytes()),
            (&b"a b"[..], &b"A: 1\r\n"[..])
        );
        // A 304 without tags keeps them; one with tags replaces them.
        assert_eq!(object.updated_fields(&fields(&[("A", "2")])).first(b"surrogate-key"), Some(&b"a b"[..]));
        assert_eq!(
            object.updated_fields(&fields(&[("Surrogate-Key", "c")])).first(b"surrogate-key"),
            Some(&b"c"[..])
        );
    }
}
