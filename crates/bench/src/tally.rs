//! Counters of a run: latencies, statuses, errors.

use hdrhistogram::Histogram;
use net::TlsAgreement;

use crate::handshakes::Handshakes;

/// Longest time that can be recorded; longer ones are recorded as this one.
const TIME_NS_MAX: u64 = 3_600_000_000_000;

/// Histogram of times in nanoseconds from 100 ns to an hour, with three significant digits. Memory is
/// allocated with the first value.
#[derive(Clone, Debug, Default)]
pub struct TimeHistogram(Option<Box<Histogram<u64>>>);

impl TimeHistogram {
    fn histogram(&mut self) -> &mut Histogram<u64> {
        self.0.get_or_insert_with(|| {
            Box::new(Histogram::new_with_bounds(100, TIME_NS_MAX, 3).expect("these bounds are valid"))
        })
    }

    fn filled(&self) -> Option<&Histogram<u64>> {
        self.0.as_deref().filter(|histogram| !histogram.is_empty())
    }

    /// Records a time.
    pub fn record(&mut self, ns: u64) {
        self.histogram().saturating_record(ns.max(1));
    }

    /// Adds all values of `other`.
    pub fn add(&mut self, other: &TimeHistogram) {
        if let Some(other) = other.filled() {
            self.histogram().add(other).expect("both histograms have the same bounds");
        }
    }

    /// Returns the number of recorded times.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.filled().map_or(0, Histogram::len)
    }

    /// Returns the percentile (0 to 100) in nanoseconds; 0 if the histogram is empty.
    #[must_use]
    pub fn percentile(&self, percent: f64) -> u64 {
        // The upper bound of a bucket may be above the greatest recorded value.
        self.filled().map_or(0, |histogram| histogram.value_at_percentile(percent).min(histogram.max()))
    }

    /// Returns the greatest recorded time.
    #[must_use]
    pub fn max(&self) -> u64 {
        self.filled().map_or(0, Histogram::max)
    }

    /// Returns the least recorded time.
    #[must_use]
    pub fn min(&self) -> u64 {
        self.filled().map_or(0, Histogram::min)
    }

    /// Returns the mean.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.filled().map_or(0.0, Histogram::mean)
    }

    /// Returns the standard deviation.
    #[must_use]
    pub fn deviation(&self) -> f64 {
        self.filled().map_or(0.0, Histogram::stdev)
    }

    /// Iterates over the non-empty buckets: upper bound and count.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let steps = self.filled().into_iter().flat_map(Histogram::iter_recorded);
        steps.map(|step| (step.value_iterated_to(), step.count_at_value()))
    }
}

/// Kinds of request failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The connection could not be made.
    Connect,
    /// The TLS handshake failed.
    Tls,
    /// The response was not complete before the timeout.
    Timeout,
    /// The server closed the connection before the response was complete.
    Closed,
    /// The response was not HTTP.
    Malformed,
    /// Not answered when the run ended, although the last requests are waited for.
    Unanswered,
    /// Open loop: due, but no connection was free for it before the run ended.
    Unsent,
}

impl ErrorKind {
    /// All kinds.
    pub const ALL: [ErrorKind; 7] = [
        ErrorKind::Connect,
        ErrorKind::Tls,
        ErrorKind::Timeout,
        ErrorKind::Closed,
        ErrorKind::Malformed,
        ErrorKind::Unanswered,
        ErrorKind::Unsent,
    ];

    /// Returns the name of the kind: one word, for text and for machine-readable output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ErrorKind::Connect => "connect",
            ErrorKind::Tls => "tls",
            ErrorKind::Timeout => "timeout",
            ErrorKind::Closed => "closed",
            ErrorKind::Malformed => "malformed",
            ErrorKind::Unanswered => "unanswered",
            ErrorKind::Unsent => "unsent",
        }
    }
}

/// Errors counted by kind. Connection and TLS errors are also counted by cause, other kinds keep one example.
#[derive(Clone, Debug, Default)]
pub struct ErrorCounts([Vec<(String, u64)>; ErrorKind::ALL.len()]);

/// Maximum number of causes that are counted separately; further causes count with the last one.
const fn causes_max(kind: ErrorKind) -> usize {
    match kind {
        ErrorKind::Connect | ErrorKind::Tls => 4,
        _ => 1,
    }
}

