//! Rules of the cache: exceptions for some requests and responses.

use crate::vary;
use http::{HeadRef, Status};
use settings::checker::{Checker, InvalidValue};
use settings::directive_table::table;
use settings::directives;
use settings::joined_text::ConfigLine;
use settings::node::{Entry, Node, NodeData};
use settings::shape::{Count, Flag, Map, Maybe, OneOrMore, Shape, ShapeKind, Text, Time, Toggle, Word};
use shapes::header;
use shapes::media::parse_type_pattern;
use shapes::names::{cookie_name, parameter};
use shapes::pattern::{PathPattern, ValueCondition, ValuePattern};
use shapes::status::{StatusMatch, StatusShape};
use std::time::Duration;

/// Fields and cookies that one key may have.
const KEY_PARTS_MAX: usize = 16;
const YEAR: Duration = Duration::from_secs(365 * 86_400);
const LIFETIME: Maybe<Time> = Maybe(Time { min: Duration::ZERO, max: YEAR });

/// A field of a response that a rule has the cache ignore.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IgnoredField {
    /// `Cache-Control` and `CDN-Cache-Control`.
    CacheControl,
    /// `Expires`.
    Expires,
    /// `Vary`, but for `Accept-Encoding` in it.
    Vary,
}

/// Cookies that are removed from requests and responses.
#[derive(Debug, Clone, PartialEq)]
pub enum StripCookies {
    /// None.
    None,
    /// All.
    All,
    /// Cookies with one of these names.
    Named(Vec<ValuePattern>),
}

impl StripCookies {
    /// Whether the cookie of that name is removed.
    #[must_use]
    pub fn strips(&self, name: &[u8]) -> bool {
        match self {
            StripCookies::None => false,
            StripCookies::All => true,
            StripCookies::Named(names) => names.iter().any(|one| one.matches(name.iter().copied())),
        }
    }
}

/// Query parameters that are part of the cache key.
#[derive(Debug, Clone, PartialEq)]
pub enum QueryKey {
    /// All.
    All,
    /// None.
    None,
    /// Parameters with one of these names.
    Only(Vec<ValuePattern>),
}

const PATHS: OneOrMore<Text<PathPattern>> =
    OneOrMore(Text { what: "a path such as \"/a\", \"/a/*\" or \"*.php\"", parse: PathPattern::parse });
const TYPES: OneOrMore<Text<String>> =
    OneOrMore(Text { what: "a media type such as \"image/*\"", parse: parse_type_pattern });
const NAMES: OneOrMore<Text<ValuePattern>> = OneOrMore(Text {
    what: "a name, in which `*` stands for any run of characters",
    parse: parse_name_pattern,
});
const HEADERS: Map<String, ValueCondition> =
    Map { what: "header names", key: header::parse_name, value: ValueCondition };
const QUERY: Map<String, ValueCondition> =
    Map { what: "parameter names", key: parameter, value: ValueCondition };
const FIELDS: OneOrMore<Word<IgnoredField>> = OneOrMore(Word(&[
    ("Cache-Control", IgnoredField::CacheControl),
    ("Expires", IgnoredField::Expires),
    ("Vary", IgnoredField::Vary),
]));

