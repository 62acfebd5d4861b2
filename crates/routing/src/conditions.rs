//! Properties of a request that routes are matched against.

use config::matcher::{ConditionFields, RouteRequest};
use engine::clients::access;
use net::Request;

/// Returns the properties of a request, except for its fields, with this method, path and query. The country
/// is looked up only if a route uses it.
pub(crate) fn route_request<'a>(
    request: &Request<'a>,
    method: &'a [u8],
    path: &'a [u8],
    query: &'a [u8],
    uses_country: bool,
) -> RouteRequest<'a> {
    RouteRequest {
        host: request.authority(),
        method,
        path,
        query,
        client: access::address(request.client().address),
        listener_key: request.listener_key(),
        country: uses_country.then(|| access::country(request)).flatten(),
    }
}

/// Fields of a request. A condition is met if any of several fields with the same name meets it.
pub(crate) struct RouteRequestFields<'r, 'x>(pub(crate) &'r Request<'x>);

impl ConditionFields for RouteRequestFields<'_, '_> {
    fn any_value(&self, name: &str, fits: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        // The host may come from the request target instead of the field (RFC 9112 section 3.2.2).
        if name == "host" {
            return fits(self.0.authority());
        }
        let mut named = self
            .0
            .fields()
            .filter(|(_, other, _)| other.eq_ignore_ascii_case(name.as_bytes()))
            .map(|(.., value)| value);
        if name != "cookie" {
            return named.any(fits);
        }
        // Over HTTP/2 and HTTP/3, the fields were joined when they were received (RFC 9113 section 8.2.3).
        let Some(first) = named.next() else { return false };
        match named.next() {
            None => fits(first),
            Some(second) => {
                let all: Vec<&[u8]> = [first, second].into_iter().chain(named).collect();
                fits(&all.join(&b"; "[..]))
            }
        }
    }
}
