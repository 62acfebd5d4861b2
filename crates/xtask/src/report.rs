//! Tables for the terminal and for Markdown, and where results are kept.

use std::fs;
use std::path::{Path, PathBuf};

use crate::measure::Outcome;

/// A table of text: the first column to the left, all others to the right.
pub(crate) struct Table {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table with these columns.
    pub(crate) fn new(head: &[&str]) -> Table {
        Table { head: head.iter().map(|cell| cell.to_string()).collect(), rows: Vec::new() }
    }

    /// Adds a row; missing cells stay empty.
    pub(crate) fn row(&mut self, mut cells: Vec<String>) {
        cells.resize(self.head.len(), String::new());
        self.rows.push(cells);
    }

    /// As Markdown that is also readable as it stands.
    pub(crate) fn markdown(&self) -> String {
        let lines = || std::iter::once(&self.head).chain(&self.rows);
        let width = |column: usize| lines().map(|row| row[column].chars().count()).max().unwrap_or(0).max(3);
        let widths: Vec<usize> = (0..self.head.len()).map(width).collect();
        let line = |row: &Vec<String>| {
            let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| match column {
                0 => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            });
            format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "))
        };
        let rule = widths.iter().enumerate().map(|(column, &width)| match column {
            0 => "-".repeat(width + 2),
            _ => format!("{}:", "-".repeat(width + 1)),
        });
        let rule = format!("|{}|\n", rule.collect::<Vec<_>>().join("|"));
        let mut text = line(&self.head) + &rule;
        text.extend(self.rows.iter().map(line));
        text
    }
}

/// Keeps a result as NAME.md and NAME.json under `folder`, and returns the Markdown's path.
pub(crate) fn keep(folder: &Path, name: &str, markdown: &str, json: &serde_json::Value) -> Outcome<PathBuf> {
    fs::create_dir_all(folder)?;
    let path = folder.join(format!("{name}.md"));
    fs::write(&path, markdown)?;
    fs::write(folder.join(format!("{name}.json")), format!("{json:#}\n"))?;
    Ok(path)
}

/// 1234567.8 as `1,234,568`.
pub(crate) fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && digit != '-' && (digits.len() - at).is_multiple_of(3) && !text.ends_with('-') {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Microseconds as a person reads them.
pub(crate) fn time_us(us: f64) -> String {
    match us {
        us if us < 1_000.0 => format!("{us:.0} µs"),
        us if us < 1_000_000.0 => format!("{:.2} ms", us / 1e3),
        us => format!("{:.2} s", us / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_short_rows_are_filled() {
        let mut table = Table::new(&["subject", "µs"]);
        table.row(vec!["nginx".into(), "6.1".into()]);
        table.row(vec!["h2o".into()]);
        assert_eq!(
            table.markdown(),
            "| subject |  µs |\n|---------|----:|\n| nginx   | 6.1 |\n| h2o     |     |\n"
        );
    }

    #[test]
    fn numbers_read_well() {
        let grouped: Vec<String> = [0.0, 999.0, 1000.0, -1234.0, 1234567.8, -123.0].map(thousands).into();
        assert_eq!(grouped, ["0", "999", "1,000", "-1,234", "1,234,568", "-123"]);
        assert_eq!([12.0, 1500.0, 2e6].map(time_us), ["12 µs", "1.50 ms", "2.00 s"]);
    }
}
