//! Purges of stored responses and of those being received.
//!
//! A purge is logged first, so that responses requested before it are no longer stored. Then the matching
//! responses are removed, found by key or by the tag index; only prefixes require a scan of all keys. They
//! are removed in slices, so that no serving thread waits long for a lock.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::key::url;
use crate::object::Object;
use crate::outcomes::Outcome;
use crate::purge::{Purge, origin};
use crate::store::Cache;
use crate::tags::{LabelKind, label};

/// Number of keys processed under one lock.
const KEYS_PER_LOCK: usize = 64;
/// Maximum responses of a group that are removed immediately; the rest is left to a background purge.
const AT_ONCE_MAX: usize = 256;

/// Number of responses that a purge has removed or made stale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Purged {
    /// Number of responses.
    pub objects: u64,
    /// Their accounted bytes.
    pub bytes: u64,
}

/// A purge in progress.
struct Sweep<'p> {
    purge: &'p Purge,
    /// Whether responses become stale instead of being removed.
    is_soft: bool,
    /// Time of the purge in seconds since 1970.
    now_s: u64,
    /// Outcome to record for the URLs.
    outcome: Outcome,
    purged: Purged,
}

impl<'p> Sweep<'p> {
    fn new(purge: &'p Purge, is_soft: bool, now_s: u64) -> Sweep<'p> {
        Sweep { purge, is_soft, now_s, outcome: Outcome::Purged, purged: Purged::default() }
    }
}

impl Cache {
    /// Removes responses; a soft purge makes them stale instead. `now_s` is in seconds since 1970. Once this
    /// returns, no core serves them as fresh, and no response requested before is stored.
    ///
    /// Only exact purges are fast; call this for others on threads that do not serve requests.
    pub fn purge(&self, purge: &Purge, is_soft: bool, now_s: u64) -> Purged {
        let on_disk = self.log_purge(purge, is_soft.then_some(now_s));
        self.counters.purges.fetch_add(1, Ordering::Relaxed);
        let mut sweep = Sweep::new(purge, is_soft, now_s);
        match purge {
            Purge::Exact(_) => self.purge_urls(&mut sweep),
            Purge::Tag { .. } | Purge::Group { .. } => {
                purge
                    .labels()
                    .into_iter()
                    .for_each(|label| _ = self.purge_label(label, usize::MAX, &mut sweep));
            }
            Purge::Prefix(_) | Purge::All => {
                let is_of = |key: &Arc<[u8]>| purge.applies_to_key(key);
                let keys: Vec<Arc<[u8]>> = self.entries.iter().map(|(key, _)| key).filter(is_of).collect();
                self.purge_keys(&keys, &mut sweep);
            }
        }
        sweep.purged.objects = sweep.purged.objects.max(on_disk);
        self.counters.purged.fetch_add(sweep.purged.objects, Ordering::Relaxed);
        sweep.purged
    }

    /// Waits until all purges made so far hold even after a restart, and even if the process is killed immediately.
    /// Blocks, for at most five seconds, if there is a disk.
    ///
    /// # Errors
    /// They cannot be written to the disk.
    pub fn wait_recorded(&self) -> io::Result<()> {
        self.disk.as_ref().map_or(Ok(()), |disk| disk.wait_recorded())
    }

    /// Removes the responses for a URL that an unsafe request has changed (RFC 9111 section 4.4).
    pub fn invalidate(&self, key: &[u8], now_s: u64) {
        let purge = Purge::Exact(url(key).to_vec());
        self.log_purge(&purge, None);
        self.purge_urls(&mut Sweep { outcome: Outcome::Invalidated, ..Sweep::new(&purge, false, now_s) });
    }

    /// Removes the responses of a group that an unsafe request to the key's origin has changed (RFC 9875). If
    /// there are many, removes a part and returns the purge, which the caller must make in the background.
    #[must_use]
    pub fn invalidate_group(&self, key: &[u8], group: &[u8], now_s: u64) -> Option<Purge> {
        let purge = Purge::Group { group: group.to_vec(), origin: origin(key).to_vec() };
        self.log_purge(&purge, None);
        let mut sweep = Sweep { outcome: Outcome::Invalidated, ..Sweep::new(&purge, false, now_s) };
        let mut is_all = true;
        for label in purge.labels() {
            is_all &= self.purge_label(label, AT_ONCE_MAX, &mut sweep);
        }
        (!is_all).then_some(purge)
    }

