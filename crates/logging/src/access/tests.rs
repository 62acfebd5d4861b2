use super::*;

#[test]
fn times_are_formatted_in_both_formats() {
    for (unix_s, of_rfc, of_combined) in [
        (0, "1970-01-01T00:00:00Z", "01/Jan/1970:00:00:00 +0000"),
        (951_782_399, "2000-02-28T23:59:59Z", "28/Feb/2000:23:59:59 +0000"),
        (951_782_400, "2000-02-29T00:00:00Z", "29/Feb/2000:00:00:00 +0000"),
        (1_795_251_661, "2026-11-21T09:01:01Z", "21/Nov/2026:09:01:01 +0000"),
        (4_107_542_400, "2100-03-01T00:00:00Z", "01/Mar/2100:00:00:00 +0000"),
        (u64::MAX, "9999-12-31T23:59:59Z", "31/Dec/9999:23:59:59 +0000"),
    ] {
        assert_eq!((rfc3339(unix_s).as_str(), combined_time(unix_s).as_str()), (of_rfc, of_combined));
    }
}

#[test]
fn client_data_is_escaped_in_log_lines() {
    let mut out = Vec::new();
    escaped(&mut out, b"a\"b\\c\x1b[31m\x7f");
    assert_eq!(out, b"a\\x22b\\x5Cc\\x1B[31m\\x7F");
    // The single-character form of that sequence (C1 CSI) in UTF-8, which many terminals obey.
    out.clear();
    escaped(&mut out, "\u{9b}31m".as_bytes());
    assert_eq!(out, b"\\xC2\\x9B31m");
    out.clear();
    json_escaped(&mut out, "a\"b\\\u{1b}\n\u{9b}\u{e9}".as_bytes());
    assert_eq!(String::from_utf8_lossy(&out), "a\\\"b\\\\\\u001b\\u000a\\u009b\u{e9}");
    out.clear();
    json_escaped(&mut out, b"\xff");
    assert_eq!(out, "\u{fffd}".as_bytes());
    out.clear();
    json_escaped(&mut out, "a\u{2028}b\u{202e}c\u{200b}\u{e0041}".as_bytes());
    assert_eq!(String::from_utf8_lossy(&out), "a\\u2028b\\u202ec\\u200b\\udb40\\udc41");
}

#[test]
fn thousandths_have_three_decimals() {
    for (number, want) in [(0, "0.000"), (7, "0.007"), (1_050, "1.050"), (12_345_678, "12345.678")] {
        let mut out = Vec::new();
        thousandths(&mut out, number);
        assert_eq!(String::from_utf8(out).unwrap(), want);
    }
}
