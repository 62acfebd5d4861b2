//! An outcome as one self-contained HTML page with light, dark and print styles.

use crate::advice;
use crate::chart::{self, Axis, Scale, Series, escape, short_bytes, short_number, short_time};
use crate::comparison::Comparison;
use crate::figure::Figure;
use crate::load::TimePoint;
use crate::outcome::BenchOutcome;
use crate::procfs;
use crate::quantity::{self, format_thousands};
use crate::table::TextTable;
use crate::tally::TimeHistogram;
use crate::text;

/// Logo: the gate of a shrine.
const LOGO: &str = "<svg class=\"mark\" viewBox=\"0 0 32 32\" aria-hidden=\"true\">\
    <path d=\"M2 5q14 3 28 0v4q-14 3-28 0zM5 13h22v3H5zM8 9h4v20H8zM20 9h4v20h-4z\"/></svg>";
const STYLE: &str = include_str!("page.css");
/// Maximum number of points in a chart; above this, neighbours are merged.
const POINTS_MAX: usize = 240;

/// Builds a complete page around `body`.
#[must_use]
pub fn page(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{}</title>\n\
         <style>\n{STYLE}</style>\n{body}\n</html>\n",
        escape(title)
    )
}

/// Builds the page of one run.
#[must_use]
pub fn report_page(outcome: &BenchOutcome) -> String {
    page(
        &format!("Load test of {}", outcome.setup.url_summary),
        &(heading(outcome) + &run_section(outcome) + &footer(outcome)),
    )
}

/// Builds the page of a comparison of two subjects, pair by pair.
#[must_use]
pub fn comparison_page(compared: &Comparison, pairs: &[(BenchOutcome, BenchOutcome)]) -> String {
    let title = format!("{} against {}", compared.names[0], compared.names[1]);
    let [a, b] = compared.names.each_ref().map(|name| escape(name));
    let mut body = page_header("Comparison", &format!("<b>A</b> {a}<br><b>B</b> {b}"))
        + &format!("<p class=\"how\">{}</p>\n{}", escape(&compared.basis), table(&compared.table()));
    if let Some((a, _)) = pairs.last() {
        body += &format!(
            "<p class=\"how\">Each run: {}</p>\n<h2>Run by run</h2>\n<div class=\"charts\">\n",
            escape(&a.setup.load_description)
        );
        body += &pair_charts(pairs);
        let mut of_a = TimeHistogram::default();
        let mut of_b = TimeHistogram::default();
        for (a, b) in pairs {
            of_a.add(&a.measured.tally.latency);
            of_b.add(&b.measured.tally.latency);
        }
        body += "</div>\n<h2>Latency of all runs</h2>\n<div class=\"charts\">\n";
        body += &latency_charts(&[("A", &of_a), ("B", &of_b)]);
        body += "</div>\n";
        body += &footer(a);
    }
    page(&title, &body)
}

/// Charts the most important figures of both sides over the pairs.
fn pair_charts(pairs: &[(BenchOutcome, BenchOutcome)]) -> String {
    let mut charts = String::new();
    let number = Axis { scale: Scale::Linear, label: short_number };
    for (name, title, axis) in [
        ("cpu", "Server CPU per request", &LATENCY_EVEN),
        ("rate", "Throughput, requests/s", &RATE),
        ("p50", "Median latency (p50)", &LATENCY_EVEN),
        ("p99", "99th percentile (p99)", &LATENCY_EVEN),
    ] {
        let figure = Figure::find(name).expect("a figure's name");
        let side = |name: &str, of: fn(&(BenchOutcome, BenchOutcome)) -> &BenchOutcome| Series {
            name: name.to_string(),
            points: (1..)
                .zip(pairs)
                .filter_map(|(at, pair)| Some((f64::from(at), figure.value_in(of(pair))?)))
                .collect(),
        };
        charts +=
            &chart::line_chart(title, &[side("A", |pair| &pair.0), side("B", |pair| &pair.1)], &number, axis);
    }
    charts
}

fn heading(outcome: &BenchOutcome) -> String {
    page_header("Load test", &escape(&outcome.setup.url_summary))
        + &format!("<p class=\"how\">{}</p>\n", escape(&outcome.setup.load_description))
}

