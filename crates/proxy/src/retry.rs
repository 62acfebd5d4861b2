//! Decides whether a failed request is retried, within a budget. Decisions are pure functions.

use http::{Method, Status};
use times::Millis;

use crate::failure::{AttemptFailure, CLOSED_BEFORE_ANSWER};
use crate::options::Retry;

/// Initial and maximum number of available retries.
const BUDGET_FULL: u32 = 10;
/// Hundredths per retry, the unit of the budget.
const HUNDREDTHS_PER_RETRY: u32 = 100;

/// Retry budget of a group on one core.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RetryBudget {
    hundredths: u32,
}

impl RetryBudget {
    pub(crate) fn full() -> RetryBudget {
        RetryBudget { hundredths: BUDGET_FULL * HUNDREDTHS_PER_RETRY }
    }

    /// Adds the share of a retry that a new request earns.
    #[must_use]
    pub(crate) fn with_request(self, options: &Retry) -> RetryBudget {
        let earned = self.hundredths.saturating_add(options.budget_percent);
        RetryBudget { hundredths: earned.min(BUDGET_FULL * HUNDREDTHS_PER_RETRY) }
    }

    /// Spends one retry; `None` if the budget does not allow one.
    pub(crate) fn spend(self) -> Option<RetryBudget> {
        self.hundredths.checked_sub(HUNDREDTHS_PER_RETRY).map(|hundredths| RetryBudget { hundredths })
    }
}

/// Progress of a request at the time of a failure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttemptProgress {
    pub(crate) method: Method,
    /// Whether the response to the client has begun, so that no retry is possible.
    pub(crate) has_response_begun: bool,
    /// Whether the request's body can be sent again from its beginning.
    pub(crate) is_replayable: bool,
    /// Attempts made so far, except one that does not count.
    pub(crate) attempts: u32,
    /// Whether an attempt that does not count was made.
    pub(crate) has_tried_fresh: bool,
}

/// Decision after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetryDecision {
    /// Retry on another connection, because the failure says nothing about the server. Not counted as an
    /// attempt or against the budget, so allowed once per request.
    OtherConnection,
    /// Retry, on another server if there is one and the budget allows.
    OtherServer,
    /// Send an error response to the client.
    GiveUp,
}

/// Decides what follows a failure. A failed connection has sent nothing, so any request may go elsewhere. A
/// kept connection that closed without a response has most likely not been read from, but this is not
/// certain: as after any failure once the request is sent, only idempotent methods are retried (RFC 9110
/// section 9.2.2).
pub(crate) fn decide(failure: &AttemptFailure, progress: &AttemptProgress, options: &Retry) -> RetryDecision {
    let harmless = progress.method.is_idempotent() || options.non_idempotent;
    let again = !progress.has_response_begun && progress.is_replayable;
    match failure {
        AttemptFailure::Stale if !harmless => RetryDecision::GiveUp,
        AttemptFailure::Stale | AttemptFailure::Unprocessed if again && !progress.has_tried_fresh => {
            RetryDecision::OtherConnection
        }
        _ if !again || progress.attempts >= options.attempts_max => RetryDecision::GiveUp,
        AttemptFailure::Connect(_)
        | AttemptFailure::ConnectTimeout
        | AttemptFailure::ResourcesExhausted
        | AttemptFailure::Stale
        | AttemptFailure::Unprocessed => RetryDecision::OtherServer,
        AttemptFailure::ConnectionLost
        | AttemptFailure::BodyOwed(_)
        | AttemptFailure::HeadTimeout
        | AttemptFailure::RetryableStatus(_)
            if harmless =>
        {
            RetryDecision::OtherServer
        }
        // A retry would most likely get an invalid response again.
        _ => RetryDecision::GiveUp,
    }
}

/// Returns a time from `least` to one and a half of it, so that requests that have failed together are not sent again together.
pub(crate) fn with_jitter(least: Millis, random: u64) -> Millis {
    Millis(least.0 + random % (least.0 / 2 + 1))
}

