//! Results of the calibration: a table for each case, and JSON.

use serde_json::{Value, json};

use super::measured_case::{KnownFigure, LoadProtocol};
use crate::table::TextTable;

/// The figures of a case, over each channel.
pub(crate) struct CaseReport {
    pub(crate) title: String,
    pub(crate) figures: Vec<(LoadProtocol, KnownFigure)>,
    /// Whether only bounds count that always hold.
    pub(crate) is_busy: bool,
}

impl CaseReport {
    /// Returns the number of figures that were checked, and of those that are wrong.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let wrong = self.checked().filter(|(_, figure)| !self.is_right(figure)).count();
        (self.checked().count(), wrong)
    }

    fn checked(&self) -> impl Iterator<Item = &(LoadProtocol, KnownFigure)> {
        self.figures.iter().filter(|(_, figure)| figure.bounds.can_fail(self.is_busy))
    }

    fn is_right(&self, figure: &KnownFigure) -> bool {
        figure.bounds.contains(figure.measured, self.is_busy)
    }

    /// Formats the figures as a table with a column for each channel; a wrong value has a `!`.
    pub(crate) fn text(&self) -> String {
        let channels: Vec<LoadProtocol> = LoadProtocol::ALL
            .into_iter()
            .filter(|channel| self.checked().any(|(of, _)| of == channel))
            .collect();
        let mut heading = vec!["", "truth", "allowed"];
        heading.extend(channels.iter().map(|channel| channel.title()));
        let mut table = TextTable::new(&heading);
        let mut names: Vec<&str> = Vec::new();
        for (_, figure) in self.checked() {
            if names.contains(&figure.name.as_str()) {
                continue;
            }
            names.push(&figure.name);
            let mut row = vec![
                figure.name.clone(),
                figure.unit.format(figure.bounds.truth),
                figure.bounds.text(figure.unit, self.is_busy),
            ];
            row.extend(channels.iter().map(|channel| self.cell(*channel, &figure.name)));
            table.add_row(row);
        }
        format!("{}\n{}", self.title, table.plain("  "))
    }

    fn cell(&self, channel: LoadProtocol, name: &str) -> String {
        let Some((_, figure)) = self.checked().find(|(of, figure)| *of == channel && figure.name == name)
        else {
            return "-".into();
        };
        let mark = if self.is_right(figure) { "" } else { "! " };
        match figure.measured {
            measured if measured.is_nan() => format!("{mark}not measured"),
            measured => format!("{mark}{}", figure.unit.format(measured)),
        }
    }

    /// Returns the figures as JSON.
    pub(crate) fn json(&self) -> Value {
        let figures = self.checked().map(|(channel, figure)| {
            json!({ "figure": figure.name, "protocol": channel.title(), "truth": figure.bounds.truth,
                "allowed": figure.bounds.text(figure.unit, self.is_busy), "measured": figure.measured,
                "right": self.is_right(figure) })
        });
        json!({ "case": self.title, "figures": figures.collect::<Vec<_>>() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibration::bounds::Bounds;
    use crate::figure::Unit;

    #[test]
    fn wrong_and_missing_values_are_marked_and_counted() {
        let figure = |name: &str, bounds, measured| KnownFigure {
            name: name.into(),
            unit: Unit::Count,
            bounds,
            measured,
        };
        let mut report = CaseReport {
            title: "Case".into(),
            figures: vec![
                (LoadProtocol::Http1, figure("responses", Bounds::exactly(20.0), 20.0)),
                (LoadProtocol::Http1, figure("rate", Bounds::about(5.0, 1.0), 9.0)),
                (LoadProtocol::Http3, figure("responses", Bounds::exactly(20.0), 19.0)),
                (LoadProtocol::Http3, figure("handshakes", Bounds::exactly(1.0), f64::NAN)),
            ],
            is_busy: false,
        };
        assert_eq!(report.counts(), (4, 3));
        assert_eq!(
            report.text(),
            "Case\n\
             \x20             truth  allowed  HTTP/1          HTTP/3\n\
             \x20 responses      20  exactly      20            ! 19\n\
             \x20 rate            5    4 … 6     ! 9               -\n\
             \x20 handshakes      1  exactly       -  ! not measured\n"
        );
        assert_eq!(report.json()["figures"][2]["right"], false);
        report.is_busy = true;
        assert_eq!(report.counts(), (3, 2), "a busy machine says nothing of the rate");
    }
}
