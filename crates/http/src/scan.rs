//! Byte classes of RFC 9110 section 5.6 and RFC 3986, and the scans over them.

const TOKEN: u8 = 1;
const TARGET: u8 = 2;
const HOST: u8 = 4;
const PATH: u8 = 8;

const fn is_tchar(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'!' | b'#'
                | b'$'
                | b'%'
                | b'&'
                | b'\''
                | b'*'
                | b'+'
                | b'-'
                | b'.'
                | b'^'
                | b'_'
                | b'`'
                | b'|'
                | b'~'
        )
}

/// Bytes of a reg-name or an IPv4 address (RFC 3986 section 3.2), without percent-encoding, and without the
/// comma: no host has one, and applications split `X-Forwarded-Host` at commas.
const fn is_host_char(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'-' | b'.' | b'_' | b'~' | b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b';' | b'='
        )
}

/// Bytes of a path besides letters and digits (`pchar` of RFC 3986 section 3.3, and the slash).
const fn is_path_mark(byte: u8) -> bool {
    matches!(
        byte,
        b'/' | b'-'
            | b'.'
            | b'_'
            | b'~'
            | b'!'
            | b'$'
            | b'&'
            | b'\''
            | b'('
            | b')'
            | b'*'
            | b'+'
            | b','
            | b';'
            | b'='
            | b':'
            | b'@'
    )
}

const CLASSES: [u8; 256] = {
    let mut classes = [0u8; 256];
    let mut index = 0;
    while index < 256 {
        let byte = index as u8;
        if is_tchar(byte) {
            classes[index] |= TOKEN;
        }
        // Visible ASCII without `#`, and all bytes beyond ASCII: wider than RFC 3986 (browsers send `|` and
        // `{`, old clients UTF-8), but nothing that could end a request line. See `path` for the encoding
        // that is passed on.
        if byte > 0x20 && byte != 0x7f && byte != b'#' {
            classes[index] |= TARGET;
        }
        if byte.is_ascii_alphanumeric() || is_path_mark(byte) {
            classes[index] |= PATH;
        }
        if is_host_char(byte) {
            classes[index] |= HOST;
        }
        index += 1;
    }
    classes
};

#[inline(always)]
fn class_prefix_len(bytes: &[u8], class: u8) -> usize {
    let mut rest = bytes;
    while let Some((chunk, after)) = rest.split_first_chunk::<4>() {
        if chunk.iter().fold(class, |all, &byte| all & CLASSES[byte as usize]) == 0 {
            break;
        }
        rest = after;
    }
    let fits = rest.iter().position(|&byte| CLASSES[byte as usize] & class == 0).unwrap_or(rest.len());
    bytes.len() - rest.len() + fits
}

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGH_BITS: u64 = ONES * 0x80;
const LOW_BITS: u64 = ONES * 0x7f;

/// Scans eight bytes at a time: `doubtful` sets the high bit of each byte of a word that may not fit; each
/// marked byte is then checked with `fits`.
#[inline(always)]
fn prefix_len_by_words(bytes: &[u8], doubtful: impl Fn(u64) -> u64, fits: impl Fn(u8) -> bool) -> usize {
    let mut rest = bytes;
    loop {
        while let Some((chunk, after)) = rest.split_first_chunk::<8>() {
            let doubts = doubtful(u64::from_le_bytes(*chunk));
            if doubts != 0 {
                rest = &rest[doubts.trailing_zeros() as usize / 8..];
                break;
            }
            rest = after;
        }
        match rest {
            [byte, after @ ..] if fits(*byte) => rest = after,
            _ => return bytes.len() - rest.len(),
        }
    }
}

/// Counts the bytes before the first match. `marks` sets the high bit of each match in a word of eight bytes;
/// `is_it` tests a single byte. `marks` may be wrong about bytes after the first that it marks.
#[inline(always)]
fn len_before(bytes: &[u8], marks: impl Fn(u64) -> u64, is_it: impl Fn(u8) -> bool) -> usize {
    let mut rest = bytes;
    while let Some((chunk, after)) = rest.split_first_chunk::<8>() {
        let marked = marks(u64::from_le_bytes(*chunk));
        if marked != 0 {
            return bytes.len() - rest.len() + marked.trailing_zeros() as usize / 8;
        }
        rest = after;
    }
    let at = rest.iter().position(|&byte| is_it(byte)).unwrap_or(rest.len());
    bytes.len() - rest.len() + at
}

/// Sets the high bit of the first colon's byte; bytes after it may be marked wrongly.
#[inline(always)]
fn mark_colons(word: u64) -> u64 {
    // A zero byte marks itself, and its borrow affects only later bytes.
    let zero = word ^ (ONES * b':' as u64);
    zero.wrapping_sub(ONES) & !zero & HIGH_BITS
}

/// Number of bytes before the first colon in a word whose lowest byte comes first.
#[inline(always)]
pub(crate) fn colon_in(word: u64) -> Option<usize> {
    let marked = mark_colons(word);
    (marked != 0).then(|| marked.trailing_zeros() as usize / 8)
}

