//! Request ids and trace contexts.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};

use http::ids::{is_request_id, is_tracestate, traceparent};
use http::{Name, RequestId, RequestIds, TraceSpan};
use net::Request;
use otlp::tracing::{IdSource, Tracing};
use shapes::share::SHARE_MAX;

/// Rules for request ids and traces.
#[derive(Clone, Debug)]
pub struct IdRules {
    pub(crate) request: IdSource,
    /// Senders whose traces are continued, and the share of new traces that are sampled, in millionths.
    /// `None` disables traces.
    pub(crate) trace: Option<(IdSource, u32)>,
}

/// Generator of the ids of one core. Ids are pseudo-random; other ids cannot be predicted from known ones.
pub(crate) struct IdGenerator {
    key: RandomState,
    count: Cell<u64>,
    /// The upper half of a wide id is this number plus a counter, so that ids are unique.
    first: u64,
}

impl IdGenerator {
    pub(crate) fn new() -> IdGenerator {
        let key = RandomState::new();
        let first = key.hash_one("first");
        IdGenerator { key, count: Cell::new(0), first }
    }

    pub(crate) fn next(&self) -> u64 {
        let made = self.count.get();
        self.count.set(made.wrapping_add(1));
        self.key.hash_one(made)
    }

    fn next_wide(&self) -> u128 {
        let upper = self.first.wrapping_add(self.count.get());
        // Zero is not a valid trace id.
        (u128::from(upper) << 64 | u128::from(self.next())).max(1)
    }
}

impl IdRules {
    /// Creates the rules of `request_ids` and `[tracing]`.
    pub fn new(request_ids: IdSource, tracing: &Tracing) -> IdRules {
        IdRules { request: request_ids, trace: tracing.enabled.then_some((tracing.from, tracing.sample)) }
    }

    /// Returns the ids of a request. The sender must have been determined before ([`Request::client`]).
    pub(crate) fn ids(&self, request: &Request<'_>, generator: &IdGenerator) -> RequestIds {
        let is_trusted = request.client().trusted_dialect.is_some();
        let uses = |source| match source {
            IdSource::Off | IdSource::New => false,
            IdSource::Trusted => is_trusted,
            IdSource::Any => true,
        };
        let has_valid_id =
            || uses(self.request) && single_field(request, Name::XRequestId).is_some_and(is_request_id);
        let id = match self.request {
            IdSource::Off => RequestId::None,
            _ if has_valid_id() => RequestId::Received,
            _ => RequestId::Generated(generator.next_wide()),
        };
        let trace = self.trace.map(|(from, share)| {
            let sent = single_field(request, Name::Traceparent).filter(|_| uses(from)).and_then(traceparent);
            let span = generator.next().max(1);
            match sent {
                Some((trace, parent, is_sampled)) => {
                    let has_state = values(request, Name::Tracestate).all(is_tracestate);
                    TraceSpan { trace, parent, span, is_sampled, has_tracestate: has_state }
                }
                None => {
                    let trace = generator.next_wide();
                    // Independent of the lower half of the id, which other systems may use for sampling.
                    let is_sampled = generator.next() % u64::from(SHARE_MAX) < u64::from(share);
                    TraceSpan { trace, parent: 0, span, is_sampled, has_tracestate: false }
                }
            }
        });
        RequestIds { request: id, trace }
    }
}

fn values<'x>(request: &Request<'x>, name: Name) -> impl Iterator<Item = &'x [u8]> {
    request.fields().filter(move |(id, ..)| *id == name).map(|(_, _, value)| value)
}

/// Returns the value of a field that occurs exactly once.
fn single_field<'x>(request: &Request<'x>, name: Name) -> Option<&'x [u8]> {
    let mut all = values(request, name);
    all.next().filter(|_| all.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_million_ids_are_different() {
        let maker = IdGenerator::new();
        let mut ids: Vec<u128> = (0..1_000_000).map(|_| maker.next_wide()).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 1_000_000);
    }
}
