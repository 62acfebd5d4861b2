//! Parsers of argument values, with their error messages.

use std::ffi::OsStr;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use clap::builder::{EnumValueParser, PossibleValue, TypedValueParser};
use clap::error::ErrorKind;
use failure::Failure;
use net::Listen;

/// Range of `--timeout`, as in the configuration.
const TIMEOUT_MIN: Duration = Duration::from_millis(10);
const TIMEOUT_MAX: Duration = Duration::from_secs(86_400);

/// Maximum size of a request body in bytes; `None` for no limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyMax(pub(crate) Option<u64>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Interface {
    Wsgi,
    Asgi,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    Off,
    Console,
    Combined,
    Json,
}

pub(super) fn parse_listen(text: &str) -> Result<Listen, Failure> {
    Listen::parse(text).map_err(format_fault)
}

/// Converts the fault of a value; clap prints it after the argument.
fn format_fault(fault: config::InvalidValue) -> Failure {
    match fault.remedy.as_str() {
        "" => Failure::new(fault.message),
        remedy => Failure::new(fault.message).caused_by(remedy),
    }
}

/// Parses an integer within a range; the error message states the range.
pub(super) fn count_parser(range: RangeInclusive<u32>) -> impl Fn(&str) -> Result<u32, Failure> + Clone {
    move |text| match text.parse() {
        Ok(number) if range.contains(&number) => Ok(number),
        _ => Err(Failure::new(format!("write a whole number from {} to {}", range.start(), range.end()))),
    }
}

pub(super) fn parse_process_id(text: &str) -> Result<u32, Failure> {
    text.parse()
        .map_err(|_| Failure::new("write the process id of a server: a number that `komainu status` shows"))
}

pub(super) fn parse_interval(text: &str) -> Result<Duration, Failure> {
    let time = config::parse_duration(text).map_err(format_fault)?;
    let range = Duration::from_millis(250)..=Duration::from_secs(60);
    if range.contains(&time) { Ok(time) } else { Err(Failure::new("write a time from 250ms to 1m")) }
}

pub(super) fn parse_verify_time(text: &str) -> Result<Duration, Failure> {
    let time = config::parse_duration(text).map_err(format_fault)?;
    let range = Duration::from_secs(1)..=Duration::from_secs(3600);
    if range.contains(&time) { Ok(time) } else { Err(Failure::new("write a time from 1s to 1h")) }
}

/// Parses the format of the access log. The format is optional, so a target after `--log` may be taken for
/// it; the error message explains this.
#[derive(Clone)]
pub(super) struct LogFormatParser;

impl TypedValueParser for LogFormatParser {
    type Value = LogFormat;

    fn parse_ref(
        &self,
        command: &clap::Command,
        flag: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<LogFormat, clap::Error> {
        let text = value.to_string_lossy();
        EnumValueParser::new().parse_ref(command, flag, value).map_err(|error| {
            if !text.contains(['/', '.', ':']) && !Path::new(value).exists() {
                return error;
            }
            let message = format!(
                "`{text}` is not a format of the access log (off, console, combined, json); if it is a target, write \
                 `--log=combined {text}`, or put --log last"
            );
            command.clone().error(ErrorKind::InvalidValue, message)
        })
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let formats = [LogFormat::Off, LogFormat::Console, LogFormat::Combined, LogFormat::Json];
        Some(Box::new(formats.into_iter().filter_map(|format| clap::ValueEnum::to_possible_value(&format))))
    }
}

pub(super) fn parse_body_max(text: &str) -> Result<BodyMax, Failure> {
    if text == "unlimited" {
        return Ok(BodyMax(None));
    }
    config::parse_size(text).map_err(format_fault).map(|bytes| BodyMax(Some(bytes)))
}

pub(super) fn parse_memory(text: &str) -> Result<u64, Failure> {
    match config::parse_size(text).map_err(format_fault)? {
        bytes if bytes < config::MIB => Err(Failure::new("too small: a worker needs at least 1MiB")),
        bytes => Ok(bytes),
    }
}

/// Parses a duration; without a unit, in seconds.
pub(super) fn parse_timeout(text: &str) -> Result<Duration, Failure> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let time =
        if digits { config::parse_duration(&format!("{text}s")) } else { config::parse_duration(text) };
    match time.map_err(format_fault)? {
        time if time < TIMEOUT_MIN => {
            Err(Failure::new("too short: write at least 10ms; there is no value for no limit"))
        }
        time if time > TIMEOUT_MAX => Err(Failure::new("too long: at most 1d")),
        time => Ok(time),
    }
}
