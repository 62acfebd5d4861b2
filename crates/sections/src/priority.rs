//! Priorities of responses (RFC 9218).

use http::scan;

/// The priority of a response, as in the `Priority` field and PRIORITY_UPDATE frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Priority {
    /// 0 to 7; 0 is the most urgent, 3 the default.
    pub urgency: u8,
    /// Whether the client can process parts of the response, so that responses of equal urgency are
    /// interleaved.
    pub is_incremental: bool,
}

impl Default for Priority {
    fn default() -> Priority {
        Priority { urgency: 3, is_incremental: false }
    }
}

impl Priority {
    /// Parses a field value or a frame's value. Unknown or invalid members have their defaults (RFC 9218
    /// section 4).
    #[must_use]
    pub fn of(value: &[u8]) -> Priority {
        let mut priority = Priority::default();
        for member in scan::list(value) {
            let end = member.iter().position(|&byte| byte == b';').unwrap_or(member.len());
            match scan::trim(&member[..end]) {
                [b'u', b'=', digit @ b'0'..=b'7'] => priority.urgency = digit - b'0',
                b"i" | b"i=?1" => priority.is_incremental = true,
                b"i=?0" => priority.is_incremental = false,
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
    fn priority_field_is_parsed_and_unknown_members_ignored() {
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
            assert_eq!(
                Priority::of(value.as_bytes()),
                Priority { urgency, is_incremental: incremental },
                "{value:?}"
            );
        }
    }
}
