//! Control socket commands of `komainu cache purge|stats|why`: `cache purge DOCUMENT`, `cache stats` and
//! `cache why DOCUMENT`, each answered with one JSON document.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use cache::{
    Cache, CacheEntry, DECIDED_BY_CONFIGURATION, NotStored, Object, Outcome, Purge, Purged, decided_by, key,
};
use cluster::ClusterStore;
use config::{Config, ConfigLine};
use http::HeadRef;
use serde_json::{Value, json};

use crate::purge_order::{PurgeOrder, report_document};
use crate::urls::{self, NamedRequest, NamedRules};

/// Executes the command that follows `cache ` in a line. Returns the document to answer with.
pub fn execute(
    line: &str,
    cache: Option<&Arc<Cache>>,
    config: &Config,
    cluster: Option<&ClusterStore>,
) -> Value {
    let Some(cache) = cache else { return error("the server has no cache: no route has `cache`") };
    let (command, document) = line.split_once(' ').unwrap_or((line, "{}"));
    let Ok(document) = serde_json::from_str(document) else { return error("the document is no JSON") };
    match command {
        "purge" => purge(cache, config, cluster, &document),
        "stats" => stats(cache),
        "why" => why(cache, config, &document),
        _ => error("unknown command of the cache: send \"purge\", \"stats\" or \"why\""),
    }
}