impl ErrorCounts {
    /// Adds `count` errors of one kind.
    pub fn add(&mut self, kind: ErrorKind, count: u64, example: &str) {
        let causes = &mut self.0[kind as usize];
        match causes.iter().position(|(cause, _)| cause == example) {
            _ if count == 0 => {}
            Some(known) => causes[known].1 += count,
            None if causes.len() < causes_max(kind) => causes.push((example.to_string(), count)),
            None => causes[causes_max(kind) - 1].1 += count,
        }
    }

    /// Returns the total number of errors.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.causes().map(|(_, count, _)| count).sum()
    }

    /// Returns the number of errors of one kind, and an example.
    #[must_use]
    pub fn count_and_example(&self, kind: ErrorKind) -> (u64, &str) {
        let causes = &self.0[kind as usize];
        let example = causes.first().map_or("", |(cause, _)| cause);
        (causes.iter().map(|(_, count)| count).sum(), example)
    }

    /// Iterates over the kinds that occurred.
    pub fn iter(&self) -> impl Iterator<Item = (ErrorKind, u64, &str)> {
        ErrorKind::ALL
            .into_iter()
            .map(|kind| (kind, self.count_and_example(kind)))
            .filter(|(_, (count, _))| *count > 0)
            .map(|(kind, (count, example))| (kind, count, example))
    }

    /// Iterates over the causes that occurred, several per kind.
    pub fn causes(&self) -> impl Iterator<Item = (ErrorKind, u64, &str)> {
        let causes = |kind: ErrorKind| {
            self.0[kind as usize].iter().map(move |(cause, count)| (kind, *count, cause.as_str()))
        };
        ErrorKind::ALL.into_iter().flat_map(causes)
    }

    fn merge(&mut self, other: &ErrorCounts) {
        for (kind, count, example) in other.causes() {
            self.add(kind, count, example);
        }
    }
}

/// Figures of the client for a part of a run.
#[derive(Clone, Debug, Default)]
pub struct LoadTally {
    /// Time from the request (open loop: from its scheduled time) to the end of its response; a request that
    /// timed out, or was not answered at the end, counts with the time it had waited.
    pub latency: TimeHistogram,
    /// Time from sending to the first byte of the response.
    pub first_byte: TimeHistogram,
    /// Time to make a connection, without TLS.
    pub connect: TimeHistogram,
    /// Duration of all TLS handshakes.
    pub tls: TimeHistogram,
    /// Duration of full TLS handshakes.
    pub tls_full: TimeHistogram,
    /// Duration of resumed TLS handshakes.
    pub tls_resumed: TimeHistogram,
    /// TLS handshakes by negotiated parameters.
    pub handshakes: Handshakes,
    /// Open loop: delay between the scheduled time of a request and its start by the generator.
    pub lateness: TimeHistogram,
    /// Responses with any status.
    pub responses: u64,
    /// Bytes received, including heads.
    pub bytes_in: u64,
    /// Bytes of content received.
    pub content_bytes: u64,
    /// Bytes sent.
    pub bytes_out: u64,
    /// Connections made.
    pub connections: u64,
    /// Responses on a connection that had already carried a response.
    pub reused_responses: u64,
    /// Responses whose length differs from that of the first response to the same request.
    pub different_lengths: u64,
    /// Responses whose content differs from that of the first one; counted only if the plan verifies
    /// contents.
    pub different_contents: u64,
    /// Requests that failed.
    pub errors: ErrorCounts,
    statuses: Vec<(u16, u64)>,
}

impl LoadTally {
    /// Counts a status.
    pub fn count_status(&mut self, code: u16) {
        match self.statuses.iter_mut().find(|(other, _)| *other == code) {
            Some((_, count)) => *count += 1,
            None => self.statuses.push((code, 1)),
        }
    }

    /// Adds only the connection figures of `other`.
    pub fn add_connections(&mut self, other: &LoadTally) {
        for (into, from) in [
            (&mut self.connect, &other.connect),
            (&mut self.tls, &other.tls),
            (&mut self.tls_full, &other.tls_full),
            (&mut self.tls_resumed, &other.tls_resumed),
        ] {
            into.add(from);
        }
        self.handshakes.add(&other.handshakes);
        self.connections += other.connections;
    }

