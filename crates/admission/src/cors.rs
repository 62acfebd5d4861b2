//! Cross-origin requests (the CORS protocol of the Fetch standard): origins that may read responses, and
//! replies to preflights.

use http::{Fields, Name};

/// Maximum bytes of the field names that a preflight asks for.
const HEADERS_BYTES_MAX: usize = 4096;

/// Pattern of origins that may read responses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OriginPattern {
    /// One origin, as browsers write it: `https://app.example`.
    Exact(String),
    /// Origins whose host is below a domain, at any depth: `https://*.example`.
    Below {
        /// Scheme, such as `https://`.
        scheme: String,
        /// Domain with a leading dot, such as `.example`, and the port unless it is the scheme's default.
        suffix: String,
    },
}

/// CORS rules of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorsRules {
    /// Origins that may read responses; `None`: all.
    pub origins: Option<Vec<OriginPattern>>,
    /// Allowed methods.
    pub methods: Vec<String>,
    /// Allowed request fields; `None`: all that a preflight asks for.
    pub headers: Option<Vec<String>>,
    /// Response fields that a script may read, in addition to those that it always may.
    pub expose: Vec<String>,
    /// Whether responses to requests with credentials (cookies, `Authorization`) are readable. Not allowed
    /// with all origins.
    pub credentials: bool,
    /// Time for which a browser caches a preflight, in seconds.
    pub max_age_s: u64,
}

/// Reason for refusing a preflight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreflightRefusal(pub &'static str);

impl OriginPattern {
    fn matches(&self, origin: &[u8]) -> bool {
        match self {
            OriginPattern::Exact(exact) => exact.as_bytes() == origin,
            OriginPattern::Below { scheme, suffix } => {
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

impl CorsRules {
    /// Response fields whose values are replaced by those of the rules.
    pub const REPLACED_FIELDS: [&'static str; 3] =
        ["access-control-allow-origin", "access-control-allow-credentials", "access-control-expose-headers"];

    fn allows(&self, origin: &[u8]) -> bool {
        self.origins.as_ref().is_none_or(|origins| origins.iter().any(|known| known.matches(origin)))
    }

    /// Returns the fields for a response to a request with this `Origin`; only `Vary` for an origin that may
    /// not read it.
    #[must_use]
    pub fn response(&self, origin: Option<&[u8]>) -> Fields {
        let mut fields = Fields::new();
        self.write_origin(&mut fields, origin);
        if !self.expose.is_empty() && fields.first(b"access-control-allow-origin").is_some() {
            push(&mut fields, "Access-Control-Expose-Headers", self.expose.join(", ").as_bytes());
        }
        fields
    }

    fn write_origin(&self, fields: &mut Fields, origin: Option<&[u8]>) {
        if self.origins.is_none() {
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
        if !self.methods.iter().any(|known| known.as_bytes() == method) {
            return Err(PreflightRefusal("this method is not allowed from other origins (cors.methods)"));
        }
        let headers = headers.unwrap_or_default();
        let is_token = |name: &[u8]| !name.is_empty() && name.iter().all(|&byte| is_token_byte(byte));
        let may_have = |name: &[u8]| match &self.headers {
            None => is_token(name),
            Some(known) => known.iter().any(|known| known.as_bytes().eq_ignore_ascii_case(name)),
        };
        if headers.len() > HEADERS_BYTES_MAX || !http::scan::list(headers).all(may_have) {
            return Err(PreflightRefusal("a header field is not allowed from other origins (cors.headers)"));
        }
        let mut fields = Fields::new();
        self.write_origin(&mut fields, Some(origin));
        push(&mut fields, "Access-Control-Allow-Methods", self.methods.join(", ").as_bytes());
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
        push(&mut fields, "Access-Control-Max-Age", self.max_age_s.to_string().as_bytes());
        fields.push(Name::Vary, b"Access-Control-Request-Method, Access-Control-Request-Headers");
        Ok(fields)
    }
}

/// Whether a byte is allowed in a token (RFC 9110 section 5.6.2).
fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Adds a field. An invalid value is omitted, so that permission is not granted.
fn push(fields: &mut Fields, name: &str, value: &[u8]) {
    let _ = fields.try_push(name.as_bytes(), value);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> CorsRules {
        CorsRules {
            origins: Some(vec![
                OriginPattern::Exact("https://app.example".into()),
                OriginPattern::Below { scheme: "https://".into(), suffix: ".apps.example:8443".into() },
            ]),
            methods: vec!["GET".into(), "PUT".into()],
            headers: Some(vec!["Content-Type".into()]),
            expose: vec!["X-Total".into()],
            credentials: true,
            max_age_s: 600,
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
        let all = CorsRules { origins: None, credentials: false, expose: vec![], ..rules };
        assert_eq!(text(&all.response(None)), "Access-Control-Allow-Origin: *|");
    }

    #[test]
    fn preflights_are_checked_against_origins_methods_and_headers() {
        let rules = rules();
        let app = b"https://app.example";
        let answer = rules.preflight(app, b"PUT", Some(b"content-type")).unwrap();
        assert_eq!(
            text(&answer),
            "Vary: Origin|Access-Control-Allow-Origin: https://app.example|Access-Control-Allow-Credentials: true|\
             Access-Control-Allow-Methods: GET, PUT|Access-Control-Allow-Headers: Content-Type|Access-Control-Max-Age: 600|\
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
        let any = CorsRules { headers: None, ..rules };
        let answer = any.preflight(app, b"GET", Some(b"x-a,x-b")).unwrap();
        assert_eq!(answer.first(b"access-control-allow-headers"), Some(&b"x-a, x-b"[..]));
        assert!(any.preflight(app, b"GET", Some(b"x a")).is_err());
        assert!(any.preflight(app, b"GET", Some(&[b'a'; 5000])).is_err());
    }
}
