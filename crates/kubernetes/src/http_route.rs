//! The rules of HTTPRoutes as routes of a site.

use std::borrow::Cow;
use std::cmp::Reverse;

use serde_json::{Map, Value, json};

use crate::backends::{Backend, BackendGroups, BackendSource, BackendUser, UnresolvedBackend};
use crate::escape::{self, LiteralPath};
use crate::listeners::ClientCertificate;
use crate::objects::{
    BackendReference, CorsFilter, HeaderModifier, HttpFilter, HttpMatch, HttpRoute, HttpRule, NamedMatch,
    NamedValue, ObjectKey, PathModifier, RequestRedirect, SessionPersistence,
};
use crate::packed::PackedJson;
use crate::policies::{AppliedPolicy, PolicySet};

/// Precedence of a route among those of its host: the least comes first. Exact paths, expressions, prefixes from long to
/// short, methods of any service of gRPC; then those with a method, with more header fields, with more query parameters; then the
/// oldest object, by name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    path_kind: u8,
    path_bytes: Reverse<usize>,
    has_method: Reverse<bool>,
    headers: Reverse<usize>,
    queries: Reverse<usize>,
    created: String,
    key: ObjectKey,
    rule: usize,
    matched: usize,
    part: u8,
}

/// A route for the configuration.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RouteEntry {
    pub(crate) rank: Rank,
    /// The conditions.
    pub(crate) conditions: PackedJson,
    /// Everything else.
    pub(crate) action: PackedJson,
}

impl RouteEntry {
    /// A route that answers 500, after all others.
    pub(crate) fn failing() -> RouteEntry {
        let rank = Rank {
            path_kind: u8::MAX,
            path_bytes: Reverse(0),
            has_method: Reverse(false),
            headers: Reverse(0),
            queries: Reverse(0),
            created: String::new(),
            key: ObjectKey::default(),
            rule: 0,
            matched: 0,
            part: 0,
        };
        let action = PackedJson::of(&Value::Object(failing_table()));
        RouteEntry { rank, conditions: PackedJson::default(), action }
    }

    /// Length of the directives, in bytes.
    pub(crate) fn len(&self) -> usize {
        self.conditions.len() + self.action.len()
    }
}

/// What the routes of a listener depend on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ListenerPort {
    pub(crate) port: u16,
    pub(crate) is_tls: bool,
    /// The certificate that servers with TLS are shown.
    pub(crate) client: Option<ClientCertificate>,
}

/// A route whose rules become routes of a site.
pub(crate) struct RuledRoute<'a> {
    /// `HTTPRoute` or `GRPCRoute`.
    pub(crate) kind: &'static str,
    pub(crate) key: &'a ObjectKey,
    /// Time of creation.
    pub(crate) created: &'a str,
    pub(crate) rules: Vec<MatchedRule<'a>>,
}

impl<'a> RuledRoute<'a> {
    /// The policies of a rule. They name HTTPRoutes alone.
    fn policy(&self, rule: &HttpRule, policies: &PolicySet) -> AppliedPolicy {
        match self.kind {
            "HTTPRoute" => policies.of_rule(self.key, rule.name.as_deref()),
            _ => AppliedPolicy::default(),
        }
    }

    /// The route at a listener, as backends see it.
    fn user(&'a self, listener: &'a ListenerPort) -> BackendUser<'a> {
        BackendUser {
            kind: self.kind,
            namespace: &self.key.namespace,
            client: listener.client.as_ref(),
            session: None,
        }
    }
}

/// A rule, and what it matches. Its own `matches` do not count.
pub(crate) struct MatchedRule<'a> {
    pub(crate) rule: Cow<'a, HttpRule>,
    /// Conditions, or why one of them cannot be followed.
    pub(crate) matches: Vec<Result<RuleMatch<'a>, String>>,
}

