//! Purges, and the log of purges that is checked against responses being received.

use std::collections::{HashMap, VecDeque};

use crate::key::{host, normal_url, url, without_scheme};
use crate::object::Object;
use crate::tags::{LabelKind, Tags, label, mark};

/// Maximum logged purges of URLs, tags and groups. A response that was requested before as many later purges
/// is not stored.
const LATEST_MAX: usize = 16 * 1024;
/// Maximum logged purges of prefixes, which are compared one by one.
const PREFIXES_MAX: usize = 256;

/// Subject of a purge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purge {
    /// One URL in all its variants; beginning with `//`, for both schemes.
    Exact(Vec<u8>),
    /// All URLs with this prefix.
    Prefix(Vec<u8>),
    /// All responses with this tag or in this group.
    Tag {
        /// The tag.
        tag: Vec<u8>,
        /// Host as in keys; `None` for all hosts.
        host: Option<Vec<u8>>,
    },
    /// All responses in this group (RFC 9875).
    Group {
        /// The group.
        group: Vec<u8>,
        /// Scheme and host, as at the beginning of keys.
        origin: Vec<u8>,
    },
    /// Everything.
    All,
}

impl Purge {
    /// Parses a URL: `http://`, `https://`, or `//` for both; a trailing `*` makes it a prefix. `None` if it
    /// is invalid.
    #[must_use]
    pub fn of_url(text: &str) -> Option<Purge> {
        match text.strip_suffix('*') {
            Some(prefix) => normal_url(prefix).map(Purge::Prefix),
            None => normal_url(text).map(Purge::Exact),
        }
    }

    /// Whether the purge may apply to responses with this key.
    #[must_use]
    pub(crate) fn applies_to_key(&self, key: &[u8]) -> bool {
        let url = url(key);
        let of = |wanted: &[u8]| if wanted.starts_with(b"//") { without_scheme(url) } else { url };
        match self {
            Purge::Exact(wanted) => of(wanted) == &wanted[..],
            Purge::Prefix(wanted) => of(wanted).starts_with(wanted),
            Purge::Tag { host: None, .. } => true,
            Purge::Tag { host: Some(wanted), .. } => host(key) == &wanted[..],
            Purge::Group { origin: wanted, .. } => origin(key) == &wanted[..],
            Purge::All => true,
        }
    }

    /// Whether the purge applies to a response that is stored under this key.
    #[must_use]
    pub(crate) fn applies_to(&self, key: &[u8], object: &Object) -> bool {
        let labels = self.labels();
        self.applies_to_key(key)
            && (labels.is_empty() || labels.iter().any(|label| object.tags().has(*label)))
    }

    /// Returns the labels of which a response must have at least one; empty if none is needed.
    pub(crate) fn labels(&self) -> Vec<u64> {
        match self {
            Purge::Tag { tag, .. } => vec![label(LabelKind::Tag, tag), label(LabelKind::Group, tag)],
            Purge::Group { group, .. } => vec![label(LabelKind::Group, group)],
            _ => Vec::new(),
        }
    }

    /// Returns the URLs of an exact purge.
    pub(crate) fn urls(&self) -> Vec<Vec<u8>> {
        match self {
            Purge::Exact(url) if url.starts_with(b"//") => {
                vec![[b"http:", &url[..]].concat(), [b"https:", &url[..]].concat()]
            }
            Purge::Exact(url) => vec![url.clone()],
            _ => Vec::new(),
        }
    }
}

/// Returns the scheme and host of a key.
pub(crate) fn origin(key: &[u8]) -> &[u8] {
    let host_at = key.windows(3).position(|part| part == b"://").map_or(0, |at| at + 3);
    let end = key[host_at..].iter().position(|&byte| byte == b'/').map_or(key.len(), |at| host_at + at);
    &key[..end]
}

/// Log of purges, for responses that are being received.
#[derive(Debug, Default)]
pub(crate) struct PurgeLog {
    /// Number of purges so far.
    pub(crate) count: u64,
    /// Lowest start for which the log is complete: responses requested earlier are not stored.
    floor: u64,
    /// Number of the latest purge of a URL, tag or group, by its mark.
    latest: HashMap<u64, u64>,
    /// Other purges and their numbers.
    prefixes: VecDeque<(u64, Purge)>,
}

impl PurgeLog {
    pub(crate) fn add(&mut self, purge: &Purge) {
        self.count += 1;
        let marks: Vec<u64> = match purge {
            Purge::Exact(_) => purge.urls().iter().map(|url| mark(label(LabelKind::Url, url), b"")).collect(),
            Purge::Tag { host, .. } => {
                let scope = host.as_deref().unwrap_or_default();
                purge.labels().into_iter().map(|label| mark(label, scope)).collect()
            }
            Purge::Group { origin, .. } => {
                purge.labels().into_iter().map(|label| mark(label, origin)).collect()
            }
            Purge::Prefix(_) | Purge::All => {
                self.prefixes.push_back((self.count, purge.clone()));
                Vec::new()
            }
        };
        if self.prefixes.len() > PREFIXES_MAX
            && let Some((number, _)) = self.prefixes.pop_front()
        {
            self.floor = self.floor.max(number);
        }
        if self.latest.len() + marks.len() > LATEST_MAX {
            self.latest.clear();
            self.floor = self.count - 1;
        }
        self.latest.extend(marks.into_iter().map(|mark| (mark, self.count)));
    }

