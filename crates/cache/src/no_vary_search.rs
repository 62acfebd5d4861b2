//! `No-Vary-Search`: an origin declares which parts of a query do not affect its responses
//! (<https://httpwg.org/http-extensions/draft-ietf-httpbis-no-vary-search.html>).
//!
//! A response's rule applies to later requests for its path: their queries are normalized for the key.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use http::Fields;

use crate::cache_control::joined;
use crate::held::{Account, HeldBytes};
use crate::query::{decoded, normal_query};
use crate::structured_fields::{FlagOrNames, flags_and_names};

/// Maximum length of the field value.
const FIELD_BYTES_MAX: usize = 1024;
/// Maximum length of a path for which a rule is stored, including scheme and host.
const PATH_BYTES_MAX: usize = 1024;
/// Maximum number of paths with stored rules.
const PATHS_MAX: usize = 1024;
/// Accounted bytes of a rule, in addition to its path and names.
const RULE_BYTES: usize = 256;
/// Accounted bytes of a parameter name, in addition to its length.
const NAME_BYTES: usize = 32;

/// Rule of a response for the queries that it answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchRule {
    /// Whether the order of parameters matters.
    ordered: bool,
    params: IgnoredParams,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum IgnoredParams {
    Only(Vec<Vec<u8>>),
    AllBut(Vec<Vec<u8>>),
}

impl SearchRule {
    /// Parses the rule of a response; `None` if it has none or an invalid one.
    #[must_use]
    pub fn of(fields: &Fields) -> Option<SearchRule> {
        let value = joined(fields, b"no-vary-search");
        if value.is_empty() || value.len() > FIELD_BYTES_MAX {
            return None;
        }
        let mut ordered = true;
        let mut params = None;
        let mut except = None;
        for (name, value) in flags_and_names(&value)? {
            match (&name[..], value) {
                (b"key-order", FlagOrNames::Flag(flag)) => ordered = !flag,
                (b"params", value @ (FlagOrNames::Flag(_) | FlagOrNames::Names(_))) => params = Some(value),
                (b"except", FlagOrNames::Names(names)) => except = Some(names),
                (b"key-order" | b"params" | b"except", _) => return None,
                _ => {}
            }
        }
        let decoded = |names: Vec<Vec<u8>>| names.iter().map(|name| decoded(name)).collect();
        let params = match (params, except) {
            (Some(FlagOrNames::Flag(true)), except) => {
                IgnoredParams::AllBut(decoded(except.unwrap_or_default()))
            }
            (_, Some(_)) => return None,
            (Some(FlagOrNames::Names(names)), None) => IgnoredParams::Only(decoded(names)),
            _ => IgnoredParams::Only(Vec::new()),
        };
        let rule = SearchRule { ordered, params };
        (rule != SearchRule { ordered: true, params: IgnoredParams::Only(Vec::new()) }).then_some(rule)
    }

    /// Returns the accounted bytes of memory.
    fn weight_bytes(&self) -> usize {
        let (IgnoredParams::Only(names) | IgnoredParams::AllBut(names)) = &self.params;
        RULE_BYTES + names.iter().map(|name| NAME_BYTES + name.len()).sum::<usize>()
    }

    /// Returns the normalized query; `None` if nothing is left.
    #[must_use]
    pub fn normal(&self, query: &[u8]) -> Option<Vec<u8>> {
        let has = |names: &[Vec<u8>], name: &[u8]| names.iter().any(|one| one == name);
        let keeps = |name: &[u8]| match &self.params {
            IgnoredParams::Only(names) => !has(names, name),
            IgnoredParams::AllBut(names) => has(names, name),
        };
        normal_query(query, keeps, !self.ordered)
    }
}

/// A stored rule and its accounted memory.
#[derive(Debug)]
struct RememberedRule {
    rule: Arc<SearchRule>,
    _held: HeldBytes,
}

/// Rules of responses, by scheme, host and path.
pub struct SearchRules {
    rules: RwLock<HashMap<Box<[u8]>, RememberedRule>>,
    count: AtomicUsize,
    account: Account,
}

impl fmt::Debug for SearchRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SearchRules").field("rules", &self.rules).finish_non_exhaustive()
    }
}

impl SearchRules {
    /// Creates an empty set. `account` is called with the bytes held before and after each change.
    pub(crate) fn new(account: Account) -> SearchRules {
        SearchRules { rules: RwLock::default(), count: AtomicUsize::new(0), account }
    }

