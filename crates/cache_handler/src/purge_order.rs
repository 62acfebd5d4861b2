//! Purges as the servers of a set send them to each other.

use std::sync::Arc;
use std::time::SystemTime;

use cache::{Cache, Purge, Purged};
use cluster::{ClusterStore, PurgeReceiver, PurgeReport};
use data_encoding::BASE64;
use serde_json::{Value, json};

use crate::removals;

/// Maximum size of an order, in bytes.
const ORDER_BYTES_MAX: usize = 1 << 20;
/// Maximum number of purges in an order.
const PURGES_MAX: usize = 10_000;

/// Purges that belong together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PurgeOrder {
    pub(crate) purges: Vec<Purge>,
    /// Whether responses only become stale.
    pub(crate) is_soft: bool,
}

impl PurgeOrder {
    /// Applies the order to a cache, and returns what was purged.
    pub(crate) fn apply(&self, cache: &Cache) -> Purged {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now_s = since.map_or(0, |since| since.as_secs());
        removals::note_all(now_s);
        self.purges.iter().map(|purge| cache.purge(purge, self.is_soft, now_s)).fold(
            Purged::default(),
            |sum, one| Purged { objects: sum.objects + one.objects, bytes: sum.bytes + one.bytes },
        )
    }

    /// The order as text. Group purges, which only unsafe requests make, are not a part of it.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let text = |bytes: &[u8]| BASE64.encode(bytes);
        let purges = self.purges.iter().filter_map(|purge| match purge {
            Purge::Exact(url) => Some(json!({ "url": text(url) })),
            Purge::Prefix(url) => Some(json!({ "prefix": text(url) })),
            Purge::Tag { tag, host } => {
                Some(json!({ "tag": text(tag), "host": host.as_ref().map(|host| text(host)) }))
            }
            Purge::Group { .. } => None,
            Purge::All => Some(json!({ "all": true })),
        });
        json!({ "soft": self.is_soft, "purges": purges.collect::<Vec<_>>() }).to_string().into_bytes()
    }

    /// Parses an order.
    ///
    /// # Errors
    /// Reason why the bytes are no order.
    pub(crate) fn of_bytes(bytes: &[u8]) -> Result<PurgeOrder, &'static str> {
        const NO_ORDER: &str = "it is no order of this version";
        if bytes.len() > ORDER_BYTES_MAX {
            return Err("it is longer than 1 MiB");
        }
        let document: Value = serde_json::from_slice(bytes).map_err(|_| NO_ORDER)?;
        let is_soft = document["soft"].as_bool().ok_or(NO_ORDER)?;
        let purges = document["purges"].as_array().filter(|all| all.len() <= PURGES_MAX).ok_or(NO_ORDER)?;
        let text = |value: &Value| {
            value.as_str().and_then(|text| BASE64.decode(text.as_bytes()).ok()).ok_or(NO_ORDER)
        };
        let purge = |one: &Value| {
            let present = |name: &str| one.get(name).filter(|value| !value.is_null());
            match (present("url"), present("prefix"), present("tag"), one["all"].as_bool()) {
                (Some(url), None, None, None) => Ok(Purge::Exact(text(url)?)),
                (None, Some(url), None, None) => Ok(Purge::Prefix(text(url)?)),
                (None, None, Some(tag), None) => {
                    Ok(Purge::Tag { tag: text(tag)?, host: present("host").map(text).transpose()? })
                }
                (None, None, None, Some(true)) => Ok(Purge::All),
                _ => Err(NO_ORDER),
            }
        };
        Ok(PurgeOrder { purges: purges.iter().map(purge).collect::<Result<_, _>>()?, is_soft })
    }
}

/// Applies the purges of other servers to the cache of this one, if it has one.
pub struct SharedPurges(Option<Arc<Cache>>);

impl SharedPurges {
    /// Makes a cache follow the set.
    pub fn follow(cluster: &ClusterStore, cache: Option<Arc<Cache>>) {
        cluster.receive_purges(Arc::new(SharedPurges(cache)));
    }

    fn apply_order(&self, order: &PurgeOrder) -> Result<(), String> {
        let Some(cache) = &self.0 else { return Ok(()) };
        order.apply(cache);
        cache.wait_recorded().map_err(|error| format!("it is not recorded: {error}"))
    }
}

impl PurgeReceiver for SharedPurges {
    fn apply(&self, order: &[u8]) -> Result<(), String> {
        self.apply_order(&PurgeOrder::of_bytes(order)?)
    }

    fn apply_all(&self) {
        // A failure of the disk was reported by the cache.
        let _ = self.apply_order(&PurgeOrder { purges: vec![Purge::All], is_soft: false });
    }
}

/// Returns the part of an answer that says which servers have applied a purge.
pub(crate) fn report_document(report: &PurgeReport) -> Value {
    let mut document = json!({ "applied": report.applied, "missing": report.missing });
    if let Some(error) = &report.error {
        document["error"] =
            json!(format!("the other servers get it as soon as the store of `[cluster]` is there: {error}"));
    }
    document
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_read_back_unchanged_and_garbage_is_refused() {
        let order = PurgeOrder {
            purges: vec![
                Purge::Exact(b"//a/\xff".to_vec()),
                Purge::Prefix(b"//a/".to_vec()),
                Purge::Tag { tag: b"t".to_vec(), host: None },
                Purge::Tag { tag: b"t".to_vec(), host: Some(b"a".to_vec()) },
                Purge::All,
            ],
            is_soft: true,
        };
        let bytes = order.to_bytes();
        assert_eq!(PurgeOrder::of_bytes(&bytes), Ok(order));
        for end in 0..bytes.len() {
            assert!(PurgeOrder::of_bytes(&bytes[..end]).is_err(), "cut at {end}");
        }
        let wrong = [
            r#"{"purges":[]}"#,
            r#"{"soft":true,"purges":[{}]}"#,
            r#"{"soft":true,"purges":[{"all":false}]}"#,
            r#"{"soft":true,"purges":[{"url":"!"}]}"#,
            r#"{"soft":true,"purges":[{"url":"YQ==","all":true}]}"#,
        ];
        for wrong in wrong {
            assert!(PurgeOrder::of_bytes(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
