//! The table of rows, for terminals and Markdown, and what fell behind since saved results.

use crate::figure::Figure;
use crate::lab::row_figures::{RowFigures, RowRatio, is_higher_better};
use crate::quantity;
use crate::table::TextTable;

/// Share by which a ratio must be worse than the saved one to be mentioned.
const WORSE_SHARE_MIN: f64 = 0.05;

/// Formats a figure; CPU times without their unit, which the heading has.
fn format_value(key: &str, value: f64) -> String {
    match key {
        "cpu_us_per_request" => quantity::format_digits(value),
        _ => Figure::find(key)
            .map_or_else(|| quantity::format_digits(value), |figure| figure.format_value(value)),
    }
}

/// The cells of a row that show the figure by which it is judged.
fn judged_cells(row: &RowFigures, mark: &str) -> Vec<String> {
    let key = &row.figure;
    let ours = row.value(&row.ours, key).map_or(String::new(), |value| format_value(key, value));
    let ratio = row.ratio(key);
    let (best, peer) = ratio.map_or((String::new(), String::new()), |ratio| {
        let value = row.value(&ratio.of, key).map_or(String::new(), |value| format_value(key, value));
        let peer = format!("{} {}", ratio.of, row.short_version(&ratio.of));
        (value, peer.trim_end().to_string())
    });
    let aim = row.aims.iter().find_map(|aim| aim.bound.clone()).unwrap_or_default();
    vec![ours, best, peer, ratio_cell(ratio, mark), aim]
}

/// The cells of a row that show rate and latency.
fn load_cells(row: &RowFigures, mark: &str) -> Vec<String> {
    if row.figure == "pss_bytes" {
        return vec![String::new(); 5];
    }
    let ours = |key: &str| row.value(&row.ours, key).map_or(String::new(), |value| format_value(key, value));
    vec![
        ours("requests_per_s"),
        ratio_cell(row.ratio("requests_per_s"), mark),
        ours("p50_us"),
        ours("p99_us"),
        ratio_cell(row.ratio("p99_us"), mark),
    ]
}

fn ratio_cell(ratio: Option<&RowRatio>, mark: &str) -> String {
    let Some(ratio) = ratio else { return String::new() };
    let text = format!("{:.2}", ratio.ratio);
    match (ratio.is_behind(), mark) {
        (false, "!") => format!("{text} "),
        (false, _) => text,
        (true, "!") => format!("{text}!"),
        (true, _) => format!("**{text}**"),
    }
}

const JUDGED_HEADING: [&str; 5] = ["CPU µs", "best", "peer", "ratio", "aim"];
const LOAD_HEADING: [&str; 5] = ["requests/s", "of best", "p50", "p99", "of best"];

/// Returns the text for a terminal of this width: the table (two tables where one does not fit), the rows in which a
/// peer is ahead, the aims that are missed, what fell behind since `saved`, and the versions.
#[must_use]
pub fn text(title: &str, rows: &[RowFigures], saved: &[RowFigures], columns: usize) -> String {
    type Cells = fn(&RowFigures, &str) -> Vec<String>;
    let build = |parts: &[(&[&str], Cells)]| {
        let heading: Vec<&str> = std::iter::once("")
            .chain(parts.iter().flat_map(|(heading, _)| heading.iter().copied()))
            .collect();
        let mut table = TextTable::new(&heading);
        for row in rows {
            let cells = parts.iter().flat_map(|(_, cells)| cells(row, "!"));
            table.add_row(std::iter::once(row.title.clone()).chain(cells).collect());
        }
        table.plain("  ")
    };
    let judged: (&[&str], Cells) = (&JUDGED_HEADING, judged_cells);
    let load: (&[&str], Cells) = (&LOAD_HEADING, load_cells);
    let both = build(&[judged, load]);
    let is_wide = both.lines().all(|line| line.chars().count() <= columns);
    let table = if is_wide { both } else { format!("{}\n{}", build(&[judged]), build(&[load])) };
    let mut text = format!("{title}\n\n{table}\n  ! the best peer is ahead\n");
    let mut section = |heading: &str, lines: Vec<String>| {
        if !lines.is_empty() {
            text += &format!("\n{heading}\n");
            text.extend(lines.iter().map(|line| format!("  {line}\n")));
        }
    };
    section("Not first", rows.iter().filter_map(not_first).collect());
    section("Aims that are missed", missed_aims(rows));
    section("Behind the saved results", fell_behind(rows, saved));
    section("Not measured", not_measured(rows));
    section("Versions", versions(rows));
    text
}

