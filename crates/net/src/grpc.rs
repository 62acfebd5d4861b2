//! Support for gRPC as an intermediary: error responses and deadlines (the specification "gRPC over HTTP2"
//! and its mapping of HTTP statuses).

use http::{Fields, Name, Status, Version};
use times::Millis;

/// Whether a request is a gRPC call: over HTTP/2 or HTTP/3, with the content type `application/grpc` or a variant of
/// it.
pub(crate) fn is_call(version: Version, content_type: Option<&[u8]>) -> bool {
    matches!(version, Version::Http2 | Version::Http3) && content_type.is_some_and(is_content_type)
}

/// Excludes gRPC-Web (`application/grpc-web`), which is another protocol.
fn is_content_type(value: &[u8]) -> bool {
    let name = b"application/grpc";
    let Some((start, rest)) = value.split_at_checked(name.len()) else { return false };
    start.eq_ignore_ascii_case(name) && matches!(rest, [] | [b'+' | b';' | b' ', ..])
}

/// Parses `grpc-timeout`: at most eight digits and a unit. Rounds up to milliseconds.
pub(crate) fn timeout(value: &[u8]) -> Option<Millis> {
    let (unit, digits) = value.split_last()?;
    let amount = http::scan::parse_decimal(digits).filter(|_| digits.len() <= 8)?;
    Some(Millis(match unit {
        b'H' => amount * 3_600_000,
        b'M' => amount * 60_000,
        b'S' => amount * 1_000,
        b'm' => amount,
        b'u' => amount.div_ceil(1_000),
        b'n' => amount.div_ceil(1_000_000),
        _ => return None,
    }))
}

/// Returns the fields of a response that consists of `grpc-status` and `grpc-message`.
pub(crate) fn error(status: Status, reason: &str) -> Fields {
    let code: &[u8] = match status.code() {
        401 => b"16",             // UNAUTHENTICATED
        403 => b"7",              // PERMISSION_DENIED
        404 | 405 | 501 => b"12", // UNIMPLEMENTED
        408 | 504 => b"4",        // DEADLINE_EXCEEDED
        413 | 431 => b"8",        // RESOURCE_EXHAUSTED
        429 | 502 | 503 => b"14", // UNAVAILABLE
        400 | 500 => b"13",       // INTERNAL
        _ => b"2",                // UNKNOWN
    };
    let mut message = Vec::with_capacity(reason.len());
    for byte in reason.bytes() {
        match byte {
            b'%' | ..b' ' | 0x7f.. => message.extend_from_slice(format!("%{byte:02X}").as_bytes()),
            byte => message.push(byte),
        }
    }
    let mut fields = Fields::new();
    fields.push(Name::ContentType, b"application/grpc");
    fields.try_push(b"grpc-status", code).expect("a valid field");
    fields.try_push(b"grpc-message", &message).expect("a valid field");
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_recognized_by_their_content_type() {
        for (value, is_call) in [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("Application/GRPC; x=y", true),
            ("application/grpc-web", false),
            ("application/grpc-web+proto", false),
            ("application/json", false),
            ("", false),
        ] {
            assert_eq!(is_content_type(value.as_bytes()), is_call, "{value}");
        }
    }

    #[test]
    fn grpc_timeout_has_at_most_eight_digits_and_a_unit() {
        for (value, ms) in [
            ("1H", Some(3_600_000)),
            ("2M", Some(120_000)),
            ("3S", Some(3_000)),
            ("100m", Some(100)),
            ("1u", Some(1)),
            ("99999999n", Some(100)),
            ("0n", Some(0)),
            ("99999999H", Some(359_999_996_400_000)),
            ("100000000m", None),
            ("S", None),
            ("1", None),
            ("-1S", None),
            ("1s", None),
            ("", None),
        ] {
            assert_eq!(timeout(value.as_bytes()), ms.map(Millis), "{value}");
        }
    }

    #[test]
    fn grpc_message_is_percent_encoded() {
        let fields = error(Status::BAD_GATEWAY, "50 % lost\u{e9}");
        let found: Vec<_> = fields.iter().map(|(_, value)| value.escape_ascii().to_string()).collect();
        assert_eq!(found, ["application/grpc", "14", "50 %25 lost%C3%A9"]);
    }
}
