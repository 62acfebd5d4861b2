//! Fields that name the client of a forwarded request: `X-Forwarded-For` and `Forwarded`.

use std::io::Write;
use std::net::IpAddr;

use http::encode::FieldWriter;

use crate::template::TemplateContext;

/// Each octet in decimal, followed by a dot, and the length including the dot.
const OCTETS: [([u8; 4], usize); 256] = {
    let mut octets = [([b'.'; 4], 0); 256];
    let mut octet = 0;
    while octet < 256 {
        let digits = [b'0' + (octet / 100) as u8, b'0' + (octet / 10 % 10) as u8, b'0' + (octet % 10) as u8];
        let skipped = if octet < 10 {
            2
        } else if octet < 100 {
            1
        } else {
            0
        };
        let mut at = skipped;
        while at < 3 {
            octets[octet].0[at - skipped] = digits[at];
            at += 1;
        }
        octets[octet].1 = 4 - skipped;
        octet += 1;
    }
    octets
};

pub(super) fn write_ip(out: &mut Vec<u8>, ip: IpAddr) {
    // Avoids `format!` for IPv4, because this runs for every request.
    if let IpAddr::V4(v4) = ip {
        let mut text = [0; 16];
        let mut len = 0;
        for octet in v4.octets() {
            let (digits, count) = OCTETS[usize::from(octet)];
            text[len..len + 4].copy_from_slice(&digits);
            len += count;
        }
        out.extend_from_slice(&text[..len - 1]);
        return;
    }
    out.extend_from_slice(ip.to_string().as_bytes());
}

/// Writes `X-Forwarded-For` with the values from a trusted proxy and the addresses that this one adds.
pub(super) fn write_forwarded_for<'x>(
    lines: &mut FieldWriter<'_>,
    before: impl Iterator<Item = &'x [u8]>,
    ours: [Option<IpAddr>; 2],
) {
    let mut before = before.peekable();
    if before.peek().is_none() && ours == [None, None] {
        return;
    }
    lines.begin(b"X-Forwarded-For");
    let mut between: &[u8] = b"";
    for value in before {
        lines.part(between);
        lines.part(value);
        between = b", ";
    }
    for ip in ours.into_iter().flatten() {
        lines.part(between);
        lines.part_with(|out| write_ip(out, ip));
        between = b", ";
    }
    lines.end();
}

/// Writes one element of `Forwarded` (RFC 7239 section 4).
pub(super) fn write_forwarded_element(
    lines: &mut FieldWriter<'_>,
    context: &TemplateContext<'_>,
    ip: Option<IpAddr>,
) {
    let mut text = Vec::new();
    match ip {
        Some(IpAddr::V6(v6)) => _ = write!(text, "for=\"[{v6}]\""),
        Some(IpAddr::V4(v4)) => _ = write!(text, "for={v4}"),
        None => text.extend_from_slice(b"for=unknown"),
    }
    if !context.authority().is_empty() {
        text.extend_from_slice(b";host=\"");
        text.extend_from_slice(context.authority());
        text.push(b'"');
    }
    text.extend_from_slice(b";proto=");
    text.extend_from_slice(context.scheme().as_bytes());
    lines.part(&text);
}
