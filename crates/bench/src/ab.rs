//! ApacheBench's report, for scripts that parse it.

use crate::outcome::BenchOutcome;
use crate::tally::{ErrorKind, TimeHistogram};

/// Formats the outcome as `ab` prints it. With `any_length`, a response whose length differs from the first
/// one's does not count as failed (`ab -l`).
#[must_use]
pub fn format_report(outcome: &BenchOutcome, any_length: bool) -> String {
    let (measured, tally) = (&outcome.measured, &outcome.measured.tally);
    let (host, port) = split_host_and_port(&outcome.setup.host);
    let seconds = measured.seconds.max(1e-9);
    let complete = measured.responses_in_time as f64;
    let connections = outcome.setup.connections as f64;
    let non_2xx: u64 =
        tally.statuses().iter().filter(|(code, _)| !(200..300).contains(code)).map(|(_, count)| count).sum();
    let connect = tally.errors.count_and_example(ErrorKind::Connect).0
        + tally.errors.count_and_example(ErrorKind::Tls).0;
    let receive = tally.errors.total() - connect;
    let differ = if any_length { 0 } else { tally.different_lengths };
    let failed = tally.errors.total() + differ;
    let mut text = String::new();
    let mut line = |name: &str, value: String| text += &format!("{name:<24}{value}\n");
    line("Server Software:", measured.facts.server.clone());
    line("Server Hostname:", host);
    line("Server Port:", format!("{port}\n"));
    line("Document Path:", outcome.setup.target.clone());
    line("Document Length:", format!("{} bytes\n", measured.facts.content_bytes));
    line("Concurrency Level:", outcome.setup.connections.to_string());
    line("Time taken for tests:", format!("{seconds:.3} seconds"));
    line("Complete requests:", measured.responses_in_time.to_string());
    let kinds = match failed {
        0 => String::new(),
        _ => format!("\n   (Connect: {connect}, Receive: {receive}, Length: {differ}, Exceptions: 0)"),
    };
    line("Failed requests:", format!("{failed}{kinds}"));
    if non_2xx > 0 {
        line("Non-2xx responses:", non_2xx.to_string());
    }
    if tally.reused_responses > 0 {
        line(
            "Keep-Alive requests:",
            (tally.reused_responses + tally.connections.min(tally.responses))
                .min(tally.responses)
                .to_string(),
        );
    }
    line("Total transferred:", format!("{} bytes", tally.bytes_in));
    line("HTML transferred:", format!("{} bytes", tally.content_bytes));
    line("Requests per second:", format!("{:.2} [#/sec] (mean)", complete / seconds));
    let each_ms = seconds * 1e3 / complete.max(1.0);
    line("Time per request:", format!("{:.3} [ms] (mean)", each_ms * connections));
    line("Time per request:", format!("{each_ms:.3} [ms] (mean, across all concurrent requests)"));
    let kib_per_s = measured.bytes_in_time as f64 / 1024.0 / seconds;
    line("Transfer rate:", format!("{kib_per_s:.2} [Kbytes/sec] received"));
    text += "\n";
    text += &format_times(outcome);
    text
}

/// Formats the percentiles as `ab -e` writes them.
#[must_use]
pub fn format_percentiles(outcome: &BenchOutcome) -> String {
    let latency = &outcome.measured.tally.latency;
    let ms = |percent: u8| match percent {
        0 => latency.min() as f64 / 1e6,
        percent => latency.percentile(f64::from(percent)) as f64 / 1e6,
    };
    (0..=100).fold(String::from("Percentage served,Time in ms\n"), |text, percent| {
        text + &format!("{percent},{:.3}\n", ms(percent))
    })
}

fn split_host_and_port(authority: &str) -> (String, String) {
    match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|b| b.is_ascii_digit()) => {
            (host.to_string(), port.to_string())
        }
        _ => (authority.to_string(), "80".to_string()),
    }
}

/// Formats the tables of connection times and percentiles.
fn format_times(outcome: &BenchOutcome) -> String {
    let tally = &outcome.measured.tally;
    let ms = |ns: f64| ns / 1e6;
    let mut text = String::from("Connection Times (ms)\n              min  mean[+/-sd] median   max\n");
    let mut row = |name: &str, times: &TimeHistogram| {
        text += &format!(
            "{name:<11} {:>5.0} {:>4.0} {:>5.1} {:>6.0} {:>7.0}\n",
            ms(times.min() as f64),
            ms(times.mean()),
            ms(times.deviation()),
            ms(times.percentile(50.0) as f64),
            ms(times.max() as f64)
        );
    };
    row("Connect:", &tally.connect);
    row("Processing:", &tally.latency);
    row("Waiting:", &tally.first_byte);
    row("Total:", &tally.latency);
    text += "\nPercentage of the requests served within a certain time (ms)\n";
    for percent in [50.0, 66.0, 75.0, 80.0, 90.0, 95.0, 98.0, 99.0, 100.0] {
        let longest = if percent == 100.0 { " (longest request)" } else { "" };
        text += &format!("{percent:>4.0}% {:>6.0}{longest}\n", ms(tally.latency.percentile(percent) as f64));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_has_the_lines_that_scripts_parse() {
        let mut outcome = BenchOutcome::default();
        outcome.setup.host = "127.0.0.1:8080".into();
        outcome.setup.target = "/x".into();
        outcome.setup.connections = 10;
        outcome.measured.seconds = 2.0;
        outcome.measured.facts.server = "nginx/1".into();
        outcome.measured.facts.content_bytes = 5;
        outcome.measured.responses_in_time = 1_000;
        outcome.measured.bytes_in_time = 204_800;
        let tally = &mut outcome.measured.tally;
        tally.responses = 1_000;
        tally.reused_responses = 990;
        tally.connections = 10;
        tally.different_lengths = 1;
        tally.bytes_in = 204_800;
        (0..1_000).for_each(|_| tally.latency.record(20_000_000));
        (0..1_000).for_each(|_| tally.count_status(200));
        assert!(format_report(&outcome, true).contains("Failed requests:        0\n"));
        let curve = format_percentiles(&outcome);
        assert!(curve.lines().count() == 102 && curve.contains("\n50,20.0"), "{curve}");
        let text = format_report(&outcome, false);
        for line in [
            "Server Software:        nginx/1",
            "Server Hostname:        127.0.0.1",
            "Server Port:            8080",
            "Document Path:          /x",
            "Document Length:        5 bytes",
            "Concurrency Level:      10",
            "Time taken for tests:   2.000 seconds",
            "Complete requests:      1000",
            "Failed requests:        1",
            "(Connect: 0, Receive: 0, Length: 1, Exceptions: 0)",
            "Keep-Alive requests:    1000",
            "Total transferred:      204800 bytes",
            "Requests per second:    500.00 [#/sec] (mean)",
            "Time per request:       20.000 [ms] (mean)",
            "Time per request:       2.000 [ms] (mean, across all concurrent requests)",
            "Transfer rate:          100.00 [Kbytes/sec] received",
            "Total:         20   20   0.0     20      20",
            "  50%     20",
            " 100%     20 (longest request)",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        assert!(!text.contains("Non-2xx"));
    }
}
