//! Names and values of header fields, and the variables that values may contain.

use http::Template;
use settings::checker::{DefinedVariables, InvalidValue};
use settings::shape::{List, Map, Text};

use crate::template::{TemplateShape, parse_template};

/// Fields that describe the connection and the framing: only the server sets them (RFC 9110 section 7.6.1).
const RESERVED_FIELDS: [&str; 7] =
    ["connection", "content-length", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"];

/// Variables that a header value may contain.
pub const VARIABLES: &[&str] = &[
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
    "tls_resumed",
    "tls_server_name",
    "tls_client_verify",
    "tls_client_subject",
    "tls_client_issuer",
    "tls_client_san",
    "tls_client_serial",
    "tls_client_fingerprint",
    "tls_client_certificate",
    "client_port",
    "request_id",
    "trace_id",
    "span_id",
    "http_NAME",
    "cookie_NAME",
];

/// Names of fields that rules may change.
pub const RULE_NAMES: List<Text<String>> = List(Text { what: "a header name", parse: parse_rule_name });
/// Fields that rules set, with their values.
pub const RULE_FIELDS: Map<String, TemplateShape> = Map {
    what: "header names",
    key: parse_rule_name,
    value: TemplateShape { what: "a header value", parse: parse_value_template },
};

/// Parses a field name and returns it in lower case (RFC 9110 section 5.1).
///
/// # Errors
/// The name is empty, or has a character that no token has.
pub fn parse_name(text: &str) -> Result<String, InvalidValue> {
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

/// Parses the name of a field that rules may change.
///
/// # Errors
/// The text is not a field name, or only the server sets that field.
pub fn parse_rule_name(text: &str) -> Result<String, InvalidValue> {
    let lower = parse_name(text)?;
    if RESERVED_FIELDS.contains(&lower.as_str()) {
        let remedy = "it depends on the body and the connection; remove it";
        return Err(InvalidValue::new("only the server sets this field", remedy));
    }
    Ok(lower)
}

/// Whether a token may have the character (RFC 9110 section 5.6.2).
#[must_use]
pub fn is_token_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c)
}

/// Parses a field value without controls, above all without CR and LF (RFC 9110 section 5.5).
///
/// # Errors
/// The value has a control character, or begins or ends with a space.
pub fn parse_value(text: &str) -> Result<String, InvalidValue> {
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

/// Parses a field value with [`VARIABLES`].
///
/// # Errors
/// The value is invalid, or has another variable.
pub fn parse_value_template(
    text: &str,
    defined_variables: &DefinedVariables,
) -> Result<Template, InvalidValue> {
    parse_template(&parse_value(text)?, VARIABLES, defined_variables)
}

/// Parses a media type (RFC 9110 section 8.3.1), with parameters.
///
/// # Errors
/// The text is not a media type.
pub fn parse_media_type(text: &str) -> Result<String, InvalidValue> {
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
    use http::Variable;

    #[test]
    fn header_values_may_contain_what_is_known_before_the_response() {
        let of_places = ["rest", "upstream"];
        let is_known = |name: &&str| !matches!(Variable::named(name), Some(Variable::Log(_)));
        let mut known: Vec<&str> =
            Variable::names().filter(is_known).filter(|name| !of_places.contains(name)).collect();
        let mut listed = VARIABLES.to_vec();
        known.sort_unstable();
        listed.sort_unstable();
        assert_eq!(listed, known);
    }

    #[test]
    fn header_names_and_values_are_validated() {
        assert_eq!(parse_name("X-Frame-Options"), Ok("x-frame-options".into()));
        for wrong in ["", "a b", "a:", "é", "a\r\n"] {
            assert!(parse_name(wrong).is_err(), "{wrong:?}");
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
            assert_eq!(parse_media_type(right).as_deref(), Ok(right));
        }
        for wrong in ["", "text", "text/", "/html", "text/ht ml", "text/html;\n"] {
            assert!(parse_media_type(wrong).is_err(), "{wrong:?}");
        }
    }
}