impl<'a> MatchedRule<'a> {
    /// Creates a rule; without conditions, it matches all requests.
    pub(crate) fn new(
        rule: Cow<'a, HttpRule>,
        matches: impl Iterator<Item = Result<RuleMatch<'a>, String>>,
    ) -> MatchedRule<'a> {
        let mut matches: Vec<_> = matches.collect();
        if matches.is_empty() {
            let path = MatchedPath::Prefix("/".to_owned());
            matches.push(Ok(RuleMatch { path, headers: &[], query_params: &[], method: None }));
        }
        MatchedRule { rule, matches }
    }
}

/// Conditions that a request must meet all.
pub(crate) struct RuleMatch<'a> {
    pub(crate) path: MatchedPath,
    pub(crate) headers: &'a [NamedMatch],
    pub(crate) query_params: &'a [NamedMatch],
    pub(crate) method: Option<&'a str>,
}

/// A condition of the path.
pub(crate) enum MatchedPath {
    Exact(String),
    Prefix(String),
    Expression(String),
    /// An expression for a method of any service, behind all that name a service.
    OfAnyService(String),
}

/// The faults of a route that its status reports.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct RouteFaults {
    /// The first reference that is not resolved: reason and message.
    pub(crate) unresolved: Option<UnresolvedBackend>,
    /// Rules that are answered 500 or left out: the first fault.
    pub(crate) invalid: Option<String>,
    /// Whether a rule is without fault.
    pub(crate) has_valid_rule: bool,
}

/// Returns the rules of an HTTPRoute.
pub(crate) fn http_rules<'a>(key: &'a ObjectKey, route: &'a HttpRoute) -> RuledRoute<'a> {
    let rule =
        |rule: &'a HttpRule| MatchedRule::new(Cow::Borrowed(rule), rule.matches.iter().map(http_match));
    RuledRoute {
        kind: "HTTPRoute",
        key,
        created: &route.metadata.creation_timestamp,
        rules: route.spec.rules.iter().map(rule).collect(),
    }
}

fn http_match(one: &HttpMatch) -> Result<RuleMatch<'_>, String> {
    let path = one.path.clone().unwrap_or_default();
    let value = path.value.unwrap_or_else(|| "/".to_owned());
    let path = match path.r#type.as_deref().unwrap_or("PathPrefix") {
        "Exact" => MatchedPath::Exact(value),
        "RegularExpression" => MatchedPath::Expression(value),
        "PathPrefix" => MatchedPath::Prefix(value),
        other => return Err(format!("a match of the path by {other} is not supported")),
    };
    let (headers, query_params) = (&one.headers, &one.query_params);
    Ok(RuleMatch { path, headers, query_params, method: one.method.as_deref() })
}

/// Translates all rules of a route for a listener.
pub(crate) fn route_entries(
    route: &RuledRoute<'_>,
    listener: &ListenerPort,
    source: &BackendSource<'_>,
    policies: &PolicySet,
    groups: &mut BackendGroups,
    faults: &mut RouteFaults,
) -> Vec<RouteEntry> {
    let mut entries = Vec::new();
    for (index, rule) in route.rules.iter().enumerate() {
        let mut translator = RuleTranslator { route, rule: &rule.rule, listener, source, groups, faults };
        let (handling, is_valid) = match translator.handling() {
            Ok(handling) => (handling.with_policy(&route.policy(&rule.rule, policies)), true),
            Err(fault) => {
                translator.faults.invalid.get_or_insert(fault);
                (Handling::failing(), false)
            }
        };
        for (at, one) in rule.matches.iter().enumerate() {
            let one = one.as_ref().map_err(String::clone);
            match one.and_then(|one| match_entries(route, (index, at), one, &handling)) {
                Ok(found) => {
                    faults.has_valid_rule |= is_valid;
                    entries.extend(found);
                }
                Err(fault) => _ = faults.invalid.get_or_insert(fault),
            }
        }
    }
    entries
}

/// How the requests of a rule are handled, whatever they match.
struct Handling {
    /// Directives of the route.
    table: Map<String, Value>,
    /// Redirect or rewrite whose path depends on the match.
    path: Option<PathChange>,
}

/// A change of the path.
struct PathChange {
    /// `None` if it is the path that the upstream server gets; else the redirect up to its path, and its status.
    redirect: Option<(String, u16)>,
    modifier: PathModifier,
}

