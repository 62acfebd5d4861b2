//! Sizes and durations as users write them: `"16KiB"`, `"1m30s"`.

use crate::checker::InvalidValue;
use std::time::Duration;

/// A kibibyte, in bytes.
pub const KIB: u64 = 1 << 10;
/// A mebibyte, in bytes.
pub const MIB: u64 = 1 << 20;
/// A gibibyte, in bytes.
pub const GIB: u64 = 1 << 30;
/// The most that temporary files may hold.
pub const SPILL_MAX: u64 = 1024 * 1024 * GIB;

const SIZE_UNITS: [(&str, u64); 5] = [("B", 1), ("KiB", KIB), ("MiB", MIB), ("GiB", GIB), ("TiB", GIB << 10)];
const DURATION_UNITS: [(&str, u64); 5] =
    [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// A regular expression for sizes.
pub(crate) const SIZE_PATTERN: &str = "^[0-9]+ ?([KMGT]i)?B$";
/// A regular expression for durations.
pub(crate) const DURATION_PATTERN: &str = "^([0-9]+(ms|s|m|h|d))+$";

/// Bytes from a size such as `"16KiB"`: a whole number and one of B, KiB, MiB, GiB, TiB.
///
/// # Errors
/// What is wrong, and how to write it.
pub fn parse_size(text: &str) -> Result<u64, InvalidValue> {
    let (digits, unit) = split_number(text, "a size", "16KiB")?;
    let unit = unit.strip_prefix(' ').unwrap_or(unit);
    let Some((_, factor)) = SIZE_UNITS.iter().find(|(name, _)| *name == unit) else {
        return Err(InvalidValue::new(
            if unit.is_empty() {
                "the unit is missing".to_owned()
            } else {
                format!("`{}` is not a unit of size", unit.trim())
            },
            match unit.to_ascii_lowercase().as_str() {
                "" => format!("write \"{digits}B\", or use KiB, MiB, GiB or TiB"),
                "k" | "kb" | "kib" => format!("write \"{digits}KiB\": 1KiB is 1024 bytes"),
                "m" | "mb" | "mib" => format!("write \"{digits}MiB\": 1MiB is 1024KiB"),
                "g" | "gb" | "gib" => format!("write \"{digits}GiB\": 1GiB is 1024MiB"),
                _ => "the units are B, KiB, MiB, GiB and TiB".to_owned(),
            },
        ));
    };
    let bytes = digits.parse::<u64>().ok().and_then(|count| count.checked_mul(*factor));
    bytes.ok_or_else(|| InvalidValue::new("too large", "no machine has so many bytes"))
}

/// A duration such as `"75s"` or `"1m30s"`: whole numbers, each with one of ms, s, m, h, d.
///
/// # Errors
/// What is wrong, and how to write it.
pub fn parse_duration(text: &str) -> Result<Duration, InvalidValue> {
    let compact: String = text.split_whitespace().collect();
    if compact != text && parse_duration(&compact).is_ok() {
        return Err(InvalidValue::new("a space in a duration", format!("write \"{compact}\"")));
    }
    if let Some(whole) = fraction_to_milliseconds(text) {
        return Err(InvalidValue::new(
            "a duration has whole numbers",
            format!("write \"{}\"", format_duration(Duration::from_millis(whole))),
        ));
    }
    let mut rest = text;
    let mut millis = 0u64;
    while !rest.is_empty() || text.is_empty() {
        let (digits, tail) = split_number(rest, "a duration", "75s")?;
        let end = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(end);
        let Some((_, factor)) = DURATION_UNITS.iter().find(|(name, _)| *name == unit) else {
            let message = if unit.is_empty() {
                "the unit is missing".to_owned()
            } else {
                format!("`{}` is not a unit of time", unit.trim())
            };
            // Suggest a unit only if nothing else can be meant.
            let near = match unit.trim().to_ascii_lowercase().trim_end_matches('s') {
                _ if rest != text || !tail.is_empty() => None,
                "" if unit.is_empty() => Some("s"),
                "milli" | "millisecond" | "msec" => Some("ms"),
                "ec" | "sec" | "second" => Some("s"),
                "min" | "minute" => Some("m"),
                "hr" | "hour" => Some("h"),
                "day" => Some("d"),
                _ => None,
            };
            let remedy = match near {
                Some(near) => format!("write \"{digits}{near}\"; the units are ms, s, m, h and d"),
                None => "the units are ms, s, m, h and d, with whole numbers and without spaces, such as \"1h30m\"".to_owned(),
            };
            return Err(InvalidValue::new(message, remedy));
        };
        let part = digits.parse::<u64>().ok().and_then(|count| count.checked_mul(*factor));
        millis = part
            .and_then(|part| millis.checked_add(part))
            .ok_or_else(|| InvalidValue::new("too long", "write \"1h\" for an hour, \"30d\" for a month"))?;
        rest = tail;
    }
    Ok(Duration::from_millis(millis))
}

/// The milliseconds of a number with decimals and a unit, such as `1.5s`.
fn fraction_to_milliseconds(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = text.split_at(end);
    let (_, factor) = DURATION_UNITS.iter().find(|(name, _)| *name == unit)?;
    let millis = number.contains('.').then(|| number.parse::<f64>().ok())?? * *factor as f64;
    (millis.fract() == 0.0 && (1.0..1e15).contains(&millis)).then_some(millis as u64)
}

/// Splits leading digits off.
fn split_number<'a>(text: &'a str, what: &str, example: &str) -> Result<(&'a str, &'a str), InvalidValue> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    match end {
        0 => Err(InvalidValue::new(
            format!("this is not {what}"),
            format!("write a whole number and a unit, such as \"{example}\""),
        )),
        _ => Ok(text.split_at(end)),
    }
}