directives! {
    /// A rule of the cache: settings for requests and responses that meet all of its conditions. Each
    /// directive is taken from the first rule that applies and has it, so several rules may apply to one
    /// response.
    ///
    /// ```toml
    /// [[route]]
    /// path  = "/shop/*"
    /// proxy = "http://127.0.0.1:3000"
    ///
    /// [[route.cache.rule]]
    /// cookie = "session"
    /// bypass = true
    ///
    /// [[route.cache.rule]]
    /// path = "/shop/images/*"
    /// ttl = "1h"
    /// strip_cookies = true
    ///
    /// [[route.cache.rule]]
    /// status = [404, 410]
    /// ttl = "10s"
    ///
    /// [[route]]
    /// proxy = "http://127.0.0.1:3000"
    /// cache = true
    /// ```
    ///
    /// Conditions of requests are `path`, `header`, `query` and `cookie`; of responses `type` and `status`.
    CacheRule in "`[[route.cache.rule]]`", check rule_agrees {
        /// Condition: paths, one of which must match, as in `path` of a route.
        "path" path: Vec<PathPattern> = absent("every path"), PATHS;
        /// Condition: header fields; the request must have each with a value that matches, as in `header` of a route.
        "header" header: Vec<(String, ValuePattern)> = {}, HEADERS;
        /// Condition: query parameters, as in `query` of a route.
        "query" query: Vec<(String, ValuePattern)> = {}, QUERY;
        /// Condition: names of cookies, one of which the request must have. `*` matches any run of
        /// characters.
        "cookie" cookie: Vec<ValuePattern> = absent("with cookies and without"), NAMES;
        /// Condition: media types of the response.
        "type" types: Vec<String> = absent("every type"), TYPES;
        /// Condition: statuses of the response, 200 to 599, or a class such as `"5xx"`.
        "status" status: Vec<StatusMatch> = absent("every status, but `ttl` and `default_ttl` apply to statuses below 400"),
            OneOrMore(StatusShape);
        /// Whether requests pass the cache: they are not answered from it, and their responses are not stored.
        "bypass" bypass: Option<bool> = absent("false"), Maybe(Flag);
        /// Whether responses may be stored.
        "store" stores: Option<bool> = absent("true"), Maybe(Flag);
        /// Time for which responses are fresh, from their arrival, regardless of `max-age`, `s-maxage` and
        /// `Expires`. Responses with `private`, `no-store` or `no-cache` are not affected (see `ignore`), nor
        /// are those with `Set-Cookie`, or those to requests with `Authorization`. Responses to requests with
        /// cookies are stored only if the origin itself allows it (see `with_cookies`).
        "ttl" ttl: Option<Duration> = absent("as the response says"), LIFETIME;
        /// Like `ttl`, for responses that do not specify their freshness, in place of the heuristic.
        "default_ttl" default_ttl: Option<Duration> = absent("see `heuristic`"), LIFETIME;
        /// As `grace` of `cache`.
        "grace" grace: Option<Duration> = absent("as `cache` has it"), LIFETIME;
        /// Time for which stale responses are used while they are validated, if the response does not specify
        /// it.
        "stale_while_revalidate" while_revalidate: Option<Duration> = absent("as the response says"), LIFETIME;
        /// Time for which stale responses are used in place of 500, 502, 503 and 504, if the response does
        /// not specify it.
        "stale_if_error" if_error: Option<Duration> = absent("as the response says"), LIFETIME;
        /// Time for which stale responses are kept for validation.
        "keep" keep: Option<Duration> = absent("as long as there is room"), LIFETIME;
        /// Fields of responses that do not count: `"Cache-Control"` (and `CDN-Cache-Control`), `"Expires"`, `"Vary"` (all but
        /// `Accept-Encoding` in it). Clients get them all the same.
        "ignore" ignore: Option<Vec<IgnoredField>> = absent("none"), Maybe(FIELDS);
        /// Cookies that are removed from requests whose responses may be stored, and from these responses:
        /// `true` for all, or names, in which `*` matches any run of characters.
        "strip_cookies" strip_cookies: Option<StripCookies> = absent("none"), Maybe(Toggle {
            on: Some(|| StripCookies::All),
            off: || StripCookies::None,
            shape: CookieNames,
        });
        /// Parts of the cache key besides scheme, host and path.
        "key" key: Option<CacheKey> = absent("the whole query"), Maybe(table());
        /// Number of requests for a response before it is stored.
        "min_uses" min_uses: Option<u32> = absent("1"), Maybe(Count { min: 1, max: 1000 });
        /// Whether responses with `Set-Cookie` may be stored: everyone gets the cookie then.
        "set_cookie" stores_cookies: Option<bool> = absent("as `cache` has it"), Maybe(Flag);
        /// Whether `ttl` and `default_ttl` apply to responses to requests with cookies. Everyone then gets
        /// the response made for one user.
        "with_cookies" with_cookies: Option<bool> = absent("false"), Maybe(Flag);
        /// Whether responses to requests with `Authorization` may be stored without the origin's permission.
        /// Everyone then gets the response made for one user, unless `key` has that field.
        "with_authorization" with_authorization: Option<bool> = absent("false"), Maybe(Flag);
    }
    held {
        /// The line of the configuration where it begins.
        line: Option<ConfigLine>;
    }
}

