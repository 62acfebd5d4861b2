//! Conditions of directives, evaluated against a request.

use std::cell::RefCell;
use std::hash::{BuildHasher, RandomState};

use admission::ShareDraw;
use config::Conditions;
use config::matcher::has_parameter;
use engine::clients::access::country;
use engine::clients::proxies::sources;
use net::{Request, Sources};

/// Selects the requests that a directive applies to, by conditions and a random share.
pub(crate) struct ConcernedRequests {
    when: Option<RequestConditions>,
    /// Share of the requests that meet the conditions, in millionths.
    share: u32,
    draw: RefCell<ShareDraw>,
}

impl ConcernedRequests {
    pub(crate) fn new(when: Option<&Conditions>, share: u32) -> ConcernedRequests {
        let draw = RefCell::new(ShareDraw::new(RandomState::new().hash_one(0)));
        ConcernedRequests { when: when.map(RequestConditions::new), share, draw }
    }

    /// Whether the directive applies to a request.
    pub(crate) fn has(&self, request: &Request<'_>) -> bool {
        self.when.as_ref().is_none_or(|when| when.meets(request)) && self.draw.borrow_mut().is_in(self.share)
    }
}

/// Conditions of a directive, for one core.
pub(crate) struct RequestConditions {
    of: Conditions,
    client: Option<Sources>,
}

impl RequestConditions {
    pub(crate) fn new(of: &Conditions) -> RequestConditions {
        let client = (!of.client.is_empty()).then(|| sources(&of.client));
        RequestConditions { of: of.clone(), client }
    }

    /// Whether a request meets all conditions. Of several fields or cookies with the same name, one match
    /// suffices.
    pub(crate) fn meets(&self, request: &Request<'_>) -> bool {
        let of = &self.of;
        let has_field = |name: &String, fits: &dyn Fn(&[u8]) -> bool| {
            let is_of = |other: &[u8]| other.eq_ignore_ascii_case(name.as_bytes());
            request.fields().any(|(_, other, value)| is_of(other) && fits(value))
        };
        let has_cookie = |name: &String, fits: &dyn Fn(&[u8]) -> bool| {
            cache::vary::cookies(request.head()).any(|(other, value)| other == name.as_bytes() && fits(value))
        };
        let query = request.query().unwrap_or_default();
        of.header.iter().all(|(name, pattern)| has_field(name, &|value| pattern.matches_bytes(value)))
            && of.cookie.iter().all(|(name, pattern)| has_cookie(name, &|value| pattern.matches_bytes(value)))
            && of.query.iter().all(|(name, pattern)| has_parameter(query, name, pattern))
            && self.client.as_ref().is_none_or(|client| client.contains(request.client().address))
            && (of.country.is_empty() || {
                let country = country(request);
                of.country.iter().any(|one| one.matches(country))
            })
    }
}