impl Handling {
    /// Adds the policies of the rule.
    fn with_policy(mut self, policy: &AppliedPolicy) -> Handling {
        policy.add_to_route(&mut self.table);
        if policy.is_closed() {
            policy.close(&mut self.table);
            self.path = None;
        }
        self
    }

    /// 500, as Gateway API asks for where a rule cannot be followed.
    fn failing() -> Handling {
        Handling { table: failing_table(), path: None }
    }
}

/// The directives of a route that cannot be followed.
pub(crate) fn failing_table() -> Map<String, Value> {
    Map::from_iter([("respond".to_owned(), json!({ "status": 500 }))])
}

struct RuleTranslator<'a, 's> {
    route: &'a RuledRoute<'a>,
    rule: &'a HttpRule,
    listener: &'a ListenerPort,
    source: &'a BackendSource<'s>,
    groups: &'a mut BackendGroups,
    faults: &'a mut RouteFaults,
}

impl RuleTranslator<'_, '_> {
    fn handling(&mut self) -> Result<Handling, String> {
        let mut table = Map::new();
        let mut proxy = Map::new();
        let mut path = None;
        let mut redirect = None;
        let mut mirrors = Vec::new();
        for filter in &self.rule.filters {
            match (filter.r#type.as_str(), filter) {
                ("RequestHeaderModifier", HttpFilter { request_header_modifier: Some(modifier), .. }) => {
                    add_request_headers(modifier, &mut proxy);
                }
                ("ResponseHeaderModifier", HttpFilter { response_header_modifier: Some(modifier), .. }) => {
                    merge(&mut table, "response_headers", header_rules(modifier));
                }
                ("RequestRedirect", HttpFilter { request_redirect: Some(asked), .. }) => {
                    redirect = Some(asked)
                }
                ("URLRewrite", HttpFilter { url_rewrite: Some(rewrite), .. }) => {
                    if let Some(host) = &rewrite.hostname {
                        proxy.insert("host".to_owned(), json!(checked_host(host)?));
                    }
                    path = rewrite.path.clone().map(|modifier| PathChange { redirect: None, modifier });
                }
                ("RequestMirror", HttpFilter { request_mirror: Some(mirror), .. }) => {
                    let Some(name) = self.group(&mirror.backend_ref) else { continue };
                    let share = match (mirror.percent, &mirror.fraction) {
                        (Some(percent), _) => f64::from(percent),
                        (None, Some(part)) => {
                            100.0 * f64::from(part.numerator)
                                / f64::from(part.denominator.unwrap_or(100).max(1))
                        }
                        (None, None) => 100.0,
                    };
                    let share = format!("{}%", share.clamp(0.0, 100.0));
                    mirrors.push(json!({ "to": { "upstream": name }, "share": share }));
                }
                ("CORS", HttpFilter { cors: Some(cors), .. }) => {
                    table.insert("cors".to_owned(), cors_table(cors));
                }
                (other, _) => {
                    let text = format!("the filter {other} is not supported");
                    self.faults.unresolved.get_or_insert(("InvalidKind", text.clone()));
                    return Err(text);
                }
            }
        }
        match mirrors.len() {
            0 => {}
            1 => _ = table.insert("mirror".to_owned(), mirrors.remove(0)),
            _ => _ = table.insert("mirror".to_owned(), Value::Array(mirrors)),
        }
        let session = self.rule.session_persistence.as_ref().map(session_cookie).transpose()?;
        if let Some(asked) = redirect {
            let (prefix, status) = redirect_prefix(asked, self.listener)?;
            let path = match &asked.path {
                Some(modifier) => {
                    Some(PathChange { redirect: Some((prefix, status)), modifier: modifier.clone() })
                }
                None => {
                    table.insert(
                        "redirect".to_owned(),
                        json!({ "to": format!("{prefix}$uri"), "status": status }),
                    );
                    None
                }
            };
            return Ok(Handling { table, path });
        }
        self.add_timeouts(&mut proxy)?;
        self.add_backends(proxy, session.as_deref(), &mut table)?;
        Ok(Handling { table, path })
    }

