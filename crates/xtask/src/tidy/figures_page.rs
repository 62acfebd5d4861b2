//! The table of `make bench` in docs/figures.md, from the saved results.

use bench::lab::row_run;
use bench::lab::row_table;

use crate::tidy::foreign_directives;

/// File of the saved results.
pub(crate) const RESULTS: &str = "figures/results.json";

/// Marks around the table.
const MARKS: (&str, &str) =
    ("<!-- Table of figures/results.json: cargo xtask docs -->\n", "<!-- End of the table -->\n");

/// Writes the table between the marks in the page.
pub(crate) fn write_table(page: &str, results: &str) -> String {
    let table = match row_run::parse_results(results) {
        Ok(rows) => format!("\n{}\n", row_table::markdown(&rows)),
        Err(error) => format!("\n{RESULTS}: {error}\n\n"),
    };
    foreign_directives::write_between(page, MARKS, &table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_follows_the_results() {
        let (start, end) = MARKS;
        let page = format!("# Figures\n\n{start}old\n{end}\nRest.\n");
        let results = r#"{ "rows": [{ "name": "a", "title": "File", "figure": "cpu_us_per_request", "ours": "Komainu",
            "date": "2026-11-30 10:00 UTC", "machine": "2 cores", "rounds": 5, "missing": {}, "aims": [],
            "subjects": { "Komainu": { "cpu_us_per_request": 6.0 }, "nginx": { "cpu_us_per_request": 5.0 } },
            "ratios": [{ "figure": "cpu_us_per_request", "of": "nginx", "ratio": 1.2, "interval": [1.1, 1.3] }],
            "versions": { "nginx": "nginx version: nginx/1.31.5" } }] }"#;
        let written = write_table(&page, results);
        for part in [
            "# Figures\n",
            "| File",
            "nginx 1.31.5",
            "**1.20**",
            "5 rounds of 2026-11-30, on 2 cores",
            "\nRest.\n",
        ] {
            assert!(written.contains(part), "{part}\n{written}");
        }
        assert!(!written.contains("old"));
        assert_eq!(write_table(&written, results), written);
        assert!(write_table(&page, "{}").contains("figures/results.json: there is no list"));
    }
}
