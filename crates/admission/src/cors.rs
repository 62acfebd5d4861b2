//! Cross-origin requests (the CORS protocol of the Fetch standard): origins that may read responses, and
//! replies to preflights.

use std::time::Duration;

use http::{Fields, Name};
use settings::checker::{Checker, InvalidValue};
use settings::directive_table::table;
use settings::directives;
use settings::node::Node;
use settings::shape::{Flag, List, Maybe, OneOrMore, Shape, Text, Time, Toggle};
use shapes::header::{is_token_char, parse_name};

/// Maximum bytes of the field names that a preflight asks for.
const HEADERS_BYTES_MAX: usize = 4096;

/// `cors` of a site or a route; if absent, the level above applies.
pub fn policy() -> impl Shape<Out = Option<Option<Cors>>> {
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
        /// Methods that they may use; `"*"` is all.
        "methods" methods: Vec<String> = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"], METHODS;
        /// Fields that requests of these origins may have, besides those that every page may send.
        "headers" headers: Option<Vec<String>> = absent("all that a browser asks for"), Maybe(NAMES);
        /// Response fields that scripts of these origins may read, besides those that every script may read.
        "expose" expose: Vec<String> = [], NAMES;
        /// Whether requests carry cookies and `Authorization`, and their responses may be read. Not with the origin `"*"`,
        /// unless `any_origin_credentials` allows it.
        "credentials" credentials: bool = false, Flag;
        /// Whether `credentials` is allowed together with the origin `"*"`. Every page on the web can then act as a visitor who is
        /// signed in, and read the responses.
        "any_origin_credentials" any_origin_credentials: bool = false, Flag;
        /// Time for which browsers remember the answer to a preflight. Browsers have limits of their own.
        "max_age" max_age: Duration = "10m", Time { min: Duration::ZERO, max: Duration::from_secs(86_400) };
    }
}