directives! {
    /// Parts of the cache key besides scheme, host and path. Query parameters that are not in the key are
    /// removed from requests to the origin whose responses may be stored: no client can influence a stored
    /// response by a parameter that is not in its key.
    ///
    /// Fields, cookies, languages and the device are variants of a URL, as with `Vary`. A URL has at most 16
    /// of them; variants by `Vary` are counted separately.
    CacheKey in "`key` of a cache rule", check key_agrees {
        /// Query parameters: names, in which `*` matches any run of characters; `true` for all, `false` for
        /// none. A name ends at `=`, a parameter only at `&`.
        "query" query: QueryKey = true, Toggle { on: Some(|| QueryKey::All), off: || QueryKey::None, shape: QueryNames };
        /// Names of query parameters that are left out.
        "ignore_query" ignore_query: Vec<ValuePattern> = absent("none"), NAMES;
        /// Whether the order of parameters with different names does not matter. The origin gets them sorted.
        "sort_query" sort_query: bool = false, Flag;
        /// Header fields.
        "header" header: Vec<String> = absent("none"), OneOrMore(Text { what: "a header name", parse: header::parse_name });
        /// Cookies. `Vary: Cookie` does not count then.
        "cookie" cookie: Vec<String> = absent("none"), OneOrMore(Text { what: "a cookie's name", parse: cookie_name });
        /// Languages of the site, the usual one first: of these the one that `Accept-Language` prefers is in the key, and it is
        /// the only one that the origin is asked for.
        "language" language: Vec<String> = absent("none"),
            OneOrMore(Text { what: "a language such as \"en\" or \"pt-br\"", parse: language });
        /// Whether the kind of device is in the key (mobile, tablet, desktop), by `User-Agent`. Requests with
        /// two `User-Agent` fields, or whose `Sec-CH-UA-Mobile` contradicts it, have separate responses.
        /// `Vary: User-Agent` is then ignored.
        "device" device: bool = false, Flag;
    }
}

/// Names of cookies.
struct CookieNames;

impl Shape for CookieNames {
    type Out = StripCookies;

    fn kind(&self) -> ShapeKind {
        NAMES.kind()
    }

    fn read(&self, node: &Node, check: &mut Checker) -> Option<StripCookies> {
        NAMES.read(node, check).map(StripCookies::Named)
    }
}

/// Names of query parameters.
struct QueryNames;

impl Shape for QueryNames {
    type Out = QueryKey;

    fn kind(&self) -> ShapeKind {
        NAMES.kind()
    }

    fn read(&self, node: &Node, check: &mut Checker) -> Option<QueryKey> {
        NAMES.read(node, check).map(QueryKey::Only)
    }
}

impl CacheRule {
    /// Whether a path and a query meet the conditions on the URL.
    #[must_use]
    pub fn matches_url(&self, path: &[u8], query: &[u8]) -> bool {
        (self.path.is_empty() || self.path.iter().any(|pattern| pattern.matches(path)))
            && self.query.iter().all(|(name, pattern)| pattern.matches_parameter(query, name))
    }

    /// Whether a request, of which `path` is what routes match, meets the conditions on requests.
    #[must_use]
    pub fn matches(&self, request: HeadRef<'_>, path: &[u8]) -> bool {
        let query = request.target.query.map(|query| query.of(request.bytes)).unwrap_or_default();
        if !self.matches_url(path, query) {
            return false;
        }
        let has_field = |(name, pattern): &(String, ValuePattern)| {
            request.values_named(name.as_bytes()).any(|value| pattern.matches_bytes(value))
        };
        let is_named = |name: &[u8]| self.cookie.iter().any(|pattern| pattern.matches(name.iter().copied()));
        self.header.iter().all(has_field)
            && (self.cookie.is_empty() || vary::cookies(request).any(|(name, _)| is_named(name)))
    }

