//! Warnings about objects as Events: which are written, and when.
//!
//! What becomes an Event is a tenant's to choose, so everything here is bounded: an object has few Events at a time, each is
//! written once as long as its fault lasts, and each namespace, and all together, have a rate.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::ingress::ObjectEvent;

/// Events that are remembered. While there are as many, no other is written.
const KNOWN_MAX: usize = 20_000;
/// Time after which an Event of a fault that lasts is written again: the API server forgets Events after an hour.
const REPEAT_AFTER: Duration = Duration::from_secs(3_000);
/// Time for which a fault that has gone is remembered, so that one that comes and goes makes no flood.
const FORGET_AFTER: Duration = Duration::from_secs(600);
/// Events of a namespace at once, and the time in which one more may be written.
const OF_NAMESPACE: (u32, Duration) = (25, Duration::from_secs(10));
/// Events of all namespaces at once, and the time in which one more may be written.
const OF_ALL: (u32, Duration) = (100, Duration::from_millis(200));

/// A bucket of tokens.
struct Bucket {
    tokens: f64,
    filled_at: Instant,
}

impl Bucket {
    fn full(limit: (u32, Duration), now: Instant) -> Bucket {
        Bucket { tokens: f64::from(limit.0), filled_at: now }
    }

    /// Fills the bucket, and returns whether it has a token.
    fn has_token(&mut self, limit: (u32, Duration), now: Instant) -> bool {
        let since = now.saturating_duration_since(self.filled_at);
        self.tokens = (self.tokens + since.as_secs_f64() / limit.1.as_secs_f64()).min(f64::from(limit.0));
        self.filled_at = now;
        self.tokens >= 1.0
    }
}

/// What is known of an Event.
struct KnownEvent {
    written_at: Option<Instant>,
    /// The last time at which the fault was there.
    seen_at: Instant,
}

/// The Events that have been written, and those that wait.
pub(crate) struct EventLedger {
    /// By a hash of the Event.
    known: HashMap<u64, KnownEvent>,
    namespaces: BTreeMap<String, Bucket>,
    all: Bucket,
}

impl EventLedger {
    /// Creates an empty ledger. Times are an argument, so that tests can set them.
    pub(crate) fn new(now: Instant) -> EventLedger {
        EventLedger { known: HashMap::new(), namespaces: BTreeMap::new(), all: Bucket::full(OF_ALL, now) }
    }

    /// Takes the present faults, and returns the Events to write now.
    pub(crate) fn take_due(&mut self, present: &[ObjectEvent], now: Instant) -> Vec<ObjectEvent> {
        self.known.retain(|_, known| now.saturating_duration_since(known.seen_at) < FORGET_AFTER);
        self.namespaces.retain(|_, bucket| {
            // A bucket that is full is as good as a new one.
            bucket.has_token(OF_NAMESPACE, now);
            bucket.tokens < f64::from(OF_NAMESPACE.0)
        });
        let mut due = Vec::new();
        for event in present {
            let id = identity(event);
            if !self.known.contains_key(&id) && self.known.len() >= KNOWN_MAX {
                continue;
            }
            let known = self.known.entry(id).or_insert(KnownEvent { written_at: None, seen_at: now });
            known.seen_at = now;
            let is_due = known.written_at.is_none_or(|at| now.saturating_duration_since(at) >= REPEAT_AFTER);
            if !is_due {
                continue;
            }
            let namespace = &event.key.namespace;
            let own =
                self.namespaces.entry(namespace.clone()).or_insert_with(|| Bucket::full(OF_NAMESPACE, now));
            if own.has_token(OF_NAMESPACE, now) && self.all.has_token(OF_ALL, now) {
                own.tokens -= 1.0;
                self.all.tokens -= 1.0;
                known.written_at = Some(now);
                due.push(event.clone());
            }
        }
        due
    }

    /// Whether Events wait for their turn.
    pub(crate) fn has_waiting(&self) -> bool {
        self.known.values().any(|known| known.written_at.is_none())
    }
}

fn identity(event: &ObjectEvent) -> u64 {
    let mut hasher = DefaultHasher::new();
    (&event.key, &event.uid, event.reason, &event.note).hash(&mut hasher);
    hasher.finish()
}

