//! Conditions of directives, evaluated against a request.

use std::cell::RefCell;
use std::hash::{BuildHasher, RandomState};

use admission::ShareSampler;
use config::Conditions;
use engine::clients::access::country;
use engine::clients::proxies::peer_set;
use net::{PeerSet, Request};

/// Selects the requests that a directive applies to, by conditions and a random share.
pub(crate) struct RequestSelector {
    when: Option<RequestConditions>,
    /// Share of the requests that meet the conditions, in millionths.
    share: u32,
    draw: RefCell<ShareSampler>,
}

impl RequestSelector {
    pub(crate) fn new(when: Option<&Conditions>, share: u32) -> RequestSelector {
        let draw = RefCell::new(ShareSampler::new(RandomState::new().hash_one(0)));
        RequestSelector { when: when.map(RequestConditions::new), share, draw }
    }

    /// Whether the directive applies to a request.
    pub(crate) fn selects(&self, request: &Request<'_>) -> bool {
        self.when.as_ref().is_none_or(|when| when.matches(request))
            && self.draw.borrow_mut().is_sampled(self.share)
    }
}

/// Conditions of a directive, for one core.
pub(crate) struct RequestConditions {
    conditions: Conditions,
    client: Option<PeerSet>,
}

impl RequestConditions {
    pub(crate) fn new(conditions: &Conditions) -> RequestConditions {
        let client = (!conditions.client.is_empty()).then(|| peer_set(&conditions.client));
        RequestConditions { conditions: conditions.clone(), client }
    }

    /// Whether a request meets all conditions. Of several fields or cookies with the same name, one match
    /// suffices.
    pub(crate) fn matches(&self, request: &Request<'_>) -> bool {
        let of = &self.conditions;
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
            && of.query.iter().all(|(name, pattern)| pattern.matches_parameter(query, name))
            && self.client.as_ref().is_none_or(|client| client.contains(request.client().address))
            && (of.country.is_empty() || {
                let country = country(request);
                of.country.iter().any(|one| one.matches(country))
            })
    }
}