/// Builds the page header: the title, and below it what was measured (HTML).
pub(crate) fn page_header(title: &str, measured: &str) -> String {
    format!(
        "<header>{LOGO}<div><h1>{}</h1>\n<p class=\"address\">{measured}</p></div></header>\n",
        escape(title)
    )
}

fn run_section(outcome: &BenchOutcome) -> String {
    let mut body = String::from("<div class=\"tiles\">\n");
    for (name, title) in [
        ("rate", "requests/s"),
        ("p50", "median latency (p50)"),
        ("p99", "99th percentile (p99)"),
        ("errors", "errors"),
        ("cpu", "server CPU per request"),
        ("per-cpu", "requests/s per 1 % CPU"),
        ("pss", "server memory (PSS)"),
    ] {
        let figure = Figure::find(name).expect("a figure's name");
        if let Some(value) = figure.value_in(outcome) {
            body += &format!(
                "<div class=\"tile\"><b>{}</b><span>{title}</span></div>\n",
                escape(&figure.format_value(value))
            );
        }
    }
    body += "</div>\n";
    for warning in advice::warnings(outcome) {
        body += &format!("<p class=\"warn\">{}</p>\n", escape(&warning));
    }
    body += &format!(
        "<p class=\"note\">{}</p>\n<h2>Over time</h2>\n<div class=\"charts\">\n",
        escape(&advice::describe_scope(outcome))
    );
    body += &time_charts(outcome);
    body += "</div>\n<h2>Latency</h2>\n<div class=\"charts\">\n";
    body += &latency_charts(&[("latency", &outcome.measured.tally.latency)]);
    body += "</div>\n";
    body += &table(&latency_table(outcome));
    body += "<h2>Responses</h2>\n";
    body += &table(&response_table(outcome));
    if let Some(spent) = &outcome.server {
        let mut memory = TextTable::new(&[
            "Memory",
            "RSS before",
            "after",
            "PSS before",
            "after",
            "private dirty before",
            "after",
        ]);
        text::memory_rows(spent).into_iter().for_each(|row| memory.add_row(row.to_vec()));
        body += "<h2>The server's processes</h2>\n";
        body += &table(&memory);
    }
    body
}

const SECONDS: Axis = Axis { scale: Scale::Linear, label: |s| format!("{} s", short_number(s)) };
const RATE: Axis = Axis { scale: Scale::Linear, label: short_number };
const LATENCY_EVEN: Axis = Axis { scale: Scale::Linear, label: short_time };
const LATENCY: Axis = Axis { scale: Scale::Log, label: short_time };

fn time_charts(outcome: &BenchOutcome) -> String {
    let points = merge_points(&outcome.measured.points);
    let of = |value: fn(&TimePoint) -> f64| -> Vec<(f64, f64)> {
        points.iter().map(|p| (p.to_s, value(p))).collect()
    };
    // A point without responses has no latency.
    let answered = |ns: fn(&TimePoint) -> u64| -> Vec<(f64, f64)> {
        points.iter().filter(|p| p.max_ns > 0).map(|p| (p.to_s, ns(p) as f64 / 1e3)).collect()
    };
    let series = |name: &str, points| Series { name: name.to_string(), points };
    let mut rate = vec![series("requests/s", of(TimePoint::rate))];
    if points.iter().any(|point| point.errors > 0) {
        rate.push(series("errors/s", of(|p| p.errors as f64 / (p.to_s - p.from_s).max(1e-9))));
    }
    let latency = [
        series("p50", answered(|p| p.p50_ns)),
        series("p99", answered(|p| p.p99_ns)),
        series("max", answered(|p| p.max_ns)),
    ];
    let mut charts = chart::line_chart("Throughput", &rate, &SECONDS, &RATE);
    charts += &chart::line_chart("Latency", &latency, &SECONDS, &LATENCY);
    if let Some(spent) = &outcome.server {
        let of = |value: fn(&crate::server_usage::ServerSample) -> f64| {
            spent.series.iter().map(|s| (s.at_s, value(s))).collect()
        };
        let cpu = [series("cores", of(|s| s.cores))];
        let memory = [series("RSS", of(|s| s.rss as f64))];
        charts += &chart::line_chart("Server CPU", &cpu, &SECONDS, &RATE);
        let bytes = Axis { scale: Scale::Binary, label: short_bytes };
        charts += &chart::line_chart("Server memory", &memory, &SECONDS, &bytes);
    }
    charts
}

