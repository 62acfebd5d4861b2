//! Comparisons that routes can only approximate, and which of them may miss requests that nginx refuses.

use super::scope::field_name;
use crate::conditions::{RouteCondition, cookie_regex_condition};
use crate::expressions::{escape_literal, has_alternatives, not_starting_with};
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

/// Returns the reason why an expression may accept a field that nginx refuses, if it may.
pub(crate) fn inexact_field_reason(name: &str, regex: &str) -> Option<&'static str> {
    let reason =
        "it takes all lines of a field that is sent more than once as one text: a route looks at each";
    is_anchored_field(name, regex).then_some(reason)
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

/// Whether an expression is anchored to the start or end of a field that may be repeated: nginx compares all
/// lines as one text.
fn is_anchored_field(name: &str, regex: &str) -> bool {
    let is_bound = |token: &RegexToken<'_>| matches!(token.text, "^" | "$" | r"\A" | r"\z" | r"\b" | r"\B");
    let is_single = matches!(name, "http_host" | "http_referer" | "http_user_agent");
    name.starts_with("http_") && !is_single && regex_tokens(regex).iter().any(is_bound)
}

/// Returns the condition that a field or cookie has a value other than these in addition to one of them:
/// nginx compares only the first cookie, and all lines of a field as one text.
pub(crate) fn other_value_condition(
    name: &str,
    texts: &[&str],
    ignores_case: bool,
) -> Option<RouteCondition> {
    let words: Vec<Vec<char>> = texts.iter().map(|text| text.chars().collect()).collect();
    let slices: Vec<&[char]> = words.iter().map(Vec::as_slice).collect();
    let is_cookie = name.starts_with("cookie_");
    let longer = if is_cookie { "[^;]" } else { "." };
    let longer: Vec<String> = texts.iter().map(|text| format!("{}{longer}", escape_literal(text))).collect();
    let sign = if ignores_case { "~*" } else { "~" };
    let other = match texts {
        [""] => return name.strip_prefix("cookie_").map(|cookie| cookie_regex_condition(cookie, "(;|$)")),
        _ => format!("(?:{}|{})", not_starting_with(&slices)?, longer.join("|")),
    };
    if let Some(cookie) = name.strip_prefix("cookie_") {
        return Some(cookie_regex_condition(cookie, &other));
    }
    let field = field_name(name.strip_prefix("http_")?);
    Some(RouteCondition::on_value("header", &field, format!("{sign} ^{other}")))
}
