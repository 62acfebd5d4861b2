//! Parses and formats quantities.

use std::time::Duration;

use failure::Failure;
use time::OffsetDateTime;

/// Parses `10s`, `500ms`, `250us`, `2m`, `1h`, `1.5s`; a number without a unit is in seconds.
///
/// # Errors
/// The message lists the allowed forms.
pub fn parse_duration(text: &str) -> Result<Duration, Failure> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let factor = match unit.trim() {
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(Failure::new(format!("{text:?} is not a time: write 10s, 500ms, 2m or 1h"))),
    };
    let number: f64 = number
        .parse()
        .map_err(|_| Failure::new(format!("{text:?} is not a time: write 10s, 500ms, 2m or 1h")))?;
    Duration::try_from_secs_f64(number * factor)
        .map_err(|_| Failure::new(format!("{text:?} is too long a time")))
}

/// Parses a count or a rate: `5000`, `5k`, `1.5M`.
///
/// # Errors
/// The message lists the allowed forms.
pub fn count(text: &str) -> Result<f64, Failure> {
    let text = text.trim().replace('_', "");
    let trimmed = text.strip_suffix("/s").unwrap_or(&text);
    let (number, factor) = match trimmed.as_bytes().last() {
        Some(b'k' | b'K') => (&trimmed[..trimmed.len() - 1], 1e3),
        Some(b'M') => (&trimmed[..trimmed.len() - 1], 1e6),
        _ => (trimmed, 1.0),
    };
    match number.parse::<f64>() {
        Ok(number) if number.is_finite() && number >= 0.0 => Ok(number * factor),
        _ => Err(Failure::new(format!("{text:?} is not a number: write 5000 or 5k"))),
    }
}

/// Formats 1234567.8 as `1,234,568`.
#[must_use]
pub fn format_thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && digit != '-' && (digits.len() - at).is_multiple_of(3) && !text.ends_with('-') {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats nanoseconds with three significant digits and a suitable unit.
#[must_use]
pub fn format_time(ns: f64) -> String {
    let (value, unit) = match ns {
        ns if ns < 1e6 => (ns / 1e3, "µs"),
        ns if ns < 1e9 => (ns / 1e6, "ms"),
        ns if ns < 120e9 => (ns / 1e9, "s"),
        ns => (ns / 60e9, "min"),
    };
    format!("{} {unit}", format_digits(value))
}

/// Formats bytes with three significant digits and a suitable unit.
#[must_use]
pub fn format_bytes(count: f64) -> String {
    let (value, unit) = match count {
        count if count < 1024.0 => return format!("{count:.0} B"),
        count if count < 1024.0 * 1024.0 => (count / 1024.0, "KiB"),
        count if count < 1024.0 * 1024.0 * 1024.0 => (count / 1024.0 / 1024.0, "MiB"),
        count => (count / 1024.0 / 1024.0 / 1024.0, "GiB"),
    };
    format!("{} {unit}", format_digits(value))
}

/// Formats seconds since 1970 as `2026-11-21 09:05 UTC`.
#[must_use]
pub fn format_date(unix_s: u64) -> String {
    let time = i64::try_from(unix_s).ok().and_then(|unix_s| OffsetDateTime::from_unix_timestamp(unix_s).ok());
    // Times beyond the year 9999 cannot be represented.
    let time = time.unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let date = time.date();
    let hour = time.hour();
    let minute = time.minute();
    format!("{date} {hour:02}:{minute:02} UTC")
}

/// Formats a value with three significant digits: `7.46`, `74.6`, `746`.
#[must_use]
pub fn format_digits(value: f64) -> String {
    match value.abs() {
        v if v < 9.995 => format!("{value:.2}"),
        v if v < 99.95 => format!("{value:.1}"),
        _ => format_thousands(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_with_their_unit() {
        for (text, ms) in [("10s", 10_000), ("500ms", 500), ("2", 2_000), ("1.5m", 90_000), ("1h", 3_600_000)]
        {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        assert_eq!(parse_duration("250us"), Ok(Duration::from_micros(250)));
        for text in ["", "s", "10x", "-1s", "1e400s", "99999999999999999999h"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn counts_are_read_with_their_factor() {
        assert_eq!(count("5k"), Ok(5_000.0));
        assert_eq!(count("1.5M/s"), Ok(1_500_000.0));
        assert_eq!(count("10_000"), Ok(10_000.0));
        assert!(count("many").is_err() && count("-1").is_err() && count("").is_err());
    }

    #[test]
    fn dates_handle_leap_years() {
        assert_eq!(format_date(0), "1970-01-01 00:00 UTC");
        assert_eq!(format_date(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(format_date(1_795_252_019), "2026-11-21 09:06 UTC");
    }

    #[test]
    fn numbers_are_formatted_for_reading() {
        let grouped: Vec<String> =
            [0.0, 999.0, 1000.0, -1234.0, 1234567.8, -123.0].map(format_thousands).into();
        assert_eq!(grouped, ["0", "999", "1,000", "-1,234", "1,234,568", "-123"]);
        assert_eq!(
            [12_300.0, 1_499_999.0, 2e9, 7.2e12].map(format_time),
            ["12.3 µs", "1.50 ms", "2.00 s", "120 min"]
        );
        assert_eq!([5.0, 1536.0, 5e6].map(format_bytes), ["5 B", "1.50 KiB", "4.77 MiB"]);
        assert_eq!(format_digits(9.999), "10.0");
    }
}