/// Merges neighbouring points if there are more than a chart can show.
fn merge_points(points: &[TimePoint]) -> Vec<TimePoint> {
    let each = points.len().div_ceil(POINTS_MAX).max(1);
    let one = |part: &[TimePoint]| {
        let worst = |of: fn(&TimePoint) -> u64| part.iter().map(of).max().unwrap_or(0);
        TimePoint {
            from_s: part.first().map_or(0.0, |first| first.from_s),
            to_s: part.last().map_or(0.0, |last| last.to_s),
            responses: part.iter().map(|p| p.responses).sum(),
            bytes_in: part.iter().map(|p| p.bytes_in).sum(),
            errors: part.iter().map(|p| p.errors).sum(),
            p50_ns: worst(|p| p.p50_ns),
            p99_ns: worst(|p| p.p99_ns),
            max_ns: worst(|p| p.max_ns),
        }
    };
    points.chunks(each).map(one).collect()
}

/// Charts the latency by percentile, and the frequency of each latency.
fn latency_charts(sides: &[(&str, &TimeHistogram)]) -> String {
    let mut steps = Vec::new();
    let mut often = Vec::new();
    for (name, latency) in sides {
        let series = |points| Series { name: (*name).to_string(), points };
        steps.push(series(percentile_points(latency)));
        often.push(series(frequency_points(latency)));
    }
    let percent = Axis { scale: Scale::Linear, label: |p| format!("{} %", short_number(p)) };
    let nines = Axis { scale: Scale::Nines, label: |p| format!("p{}", short_number(p)) };
    chart::line_chart("Latency by percentile", &steps, &nines, &LATENCY)
        + &chart::line_chart("Latency distribution, share of requests", &often, &LATENCY, &percent)
}

fn percentile_points(latency: &TimeHistogram) -> Vec<(f64, f64)> {
    let total = latency.count().max(1) as f64;
    let mut below = 0u64;
    let step = |(ns, count): (u64, u64)| {
        below += count;
        // The last bucket is placed half a request below 100 %, which this axis cannot show.
        (((below as f64 / total).min(1.0 - 0.5 / total) * 100.0), ns as f64 / 1e3)
    };
    latency.buckets().map(step).collect()
}

fn frequency_points(latency: &TimeHistogram) -> Vec<(f64, f64)> {
    // Buckets of a tenth of an octave hide the resolution of the histogram.
    const PER_OCTAVE: f64 = 10.0;
    let total = latency.count().max(1) as f64;
    let mut often: Vec<(i64, u64)> = Vec::new();
    for (ns, count) in latency.buckets() {
        let bucket = ((ns as f64 / 1e3).log2() * PER_OCTAVE).round() as i64;
        match often.last_mut() {
            Some((last, sum)) if *last == bucket => *sum += count,
            // Buckets between two non-adjacent ones are empty.
            last => {
                let last = last.map_or(bucket - 2, |(last, _)| *last);
                if last + 1 < bucket {
                    often.extend([(last + 1, 0), (bucket - 1, 0)]);
                }
                often.push((bucket, count));
            }
        }
    }
    often.extend(often.last().map(|(last, _)| (last + 1, 0)));
    let point =
        |(bucket, count): (i64, u64)| ((bucket as f64 / PER_OCTAVE).exp2(), count as f64 / total * 100.0);
    often.into_iter().map(point).collect()
}

fn latency_table(outcome: &BenchOutcome) -> TextTable {
    let mut table =
        TextTable::new(&["", "count", "p50", "p90", "p95", "p99", "p99.9", "p99.99", "max", "mean"]);
    for (name, times) in outcome.measured.tally.phase_times() {
        let mut cells = vec![name.to_string(), format_thousands(times.count() as f64)];
        let percentiles = [50.0, 90.0, 95.0, 99.0, 99.9, 99.99, 100.0];
        cells.extend(percentiles.map(|percent| quantity::format_time(times.percentile(percent) as f64)));
        cells.push(quantity::format_time(times.mean()));
        table.add_row(cells);
    }
    table
}

