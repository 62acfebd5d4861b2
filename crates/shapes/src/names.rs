//! Names and secrets: of cookies, query parameters and variables, and tokens.

use settings::checker::InvalidValue;

use crate::header::is_token_char;

/// Minimum length of a token, in characters, so that it cannot be guessed.
const TOKEN_CHARS_MIN: usize = 16;

/// Parses a name that a `Set-Cookie` field may hold (RFC 6265 section 4.1.1).
///
/// # Errors
/// The name is empty, or has a character that no token has.
pub fn parse_cookie_name(text: &str) -> Result<String, InvalidValue> {
    match text.char_indices().find(|(_, c)| !is_token_char(*c)) {
        Some((at, wrong)) => {
            let fault = InvalidValue::new(format!("a cookie's name must not contain {wrong:?}"), "");
            Err(fault.within(at..at + wrong.len_utf8()))
        }
        None if text.is_empty() => Err(InvalidValue::new("the cookie's name is missing", "")),
        None => Ok(text.to_owned()),
    }
}

/// Parses the name of a query parameter.
///
/// # Errors
/// The name is empty.
pub fn parameter(text: &str) -> Result<String, InvalidValue> {
    match text {
        "" => Err(InvalidValue::new("an empty name", "write the name of a query parameter")),
        _ => Ok(text.to_owned()),
    }
}

/// Parses the name of a cookie of requests.
///
/// # Errors
/// The name is empty, or has a character that no token has.
pub fn cookie_name(text: &str) -> Result<String, InvalidValue> {
    if !text.is_empty() && text.chars().all(is_token_char) {
        Ok(text.to_owned())
    } else {
        Err(InvalidValue::new("this is not the name of a cookie", "write one such as \"theme\""))
    }
}

/// Parses the name of a variable of CGI, or of the environment.
///
/// # Errors
/// The name has other characters than letters, digits and `_`.
pub fn parse_variable_name(text: &str) -> Result<String, InvalidValue> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if text.chars().all(is_name) && !text.is_empty() {
        Ok(text.to_owned())
    } else {
        Err(InvalidValue::new("a variable's name consists of letters, digits and `_`", ""))
    }
}

/// Reads a token, from the configuration or from its file.
///
/// # Errors
/// The token is too short, or has characters that no token has.
pub fn token(text: &str) -> Result<String, InvalidValue> {
    let remedy = "`openssl rand -hex 32` makes one";
    if text.chars().count() < TOKEN_CHARS_MIN {
        return Err(InvalidValue::new("this token is too short: it could be guessed", remedy));
    }
    match text.find(|c: char| !c.is_ascii_graphic()) {
        Some(at) => {
            let end = at + text[at..].chars().next().map_or(0, char::len_utf8);
            Err(InvalidValue::new("a token has visible ASCII characters alone", remedy).within(at..end))
        }
        None => Ok(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn purge_tokens_are_validated() {
        assert!(token("0123456789abcdef").is_ok());
        for bad in
            ["", "0123456789abcde", "0123456789 abcdef", "0123456789abcdef\u{e9}", "0123456789abcdef\n"]
        {
            assert!(token(bad).is_err(), "{bad:?}");
        }
    }
}