    fn add_timeouts(&self, proxy: &mut Map<String, Value>) -> Result<(), String> {
        let mut timeouts = Map::new();
        let given = self.rule.timeouts.clone().unwrap_or_default();
        for (text, keys) in [(&given.request, &["total"][..]), (&given.backend_request, &["head", "between"])]
        {
            let Some(text) = text else { continue };
            let time = escape::duration(text)
                .ok_or_else(|| format!("{text:?} is not a duration such as \"10s\""))?;
            // Zero is for no timeout.
            let written = match (time.is_zero(), keys[0]) {
                (true, "total") => "unlimited".to_owned(),
                (true, _) => "24h".to_owned(),
                (false, _) => escape::timeout(time),
            };
            timeouts.extend(keys.iter().map(|key| ((*key).to_owned(), json!(written))));
        }
        if !timeouts.is_empty() {
            proxy.insert("timeouts".to_owned(), Value::Object(timeouts));
        }
        if let Some(retry) = &self.rule.retry {
            let attempts = retry.attempts.unwrap_or(1).min(99) + 1;
            let codes: Vec<u16> = retry.codes.clone();
            let mut table =
                json!({ "attempts": attempts, "statuses": codes, "budget": 100, "same_server": true });
            if let Some(text) = &retry.backoff {
                let time = escape::duration(text)
                    .ok_or_else(|| format!("{text:?} is not a duration such as \"100ms\""))?;
                // Longer ones would keep requests for nothing: `backoff` has this limit.
                let ms = time.as_millis().min(60_000);
                table["backoff"] = json!(format!("{ms}ms"));
            }
            proxy.insert("retry".to_owned(), table);
        }
        Ok(())
    }

    /// The status for a backend that is not resolved. To calls it means that the service is unavailable.
    fn unresolved_status(&self) -> u16 {
        if self.route.kind == "GRPCRoute" { 503 } else { 500 }
    }

    /// Resolves a backend that needs no answer, and notes its fault.
    fn group(&mut self, reference: &BackendReference) -> Option<String> {
        match self.source.resolve(self.route.user(self.listener), reference, self.groups) {
            Ok(Backend::Group(name)) => Some(name),
            Ok(Backend::Empty | Backend::Refused) => None,
            Err(fault) => {
                self.faults.unresolved.get_or_insert(fault);
                None
            }
        }
    }

    fn add_backends(
        &mut self,
        proxy: Map<String, Value>,
        session: Option<&str>,
        table: &mut Map<String, Value>,
    ) -> Result<(), String> {
        let mut branches = Vec::new();
        for reference in &self.rule.backend_refs {
            let user = BackendUser { session, ..self.route.user(self.listener) };
            let resolved = self.source.resolve(user, reference, self.groups);
            let weight = reference.weight.unwrap_or(1).min(1_000_000);
            let action = match resolved {
                Ok(Backend::Group(name)) => {
                    let mut own = proxy.clone();
                    own.insert("upstream".to_owned(), json!(name));
                    add_backend_filters(&reference.filters, &mut own)?;
                    ("proxy", Value::Object(own))
                }
                Ok(Backend::Empty) => ("respond", json!({ "status": 503 })),
                Ok(Backend::Refused) => ("respond", json!({ "status": self.unresolved_status() })),
                Err(fault) => {
                    self.faults.unresolved.get_or_insert(fault);
                    ("respond", json!({ "status": self.unresolved_status() }))
                }
            };
            if weight > 0 {
                branches.push((weight, action));
            }
        }
        match branches.len() {
            0 => _ = table.insert("respond".to_owned(), json!({ "status": self.unresolved_status() })),
            1 => {
                let (_, (name, value)) = branches.remove(0);
                table.insert(name.to_owned(), value);
            }
            _ => {
                let branch = |(index, (weight, (name, value))): (usize, (u32, (&str, Value)))| json!({ "name": format!("backend-{}", index + 1), "weight": weight, name: value });
                let branches: Vec<Value> = branches.into_iter().enumerate().map(branch).collect();
                // One cookie for the Service, another one for its endpoint.
                let by = session.map_or("random".to_owned(), |cookie| format!("sticky:{cookie}-service"));
                table.insert("split".to_owned(), json!({ "by": by, "branches": branches }));
            }
        }
        Ok(())
    }
}

