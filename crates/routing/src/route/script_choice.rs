//! Choice between the route of a path and that of a script on it, whose `PATH_INFO` is the rest of the path.

use std::rc::Rc;

use super::{Handler, Route};

/// Guards of a route, as numbers: equal guards of the routes of a site have the same number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteGuardSet(Vec<usize>);

impl RouteGuardSet {
    /// Creates the set of these guards.
    #[must_use]
    pub fn new(numbers: Vec<usize>) -> Self {
        Self(numbers)
    }

    /// Whether every guard of `other` is one of these too.
    fn includes(&self, other: &Self) -> bool {
        other.0.iter().all(|number| self.0.contains(number))
    }
}

/// Returns the route that answers a path with a script on it: that of the script, so that its guards apply to all
/// paths below it, unless that of the whole path guards more. `None` if neither has the guards of both, or if the route
/// of the whole path guards more and that of the script does something else than to run it.
pub(crate) fn choose_route<'t>(whole: &'t Rc<Route>, script: &'t Rc<Route>) -> Option<&'t Rc<Route>> {
    if script.guards.includes(&whole.guards) || script.handler.is_refusal() {
        return Some(script);
    }
    let is_run = matches!(script.handler, Handler::Php(_));
    (is_run && whole.guards.includes(&script.guards)).then_some(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_include_their_parts() {
        let set = |numbers: &[usize]| RouteGuardSet::new(numbers.to_vec());
        for (all, part, expected) in [
            (&[][..], &[][..], true),
            (&[1], &[], true),
            (&[1, 2], &[2], true),
            (&[1], &[1, 2], false),
            (&[], &[0], false),
        ] {
            assert_eq!(set(all).includes(&set(part)), expected, "{all:?} {part:?}");
        }
    }
}
