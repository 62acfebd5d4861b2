//! A load on the server of known behaviour, and what was measured.

use std::net::Ipv4Addr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use failure::Failure;
use http::Version;

use super::bounds::Bounds;
use super::known_server::{CalibrationServer, Seen};
use crate::child_processes;
use crate::figure::{Figure, Unit};
use crate::outcome::BenchOutcome;
use crate::plan::{ConnectOptions, LoadPlan};
use crate::request::{BenchRequest, RequestSettings};
use crate::session::{self, LoadSubject};
use crate::tally::ErrorKind;
use crate::url::Url;

/// Protocol of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoadProtocol {
    Http1,
    Tls,
    Http2,
    Http3,
}

impl LoadProtocol {
    pub(crate) const ALL: [LoadProtocol; 4] =
        [LoadProtocol::Http1, LoadProtocol::Tls, LoadProtocol::Http2, LoadProtocol::Http3];

    pub(crate) fn title(self) -> &'static str {
        match self {
            LoadProtocol::Http1 => "HTTP/1",
            LoadProtocol::Tls => "TLS",
            LoadProtocol::Http2 => "HTTP/2",
            LoadProtocol::Http3 => "HTTP/3",
        }
    }

    pub(crate) fn is_multiplexed(self) -> bool {
        matches!(self, LoadProtocol::Http2 | LoadProtocol::Http3)
    }

    pub(crate) fn has_tls(self) -> bool {
        matches!(self, LoadProtocol::Tls | LoadProtocol::Http3)
    }
}

/// Use of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Connections {
    /// Each is kept for the next request.
    Kept,
    /// Each request has one of its own, with a full handshake.
    OneEach,
    /// The same over HTTP/1.0, whose responses need not say their length.
    Http10,
}

/// A load on the server of known behaviour, and the figures that are known of it.
pub(crate) struct Case {
    pub(crate) title: &'static str,
    /// Path that names the behaviour.
    pub(crate) path: &'static str,
    pub(crate) connections: Connections,
    /// Channels over which it is measured.
    pub(crate) channels: &'static [LoadProtocol],
    /// Whether nothing else may be measured meanwhile, in the short form too.
    pub(crate) is_alone: bool,
    /// Sets the load; the last argument is whether the form is the short one. The plan has 10 connections, one thread,
    /// and no warm-up.
    pub(crate) load: fn(&mut LoadPlan, LoadProtocol, bool),
    /// Adds the figures.
    pub(crate) figures: fn(&MeasuredCase, &mut Vec<KnownFigure>),
}

/// A figure whose truth is known.
pub(crate) struct KnownFigure {
    pub(crate) name: String,
    pub(crate) unit: Unit,
    pub(crate) bounds: Bounds,
    /// NaN if it was not measured, which is wrong.
    pub(crate) measured: f64,
}

/// A measured case, over one channel.
pub(crate) struct MeasuredCase {
    pub(crate) channel: LoadProtocol,
    pub(crate) plan: LoadPlan,
    pub(crate) outcome: BenchOutcome,
    /// Counts and times of the requests, as the server knows them.
    pub(crate) seen: Seen,
    /// CPU time that the server used meanwhile, by its own clock.
    pub(crate) server_cpu_ns: f64,
    /// Size of one response in cleartext over HTTP/1, if it is known.
    pub(crate) response_bytes: Option<f64>,
}

impl MeasuredCase {
    /// Returns the number of requests of a plan that has one.
    pub(crate) fn requests(&self) -> f64 {
        self.plan.requests_max.unwrap_or(0) as f64
    }

    /// Returns the number of failures of one kind.
    pub(crate) fn failures(&self, kind: ErrorKind) -> f64 {
        self.outcome.measured.tally.errors.count_and_example(kind).0 as f64
    }

    /// Returns the number of responses with this status.
    pub(crate) fn status(&self, code: u16) -> f64 {
        let statuses = self.outcome.measured.tally.statuses();
        statuses.iter().filter(|(other, _)| *other == code).map(|(_, count)| *count as f64).sum()
    }

    /// Returns the number of requests that were answered or failed.
    pub(crate) fn outcomes(&self) -> f64 {
        let tally = &self.outcome.measured.tally;
        (tally.responses + tally.errors.total()) as f64
    }

    /// Returns a figure of the report.
    pub(crate) fn figure(&self, name: &str, bounds: Bounds) -> KnownFigure {
        let figure = Figure::find(name).expect("a figure of the report");
        let measured = figure.value_in(&self.outcome).unwrap_or(f64::NAN);
        KnownFigure { name: figure.title.into(), unit: figure.unit, bounds, measured }
    }
}

/// Returns another value that the report shows.
pub(crate) fn value(name: &str, unit: Unit, measured: f64, bounds: Bounds) -> KnownFigure {
    KnownFigure { name: name.into(), unit, bounds, measured }
}

/// Measures a case over one channel. `number` distinguishes it from all other runs.
pub(crate) fn measure(
    server: &CalibrationServer,
    case: &Case,
    channel: LoadProtocol,
    number: usize,
    is_short: bool,
) -> Result<MeasuredCase, Failure> {
    let target = format!("{}?{number}", case.path);
    let plan = plan(server, case, channel, &target, is_short)?;
    let is_plain = channel == LoadProtocol::Http1 && case.path.starts_with("/size/");
    let response_bytes =
        if is_plain { Some(server.kept_response_bytes(&format!("{}?one", case.path))?) } else { None };
    let before = server.seen(&target)?;
    let outcome = measure_plan(plan.clone(), &target)?;
    let seen = server.seen(&target)?;
    Ok(MeasuredCase {
        channel,
        plan,
        outcome,
        seen,
        server_cpu_ns: seen.cpu_ns - before.cpu_ns,
        response_bytes,
    })
}

/// Measures a plan once.
pub(crate) fn measure_plan(plan: LoadPlan, target: &str) -> Result<BenchOutcome, Failure> {
    let version = plan.version;
    let subject = LoadSubject {
        plan,
        url: target.to_owned(),
        version,
        server_pids: Vec::new(),
        excluded_pids: Vec::new(),
    };
    let stop = child_processes::stop_flag();
    let outcome = session::measure(&subject, stop, &mut ())?;
    match stop.load(Ordering::Relaxed) {
        true => Err(Failure::new("interrupted")),
        false => Ok(outcome),
    }
}

/// Returns the plan of a case over one channel.
pub(crate) fn plan(
    server: &CalibrationServer,
    case: &Case,
    channel: LoadProtocol,
    target: &str,
    is_short: bool,
) -> Result<LoadPlan, Failure> {
    let (scheme, port) =
        if channel.has_tls() { ("https", server.tls_port) } else { ("http", server.clear_port) };
    let settings = RequestSettings {
        version: match channel {
            LoadProtocol::Http2 => Version::Http2,
            LoadProtocol::Http3 => Version::Http3,
            _ if case.connections == Connections::Http10 => Version::Http10,
            _ => Version::Http11,
        },
        keep_alive: case.connections == Connections::Kept,
        ..RequestSettings::default()
    };
    let url = Url::parse(&format!("{scheme}://{}:{port}{target}", Ipv4Addr::LOCALHOST))?;
    let options = ConnectOptions {
        insecure: true,
        no_resumption: case.connections != Connections::Kept,
        ..ConnectOptions::default()
    };
    let mut plan = LoadPlan::new(&[BenchRequest::get(url)], &settings, &options)?;
    (plan.connections, plan.duration, plan.warm_up) = (10, None, Duration::ZERO);
    (case.load)(&mut plan, channel, is_short);
    Ok(plan)
}