/// Returns the name of the cookie that keeps a session at its server.
fn session_cookie(session: &SessionPersistence) -> Result<String, String> {
    if session.r#type.as_deref().is_some_and(|kind| kind != "Cookie") {
        return Err("sessionPersistence is supported by cookies only: `type: Cookie`".to_owned());
    }
    let lifetime = session.cookie_config.as_ref().and_then(|config| config.lifetime_type.as_deref());
    if session.absolute_timeout.is_some() || session.idle_timeout.is_some() || lifetime == Some("Permanent") {
        return Err(
            "sessionPersistence lasts as long as the browser keeps the cookie: no timeout of it is supported"
                .to_owned(),
        );
    }
    let name = session.session_name.as_deref().unwrap_or("komainu_session");
    let is_name = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
    if is_name && !name.is_empty() && name.len() <= 64 {
        Ok(name.to_owned())
    } else {
        Err(format!("the session's name {name:?} is not one of letters, digits, `-` and `_`"))
    }
}

/// Filters of one backend.
fn add_backend_filters(filters: &[HttpFilter], proxy: &mut Map<String, Value>) -> Result<(), String> {
    for filter in filters {
        match (filter.r#type.as_str(), filter) {
            ("RequestHeaderModifier", HttpFilter { request_header_modifier: Some(modifier), .. }) => {
                add_request_headers(modifier, proxy);
            }
            ("ResponseHeaderModifier", HttpFilter { response_header_modifier: Some(modifier), .. }) => {
                merge(proxy, "response_headers", header_rules(modifier));
            }
            ("URLRewrite", HttpFilter { url_rewrite: Some(rewrite), .. }) if rewrite.path.is_none() => {
                if let Some(host) = &rewrite.hostname {
                    proxy.insert("host".to_owned(), json!(checked_host(host)?));
                }
            }
            (other, _) => return Err(format!("the filter {other} of a backend is not supported")),
        }
    }
    Ok(())
}

fn checked_host(host: &str) -> Result<&str, String> {
    if escape::is_host(host) && !matches!(host, "pass" | "upstream") {
        Ok(host)
    } else {
        Err(format!("{host:?} is not a host name"))
    }
}

/// Changes of request fields; `Host` is a setting of the proxy.
fn add_request_headers(modifier: &HeaderModifier, proxy: &mut Map<String, Value>) {
    let mut modifier = modifier.clone();
    let is_host = |field: &NamedValue| field.name.eq_ignore_ascii_case("host");
    if let Some(host) =
        modifier.set.iter().find(|field| is_host(field)).filter(|field| checked_host(&field.value).is_ok())
    {
        proxy.insert("host".to_owned(), json!(host.value));
        modifier.set.retain(|field| !is_host(field));
    }
    merge(proxy, "request_headers", header_rules(&modifier));
}

fn header_rules(modifier: &HeaderModifier) -> Map<String, Value> {
    let fields = |fields: &[NamedValue]| {
        let mut map = Map::new();
        for field in fields {
            // The first of several with a name counts; names are equal in upper and lower case.
            map.entry(field.name.to_ascii_lowercase())
                .or_insert_with(|| json!(escape::template(field.value.trim())));
        }
        Value::Object(map)
    };
    let mut table = Map::new();
    if !modifier.set.is_empty() {
        table.insert("set".to_owned(), fields(&modifier.set));
    }
    if !modifier.add.is_empty() {
        table.insert("add".to_owned(), fields(&modifier.add));
    }
    if !modifier.remove.is_empty() {
        let names: Vec<String> = modifier.remove.iter().map(|name| name.to_ascii_lowercase()).collect();
        table.insert("remove".to_owned(), json!(names));
    }
    table
}

