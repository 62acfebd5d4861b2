//! The value of `Strict-Transport-Security`.

use settings::checker::InvalidValue;

/// Returns the value for `hsts = true`: a max-age of one year.
pub(crate) fn hsts_year() -> Option<String> {
    Some("max-age=31536000".to_owned())
}

/// Parses the field's value (RFC 6797 section 6.1).
pub(crate) fn hsts(text: &str) -> Result<String, InvalidValue> {
    let age = text.split(';').map(str::trim).find_map(|part| part.strip_prefix("max-age="));
    let is_number = |age: &str| !age.is_empty() && age.bytes().all(|byte| byte.is_ascii_digit());
    if text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic()) && age.is_some_and(is_number) {
        Ok(text.to_owned())
    } else {
        Err(InvalidValue::new(
            "this is not a value of Strict-Transport-Security",
            "write \"max-age=SECONDS\", and \"; includeSubDomains\" or \"; preload\" behind it",
        ))
    }
}
