//! Matching of the `Referer` field: the page that links to or embeds the requested resource.

use crate::condition_fields::ConditionFields;
use settings::checker::InvalidValue;
use settings::shape::{OneOrMore, Text};
use shapes::expression::Expression;
use shapes::host::HostPattern;

/// `referer` of a route.
pub(crate) const REFERER: OneOrMore<Text<RefererPattern>> = OneOrMore(Text {
    what: "a host such as \"example.com\" or \"*.example.com\", or \"none\"",
    parse: RefererPattern::parse,
});

/// Pattern for the `Referer` field.
#[derive(Debug, Clone, PartialEq)]
pub enum RefererPattern {
    /// No `Referer` field.
    None,
    /// A page of this host, at any port.
    Host(HostPattern),
    /// Page whose URL, without the scheme, matches this.
    Regex(RefererExpression),
}

/// A regular expression for a URL without its scheme.
#[derive(Debug, Clone, PartialEq)]
pub struct RefererExpression(Expression);

impl RefererPattern {
    fn parse(text: &str) -> Result<Self, InvalidValue> {
        match Expression::parse(text) {
            Some(expression) => expression.map(|expression| Self::Regex(RefererExpression(expression))),
            None if text == "none" => Ok(Self::None),
            None => HostPattern::parse(text).map(Self::Host),
        }
    }

    /// Whether it matches a request.
    pub(crate) fn matches_request(&self, fields: &impl ConditionFields) -> bool {
        match self {
            Self::None => !fields.any_value("referer", &mut |value| !value.is_empty()),
            _ => fields.any_value("referer", &mut |value| self.matches(Some(value))),
        }
    }

    /// Whether it matches the field's value, of a request that has one.
    pub(crate) fn matches(&self, value: Option<&[u8]>) -> bool {
        let value = value.filter(|value| !value.is_empty());
        let page = value.map(|value| match value.windows(3).position(|part| part == b"://") {
            Some(at) => &value[at + 3..],
            None => value,
        });
        match (self, page) {
            (Self::None, page) => page.is_none(),
            (_, None) => false,
            (Self::Regex(RefererExpression(expression)), Some(page)) => expression.is_match(page),
            (Self::Host(host), Some(page)) => {
                let authority = page.split(|byte| b"/?#".contains(byte)).next().unwrap_or_default();
                // The part before an `@` is user information, not the host.
                let authority = authority.rsplit(|&byte| byte == b'@').next().unwrap_or_default();
                host.matches_authority(authority)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn referer_patterns_compare_hosts() {
        let matches = |pattern: &str, value: &str| {
            RefererPattern::parse(pattern)
                .unwrap()
                .matches(Some(value).filter(|value| *value != "-").map(str::as_bytes))
        };
        for (pattern, value, is) in [
            ("none", "-", true),
            ("none", "", true),
            ("none", "https://a.test/", false),
            ("a.test", "-", false),
            ("a.test", "https://A.test/x?y", true),
            ("a.test", "https://a.test:8443", true),
            ("a.test", "https://a.test.evil.test/", false),
            ("a.test", "https://evil.test/a.test", false),
            ("a.test", "https://a.test@evil.test/", false),
            ("a.test", "https://evil.test?https://a.test/", false),
            ("*.a.test", "http://b.c.a.test/", true),
            ("*.a.test", "http://a.test/", false),
            ("~ ^[a-z]+\\.test/ok/", "https://x.test/ok/1", true),
            ("~ ^[a-z]+\\.test/ok/", "https://x.test/no", false),
        ] {
            assert_eq!(matches(pattern, value), is, "{pattern} {value}");
        }
        assert!(RefererPattern::parse("a b").is_err() && RefererPattern::parse("~ (").is_err());
    }
}