    /// Logs a purge: responses requested before are no longer stored or joined, and those on disk are no
    /// longer found. Returns the number of matching responses on disk if it is known, which is the case for
    /// URLs.
    fn log_purge(&self, purge: &Purge, soft_at_s: Option<u64>) -> u64 {
        let mut purges = self.purges();
        purges.add(purge);
        let on_disk = self.disk.as_ref().map_or(0, |disk| disk.purge(purge, soft_at_s));
        drop(purges);
        self.fills().retain(|_, fill| !purge.applies_to_key(&fill.key));
        on_disk
    }

    fn purge_urls(&self, sweep: &mut Sweep<'_>) {
        for url in sweep.purge.urls() {
            self.purge_keys(&[url.as_slice().into()], sweep);
            // Keys with a variation.
            self.purge_label(label(LabelKind::Url, &url), usize::MAX, sweep);
        }
    }

    /// Purges the keys of a label. False if the limit `max` was reached before the end.
    fn purge_label(&self, label: u64, max: usize, sweep: &mut Sweep<'_>) -> bool {
        let mut from = 0;
        let mut seen = 0;
        loop {
            let (keys, next) = self.index.keys(label, from, KEYS_PER_LOCK);
            seen += keys.len();
            self.purge_keys(&keys, sweep);
            match next {
                None => return true,
                Some(_) if seen >= max => return false,
                Some(next) => from = next,
            }
        }
    }

    fn purge_keys(&self, keys: &[Arc<[u8]>], sweep: &mut Sweep<'_>) {
        for slice in keys.chunks(KEYS_PER_LOCK) {
            // Held so that nothing is stored meanwhile.
            let _purges = self.purges();
            slice.iter().for_each(|key| self.purge_key(key, sweep));
        }
    }

