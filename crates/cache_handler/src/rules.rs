//! Cache rules of a route: the rules that match a request, and their effect on the key, the request and the
//! response.

use std::borrow::Cow;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use cache::{
    CacheKey, CachePolicy, CacheRule, IgnoredField, KeyFields, Policy, QueryKey, RulePolicy, StripCookies,
    query, vary,
};
use config::{ConfigLine, HiddenRouteKind, PartOf};
use http::{Fields, HeadRef, Name, Status};
use net::{DetachedRequest, Request};

use crate::request;

/// Cache rules of a route.
pub struct CacheRules {
    base: Policy,
    /// At most 64 rules, one for each bit of [`MatchedRules`].
    rules: Vec<Rule>,
    suffix: RouteSuffix,
    /// Request fields that the route's proxy writes with values that depend on the request, in lower case.
    written_fields: Vec<String>,
}

/// Suffix of a route's cache keys. If the routes of a site are selected by more than the URL, their suffixes
/// differ, so that a route never uses the responses of another one.
#[derive(Clone, Default)]
pub struct RouteSuffix {
    /// Suffix of this route's keys; empty if the URL alone selects the route.
    suffix: Vec<u8>,
    /// Suffixes of all routes of the site that have a cache.
    all: Arc<[Vec<u8>]>,
}

/// Key suffixes of all routes of a site.
#[derive(Default)]
pub struct RouteSuffixes {
    /// Suffixes by route; a single one if the URL alone selects the route.
    by_route: Vec<Vec<u8>>,
    all: Arc<[Vec<u8>]>,
}

impl RouteSuffixes {
    /// Creates the suffixes of a site; none if no route has a cache.
    pub fn new(site: &config::Site) -> RouteSuffixes {
        let routes = &site.routes;
        if routes.iter().all(|route| site.cache_of(route).is_none()) {
            return RouteSuffixes::default();
        }
        // Another site may have the same host at different addresses.
        let mut addresses: Vec<String> =
            site.listen.iter().map(|listener| format!(" listen={}", listener.address)).collect();
        addresses.sort_unstable();
        let of_site = addresses.concat();
        let is_plain = |route: &config::Route| {
            let conditions = [
                route.header.len(),
                route.query.len(),
                route.referer.len(),
                route.client.len(),
                route.country.len(),
                route.host.len(),
                route.not.len(),
            ];
            conditions == [0; 7] && route.part_of.is_none()
        };
        if routes.iter().all(is_plain) {
            let own = of_site.into_bytes();
            return RouteSuffixes { all: Arc::new([own.clone()]), by_route: vec![own] };
        }
        // Derived from the route's conditions, because its position in the file may change.
        let name = |route: &config::Route| {
            let mut hasher = DefaultHasher::new();
            format!("{:?}", (&route.path, &route.method, &route.header, &route.query)).hash(&mut hasher);
            if !(route.referer.is_empty() && route.client.is_empty() && route.country.is_empty()) {
                format!("{:?}", (&route.referer, &route.client, &route.country)).hash(&mut hasher);
            }
            if !(route.host.is_empty() && route.not.is_empty()) {
                format!("{:?}", (&route.host, &route.not)).hash(&mut hasher);
            }
            if let Some(PartOf { kind: HiddenRouteKind::Branch(name), .. }) = &route.part_of {
                name.hash(&mut hasher);
            }
            format!("{of_site} route={:016x}", hasher.finish()).into_bytes()
        };
        let own: Vec<Vec<u8>> = routes.iter().map(name).collect();
        let cached = own.iter().zip(routes).filter(|(_, route)| site.cache_of(route).is_some());
        RouteSuffixes { all: cached.map(|(name, _)| name.clone()).collect(), by_route: own }
    }

    /// Returns the suffix of a route, by its index.
    pub fn of(&self, index: usize) -> RouteSuffix {
        let own = self.by_route.get(index).or(self.by_route.first()).cloned().unwrap_or_default();
        RouteSuffix { suffix: own, all: self.all.clone() }
    }
}

struct Rule {
    config: CacheRule,
    key: Option<KeyRule>,
}

/// Parts of the key in addition to scheme, host and path.
pub(crate) struct KeyRule {
    query: QueryRule,
    pub(crate) fields: KeyFields,
}

/// Selects the query parameters that are in the key.
struct QueryRule {
    key: CacheKey,
    is_whole: bool,
}

/// Set of the rules that match a request, one bit for each.
#[derive(Clone, Copy, Default)]
pub(crate) struct MatchedRules(u64);

