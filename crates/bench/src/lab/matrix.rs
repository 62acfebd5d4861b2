//! The cells of an experiment, and the order in which they are measured.

use fastrand::Rng;

use crate::lab::file::{Lab, LabSubject};
use crate::lab::template::TemplateValues;

/// A subject at one level of each factor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabCell {
    /// Index of the subject in the lab.
    pub subject: usize,
    /// Factors and levels, in the lab's order.
    pub levels: Vec<(String, String)>,
}

impl LabCell {
    /// Formats the levels in one line: `threads 2, keep on`.
    #[must_use]
    pub fn levels_text(&self) -> String {
        let each: Vec<String> =
            self.levels.iter().map(|(factor, level)| format!("{factor} {level}")).collect();
        each.join(", ")
    }

    /// Returns the key of this cell, which is unique in the lab.
    #[must_use]
    pub fn key(&self, lab: &Lab) -> String {
        let name = &lab.subjects[self.subject].process.name;
        if self.levels.is_empty() { name.clone() } else { format!("{name} [{}]", self.levels_text()) }
    }

    /// Returns the template values that follow from the levels.
    #[must_use]
    pub fn values(&self, lab: &Lab) -> TemplateValues {
        let mut values = TemplateValues::new();
        for (factor, level) in &self.levels {
            values.insert(factor.clone(), level.clone());
        }
        // Factors that the subject leaves out use the values of their first level, so that shared files can
        // be filled in.
        for (factor, levels) in &lab.factors {
            let level = self.levels.iter().find(|(name, _)| name == factor).map(|(_, level)| level);
            let level = level.or(levels.first()).map(String::as_str).unwrap_or_default();
            values.entry(factor.clone()).or_insert_with(|| level.to_string());
            if let Some(names) = lab.vary.get(factor).and_then(|vary| vary.get(level)) {
                values.extend(names.iter().map(|(name, value)| (format!("{factor}.{name}"), value.clone())));
            }
        }
        values
    }
}

/// Returns all cells: each subject at every combination of its levels.
#[must_use]
pub fn cells(lab: &Lab, short: bool) -> Vec<LabCell> {
    let mut cells = Vec::new();
    for (number, subject) in lab.subjects.iter().enumerate() {
        let mut rows: Vec<Vec<(String, String)>> = vec![Vec::new()];
        for (factor, all) in &lab.factors {
            let levels = subject_levels(lab, subject, factor, all, short);
            rows = rows
                .into_iter()
                .flat_map(|row| {
                    levels
                        .iter()
                        .map(move |level| [row.clone(), vec![(factor.clone(), level.clone())]].concat())
                })
                .collect();
        }
        cells.extend(rows.into_iter().map(|levels| LabCell { subject: number, levels }));
    }
    cells
}

/// Returns the levels of one factor at which a subject is measured.
fn subject_levels(lab: &Lab, subject: &LabSubject, factor: &str, all: &[String], short: bool) -> Vec<String> {
    let own = subject.when.get(factor).map_or(all, Vec::as_slice);
    let narrowed = lab.short_factors.iter().find(|(name, _)| short && name == factor);
    match narrowed {
        // A subject without any of the short levels keeps its own levels.
        Some((_, few)) if own.iter().any(|level| few.contains(level)) => {
            own.iter().filter(|level| few.contains(level)).cloned().collect()
        }
        _ => own.to_vec(),
    }
}

/// Returns cell and repetition of each measurement. Every repetition is a round through all cells in random
/// order, so that drift over time affects all cells equally.
#[must_use]
pub fn measurement_order(cells: usize, repetitions: usize, seed: u64) -> Vec<(usize, usize)> {
    let mut random = Rng::with_seed(seed);
    let mut order = Vec::with_capacity(cells * repetitions);
    for repetition in 0..repetitions {
        let mut round: Vec<usize> = (0..cells).collect();
        random.shuffle(&mut round);
        order.extend(round.into_iter().map(|cell| (cell, repetition)));
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lab() -> Lab {
        Lab::parse(
            "title = \"T\"\n[short]\nfactors = { k = [\"off\"], t = [2] }\n[factors]\nk = [\"on\", \"off\"]\nt = [1, 2, 4]\n\
             [vary.k]\non = { line = \"yes\" }\noff = { line = \"no\" }\n\
             [[subject]]\nname = \"a\"\nrun = \"a\"\n[[subject]]\nname = \"b\"\nrun = \"b\"\nwhen = { k = [\"on\"], t = [1] }\n",
        )
        .unwrap()
    }

    #[test]
    fn matrix_contains_every_cell_its_subject_allows() {
        let lab = lab();
        let keys = |short| cells(&lab, short).iter().map(|cell| cell.key(&lab)).collect::<Vec<_>>();
        assert_eq!(keys(false).len(), 6 + 1);
        assert_eq!(keys(false)[1], "a [k on, t 2]");
        assert_eq!(keys(true), ["a [k off, t 2]", "b [k on, t 1]"]);
        let values = cells(&lab, false)[3].values(&lab);
        assert_eq!(
            (values["k"].as_str(), values["k.line"].as_str(), values["t"].as_str()),
            ("off", "no", "1")
        );
    }

    #[test]
    fn every_round_has_each_cell_once_in_seeded_order() {
        let first = measurement_order(9, 3, 1);
        assert_eq!((first.clone(), measurement_order(9, 3, 2) == first), (measurement_order(9, 3, 1), false));
        for repetition in 0..3 {
            let mut cells: Vec<usize> = first[repetition * 9..][..9].iter().map(|(cell, _)| *cell).collect();
            cells.sort_unstable();
            assert_eq!(cells, (0..9).collect::<Vec<_>>());
        }
    }
}
