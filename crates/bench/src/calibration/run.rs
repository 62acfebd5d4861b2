//! Runs the calibration.

use std::io::Write;
use std::path::PathBuf;
use std::thread;

use failure::{Failure, FailureContext};
use serde_json::{Value, json};

use super::cases::CASES;
use super::comparisons::{self, COMPARISONS};
use super::known_server::CalibrationServer;
use super::measured_case::{self, Case, KnownFigure, LoadProtocol, MeasuredCase};
use super::report::CaseReport;

/// Options of the calibration.
#[derive(Clone, Debug)]
pub struct CalibrationOptions {
    /// Program that serves if it is called with [`CalibrationOptions::arguments`]: [`super::known_server::serve`].
    pub program: PathBuf,
    /// Arguments of the program.
    pub arguments: Vec<&'static str>,
    /// Measures for a shorter time, and checks nothing that other load on the machine can change: no rates, and only lower
    /// bounds of times.
    pub is_short: bool,
    /// Whether the results are printed as JSON.
    pub is_json: bool,
}

/// Measures the server of known behaviour and prints the results. Returns true if all figures are right.
///
/// # Errors
/// The server cannot be started or measured.
pub fn run(options: &CalibrationOptions, out: &mut dyn Write) -> Result<bool, Failure> {
    let server = CalibrationServer::start(&options.program, &options.arguments)?;
    let mut reports = Vec::new();
    for (number, case) in CASES.iter().enumerate() {
        let figures = measure_channels(&server, case, number, options.is_short)?;
        add_report(options, case.title, figures, &mut reports, out)?;
    }
    if !options.is_short {
        for known in COMPARISONS {
            let compared = comparisons::compare(&server, known)?;
            let figures = (known.figures)(&compared).into_iter();
            let figures = figures.map(|figure| (LoadProtocol::Http1, figure)).collect();
            add_report(options, known.title, figures, &mut reports, out)?;
        }
    }
    let (checked, wrong) = reports.iter().fold((0, 0), |(checked, wrong), report| {
        let counts = report.counts();
        (checked + counts.0, wrong + counts.1)
    });
    if options.is_json {
        let cases: Vec<Value> = reports.iter().map(CaseReport::json).collect();
        writeln!(out, "{:#}", json!({ "checked": checked, "wrong": wrong, "cases": cases }))
    } else if wrong == 0 {
        writeln!(out, "All {checked} figures are right.")
    } else {
        writeln!(out, "{wrong} of {checked} figures are wrong (!).")
    }
    .context("cannot print")?;
    Ok(wrong == 0)
}

/// Prints the figures of a case, unless all are printed as JSON at the end.
fn add_report(
    options: &CalibrationOptions,
    title: &str,
    figures: Vec<(LoadProtocol, KnownFigure)>,
    reports: &mut Vec<CaseReport>,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let report = CaseReport { title: title.into(), figures, is_busy: options.is_short };
    if !options.is_json {
        writeln!(out, "{}", report.text()).and_then(|()| out.flush()).context("cannot print")?;
    }
    reports.push(report);
    Ok(())
}

/// Measures a case over each of its channels: in turn, or in the short form at once.
fn measure_channels(
    server: &CalibrationServer,
    case: &Case,
    number: usize,
    is_short: bool,
) -> Result<Vec<(LoadProtocol, KnownFigure)>, Failure> {
    let measure = |channel: LoadProtocol| {
        let number = number * LoadProtocol::ALL.len() + channel as usize;
        measured_case::measure(server, case, channel, number, is_short)
    };
    let runs: Vec<Result<MeasuredCase, Failure>> = if is_short && !case.is_alone {
        thread::scope(|scope| {
            let started: Vec<_> =
                case.channels.iter().map(|&channel| scope.spawn(move || measure(channel))).collect();
            started.into_iter().map(|run| run.join().expect("a measurement does not panic")).collect()
        })
    } else {
        case.channels.iter().map(|&channel| measure(channel)).collect()
    };
    let mut figures = Vec::new();
    for run in runs {
        let run = run?;
        let mut of_run = Vec::new();
        (case.figures)(&run, &mut of_run);
        figures.extend(of_run.into_iter().map(|figure| (run.channel, figure)));
    }
    Ok(figures)
}
