//! Path rules of a route: variables captured by its regular expression, and rewrites.

use std::collections::HashMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use config::{Config, VariableMap};
use http::path::{EmptySegments, encode_beyond_ascii, encoded, encoded_segment};
use http::template::{CustomVariables, VariableValues};
use http::{Reject, RequestHead, RequestIds, Status, Template, scan};
use ipnet::IpNet;
use net::Exchange;
use shapes::pattern::PathPattern;

use crate::edits::template_values;
use crate::geo::CountryDatabase;
use crate::request_path::RequestPath;

/// Maximum length of a rewritten path and query, in bytes.
const REWRITTEN_BYTES_MAX: usize = 32 * 1024;
/// Maximum number of times that the search for a route is repeated after a rewrite.
pub const ROUNDS_MAX: u32 = 10;

/// Maps of a configuration, and its country database.
pub struct MapValues {
    maps: Vec<(String, MapRule)>,
    countries: Option<Arc<CountryDatabase>>,
}

struct MapRule {
    source: Template,
    exact: HashMap<Box<[u8]>, Template>,
    patterns: Vec<(config::MapKey, Template)>,
    networks: NetworkTable,
    default: Template,
}

impl MapValues {
    /// Creates the maps. `None` if the configuration has neither maps nor countries.
    pub fn new(config: &Config, countries: Option<&Arc<CountryDatabase>>) -> Option<Rc<MapValues>> {
        if config.maps.is_empty() && countries.is_none() {
            return None;
        }
        let maps = config.maps.iter().map(|(name, map)| (name.clone(), MapRule::new(map)));
        Some(Rc::new(MapValues { maps: maps.collect(), countries: countries.cloned() }))
    }
}

impl MapRule {
    fn new(map: &VariableMap) -> MapRule {
        let mut exact = HashMap::new();
        let mut patterns = Vec::new();
        for (key, value) in &map.values {
            match key.exact() {
                Some(text) => _ = exact.insert(text.as_bytes().into(), value.clone()),
                None => patterns.push((key.clone(), value.clone())),
            }
        }
        let networks = NetworkTable::new(&map.networks);
        MapRule { source: map.of.clone(), exact, patterns, networks, default: map.default.clone() }
    }
}

/// Results by network.
struct NetworkTable {
    results: HashMap<IpNet, Template>,
    /// Prefix lengths of the networks, the longest first.
    lengths: Vec<u8>,
}

impl NetworkTable {
    fn new(networks: &[(IpNet, Template)]) -> NetworkTable {
        let mut lengths: Vec<u8> = networks.iter().map(|(network, _)| network.prefix_len()).collect();
        lengths.sort_unstable_by(|one, other| other.cmp(one));
        lengths.dedup();
        let results = networks.iter().map(|(network, result)| (network.trunc(), result.clone()));
        NetworkTable { results: results.collect(), lengths }
    }

    /// Returns the result for the smallest network that contains an address.
    fn find(&self, value: &[u8]) -> Option<&Template> {
        if self.lengths.is_empty() {
            return None;
        }
        let address: IpAddr = std::str::from_utf8(value).ok()?.parse().ok()?;
        let of = |length: &u8| self.results.get(&IpNet::new(address.to_canonical(), *length).ok()?.trunc());
        self.lengths.iter().find_map(of)
    }
}

impl CustomVariables for MapValues {
    fn write(&self, name: &str, _: bool, values: &VariableValues<'_>, out: &mut Vec<u8>) {
        let Some((_, map)) = self.maps.iter().find(|(known, _)| known == name) else { return };
        let mut value = Vec::new();
        map.source.write(&mut value, values);
        let pattern = || map.patterns.iter().find(|(key, _)| key.matches(&value)).map(|(_, result)| result);
        let network = || map.networks.find(&value);
        let exact = map.exact.get(value.as_slice());
        let result = exact.or_else(network).or_else(pattern).unwrap_or(&map.default);
        result.write(out, values);
    }

    fn country(&self, address: IpAddr) -> Option<[u8; 2]> {
        self.countries.as_ref()?.country(address)
    }
}

