//! Why a response is not stored.

use crate::tags::TooManyTags;
use crate::vary::VaryFault;

/// Why a response is not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotStored {
    /// The request says `no-store`.
    RequestNoStore,
    /// The response says `no-store`.
    NoStore,
    /// It is for one user.
    Private,
    /// The request had credentials, and the response does not allow to store it.
    Authorization,
    /// The request had cookies, and only a rule says that the response is fresh.
    Cookie,
    /// It sets a cookie.
    SetCookie,
    /// A rule says so.
    Rule,
    /// It says of queries that answer alike (`No-Vary-Search`) other things than the response that its key was made by.
    Search,
    /// It is a part, an error of this server, or of a status that is not understood.
    Status,
    /// It depends on what no request shows, or on too much.
    Vary,
    /// Nothing says how long it is fresh, and it cannot be validated.
    NoFreshness,
    /// It is larger than an object may be.
    TooLarge,
    /// It has more tags than are remembered, or one that is too long.
    Tags,
    /// The server is short of memory.
    Memory,
    /// It was purged while it was received.
    Purged,
}

impl NotStored {
    /// All of them, in their order.
    pub const ALL: [NotStored; 15] = [
        NotStored::RequestNoStore,
        NotStored::NoStore,
        NotStored::Private,
        NotStored::Authorization,
        NotStored::Cookie,
        NotStored::SetCookie,
        NotStored::Rule,
        NotStored::Search,
        NotStored::Status,
        NotStored::Vary,
        NotStored::NoFreshness,
        NotStored::TooLarge,
        NotStored::Tags,
        NotStored::Memory,
        NotStored::Purged,
    ];

    /// For `komainu cache why`.
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
            NotStored::Search => {
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

    /// Whether other requests for the same URL are likely to get such a response too.
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
    fn every_reason_has_its_place() {
        for (index, why) in NotStored::ALL.into_iter().enumerate() {
            assert_eq!((why as usize, why.text().is_empty()), (index, false));
        }
    }
}
