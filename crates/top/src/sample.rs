//! Two status documents of one server, and the figures of the time between them.

use serde_json::{Map, Value, json};

use crate::formatting::sanitize;

/// Two documents of one server, the later one first; the earlier one is `null` if there is none or if it is
/// from another process.
#[derive(Clone, Debug)]
pub struct StatusInterval {
    latest: Value,
    earlier: Value,
    seconds: f64,
}

impl StatusInterval {
    /// Compares `now` with the earlier document; without one, the figures cover the time since the server's
    /// start.
    #[must_use]
    pub fn new(latest: Value, earlier: Option<&Value>) -> StatusInterval {
        let before = earlier.filter(|before| before["pid"] == latest["pid"]).cloned().unwrap_or_default();
        let age_ms = |document: &Value| document["age_ms"].as_f64().unwrap_or_default();
        let seconds = ((age_ms(&latest) - age_ms(&before)) / 1e3).max(0.001);
        StatusInterval { latest, earlier: before, seconds }
    }

    /// Returns the later document.
    #[must_use]
    pub fn latest_document(&self) -> &Value {
        &self.latest
    }

    /// Returns the time between the documents in seconds.
    pub(crate) fn seconds(&self) -> f64 {
        self.seconds
    }

    /// Returns the upper bounds of the duration classes in milliseconds.
    fn duration_bounds(&self) -> Vec<f64> {
        list(&self.latest["class_bounds_ms"]).iter().filter_map(Value::as_f64).collect()
    }

    fn rate(&self, now: &Value, before: &Value) -> f64 {
        (now.as_f64().unwrap_or_default() - before.as_f64().unwrap_or_default()).max(0.0) / self.seconds
    }