/// Variables of a request whose route has a regular expression.
struct CapturedValues {
    captures: Vec<(String, Vec<u8>)>,
    maps: Option<Rc<MapValues>>,
}

impl CustomVariables for CapturedValues {
    fn write(&self, name: &str, is_strict: bool, values: &VariableValues<'_>, out: &mut Vec<u8>) {
        match self.captures.iter().find(|(known, _)| known == name) {
            Some((_, value)) if is_strict => out.extend_from_slice(encoded_segment(value).as_bytes()),
            Some((_, value)) => out.extend_from_slice(&encoded(value)),
            None => {
                if let Some(maps) = &self.maps {
                    maps.write(name, is_strict, values, out);
                }
            }
        }
    }

    fn country(&self, address: IpAddr) -> Option<[u8; 2]> {
        self.maps.as_ref()?.country(address)
    }
}

/// Path rules of a route.
pub struct PathRules {
    /// Paths of the route; empty if none of them has groups.
    captures: Vec<PathPattern>,
    maps: Option<Rc<MapValues>>,
    rewrite: Option<Template>,
    /// Whether the route only rewrites the path, after which the search for a route is repeated.
    pub rewrites_only: bool,
}

impl PathRules {
    /// Creates the rules of a route. `None` if it neither captures anything nor rewrites the path.
    pub fn new(route: &config::Route, maps: Option<&Rc<MapValues>>) -> Option<Rc<PathRules>> {
        let has_groups = route.path.iter().any(|path| !path.groups().is_empty());
        (has_groups || route.rewrite.is_some()).then(|| {
            Rc::new(PathRules {
                captures: if has_groups { route.path.clone() } else { Vec::new() },
                maps: maps.cloned(),
                rewrite: route.rewrite.clone(),
                rewrites_only: route.action == config::Action::RewriteOnly,
            })
        })
    }

    /// Sets the variables that the path captures.
    pub(crate) fn capture(&self, exchange: &mut Exchange<'_>, path: &RequestPath) {
        let found = self.captured(path.bytes(&exchange.request()));
        if let Some(own) = found {
            exchange.set_custom_variables(own);
        }
    }

    fn captured(&self, path: &[u8]) -> Option<Rc<dyn CustomVariables>> {
        let captures = self.captures.iter().find(|one| one.matches(path))?.captures(path)?;
        Some(Rc::new(CapturedValues { captures, maps: self.maps.clone() }))
    }

    /// Rewrites the target of the request; `prefix` is the part of the route's path before its final `*`.
    /// Returns the new path, or `None` without a rewrite.
    ///
    /// # Errors
    /// The rewritten path is invalid (400) or too long (414).
    pub(crate) fn rewrite(
        &self,
        exchange: &mut Exchange<'_>,
        prefix: &[u8],
    ) -> Result<Option<RequestPath>, Reject> {
        let Some(target) = self.rewritten_target(&template_values(exchange, prefix))? else {
            return Ok(None);
        };
        exchange.rewrite_target(&target);
        RequestPath::of(&exchange.request()).map(Some)
    }

    /// Returns the rewritten path and query; `None` without a rewrite.
    fn rewritten_target(&self, values: &VariableValues<'_>) -> Result<Option<Vec<u8>>, Reject> {
        let Some(rewrite) = &self.rewrite else { return Ok(None) };
        let mut target = Vec::new();
        rewrite.write(&mut target, values);
        if !target.contains(&b'?') {
            if let Some(query) = values.head.target.query {
                target.push(b'?');
                target.extend_from_slice(&encode_beyond_ascii(query.of(values.bytes)));
            }
        } else if target.ends_with(b"?") {
            target.pop();
        }
        if target.len() > REWRITTEN_BYTES_MAX {
            return Err(Reject::new(URI_TOO_LONG, "the rewritten path is too long"));
        }
        if !target.starts_with(b"/") || scan::target_len(&target) != target.len() {
            return Err(Reject::bad_request("the rewritten path is not valid"));
        }
        let path = target.split(|&byte| byte == b'?').next().unwrap_or_default();
        // A dot segment may result from combining the rewrite with a value of the request. It would lead out
        // of the directory that the rewrite names.
        if path.split(|&byte| byte == b'/').any(is_dots) {
            return Err(Reject::bad_request("the rewritten path has a dot segment"));
        }
        Ok(Some(target))
    }

