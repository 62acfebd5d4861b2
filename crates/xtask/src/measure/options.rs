//! Options of the benchmark commands.

use std::path::PathBuf;

use crate::measure::Fallible;

/// Options of `cargo xtask bench`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MeasureOptions {
    /// Number of rounds or comparisons instead of the default. At least 1.
    pub(crate) rounds: Option<usize>,
    /// Duration of one run in seconds. At least 1.
    pub(crate) seconds: u64,
    /// Names of the rows or checks to run; empty for all.
    pub(crate) rows: Vec<String>,
    /// Path of our program.
    pub(crate) binary: PathBuf,
    /// Folder for the results.
    pub(crate) out: PathBuf,
}

impl Default for MeasureOptions {
    fn default() -> MeasureOptions {
        MeasureOptions {
            rounds: None,
            seconds: 1,
            rows: Vec::new(),
            binary: PathBuf::from(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
                .join("release/komainu"),
            out: PathBuf::from("bench-results"),
        }
    }
}

impl MeasureOptions {
    /// Parses `--name value` pairs.
    pub(crate) fn parse(words: &[&str]) -> Fallible<MeasureOptions> {
        let mut options = MeasureOptions::default();
        let mut words = words.iter();
        while let Some(&name) = words.next() {
            let &value = words.next().ok_or_else(|| format!("{name} needs a value"))?;
            match name {
                "--rounds" => options.rounds = Some(parse_number(name, value)?),
                "--seconds" => options.seconds = parse_number(name, value)? as u64,
                "--rows" => options.rows = parse_list(value),
                "--binary" => options.binary = PathBuf::from(value),
                "--out" => options.out = PathBuf::from(value),
                _ => return Err(format!("unknown option {name}; `cargo xtask help` lists them").into()),
            }
        }
        Ok(options)
    }

    /// Returns the number of rounds, or `default_rounds` if none was given.
    pub(crate) fn rounds_or(&self, default_rounds: usize) -> usize {
        self.rounds.unwrap_or(default_rounds)
    }

    /// Whether `name` is among `chosen`, or `chosen` is empty.
    pub(crate) fn is_chosen(chosen: &[String], name: &str) -> bool {
        chosen.is_empty() || chosen.iter().any(|one| one == name)
    }
}

fn parse_number(name: &str, value: &str) -> Fallible<usize> {
    match value.parse() {
        Ok(0) | Err(_) => Err(format!("{name} takes a number from 1, not `{value}`").into()),
        Ok(number) => Ok(number),
    }
}

fn parse_list(value: &str) -> Vec<String> {
    value.split(',').map(str::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_parsed_and_others_keep_their_default() {
        let options = MeasureOptions::parse(&["--rounds", "7", "--rows", "10,100"]).expect("valid");
        assert_eq!((options.rounds, options.seconds), (Some(7), 1));
        assert!(
            MeasureOptions::is_chosen(&options.rows, "100")
                && !MeasureOptions::is_chosen(&options.rows, "1000")
        );
        assert!(MeasureOptions::is_chosen(&[], "equals"));
    }

    #[test]
    fn invalid_option_is_named_in_the_error() {
        for (words, what) in [
            (&["--rounds", "0"][..], "--rounds"),
            (&["--seconds"], "needs a value"),
            (&["--roundz", "3"], "--roundz"),
        ] {
            let error = MeasureOptions::parse(words).expect_err("a mistake").to_string();
            assert!(error.contains(what), "{error}");
        }
    }
}
