//! Traffic control for releases: injected faults, mirroring, and splitting requests between branches.

mod conditions;
mod faults;
mod mirror;
mod split;

pub use faults::FaultRules;
pub use mirror::{MirrorRule, MirrorShared};
use net::{Exchange, Fault};
pub use split::SplitRule;

use crate::flow::Flow;

/// Release rules of a route, applied before its handler.
#[derive(Default)]
pub struct Release {
    /// Fault injection.
    pub faults: Option<FaultRules>,
    /// Mirroring to other servers.
    pub mirrors: Vec<MirrorRule>,
    /// Split between branches.
    pub split: Option<SplitRule>,
}

impl Release {
    /// Applies the rules to a request.
    ///
    /// # Errors
    /// The client is gone, or a fault closes its connection.
    pub async fn run(&self, exchange: &mut Exchange<'_>) -> Result<Flow, Fault> {
        if let Some(faults) = &self.faults
            && !faults.inject(exchange).await?
        {
            return Ok(Flow::Answered);
        }
        MirrorRule::mirror(&self.mirrors, exchange);
        Ok(self.split.as_ref().map_or(Flow::Continue, |split| Flow::Branch(split.choose(exchange))))
    }
}