    /// Iterates over the entries of a list, each with the same entry of the earlier document.
    fn matching_pairs<'v>(
        now: &'v Value,
        before: &'v Value,
        same: impl Fn(&Value, &Value) -> bool,
    ) -> impl Iterator<Item = (&'v Value, &'v Value)> {
        let others = list(before);
        list(now).iter().map(move |one| {
            let other = others.iter().find(|other| same(one, other));
            (one, other.unwrap_or(&Value::Null))
        })
    }

    /// Adds `p50_ms`, `p90_ms` and `p99_ms` of the durations between the two documents, and `p50_bound` and
    /// so on if a value is only a bound.
    fn add_percentiles(&self, now: &Value, before: &Value, into: &mut Map<String, Value>) {
        let classes = class_increases(now, before);
        for (name, share) in [("p50_ms", 0.5), ("p90_ms", 0.9), ("p99_ms", 0.99)] {
            let percentile = percentile(&self.duration_bounds(), &classes, share);
            into.insert(name.to_owned(), json!(percentile.map(|(ms, _)| ms)));
            if let Some((_, Some(bound))) = percentile {
                into.insert(bound_key(name), json!(bound));
            }
        }
    }

    /// Returns the routes: `site`, `route`, `handler`, `requests_per_s`, `status_4xx_per_s`,
    /// `status_5xx_per_s`, `p50_ms`, `p90_ms`, `p99_ms`, `cpu_ms` and `worker_cpu_ms` (estimates per
    /// request), `out_bytes_per_s`, `requests`.
    pub(crate) fn routes(&self) -> Vec<Map<String, Value>> {
        let same = |one: &Value, other: &Value| {
            ["site", "route", "handler"].iter().all(|key| one[key] == other[key])
        };
        let row = |(one, before): (&Value, &Value)| {
            let mut row = sanitized_texts(one, &["site", "route", "handler"]);
            let mut add = |name: &str, value: f64| row.insert(name.to_owned(), json!(value));
            add("requests_per_s", self.rate(&one["requests"], &before["requests"]));
            for class in ["4xx", "5xx"] {
                let rate = self.rate(&one["statuses"][class], &before["statuses"][class]);
                add(&format!("status_{class}_per_s"), rate);
            }
            add("out_bytes_per_s", self.rate(&one["response_bytes"], &before["response_bytes"]));
            self.add_percentiles(&one["duration"], &before["duration"], &mut row);
            for (name, key) in [("cpu_ms", "cpu"), ("worker_cpu_ms", "worker_cpu")] {
                row.insert(name.into(), json!(cpu_ms_per_request(&one[key], &before[key])));
            }
            row.insert("requests".into(), one["requests"].clone());
            row
        };
        StatusInterval::matching_pairs(&self.latest["routes"], &self.earlier["routes"], same)
            .map(row)
            .collect()
    }

    /// Returns the upstream servers: `group`, `url`, `state`, `active`, `requests_per_s`, `status_5xx_per_s`,
    /// `failures_per_s`, `p50_ms`, `p99_ms`, `ejections`, and `waiting` of the group.
    pub(crate) fn servers(&self) -> Vec<Map<String, Value>> {
        let mut rows = Vec::new();
        for (number, group) in list(&self.latest["upstreams"]).iter().enumerate() {
            let name = group["name"].as_str().map_or_else(|| (number + 1).to_string(), sanitize);
            let before = &self.earlier["upstreams"][number]["servers"];
            for (one, before) in StatusInterval::matching_pairs(&group["servers"], before, |one, other| {
                one["url"] == other["url"]
            }) {
                let mut row = sanitized_texts(one, &["url", "state"]);
                row.insert("group".into(), json!(name));
                row.insert("waiting".into(), group["waiting"].clone());
                for name in ["active", "ejections"] {
                    row.insert(name.into(), one[name].clone());
                }
                let mut add = |name: &str, value: f64| row.insert(name.to_owned(), json!(value));
                add("requests_per_s", self.rate(&one["requests"], &before["requests"]));
                add("status_5xx_per_s", self.rate(&one["statuses"]["5xx"], &before["statuses"]["5xx"]));
                add(
                    "failures_per_s",
                    self.rate(&json!(total(&one["failures"])), &json!(total(&before["failures"]))),
                );
                self.add_percentiles(&one["response"], &before["response"], &mut row);
                rows.push(row);
            }
        }
        rows
    }

    /// Returns the application processes: `app`, `worker`, `pid`, `state`, `pss_bytes`, `cpu` (in cores),
    /// `requests_per_s`, `requests`, `age_ms`, `current` (a text), `current_ms`, and `waiting` of the
    /// application.
    pub(crate) fn workers(&self) -> Vec<Map<String, Value>> {
        let mut rows = Vec::new();
        for (app, before) in
            StatusInterval::matching_pairs(&self.latest["apps"], &self.earlier["apps"], |one, other| {
                one["name"] == other["name"]
            })
        {
            let same = |one: &Value, other: &Value| one["pid"] == other["pid"];
            for (one, before) in StatusInterval::matching_pairs(&app["processes"], &before["processes"], same)
            {
                let mut row = sanitized_texts(one, &["state"]);
                row.insert("app".into(), json!(sanitize(app["name"].as_str().unwrap_or_default())));
                for name in ["worker", "pid", "requests", "age_ms"] {
                    row.insert(name.into(), one[name].clone());
                }
                row.insert("waiting".into(), app["queue"]["waiting"].clone());
                row.insert("pss_bytes".into(), one["usage"]["pss_bytes"].clone());
                let cpu = self.rate(&one["usage"]["cpu_ms"], &before["usage"]["cpu_ms"]) / 1e3;
                row.insert("cpu".into(), if before.is_null() { Value::Null } else { json!(cpu) });
                row.insert("requests_per_s".into(), json!(self.rate(&one["requests"], &before["requests"])));
                let shown = |request: &Value| {
                    let text = |key: &str| sanitize(request[key].as_str().unwrap_or_default());
                    format!("{} {}", text("method"), text("target"))
                };
                let current: Vec<String> = list(&one["current"]).iter().map(shown).collect();
                row.insert("current".into(), json!(current.join(", ")));
                row.insert("current_ms".into(), one["current"][0]["age_ms"].clone());
                rows.push(row);
            }
        }
        rows
    }

    /// Returns the certificates: `name`, `issuer`, `expires_in_s`, `last_error`.
    pub(crate) fn certificates(&self) -> Vec<Map<String, Value>> {
        let row = |one: &Value| {
            let mut row = sanitized_texts(one, &["name", "issuer", "last_error"]);
            row.insert("expires_in_s".into(), one["expires_in_s"].clone());
            row
        };
        list(&self.latest["certificates"]).iter().map(row).collect()
    }

    /// Returns the lines of the error log, newest first: `unix_ms`, `level`, `text`.
    pub(crate) fn events(&self) -> Vec<Map<String, Value>> {
        let row = |one: &Value| {
            let mut row = sanitized_texts(one, &["level", "text"]);
            row.insert("unix_ms".into(), one["unix_ms"].clone());
            row
        };
        list(&self.latest["events"]).iter().rev().map(row).collect()
    }

    /// Returns the figures of the cache, and `hit_rate` of the time between the documents; empty if there is
    /// no cache.
    pub(crate) fn cache(&self) -> Map<String, Value> {
        let (Some(now), before) = (self.latest["cache"].as_object(), &self.earlier["cache"]) else {
            return Map::new();
        };
        let mut figures: Map<String, Value> = now
            .iter()
            .filter(|(_, value)| value.is_number())
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        let of = |keys: &[&str]| {
            keys.iter()
                .map(|key| self.rate(&now.get(*key).cloned().unwrap_or_default(), &before[*key]))
                .sum::<f64>()
        };
        let hits = of(&["hits", "stale", "revalidated", "coalesced"]);
        let misses = of(&["misses"]);
        let hit_rate = (hits + misses > 0.0).then(|| hits / (hits + misses));
        figures.insert("hit_rate".into(), json!(hit_rate));
        figures
    }

    /// Returns the figures of the whole server: `requests_per_s`, `status_5xx_per_s`, `p50_ms`, `p99_ms`,
    /// `all_requests_per_s` with `all_http2_requests_per_s` and `all_http3_requests_per_s` of the whole server,
    /// `waiting`, `connections`, `connections_per_s`, `cpu`, `pss_bytes` (with applications), `held_bytes`,
    /// `budget_bytes`.
    pub(crate) fn server(&self) -> Map<String, Value> {
        let routes = self.routes();
        let mut server = Map::new();
        let total = |rows: &[Map<String, Value>], key: &str| {
            rows.iter().filter_map(|row| row[key].as_f64()).sum::<f64>()
        };
        for key in ["requests_per_s", "status_5xx_per_s", "out_bytes_per_s"] {
            server.insert(key.into(), json!(total(&routes, key)));
        }
        let all = |document: &Value| {
            let mut classes = vec![0; self.duration_bounds().len() + 1];
            for route in list(&document["routes"]) {
                let counts = list(&route["duration"]["classes"]).iter().filter_map(Value::as_u64);
                classes.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
            }
            json!({ "classes": classes })
        };
        self.add_percentiles(&all(&self.latest), &all(&self.earlier), &mut server);
        let groups = list(&self.latest["upstreams"]).iter().map(|group| &group["waiting"]);
        let apps = list(&self.latest["apps"]).iter().map(|app| &app["queue"]["waiting"]);
        server.insert("waiting".into(), json!(groups.chain(apps).filter_map(Value::as_u64).sum::<u64>()));
        let connections = &self.latest["connections"];
        let before = &self.earlier["connections"];
        server.insert("connections".into(), connections["open"].clone());
        server.insert(
            "connections_per_s".into(),
            json!(self.rate(&connections["accepted"], &before["accepted"])),
        );
        for key in ["http2_requests", "http3_requests", "requests"] {
            server.insert(format!("all_{key}_per_s"), json!(self.rate(&connections[key], &before[key])));
        }
        let cpu = self.rate(&self.latest["usage"]["cpu_ms"], &self.earlier["usage"]["cpu_ms"]) / 1e3;
        server.insert("cpu".into(), json!(cpu));
        let own = self.latest["usage"]["pss_bytes"].as_f64().unwrap_or_default();
        server.insert("pss_bytes".into(), json!(own + total(&self.workers(), "pss_bytes")));
        for key in ["held_bytes", "budget_bytes"] {
            server.insert(key.into(), self.latest["memory"][key].clone());
        }
        server
    }
}