impl CacheRules {
    /// Creates the rules of a route from its cache policy.
    pub fn new(policy: &CachePolicy, suffix: RouteSuffix) -> CacheRules {
        let base = Policy {
            stores_cookies: policy.stores_cookies,
            heuristic_s_max: policy.heuristic.as_secs(),
            unreachable_s: policy.grace.as_secs(),
            rule: RulePolicy::default(),
        };
        let rule = |rule: &CacheRule| Rule { config: rule.clone(), key: rule.key.as_ref().map(KeyRule::new) };
        CacheRules {
            base,
            rules: policy.rules.iter().map(rule).collect(),
            suffix,
            written_fields: Vec::new(),
        }
    }

    /// Adds the request fields that the route's proxy sets to values that depend on the request.
    pub fn with_written_fields(mut self, proxy: Option<&proxy::options::ProxyOptions>) -> CacheRules {
        let changes = proxy.map(|proxy| &proxy.request_headers);
        let fields = changes.into_iter().flat_map(|changes| changes.set.iter().chain(&changes.add));
        self.written_fields = fields
            .filter(|(_, value)| value.as_literal().is_none())
            .map(|(name, _)| name.to_ascii_lowercase())
            .collect();
        self
    }

    /// Returns the rules that match a request.
    pub(crate) fn matched(&self, request: &Request<'_>) -> MatchedRules {
        if self.rules.is_empty() {
            return MatchedRules::default();
        }
        self.matched_by(request.head(), &request.route_path().unwrap_or_default())
    }

    /// Returns the rules that match a request head and the path used for routing.
    pub(crate) fn matched_by(&self, request: HeadRef<'_>, path: &[u8]) -> MatchedRules {
        let mut matched = MatchedRules::default();
        for (index, rule) in self.rules.iter().enumerate() {
            if rule.config.matches(request, path) {
                matched.0 |= 1 << index;
            }
        }
        matched
    }

    /// Returns all queries that the keys of requests for this path and query may have, for any request
    /// fields.
    pub(crate) fn key_queries(&self, path: &[u8], query: Option<&[u8]>) -> Vec<Option<Vec<u8>>> {
        let encoded = || query.map(http::path::encode_beyond_ascii);
        let mut queries = Vec::new();
        for rule in self.rules.iter().filter(|rule| rule.config.matches_url(path, query.unwrap_or_default()))
        {
            let Some(key) = &rule.key else { continue };
            queries.push(key.query(encoded()).map(Cow::into_owned));
            if rule.config.header.is_empty() && rule.config.cookie.is_empty() {
                return queries;
            }
        }
        queries.push(encoded().map(Cow::into_owned));
        queries
    }

    /// Returns the configuration line of the rule that makes a request bypass the cache, if there is one.
    pub(crate) fn line_of_bypass(&self, matched: MatchedRules) -> Option<&ConfigLine> {
        let rule = self.matched_rules(matched).find(|rule| rule.config.bypass.is_some())?;
        rule.config.line.as_ref().filter(|_| rule.config.bypass == Some(true))
    }

    /// Returns the configuration lines of the rules that forbid storing some responses to a request.
    pub(crate) fn lines_of_refusals(&self, matched: MatchedRules) -> Vec<&ConfigLine> {
        self.matched_rules(matched)
            .filter(|rule| rule.config.stores == Some(false))
            .filter_map(|rule| rule.config.line.as_ref())
            .collect()
    }

    /// Returns the directive that sets the lifetime of a response, and the configuration line of its rule.
    pub(crate) fn line_of_lifetime(
        &self,
        matched: MatchedRules,
        status: Status,
        fields: &Fields,
    ) -> Option<(&'static str, &ConfigLine)> {
        let rules = self.applicable(matched, status, fields);
        let is_meant = |rule: &&&CacheRule| status.code() < 400 || !rule.status.is_empty();
        let line = |of: fn(&CacheRule) -> Option<std::time::Duration>| {
            rules.iter().filter(is_meant).find(|rule| of(rule).is_some()).and_then(|rule| rule.line.as_ref())
        };
        let ttl = line(|rule| rule.ttl).map(|line| ("ttl", line));
        ttl.or_else(|| line(|rule| rule.default_ttl).map(|line| ("default_ttl", line)))
    }

    /// Returns the rules that apply to a response.
    fn applicable(&self, matched: MatchedRules, status: Status, fields: &Fields) -> Vec<&CacheRule> {
        let media = fields.first(b"content-type").map(http::media::without_parameters).unwrap_or_default();
        let rules = self.matched_rules(matched).map(|rule| &rule.config);
        rules.filter(|rule| rule.applies_to(status, &media)).collect()
    }

