//! Fields of HTTP/1 that become fields of a section.

use http::{Name, scan};

/// Whether the field belongs to a connection of HTTP/1, and to no message of HTTP/2 or 3 (RFC 9113 section
/// 8.2.2, RFC 9114 section 4.2).
#[must_use]
pub const fn is_connection_specific(id: Name) -> bool {
    matches!(
        id,
        Name::Connection | Name::KeepAlive | Name::ProxyConnection | Name::TransferEncoding | Name::Upgrade
    )
}

/// Calls `take` with the name and the value of each field line in HTTP/1 form.
pub fn for_each(lines: &[u8], mut take: impl FnMut(&[u8], &[u8])) {
    debug_assert!(lines.is_empty() || lines.ends_with(b"\r\n"));
    for line in lines.split_inclusive(|&byte| byte == b'\n') {
        let line = line.strip_suffix(b"\r\n").unwrap_or(line);
        if let Some(colon) = line.iter().position(|&byte| byte == b':') {
            take(&line[..colon], scan::trim(&line[colon + 1..]));
        }
    }
}
