//! Tags of responses for purging: `Surrogate-Key`, `xkey`, `Cache-Tag`, and groups (RFC 9875).

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use http::Fields;

use crate::cache_control::joined;
use crate::structured_fields;

/// Maximum tags and groups of one response; a response with more is not stored, because purges would miss it.
pub const TAGS_MAX: usize = 1024;
/// Maximum bytes of one tag; a response with a longer one is not stored.
pub const TAG_BYTES_MAX: usize = 256;
/// Accounted bytes of one tag of one response, in addition to its text: its index entry.
const TAG_WEIGHT_BYTES: usize = 80;
/// Fields that list tags.
const TAG_FIELDS: [&[u8]; 3] = [b"surrogate-key", b"xkey", b"cache-tag"];
/// Number of parts of the index, each with its own lock.
const SHARDS: usize = 16;

/// Shared, so that labels are comparable; randomly seeded, so that collisions cannot be constructed.
static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// Kind of a labelled text, so that a tag and a group with the same name differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum LabelKind {
    /// A tag.
    Tag,
    /// A group (RFC 9875).
    Group,
    /// A URL.
    Url,
}

/// Returns the hash of a text for the index and the purge log.
pub(crate) fn label(kind: LabelKind, text: &[u8]) -> u64 {
    HASHER.hash_one((kind, text))
}

/// Returns the hash of a label within a host or origin; an empty scope means everywhere.
pub(crate) fn mark(label: u64, scope: &[u8]) -> u64 {
    HASHER.hash_one((label, scope))
}

/// The tags and groups of a response.
#[derive(Clone, Debug, Default)]
pub struct Tags {
    /// Sorted labels.
    labels: Arc<[u64]>,
    /// Names separated by spaces, for people.
    text: Box<[u8]>,
}

/// Error: a response has too many tags, or one that is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyTags;

impl Tags {
    /// Parses the tags and groups of a response. An invalid `Cache-Groups` is ignored.
    ///
    /// # Errors
    /// There are too many tags, or one is too long.
    pub fn of(fields: &Fields) -> Result<Tags, TooManyTags> {
        let mut labels = Vec::new();
        let mut text = Vec::new();
        let mut add = |kind, one: &[u8]| {
            labels.push(label(kind, one));
            text.extend_from_slice(if text.is_empty() { b"" } else { b" " });
            text.extend_from_slice(one);
            if labels.len() > TAGS_MAX || one.len() > TAG_BYTES_MAX { Err(TooManyTags) } else { Ok(()) }
        };
        for (_, value) in fields.iter().filter(|(name, _)| is_tag_field(name)) {
            tags_in(value).try_for_each(|one| add(LabelKind::Tag, one))?;
        }
        groups_in(fields, b"cache-groups").iter().try_for_each(|one| add(LabelKind::Group, one))?;
        labels.sort_unstable();
        labels.dedup();
        Ok(Tags { labels: labels.into(), text: text.into() })
    }

    /// Returns the sorted labels.
    pub(crate) fn labels(&self) -> &[u64] {
        &self.labels
    }

    /// Whether the label is among them.
    pub(crate) fn has(&self, label: u64) -> bool {
        self.labels.binary_search(&label).is_ok()
    }

    /// Returns the names, separated by spaces.
    #[must_use]
    pub fn text(&self) -> &[u8] {
        &self.text
    }

    /// Returns the accounted bytes.
    #[must_use]
    pub fn weight_bytes(&self) -> usize {
        self.text.len() + self.labels.len() * TAG_WEIGHT_BYTES
    }
}

/// Returns the tags in a field value, separated by spaces or commas, as used by Fastly, Varnish and
/// Cloudflare.
pub fn tags_in(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| matches!(byte, b' ' | b'\t' | b',')).filter(|one| !one.is_empty())
}

/// Returns the strings of `Cache-Groups` or `Cache-Group-Invalidation` (RFC 9875); none if the field is
/// invalid.
#[must_use]
pub fn groups_in(fields: &Fields, name: &[u8]) -> Vec<Vec<u8>> {
    match fields.first(name) {
        Some(_) => structured_fields::strings(&joined(fields, name)).unwrap_or_default(),
        None => Vec::new(),
    }
}

/// Whether a field lists tags.
#[must_use]
pub fn is_tag_field(name: &[u8]) -> bool {
    TAG_FIELDS.iter().any(|one| name.eq_ignore_ascii_case(one))
}

/// Removes the tag fields (`Surrogate-Key` and the like), which are not sent to clients. False if there were
/// none.
pub fn strip(fields: &mut Fields) -> bool {
    let has_one = fields.iter().any(|(name, _)| is_tag_field(name));
    if has_one {
        TAG_FIELDS.iter().for_each(|name| _ = fields.remove(name));
    }
    has_one
}

/// Keys by label and response number.
type LabelledKeys = BTreeMap<(u64, u64), Arc<[u8]>>;

/// Index of keys by the labels of their responses.
pub(crate) struct TagIndex {
    shards: [Mutex<LabelledKeys>; SHARDS],
    last: AtomicU64,
}

impl TagIndex {
    pub(crate) fn new() -> Arc<TagIndex> {
        Arc::new(TagIndex { shards: Default::default(), last: AtomicU64::new(0) })
    }

