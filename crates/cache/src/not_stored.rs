//! Reasons for not storing a response.

use crate::tags::TooManyTags;
use crate::vary::VaryFault;

/// Reason for not storing a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotStored {
    /// The request has `no-store`.
    RequestNoStore,
    /// The response has `no-store`.
    NoStore,
    /// The response is for a single user.
    Private,
    /// The request had credentials, and the response does not permit storing.
    Authorization,
    /// The request had cookies, and the response is fresh only by a rule.
    Cookie,
    /// The response sets a cookie.
    SetCookie,
    /// A rule forbids storing.
    Rule,
    /// The response's `No-Vary-Search` differs from the one by which its key was made.
    NoVarySearch,
    /// A partial response, an error of this server, or a status with unknown caching rules.
    Status,
    /// `Vary` depends on properties that requests do not show, or on too many.
    Vary,
    /// The response has no freshness information and cannot be validated.
    NoFreshness,
    /// The response exceeds the maximum object size.
    TooLarge,
    /// The response has too many tags, or one that is too long.
    Tags,
    /// The server is short of memory.
    Memory,
    /// The response was purged while it was being received.
    Purged,
}

impl NotStored {
    /// All reasons, in order of declaration.
    pub const ALL: [NotStored; 15] = [
        NotStored::RequestNoStore,
        NotStored::NoStore,
        NotStored::Private,
        NotStored::Authorization,
        NotStored::Cookie,
        NotStored::SetCookie,
        NotStored::Rule,
        NotStored::NoVarySearch,
        NotStored::Status,
        NotStored::Vary,
        NotStored::NoFreshness,
        NotStored::TooLarge,
        NotStored::Tags,
        NotStored::Memory,
        NotStored::Purged,
    ];

    /// Returns the explanation for `komainu cache why`.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            NotStored::RequestNoStore => "the request says no-store",
            NotStored::NoStore => "the response says no-store",
            NotStored::Private => "the response says private",
            NotStored::Authorization => {
                "the request has Authorization, and the response says none of public, s-maxage and must-revalidate"
            }
            NotStored::Cookie => {
                "the request has cookies, and the response does not say that it is for all; a rule's ttl does not apply then"
            }
            NotStored::SetCookie => "the response sets a cookie",
            NotStored::Rule => "a rule of the route says so",
            NotStored::NoVarySearch => {
                "the response says something new of the queries that it answers (No-Vary-Search)"
            }
            NotStored::Status => "responses of this status are not stored",
            NotStored::Vary => "the response varies by *, or by more than is remembered",
            NotStored::NoFreshness => "nothing says how long the response is fresh",
            NotStored::TooLarge => "the response is larger than a stored one may be",
            NotStored::Tags => "the response has more than 1,024 tags, or one of more than 256 bytes",
            NotStored::Memory => "the server is short of memory",
            NotStored::Purged => "the URL was purged while the response was received",
        }
    }

    /// Whether other requests for the same URL are likely to have the same result.
    #[must_use]
    pub const fn is_of_url(self) -> bool {
        !matches!(
            self,
            NotStored::RequestNoStore | NotStored::Authorization | NotStored::Memory | NotStored::Purged
        )
    }
}

impl From<TooManyTags> for NotStored {
    fn from(_: TooManyTags) -> NotStored {
        NotStored::Tags
    }
}

impl From<VaryFault> for NotStored {
    fn from(_: VaryFault) -> NotStored {
        NotStored::Vary
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn not_stored_reasons_are_listed_in_numeric_order() {
        for (index, why) in NotStored::ALL.into_iter().enumerate() {
            assert_eq!((why as usize, why.text().is_empty()), (index, false));
        }
    }
}
