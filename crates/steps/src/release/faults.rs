//! Fault injection for tests.

use std::sync::Arc;

use http::{Fields, Name, Status};
use net::{Exchange, Fault};
use telemetry::rule_counters::RuleCounter;
use times::Millis;

use super::conditions::RequestSelector;

/// Memory charged to a delayed request in addition to its connection, in bytes.
const DELAYED_BYTES: usize = 4096;

/// Fault rules of a route, on one core.
pub struct FaultRules {
    rules: Vec<FaultRule>,
    injected: Arc<RuleCounter>,
}

struct FaultRule {
    requests: RequestSelector,
    delay: Millis,
    status: Option<Status>,
    aborts: bool,
}

impl FaultRules {
    /// Creates the rules of a route. `None` if it has none.
    pub fn new(faults: &[config::InjectedFault], injected: Arc<RuleCounter>) -> Option<FaultRules> {
        let rule = |fault: &config::InjectedFault| FaultRule {
            requests: RequestSelector::new(fault.when.as_ref(), fault.share),
            delay: fault.delay.into(),
            status: fault.status.and_then(Status::of),
            aborts: fault.abort,
        };
        (!faults.is_empty()).then(|| FaultRules { rules: faults.iter().map(rule).collect(), injected })
    }

    /// Injects the first fault that applies to a request. Returns `false` if the request has been answered.
    ///
    /// # Errors
    /// The client is gone, or the fault closes its connection.
    pub(super) async fn inject(&self, exchange: &mut Exchange<'_>) -> Result<bool, Fault> {
        let Some(rule) = self.rules.iter().find(|rule| rule.requests.selects(&exchange.request())) else {
            return Ok(true);
        };
        self.injected.add(1);
        if !rule.delay.is_zero() {
            exchange.hold(DELAYED_BYTES);
            let waited = exchange.unless_disconnected(exchange.core().sleep(rule.delay)).await;
            exchange.hold(0);
            waited?;
        }
        if rule.aborts {
            // Handled like a client that is gone: nothing is sent.
            return Err(Fault::Disconnected);
        }
        let Some(status) = rule.status else { return Ok(true) };
        let mut fields = Fields::new();
        fields.push(Name::CacheControl, b"no-store");
        exchange.refuse_with(status, "a fault that the configuration injects (`fault`)", &fields).await?;
        Ok(false)
    }
}