/// The first `len` bytes of a word, fewer than eight; the others are zero.
#[inline(always)]
pub(crate) fn first_bytes(word: u64, len: usize) -> u64 {
    word & ((1 << (8 * len)) - 1)
}

/// Number of bytes before the first colon.
#[inline(always)]
pub(crate) fn len_before_colon(bytes: &[u8]) -> usize {
    len_before(bytes, mark_colons, |byte| byte == b':')
}

/// Number of bytes before the first control byte (including tab).
#[inline(always)]
pub(crate) fn len_before_control(bytes: &[u8]) -> usize {
    // Below 0x80, `byte - 0x20` has its high bit set if the byte is less than 0x20; only such a byte borrows,
    // so wrong marks appear only after it. `byte ^ 0x7f` is zero for DEL alone.
    let marks = |word: u64| {
        let del = word ^ LOW_BITS;
        ((word.wrapping_sub(ONES * 0x20) & !word) | (del.wrapping_sub(ONES) & !del)) & HIGH_BITS
    };
    len_before(bytes, marks, |byte| byte < 0x20 || byte == 0x7f)
}

/// Sets the high bit of each byte below 0x80 that is a letter; other bits, and those of other bytes, may be
/// set too.
#[inline(always)]
fn mark_letters(word: u64) -> u64 {
    let folded = (word | (ONES * 0x20)) & LOW_BITS;
    (folded + ONES * (0x80 - b'a' as u64)) & !(folded + ONES * (0x7f - b'z' as u64))
}

/// Length of the prefix of `bytes` that consists of token characters (RFC 9110 section 5.6.2).
#[must_use]
pub fn token_len(bytes: &[u8]) -> usize {
    // Names consist of letters and hyphens. For bytes below 0x80, adding `0x80 - limit` sets the high bit of
    // every byte that is at least `limit`, without a carry into the next byte.
    let doubtful = |word: u64| {
        let letters = mark_letters(word);
        let from_hyphen = word ^ (ONES * b'-' as u64);
        let others = ((from_hyphen & LOW_BITS) + LOW_BITS) | from_hyphen;
        (!letters | word) & others & HIGH_BITS
    };
    prefix_len_by_words(bytes, doubtful, |byte| CLASSES[byte as usize] & TOKEN != 0)
}

/// Whether `bytes` is a whole, non-empty token.
#[must_use]
pub fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && token_len(bytes) == bytes.len()
}

/// Length of the prefix of `bytes` that is allowed in a request target.
#[must_use]
pub fn target_len(bytes: &[u8]) -> usize {
    class_prefix_len(bytes, TARGET)
}

/// Whether `byte` is allowed in a path without encoding (RFC 3986 section 3.3), slashes included.
#[must_use]
pub const fn is_path_byte(byte: u8) -> bool {
    CLASSES[byte as usize] & PATH != 0
}

/// Whether eight bytes of a path (lowest byte first) are all letters, digits, `-`, `.` or `/`, and no segment
/// that begins among them is empty or begins with a dot. Returns `Some` of whether the last byte is a slash,
/// or `None` if undecided. `after_slash`: the preceding byte is a slash.
#[inline(always)]
pub(crate) fn plain_path_word(word: u64, after_slash: bool) -> Option<bool> {
    // Sets the high bit of each byte that differs from `byte`.
    let differs = |word: u64, byte: u8| {
        let difference = word ^ (ONES * byte as u64);
        ((difference & LOW_BITS) + LOW_BITS) | difference
    };
    let low = word & LOW_BITS;
    // `-`, `.`, `/` and the digits have consecutive codes.
    let marks = (low + ONES * (0x80 - b'-' as u64)) & !(low + ONES * (0x7f - b'9' as u64));
    if (mark_letters(word) | marks) & !word & HIGH_BITS != HIGH_BITS {
        return None;
    }
    let slashes = !differs(word, b'/') & HIGH_BITS;
    // A dot and a slash differ in the lowest bit.
    let starts = !differs(word | ONES, b'/');
    let after_slashes = slashes << 8 | u64::from(after_slash) << 7;
    (after_slashes & starts == 0).then_some(slashes >> 63 != 0)
}

/// Length of the prefix of `bytes` that is allowed in a host name or IPv4 address, not counting
/// percent-encoding.
#[must_use]
pub fn host_len(bytes: &[u8]) -> usize {
    class_prefix_len(bytes, HOST)
}

/// Length of the prefix of `bytes` that is allowed in a field value: visible ASCII, space, tab and obs-text
/// (RFC 9110 section 5.5). Stops at CR, LF, NUL and every other control byte.
#[must_use]
pub fn value_len(bytes: &[u8]) -> usize {
    // Below 0x80, `byte - 0x20` has its high bit set if the byte is less than 0x20, and `byte + 1` if it is
    // DEL. A carry or borrow from the preceding byte can only cause an additional check.
    let doubtful = |word: u64| (word.wrapping_sub(ONES * 0x20) | word.wrapping_add(ONES)) & !word & HIGH_BITS;
    prefix_len_by_words(bytes, doubtful, is_value_byte)
}