/// Returns the status and the reason of the response to the client.
pub(crate) fn error_response(failure: &AttemptFailure) -> (Status, &'static str) {
    match failure {
        AttemptFailure::Connect(reason) => (Status::BAD_GATEWAY, reason),
        AttemptFailure::ResourcesExhausted => {
            (Status::SERVICE_UNAVAILABLE, "no descriptor or port is left to connect with")
        }
        AttemptFailure::ConnectTimeout => {
            (Status::GATEWAY_TIMEOUT, "the upstream could not be reached in time")
        }
        AttemptFailure::Unprocessed => (Status::BAD_GATEWAY, "the upstream refuses the request's stream"),
        AttemptFailure::Stale | AttemptFailure::ConnectionLost => (Status::BAD_GATEWAY, CLOSED_BEFORE_ANSWER),
        AttemptFailure::HeadTimeout => (Status::GATEWAY_TIMEOUT, "the upstream took too long to answer"),
        AttemptFailure::Invalid(reason)
        | AttemptFailure::Repairable(reason, _)
        | AttemptFailure::BodyOwed(reason)
        | AttemptFailure::Body(reason) => (Status::BAD_GATEWAY, reason),
        AttemptFailure::RetryableStatus(status) => (*status, "the upstream could not answer"),
        AttemptFailure::NotUpstream(_) => (Status::INTERNAL_SERVER_ERROR, "the server could not answer"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_safe_requests_are_retried() {
        use Method::{Get, Post, Put};
        use RetryDecision::{GiveUp, OtherConnection, OtherServer};
        let options = Retry::default();
        for (failure, method, replayable, begun, attempts, want) in [
            (AttemptFailure::Connect(""), Post, true, false, 1, OtherServer),
            (AttemptFailure::ConnectTimeout, Post, true, false, 1, OtherServer),
            (AttemptFailure::Connect(""), Post, true, false, 3, GiveUp),
            (AttemptFailure::Connect(""), Post, false, false, 1, GiveUp),
            (AttemptFailure::Stale, Get, true, false, 3, OtherConnection),
            (AttemptFailure::Stale, Put, true, false, 1, OtherConnection),
            (AttemptFailure::Stale, Put, false, false, 1, GiveUp),
            (AttemptFailure::Stale, Post, true, false, 1, GiveUp),
            (AttemptFailure::ConnectionLost, Get, true, false, 1, OtherServer),
            (AttemptFailure::ConnectionLost, Post, true, false, 1, GiveUp),
            (AttemptFailure::HeadTimeout, Get, true, false, 1, OtherServer),
            (AttemptFailure::HeadTimeout, Get, true, false, 3, GiveUp),
            (AttemptFailure::RetryableStatus(Status::SERVICE_UNAVAILABLE), Get, true, false, 1, OtherServer),
            (AttemptFailure::Invalid(""), Get, true, false, 1, GiveUp),
            (AttemptFailure::ConnectionLost, Get, true, true, 1, GiveUp),
        ] {
            let progress = AttemptProgress {
                method,
                has_response_begun: begun,
                is_replayable: replayable,
                attempts,
                has_tried_fresh: false,
            };
            assert_eq!(decide(&failure, &progress, &options), want, "{failure:?} {progress:?}");
        }
        let options = Retry { non_idempotent: true, ..options };
        let mut progress = AttemptProgress {
            method: Post,
            has_response_begun: false,
            is_replayable: true,
            attempts: 1,
            has_tried_fresh: false,
        };
        let careful = Retry::default();
        assert_eq!(decide(&AttemptFailure::Stale, &progress, &options), OtherConnection);
        assert_eq!(
            decide(&AttemptFailure::Unprocessed, &progress, &careful),
            OtherConnection,
            "nothing was done"
        );
        progress.has_tried_fresh = true;
        assert_eq!(decide(&AttemptFailure::Stale, &progress, &options), OtherServer, "it counts from now on");
        assert_eq!(decide(&AttemptFailure::Stale, &progress, &careful), GiveUp);
        assert_eq!(decide(&AttemptFailure::Unprocessed, &progress, &careful), OtherServer);
        progress.attempts = careful.attempts_max;
        assert_eq!(decide(&AttemptFailure::Stale, &progress, &options), GiveUp);
        assert_eq!(decide(&AttemptFailure::Unprocessed, &progress, &careful), GiveUp);
        progress = AttemptProgress { attempts: 1, is_replayable: false, ..progress };
        assert_eq!(decide(&AttemptFailure::Unprocessed, &progress, &careful), GiveUp);
    }

    #[test]
    fn waits_are_at_least_the_backoff_and_differ() {
        let waits: Vec<u64> = (0..1_000).map(|random| with_jitter(Millis(100), random * 7_919).0).collect();
        assert!(waits.iter().all(|wait| (100..=150).contains(wait)), "{waits:?}");
        assert!([100, 150].iter().all(|bound| waits.contains(bound)));
        assert_eq!(with_jitter(Millis(1), u64::MAX), Millis(1));
    }

    #[test]
    fn retries_are_limited_to_a_share_of_requests() {
        let options = Retry { budget_percent: 20, ..Retry::default() };
        let mut budget = RetryBudget::full();
        let mut retries = 0;
        for _ in 0..1_000 {
            budget = budget.with_request(&options);
            if let Some(rest) = budget.spend() {
                budget = rest;
                retries += 1;
            }
        }
        // Ten retries are available initially; every request but the first, which finds the budget full, adds
        // a fifth.
        assert_eq!(retries, 10 + 199);
    }
}
