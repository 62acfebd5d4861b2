//! What routes look at in a request.

use config::matcher::{ConditionFields, RouteRequest};
use net::Request;

use engine::clients::access;

/// What routes look at in a request, besides its fields: with this method, path and query.
pub(crate) fn of_request<'a>(
    request: &Request<'a>,
    method: &'a [u8],
    (path, query): (&'a [u8], &'a [u8]),
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

/// The fields of a request: of several with one name, any may meet a condition.
pub(crate) struct FieldsOf<'r, 'x>(pub(crate) &'r Request<'x>);

impl ConditionFields for FieldsOf<'_, '_> {
    fn any(&self, name: &str, fits: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        // It is the request's, which may stand in its target instead (RFC 9112 section 3.2.2).
        if name == "host" {
            return fits(self.0.authority());
        }
        self.0.fields().any(|(_, other, value)| other.eq_ignore_ascii_case(name.as_bytes()) && fits(value))
    }
}