/// A size in the largest unit that divides it.
pub(crate) fn format_size(bytes: u64) -> String {
    let whole = |(_, factor): &&(&str, u64)| bytes >= *factor && bytes.is_multiple_of(*factor);
    let (name, factor) = SIZE_UNITS.iter().rev().find(whole).unwrap_or(&SIZE_UNITS[0]);
    format!("{}{name}", bytes / factor)
}

/// A duration in the largest unit that divides it.
#[must_use]
pub fn format_duration(duration: Duration) -> String {
    let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    if millis == 0 {
        return "0s".to_owned();
    }
    let whole = |(_, factor): &&(&str, u64)| millis >= *factor && millis.is_multiple_of(*factor);
    let (name, factor) = DURATION_UNITS.iter().rev().find(whole).unwrap_or(&DURATION_UNITS[0]);
    format!("{}{name}", millis / factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed() {
        assert_eq!(parse_size("0B"), Ok(0));
        assert_eq!(parse_size("16KiB"), Ok(16 * KIB));
        assert_eq!(parse_size("3 MiB"), Ok(3 * MIB));
        assert_eq!(parse_size("1TiB"), Ok(1024 * GIB));
        for wrong in [
            "",
            "16",
            "KiB",
            "16kb",
            "16 KB",
            "1.5MiB",
            "-1B",
            "99999999999999999999B",
            "20000000TiB",
            "1  B",
            "1é",
        ] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn fractional_and_spaced_durations_have_a_remedy() {
        for (text, remedy) in [
            ("15 s", "\"15s\""),
            ("1m 30s", "\"1m30s\""),
            ("1.5s", "\"1500ms\""),
            ("0.25m", "\"15s\""),
            ("1.5h", "\"90m\""),
        ] {
            let fault = parse_duration(text).unwrap_err();
            assert!(fault.remedy.contains(remedy), "{text}: {fault}");
        }
    }

    #[test]
    fn durations_are_parsed() {
        assert_eq!(parse_duration("75s"), Ok(Duration::from_secs(75)));
        assert_eq!(parse_duration("1m30s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_duration("1d"), Ok(Duration::from_secs(86_400)));
        for wrong in [
            "",
            "75",
            "s",
            "1.5s",
            "-1s",
            "1 s",
            "5sec",
            "99999999999999999999s",
            "999999999999999999d",
            "1sé",
        ] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
        let remedy = |text: &str| parse_duration(text).unwrap_err().remedy;
        for (text, whole) in
            [("75", "75s"), ("5sec", "5s"), ("2 hours", "2h"), ("10min", "10m"), ("3days", "3d")]
        {
            assert!(remedy(text).contains(&format!("write \"{whole}\"")), "{text}");
        }
        for text in ["1w", "10y", "1.5w", "1h 30min", "1m1min", "5min3s"] {
            assert!(!remedy(text).contains("write "), "{text}: a part of it is not what was meant");
        }
    }

    #[test]
    fn printed_sizes_and_durations_are_parsed_back() {
        for bytes in [0, 1, 1023, KIB, 1536, 16 * KIB, MIB, 5 * GIB, u64::MAX] {
            assert_eq!(parse_size(&format_size(bytes)), Ok(bytes));
        }
        for millis in [0, 1, 1500, 60_000, 90_000, 86_400_000] {
            let span = Duration::from_millis(millis);
            assert_eq!(parse_duration(&format_duration(span)), Ok(span));
        }
    }
}
