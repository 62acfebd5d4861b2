//! Request methods (RFC 9110 section 9).

use crate::scan;

/// A request method. Methods are case-sensitive; an unlisted method is `Other`, and its name is in the head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // the names are the documentation
pub enum Method {
    #[default]
    Get,
    Head,
    Post,
    Put,
    Delete,
    Connect,
    Options,
    Trace,
    Patch,
    Other,
}

impl Method {
    /// Whether this is the name of a method that is served: a token without lower-case letters. Names are case-sensitive
    /// (RFC 9110 section 9.1), and applications that ignore the case would take `delete` for a method that conditions
    /// of routes do not know.
    #[must_use]
    pub fn is_name(name: &[u8]) -> bool {
        scan::is_token(name) && !name.iter().any(u8::is_ascii_lowercase)
    }

    /// The method of this name.
    #[must_use]
    pub fn of(name: &[u8]) -> Method {
        match name {
            b"GET" => Method::Get,
            b"HEAD" => Method::Head,
            b"POST" => Method::Post,
            b"PUT" => Method::Put,
            b"DELETE" => Method::Delete,
            b"CONNECT" => Method::Connect,
            b"OPTIONS" => Method::Options,
            b"TRACE" => Method::Trace,
            b"PATCH" => Method::Patch,
            _ => Method::Other,
        }
    }

    /// Whether the method is safe (RFC 9110 section 9.2.1).
    #[must_use]
    pub const fn is_safe(self) -> bool {
        matches!(self, Method::Get | Method::Head | Method::Options | Method::Trace)
    }

    /// Whether the method is idempotent (RFC 9110 section 9.2.2).
    #[must_use]
    pub const fn is_idempotent(self) -> bool {
        self.is_safe() || matches!(self, Method::Put | Method::Delete)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_no_lower_case_letters() {
        assert!(["GET", "M-SEARCH", "FOO_1", "*"].iter().all(|name| Method::is_name(name.as_bytes())));
        assert!(
            ["", "delete", "Get", "POSt", "A B", "A/B"].iter().all(|name| !Method::is_name(name.as_bytes()))
        );
    }
}
