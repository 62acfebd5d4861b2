//! Expectations of a run: `p99 < 20ms`, `errors = 0`, `rate > 5k`.

use failure::Failure;

use crate::figure::{Figure, Unit};
use crate::outcome::BenchOutcome;
use crate::quantity;

/// Condition that a figure of the run must meet.
#[derive(Debug)]
pub struct Expectation {
    text: String,
    figure: &'static Figure,
    relation: Relation,
    value: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relation {
    Below,
    AtMost,
    Equal,
    AtLeast,
    Above,
}

impl Expectation {
    /// Parses `FIGURE < VALUE`; also `<=`, `=`, `>=`, `>`. Times need a unit, memory is in bytes or `MiB`,
    /// shares in `%`.
    ///
    /// # Errors
    /// The message states what is invalid and what is allowed.
    pub fn parse(text: &str) -> Result<Expectation, Failure> {
        let operators = [
            ("<=", Relation::AtMost),
            (">=", Relation::AtLeast),
            ("==", Relation::Equal),
            ("<", Relation::Below),
            (">", Relation::Above),
            ("=", Relation::Equal),
        ];
        let found = operators.iter().find_map(|&(sign, order)| Some((text.split_once(sign)?, order)));
        let Some(((name, value), order)) = found else {
            return Err(Failure::new(format!(
                "{text:?}: an expectation looks like 'p99 < 20ms' or 'errors = 0'"
            )));
        };
        let figure = Figure::find(name.trim()).ok_or_else(|| {
            let names: Vec<&str> = crate::figure::ALL_FIGURES.iter().map(|figure| figure.name).collect();
            format!("{:?} is not a figure; there are {}", name.trim(), names.join(", "))
        })?;
        let value = parse_number(figure.unit, value.trim())?;
        Ok(Expectation { text: text.trim().to_string(), figure, relation: order, value })
    }

    /// Whether the figure is about the contents of responses, which are compared only if the plan says so.
    #[must_use]
    pub fn needs_contents(&self) -> bool {
        self.figure.name == "differ"
    }

    /// Whether the expectation says how many requests may fail.
    #[must_use]
    pub fn is_about_errors(&self) -> bool {
        self.figure.name == "errors"
    }

    /// Checks whether the outcome meets the expectation.
    ///
    /// # Errors
    /// If it does not, the message states the expectation and the measured value.
    pub fn check(&self, outcome: &BenchOutcome) -> Result<(), Failure> {
        let Some(found) = self.figure.value_in(outcome) else {
            return Err(Failure::new(format!("expected {}, but it was not measured", self.text)));
        };
        let met = match self.relation {
            Relation::Below => found < self.value,
            Relation::AtMost => found <= self.value,
            Relation::Equal => found == self.value,
            Relation::AtLeast => found >= self.value,
            Relation::Above => found > self.value,
        };
        if met {
            Ok(())
        } else {
            Err(Failure::new(format!("expected {}, found {}", self.text, self.figure.format_value(found))))
        }
    }
}

fn parse_number(unit: Unit, text: &str) -> Result<f64, Failure> {
    match unit {
        // A number without a unit would mean seconds: if milliseconds were intended, the expectation would
        // never fail.
        Unit::Us if text.ends_with(|c: char| c.is_ascii_digit()) => {
            Err(Failure::new(format!("{text:?} has no unit: write {text}ms")))
        }
        Unit::Us => Ok(quantity::parse_duration(text)?.as_secs_f64() * 1e6),
        Unit::Share => {
            let number = quantity::count(text.trim_end_matches('%'))?;
            if text.ends_with('%') {
                Ok(number / 100.0)
            } else if number > 1.0 {
                Err(Failure::new(format!("{text:?} is more than the whole: write {text}%")))
            } else {
                Ok(number)
            }
        }
        Unit::Bytes | Unit::BytesRate => {
            let text = text.trim_end_matches("/s").trim();
            let units =
                [("KiB", 1024.0), ("MiB", 1024.0 * 1024.0), ("GiB", 1024.0 * 1024.0 * 1024.0), ("B", 1.0)];
            let found = units.iter().find_map(|&(unit, factor)| Some((text.strip_suffix(unit)?, factor)));
            let (number, factor) = found.unwrap_or((text, 1.0));
            Ok(quantity::count(number)? * factor)
        }
        Unit::Rate | Unit::Count => quantity::count(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome() -> BenchOutcome {
        let mut outcome = BenchOutcome::default();
        outcome.measured.seconds = 1.0;
        outcome.measured.responses_in_time = 6_000;
        outcome.measured.tally.responses = 6_000;
        outcome.measured.bytes_in_time = 3 * 1024 * 1024;
        outcome.measured.tally.reused_responses = 5_940;
        outcome.measured.tally.latency.record(15_000_000);
        outcome
    }

    #[test]
    fn expectations_are_compared_with_the_outcome() {
        let outcome = outcome();
        for (text, met) in [
            ("p99 < 20ms", true),
            ("p99<10ms", false),
            ("errors = 0", true),
            ("errors == 1", false),
            ("rate > 5k", true),
            ("rate >= 6000", true),
            ("rate <= 5999", false),
            ("reuse >= 99%", true),
            ("bytes > 2MiB", true),
            ("bytes > 4 MiB/s", false),
        ] {
            assert_eq!(Expectation::parse(text).unwrap().check(&outcome).is_ok(), met, "{text}");
        }
        let missed = Expectation::parse("p99 < 10ms").unwrap().check(&outcome).unwrap_err();
        assert_eq!(missed.to_string(), "expected p99 < 10ms, found 15.0 ms");
        let unknown = Expectation::parse("cpu < 10us").unwrap().check(&outcome).unwrap_err();
        assert!(unknown.to_string().contains("not measured"));
    }

    #[test]
    fn invalid_expectations_are_reported() {
        for (text, what) in [
            ("p99", "looks like"),
            ("p42 < 1ms", "is not a figure"),
            ("p99 < fast", "is not a time"),
            ("rate > x", "is not a number"),
            ("p99 < 20", "20ms"),
            ("noise < 5", "5%"),
        ] {
            assert!(Expectation::parse(text).unwrap_err().to_string().contains(what), "{text}");
        }
    }
}
