//! Measures hit rates of the store on traces like those in studies of web caches, compared with LRU, which
//! Varnish and nginx (`proxy_cache_min_uses 1`) use. Every trace has a fixed seed.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // helpers of tests are tests too

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use cache::{Cache, FillStart, Freshness, Object, RequestVariant, StoreLimits, StoredBody};
use http::{Fields, Status};

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;

/// A request: the object and the bytes of its content.
type Request = (u32, u64);

/// Deterministic random numbers (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Ranks distributed by Zipf's law with this exponent.
struct Zipf(Vec<f64>);

impl Zipf {
    fn new(objects: usize, exponent: f64) -> Zipf {
        let mut sum = 0.0;
        Zipf(
            (1..=objects)
                .map(|rank| {
                    sum += (rank as f64).powf(-exponent);
                    sum
                })
                .collect(),
        )
    }

    fn draw(&self, random: &mut Random) -> u32 {
        let at = random.unit() * self.0.last().unwrap();
        self.0.partition_point(|&sum| sum < at) as u32
    }
}

/// Returns a size between 1 and 512 KiB, more often a small one, like those of web objects.
fn size(object: u32) -> u64 {
    let mut random = Random(u64::from(object) ^ 0x5151);
    random.next();
    ((random.unit() * 6.2).exp2() * (0.5 + random.unit()) * KIB as f64 * 1.5) as u64 + 200
}

/// Popular objects, and occasionally a crawler that requests every object of a list once.
fn zipf_with_scans(exponent: f64, seed: u64) -> Vec<Request> {
    let zipf = Zipf::new(50_000, exponent);
    let mut random = Random(seed);
    let mut trace = Vec::new();
    let mut scanned = 1_000_000;
    while trace.len() < 100_000 {
        if random.next().is_multiple_of(10_000) {
            trace.extend((0..5_000).map(|n| (scanned + n, size(scanned + n))));
            scanned += 5_000;
        }
        let object = zipf.draw(&mut random);
        trace.push((object, size(object)));
    }
    trace
}

/// Half of the objects are requested once; the popular ones and their sizes change with time.
fn one_hit_wonders(seed: u64) -> Vec<Request> {
    let zipf = Zipf::new(20_000, 0.9);
    let mut random = Random(seed);
    let mut once = 1_000_000;
    (0..100_000u32)
        .map(|n| {
            if random.next().is_multiple_of(3) {
                once += 1;
                return (once, size(once));
            }
            let object = zipf.draw(&mut random) + n / 10_000 * 500;
            (object, size(object) + u64::from(n / 25_000 * 300))
        })
        .collect()
}

/// Exact LRU with the store's weights.
#[derive(Default)]
struct Lru {
    used: HashMap<u32, (u64, u64)>,
    order: BTreeMap<u64, u32>,
    bytes: u64,
    clock: u64,
}

impl Lru {
    fn request(&mut self, (object, weight): Request, bytes_max: u64) -> bool {
        self.clock += 1;
        let before = self.used.insert(object, (self.clock, weight));
        if let Some((at, old)) = before {
            self.order.remove(&at);
            self.bytes -= old;
        }
        self.order.insert(self.clock, object);
        self.bytes += weight;
        while self.bytes > bytes_max {
            let (_, object) = self.order.pop_first().unwrap();
            self.bytes -= self.used.remove(&object).unwrap().1;
        }
        before.is_some_and(|(_, old)| old == weight)
    }
}

/// Contents of any length, made of shared pieces.
struct Contents(Vec<Arc<[u8]>>);

impl Contents {
    fn new() -> Contents {
        // Powers of two combine to any length.
        Contents((0..21).map(|bit| vec![b'x'; 1 << bit].into()).collect())
    }

    fn of(&self, bytes: u64) -> StoredBody {
        StoredBody::new(
            self.0
                .iter()
                .enumerate()
                .filter(|(bit, _)| bytes >> bit & 1 == 1)
                .map(|(_, piece)| piece.clone())
                .collect(),
        )
    }
}

fn object(contents: &Contents, bytes: u64) -> Object {
    let freshness = Freshness { lifetime_s: 3600, ..Freshness::default() };
    Object::new(Status::OK, Fields::new(), contents.of(bytes), RequestVariant::default(), freshness)
}

fn key(object: u32) -> String {
    format!("http://example.com/some/path/{object}")
}

/// Returns the hit rate of this crate's store.
fn ours(trace: &[Request], bytes_max: u64, contents: &Contents) -> f64 {
    let limits = StoreLimits { bytes_max, ..StoreLimits::default() };
    let cache = Cache::new(limits, Arc::new(|_, _| {}));
    let mut hits = 0u32;
    for &(number, bytes) in trace {
        let key = key(number);
        let found = cache.find(key.as_bytes());
        if found.is_some_and(|entry| entry.objects().iter().any(|object| object.body.len() == bytes)) {
            hits += 1;
            continue;
        }
        let FillStart::Lead(fill, _reader) = cache.begin_fill(key.as_bytes(), None) else { panic!() };
        let _ = cache.store(&fill, cache.accounted(object(contents, bytes)));
        assert!(cache.stats().bytes <= bytes_max);
    }
    f64::from(hits) / trace.len() as f64
}

fn lru(trace: &[Request], bytes_max: u64, contents: &Contents) -> f64 {
    let mut lru = Lru::default();
    let weight =
        |(number, bytes): Request| 256 + key(number).len() as u64 + object(contents, bytes).weight_bytes();
    let hits = trace.iter().filter(|&&request| lru.request((request.0, weight(request)), bytes_max)).count();
    hits as f64 / trace.len() as f64
}

#[test]
fn the_hit_rate_is_at_least_that_of_lru() {
    let contents = Contents::new();
    println!("{:<28} {:>8} {:>8} {:>8}", "trace", "memory", "Komainu", "LRU");
    for (name, trace) in [
        ("Zipf 0.8, scans", zipf_with_scans(0.8, 1)),
        ("Zipf 1.1, scans", zipf_with_scans(1.1, 2)),
        ("one-hit wonders, 0.9", one_hit_wonders(3)),
    ] {
        for bytes_max in [16 * MIB, 64 * MIB] {
            let ours = ours(&trace, bytes_max, &contents);
            let lru = lru(&trace, bytes_max, &contents);
            println!("{name:<28} {:>4} MiB {:>7.2}% {:>7.2}%", bytes_max / MIB, ours * 100.0, lru * 100.0);
            assert!(ours >= lru, "{name}: {ours} {lru}");
        }
    }
}
