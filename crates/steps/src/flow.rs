//! Outcome of a step.

/// Outcome of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// The next step runs; after the last one, the handler.
    Continue,
    /// The request has been answered.
    Answered,
    /// The branch of the split with this index serves the request.
    Branch(usize),
    /// The generated robots.txt is requested. A file of the site's own takes precedence.
    Robots,
}

impl Flow {
    /// Returns [`Flow::Continue`] for an admitted request, [`Flow::Answered`] for others, which have been
    /// refused.
    pub(crate) fn of_admission(is_admitted: bool) -> Flow {
        if is_admitted { Flow::Continue } else { Flow::Answered }
    }
}