    /// Whether responses to a request may be personal, because the rules distinguish them by cookies or
    /// credentials.
    pub(crate) fn are_personal(&self, matched: MatchedRules) -> bool {
        let is_named =
            |name: &String| ["cookie", "authorization"].iter().any(|one| name.eq_ignore_ascii_case(one));
        self.matched_rules(matched).any(|rule| {
            let of_key = |key: &CacheKey| !key.cookie.is_empty() || key.header.iter().any(is_named);
            rule.config.with_authorization == Some(true) || rule.config.key.as_ref().is_some_and(of_key)
        })
    }

    fn matched_rules(&self, matched: MatchedRules) -> impl Iterator<Item = &Rule> {
        self.rules
            .iter()
            .enumerate()
            .filter(move |(index, _)| matched.0 >> index & 1 == 1)
            .map(|(_, rule)| rule)
    }

    /// Whether the request bypasses the cache.
    pub(crate) fn bypasses(&self, matched: MatchedRules) -> bool {
        self.matched_rules(matched).find_map(|rule| rule.config.bypass).unwrap_or(false)
    }

    /// Returns the key rule of a request, if there is one.
    pub(crate) fn key(&self, matched: MatchedRules) -> Option<&KeyRule> {
        self.matched_rules(matched).find_map(|rule| rule.key.as_ref())
    }

    /// Writes the key of a request. Returns `false` if the request has none.
    pub(crate) fn write_key(&self, matched: MatchedRules, key: &mut Vec<u8>, request: &Request<'_>) -> bool {
        let mut query = request.encoded_query();
        if let Some(rule) = self.key(matched) {
            query = rule.query(query);
        }
        let has_key = request::write_key(key, request, query.as_deref());
        key.extend_from_slice(&self.suffix.suffix);
        has_key
    }

    /// Returns the keys of the same URL on other routes of the site.
    pub(crate) fn other_keys(&self, key: &[u8]) -> Vec<Vec<u8>> {
        let Some(base) = key.strip_suffix(&self.suffix.suffix[..]) else { return Vec::new() };
        let others = self.suffix.all.iter().filter(|place| **place != self.suffix.suffix);
        others.map(|place| [base, place].concat()).collect()
    }

    /// Returns the properties of requests by which responses are selected, in addition to those named by
    /// `Vary`.
    pub(crate) fn variant_fields(&self, matched: MatchedRules) -> KeyFields {
        let mut fields = self.key(matched).map(|key| key.fields.clone()).unwrap_or_default();
        if *self.strip_cookies(matched) == StripCookies::All {
            fields.add_no_cookies();
        }
        self.written_fields.iter().for_each(|name| fields.add_written(name));
        fields
    }

    /// Returns the request count from which on a response is stored.
    pub(crate) fn min_uses(&self, matched: MatchedRules) -> u32 {
        self.matched_rules(matched).find_map(|rule| rule.config.min_uses).unwrap_or(1)
    }

    fn strip_cookies(&self, matched: MatchedRules) -> &StripCookies {
        self.matched_rules(matched)
            .find_map(|rule| rule.config.strip_cookies.as_ref())
            .unwrap_or(&StripCookies::None)
    }

    /// Whether a request has cookies that a response may depend on: neither removed nor in the key.
    pub(crate) fn has_cookies(&self, matched: MatchedRules, request: &Request<'_>) -> bool {
        if request.field(Name::Cookie).is_none() {
            return false;
        }
        let strips = self.strip_cookies(matched);
        let key = self.key(matched);
        let is_settled = |name: &[u8]| strips.strips(name) || key.is_some_and(|key| key.has_cookie(name));
        vary::cookies(request.head()).any(|(name, _)| !is_settled(name))
    }

    /// Removes from a request to the origin the parameters, languages and cookies that are not in the key.
    pub(crate) fn prepare(&self, matched: MatchedRules, request: &mut DetachedRequest) {
        if let Some(key) = self.key(matched) {
            if !key.query.is_whole {
                let head = request.head();
                let query =
                    head.target.query.map(|query| http::path::encode_beyond_ascii(query.of(head.bytes)));
                let query = key.query(query).map(Cow::into_owned);
                request.set_query(query.as_deref());
            }
            if let Some(language) = key.fields.language(request.head()) {
                request.retain(|id, _| id != Name::AcceptLanguage);
                request.add(Name::AcceptLanguage, &language);
            }
        }
        let strips = self.strip_cookies(matched);
        if *strips != StripCookies::None {
            let kept = vary::cookies(request.head()).filter(|(name, _)| !strips.strips(name));
            let kept: Vec<Vec<u8>> = kept.map(|(name, value)| [name, b"=", value].concat()).collect();
            request.retain(|id, _| id != Name::Cookie);
            if !kept.is_empty() {
                request.add(Name::Cookie, &kept.join(&b"; "[..]));
            }
        }
    }