    /// Whether a response meets the conditions on responses. `media` is its media type without parameters.
    #[must_use]
    pub fn applies_to(&self, status: Status, media: &str) -> bool {
        (self.status.is_empty() || self.status.iter().any(|one| one.matches(status.code())))
            && (self.types.is_empty() || http::media::matches_any(media, &self.types))
    }

    /// The first of its directives that is decided before there is a response.
    const REQUEST_DIRECTIVES: [&str; 4] = ["bypass", "key", "strip_cookies", "min_uses"];
    const CONDITIONS: [&str; 6] = ["path", "header", "query", "cookie", "type", "status"];

    /// Whether it is for some paths or types alone.
    fn is_limited(&self) -> bool {
        self.applies_only_to_assets()
            || !self.path.is_empty() && !self.path.iter().any(PathPattern::matches_whole_site)
    }

    /// Whether it is for media types alone that no page has.
    fn applies_only_to_assets(&self) -> bool {
        let is_page = |media: &String| {
            let media = media.to_ascii_lowercase();
            let is_of_group = |group: &&str| media.starts_with(*group);
            let is_asset = ["image/", "font/", "video/", "audio/"].iter().any(is_of_group);
            ["html", "json", "xml"].iter().any(|word| media.contains(word))
                || media == "text/plain"
                || media.ends_with("/*") && !is_asset
        };
        !self.types.is_empty() && !self.types.iter().any(is_page)
    }

    /// Whether it is for errors alone.
    fn applies_only_to_errors(&self) -> bool {
        let is_error = |status: &StatusMatch| match status {
            StatusMatch::One(status) => *status >= 400,
            StatusMatch::Class(class) => *class >= 4,
        };
        !self.status.is_empty() && self.status.iter().all(is_error)
    }

    fn strips_all_cookies(&self) -> bool {
        self.strip_cookies == Some(StripCookies::All)
    }

    /// Whether the key has cookies, among them those of the rule's condition.
    fn keys_condition_cookies(&self) -> bool {
        let Some(key) = self.key.as_ref().filter(|_| self.has_cookie_key()) else { return false };
        let is_in_key = |name: &str| key.cookie.iter().any(|one| one == name);
        key.header.iter().any(|name| name == "cookie")
            || self.cookie.iter().all(|one| is_in_key(one.as_str()))
    }

    fn has_cookie_key(&self) -> bool {
        self.key
            .as_ref()
            .is_some_and(|key| !key.cookie.is_empty() || key.header.iter().any(|name| name == "cookie"))
    }
}

