//! Text tables for terminals and Markdown.

/// Table with aligned columns: the first is left-aligned, all others are right-aligned.
#[derive(Clone, Debug)]
pub struct TextTable {
    heading: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl TextTable {
    /// Creates an empty table with these columns.
    #[must_use]
    pub fn new<S: ToString>(head: &[S]) -> TextTable {
        TextTable { heading: head.iter().map(ToString::to_string).collect(), rows: Vec::new() }
    }

    /// Adds a row; missing cells stay empty.
    pub fn add_row(&mut self, cells: Vec<String>) {
        // A line break in a cell would look like another row.
        self.rows.push(cells.into_iter().map(|cell| cell.replace(['\n', '\r'], " ")).collect());
    }

    /// Whether the table has no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the head and the rows.
    #[must_use]
    pub fn head_and_rows(&self) -> (&[String], &[Vec<String>]) {
        (&self.heading, &self.rows)
    }

    fn widths(&self) -> Vec<usize> {
        let mut widths: Vec<usize> = self.heading.iter().map(|cell| cell.chars().count()).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        widths
    }

    fn cells<'t>(row: &'t [String], widths: &'t [usize]) -> impl Iterator<Item = String> + 't {
        widths.iter().enumerate().map(move |(column, &width)| {
            let cell = row.get(column).map_or("", String::as_str);
            if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        })
    }

    /// Formats the table as Markdown.
    #[must_use]
    pub fn markdown(&self) -> String {
        let widths = self.widths();
        let line = |row: &Vec<String>| {
            let escaped: Vec<String> = row.iter().map(|cell| cell.replace('|', "\\|")).collect();
            format!("| {} |\n", TextTable::cells(&escaped, &widths).collect::<Vec<_>>().join(" | "))
        };
        let rule = widths.iter().enumerate().map(|(column, &width)| match column {
            0 => "-".repeat(width + 2),
            _ => format!("{}:", "-".repeat(width + 1)),
        });
        let rule = format!("|{}|\n", rule.collect::<Vec<_>>().join("|"));
        let mut text = line(&self.heading) + &rule;
        text.extend(self.rows.iter().map(line));
        text
    }

    /// Formats the table for a terminal, each line preceded by `indent`.
    #[must_use]
    pub fn plain(&self, indent: &str) -> String {
        let widths = self.widths();
        let mut text = String::new();
        for row in std::iter::once(&self.heading).chain(&self.rows) {
            let line = TextTable::cells(row, &widths).collect::<Vec<_>>().join("  ");
            text += &format!("{indent}{}\n", line.trim_end());
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_short_rows_padded() {
        let mut table = TextTable::new(&["subject", "µs"]);
        table.add_row(vec!["nginx|x".into(), "6.1".into()]);
        table.add_row(vec!["h2o".into()]);
        assert_eq!(
            table.markdown(),
            "| subject |  µs |\n|---------|----:|\n| nginx\\|x | 6.1 |\n| h2o     |     |\n"
        );
        assert_eq!(table.plain("  "), "  subject   µs\n  nginx|x  6.1\n  h2o\n");
    }
}