/// Returns the elements of a list; empty for any other value.
pub(crate) fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn total(counts: &Value) -> u64 {
    counts.as_object().into_iter().flatten().filter_map(|(_, count)| count.as_u64()).sum()
}

/// Returns these entries as text, sanitized by [`sanitize`].
fn sanitized_texts(one: &Value, keys: &[&str]) -> Map<String, Value> {
    keys.iter()
        .map(|key| ((*key).to_owned(), json!(sanitize(one[*key].as_str().unwrap_or_default()))))
        .collect()
}

/// Returns the increase of each class between two histograms.
fn class_increases(now: &Value, before: &Value) -> Vec<u64> {
    let count = |value: &Value, at: usize| value["classes"][at].as_u64().unwrap_or_default();
    (0..list(&now["classes"]).len()).map(|at| count(now, at).saturating_sub(count(before, at))).collect()
}

/// Returns the key that tells which bound a percentile with this `key` is: `upper` or `lower`.
pub(crate) fn bound_key(key: &str) -> String {
    format!("{}_bound", key.trim_end_matches("_ms"))
}

/// Returns the percentile in milliseconds, interpolated within its class. If all durations are of one class,
/// or the percentile is in the first or last one, only a bound is known; its kind is returned as well.
fn percentile(bounds: &[f64], classes: &[u64], share: f64) -> Option<(f64, Option<&'static str>)> {
    let total: u64 = classes.iter().sum();
    let mut left = share * total as f64;
    let mut lower = 0.0;
    if total == 0 {
        return None;
    }
    for (at, (class, upper)) in classes.iter().zip(bounds).enumerate() {
        let within = *class as f64;
        if left <= within {
            let is_bound = at == 0 || *class == total;
            let within_ms = || lower + (upper - lower) * left / within.max(1.0);
            return Some(if is_bound { (*upper, Some("upper")) } else { (within_ms(), None) });
        }
        (left, lower) = (left - within, *upper);
    }
    Some((lower, Some("lower")))
}