fn rule_agrees(rule: &mut CacheRule, node: &Node, check: &mut Checker) {
    let NodeData::Table(entries) = &node.data else { return };
    rule.line = Some(check.line_of(&node.span));
    if let Some(condition) = ["type", "status"].iter().find_map(|name| node.entry(name)) {
        for entry in CacheRule::REQUEST_DIRECTIVES.iter().filter_map(|name| node.entry(name)) {
            let title =
                format!("`{}` beside `{}` in `{}`", entry.key, condition.key, check.directive_path_text());
            let finding = check.error(&entry.key_span, title, "this is decided before there is a response");
            finding.related(condition.key_span.clone(), "a condition of the response");
            finding.help(match entry.key.as_str() {
                "bypass" => "write `store = false`, which is decided by the response",
                _ => "write two rules, or choose by `path`",
            });
        }
    }
    if entries.iter().all(|entry| CacheRule::CONDITIONS.contains(&entry.key.as_str())) {
        let title = "a cache rule that says nothing".to_owned();
        check
            .warning(&node.span, title, "conditions alone change nothing")
            .help("add `ttl`, `bypass` or another directive");
    }
    if let Some(entry) = node.entry("set_cookie").filter(|_| rule.stores_cookies == Some(true)) {
        warn_of_set_cookie(entry, check);
    }
    if let Some(entry) = node.entry("with_cookies").filter(|_| rule.with_cookies == Some(true))
        && !rule.keys_condition_cookies()
        && !rule.strips_all_cookies()
    {
        let title = if rule.has_cookie_key() {
            "`with_cookies` for a cookie that is not in `key`".to_owned()
        } else {
            "`with_cookies` without cookies in `key`".to_owned()
        };
        let finding =
            check.warning(&entry.key_span, title, "what is made for one client's cookies is sent to all");
        finding.help("name the cookies that pages depend on: `key = { cookie = [\"...\"] }`");
        finding.help("or remove them from requests, where pages do not need them: `strip_cookies = true`");
    }
    let has_credentials =
        rule.key.as_ref().is_some_and(|key| key.header.iter().any(|name| name == "authorization"));
    if let Some(entry) = node.entry("with_authorization").filter(|_| rule.with_authorization == Some(true))
        && !has_credentials
    {
        let title = "`with_authorization` without `Authorization` in `key`".to_owned();
        let finding = check.warning(&entry.key_span, title, "what one client may see is sent to all");
        finding.help("give each its own: `key = { header = \"Authorization\" }`");
        finding.help("or have the origin say `Cache-Control: public` where all may see it");
    }
    check_ignored(rule, node, check);
    warn_of_error_lifetimes(rule, node, check);
}

/// Warns of lifetimes of error responses that a client can cause by data outside the key.
fn warn_of_error_lifetimes(rule: &CacheRule, node: &Node, check: &mut Checker) {
    let of_request = |status: &StatusMatch| {
        let causes =
            |code| matches!(code, 400 | 401 | 403 | 405..=408 | 411..=417 | 421 | 422 | 428 | 429 | 431);
        match status {
            StatusMatch::One(status) => causes(*status),
            StatusMatch::Class(class) => *class == 4,
        }
    };
    let is_given = |time: Option<Duration>| time.is_some_and(|time| !time.is_zero());
    let gives = is_given(rule.ttl) || is_given(rule.default_ttl);
    if let Some(entry) = node.entry("status").filter(|_| gives && rule.status.iter().any(of_request)) {
        let title = "errors that one client's request causes are stored".to_owned();
        let finding = check.warning(&entry.value.span, title, "all others would get them too");
        finding.help("name statuses that the URL alone decides: `status = [404, 410]`");
    }
}

fn check_ignored(rule: &CacheRule, node: &Node, check: &mut Checker) {
    let Some((entry, ignored)) = node.entry("ignore").zip(rule.ignore.as_ref()) else { return };
    let is_wide = !rule.is_limited() && !rule.applies_only_to_errors();
    if ignored.contains(&IgnoredField::CacheControl) && is_wide {
        let title = "`Cache-Control` is ignored on every path".to_owned();
        let finding = check.warning(&entry.value.span, title, "what the origin calls private is sent to all");
        finding
            .help("limit the rule to what is for everyone: `path = \"/assets/*\"` or `type = \"image/*\"`");
    }
    if ignored.contains(&IgnoredField::Vary) && is_wide {
        let title = "`Vary` is ignored on every path".to_owned();
        let finding =
            check.warning(&entry.value.span, title, "what is made for one client's fields is sent to all");
        finding.help("name the fields that matter: `key = { header = [\"...\"] }`; or limit the rule by `path` or `type`");
    }
    if ignored.contains(&IgnoredField::CacheControl) && rule.ttl.is_none() && rule.default_ttl.is_none() {
        let title = "`Cache-Control` is ignored, and nothing takes its place".to_owned();
        check
            .warning(&entry.value.span, title, "how long is a response fresh?")
            .help("add `ttl` or `default_ttl`");
    }
}