fn error(text: impl Into<String>) -> Value {
    json!({ "error": text.into() })
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Part of the answer to a purge that would not outlast a restart.
pub(crate) const NOT_RECORDED: &str = "what is purged is no longer served, but after a restart it may be: the disk of the cache cannot be written";
const NO_URL: &str = "is no URL: write http://HOST/PATH, https://HOST/PATH, or //HOST/PATH for both";

/// Purges responses. The document is `{ "url" | "prefix" | "tag": text }` or `{ "all": true }`; `"soft":
/// true` may be added.
fn purge(cache: &Cache, config: &Config, cluster: Option<&ClusterStore>, document: &Value) -> Value {
    let text = |name: &str| document[name].as_str();
    let url = |text: &str| key::normal_url(text).ok_or_else(|| error(format!("{text} {NO_URL}")));
    let purge = match (text("url"), text("prefix"), text("tag"), document["all"].as_bool()) {
        // In all forms that the rules of its routes may give the URL in a key.
        (Some(text), ..) => {
            url(text).map(|url| urls::key_urls(config, cache, &url).into_iter().map(Purge::Exact).collect())
        }
        (_, Some(text), ..) => url(text).map(|url| vec![Purge::Prefix(url)]),
        (.., Some(tag), _) if !tag.is_empty() => Ok(vec![Purge::Tag { tag: tag.into(), host: None }]),
        (.., Some(true)) => Ok(vec![Purge::All]),
        _ => Err(error("nothing is named that is to be purged")),
    };
    let purges: Vec<Purge> = match purge {
        Ok(purges) => purges,
        Err(error) => return error,
    };
    let is_soft = document["soft"].as_bool() == Some(true);
    let order = PurgeOrder { purges, is_soft };
    let Purged { objects, bytes } = order.apply(cache);
    // Before the disk of this server is waited for, and even if it fails.
    let pending = cluster.map(|cluster| cluster.begin_purge(order.to_bytes()));
    if let Err(failure) = cache.wait_recorded() {
        return error(format!("{NOT_RECORDED}: {failure}"));
    }
    let mut answer = json!({ "objects": objects, "bytes": bytes });
    if let Some(pending) = pending {
        answer["servers"] = report_document(&pending.wait());
    }
    answer
}

fn stats(cache: &Cache) -> Value {
    let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let counters = &cache.counters;
    let stats = cache.stats();
    let objects = cache.count_objects();
    let stored = value(&counters.stored);
    let replaced = value(&counters.replaced);
    let removed = value(&counters.removed);
    let refused: serde_json::Map<String, Value> = NotStored::ALL
        .iter()
        .zip(&counters.refused)
        .map(|(why, count)| (why.text().to_owned(), json!(value(count))))
        .collect();
    json!({
        "hits": counters.hits.get(),
        "stale": value(&counters.stale),
        "misses": value(&counters.misses),
        "revalidated": value(&counters.validations),
        "coalesced": value(&counters.collapsed),
        "passed": value(&counters.bypassed),
        "stored": stored,
        "replaced": replaced,
        "removed": removed,
        // Responses that were neither replaced nor removed and are no longer stored have been evicted.
        "evicted": stored.saturating_sub(replaced + removed + objects),
        "purges": value(&counters.purges),
        "purged": value(&counters.purged),
        "refused": refused,
        "urls": stats.entries,
        "objects": objects,
        "bytes": stats.bytes,
        "bytes_max": stats.bytes_max,
        "object_bytes_max": cache.limits().object_bytes_max,
        "fills": stats.fills,
    })
}

/// Explains how a request is cached: `{ "url": text, "fields": ["Name: value", …] }`.
fn why(cache: &Cache, config: &Config, document: &Value) -> Value {
    let text = document["url"].as_str().unwrap_or_default();
    let Some(url) = key::normal_url(text) else { return error(format!("{text} {NO_URL}")) };
    let fields = document["fields"].as_array().map_or(&[][..], Vec::as_slice);
    let request = match NamedRequest::new(&url, fields.iter().filter_map(Value::as_str)) {
        Ok(request) => request,
        Err(text) => return error(text.to_string()),
    };
    let now_s = now_s();
    let rules = urls::rules_for(config, &request, url.starts_with(b"https:"));
    let mut urls = Vec::new();
    for url in urls::key_urls(config, cache, &url) {
        match url.strip_prefix(b"//") {
            Some(rest) => urls.extend([[b"http://", rest].concat(), [b"https://", rest].concat()]),
            None => urls.push(url),
        }
    }
    let passes = match &rules {
        Some(None) => Some("the route that answers it has no `cache`".to_owned()),
        Some(Some(rules)) => {
            rules.rules.line_of_bypass(rules.matched).map(|line| in_line("bypass = true", line))
        }
        None => None,
    };
    let rules = rules.flatten();
    let mut responses = Vec::new();
    let mut last = None;
    for url in &urls {
        for key in cache.keys_of(url) {
            let Some(entry) = cache.peek(&key) else { continue };
            responses.extend(describe_entry(&key, &entry, &request, rules.as_ref(), now_s));
        }
        last = last.max(
            cache.last_outcome(url).map(|(outcome, at_s)| (at_s, describe_outcome(outcome, rules.as_ref()))),
        );
    }
    json!({
        "url": text,
        "passes": passes,
        "responses": responses,
        "last": last.map(|(at_s, said)| json!({ "outcome": said, "ago_s": now_s.saturating_sub(at_s) })),
    })
}

fn in_line(directive: &str, line: &ConfigLine) -> String {
    format!("`{directive}` in {line} of the configuration")
}

fn describe_outcome(outcome: Outcome, rules: Option<&NamedRules>) -> String {
    match outcome {
        Outcome::Refused(NotStored::Rule) => {
            let lines = rules.map(|rules| rules.rules.lines_of_refusals(rules.matched)).unwrap_or_default();
            let all: Vec<String> = lines.into_iter().map(|line| in_line("store = false", line)).collect();
            let by = if all.is_empty() { String::new() } else { format!(" ({})", all.join(", ")) };
            format!("it was not stored: {}{by}", NotStored::Rule.text())
        }
        Outcome::Stored => "it was stored".to_owned(),
        Outcome::Refused(why) => format!("it was not stored: {}", why.text()),
        Outcome::Incomplete => {
            "it was not stored: the origin could not be reached, or it broke off".to_owned()
        }
        Outcome::Purged => "it was removed by a purge".to_owned(),
        Outcome::Invalidated => "it was removed after an unsafe request (such as POST) to its URL".to_owned(),
    }
}

fn describe_entry<'e>(
    key: &'e [u8],
    entry: &'e CacheEntry,
    request: &'e NamedRequest,
    rules: Option<&'e NamedRules>,
    now_s: u64,
) -> impl Iterator<Item = Value> + 'e {
    let answer = entry.select(HeadRef::new(&request.head, &request.bytes));
    entry.objects().iter().map(move |object| {
        let answers = answer.is_some_and(|answer| Arc::ptr_eq(answer, object));
        describe_object(key, object, answers, rules, now_s)
    })
}

fn describe_object(
    key: &[u8],
    object: &Object,
    answers: bool,
    rules: Option<&NamedRules>,
    now_s: u64,
) -> Value {
    let freshness = object.freshness();
    let until = |grace_s: u64| (freshness.lifetime_s + grace_s) as i64 - freshness.age_s(now_s) as i64;
    let lossy = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut decided_by = decided_by(object.status, &object.fields, &freshness);
    let lifetime =
        rules.and_then(|rules| rules.rules.line_of_lifetime(rules.matched, object.status, &object.fields));
    if let Some((directive, line)) = lifetime.filter(|_| decided_by == DECIDED_BY_CONFIGURATION) {
        decided_by = in_line(directive, line);
    }
    json!({
        "key": lossy(key),
        "status": object.status.code(),
        "bytes": object.body.len(),
        "age_s": freshness.age_s(now_s),
        "ttl_s": freshness.ttl_s(now_s),
        "while_revalidate_s": until(freshness.while_revalidate_s),
        "if_error_s": until(freshness.if_error_s),
        "if_unreachable_s": until(freshness.unreachable_s),
        "decided_by": decided_by,
        "is_soft_purged": object.is_expired(),
        "is_validated_always": freshness.no_cache,
        "varies": object.variant.describe(),
        "tags": lossy(object.tags().text()),
        "hits": object.hits(),
        "answers": answers,
    })
}

