//! Tests of the store: limits, variants, eviction.

use super::*;
use crate::object::tests::object;
use http::{Fields, HeadRef, RequestHead, Status};
use std::sync::atomic::AtomicI64;

pub(crate) const MIB: u64 = 1 << 20;

pub(crate) fn cache(bytes_max: u64) -> (Cache, Arc<AtomicI64>) {
    let held: Arc<AtomicI64> = Arc::default();
    let account = held.clone();
    let limits = StoreLimits { bytes_max, ..StoreLimits::default() };
    let count = move |before: u64, after: u64| {
        account.fetch_add(after as i64 - before as i64, Ordering::Relaxed);
    };
    (Cache::new(limits, Arc::new(count)), held)
}

pub(crate) fn put(cache: &Cache, key: &str, object: Object) -> Result<(), NotStored> {
    let FillStart::Lead(fill, _reader) = cache.begin_fill(key.as_bytes(), None) else { panic!("no room") };
    cache.store(&fill, cache.accounted(object))
}

fn request(lines: &str) -> (RequestHead, Vec<u8>) {
    let bytes = format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n").into_bytes();
    let mut head = RequestHead::default();
    assert!(head.parse(&bytes, &http::Limits::default()).unwrap());
    (head, bytes)
}

/// Returns an object for requests whose field `A` has this value.
fn variant(value: &str, body: &[u8]) -> Object {
    let mut vary = Fields::new();
    vary.try_push(b"Vary", b"A").unwrap();
    let (head, bytes) = request(&format!("A: {value}\r\n"));
    let variant = crate::RequestVariant::of(&vary, HeadRef::new(&head, &bytes)).unwrap();
    let body = StoredBody::new(vec![body.into()]);
    Object::new(Status::OK, Fields::new(), body, variant, crate::object::tests::freshness(0, 10))
}

#[test]
fn memory_is_accounted_exactly_and_bounded() {
    let (cache, held) = cache(4 * MIB);
    for n in 0..20_000 {
        let body = "x".repeat(n * 7919 % 5000);
        put(&cache, &format!("http://a/{n}"), object(&[], &body)).unwrap();
        let bytes = cache.stats().bytes;
        let counted = held.load(Ordering::Relaxed) as u64;
        assert!(bytes <= 4 * MIB && counted == bytes, "to the byte: {bytes} {counted}");
        if n % 3 == 0 {
            cache.record_refusal(format!("http://b/{n}").as_bytes(), NotStored::Private, 100);
        }
    }
    assert!(cache.stats().bytes > 3 * MIB, "it is used");
    assert!(cache.limits().object_bytes_max <= MIB / 2);
    put(&cache, "http://a/", object(&[], &"x".repeat(100_000))).unwrap();
    let sent = cache.find(b"http://a/").unwrap().objects()[0].clone();
    drop(cache);
    assert!(held.load(Ordering::Relaxed) >= 100_000, "a client still gets it");
    drop(sent);
    assert_eq!(held.load(Ordering::Relaxed), 0);
}

#[test]
fn url_keeps_a_limited_number_of_newest_variants() {
    let (cache, _) = cache(64 * MIB);
    for n in 0..40 {
        put(&cache, "http://a/", variant(&format!("{}", n % 20), b"x")).unwrap();
    }
    let entry = cache.find(b"http://a/").unwrap();
    assert_eq!(entry.objects().len(), VARIANTS_MAX);
    for (value, found) in [("19", true), ("4", true), ("3", false), ("x", false)] {
        let (head, bytes) = request(&format!("A: {value}\r\n"));
        assert_eq!(entry.select(HeadRef::new(&head, &bytes)).is_some(), found, "{value}");
    }
    for n in 0..16 {
        put(&cache, "http://a/large", variant(&format!("{n}"), &vec![0; 3 << 20])).unwrap();
    }
    assert!(cache.find(b"http://a/large").unwrap().objects().len() <= 2, "they share the room of one object");
}

#[test]
fn concurrent_fills_are_limited_and_refusals_expire() {
    let limits = StoreLimits { fills_max: 2, ..StoreLimits::default() };
    let cache = Cache::new(limits, Arc::new(|_, _| {}));
    let (one, two) = (cache.begin_fill(b"http://a/1", Some(b"")), cache.begin_fill(b"http://a/2", None));
    assert!(matches!(cache.begin_fill(b"http://a/3", Some(b"")), FillStart::Full));
    assert!(matches!(cache.begin_fill(b"http://a/1", Some(b"")), FillStart::Follow(_)));
    let FillStart::Lead(fill, reader) = one else { panic!() };
    cache.remove_fill(&fill);
    drop((fill, reader, two));
    assert!(matches!(cache.begin_fill(b"http://a/3", Some(b"")), FillStart::Lead(..)));
    cache.record_refusal(b"http://a/1", NotStored::Private, 100);
    let entry = cache.find(b"http://a/1").unwrap();
    assert_eq!((entry.refusal(100), entry.refusal(100 + UNCACHEABLE_S)), (Some(NotStored::Private), None));
}