/// Returns the Event object. Its name depends on the fault, so that other replicas, and this one after a restart, do not write it
/// a second time.
pub(crate) fn event_json(event: &ObjectEvent, reporter: &str, now: &str) -> Value {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in event.uid.bytes().chain([0]).chain(event.reason.bytes()).chain([0]).chain(event.note.bytes())
    {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    let start: String = event.key.name.chars().take(200).collect();
    let (group, versions, _) = event.kind.resource();
    let version = versions.first().copied().unwrap_or("v1");
    let api_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": { "name": format!("{start}.{hash:016x}"), "namespace": event.key.namespace },
        "type": "Warning",
        "reason": event.reason,
        "note": event.note,
        "action": "Configure",
        "eventTime": now.replace('Z', ".000000Z"),
        "reportingController": "komainu.dev/ingress-controller",
        "reportingInstance": reporter.chars().take(128).collect::<String>(),
        "regarding": {
            "apiVersion": api_version,
            "kind": event.kind.name(),
            "namespace": event.key.namespace,
            "name": event.key.name,
            "uid": event.uid,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::{Kind, ObjectKey};

    fn event(namespace: &str, number: usize) -> ObjectEvent {
        ObjectEvent {
            kind: Kind::Ingress,
            key: ObjectKey::new(namespace, &format!("i{number}")),
            uid: format!("u{number}"),
            reason: "InvalidPath",
            note: "a fault".to_owned(),
        }
    }

    #[test]
    fn each_fault_is_written_once_while_it_lasts() {
        let start = Instant::now();
        let mut ledger = EventLedger::new(start);
        let present = [event("a", 1)];
        assert_eq!(ledger.take_due(&present, start), present);
        assert!(ledger.take_due(&present, start + Duration::from_secs(60)).is_empty());
        // It goes and comes.
        for second in 61..400 {
            let now = start + Duration::from_secs(second);
            let present = if second % 2 == 0 { &present[..] } else { &[] };
            assert!(ledger.take_due(present, now).is_empty(), "{second}");
        }
        let mut written = 0;
        for minute in 7..130 {
            written += ledger.take_due(&present, start + Duration::from_secs(minute * 60)).len();
        }
        assert_eq!(written, 2, "once an hour");
        assert!(ledger.take_due(&[], start + Duration::from_secs(9_000)).is_empty());
        assert_eq!(ledger.take_due(&present, start + Duration::from_secs(9_001)).len(), 1);
    }

    #[test]
    fn hostile_tenant_makes_no_flood_and_takes_no_turn_of_others() {
        let start = Instant::now();
        let mut ledger = EventLedger::new(start);
        let mut present: Vec<ObjectEvent> = (0..30_000).map(|number| event("evil", number)).collect();
        present.push(event("good", 0));
        let first = ledger.take_due(&present[..30_000], start);
        assert_eq!(first.len(), 25);
        assert!(ledger.has_waiting());
        assert_eq!(ledger.known.len(), KNOWN_MAX);
        let mut written = 0;
        for second in 1..=60 {
            written += ledger.take_due(&present[..30_000], start + Duration::from_secs(second)).len();
        }
        assert!((5..=6).contains(&written), "one in ten seconds: {written}");
        let mut fresh = EventLedger::new(start);
        let few = [&present[..1_000], &present[30_000..]].concat();
        assert!(fresh.take_due(&few, start).contains(&event("good", 0)));
    }

    #[test]
    fn many_namespaces_share_a_rate() {
        let start = Instant::now();
        let mut ledger = EventLedger::new(start);
        let present: Vec<ObjectEvent> =
            (0..1_000).map(|number| event(&format!("n{number}"), number)).collect();
        assert_eq!(ledger.take_due(&present, start).len(), 100);
        assert_eq!(ledger.take_due(&present, start + Duration::from_secs(1)).len(), 5);
    }

    #[test]
    fn names_of_events_are_those_of_their_fault() {
        let one = event_json(&event("a", 1), "pod_1", "2026-11-30T00:00:00Z");
        assert_eq!(one, event_json(&event("a", 1), "pod_1", "2026-11-30T00:00:00Z"));
        assert_ne!(one["metadata"]["name"], event_json(&event("a", 2), "pod_1", "")["metadata"]["name"]);
        assert_eq!(one["regarding"]["apiVersion"], "networking.k8s.io/v1");
        assert_eq!(one["eventTime"], "2026-11-30T00:00:00.000000Z");
    }
}
