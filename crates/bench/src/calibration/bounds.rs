//! The true value of a figure, and the values that count as right.

use crate::figure::Unit;

/// Times are kept with three digits, which rounds their lower bound.
const KEPT_SHARE: f64 = 0.999;

/// The true value of a figure, and the bounds of the measured one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Bounds {
    pub(crate) truth: f64,
    /// On a machine that does nothing else.
    quiet: (f64, f64),
    /// Whatever else the machine does.
    always: (f64, f64),
}

impl Bounds {
    /// A count.
    pub(crate) fn exactly(truth: f64) -> Bounds {
        Bounds { truth, quiet: (truth, truth), always: (truth, truth) }
    }

    /// A figure that cannot be less, and on a quiet machine is at most `excess` more: a time.
    pub(crate) fn from(truth: f64, excess: f64) -> Bounds {
        let least = truth * KEPT_SHARE;
        Bounds { truth, quiet: (least, truth + excess), always: (least, f64::INFINITY) }
    }

    /// A figure that cannot be more, and on a quiet machine is at most this share less: a rate.
    pub(crate) fn up_to(truth: f64, share: f64) -> Bounds {
        let most = truth / KEPT_SHARE;
        Bounds { truth, quiet: (truth * (1.0 - share), most), always: (0.0, most) }
    }

    /// A figure that is this or more.
    pub(crate) fn at_least(truth: f64) -> Bounds {
        Bounds {
            truth,
            quiet: (truth * KEPT_SHARE, f64::INFINITY),
            always: (truth * KEPT_SHARE, f64::INFINITY),
        }
    }

    /// A figure of which a busy machine says nothing.
    pub(crate) fn about(truth: f64, tolerance: f64) -> Bounds {
        Bounds {
            truth,
            quiet: (truth - tolerance, truth + tolerance),
            always: (f64::NEG_INFINITY, f64::INFINITY),
        }
    }

    /// Lowers the bound that always holds.
    pub(crate) fn but_always_from(self, least: f64) -> Bounds {
        Bounds { always: (least, self.always.1), ..self }
    }

    fn range(&self, is_busy: bool) -> (f64, f64) {
        if is_busy { self.always } else { self.quiet }
    }

    /// Whether a figure, which is never negative, can be outside of the bounds.
    pub(crate) fn can_fail(&self, is_busy: bool) -> bool {
        let (low, high) = self.range(is_busy);
        low > 0.0 || high < f64::INFINITY
    }

    /// Whether a measured value is right.
    pub(crate) fn contains(&self, measured: f64, is_busy: bool) -> bool {
        let (low, high) = self.range(is_busy);
        low <= measured && measured <= high
    }

    /// Formats the bounds.
    pub(crate) fn text(&self, unit: Unit, is_busy: bool) -> String {
        let show = |value| unit.format(value);
        match self.range(is_busy) {
            (low, high) if show(low) == show(high) => "exactly".into(),
            (low, high) if high == f64::INFINITY => format!("≥ {}", show(low)),
            (low, high) if low <= 0.0 => format!("≤ {}", show(high)),
            (low, high) => format!("{} … {}", show(low), show(high)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_machine_has_only_bounds_that_always_hold() {
        let right = |bounds: Bounds, value| [false, true].map(|is_busy| bounds.contains(value, is_busy));
        assert_eq!(
            [9.0, 10.0, 11.0].map(|value| right(Bounds::exactly(10.0), value)),
            [[false; 2], [true; 2], [false; 2]]
        );
        let time = Bounds::from(10.0, 1.0);
        assert_eq!(
            [9.9, 9.999, 11.0, 11.1].map(|value| right(time, value)),
            [[false; 2], [true; 2], [true; 2], [false, true]]
        );
        let rate = Bounds::up_to(10.0, 0.1);
        assert_eq!(
            [8.9, 9.0, 10.0, 10.1].map(|value| right(rate, value)),
            [[false, true], [true; 2], [true; 2], [false; 2]]
        );
        let about = Bounds::about(10.0, 1.0);
        assert_eq!([8.0, 9.0].map(|value| right(about, value)), [[false, true], [true; 2]]);
        assert_eq!([time, about].map(|bounds| bounds.can_fail(true)), [true, false]);
        assert_eq!(right(time.but_always_from(5.0), 6.0), [false, true]);
        assert!(!Bounds::exactly(1.0).contains(f64::NAN, true));
    }

    #[test]
    fn bounds_are_shown_in_the_unit_of_the_figure() {
        let texts = |bounds: Bounds| [false, true].map(|is_busy| bounds.text(Unit::Us, is_busy));
        assert_eq!(texts(Bounds::from(10_000.0, 1_000.0)), ["9.99 ms … 11.0 ms", "≥ 9.99 ms"]);
        assert_eq!(Bounds::exactly(3.0).text(Unit::Count, false), "exactly");
        assert_eq!(Bounds::up_to(50.0, 1.0).text(Unit::Rate, true), "≤ 50.1");
    }
}