    fn purge_key(&self, key: &Arc<[u8]>, sweep: &mut Sweep<'_>) {
        let Some(entry) = self.entries.peek(&key[..]) else { return };
        let (gone, left): (Vec<Arc<Object>>, Vec<Arc<Object>>) =
            entry.objects().iter().cloned().partition(|object| sweep.purge.applies_to(key, object));
        if gone.is_empty() {
            return;
        }
        for object in &gone {
            // An object that was soft-purged before is counted only once.
            if !sweep.is_soft || object.expire(sweep.now_s) {
                sweep.purged.objects += 1;
                sweep.purged.bytes += object.weight_bytes();
            }
        }
        if sweep.is_soft {
            return;
        }
        self.counters.removed.fetch_add(gone.len() as u64, Ordering::Relaxed);
        if left.is_empty() {
            _ = self.entries.remove(&key[..])
        } else {
            self.entries.insert(key.clone(), self.entry(key, left, None))
        }
        self.record_outcome(key, sweep.outcome, sweep.now_s);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::not_stored::NotStored;
    use crate::object::tests::object;
    use crate::store::FillStart;
    use crate::store::tests::{MIB, cache, put};

    fn tag(tag: &str, host: Option<&str>) -> Purge {
        Purge::Tag { tag: tag.into(), host: host.map(Into::into) }
    }

    fn keys(cache: &Cache) -> Vec<String> {
        let mut keys: Vec<String> =
            cache.entries.iter().map(|(key, _)| String::from_utf8(key.to_vec()).unwrap()).collect();
        keys.sort();
        keys
    }

    #[test]
    fn purge_removes_only_matching_responses() {
        let url = |text: &str| Purge::of_url(text).unwrap();
        let all = ["http://a/1", "http://a/1 varied", "http://a/10", "http://b/1", "https://a/1"];
        for (purge, gone) in [
            (url("http://a/1"), &[0, 1][..]),
            (url("//a/1"), &[0, 1, 4]),
            (url("http://a/*"), &[0, 1, 2]),
            (url("http://c/1"), &[]),
            (tag("x", None), &[0, 1, 2, 3, 4]),
            (tag("x", Some("a")), &[0, 1, 2, 4]),
            (tag("y", None), &[]),
            (tag("g", Some("b")), &[3]),
            (Purge::All, &[0, 1, 2, 3, 4]),
        ] {
            let (cache, _) = cache(64 * MIB);
            let mut bytes = 0;
            for (index, key) in all.into_iter().enumerate() {
                let object = object(&[("xkey", "z x"), ("Cache-Groups", "\"g\"")], "content");
                bytes += if gone.contains(&index) { object.weight_bytes() } else { 0 };
                put(&cache, key, object).unwrap();
            }
            let purged = Purged { objects: gone.len() as u64, bytes };
            assert_eq!(cache.purge(&purge, true, 105), purged, "soft {purge:?}");
            for (index, key) in all.into_iter().enumerate() {
                let entry = cache.find(key.as_bytes()).unwrap();
                assert_ne!(
                    entry.objects()[0].freshness().is_fresh(106),
                    gone.contains(&index),
                    "{purge:?} {key}"
                );
            }
            assert_eq!(cache.purge(&purge, true, 105), Purged::default(), "once");
            assert_eq!(cache.purge(&purge, false, 105), purged, "{purge:?}");
            let left: Vec<&str> =
                (0..5).filter(|index| !gone.contains(index)).map(|index| all[index]).collect();
            assert_eq!(keys(&cache), left, "{purge:?}");
            assert_eq!(cache.purge(&purge, false, 105), Purged::default());
        }
    }

    #[test]
    fn response_requested_before_a_purge_is_not_stored() {
        let (cache, _) = cache(64 * MIB);
        let begin = |cache: &Cache| match cache.begin_fill(b"http://a/3", Some(b"")) {
            FillStart::Lead(fill, reader) => (fill, reader),
            _ => panic!("it is on its way"),
        };
        let tagged = |tag: &str| cache.accounted(object(&[("xkey", tag)], ""));
        let (early, _reader) = begin(&cache);
        assert!(matches!(cache.begin_fill(b"http://a/3", Some(b"")), FillStart::Follow(_)));
        cache.purge(&Purge::of_url("//a/1").unwrap(), false, 105);
        assert!(cache.is_filling(b"http://a/3", b""), "another URL");
        cache.purge(&tag("x", Some("b")), false, 105);
        assert!(cache.is_filling(b"http://a/3", b""), "another host");
        cache.purge(&tag("x", None), true, 105);
        assert!(!cache.is_filling(b"http://a/3", b""), "nobody joins what began before");
        assert_eq!(cache.store(&early, tagged("x")), Err(NotStored::Purged));
        assert_eq!(cache.store(&early, tagged("z")), Ok(()));
        let (late, _reader) = begin(&cache);
        assert_eq!(cache.store(&late, tagged("x")), Ok(()));
        cache.remove_fill(&late);
        for purge in [Purge::of_url("http://a/3").unwrap(), Purge::of_url("//a/*").unwrap(), Purge::All] {
            let (early, _reader) = begin(&cache);
            cache.purge(&purge, false, 105);
            assert_eq!(cache.store(&early, tagged("z")), Err(NotStored::Purged), "{purge:?}");
        }
        let (early, _reader) = begin(&cache);
        cache.invalidate(b"http://a/3", 105);
        assert_eq!(cache.store(&early, tagged("z")), Err(NotStored::Purged));
        assert_eq!(keys(&cache), [""; 0]);
    }

    #[test]
    fn group_purge_is_limited_to_its_origin_and_done_in_slices() {
        let (cache, _) = cache(64 * MIB);
        let grouped = || object(&[("Cache-Groups", "\"g\"")], "");
        for n in 0..AT_ONCE_MAX + KEYS_PER_LOCK + 1 {
            put(&cache, &format!("http://a/{n}"), grouped()).unwrap();
        }
        put(&cache, "https://a/", grouped()).unwrap();
        put(&cache, "http://a/tagged", object(&[("xkey", "g")], "")).unwrap();
        let rest = cache.invalidate_group(b"http://a/x", b"g", 105).unwrap();
        assert!(keys(&cache).len() <= KEYS_PER_LOCK + 3);
        let (early, _reader) = match cache.begin_fill(b"http://a/y", None) {
            FillStart::Lead(fill, reader) => (fill, reader),
            _ => panic!("there is room"),
        };
        cache.purge(&rest, false, 105);
        assert_eq!(keys(&cache), ["http://a/tagged", "https://a/"]);
        assert_eq!(cache.store(&early, cache.accounted(grouped())), Err(NotStored::Purged));
        assert_eq!(cache.invalidate_group(b"https://a/x", b"g", 105), None);
        assert_eq!(keys(&cache), ["http://a/tagged"]);
    }

    #[test]
    fn many_purges_use_no_memory() {
        let (cache, held) = cache(64 * MIB);
        for n in 0..1000 {
            put(&cache, &format!("http://a/{n}"), object(&[("xkey", &format!("t{n}"))], "")).unwrap();
        }
        let before = held.load(Ordering::Relaxed);
        for n in 0..200_000 {
            cache.purge(&Purge::Exact(format!("http://b/{n}").into_bytes()), false, 105);
            cache.purge(&tag(&format!("u{n}"), Some("a")), false, 105);
        }
        assert_eq!((held.load(Ordering::Relaxed), cache.stats().entries), (before, 1000));
        cache.purge(&Purge::All, false, 105);
        assert_eq!((cache.stats().entries, cache.index.len()), (0, 0));
        assert_eq!(held.load(Ordering::Relaxed), 0);
    }
}
