//! Cross-origin requests: which origins may read responses.

use settings::checker::{Checker, InvalidValue};
use settings::directive_table::table;
use settings::directives;
use settings::node::Node;
use settings::shape::{Flag, List, Maybe, OneOrMore, Shape, Text, Time, Toggle};
use shapes::header;
use std::time::Duration;

/// `cors` of a site or a route; if absent, the level above applies.
pub(crate) fn policy() -> impl Shape<Out = Option<Option<Cors>>> {
    Maybe(Toggle { on: Some(|| Some(Cors::default())), off: || None, shape: Maybe(table::<Cors>()) })
}

/// Origins that may read responses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CorsOrigin {
    /// All of them.
    Any,
    /// A single origin, as browsers write it.
    Exact(String),
    /// Origins below a domain, at any depth.
    Subdomains {
        /// `https://`.
        scheme: String,
        /// `.example`, and the port if it is not the scheme's default.
        suffix: String,
    },
}

const METHODS: OneOrMore<Text<String>> =
    OneOrMore(Text { what: "a method such as \"GET\"", parse: parse_method });
const NAMES: List<Text<String>> = List(Text { what: "a header name", parse: parse_field_name });
const ORIGINS: OneOrMore<Text<CorsOrigin>> = OneOrMore(Text {
    what: "an origin such as \"https://app.example\" or \"https://*.example\", or \"*\"",
    parse: parse_origin,
});

directives! {
    /// Cross-origin requests (the Fetch standard's CORS protocol): the origins whose pages may read
    /// responses. `true` allows all of them, without cookies.
    ///
    /// ```toml
    /// [[route]]
    /// path  = "/api/*"
    /// proxy = "http://127.0.0.1:3000"
    /// cors  = { origins = ["https://app.example", "https://*.example"], credentials = true }
    /// ```
    ///
    /// The server answers preflights (`OPTIONS` with `Origin` and `Access-Control-Request-Method`) before
    /// `auth` is checked. It adds the fields to every response of the route: files, upstream servers,
    /// applications, cached responses and errors. `Access-Control-Allow-Origin`, `-Credentials` and
    /// `-Expose-Headers` of upstream servers are replaced. `Vary: Origin` is added wherever the response
    /// depends on the origin.
    Cors in "`cors` of a site or route", check cors_agrees {
        /// Origins that may read: scheme, host and port, as browsers write them; `*.` matches every name
        /// below a domain; `"*"` is all.
        "origins" origins: Vec<CorsOrigin> = ["*"], ORIGINS;
        /// Methods that they may use.
        "methods" methods: Vec<String> = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"], METHODS;
        /// Fields that requests of these origins may have, besides those that every page may send.
        "headers" headers: Option<Vec<String>> = absent("all that a browser asks for"), Maybe(NAMES);
        /// Response fields that scripts of these origins may read, besides those that every script may read.
        "expose" expose: Vec<String> = [], NAMES;
        /// Whether requests carry cookies and `Authorization`, and their responses may be read. Not with the origin `"*"`.
        "credentials" credentials: bool = false, Flag;
        /// Time for which browsers remember the answer to a preflight. Browsers have limits of their own.
        "max_age" max_age: Duration = "10m", Time { min: Duration::ZERO, max: Duration::from_secs(86_400) };
    }
}

fn cors_agrees(cors: &mut Cors, node: &Node, check: &mut Checker) {
    let any = cors.origins.contains(&CorsOrigin::Any);
    if let Some(entry) = node.entry("credentials").filter(|_| any && cors.credentials) {
        let title = format!("`credentials` for every origin in `{}`", check.directive_path_text());
        let finding = check.error(&entry.value.span, title, "every page could act as its visitor");
        finding.help("name the origins: `origins = [\"https://app.example\"]`");
    }
    if let Some(entry) = node.entry("origins").filter(|_| any && cors.origins.len() > 1) {
        let title = format!("`\"*\"` beside other origins in `{}`", check.directive_path_text());
        check.error(&entry.value.span, title, "this is every origin").help("remove the others, or `\"*\"`");
    }
}