    fn shard(&self, label: u64) -> MutexGuard<'_, LabelledKeys> {
        self.shards[label as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a response that is stored under `key`; dropping the result removes it.
    pub(crate) fn add(self: &Arc<TagIndex>, tags: &Tags, url: Option<u64>, key: &Arc<[u8]>) -> Indexed {
        let number = self.last.fetch_add(1, Ordering::Relaxed);
        let labels = tags.labels.clone();
        for label in labels.iter().copied().chain(url) {
            self.shard(label).insert((label, number), key.clone());
        }
        Indexed { index: self.clone(), number, labels, url }
    }

    /// Returns the keys of at most `count` responses with a label and a number of at least `from`, and the
    /// number at which to continue.
    pub(crate) fn keys(&self, label: u64, from: u64, count: usize) -> (Vec<Arc<[u8]>>, Option<u64>) {
        let part = self.shard(label);
        let found = part.range((label, from)..=(label, u64::MAX)).take(count);
        let mut next = None;
        let keys: Vec<Arc<[u8]>> = found
            .map(|((_, number), key)| {
                next = Some(number + 1);
                key.clone()
            })
            .collect();
        let is_all = keys.len() < count;
        (keys, next.filter(|_| !is_all))
    }

    /// Returns the number of entries.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        (0..SHARDS as u64).map(|part| self.shard(part).len()).sum()
    }
}

/// Index entries of one response.
pub(crate) struct Indexed {
    index: Arc<TagIndex>,
    number: u64,
    labels: Arc<[u64]>,
    url: Option<u64>,
}

impl fmt::Debug for Indexed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "number {}", self.number)
    }
}

impl Drop for Indexed {
    fn drop(&mut self) {
        for label in self.labels.iter().copied().chain(self.url) {
            self.index.shard(label).remove(&(label, self.number));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(lines: &[(&str, &str)]) -> Fields {
        let mut fields = Fields::new();
        lines.iter().for_each(|(name, value)| fields.try_push(name.as_bytes(), value.as_bytes()).unwrap());
        fields
    }

    #[test]
    fn tags_and_groups_are_parsed_from_their_fields() {
        let all = [
            ("Surrogate-Key", "a  b"),
            ("xkey", "c"),
            ("Cache-Tag", "d, e"),
            ("Cache-Groups", "\"f g\", \"a\";x=1"),
        ];
        let tags = Tags::of(&fields(&all)).unwrap();
        for one in ["a", "b", "c", "d", "e"] {
            assert!(tags.has(label(LabelKind::Tag, one.as_bytes())), "{one}");
        }
        for one in ["f g", "a"] {
            assert!(tags.has(label(LabelKind::Group, one.as_bytes())), "{one}");
        }
        assert!(!tags.has(label(LabelKind::Tag, b"f g")) && !tags.has(label(LabelKind::Group, b"b")));
        assert_eq!(tags.text(), b"a b c d e f g a");
        for invalid in ["a", "\"a\", b", "\"a", "\"a\",", "1", "(\"a\")"] {
            assert_eq!(
                Tags::of(&fields(&[("Cache-Groups", invalid)])).unwrap().labels().len(),
                0,
                "{invalid}"
            );
        }
    }

    #[test]
    fn too_many_tags_are_an_error() {
        let names = |count: usize| (0..count).map(|n| n.to_string()).collect::<Vec<_>>().join(" ");
        let of = |value: String| Tags::of(&fields(&[("xkey", &value)])).err();
        assert_eq!(of(names(TAGS_MAX)), None);
        assert_eq!(of(names(TAGS_MAX + 1)), Some(TooManyTags));
        assert_eq!(
            (of("x".repeat(TAG_BYTES_MAX)), of("x".repeat(TAG_BYTES_MAX + 1))),
            (None, Some(TooManyTags))
        );
    }

    #[test]
    fn tag_fields_are_stripped_and_groups_kept() {
        let mut sent = fields(&[
            ("A", "1"),
            ("Surrogate-Key", "a"),
            ("XKEY", "b"),
            ("cache-tag", "c"),
            ("Cache-Groups", "\"d\""),
        ]);
        assert!(strip(&mut sent) && !strip(&mut sent));
        assert_eq!(sent.as_bytes(), b"A: 1\r\nCache-Groups: \"d\"\r\n");
    }

    #[test]
    fn tag_index_holds_live_entries_and_is_read_in_slices() {
        let index = TagIndex::new();
        let tags = Tags::of(&fields(&[("xkey", "a b")])).unwrap();
        let a = label(LabelKind::Tag, b"a");
        let mut held: Vec<Indexed> =
            (0..10).map(|n| index.add(&tags, None, &Arc::from(n.to_string().as_bytes()))).collect();
        let (first, next) = index.keys(a, 0, 6);
        let (rest, end) = index.keys(a, next.unwrap(), 6);
        assert_eq!((first.len(), rest.len(), end), (6, 4, None));
        assert_eq!(index.len(), 20);
        held.truncate(3);
        assert_eq!((index.keys(a, 0, 6).0.len(), index.len()), (3, 6));
        drop(held);
        assert_eq!(index.len(), 0);
    }
}
