//! Whether ours comes to what it should.

use crate::lab::file::{Aim, Bound};
use crate::lab::matrix::Cell;

/// One aim in one cell.
pub(crate) struct AimVerdict {
    /// The cell's key.
    pub(crate) cell: String,
    /// What was found and what should have been, for people.
    pub(crate) text: String,
    /// Whether it holds.
    pub(crate) met: bool,
}

/// Whether the aim holds at this cell's levels.
pub(crate) fn speaks_of(aim: &Aim, cell: &Cell) -> bool {
    cell.levels.iter().all(|(factor, level)| aim.when.get(factor).is_none_or(|levels| levels.contains(level)))
}

/// Judges `value`, which people read as `shown`; `bound` shows the bound alike.
pub(crate) fn judge(
    aim: &Aim,
    cell: &str,
    title: &str,
    value: f64,
    shown: &str,
    bound: impl Fn(f64) -> String,
) -> AimVerdict {
    let (met, should) = match aim.bound {
        Bound::Most(most) => (value <= most, format!("at most {}", bound(most))),
        Bound::Least(least) => (value >= least, format!("at least {}", bound(least))),
    };
    let verdict = if met { "met" } else { "MISSED" };
    AimVerdict { cell: cell.into(), text: format!("{cell}: {title} {shown}, aim {should}: {verdict}"), met }
}
