//! Traffic of a release: faults for tests, copies for another version, and a part of the requests for each branch. A route without
//! them has none of this.

mod conditions;
mod faults;
mod mirror;
mod split;

use net::{Exchange, Fault};

pub(crate) use faults::FaultRules;
pub(crate) use mirror::{MirrorRule, MirrorShared};
pub(crate) use split::SplitRule;

/// What a route does with a request before its handler.
#[derive(Default)]
pub(crate) struct Release {
    pub(crate) faults: Option<FaultRules>,
    pub(crate) mirror: Option<MirrorRule>,
    pub(crate) split: Option<SplitRule>,
}

/// What follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReleaseStep {
    /// The route serves.
    Serve,
    /// The branch of this number serves.
    Branch(usize),
    /// There is a response.
    Answered,
}

impl Release {
    /// Does it.
    ///
    /// # Errors
    /// The client is gone, or is to be dropped.
    pub(crate) async fn begin(&self, x: &mut Exchange<'_>) -> Result<ReleaseStep, Fault> {
        if let Some(faults) = &self.faults
            && !faults.inject(x).await?
        {
            return Ok(ReleaseStep::Answered);
        }
        if let Some(mirror) = &self.mirror {
            mirror.copy(x);
        }
        Ok(self.split.as_ref().map_or(ReleaseStep::Serve, |split| ReleaseStep::Branch(split.choose(x))))
    }
}