fn response_table(outcome: &BenchOutcome) -> TextTable {
    let tally = &outcome.measured.tally;
    let mut table = TextTable::new(&["", "count"]);
    let mut row = |name: String, count: u64| table.add_row(vec![name, format_thousands(count as f64)]);
    tally.statuses().iter().for_each(|(code, count)| row(format!("Status {code}"), *count));
    tally
        .errors
        .iter()
        .for_each(|(kind, count, example)| row(format!("Failed, {}: {example}", kind.name()), count));
    row("Connections opened".into(), tally.connections);
    row("Requests on a reused connection".into(), tally.reused_responses);
    for (names, count) in tally.handshakes.kind_counts() {
        row(format!("TLS handshakes: {}", names.join(" ")), count);
    }
    if tally.handshakes.total() > 0 {
        row("TLS handshakes that resumed a session".into(), tally.handshakes.resumed());
    }
    table
}

/// Formats a table as HTML.
#[must_use]
pub fn table(table: &TextTable) -> String {
    if table.is_empty() {
        return String::new();
    }
    let row = |cells: &[String], tag: &str| {
        let cells: String = cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(cell))).collect();
        format!("<tr>{cells}</tr>\n")
    };
    let (head, rows) = table.head_and_rows();
    let body: String = rows.iter().map(|cells| row(cells, "td")).collect();
    // Wider tables fit on a page only in a small font.
    const NARROW_COLUMNS_MAX: usize = 10;
    let class = if head.len() > NARROW_COLUMNS_MAX { " class=\"wide\"" } else { "" };
    format!("<div class=\"scroll\" tabindex=\"0\"><table{class}>\n{}{body}</table></div>\n", row(head, "th"))
}

fn footer(outcome: &BenchOutcome) -> String {
    let server = match outcome.measured.facts.server.as_str() {
        "" => "did not say its name".to_string(),
        name => format!("called itself {name}"),
    };
    format!(
        "<footer>{}. The server {}. Measured by komainu {}, {}.</footer>\n",
        escape(&procfs::describe_machine()),
        escape(&server),
        env!("CARGO_PKG_VERSION"),
        quantity::format_date(outcome.unix_s)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comparison;
    use crate::tally::ErrorKind;

    fn outcome() -> BenchOutcome {
        let mut outcome = BenchOutcome::default();
        outcome.setup.url_summary = "http://h/?<script>".into();
        outcome.measured.seconds = 2.0;
        outcome.measured.responses_in_time = 1_000;
        let tally = &mut outcome.measured.tally;
        (1..=1_000).for_each(|at| tally.latency.record(at * 1_000));
        tally.errors.add(ErrorKind::Closed, 2, "<gone>");
        let point = |at: u32| TimePoint {
            from_s: f64::from(at),
            to_s: f64::from(at) + 1.0,
            responses: 500,
            p50_ns: 500_000,
            p99_ns: 900_000,
            max_ns: 1_000_000,
            ..TimePoint::default()
        };
        outcome.measured.points = (0..2).map(point).collect();
        outcome
    }

    #[test]
    fn html_report_is_self_contained_and_escaped() {
        let page = report_page(&outcome());
        assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
        assert!(page.matches("<svg").count() >= 4 && page.contains("prefers-color-scheme: dark"));
        assert!(
            !page.contains("<script")
                && !page.contains("<gone>")
                && !page.contains("src=")
                && !page.contains("href=")
        );
        for name in [
            "<h1>Load test</h1>",
            "99th percentile (p99)",
            "Throughput",
            "Latency by percentile",
            "Latency distribution",
        ] {
            assert!(page.contains(name), "{name}");
        }
    }

    #[test]
    fn comparison_page_has_both_names_and_the_verdict() {
        let pairs = [(outcome(), outcome()), (outcome(), outcome())];
        let page = comparison_page(&comparison::of_pairs(["one".into(), "two".into()], &pairs), &pairs);
        assert!(
            page.contains("<title>one against two</title>")
                && page.contains("no difference found")
                && page.contains("<h1>Comparison</h1>")
                && page.contains("Run by run")
        );
    }

    #[test]
    fn points_of_long_runs_are_merged_without_losing_responses() {
        let points: Vec<TimePoint> = (0..1_000)
            .map(|at| TimePoint {
                from_s: f64::from(at),
                to_s: f64::from(at + 1),
                responses: 2,
                ..TimePoint::default()
            })
            .collect();
        let fewer = merge_points(&points);
        assert!(fewer.len() <= POINTS_MAX);
        assert_eq!(fewer.iter().map(|p| p.responses).sum::<u64>(), 2_000);
        assert_eq!(fewer.last().map(|p| p.to_s), Some(1_000.0));
    }
}
