//! Conditions of requests, for directives that apply to some of them.

use crate::geo::{Countries, CountryPattern};
use crate::referer::{REFERER, RefererPattern};
use settings::checker::{Checker, InvalidValue};
use settings::directive_table::brief;
use settings::directives;
use settings::node::{Node, NodeData};
use settings::shape::{Map, OneOrMore, Text};
use shapes::header;
use shapes::host::HostPattern;
use shapes::names::{cookie_name, parameter};
use shapes::network::{SOURCE, TrustedSource};
use shapes::pattern::{PathPattern, ValueCondition, ValuePattern};

pub(crate) const HOSTS: OneOrMore<Text<HostPattern>> = OneOrMore(Text {
    what: "a host such as \"example.com\" or \"*.example.com\"",
    parse: HostPattern::parse,
});
pub(crate) const PATHS: OneOrMore<Text<PathPattern>> = OneOrMore(Text {
    what: "a path such as \"/a\", \"/a/*\", \"*.php\" or \"~ ^/user/([0-9]+)$\"",
    parse: PathPattern::parse,
});
pub(crate) const METHODS: OneOrMore<Text<String>> =
    OneOrMore(Text { what: "a method such as \"GET\"", parse: parse_method });
pub(crate) const QUERY: Map<String, ValueCondition> =
    Map { what: "parameter names", key: parameter, value: ValueCondition };
pub(crate) const HEADER: Map<String, ValueCondition> =
    Map { what: "header names", key: header::parse_name, value: ValueCondition };

pub(crate) const REPEATED: OneOrMore<Text<String>> =
    OneOrMore(Text { what: "the name of a header field, such as \"X-Key\"", parse: header::parse_name });

directives! {
    /// Conditions, all of which a request must meet. A value is a text, in which `*` matches any run of
    /// characters, `"~ REGEX"`, or `true` for any value. Clients can forge all of them but `client` and
    /// `country`.
    Conditions in "`when`" {
        /// Header fields.
        "header" header: Vec<(String, ValuePattern)> = {}, Map { what: "header names", key: header::parse_name, value: ValueCondition };
        /// Cookies.
        "cookie" cookie: Vec<(String, ValuePattern)> = {}, Map { what: "names of cookies", key: cookie_name, value: ValueCondition };
        /// Query parameters, decoded.
        "query" query: Vec<(String, ValuePattern)> = {}, Map { what: "parameter names", key: parameter, value: ValueCondition };
        /// Clients, by address: networks, addresses and `"unix"`.
        "client" client: Vec<TrustedSource> = absent("every client"), OneOrMore(SOURCE);
        /// Countries of clients, which need `[geo]`; `"none"` for unknown.
        "country" country: Vec<CountryPattern> = absent("every country"), Countries;
    }
}

directives! {
    /// Requests that a route does not match: those that meet all of these conditions. The conditions have the
    /// same meaning as in a route.
    ConditionSet in "`not`", check excludes_some {
        /// Paths, one of which must match.
        "path" path: Vec<PathPattern> = absent("every path"), PATHS;
        /// Hosts, one of which must be the request's.
        "host" host: Vec<HostPattern> = absent("every host of the site"), HOSTS;
        /// Methods. `GET` includes HEAD.
        "method" method: Vec<String> = absent("every method"), METHODS;
        /// Query parameters, decoded.
        "query" query: Vec<(String, ValuePattern)> = {}, QUERY;
        /// Header fields.
        "header" header: Vec<(String, ValuePattern)> = {}, HEADER;
        /// Header fields, of which the request has one more than once, as in `repeated` of a route.
        "repeated" repeated: Vec<String> = absent("every request"), REPEATED;
        /// Pages that link to or embed the resource, as in `referer` of a route.
        "referer" referer: Vec<RefererPattern> = absent("every page"), REFERER;
        /// Clients, by address.
        "client" client: Vec<TrustedSource> = absent("every client"), OneOrMore(SOURCE);
        /// Countries of clients.
        "country" country: Vec<CountryPattern> = absent("every country"), Countries;
        /// Requests that are not excluded, although they meet the other conditions: those that meet all conditions of this table, or of
        /// one table in a list. A `not` with nothing else asks for a second path:
        ///
        /// ```toml
        /// # Texts below /public/ alone.
        /// [[route]]
        /// path  = '~ \.txt$'
        /// not   = { not = "/public/*" }
        /// files = "public"
        /// ```
        "not" not: Vec<ConditionSet> = absent("none"), OneOrMore(brief::<ConditionSet>("path"));
    }
}

fn excludes_some(_: &mut ConditionSet, node: &Node, check: &mut Checker) {
    let has_condition = match &node.data {
        NodeData::Table(entries) => entries.iter().any(|entry| match &entry.value.data {
            NodeData::Table(names) => !names.is_empty(),
            _ => true,
        }),
        _ => true,
    };
    if !has_condition {
        let finding = check.error(
            &node.span,
            "a `not` without conditions".to_owned(),
            "the route is for no request at all",
        );
        finding.help("write for example `not = { method = [\"GET\", \"POST\"] }`, or remove it");
    }
}

fn parse_method(text: &str) -> Result<String, InvalidValue> {
    const KNOWN: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];
    if text.is_empty() || text.starts_with('!') || !text.chars().all(header::is_token_char) {
        let remedy = match text.strip_prefix('!') {
            Some(rest) => format!("write `not = {{ method = \"{rest}\" }}` in the route"),
            None => "write a method such as \"GET\"".to_owned(),
        };
        return Err(InvalidValue::new("this is not a method", remedy));
    }
    match KNOWN.iter().find(|known| known.eq_ignore_ascii_case(text)) {
        Some(known) if *known != text => {
            Err(InvalidValue::new("methods are in upper case", format!("write \"{known}\"")))
        }
        _ => Ok(text.to_owned()),
    }
}