#[cfg(test)]
mod tests {
    use cache::{FillStart, Freshness, RequestVariant, StoreLimits, StoredBody};
    use http::{Fields, Status};

    use super::*;

    fn cache_of(url: &str, lines: &[(&str, &str)]) -> Arc<Cache> {
        let cache = Arc::new(Cache::new(StoreLimits::default(), Arc::new(|_, _| {})));
        let mut fields = Fields::new();
        lines.iter().for_each(|(name, value)| fields.try_push(name.as_bytes(), value.as_bytes()).unwrap());
        let NamedRequest { head, bytes } = NamedRequest::new(b"//a/x", ["A: 1"].into_iter()).unwrap();
        let variant = RequestVariant::of(&fields, HeadRef::new(&head, &bytes)).unwrap();
        let freshness = Freshness { received_s: now_s(), lifetime_s: 3600, ..Freshness::default() };
        let body = StoredBody::new(vec![b"content"[..].into()]);
        let object = cache.accounted(Object::new(Status::OK, fields, body, variant, freshness));
        let FillStart::Lead(fill, _reader) = cache.begin_fill(url.as_bytes(), None) else {
            panic!("no room")
        };
        cache.store(&fill, object).unwrap();
        cache.record_outcome(url.as_bytes(), Outcome::Stored, now_s());
        cache
    }

    #[test]
    fn why_command_explains_a_stored_response() {
        let lines = [("Cache-Control", "max-age=3600"), ("Vary", "A, B"), ("xkey", "t u")];
        let cache = cache_of("https://a/x", &lines);
        let asked = |fields: &[&str]| {
            execute(
                &format!("why {}", json!({ "url": "//A/x", "fields": fields })),
                Some(&cache),
                &Config::default(),
                None,
            )
        };
        let said = asked(&["A: 1"]);
        let one = &said["responses"][0];
        assert_eq!((&one["status"], &one["bytes"], &one["answers"]), (&json!(200), &json!(7), &json!(true)));
        assert_eq!(one["varies"], json!(["a: 1", "b is absent"]));
        assert_eq!(
            (&one["tags"], &one["decided_by"]),
            (&json!("t u"), &json!("Cache-Control: max-age=3600"))
        );
        assert!(
            one["ttl_s"].as_i64().unwrap() > 3500 && said["last"]["outcome"] == "it was stored",
            "{said}"
        );
        assert_eq!(asked(&["A: 2"])["responses"][0]["answers"], json!(false));
        for (bad, says) in
            [("why {\"url\": \"x\"}", "no URL"), ("why x", "no JSON"), ("nonsense", "unknown command")]
        {
            assert!(
                execute(bad, Some(&cache), &Config::default(), None)["error"]
                    .as_str()
                    .unwrap()
                    .contains(says),
                "{bad}"
            );
        }
        assert!(asked(&["A: 1\r\nB: 2"])["error"].as_str().unwrap().contains("header field"));
        assert!(
            execute("stats", None, &Config::default(), None)["error"].as_str().unwrap().contains("no cache")
        );
    }

    #[test]
    fn purge_and_stats_commands_report_counts() {
        let cache = cache_of("https://a/x", &[("xkey", "t")]);
        let purged =
            |document: Value| execute(&format!("purge {document}"), Some(&cache), &Config::default(), None);
        assert_eq!(purged(json!({ "tag": "u" })), json!({ "objects": 0, "bytes": 0 }));
        assert_eq!(purged(json!({ "prefix": "//a/", "soft": true }))["objects"], json!(1));
        for nothing in [json!({}), json!({ "tag": "" }), json!({ "all": false }), json!({ "url": "x" })] {
            assert!(purged(nothing.clone())["error"].is_string(), "{nothing}");
        }
        let done = purged(json!({ "all": true }));
        assert!(done["objects"] == 1 && done["bytes"].as_u64().unwrap() > 7, "{done}");
        cache.record_outcome(b"https://a/x", Outcome::Refused(NotStored::Private), now_s());
        let said = execute("stats", Some(&cache), &Config::default(), None);
        assert_eq!(
            [
                &said["stored"],
                &said["removed"],
                &said["evicted"],
                &said["purges"],
                &said["purged"],
                &said["objects"]
            ],
            [&json!(1), &json!(1), &json!(0), &json!(3), &json!(2), &json!(0)]
        );
        assert_eq!(said["refused"][NotStored::Private.text()], json!(1));
        let why = execute("why {\"url\": \"https://a/x\"}", Some(&cache), &Config::default(), None);
        assert_eq!(why["last"]["outcome"], json!("it was not stored: the response says private"));
    }
}
