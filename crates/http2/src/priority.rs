//! Priorities of responses (RFC 9218).

use http::scan;

/// How urgent a response is, as the `Priority` field and PRIORITY_UPDATE frames say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Priority {
    /// 0 to 7; 0 is the most urgent, 3 the default.
    pub urgency: u8,
    /// Whether the client uses parts of the response as they arrive, so that responses of one urgency take turns.
    pub incremental: bool,
}

impl Default for Priority {
    fn default() -> Priority {
        Priority { urgency: 3, incremental: false }
    }
}

impl Priority {
    /// The priority that a field value or frame names. What is unknown or invalid is ignored, as RFC 9218 section 4 wants it:
    /// a member that is not understood has its default.
    #[must_use]
    pub fn of(value: &[u8]) -> Priority {
        let mut priority = Priority::default();
        for member in scan::list(value) {
            let end = member.iter().position(|&byte| byte == b';').unwrap_or(member.len());
            match scan::trim(&member[..end]) {
                [b'u', b'=', digit @ b'0'..=b'7'] => priority.urgency = digit - b'0',
                b"i" | b"i=?1" => priority.incremental = true,
                b"i=?0" => priority.incremental = false,
                _ => {}
            }
        }
        priority
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_that_are_known_count() {
        for (value, urgency, incremental) in [
            ("", 3, false),
            ("u=0", 0, false),
            ("i", 3, true),
            ("u=5, i", 5, true),
            ("i=?0,u=7", 7, false),
            ("u=2;x=1 , i=?1;y", 2, true),
            ("u=8", 3, false),
            ("u=-1, i", 3, true),
            ("u=1, u=4", 4, false),
            ("\"u=1\", x=(a b), i", 3, true),
        ] {
            assert_eq!(Priority::of(value.as_bytes()), Priority { urgency, incremental }, "{value:?}");
        }
    }
}
