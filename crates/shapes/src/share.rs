//! Shares of requests.

use settings::checker::InvalidValue;
use settings::shape::Text;

/// Shares of requests are counted in millionths.
pub const SHARE_MAX: u32 = 1_000_000;

/// A share, in millionths.
pub const SHARE: Text<u32> = Text { what: "a share such as \"10%\" or \"0.1%\"", parse: parse_share };

/// Reads a share, in millionths.
fn parse_share(text: &str) -> Result<u32, InvalidValue> {
    let invalid = || InvalidValue::new("this is not a share", "write a number from 0 to 100 and `%`");
    let number = text.strip_suffix('%').ok_or_else(invalid)?.trim_end();
    let is_plain = number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let percent: f64 = number.parse().ok().filter(|_| is_plain).ok_or_else(invalid)?;
    match percent {
        0.0..=100.0 => Ok((percent * f64::from(SHARE_MAX / 100)).round() as u32),
        _ => Err(invalid()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_are_parsed() {
        for (text, want) in
            [("0%", Some(0)), ("100%", Some(SHARE_MAX)), ("0.1%", Some(1_000)), ("12.5 %", Some(125_000))]
        {
            assert_eq!(parse_share(text).ok(), want, "{text}");
        }
        for text in ["", "%", "101%", "-1%", "1", "1e1%", "NaN%", "inf%", "1%%"] {
            assert!(parse_share(text).is_err(), "{text}");
        }
    }
}
