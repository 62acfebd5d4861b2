//! Formatting of figures as short texts, and removal of terminal control characters.

/// Placeholder for a missing value.
pub const MISSING: &str = "-";

/// Formats a count or a rate in at most seven characters (below a billion).
#[must_use]
pub fn format_number(value: f64) -> String {
    match value {
        0.0 => "0".into(),
        value if value < 9.95 => format!("{value:.1}"),
        value if value < 99_999.5 => group_digits(value),
        value if value < 999_500.0 => format!("{:.0}k", value / 1e3),
        value if value < 999_500_000.0 => format!("{:.1}M", value / 1e6),
        value => format!("{:.1}G", value / 1e9),
    }
}

/// Formats a count: exactly and with commas below 100,000, else like [`format_number`].
#[must_use]
pub fn format_count(value: u64) -> String {
    if value < 100_000 { group_digits(value as f64) } else { format_number(value as f64) }
}

fn group_digits(value: f64) -> String {
    let digits = format!("{value:.0}");
    match digits.split_at_checked(digits.len().saturating_sub(3)) {
        Some((thousands, rest)) if !thousands.is_empty() => format!("{thousands},{rest}"),
        _ => digits,
    }
}

/// Formats bytes with three significant digits and a suitable unit.
#[must_use]
pub fn format_bytes(value: f64) -> String {
    let mut value = value;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if value < 1023.5 {
            return match unit {
                "B" => format!("{value:.0} B"),
                _ if value < 9.995 => format!("{value:.2} {unit}"),
                _ if value < 99.95 => format!("{value:.1} {unit}"),
                _ => format!("{value:.0} {unit}"),
            };
        }
        value /= 1024.0;
    }
    format!("{value:.1} TiB")
}

/// Formats a duration in milliseconds.
#[must_use]
pub fn format_time(ms: f64) -> String {
    match ms {
        ms if ms < 0.995 => format!("{ms:.2} ms"),
        ms if ms < 99.95 => format!("{ms:.1} ms"),
        ms if ms < 999.5 => format!("{ms:.0} ms"),
        ms => format_age(ms),
    }
}

/// Formats a longer duration in milliseconds.
#[must_use]
pub fn format_age(ms: f64) -> String {
    let s = ms / 1e3;
    match s {
        s if s < 9.95 => format!("{s:.1} s"),
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7_200.0 => format!("{:.0} min", (s / 60.0).floor()),
        s if s < 172_800.0 => format!("{:.0} h", (s / 3_600.0).floor()),
        s => format!("{:.0} d", (s / 86_400.0).floor()),
    }
}

/// Formats a share (0 to 1) as a percentage.
#[must_use]
pub fn format_percent(share: f64) -> String {
    if share < 0.0995 { format!("{:.1} %", share * 100.0) } else { format!("{:.0} %", share * 100.0) }
}

/// Formats milliseconds since 1970 as the time of day (UTC).
#[must_use]
pub fn format_clock(unix_ms: u64) -> String {
    let s = unix_ms / 1_000 % 86_400;
    format!("{:02}:{:02}:{:02}", s / 3_600, s / 60 % 60, s % 60)
}

/// Sanitizes foreign text: control characters, and characters that change the direction or have no width,
/// become `?`.
#[must_use]
pub fn sanitize(text: &str) -> String {
    let steers = |c: char| {
        c.is_control()
            || matches!(c, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}')
    };
    text.chars().map(|c| if steers(c) { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_formatted_briefly() {
        let shown: Vec<String> =
            [0.0, 0.04, 9.94, 12.3, 1234.4, 99_999.0, 123_456.0, 4.56e6, 7.89e9].map(format_number).into();
        assert_eq!(shown, ["0", "0.0", "9.9", "12", "1,234", "99,999", "123k", "4.6M", "7.9G"]);
        let shown: Vec<String> = [0.0, 1023.0, 1536.0, 52_000.0, 5e8, 1e13].map(format_bytes).into();
        assert_eq!(shown, ["0 B", "1023 B", "1.50 KiB", "50.8 KiB", "477 MiB", "9.1 TiB"]);
        let shown: Vec<String> = [0.125, 12.34, 250.0, 1500.0, 90_000.0].map(format_time).into();
        assert_eq!(shown, ["0.12 ms", "12.3 ms", "250 ms", "1.5 s", "90 s"]);
        assert_eq!(
            (format_age(7_300_000.0), format_age(6e9), format_percent(0.031), format_percent(0.5)),
            ("2 h".into(), "69 d".into(), "3.1 %".into(), "50 %".into())
        );
        assert_eq!(
            (format_clock(3_661_000), format_count(12_345), format_count(1_234_567)),
            ("01:01:01".into(), "12,345".into(), "1.2M".into())
        );
    }

    #[test]
    fn control_characters_are_replaced() {
        assert_eq!(sanitize("a\u{1b}[2J\n\u{202e}b\u{9b}é\u{200b}\u{feff}"), "a?[2J??b?é??");
    }
}
