//! Values of `Cache-Status` (RFC 9211), which reports the cache's handling of a request.

use crate::not_stored::NotStored;

/// Reason for forwarding a request to the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardReason {
    /// The cache does not handle the request, because of its method, its fields or the route.
    Bypass,
    /// The method requires forwarding.
    Method,
    /// Nothing is stored for the URL.
    UriMiss,
    /// Stored responses were selected by other request field values.
    VaryMiss,
    /// The stored response is stale.
    Stale,
}

impl ForwardReason {
    /// Returns the value of the `fwd` parameter.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            ForwardReason::Bypass => "bypass",
            ForwardReason::Method => "method",
            ForwardReason::UriMiss => "uri-miss",
            ForwardReason::VaryMiss => "vary-miss",
            ForwardReason::Stale => "stale",
        }
    }
}

/// Name of this cache in the field.
const NAME: &str = "Komainu";

/// Returns the value for a response from the cache.
#[must_use]
pub fn hit(ttl_s: i64) -> String {
    format!("{NAME}; hit; ttl={ttl_s}")
}

/// Returns the value for a stored response that the origin has validated, or that is used because the origin
/// responded with this status.
#[must_use]
pub fn validated(status: Option<u16>, ttl_s: i64, detail: &str) -> String {
    let status = status.map(|status| format!("; fwd-status={status}")).unwrap_or_default();
    let detail = if detail.is_empty() { String::new() } else { format!("; detail={detail}") };
    format!("{NAME}; hit; fwd=stale{status}; ttl={ttl_s}{detail}")
}

/// Returns the value for a response of the origin.
#[must_use]
pub fn forwarded(reason: ForwardReason, collapsed: bool, outcome: Option<Result<i64, NotStored>>) -> String {
    let collapsed = if collapsed { "; collapsed" } else { "" };
    let outcome = match outcome {
        None | Some(Err(_)) => String::new(),
        Some(Ok(ttl_s)) => format!("; stored; ttl={ttl_s}"),
    };
    format!("{NAME}; fwd={}{collapsed}{outcome}", reason.text())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_status_values_are_formatted() {
        assert_eq!(hit(-5), "Komainu; hit; ttl=-5");
        assert_eq!(
            forwarded(ForwardReason::UriMiss, false, Some(Ok(60))),
            "Komainu; fwd=uri-miss; stored; ttl=60"
        );
        assert_eq!(forwarded(ForwardReason::Stale, true, None), "Komainu; fwd=stale; collapsed");
        assert_eq!(
            forwarded(ForwardReason::Bypass, false, Some(Err(NotStored::Private))),
            "Komainu; fwd=bypass"
        );
        assert_eq!(validated(Some(304), 60, ""), "Komainu; hit; fwd=stale; fwd-status=304; ttl=60");
        assert_eq!(validated(None, -3, "unreachable"), "Komainu; hit; fwd=stale; ttl=-3; detail=unreachable");
    }
}
