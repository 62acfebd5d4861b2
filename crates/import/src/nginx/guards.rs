//! Comparisons that routes can only approximate, and which of them may miss requests that nginx refuses.

use crate::expressions::has_alternatives;
use crate::paths::from_literal;
use crate::regex_tokens::{RegexToken, RegexTokenKind, regex_tokens};

/// Returns the reason why a condition of a route may miss requests that nginx's comparison matches, if it
/// may.
pub(crate) fn inexact_reason(name: &str, operator: &str, value: &str) -> Option<&'static str> {
    let is_of_path = match operator.starts_with('~') {
        true => matches_only_path(value),
        false => from_literal(value, false).is_some() && !value.contains("//"),
    };
    match name {
        "request_uri" if !is_of_path => Some(
            "it looks at the target as it was sent: a route looks at the path alone, decoded and without its query",
        ),
        _ if name.starts_with("arg_") => Some(
            "it looks at the first parameter with the name in any case of letters, as it was sent: a route looks at all with the exact name, decoded",
        ),
        _ => None,
    }
}

/// Whether an expression matches only within the path of a target, with the same result after decoding.
fn matches_only_path(regex: &str) -> bool {
    let Some(body) = regex.strip_prefix("^/") else { return false };
    let ends = [".*", ".*$", "(.*)", "(.*)$", "$"];
    let body = ends.iter().find_map(|end| body.strip_suffix(end)).unwrap_or(body);
    let tokens = regex_tokens(body);
    let is_plain = |token: &RegexToken<'_>| match token.kind {
        RegexTokenKind::Class => {
            !token.text.starts_with("[^")
                && token.text[1..token.text.len() - 1]
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        }
        RegexTokenKind::Escape => matches!(token.text, r"\d" | r"\w" | r"\." | r"\-" | r"\/" | r"\_"),
        RegexTokenKind::Literal => {
            token.text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/_-~".contains(&byte))
        }
        RegexTokenKind::Open => matches!(token.text, "(" | "(?:"),
        RegexTokenKind::Symbol => token.text == "$",
        RegexTokenKind::Alternative => true,
        RegexTokenKind::Close | RegexTokenKind::Quantifier => true,
        RegexTokenKind::Setting => false,
    };
    let has_alternatives = has_alternatives(&tokens);
    let text = body.replace('\\', "");
    tokens.iter().all(is_plain)
        && !has_alternatives
        && !text.starts_with('/')
        && !["//", "/.", "./"].iter().any(|part| text.contains(part))
}