fn parse_origin(text: &str) -> Result<CorsOrigin, InvalidValue> {
    let remedy = "write \"https://app.example\", \"https://*.example\" or \"*\"";
    if text == "*" {
        return Ok(CorsOrigin::Any);
    }
    if text == "null" {
        return Err(InvalidValue::new("`null` is the origin of every sandboxed page", "name the origins"));
    }
    let lower = text.to_ascii_lowercase();
    let Some((scheme, rest)) = lower.split_once("://").filter(|(scheme, _)| {
        !scheme.is_empty() && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
    }) else {
        return Err(InvalidValue::new("an origin begins with its scheme", remedy));
    };
    let (host, port) = match rest.rsplit_once(':').filter(|(_, port)| !port.contains(']')) {
        Some((host, port)) => (host, Some(port)),
        None => (rest, None),
    };
    if let Some(at) = text.find(['?', '#', '@']).or_else(|| rest.find('/').map(|at| scheme.len() + 3 + at)) {
        return Err(InvalidValue::new("an origin has no path", remedy).within(at..text.len()));
    }
    let number =
        port.map(|port| port.parse::<u16>().ok().filter(|&number| number > 0 && number.to_string() == *port));
    let Some(number) = number.map_or(Some(None), |number| number.map(Some)) else {
        return Err(InvalidValue::new("this is not a port", remedy));
    };
    let usual = matches!((scheme, number), ("https", Some(443)) | ("http", Some(80)));
    // Browsers leave out the scheme's own port.
    let port = number.filter(|_| !usual).map(|number| format!(":{number}")).unwrap_or_default();
    let (is_below, name) = match host.strip_prefix("*.") {
        Some(name) => (true, name),
        None => (false, host),
    };
    let is_name = |name: &str| {
        let is_v6 =
            name.starts_with('[') && name.ends_with(']') && name.parse::<std::net::Ipv6Addr>().is_err();
        let fits = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c) || is_v6 && "[]:".contains(c);
        !name.is_empty() && !name.starts_with('.') && name.chars().all(fits)
    };
    match is_name(name) {
        false => Err(InvalidValue::new("this is not the host of an origin", remedy)),
        true if is_below => {
            Ok(CorsOrigin::Subdomains { scheme: format!("{scheme}://"), suffix: format!(".{name}{port}") })
        }
        true => Ok(CorsOrigin::Exact(format!("{scheme}://{host}{port}"))),
    }
}

fn parse_method(text: &str) -> Result<String, InvalidValue> {
    match text {
        "*" => Err(InvalidValue::new("`*` is no method", "name the methods")),
        _ if text.is_empty() || !text.chars().all(header::is_token_char) => {
            Err(InvalidValue::new("this is not a method", "write a method such as \"GET\""))
        }
        _ => Ok(text.to_owned()),
    }
}

fn parse_field_name(text: &str) -> Result<String, InvalidValue> {
    match text {
        "*" => Err(InvalidValue::new("`*` is no header name", "name the fields, or leave the directive out")),
        _ => header::parse_name(text).map(|_| text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_parsed_and_normalized() {
        for (text, exact) in [
            ("https://app.example", "https://app.example"),
            ("HTTPS://App.Example:443", "https://app.example"),
            ("http://localhost:3000", "http://localhost:3000"),
            ("http://[::1]:3000", "http://[::1]:3000"),
            ("capacitor://localhost", "capacitor://localhost"),
        ] {
            assert_eq!(parse_origin(text), Ok(CorsOrigin::Exact(exact.into())), "{text}");
        }
        let below = CorsOrigin::Subdomains { scheme: "https://".into(), suffix: ".example:8443".into() };
        assert_eq!(parse_origin("https://*.example:8443"), Ok(below));
        for wrong in [
            "",
            "null",
            "app.example",
            "https://",
            "https://a/",
            "https://a/b",
            "https://*",
            "https://*.",
            "https://a.*.b",
            "https://a:0",
            "https://a:99999",
            "https://a:x",
            "https://u@a",
            "https://a?b",
            "https://a b",
            "://a",
        ] {
            assert!(parse_origin(wrong).is_err(), "{wrong}");
        }
    }
}
