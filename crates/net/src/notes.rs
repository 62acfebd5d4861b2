//! What handlers report of a request, for logs and metrics.

use std::rc::Rc;

/// What a cache has done for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CacheOutcome {
    /// Answered with a fresh stored response.
    Hit,
    /// Answered with a stale one, while it is validated.
    Stale,
    /// Answered with one that the origin has just found valid, or that is used because the origin failed.
    Validated,
    /// Answered with the response that another request has asked for.
    Collapsed,
    /// The origin was asked.
    Miss,
    /// The cache had no part in it.
    Bypass,
}

impl CacheOutcome {
    /// All of them, in the order of their numbers.
    pub const ALL: [CacheOutcome; 6] = [
        CacheOutcome::Hit,
        CacheOutcome::Stale,
        CacheOutcome::Validated,
        CacheOutcome::Collapsed,
        CacheOutcome::Miss,
        CacheOutcome::Bypass,
    ];

    /// Its name in logs and metrics.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            CacheOutcome::Hit => "hit",
            CacheOutcome::Stale => "stale",
            CacheOutcome::Validated => "validated",
            CacheOutcome::Collapsed => "collapsed",
            CacheOutcome::Miss => "miss",
            CacheOutcome::Bypass => "bypass",
        }
    }
}

/// What handlers report of a request. Durations are in microseconds of the core's clock; `None` where there was nothing of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestNotes {
    /// In queues: for an upstream server at its limit, for a worker of an application.
    pub queue_us: Option<u64>,
    /// To make connections to upstream servers. None was made where one was kept.
    pub connect_us: Option<u64>,
    /// From the request to the head of the response of the last upstream server that was asked.
    pub upstream_us: Option<u64>,
    /// The URL of that server.
    pub upstream: Option<Rc<str>>,
    /// How often upstream servers were asked.
    pub attempts: u32,
    /// The branch of a split that has served it.
    pub branch: Option<Rc<str>>,
    /// What the cache has done.
    pub cache: Option<CacheOutcome>,
    /// Why this server has answered by itself with an error: one of a fixed list of texts.
    pub refusal: Option<&'static str>,
}
