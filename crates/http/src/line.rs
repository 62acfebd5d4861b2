//! The lines of a head (RFC 9112 sections 2 and 5), for requests and responses alike.

use crate::name::Name;
use crate::reject::Reject;
use crate::scan;
use crate::span::Span;
use crate::status::Status;

/// What a head may cost. Byte counts include line ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the whole head; more is 431. Default 16 KiB.
    pub head_bytes_max: usize,
    /// Bytes of the request or status line; more is 414 for a request. Default 8 KiB.
    pub start_line_bytes_max: usize,
    /// Number of fields, and of trailer fields; more is 431. Default 100.
    pub fields_max: usize,
    /// Accept a lone LF as a line end (RFC 9112 section 2.2 allows it; attackers live on it). Default false.
    pub bare_lf: bool,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { head_bytes_max: 16 * 1024, start_line_bytes_max: 8 * 1024, fields_max: 100, bare_lf: false }
    }
}

/// One field line of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Which known field it is.
    pub id: Name,
    /// The name as sent.
    pub name: Span,
    /// The value without surrounding white space.
    pub value: Span,
}

/// What a scan of one line found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line<T> {
    /// The line is good so far but does not end in the bytes at hand.
    Partial,
    /// The line, and the offset after its end.
    Whole(T, usize),
}

/// The line end at `at`: the offset after it, or `None` where more bytes must come.
///
/// # Errors
/// 400 for a CR without LF, and for a lone LF unless `bare_lf`.
pub(crate) fn line_end(buffer: &[u8], at: usize, bare_lf: bool) -> Result<Option<usize>, Reject> {
    match (buffer.get(at), buffer.get(at + 1)) {
        (Some(b'\r'), Some(b'\n')) => Ok(Some(at + 2)),
        (Some(b'\r'), Some(_)) => Err(Reject::bad("CR without LF")),
        (Some(b'\n'), _) if bare_lf => Ok(Some(at + 1)),
        (Some(b'\n'), _) => Err(Reject::bad("LF without CR")),
        (None, _) | (Some(b'\r'), None) => Ok(None),
        (Some(_), _) => Err(Reject::bad("control byte in a line")),
    }
}

/// The field line that begins at `start`, or `None` where the blank line stands that ends the section.
///
/// # Errors
/// 400 for anything but `token ":" OWS value OWS CRLF`; obs-fold and space before the colon by name.
pub(crate) fn field(buffer: &[u8], start: usize, bare_lf: bool) -> Result<Line<Option<Field>>, Reject> {
    let Some(&first) = buffer.get(start) else { return Ok(Line::Partial) };
    if first == b'\r' || first == b'\n' {
        let end = line_end(buffer, start, bare_lf)?;
        return Ok(end.map_or(Line::Partial, |end| Line::Whole(None, end)));
    }
    let name_end = start + scan::token(&buffer[start..]);
    match buffer.get(name_end) {
        None => return Ok(Line::Partial),
        Some(b':') if name_end > start => {}
        Some(b':') => return Err(Reject::bad("empty field name")),
        Some(b' ' | b'\t') if name_end == start => return Err(Reject::bad("obsolete line folding")),
        Some(b' ' | b'\t') => return Err(Reject::bad("space before colon")),
        Some(_) => return Err(Reject::bad("invalid byte in a field name")),
    }
    let value_start = name_end + 1;
    let value_end = value_start + scan::value(&buffer[value_start..]);
    if buffer.get(value_end).is_some_and(|byte| !matches!(byte, b'\r' | b'\n')) {
        return Err(Reject::bad("control byte in a field value"));
    }
    let Some(end) = line_end(buffer, value_end, bare_lf)? else { return Ok(Line::Partial) };
    let name = Span::new(start, name_end);
    let value = trimmed(buffer, value_start, value_end);
    Ok(Line::Whole(Some(Field { id: Name::of(name.of(buffer)), name, value }), end))
}

fn trimmed(buffer: &[u8], mut start: usize, mut end: usize) -> Span {
    while start < end && matches!(buffer[start], b' ' | b'\t') {
        start += 1;
    }
    while end > start && matches!(buffer[end - 1], b' ' | b'\t') {
        end -= 1;
    }
    Span::new(start, end)
}

/// Reads the field section of a head, line by line, across as many calls as its bytes need: each call looks
/// only at the line that was not whole the last time, so a slow sender costs no repeated work.
///
/// `window` is `buffer` cut to the head limit; `at` is moved past each whole line. True at the blank line.
///
/// # Errors
/// What [`field`] refuses; 431 for too many fields or a section that does not end inside the limit.
pub(crate) fn section(
    buffer: &[u8],
    at: &mut usize,
    fields: &mut Vec<Field>,
    limits: &Limits,
) -> Result<bool, Reject> {
    let window = &buffer[..buffer.len().min(limits.head_bytes_max)];
    loop {
        match field(window, *at, limits.bare_lf)? {
            Line::Whole(Some(field), end) => {
                if fields.len() == limits.fields_max {
                    return Err(Reject::new(Status::FIELDS_TOO_LARGE, "too many fields"));
                }
                fields.push(field);
                *at = end;
            }
            Line::Whole(None, end) => {
                *at = end;
                return Ok(true);
            }
            Line::Partial if window.len() == limits.head_bytes_max => {
                return Err(Reject::new(Status::FIELDS_TOO_LARGE, "head too large"));
            }
            Line::Partial => return Ok(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Line<Option<Field>>, &'static str> {
        field(line.as_bytes(), 0, false).map_err(|reject| reject.reason)
    }

    #[test]
    fn a_field_line_is_token_colon_value() {
        let text = "X-A: \t b c \t\r\n";
        let Ok(Line::Whole(Some(found), end)) = parse(text) else { panic!("a whole field") };
        assert_eq!(
            (field.name.of(text.as_bytes()), field.value.of(text.as_bytes())),
            (&b"X-A"[..], &b"b c"[..])
        );
        assert_eq!((found.id, end), (Name::Other, text.len()));
        for (line, reason) in [
            ("A : b\r\n", "space before colon"),
            (" b\r\n", "obsolete line folding"),
            (": b\r\n", "empty field name"),
            ("A\r\n", "invalid byte in a field name"),
            ("A: b\rc", "CR without LF"),
            ("A: b\n", "LF without CR"),
            ("A: \0\r\n", "control byte in a field value"),
            ("\rA", "CR without LF"),
        ] {
            assert_eq!(parse(line), Err(reason), "{line:?}");
        }
        assert_eq!(parse("A: b\r"), Ok(Line::Partial));
        assert_eq!(parse("\r\n"), Ok(Line::Whole(None, 2)));
        assert_eq!(field(b"\nA", 0, true), Ok(Line::Whole(None, 1)));
    }
}