/// Names the figures of a row in which a peer is ahead.
fn not_first(row: &RowFigures) -> Option<String> {
    let behind: Vec<String> = row
        .ratios
        .iter()
        .filter(|ratio| ratio.is_behind())
        .map(|ratio| {
            let title = Figure::find(&ratio.figure).map_or(ratio.figure.as_str(), |figure| figure.title);
            let values = [&row.ours, &ratio.of].map(|subject| {
                row.value(subject, &ratio.figure)
                    .and_then(|value| Some(Figure::find(&ratio.figure)?.format_value(value)))
                    .unwrap_or_default()
            });
            format!("{title} {} beside {} of {}", values[0], values[1], ratio.of)
        })
        .collect();
    (!behind.is_empty()).then(|| format!("{}: {}", row.name, behind.join("; ")))
}

/// Lists the ratios that are worse than the saved ones; those whose intervals overlap as possible only.
#[must_use]
pub fn fell_behind(rows: &[RowFigures], saved: &[RowFigures]) -> Vec<String> {
    let mut lines = Vec::new();
    for row in rows {
        let Some(before) = saved.iter().find(|before| before.name == row.name) else { continue };
        for ratio in &row.ratios {
            let Some(was) = before.ratio(&ratio.figure) else { continue };
            let higher = is_higher_better(&ratio.figure);
            let worse = if higher { was.ratio / ratio.ratio } else { ratio.ratio / was.ratio } - 1.0;
            if worse < WORSE_SHARE_MIN {
                continue;
            }
            let is_apart =
                if higher { ratio.interval.1 < was.interval.0 } else { ratio.interval.0 > was.interval.1 };
            let title = Figure::find(&ratio.figure).map_or(ratio.figure.as_str(), |figure| figure.title);
            let peer = |row: &RowFigures, ratio: &RowRatio| {
                format!("{:.2} of {} {}", ratio.ratio, ratio.of, row.short_version(&ratio.of))
                    .trim_end()
                    .to_string()
            };
            lines.push(format!(
                "{}: {title} {}, was {} ({}){}",
                row.name,
                peer(row, ratio),
                peer(before, was),
                before.date,
                if is_apart { "" } else { ": perhaps noise, the intervals overlap" }
            ));
        }
    }
    lines
}

/// Lists the aims that are missed.
fn missed_aims(rows: &[RowFigures]) -> Vec<String> {
    let missed = rows.iter().flat_map(|row| &row.aims).filter(|aim| !aim.is_met);
    missed.map(|aim| aim.text.replace(": MISSED", "")).collect()
}

/// Lists the subjects without figures; each once, with the rows.
fn not_measured(rows: &[RowFigures]) -> Vec<String> {
    let mut reasons: Vec<(String, Vec<&str>)> = Vec::new();
    for row in rows {
        for (name, why) in &row.missing {
            let text = format!("{name}: {why}");
            match reasons.iter_mut().find(|(known, _)| *known == text) {
                Some((_, names)) => names.push(&row.name),
                None => reasons.push((text, vec![&row.name])),
            }
        }
    }
    reasons.into_iter().map(|(text, names)| format!("{text} ({})", names.join(", "))).collect()
}

/// Lists what the subjects say of their versions; each once.
fn versions(rows: &[RowFigures]) -> Vec<String> {
    let mut lines: Vec<String> =
        rows.iter().flat_map(|row| &row.versions).map(|(name, said)| format!("{name}: {said}")).collect();
    lines.sort();
    lines.dedup();
    lines
}

/// Returns the table as Markdown, with versions, dates and machine.
#[must_use]
pub fn markdown(rows: &[RowFigures]) -> String {
    if rows.is_empty() {
        return "No figures are saved.\n".into();
    }
    let heading: Vec<&str> = std::iter::once("").chain(JUDGED_HEADING).chain(LOAD_HEADING).collect();
    let mut table = TextTable::new(&heading);
    for row in rows {
        let mut cells = vec![row.title.clone()];
        cells.extend(judged_cells(row, "**"));
        cells.extend(load_cells(row, "**"));
        table.add_row(cells);
    }
    let mut text = table.markdown();
    let missed = missed_aims(rows);
    if !missed.is_empty() {
        text += "\nAims that are missed:\n\n";
        text.extend(missed.iter().map(|aim| format!("- {aim}\n")));
    }
    let mut runs: Vec<String> = rows
        .iter()
        .map(|row| format!("{} of {}", rounds(row.rounds), &row.date[..row.date.len().min(10)]))
        .collect();
    runs.sort();
    runs.dedup();
    let mut machines: Vec<&str> = rows.iter().map(|row| row.machine.as_str()).collect();
    machines.sort_unstable();
    machines.dedup();
    let versions = versions(rows);
    text += &format!("\nMedians of {}, on {}.\n\nVersions:\n\n", runs.join(" and "), machines.join("; "));
    text.extend(versions.iter().map(|line| format!("- {line}\n")));
    text
}

