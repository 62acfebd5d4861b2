//! Traffic of a release: faults for tests, copies for another version, and a part of the requests for each branch. A route without
//! them has none of this.

mod conditions;
mod faults;
mod mirror;
mod split;

use net::{Exchange, Fault};

pub use faults::FaultRules;
pub use mirror::{MirrorRule, MirrorShared};
pub use split::SplitRule;

/// What a route does with a request before its handler.
#[derive(Default)]
pub struct Release {
    /// Faults for tests.
    pub faults: Option<FaultRules>,
    /// Copies of requests for another version.
    pub mirror: Option<MirrorRule>,
    /// Branches and their weights.
    pub split: Option<SplitRule>,
}

/// What follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseStep {
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
    pub async fn begin(&self, x: &mut Exchange<'_>) -> Result<ReleaseStep, Fault> {
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