    /// Returns the rewritten path and query of a hypothetical request with this host, target and decoded
    /// path.
    ///
    /// # Errors
    /// Those of [`PathRules::rewrite`].
    pub fn explain(
        &self,
        host: &str,
        target: &str,
        path: &[u8],
        empty_segments: EmptySegments,
        prefix: &[u8],
    ) -> Result<Option<Vec<u8>>, Reject> {
        let bytes = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n").into_bytes();
        let mut head = RequestHead::default();
        head.parse(&bytes, &http::Limits::default())?;
        let own = self.captured(path);
        let maps = self.maps.as_deref().map(|maps| maps as &dyn CustomVariables);
        self.rewritten_target(&VariableValues {
            head: &head,
            bytes: &bytes,
            empty_segments,
            client: None,
            is_secure: false,
            tls: None,
            ids: RequestIds::default(),
            user: b"",
            prefix,
            upstream: "",
            custom: own.as_deref().or(maps),
        })
    }

    /// Rewrites the path for a route that only rewrites. Counts it in `rounds` and returns the path with
    /// which the search for a route is repeated.
    ///
    /// # Errors
    /// Those of [`PathRules::rewrite`], and 500 after [`ROUNDS_MAX`] rounds.
    pub(crate) fn rewrite_for_search(
        &self,
        exchange: &mut Exchange<'_>,
        path: &RequestPath,
        prefix: &[u8],
        rounds: &mut u32,
    ) -> Result<RequestPath, Reject> {
        if *rounds == ROUNDS_MAX {
            let status = Status::INTERNAL_SERVER_ERROR;
            return Err(Reject::new(status, "more than 10 routes have rewritten the path"));
        }
        *rounds += 1;
        self.capture(exchange, path);
        Ok(self.rewrite(exchange, prefix)?.unwrap_or_default())
    }
}

/// Returns the part of a route's path before its final `*`, for `$rest`.
pub fn route_prefix(route: &config::Route) -> Vec<u8> {
    route.prefix().map(|prefix| [prefix.as_bytes(), b"/"].concat()).unwrap_or_default()
}

/// 414 (RFC 9110 section 15.5.15).
const URI_TOO_LONG: Status = Status::of(414).expect("three digits");

/// Whether a segment is `.` or `..`, percent-encoded or not.
fn is_dots(segment: &[u8]) -> bool {
    let mut rest = segment;
    let mut dots = 0;
    while !rest.is_empty() {
        rest = match rest {
            [b'.', rest @ ..] | [b'%', b'2', b'e' | b'E', rest @ ..] => rest,
            _ => return false,
        };
        dots += 1;
    }
    (1..=2).contains(&dots)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smallest_matching_network_is_used() {
        let text = |text: &str| Template::parse(text, |_| false).unwrap();
        let networks =
            [("0.0.0.0/0", "all"), ("10.0.0.0/8", "ten"), ("10.1.2.3/16", "small"), ("2001:db8::/32", "six")];
        let networks = networks.map(|(network, result)| (network.parse().unwrap(), text(result)));
        let table = NetworkTable::new(&networks);
        let find = |value: &str| table.find(value.as_bytes()).and_then(Template::as_literal);
        assert_eq!(
            [find("10.1.9.9"), find("10.2.0.0"), find("8.8.8.8")],
            [Some("small"), Some("ten"), Some("all")]
        );
        assert_eq!([find("2001:db8::1"), find("::1"), find("x")], [Some("six"), None, None]);
        assert_eq!(find("::ffff:10.1.0.0"), Some("small"));
    }

    #[test]
    fn dot_segments_are_detected() {
        for (segment, is) in [
            (".", true),
            ("..", true),
            ("%2e.", true),
            (".%2E", true),
            ("...", false),
            ("", false),
            (".a", false),
        ] {
            assert_eq!(is_dots(segment.as_bytes()), is, "{segment}");
        }
    }
}