    /// Removes the `Set-Cookie` fields of cookies that the rules strip.
    pub(crate) fn strip_response(&self, matched: MatchedRules, fields: &mut Fields) {
        let strips = self.strip_cookies(matched);
        let name = |value: &[u8]| {
            let end = value.iter().position(|byte| matches!(byte, b'=' | b';')).unwrap_or(value.len());
            http::scan::trim(&value[..end]).to_vec()
        };
        let is_cookie = |field: &[u8]| field.eq_ignore_ascii_case(b"set-cookie");
        let removes = |value: &[u8]| strips.strips(&name(value));
        if *strips == StripCookies::None
            || !fields.iter().any(|(field, value)| is_cookie(field) && removes(value))
        {
            return;
        }
        let kept: Vec<Vec<u8>> = fields
            .iter()
            .filter(|(field, value)| is_cookie(field) && !removes(value))
            .map(|(_, value)| value.to_vec())
            .collect();
        fields.remove(b"set-cookie");
        kept.iter().for_each(|value| fields.push(Name::SetCookie, value));
    }

    /// Returns the policy for a response.
    pub(crate) fn policy(&self, matched: MatchedRules, status: Status, fields: &Fields) -> Policy {
        let mut policy = self.base.clone();
        if matched.0 == 0 {
            return policy;
        }
        let rules = self.applicable(matched, status, fields);
        // Lifetimes of rules without `status` do not apply to error responses.
        let is_meant = |rule: &&&CacheRule| status.code() < 400 || !rule.status.is_empty();
        let seconds = |of: fn(&CacheRule) -> Option<std::time::Duration>| {
            rules.iter().find_map(|rule| of(rule)).map(|time| time.as_secs())
        };
        let lifetime = |of: fn(&CacheRule) -> Option<std::time::Duration>| {
            rules.iter().filter(is_meant).find_map(|rule| of(rule)).map(|time| time.as_secs())
        };
        let flag = |of: fn(&CacheRule) -> Option<bool>| rules.iter().find_map(|rule| of(rule));
        let ignored = rules.iter().find_map(|rule| rule.ignore.as_deref()).unwrap_or_default();
        policy.stores_cookies = flag(|rule| rule.stores_cookies).unwrap_or(policy.stores_cookies);
        policy.unreachable_s = seconds(|rule| rule.grace).unwrap_or(policy.unreachable_s);
        policy.rule = RulePolicy {
            refuses: flag(|rule| rule.stores) == Some(false),
            ttl_s: lifetime(|rule| rule.ttl),
            default_ttl_s: lifetime(|rule| rule.default_ttl),
            while_revalidate_s: seconds(|rule| rule.while_revalidate),
            if_error_s: seconds(|rule| rule.if_error),
            keep_s: seconds(|rule| rule.keep),
            ignores_cache_control: ignored.contains(&IgnoredField::CacheControl),
            ignores_expires: ignored.contains(&IgnoredField::Expires),
            ignores_vary: ignored.contains(&IgnoredField::Vary),
            with_cookies: flag(|rule| rule.with_cookies).unwrap_or(false),
            with_authorization: flag(|rule| rule.with_authorization).unwrap_or(false),
        };
        policy
    }
}

impl KeyRule {
    fn new(key: &CacheKey) -> KeyRule {
        let mut fields = KeyFields::default();
        key.header.iter().for_each(|name| fields.add_field(name));
        key.cookie.iter().for_each(|name| fields.add_cookie(name));
        if !key.language.is_empty() {
            fields.add_language(&key.language);
        }
        if key.device {
            fields.add_device();
        }
        let is_whole = key.query == QueryKey::All && key.ignore_query.is_empty() && !key.sort_query;
        KeyRule { query: QueryRule { key: key.clone(), is_whole }, fields }
    }

    fn has_cookie(&self, name: &[u8]) -> bool {
        let key = &self.query.key;
        key.cookie.iter().any(|one| one.as_bytes() == name) || key.header.iter().any(|one| one == "cookie")
    }

    /// Returns the query as it appears in the key.
    pub(crate) fn query<'q>(&self, query: Option<Cow<'q, [u8]>>) -> Option<Cow<'q, [u8]>> {
        if self.query.is_whole { query } else { self.query.normal(&query?).map(Cow::Owned) }
    }
}

impl QueryRule {
    fn normal(&self, whole: &[u8]) -> Option<Vec<u8>> {
        let is_one = |patterns: &[shapes::pattern::ValuePattern], name: &[u8]| {
            patterns.iter().any(|pattern| pattern.matches(name.iter().copied()))
        };
        let keeps = |name: &[u8]| match &self.key.query {
            QueryKey::All => !is_one(&self.key.ignore_query, name),
            QueryKey::None => false,
            QueryKey::Only(names) => is_one(names, name),
        };
        query::normal_query(whole, keeps, self.key.sort_query)
    }
}