    /// Whether a response with these tags, requested after `began_after` purges, has been purged since.
    pub(crate) fn has_purged(&self, began_after: u64, key: &[u8], tags: &Tags) -> bool {
        if began_after >= self.count {
            return false;
        }
        if began_after < self.floor {
            return true;
        }
        let is_later = |mark: u64| self.latest.get(&mark).is_some_and(|number| *number > began_after);
        let is_tagged = |label: &u64| {
            [&b""[..], host(key), origin(key)].into_iter().any(|scope| is_later(mark(*label, scope)))
        };
        is_later(mark(label(LabelKind::Url, url(key)), b""))
            || tags.labels().iter().any(is_tagged)
            || self.prefixes.iter().any(|(number, purge)| *number > began_after && purge.applies_to_key(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::tests::fields;

    #[test]
    fn url_and_prefix_purges_match_keys() {
        for (text, key, is) in [
            ("http://a/x", "http://a/x", true),
            ("http://a/x", "http://a/x other", true),
            ("http://a/x", "http://a/x?y", false),
            ("http://a/x", "https://a/x", false),
            ("//a/x", "https://a/x", true),
            ("//a/x", "http://a/x", true),
            ("http://A/x*", "http://a/x?y", true),
            ("//a/*", "http://a/x?y", true),
            ("//a/*", "http://ab/x", false),
        ] {
            assert_eq!(Purge::of_url(text).unwrap().applies_to_key(key.as_bytes()), is, "{text} {key}");
        }
        assert_eq!(Purge::of_url("/x"), None);
        assert!(Purge::All.applies_to_key(b"http://a/"));
    }

    #[test]
    fn host_and_origin_are_extracted_from_keys() {
        for (key, origin_of, host_of) in [
            ("https://a:8443/x?y=://z/", "https://a:8443", "a:8443"),
            ("http://a/ b", "http://a", "a"),
            ("x", "x", "x"),
        ] {
            assert_eq!(
                (origin(key.as_bytes()), host(key.as_bytes())),
                (origin_of.as_bytes(), host_of.as_bytes())
            );
        }
    }

    /// Whether the log applies to a response that was requested before all purges.
    fn reached(log: &PurgeLog, key: &str, tags: &str) -> bool {
        let tags = Tags::of(&fields(&[("xkey", tags), ("Cache-Groups", &format!("\"g-{tags}\""))])).unwrap();
        log.has_purged(0, key.as_bytes(), &tags)
    }

    #[test]
    fn purge_log_matches_keys_and_tags() {
        let tag = |host: Option<&str>| Purge::Tag { tag: b"t".to_vec(), host: host.map(|host| host.into()) };
        let group = Purge::Group { group: b"g-t".to_vec(), origin: b"http://a".to_vec() };
        for (purge, key, tags, is) in [
            (Purge::of_url("http://a/x").unwrap(), "http://a/x", "", true),
            (Purge::of_url("//a/x").unwrap(), "https://a/x variation", "", true),
            (Purge::of_url("http://a/x").unwrap(), "http://a/xy", "", false),
            (Purge::of_url("//a/x*").unwrap(), "https://a/xy", "", true),
            (tag(None), "http://a/", "t", true),
            (tag(None), "http://a/", "u", false),
            (tag(Some("a")), "https://a/", "t", true),
            (tag(Some("b")), "https://a/", "t", false),
            (group.clone(), "http://a/", "t", true),
            (group, "https://a/", "t", false),
            (Purge::All, "http://a/", "", true),
        ] {
            let mut log = PurgeLog::default();
            log.add(&purge);
            assert_eq!(reached(&log, key, tags), is, "{purge:?} {key} {tags}");
            assert!(
                !log.has_purged(1, key.as_bytes(), &Tags::default()),
                "what began later is not concerned"
            );
        }
    }

    #[test]
    fn forgotten_purges_count_as_matching() {
        let mut log = PurgeLog::default();
        for n in 0..LATEST_MAX {
            log.add(&Purge::Exact(format!("http://a/{n}").into_bytes()));
        }
        assert!(!reached(&log, "http://b/", ""));
        log.add(&Purge::Exact(b"http://a/x".to_vec()));
        assert!(reached(&log, "http://b/", "") && log.latest.len() <= LATEST_MAX);
        assert!(!log.has_purged(log.count - 1, b"http://b/", &Tags::default()));
        assert!(log.has_purged(log.count - 1, b"http://a/x", &Tags::default()));
        let mut log = PurgeLog::default();
        for n in 0..=PREFIXES_MAX {
            assert!(!reached(&log, "http://b/", ""), "{n}");
            log.add(&Purge::Prefix(format!("http://a/{n}").into_bytes()));
        }
        assert!(reached(&log, "http://b/", ""));
    }
}