fn rounds(count: usize) -> String {
    if count == 1 { "1 round".into() } else { format!("{count} rounds") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn row(name: &str, cpu: f64, rate: f64) -> RowFigures {
        let ratio = |figure: &str, ratio: f64| json!({ "figure": figure, "of": "h2o", "ratio": ratio, "interval": [ratio * 0.98, ratio * 1.02] });
        RowFigures::from_json(&json!({ "name": name, "title": format!("Row {name}"), "figure": "cpu_us_per_request",
            "ours": "Komainu", "date": "2026-11-30 10:00 UTC", "machine": "2 cores", "rounds": 5,
            "subjects": { "Komainu": { "cpu_us_per_request": cpu * 2.5, "requests_per_s": rate * 345_000.0, "p50_us": 90.0, "p99_us": 2_000.0 },
                "h2o": { "cpu_us_per_request": 2.5, "requests_per_s": 345_000.0, "p99_us": 1_000.0 } },
            "ratios": [ratio("cpu_us_per_request", cpu), ratio("requests_per_s", rate)],
            "aims": [{ "text": "a: CPU per request 1.40 of h2o, aim at most 0.9: MISSED", "bound": "0.9", "met": cpu < 0.9 }],
            "versions": { "h2o": "h2o version 2.2.5" }, "missing": { "nginx": "skipped, nginx is not installed" } }))
        .unwrap()
    }

    #[test]
    fn rows_behind_a_peer_are_marked_and_listed() {
        let rows = [row("a", 1.4, 0.76), row("b", 0.8, 1.2)];
        let text = text("T", &rows, &[], 200);
        for part in [
            "       CPU µs  best       peer  ratio  aim  requests/s  of best      p50      p99  of best",
            "Row a    3.50  2.50  h2o 2.2.5  1.40!  0.9     262,200    0.76!  90.0 µs  2.00 ms",
            "Row b    2.00  2.50  h2o 2.2.5  0.80   0.9     414,000    1.20   90.0 µs  2.00 ms",
            "\nNot first\n  a: CPU per request 3.50 µs beside 2.50 µs of h2o; requests/s 262,200 beside 345,000 of h2o\n",
            "\nAims that are missed\n  a: CPU per request 1.40 of h2o, aim at most 0.9\n\n",
            "nginx: skipped, nginx is not installed (a, b)",
            "h2o: h2o version 2.2.5",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        assert!(!text.contains("Behind the saved"), "{text}");
        let markdown = markdown(&rows);
        assert!(markdown.contains("**1.40**") && markdown.contains(" 1.20 |"), "{markdown}");
        assert!(markdown.contains("Medians of 5 rounds of 2026-11-30, on 2 cores."), "{markdown}");
    }

    #[test]
    fn a_narrow_terminal_gets_two_tables() {
        let rows = [row("a", 1.4, 0.76)];
        let narrow = text("T", &rows, &[], 60);
        let table: Vec<&str> = narrow.lines().skip(2).take(5).collect();
        assert!(
            table[0].ends_with("aim") && table[3].ends_with("of best") && table[4].contains("Row a"),
            "{narrow}"
        );
        assert!(table.iter().all(|line| line.chars().count() <= 60), "{narrow}");
    }

    #[test]
    fn ratios_that_became_worse_are_reported() {
        let before = [row("a", 1.0, 1.0), row("gone", 1.0, 1.0)];
        assert_eq!(fell_behind(&[row("a", 1.03, 0.97), row("new", 2.0, 0.5)], &before), Vec::<String>::new());
        assert_eq!(
            fell_behind(&[row("a", 1.2, 1.3)], &before),
            ["a: CPU per request 1.20 of h2o 2.2.5, was 1.00 of h2o 2.2.5 (2026-11-30 10:00 UTC)"]
        );
        let slower = fell_behind(&[row("a", 0.5, 0.8)], &before);
        assert!(
            slower.len() == 1 && slower[0].starts_with("a: requests/s 0.80 of h2o 2.2.5, was 1.00"),
            "{slower:?}"
        );
        let mut noisy = row("a", 1.2, 1.0);
        noisy.ratios[0].interval = (0.9, 1.6);
        assert!(fell_behind(&[noisy], &before)[0].ends_with("perhaps noise, the intervals overlap"));
    }
}