/// Whether `byte` is allowed in a field value.
#[must_use]
pub const fn is_value_byte(byte: u8) -> bool {
    byte == b'\t' || (byte >= 0x20 && byte != 0x7f)
}

/// `bytes` without leading and trailing spaces and tabs (OWS, RFC 9110 section 5.6.3).
#[must_use]
pub fn trim(bytes: &[u8]) -> &[u8] {
    trim_end(trim_start(bytes))
}

pub(crate) fn trim_start(mut bytes: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = bytes {
        bytes = rest;
    }
    bytes
}

pub(crate) fn trim_end(mut bytes: &[u8]) -> &[u8] {
    while let [rest @ .., b' ' | b'\t'] = bytes {
        bytes = rest;
    }
    bytes
}

/// The elements of a comma-separated list (RFC 9110 section 5.6.1), trimmed, empty ones left out.
/// Commas inside quoted strings do not separate.
pub fn list(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        while !rest.is_empty() {
            let (element, after) = split_element(rest);
            rest = after;
            let element = trim(element);
            if !element.is_empty() {
                return Some(element);
            }
        }
        None
    })
}

/// The elements of a comma-separated list of tokens, trimmed, empty ones left out. Quotes have no special
/// meaning, so they cannot hide an element (`Connection`, `Transfer-Encoding`).
pub fn tokens(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.split(|&byte| byte == b',').map(trim).filter(|token| !token.is_empty())
}

fn split_element(bytes: &[u8]) -> (&[u8], &[u8]) {
    let mut quoted = false;
    let mut escaped = false;
    for (at, &byte) in bytes.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b',' if !quoted => return (&bytes[..at], &bytes[at + 1..]),
            _ => {}
        }
    }
    (bytes, &[])
}

/// Parses a decimal number of digits only: no sign, no space, at most 18 digits (so that it fits an `i64`
/// file offset).
#[must_use]
pub fn parse_decimal(bytes: &[u8]) -> Option<u64> {
    if bytes.is_empty() || bytes.len() > 18 {
        return None;
    }
    bytes.iter().try_fold(0u64, |sum, &byte| byte.is_ascii_digit().then(|| sum * 10 + u64::from(byte - b'0')))
}

/// The value of a hexadecimal digit.
#[must_use]
pub const fn hex_value(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares a scan of eight bytes at a time with the rule for one byte, for every byte value at every
    /// position of `usual`.
    fn assert_scan_agrees(scan: impl Fn(&[u8]) -> usize, rule: impl Fn(u8) -> bool, usual: &[u8]) {
        for other in 0..=255u8 {
            for at in 0..usual.len() {
                let mut bytes = usual.to_vec();
                bytes[at] = other;
                let exact = bytes.iter().position(|&byte| !rule(byte)).unwrap_or(bytes.len());
                assert_eq!(scan(&bytes), exact, "byte {other:#x} at {at}");
            }
        }
    }

    #[test]
    fn scans_agree_with_their_byte_by_byte_rules() {
        assert_scan_agrees(value_len, is_value_byte, b"aaa\xffa\taaaaaaaaaaaaaa");
        assert_scan_agrees(token_len, is_tchar, b"azAZ-az-azAZ0az_AZ-a");
        assert_scan_agrees(
            len_before_control,
            |byte| byte >= 0x20 && byte != 0x7f,
            b"aaa\xffa aaaaaaaaaaaaaa",
        );
        assert_scan_agrees(len_before_control, |byte| byte >= 0x20 && byte != 0x7f, &[0x80; 20]);
        assert_scan_agrees(len_before_colon, |byte| byte != b':', b"aaa;a9azaa-aaaa\xba\x3baa");
        assert_scan_agrees(host_len, is_host_char, b"a.b-c.example.net09");
        assert_scan_agrees(
            target_len,
            |byte| byte > 0x20 && byte != 0x7f && byte != b'#',
            b"/a/b?c=d&e%20f/ghij",
        );
        assert_eq!(value_len(&[0x80; 9]), 9);
        assert_eq!(token_len(&[0xe1; 9]), 0);
    }

    #[test]
    fn lists_split_outside_quotes_only() {
        let elements: Vec<&[u8]> = list(b" a ,, \"b,\\\"c\" ,\td\t,").collect();
        assert_eq!(elements, [&b"a"[..], b"\"b,\\\"c\"", b"d"]);
    }

    #[test]
    fn decimals_consist_only_of_digits() {
        assert_eq!(parse_decimal(b"0"), Some(0));
        assert_eq!(parse_decimal(b"999999999999999999"), Some(999_999_999_999_999_999));
        for bad in [&b""[..], b"+1", b"-1", b"1 ", b"0x1", b"1000000000000000000"] {
            assert_eq!(parse_decimal(bad), None);
        }
    }
}
