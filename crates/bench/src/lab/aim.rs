//! Checks whether Komainu meets the aims of an experiment.

use crate::lab::file::{Aim, Bound};
use crate::lab::matrix::LabCell;

/// Result of one aim in one cell.
pub(crate) struct AimVerdict {
    /// Key of the cell.
    pub(crate) cell: String,
    /// Figure and bound, as text.
    pub(crate) text: String,
    /// Whether the aim is met.
    pub(crate) is_met: bool,
}

/// Whether the aim applies to this cell's levels.
pub(crate) fn applies_to(aim: &Aim, cell: &LabCell) -> bool {
    cell.levels.iter().all(|(factor, level)| aim.when.get(factor).is_none_or(|levels| levels.contains(level)))
}

/// Compares `value` with the bound. `shown` is the formatted value; `bound` formats the bound in the same
/// way.
pub(crate) fn evaluate(
    aim: &Aim,
    cell: &str,
    title: &str,
    value: f64,
    shown: &str,
    bound: impl Fn(f64) -> String,
) -> AimVerdict {
    let (met, should) = match aim.bound {
        Bound::AtMost(most) => (value <= most, format!("at most {}", bound(most))),
        Bound::AtLeast(least) => (value >= least, format!("at least {}", bound(least))),
    };
    let verdict = if met { "met" } else { "MISSED" };
    AimVerdict {
        cell: cell.into(),
        text: format!("{cell}: {title} {shown}, aim {should}: {verdict}"),
        is_met: met,
    }
}