    /// Counts a TLS handshake.
    pub fn count_handshake(&mut self, agreed: TlsAgreement, ns: u64) {
        self.tls.record(ns);
        if agreed.is_resumed { &mut self.tls_resumed } else { &mut self.tls_full }.record(ns);
        self.handshakes.count(agreed, 1);
    }

    /// Returns the distributions of the phases of connections and requests with display names; full and
    /// resumed handshakes are listed separately only if both occurred.
    #[must_use]
    pub fn phase_times(&self) -> Vec<(&'static str, &TimeHistogram)> {
        let both = self.tls_full.count() > 0 && self.tls_resumed.count() > 0;
        let mut parts = vec![
            ("Latency", &self.latency),
            ("First byte", &self.first_byte),
            ("Connect", &self.connect),
            ("TLS", &self.tls),
        ];
        if both {
            parts.extend([("TLS, full", &self.tls_full), ("TLS, resumed", &self.tls_resumed)]);
        }
        parts.retain(|(_, times)| times.count() > 0);
        parts
    }

    /// Returns the status codes and their counts, by ascending code.
    #[must_use]
    pub fn statuses(&self) -> Vec<(u16, u64)> {
        let mut statuses = self.statuses.clone();
        statuses.sort_unstable();
        statuses
    }

    /// Returns the number of responses with a status of 400 or above.
    #[must_use]
    pub fn error_statuses(&self) -> u64 {
        self.statuses.iter().filter(|(code, _)| *code >= 400).map(|(_, count)| count).sum()
    }

    /// Adds all figures of `other`.
    pub fn add(&mut self, other: &LoadTally) {
        for (into, from) in [
            (&mut self.latency, &other.latency),
            (&mut self.first_byte, &other.first_byte),
            (&mut self.lateness, &other.lateness),
        ] {
            into.add(from);
        }
        self.add_connections(other);
        self.responses += other.responses;
        self.bytes_in += other.bytes_in;
        self.content_bytes += other.content_bytes;
        self.bytes_out += other.bytes_out;
        self.reused_responses += other.reused_responses;
        self.different_lengths += other.different_lengths;
        self.different_contents += other.different_contents;
        self.errors.merge(&other.errors);
        for &(code, count) in &other.statuses {
            match self.statuses.iter_mut().find(|(known, _)| *known == code) {
                Some((_, sum)) => *sum += count,
                None => self.statuses.push((code, count)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_have_three_digits_and_never_exceed_the_maximum() {
        let mut times = TimeHistogram::default();
        assert_eq!((times.percentile(50.0), times.min(), times.max()), (0, 0, 0));
        (1..=10_000).for_each(|at| times.record(at * 1_000));
        for (percent, ns) in [(50.0, 5_000_000.0), (99.0, 9_900_000.0), (99.99, 9_999_000.0)] {
            let off = times.percentile(percent) as f64 / ns - 1.0;
            assert!(off.abs() < 0.001, "p{percent}: {off}");
        }
        assert_eq!(times.percentile(100.0), times.max());
        times.record(u64::MAX);
        assert!(times.percentile(100.0) >= TIME_NS_MAX);
    }

    #[test]
    fn tallies_are_merged() {
        let mut a = LoadTally::default();
        let mut b = LoadTally::default();
        for (to_a, code, ns) in [(true, 200, 5), (false, 404, 7), (false, 200, 9)] {
            let tally = if to_a { &mut a } else { &mut b };
            tally.count_status(code);
            tally.responses += 1;
            tally.latency.record(ns * 1_000_000);
        }
        b.errors.add(ErrorKind::Timeout, 2, "after 10 s");
        b.errors.add(ErrorKind::Connect, 0, "never");
        a.add(&b);
        assert_eq!((a.responses, a.latency.count(), a.error_statuses()), (3, 3, 1));
        assert_eq!(a.statuses(), [(200, 2), (404, 1)]);
        assert_eq!(a.errors.iter().collect::<Vec<_>>(), [(ErrorKind::Timeout, 2, "after 10 s")]);
        assert_eq!(a.errors.total(), 2);
    }

    #[test]
    fn error_kinds_are_listed_in_numeric_order() {
        assert!(ErrorKind::ALL.iter().enumerate().all(|(at, kind)| *kind as usize == at));
    }
}
