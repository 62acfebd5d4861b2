//! Rates of requests.

use std::fmt;
use std::time::Duration;

use settings::checker::InvalidValue;
use settings::shape::Text;
use settings::units;

/// Maximum number of requests of a rate.
pub const COUNT_MAX: u32 = 1_000_000;
const DAY: Duration = Duration::from_secs(86_400);

/// Requests in a time, such as `10/s`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rate {
    /// Requests.
    pub count: u32,
    /// In this time.
    pub period: Duration,
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let period = units::format_duration(self.period);
        let digits = period.bytes().take_while(u8::is_ascii_digit).count();
        let period = if &period[..digits] == "1" { &period[1..] } else { &period };
        write!(f, "{}/{period}", self.count)
    }
}

/// A rate.
pub const RATE: Text<Rate> = Text { what: "a rate such as \"10/s\" or \"300/5m\"", parse: parse_rate };

fn parse_rate(text: &str) -> Result<Rate, InvalidValue> {
    const HOW: &str = "write requests and a time, such as \"10/s\", \"300/5m\" or \"1000/h\"";
    let Some((count, period)) = text.split_once('/') else {
        return Err(InvalidValue::new("this is not a rate", HOW));
    };
    let is_number = !count.is_empty() && count.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number {
        return Err(InvalidValue::new("this is not a number of requests", HOW).within(0..count.len()));
    }
    let count = count.parse().ok().filter(|count| (1..=COUNT_MAX).contains(count)).ok_or_else(|| {
        let fault = InvalidValue::new("too many or too few requests", "write a number from 1 to 1000000");
        fault.within(0..count.len())
    })?;
    let at = text.len() - period.len()..text.len();
    let wrong = |fault: InvalidValue| fault.within(at.clone());
    let with_number = if period.starts_with(|first: char| first.is_ascii_digit()) {
        period.to_owned()
    } else {
        // nginx's `r/s` and `r/m` have the unit alone too.
        format!("1{period}")
    };
    let period = units::parse_duration(&with_number).map_err(|_| {
        wrong(InvalidValue::new(
            "this is not a time",
            "write s, m, h, d or ms, such as \"10/s\" or \"300/5m\"",
        ))
    })?;
    if (Duration::from_millis(1)..=DAY).contains(&period) {
        Ok(Rate { count, period })
    } else {
        Err(wrong(InvalidValue::new("too short or too long", "write a time from \"1ms\" to \"1d\"")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_parsed_and_printed() {
        for (text, count, ms, printed) in [
            ("10/s", 10, 1_000, "10/s"),
            ("5/m", 5, 60_000, "5/m"),
            ("1000/h", 1_000, 3_600_000, "1000/h"),
            ("1/d", 1, 86_400_000, "1/d"),
            ("300/5m", 300, 300_000, "300/5m"),
            ("20/10s", 20, 10_000, "20/10s"),
            ("1000000/1ms", 1_000_000, 1, "1000000/ms"),
            ("7/1m30s", 7, 90_000, "7/90s"),
        ] {
            let rate = parse_rate(text).unwrap();
            assert_eq!((rate.count, rate.period), (count, Duration::from_millis(ms)), "{text}");
            assert_eq!(rate.to_string(), printed);
        }
        for wrong in [
            "",
            "10",
            "/",
            "10/",
            "/s",
            "0/s",
            "1000001/s",
            "-1/s",
            "+1/s",
            "1.5/s",
            "10/x",
            "10/2d",
            "10/0s",
            "10/s/s",
            "10r/s",
            "99999999999/s",
        ] {
            assert!(parse_rate(wrong).is_err(), "{wrong}");
        }
    }
}
