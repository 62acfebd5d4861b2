//! What a purge is about.

use crate::key::{normal_url, url};
use crate::object::Object;

/// What a purge is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purge {
    /// One URL, in all its variants.
    Exact(Vec<u8>),
    /// Every URL that begins so.
    Prefix(Vec<u8>),
    /// Every response with this tag.
    Tag(Vec<u8>),
    /// Everything.
    All,
}

impl Purge {
    /// That of a URL: `http://`, `https://`, or `//` for both; with a `*` at its end it is a prefix. `None` for what is no URL.
    #[must_use]
    pub fn of_url(text: &str) -> Option<Purge> {
        match text.strip_suffix('*') {
            Some(prefix) => normal_url(prefix).map(Purge::Prefix),
            None => normal_url(text).map(Purge::Exact),
        }
    }

    /// Whether it is about a URL.
    #[must_use]
    pub(crate) fn is_of_key(&self, key: &[u8]) -> bool {
        let url = url(key);
        let of = |wanted: &[u8]| -> &[u8] {
            let at = url.iter().position(|&byte| byte == b'/').unwrap_or(0);
            if wanted.starts_with(b"//") { &url[at..] } else { url }
        };
        match self {
            Purge::Exact(wanted) => of(wanted) == &wanted[..],
            Purge::Prefix(wanted) => of(wanted).starts_with(wanted),
            Purge::Tag(_) => false,
            Purge::All => true,
        }
    }

    /// Whether it is about a response that is stored under that key.
    #[must_use]
    pub(crate) fn is_of(&self, key: &[u8], object: &Object) -> bool {
        match self {
            Purge::Tag(tag) => object.has_tag(tag),
            purge => purge.is_of_key(key),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_and_prefixes() {
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
            assert_eq!(Purge::of_url(text).unwrap().is_of_key(key.as_bytes()), is, "{text} {key}");
        }
        assert_eq!(Purge::of_url("/x"), None);
        assert!(Purge::All.is_of_key(b"http://a/"));
    }
}
