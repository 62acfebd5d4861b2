//! Header fields of responses: their names, their values, and the rules that change them.

use crate::template::{TemplateShape, parse_template};
use http::Template;
use settings::checker::{Checker, DefinedVariables, InvalidValue};
use settings::directives;
use settings::node::Node;
use settings::shape::{List, Map, Text};

/// Fields that describe the connection and the framing: only the server sets them (RFC 9110 section 7.6.1).
const RESERVED_FIELDS: [&str; 7] =
    ["connection", "content-length", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"];

/// Variables that a header value may contain.
pub(crate) const VARIABLES: &[&str] = &[
    "path",
    "query",
    "args",
    "uri",
    "host",
    "scheme",
    "method",
    "remote_addr",
    "client_ip",
    "remote_user",
    "country",
    "tls_version",
    "tls_cipher",
    "tls_server_name",
    "tls_client_verify",
    "tls_client_subject",
    "tls_client_issuer",
    "tls_client_san",
    "tls_client_serial",
    "tls_client_fingerprint",
    "client_port",
    "request_id",
    "trace_id",
    "span_id",
    "http_NAME",
    "cookie_NAME",
];

const NAMES: List<Text<String>> = List(Text { what: "a header name", parse: parse_rule_name });
const FIELDS: Map<String, TemplateShape> = Map {
    what: "header names",
    key: parse_rule_name,
    value: TemplateShape { what: "a header value", parse: parse_value_template },
};

directives! {
    /// Changes to the header fields of responses. The rules of the server apply first, then those of the site, then
    /// those of the route; in each, `remove`, then `set`, then `add`.
    ///
    /// ```toml
    /// [[site]]
    /// response_headers = { set = { X-Frame-Options = "DENY" }, remove = ["Server"] }
    /// ```
    ResponseHeaders in "`response_headers`", check headers_agree {
        /// Fields to set; they replace those of the same name. A value may contain `$path` (percent-encoded), `$query` (with its `?`; empty if there is none), `$args` (the query without `?`), `$uri` (`$path$query`),
        /// `$host` (in lower case, without port), `$scheme`, `$method`, `$remote_addr` (or `$client_ip`), `$client_port`, `$remote_user` (the user that `auth` has verified), `$country` (with `[geo]`),
        /// `$request_id`, `$trace_id`, `$span_id`,
        /// of the client's TLS connection with this server, and empty without TLS: `$tls_version`, `$tls_cipher` (the cipher suite), `$tls_server_name`,
        /// `$tls_client_verify`, `$tls_client_subject`, `$tls_client_issuer`, `$tls_client_san`, `$tls_client_serial`, `$tls_client_fingerprint`;
        /// `$http_NAME` (a field of the request, `_` for `-`; `$http_host` is the host with its port) and `$cookie_NAME`;
        /// the groups of a regular expression in the route's path (`$1`, `$id`) and the maps of `[maps.NAME]`; `$$` is a dollar sign. A variable means the same in every directive.
        /// A field whose variables are all empty is not sent.
        "set" set: Vec<(String, Template)> = {}, FIELDS;
        /// Fields to add to those of the same name. Values as in `set`.
        "add" add: Vec<(String, Template)> = {}, FIELDS;
        /// Names of fields to remove.
        "remove" remove: Vec<String> = [], NAMES;
    }
}

impl ResponseHeaders {
    /// True when it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.set.is_empty() && self.add.is_empty() && self.remove.is_empty()
    }
}

fn headers_agree(rules: &mut ResponseHeaders, node: &Node, check: &mut Checker) {
    for (name, _) in &rules.set {
        let Some(entry) = node.entry("remove").filter(|_| rules.remove.contains(name)) else { continue };
        let title = format!("`{name}` is both set and removed in `{}`", check.directive_path_text());
        check.warning(&entry.value.span, title, "has no effect").help("`set` alone replaces the field");
    }
}

/// A field name in lower case (RFC 9110 section 5.1).
pub(crate) fn name(text: &str) -> Result<String, InvalidValue> {
    if text.is_empty() {
        return Err(InvalidValue::new("an empty header name", ""));
    }
    match text.char_indices().find(|(_, c)| !is_token_char(*c)) {
        Some((at, wrong)) => {
            let fault = InvalidValue::new(
                format!("a header name must not contain {wrong:?}"),
                "it consists of letters, digits and hyphens",
            );
            Err(fault.within(at..at + wrong.len_utf8()))
        }
        None => Ok(text.to_ascii_lowercase()),
    }
}

/// The name of a field that may be changed.
pub(crate) fn parse_rule_name(text: &str) -> Result<String, InvalidValue> {
    let lower = name(text)?;
    if RESERVED_FIELDS.contains(&lower.as_str()) {
        let remedy = "it depends on the body and the connection; remove it";
        return Err(InvalidValue::new("only the server sets this field", remedy));
    }
    Ok(lower)
}

/// A character of a token (RFC 9110 section 5.6.2).
pub(crate) fn is_token_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c)
}

/// A field value without controls, above all without CR and LF (RFC 9110 section 5.5).
pub(crate) fn parse_value(text: &str) -> Result<String, InvalidValue> {
    if let Some((at, wrong)) = text.char_indices().find(|(_, c)| c.is_control() && *c != '\t') {
        let fault = InvalidValue::new(
            format!("a header value must not contain {wrong:?}"),
            "a value is one line without control characters",
        );
        return Err(fault.within(at..at + wrong.len_utf8()));
    }
    if text.trim_matches([' ', '\t']).len() != text.len() {
        return Err(InvalidValue::new(
            "a header value must not start or end with a space",
            "remove the space",
        ));
    }
    Ok(text.to_owned())
}

fn parse_value_template(text: &str, defined_variables: &DefinedVariables) -> Result<Template, InvalidValue> {
    parse_template(&parse_value(text)?, VARIABLES, defined_variables)
}

/// A media type (RFC 9110 section 8.3.1), parameters and all.
pub(crate) fn media_type(text: &str) -> Result<String, InvalidValue> {
    let essence = text.split(';').next().unwrap_or("").trim_end();
    let token = |part: &str| !part.is_empty() && part.chars().all(is_token_char);
    match essence.split_once('/') {
        Some((kind, sub)) if token(kind) && token(sub) => parse_value(text),
        _ => Err(InvalidValue::new(
            "this is not a media type",
            "write a type such as \"text/html; charset=utf-8\"",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_names_and_values_are_validated() {
        assert_eq!(name("X-Frame-Options"), Ok("x-frame-options".into()));
        for wrong in ["", "a b", "a:", "é", "a\r\n"] {
            assert!(name(wrong).is_err(), "{wrong:?}");
        }
        for wrong in ["a\r\nb", "\0", " a", "a\t", "\u{7f}"] {
            assert!(parse_value(wrong).is_err(), "{wrong:?}");
        }
        assert!(parse_value("").is_ok());
        assert!(parse_rule_name("Content-Length").is_err());
    }

    #[test]
    fn media_types_are_validated() {
        for right in ["text/plain", "text/html; charset=utf-8", "application/vnd.api+json"] {
            assert_eq!(media_type(right).as_deref(), Ok(right));
        }
        for wrong in ["", "text", "text/", "/html", "text/ht ml", "text/html;\n"] {
            assert!(media_type(wrong).is_err(), "{wrong:?}");
        }
    }
}