/// Returns the CPU time per request in milliseconds: of the requests measured between two estimates or, if
/// there are none, of all earlier ones. Few requests are measured, so an interval may have none.
fn cpu_ms_per_request(now: &Value, before: &Value) -> Option<f64> {
    let of = |estimate: &Value, key: &str| estimate[key].as_f64().unwrap_or_default();
    let us = of(now, "us");
    let requests = of(now, "requests");
    let us_since = us - of(before, "us");
    let requests_since = requests - of(before, "requests");
    let (us, requests) = if requests_since > 0.0 { (us_since, requests_since) } else { (us, requests) };
    (requests > 0.0).then(|| us / requests / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_state_whether_they_are_bounds() {
        let of = |classes, share| percentile(&[1.0, 2.0, 4.0], classes, share);
        assert_eq!(of(&[0; 4], 0.5), None);
        assert_eq!(of(&[0, 10, 0, 0], 0.5), Some((2.0, Some("upper"))));
        assert_eq!(of(&[90, 0, 10, 0], 0.5), Some((1.0, Some("upper"))));
        assert_eq!(of(&[50, 0, 50, 0], 0.75), Some((3.0, None)));
        assert_eq!(of(&[0, 0, 0, 7], 0.99), Some((4.0, Some("lower"))));
    }
}