fn cors_agrees(cors: &mut Cors, node: &Node, check: &mut Checker) {
    let any = cors.origins.contains(&CorsOrigin::Any);
    if let Some(entry) =
        node.entry("credentials").filter(|_| any && cors.credentials && !cors.any_origin_credentials)
    {
        let title = format!("`credentials` for every origin in `{}`", check.directive_path_text());
        let finding = check.error(&entry.value.span, title, "every page could act as its visitor");
        finding.help("name the origins: `origins = [\"https://app.example\"]`");
    }
    if let Some(entry) = node
        .entry("any_origin_credentials")
        .filter(|_| cors.any_origin_credentials && !(any && cors.credentials))
    {
        let title = format!("`any_origin_credentials` without effect in `{}`", check.directive_path_text());
        let finding = check.error(&entry.key_span, title, "it is for `credentials` with every origin");
        finding.help("remove it, or write `origins = [\"*\"]` and `credentials = true`");
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
    if !is_name(name) {
        Err(InvalidValue::new("this is not the host of an origin", remedy))
    } else if is_below {
        Ok(CorsOrigin::Subdomains { scheme: format!("{scheme}://"), suffix: format!(".{name}{port}") })
    } else {
        Ok(CorsOrigin::Exact(format!("{scheme}://{host}{port}")))
    }
}

fn parse_method(text: &str) -> Result<String, InvalidValue> {
    match text {
        "*" => Ok(text.to_owned()),
        _ if text.is_empty() || !text.chars().all(is_token_char) => {
            Err(InvalidValue::new("this is not a method", "write a method such as \"GET\""))
        }
        _ => Ok(text.to_owned()),
    }
}

fn parse_field_name(text: &str) -> Result<String, InvalidValue> {
    match text {
        "*" => {
            Err(InvalidValue::new("`*` is not a header name", "name the fields, or leave the directive out"))
        }
        _ => parse_name(text).map(|_| text.to_owned()),
    }
}

/// Reason for refusing a preflight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreflightRefusal(pub &'static str);

impl CorsOrigin {
    fn matches(&self, origin: &[u8]) -> bool {
        match self {
            CorsOrigin::Any => true,
            CorsOrigin::Exact(exact) => exact.as_bytes() == origin,
            CorsOrigin::Subdomains { scheme, suffix } => {
                let rest = origin.strip_prefix(scheme.as_bytes());
                let label = rest.and_then(|rest| rest.strip_suffix(suffix.as_bytes()));
                label.is_some_and(|label| {
                    !label.is_empty()
                        && label
                            .iter()
                            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'))
                })
            }
        }
    }
}

impl Cors {
    /// Response fields whose values are replaced by those of the rules.
    pub const REPLACED_FIELDS: [&'static str; 3] =
        ["access-control-allow-origin", "access-control-allow-credentials", "access-control-expose-headers"];

    fn allows(&self, origin: &[u8]) -> bool {
        self.origins.iter().any(|known| known.matches(origin))
    }

    /// Returns the fields for a response to a request with this `Origin`; only `Vary` for an origin that may
    /// not read it.
    #[must_use]
    pub fn response(&self, origin: Option<&[u8]>) -> Fields {
        let mut fields = Fields::new();
        self.write_origin(&mut fields, origin);
        self.write_expose(&mut fields);
        fields
    }

    fn write_expose(&self, fields: &mut Fields) {
        if !self.expose.is_empty() && fields.first(b"access-control-allow-origin").is_some() {
            push(fields, "Access-Control-Expose-Headers", self.expose.join(", ").as_bytes());
        }
    }

    fn write_origin(&self, fields: &mut Fields, origin: Option<&[u8]>) {
        // With credentials, browsers do not take `*` for their origin.
        if self.origins.contains(&CorsOrigin::Any) && !self.credentials {
            push(fields, "Access-Control-Allow-Origin", b"*");
            return;
        }
        // Needed even without `Origin`, because a cache may use this response for a request that has one.
        fields.push(Name::Vary, b"Origin");
        let Some(origin) = origin.filter(|origin| self.allows(origin)) else { return };
        push(fields, "Access-Control-Allow-Origin", origin);
        if self.credentials {
            push(fields, "Access-Control-Allow-Credentials", b"true");
        }
    }

    /// Returns the fields for the reply to a preflight with this origin, method and request fields.
    ///
    /// # Errors
    /// The reason for not allowing the request.
    pub fn preflight(
        &self,
        origin: &[u8],
        method: &[u8],
        headers: Option<&[u8]>,
    ) -> Result<Fields, PreflightRefusal> {
        if !self.allows(origin) {
            return Err(PreflightRefusal("requests from this origin are not allowed (cors.origins)"));
        }
        let allows_any = self.methods.iter().any(|known| known == "*");
        let is_method = !method.is_empty() && method.iter().all(|&byte| is_token_char(byte.into()));
        let is_named = self.methods.iter().any(|known| known.as_bytes() == method);
        if !(is_named || allows_any && is_method) {
            return Err(PreflightRefusal("this method is not allowed from other origins (cors.methods)"));
        }
        let headers = headers.unwrap_or_default();
        let is_token = |name: &[u8]| !name.is_empty() && name.iter().all(|&byte| is_token_char(byte.into()));
        let may_have = |name: &[u8]| match &self.headers {
            None => is_token(name),
            Some(known) => known.iter().any(|known| known.as_bytes().eq_ignore_ascii_case(name)),
        };
        if headers.len() > HEADERS_BYTES_MAX || !http::scan::list(headers).all(may_have) {
            return Err(PreflightRefusal("a header field is not allowed from other origins (cors.headers)"));
        }
        let mut fields = Fields::new();
        self.write_origin(&mut fields, Some(origin));
        match allows_any {
            true => push(&mut fields, "Access-Control-Allow-Methods", method),
            false => push(&mut fields, "Access-Control-Allow-Methods", self.methods.join(", ").as_bytes()),
        }
        match &self.headers {
            Some(known) if !known.is_empty() => {
                push(&mut fields, "Access-Control-Allow-Headers", known.join(", ").as_bytes());
            }
            None if !headers.is_empty() => {
                let asked: Vec<&[u8]> = http::scan::list(headers).collect();
                push(&mut fields, "Access-Control-Allow-Headers", &asked.join(&b", "[..]));
            }
            _ => {}
        }
        // Browsers do not need it here; other programs look for it.
        self.write_expose(&mut fields);
        push(&mut fields, "Access-Control-Max-Age", self.max_age.as_secs().to_string().as_bytes());
        fields.push(Name::Vary, b"Access-Control-Request-Method, Access-Control-Request-Headers");
        Ok(fields)
    }
}

/// Adds a field. An invalid value is omitted, so that permission is not granted.
fn push(fields: &mut Fields, name: &str, value: &[u8]) {
    let _ = fields.try_push(name.as_bytes(), value);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> Cors {
        Cors {
            origins: vec![
                CorsOrigin::Exact("https://app.example".into()),
                CorsOrigin::Subdomains { scheme: "https://".into(), suffix: ".apps.example:8443".into() },
            ],
            methods: vec!["GET".into(), "PUT".into()],
            headers: Some(vec!["Content-Type".into()]),
            expose: vec!["X-Total".into()],
            credentials: true,
            any_origin_credentials: false,
            max_age: Duration::from_secs(600),
        }
    }

    fn text(fields: &Fields) -> String {
        String::from_utf8(fields.as_bytes().to_vec()).unwrap().replace("\r\n", "|")
    }

    #[test]
    fn cors_fields_are_sent_only_to_allowed_origins() {
        let rules = rules();
        let good = "Vary: Origin|Access-Control-Allow-Origin: https://app.example|Access-Control-Allow-Credentials: true|\
                    Access-Control-Expose-Headers: X-Total|";
        assert_eq!(text(&rules.response(Some(b"https://app.example"))), good);
        assert_eq!(
            text(&rules.response(Some(b"https://a.b.apps.example:8443"))),
            good.replace("https://app.example", "https://a.b.apps.example:8443")
        );
        for wrong in [
            None,
            Some(&b"null"[..]),
            Some(b""),
            Some(b"*"),
            Some(b"http://app.example"),
            Some(b"https://app.example:444"),
            Some(b"https://app.example.evil.test"),
            Some(b"https://evilapp.example"),
            Some(b"https://.apps.example:8443"),
            Some(b"https://apps.example:8443"),
            Some(b"https://x.apps.example"),
            Some(b"https://evil.test/.apps.example:8443"),
            Some(b"https://evil.test?.apps.example:8443"),
            Some(b"https://evil.test:80@x.apps.example:8443"),
        ] {
            assert_eq!(text(&rules.response(wrong)), "Vary: Origin|", "{wrong:?}");
        }
        let all =
            Cors { origins: vec![CorsOrigin::Any], credentials: false, expose: vec![], ..rules.clone() };
        assert_eq!(text(&all.response(None)), "Access-Control-Allow-Origin: *|");
        // A browser takes no `*` together with credentials.
        let all = Cors { credentials: true, ..all };
        assert_eq!(
            text(&all.response(Some(b"https://x.example"))),
            "Vary: Origin|Access-Control-Allow-Origin: https://x.example|Access-Control-Allow-Credentials: true|"
        );
        assert_eq!(text(&all.response(None)), "Vary: Origin|");
    }

    #[test]
    fn preflights_are_checked_against_origins_methods_and_headers() {
        let rules = rules();
        let app = b"https://app.example";
        let answer = rules.preflight(app, b"PUT", Some(b"content-type")).unwrap();
        assert_eq!(
            text(&answer),
            "Vary: Origin|Access-Control-Allow-Origin: https://app.example|Access-Control-Allow-Credentials: true|\
             Access-Control-Allow-Methods: GET, PUT|Access-Control-Allow-Headers: Content-Type|Access-Control-Expose-Headers: X-Total|\
             Access-Control-Max-Age: 600|\
             Vary: Access-Control-Request-Method, Access-Control-Request-Headers|"
        );
        for (origin, method, headers) in [
            (&b"https://evil.test"[..], &b"GET"[..], None),
            (app, b"DELETE", None),
            (app, b"put", None),
            (app, b"GET", Some(&b"content-type, x-other"[..])),
        ] {
            assert!(rules.preflight(origin, method, headers).is_err());
        }
        let all = Cors { methods: vec!["*".into()], ..rules.clone() };
        let answer = all.preflight(app, b"PROPFIND", None).unwrap();
        assert_eq!(answer.first(b"access-control-allow-methods"), Some(&b"PROPFIND"[..]));
        assert!(all.preflight(app, b"a b", None).is_err());
        let any = Cors { headers: None, ..rules };
        let answer = any.preflight(app, b"GET", Some(b"x-a,x-b")).unwrap();
        assert_eq!(answer.first(b"access-control-allow-headers"), Some(&b"x-a, x-b"[..]));
        assert!(any.preflight(app, b"GET", Some(b"x a")).is_err());
        assert!(any.preflight(app, b"GET", Some(&[b'a'; 5000])).is_err());
    }

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