pub(crate) fn warn_of_set_cookie(entry: &Entry, check: &mut Checker) {
    let title = "responses that set cookies are stored".to_owned();
    let finding = check.warning(&entry.key_span, title, "one client's cookie is sent to all");
    finding.help(
        "a session in it would be everyone's: for assets write `strip_cookies = true` in a rule instead",
    );
}

/// Warns of lifetimes for pages that may be personal. `is_narrow`: the route has specific paths, so rules
/// that strip cookies are considered intended.
pub(crate) fn warn_of_shared_personal_pages(
    rules: &[CacheRule],
    nodes: &[Node],
    is_narrow: bool,
    check: &mut Checker,
) {
    let bypasses_some =
        rules.iter().any(|rule| rule.bypass == Some(true) && !rule.cookie.is_empty() && !rule.is_limited());
    if bypasses_some || rules.iter().any(CacheRule::has_cookie_key) {
        return;
    }
    let strips_all = rules.iter().any(|rule| rule.strips_all_cookies() && !rule.is_limited());
    for (rule, node) in rules.iter().zip(nodes) {
        let lifetime = [("ttl", rule.ttl), ("default_ttl", rule.default_ttl)];
        let given =
            lifetime.iter().find(|(_, lifetime)| lifetime.is_some_and(|lifetime| !lifetime.is_zero()));
        let Some(entry) = given.and_then(|(name, _)| node.entry(name)) else { continue };
        if rule.is_limited()
            || rule.applies_only_to_errors()
            || !rule.cookie.is_empty()
            || rule.with_cookies == Some(true)
            || (is_narrow && rule.strips_all_cookies())
        {
            continue;
        }
        let paths = if is_narrow { "every path of the route" } else { "every path" };
        let title = if strips_all {
            format!("`{}` and `strip_cookies` for {paths}", entry.key)
        } else {
            format!("`{}` for {paths}, and no rule for cookies", entry.key)
        };
        let finding =
            check.warning(&entry.key_span, title, "clients with a session get the pages of those without");
        finding.help("let them pass: `{ cookie = \"session\", bypass = true }` as a rule of its own, with your cookie's name");
        finding.help("or name the cookies that pages depend on in `key = { cookie = [\"...\"] }`, or limit the rule by `path`, or by `type` to what is not a page");
    }
}

fn key_agrees(key: &mut CacheKey, node: &Node, check: &mut Checker) {
    let is_chosen = key.query != QueryKey::All;
    if let (true, Some(ignored), Some(query)) = (is_chosen, node.entry("ignore_query"), node.entry("query")) {
        let title = format!("`query` and `ignore_query` in `{}`", check.directive_path_text());
        let finding = check.error(&ignored.key_span, title, "`query` leaves out all others already");
        finding.related(query.key_span.clone(), "what is kept").help("remove one of them");
    }
    let parts = key.header.len() + key.cookie.len();
    if let Some(entry) =
        ["header", "cookie"].iter().find_map(|name| node.entry(name)).filter(|_| parts > KEY_PARTS_MAX)
    {
        let title =
            format!("more than {KEY_PARTS_MAX} fields and cookies in `{}`", check.directive_path_text());
        let finding = check.error(&entry.value.span, title, "hardly two requests would share a response");
        finding.help("name those that pages depend on");
    }
    if let Some(entry) = node.entry("header").filter(|_| key.header.iter().any(|name| name == "user-agent")) {
        let title = "`User-Agent` in `key`".to_owned();
        let finding = check.warning(&entry.value.span, title, "nearly every client has its own");
        finding.help("write `device = true` for the kind of device");
    }
}

fn parse_name_pattern(text: &str) -> Result<ValuePattern, InvalidValue> {
    match text {
        "" => Err(InvalidValue::new("an empty name", "")),
        _ => ValuePattern::parse(text),
    }
}

fn language(text: &str) -> Result<String, InvalidValue> {
    let is_part =
        |part: &str| matches!(part.len(), 1..=8) && part.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if text.split('-').all(is_part) {
        Ok(text.to_ascii_lowercase())
    } else {
        Err(InvalidValue::new("this is not a language", "write a tag such as \"en\" or \"pt-br\""))
    }
}