/// Adds rules to those of another filter, key by key.
fn merge(table: &mut Map<String, Value>, key: &str, rules: Map<String, Value>) {
    if rules.is_empty() {
        return;
    }
    let known = table.entry(key.to_owned()).or_insert_with(|| json!({}));
    for (name, more) in rules {
        match (known.get_mut(&name), more) {
            (Some(Value::Object(known)), Value::Object(more)) => known.extend(more),
            (Some(Value::Array(known)), Value::Array(more)) => known.extend(more),
            (_, more) => known[name.as_str()] = more,
        }
    }
}

fn cors_table(cors: &CorsFilter) -> Value {
    let mut table = Map::new();
    let is_any = |texts: &[String]| texts.iter().any(|text| text == "*");
    let has_credentials = cors.allow_credentials.unwrap_or(false);
    if !cors.allow_origins.is_empty() {
        table.insert(
            "origins".to_owned(),
            json!(if is_any(&cors.allow_origins) {
                vec!["*".to_owned()]
            } else {
                cors.allow_origins.clone()
            }),
        );
    }
    if is_any(&cors.allow_methods) {
        table.insert("methods".to_owned(), json!(["*"]));
    } else if !cors.allow_methods.is_empty() {
        table.insert("methods".to_owned(), json!(cors.allow_methods));
    }
    if !cors.allow_headers.is_empty() && !is_any(&cors.allow_headers) {
        table.insert("headers".to_owned(), json!(cors.allow_headers));
    }
    if !cors.expose_headers.is_empty() {
        table.insert("expose".to_owned(), json!(cors.expose_headers));
    }
    table.insert("credentials".to_owned(), json!(has_credentials));
    if has_credentials && (cors.allow_origins.is_empty() || is_any(&cors.allow_origins)) {
        table.insert("any_origin_credentials".to_owned(), json!(true));
    }
    table.insert("max_age".to_owned(), json!(format!("{}s", cors.max_age.unwrap_or(5).clamp(0, 86_400))));
    Value::Object(table)
}

/// Returns the start of a redirect's target, up to its path, and the status.
fn redirect_prefix(redirect: &RequestRedirect, listener: &ListenerPort) -> Result<(String, u16), String> {
    let scheme = match redirect.scheme.as_deref() {
        None => {
            if listener.is_tls {
                "https"
            } else {
                "http"
            }
        }
        Some("http") => "http",
        Some("https") => "https",
        Some(other) => return Err(format!("a redirect to the scheme {other:?} is not supported")),
    };
    let usual = if scheme == "https" { 443 } else { 80 };
    let port = redirect.port.unwrap_or(if redirect.scheme.is_some() { usual } else { listener.port });
    let host = match redirect.hostname.as_deref() {
        None => "$host",
        Some(host) => checked_host(host)?,
    };
    let port = if port == usual { String::new() } else { format!(":{port}") };
    Ok((format!("{scheme}://{host}{port}"), redirect.status_code.unwrap_or(302)))
}