    /// Returns the rule for the path of this key, if there is one. `key` may have a query.
    #[must_use]
    pub fn find(&self, key: &[u8]) -> Option<Arc<SearchRule>> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.rules
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(path_of(key))
            .map(|known| known.rule.clone())
    }

    /// Stores the rule of a response to a request with this key; `None` for a response without one.
    pub fn store(&self, key: &[u8], rule: Option<SearchRule>) {
        let path = path_of(key);
        let known = self.find(path);
        if known.as_deref() == rule.as_ref() || path.len() > PATH_BYTES_MAX {
            return;
        }
        let mut rules = self.rules.write().unwrap_or_else(PoisonError::into_inner);
        match rule {
            Some(rule) => {
                if rules.len() >= PATHS_MAX
                    && let Some(other) = rules.keys().next().cloned()
                {
                    rules.remove(&other);
                }
                let held = HeldBytes::new(&self.account, (path.len() + rule.weight_bytes()) as u64);
                rules.insert(path.into(), RememberedRule { rule: Arc::new(rule), _held: held });
            }
            None => _ = rules.remove(path),
        }
        self.count.store(rules.len(), Ordering::Relaxed);
    }
}

fn path_of(key: &[u8]) -> &[u8] {
    let end = key.iter().position(|byte| matches!(byte, b'?' | b' ')).unwrap_or(key.len());
    &key[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_search_rules_is_accounted() {
        let held: Arc<AtomicUsize> = Arc::default();
        let account = held.clone();
        let rules = SearchRules::new(Arc::new(move |before, after| {
            account.fetch_add((after as usize).wrapping_sub(before as usize), Ordering::Relaxed);
        }));
        for n in 0..3 * PATHS_MAX {
            rules.store(format!("http://a/{n}").as_bytes(), rule("params=(\"utm\" \"fbclid\")"));
        }
        let most = held.load(Ordering::Relaxed);
        assert!(most > PATHS_MAX * RULE_BYTES && most < PATHS_MAX * 2 * RULE_BYTES, "{most}");
        let known = rules.rules.read().unwrap().keys().next().unwrap().clone();
        rules.store(&known, None);
        assert!(held.load(Ordering::Relaxed) < most);
        drop(rules);
        assert_eq!(held.load(Ordering::Relaxed), 0);
    }

    fn rule(value: &str) -> Option<SearchRule> {
        SearchRule::of(&crate::object::tests::fields(&[("No-Vary-Search", value)]))
    }

    #[test]
    fn no_vary_search_values_are_parsed_and_applied() {
        for (value, query, normal) in [
            ("key-order", "b=1&a=2", Some("a=2&b=1")),
            ("params", "b=1&a=2", None),
            ("params=?1", "b=1", None),
            ("params=(\"utm\" \"x y\")", "utm=1&b=2&x+y=3", Some("b=2")),
            ("params, except=(\"id\")", "b=1&id=2", Some("id=2")),
            ("params, key-order, except=(\"b\" \"a\")", "b=1&x&a=2", Some("a=2&b=1")),
            ("other=1, params=(\"a\");x=1", "a&b", Some("b")),
        ] {
            let normal_form = rule(value).unwrap().normal(query.as_bytes());
            assert_eq!(
                normal_form.map(|query| String::from_utf8(query).unwrap()).as_deref(),
                normal,
                "{value}"
            );
        }
        let long = format!("params=(\"{}\")", "x".repeat(FIELD_BYTES_MAX));
        for invalid in [
            "",
            "params=?0",
            "params=1",
            "params=(a)",
            "except=(\"a\")",
            "params=(\"a\"), except=(\"b\")",
            "A",
            "key-order=1",
            &long,
        ] {
            assert_eq!(rule(invalid), None, "{invalid}");
        }
    }

    #[test]
    fn normalization_of_queries_is_idempotent() {
        let rules = ["key-order", "params=(\"a\" \"b c\")", "params, except=(\"a\"), key-order"]
            .map(|value| rule(value).unwrap());
        let letters = b"ab=&%26+;?c";
        let mut seed = 7u64;
        let mut query = Vec::new();
        for _ in 0..20_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            query.push(letters[(seed >> 33) as usize % letters.len()]);
            if seed >> 60 == 0 {
                for rule in &rules {
                    let normal = rule.normal(&query);
                    assert_eq!(normal.as_ref().and_then(|normal| rule.normal(normal)), normal, "{query:?}");
                }
                query.clear();
            }
        }
    }

    #[test]
    fn search_rules_apply_to_their_path_and_are_bounded() {
        let rules = SearchRules::new(Arc::new(|_, _| {}));
        assert!(rules.find(b"http://a/x?b").is_none());
        rules.store(b"http://a/x?b", rule("params"));
        assert!(rules.find(b"http://a/x?c=1").is_some() && rules.find(b"http://a/y?b").is_none());
        rules.store(b"http://a/x?c", None);
        assert!(rules.find(b"http://a/x").is_none());
        for n in 0..PATHS_MAX + 10 {
            rules.store(format!("http://a/{n}").as_bytes(), rule("params"));
        }
        rules.store(format!("http://a/{}", "x".repeat(PATH_BYTES_MAX)).as_bytes(), rule("params"));
        assert_eq!(rules.count.load(Ordering::Relaxed), PATHS_MAX);
    }
}