/// Translates one match of a rule.
fn match_entries(
    route: &RuledRoute<'_>,
    (rule, matched): (usize, usize),
    one: &RuleMatch<'_>,
    handling: &Handling,
) -> Result<Vec<RouteEntry>, String> {
    let mut conditions = Map::new();
    if let Some(method) = one.method {
        conditions.insert("method".to_owned(), json!(method));
        // `GET` of a condition includes HEAD; here they are two methods.
        if method == "GET" {
            conditions.insert("not".to_owned(), json!({ "method": "HEAD" }));
        }
    }
    for (name, matches) in [("header", one.headers), ("query", one.query_params)] {
        if !matches.is_empty() {
            conditions.insert(name.to_owned(), Value::Object(value_conditions(name, matches)?));
        }
    }
    let rank = |path_kind: u8, path_bytes: usize, part: u8| Rank {
        path_kind,
        path_bytes: Reverse(path_bytes),
        has_method: Reverse(one.method.is_some()),
        headers: Reverse(one.headers.len()),
        queries: Reverse(one.query_params.len()),
        created: route.created.to_owned(),
        key: route.key.clone(),
        rule,
        matched,
        part,
    };
    let entry = |rank: Rank, paths: &[String], action: Map<String, Value>| {
        let mut conditions = conditions.clone();
        if !paths.is_empty() {
            conditions.insert("path".to_owned(), json!(paths));
        }
        let pack = |table| PackedJson::of(&Value::Object(table));
        RouteEntry { rank, conditions: pack(conditions), action: pack(action) }
    };
    let literal = |value: &str| LiteralPath::new(value).ok_or_else(|| format!("{value:?} is not a path"));
    match &one.path {
        MatchedPath::Exact(value) => {
            let literal = literal(value)?;
            let action = with_full_path(handling)?;
            Ok(vec![entry(rank(0, literal.len(), 0), &[literal.exact()], action)])
        }
        MatchedPath::OfAnyService(expression) => {
            let action = with_full_path(handling)?;
            // Before rules without a method, behind those with a service, whose names have two bytes at least.
            Ok(vec![entry(rank(2, 1, 0), &[escape::whole_expression(expression)], action)])
        }
        MatchedPath::Expression(value) => {
            let action = with_full_path(handling)?;
            Ok(vec![entry(rank(1, value.len(), 0), &[escape::whole_expression(value)], action)])
        }
        MatchedPath::Prefix(value) => {
            let literal = literal(value)?.without_slash();
            let (below, rest) = literal.below();
            let bytes = literal.len();
            let replaced = match &handling.path {
                Some(change) if change.modifier.r#type == "ReplacePrefixMatch" => change,
                _ => {
                    let paths = if literal.is_empty() { Vec::new() } else { vec![literal.exact(), below] };
                    return Ok(vec![entry(rank(2, bytes, 0), &paths, with_full_path(handling)?)]);
                }
            };
            let to = replaced.modifier.replace_prefix_match.as_deref().unwrap_or_default();
            let to = escape::path_template(to.trim_end_matches('/'));
            let to = to.trim_end_matches('/');
            let mut entries = Vec::new();
            if !literal.is_empty() {
                let alone = if to.is_empty() { "/" } else { to };
                entries.push(entry(
                    rank(2, bytes, 0),
                    &[literal.exact()],
                    with_path(handling, replaced, alone),
                ));
            }
            let action = with_path(handling, replaced, &format!("{to}/{rest}"));
            entries.push(entry(rank(2, bytes, 1), &[below], action));
            Ok(entries)
        }
    }
}

/// Returns the directives of a rule whose path, if it is changed, is replaced as a whole.
fn with_full_path(handling: &Handling) -> Result<Map<String, Value>, String> {
    let Some(change) = &handling.path else { return Ok(handling.table.clone()) };
    match (change.modifier.r#type.as_str(), &change.modifier.replace_full_path) {
        ("ReplaceFullPath", Some(path)) => Ok(with_path(handling, change, &escape::path_template(path))),
        ("ReplacePrefixMatch", _) => Err("ReplacePrefixMatch needs a match by PathPrefix".to_owned()),
        (other, _) => Err(format!("a change of the path by {other} is not supported")),
    }
}

fn with_path(handling: &Handling, change: &PathChange, path: &str) -> Map<String, Value> {
    let mut table = handling.table.clone();
    match &change.redirect {
        Some((prefix, status)) => table.insert(
            "redirect".to_owned(),
            json!({ "to": format!("{prefix}{path}$query"), "status": status }),
        ),
        None => table.insert("rewrite".to_owned(), json!(path)),
    };
    table
}

/// Conditions of header fields or query parameters. The first of several with a name counts.
fn value_conditions(what: &str, matches: &[NamedMatch]) -> Result<Map<String, Value>, String> {
    let mut table = Map::new();
    for one in matches {
        let name = if what == "header" { one.name.to_ascii_lowercase() } else { one.name.clone() };
        let pattern = match one.r#type.as_deref().unwrap_or("Exact") {
            "Exact" => escape::exact_value(&one.value),
            "RegularExpression" => escape::whole_expression(&one.value),
            other => return Err(format!("a match of {what} by {other} is not supported")),
        };
        table.entry(name).or_insert(Value::String(pattern));
    }
    Ok(table)
}
