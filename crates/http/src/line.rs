//! The lines of a head (RFC 9112 sections 2 and 5), for requests and responses alike.

use crate::field_list::{Field, FieldList};
use crate::name::Name;
use crate::reject::Reject;
use crate::scan;
use crate::span::Span;
use crate::status::Status;

/// Limits of a head. Byte counts include line ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the whole head; more is 431. Default 16 KiB.
    pub head_bytes_max: usize,
    /// Bytes of the request or status line; more is 414 for a request. Default 8 KiB.
    pub start_line_bytes_max: usize,
    /// Number of fields, and of trailer fields; more is 431. Default 100.
    pub fields_max: usize,
    /// Whether a lone LF ends a line (RFC 9112 section 2.2 allows it; request smuggling uses it). Default
    /// false.
    pub bare_lf: bool,
    /// Whether the heads of responses may have white space before a colon (RFC 9112 section 5.1), and the
    /// same `Content-Length` more than once. Requests never may. Default false.
    pub lenient_heads: bool,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            head_bytes_max: 16 * 1024,
            start_line_bytes_max: 8 * 1024,
            fields_max: 100,
            bare_lf: false,
            lenient_heads: false,
        }
    }
}

/// The parse position in a head. Parsing resumes inside a line, so a line received byte by byte costs no more
/// than one received at once.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cursor {
    /// Offset of the current line; 0 is the start line.
    pub(crate) at: usize,
    /// Length of the line's first part as parsed so far: a field's name, a request's method.
    pub(crate) first_len: usize,
    /// Length of the line's second part as parsed so far: a field's value, a request's target.
    pub(crate) second_len: usize,
}

impl Cursor {
    /// The beginning of the line at that offset.
    pub(crate) const fn at(at: usize) -> Cursor {
        Cursor { at, first_len: 0, second_len: 0 }
    }
}

/// Deviations from the grammar of lines that are accepted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LineRules {
    /// A lone LF as the end of a line.
    pub(crate) bare_lf: bool,
    /// White space before the colon of a field.
    pub(crate) spaced_colon: bool,
}

/// A line of a field section.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FieldLine {
    /// Valid so far, but not complete.
    Partial,
    Field(Field),
    /// The blank line that ends the section.
    Blank,
}

/// Returns the offset after the line end at `at`, or `None` if more bytes are needed.
///
/// # Errors
/// 400 for a CR without LF, and for a lone LF unless `bare_lf`.
pub(crate) fn line_end(buffer: &[u8], at: usize, bare_lf: bool) -> Result<Option<usize>, Reject> {
    match (buffer.get(at), buffer.get(at + 1)) {
        (Some(b'\r'), Some(b'\n')) => Ok(Some(at + 2)),
        (Some(b'\r'), Some(_)) => Err(Reject::bad_request("CR without LF")),
        (Some(b'\n'), _) if bare_lf => Ok(Some(at + 1)),
        (Some(b'\n'), _) => Err(Reject::BARE_LF),
        (None, _) | (Some(b'\r'), None) => Ok(None),
        (Some(_), _) => Err(Reject::bad_request("control byte in a line")),
    }
}

/// Parses the line at the cursor, and moves the cursor past it if it is complete.
///
/// # Errors
/// 400 for anything but `token ":" OWS value OWS CRLF`; obs-fold and a space before the colon have separate
/// messages.
pub(crate) fn parse_field(buffer: &[u8], cursor: &mut Cursor, rules: LineRules) -> Result<FieldLine, Reject> {
    let start = cursor.at;
    let Some(&first) = buffer.get(start) else { return Ok(FieldLine::Partial) };
    if first == b'\r' || first == b'\n' {
        let Some(end) = line_end(buffer, start, rules.bare_lf)? else { return Ok(FieldLine::Partial) };
        *cursor = Cursor::at(end);
        return Ok(FieldLine::Blank);
    }
    let mut colon = start + cursor.first_len;
    // If parsing resumes within the space before the colon, no bytes of the name follow.
    if !buffer[start..colon].ends_with(b" ") && !buffer[start..colon].ends_with(b"\t") {
        colon += scan::token_len(&buffer[colon..]);
    }
    if rules.spaced_colon && colon > start {
        colon += buffer[colon..].len() - scan::trim_start(&buffer[colon..]).len();
    }
    match buffer.get(colon) {
        None => {
            cursor.first_len = colon - start;
            return Ok(FieldLine::Partial);
        }
        Some(b':') if colon > start => {}
        Some(b':') => return Err(Reject::bad_request("empty field name")),
        Some(b' ' | b'\t') if colon == start => return Err(Reject::bad_request("obsolete line folding")),
        Some(b' ' | b'\t') => return Err(Reject::SPACED_COLON),
        Some(_) => return Err(Reject::bad_request("invalid byte in a field name")),
    }
    let name_end = start + scan::trim_end(&buffer[start..colon]).len();
    let value_start = colon + 1;
    let value_end =
        value_start + cursor.second_len + scan::value_len(&buffer[value_start + cursor.second_len..]);
    if buffer.get(value_end).is_some_and(|byte| !matches!(byte, b'\r' | b'\n')) {
        return Err(Reject::bad_request("control byte in a field value"));
    }
    let Some(end) = line_end(buffer, value_end, rules.bare_lf)? else {
        (cursor.first_len, cursor.second_len) = (colon - start, value_end - value_start);
        return Ok(FieldLine::Partial);
    };
    *cursor = Cursor::at(end);
    let name = &buffer[start..name_end];
    let value = &buffer[value_start..value_end];
    Ok(FieldLine::Field(field_at(name, start, value, value_start)))
}

/// The field whose value, with the white space around it, starts at `value_start`.
#[inline(always)]
fn field_at(name: &[u8], start: usize, value: &[u8], value_start: usize) -> Field {
    let value = scan::trim_end(value);
    let trimmed = scan::trim_start(value);
    let value = Span::new(value_start + value.len() - trimmed.len(), value_start + value.len());
    Field { id: Name::of(name), name: Span::new(start, start + name.len()), value }
}

/// The fast path: returns the line at `start` and its end if the line is complete, valid and without tabs. In
/// all other cases [`parse_field`] parses it again and reports the error.
#[inline(always)]
fn parse_whole_line(window: &[u8], start: usize) -> Option<(Field, usize)> {
    let line = window.get(start..)?;
    let (id, name_len) = known_name(line).unwrap_or_else(|| {
        let len = scan::len_before_colon(line);
        (Name::of(line.split_at(len).0), len)
    });
    let (name, rest) = line.split_at_checked(name_len)?;
    let [b':', rest @ ..] = rest else { return None };
    // Known names are tokens.
    if id == Name::Other && !scan::is_token(name) {
        return None;
    }
    let (value, [b'\r', b'\n', ..]) = rest.split_at_checked(scan::len_before_control(rest))? else {
        return None;
    };
    let from = start + name_len + 1;
    let end = from + value.len() + 2;
    let name = Span::new(start, start + name_len);
    let value = match value {
        // Nearly every line has one space before the value and none after it.
        [b' ', first, .., last] if *first != b' ' && *last != b' ' => Span::new(from + 1, end - 2),
        _ => {
            let trimmed = scan::trim_start(value);
            let from = from + value.len() - trimmed.len();
            Span::new(from, from + scan::trim_end(trimmed).len())
        }
    };
    Some((Field { id, name, value }, end))
}

/// Returns the name before the first colon and its length. Reads 8 bytes at a time: `None` if the name is long, or
/// near the end of the bytes.
#[inline(always)]
fn known_name(line: &[u8]) -> Option<(Name, usize)> {
    let (first, rest) = line.split_first_chunk::<8>()?;
    let first = u64::from_le_bytes(*first);
    if let Some(len) = scan::colon_in(first) {
        return Some((Name::of_words([scan::first_bytes(first, len), 0, 0], len), len));
    }
    let (second, rest) = rest.split_first_chunk::<8>()?;
    let second = u64::from_le_bytes(*second);
    if let Some(len) = scan::colon_in(second) {
        return Some((Name::of_words([first, scan::first_bytes(second, len), 0], 8 + len), 8 + len));
    }
    let third = u64::from_le_bytes(*rest.first_chunk::<8>()?);
    let len = scan::colon_in(third)?;
    Some((Name::of_words([first, second, scan::first_bytes(third, len)], 16 + len), 16 + len))
}

/// Parses the field section of a head, line by line, over as many calls as needed. Returns true at the blank
/// line.
///
/// # Errors
/// The errors of [`parse_field`], which gets `spaced_colon`; 431 for too many fields or a section that
/// exceeds the head's limit.
pub(crate) fn parse_section(
    buffer: &[u8],
    cursor: &mut Cursor,
    fields: &mut FieldList,
    limits: &Limits,
    spaced_colon: bool,
) -> Result<bool, Reject> {
    let window = &buffer[..buffer.len().min(limits.head_bytes_max)];
    let rules = LineRules { bare_lf: limits.bare_lf, spaced_colon };
    loop {
        if cursor.first_len == 0 {
            let mut at = cursor.at;
            while fields.len() < limits.fields_max
                && let Some((field, end)) = parse_whole_line(window, at)
            {
                fields.push(field);
                at = end;
            }
            cursor.at = at;
        }
        match parse_field(window, cursor, rules)? {
            FieldLine::Field(_) if fields.len() == limits.fields_max => {
                return Err(Reject::new(Status::FIELDS_TOO_LARGE, "too many fields"));
            }
            FieldLine::Field(field) => fields.push(field),
            FieldLine::Blank => return Ok(true),
            FieldLine::Partial if window.len() == limits.head_bytes_max => {
                return Err(Reject::new(Status::FIELDS_TOO_LARGE, "head too large"));
            }
            FieldLine::Partial => return Ok(false),
        }
    }
}

/// The options of `Connection` fields that decide about persistence (RFC 9112 section 9.3).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ConnectionOptions {
    pub(crate) close: bool,
    pub(crate) keep_alive: bool,
}

impl ConnectionOptions {
    /// Adds the options of a field.
    pub(crate) fn add(&mut self, value: &[u8]) {
        match value {
            b"keep-alive" => self.keep_alive = true,
            b"close" => self.close = true,
            _ => scan::tokens(value).for_each(|token| {
                self.close |= token.eq_ignore_ascii_case(b"close");
                self.keep_alive |= token.eq_ignore_ascii_case(b"keep-alive");
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<(FieldLine, usize), &'static str> {
        let mut cursor = Cursor::default();
        let line = parse_field(line.as_bytes(), &mut cursor, LineRules::default())
            .map_err(|reject| reject.reason)?;
        Ok((line, cursor.at))
    }

    #[test]
    fn a_field_line_is_token_colon_value() {
        let text = "X-A: \t b c \t\r\n";
        let Ok((FieldLine::Field(found), end)) = parse(text) else { panic!("a whole field") };
        assert_eq!(
            (found.name.of(text.as_bytes()), found.value.of(text.as_bytes())),
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
        assert_eq!(parse("A: b\r"), Ok((FieldLine::Partial, 0)));
        assert_eq!(parse("\r\n"), Ok((FieldLine::Blank, 2)));
        assert_eq!(
            parse_field(b"\nA", &mut Cursor::default(), LineRules { bare_lf: true, ..LineRules::default() }),
            Ok(FieldLine::Blank)
        );
    }

    #[test]
    fn partial_field_line_resumes_where_parsing_stopped() {
        let text = b"Name: a value\r\n";
        let mut cursor = Cursor::default();
        for (len, parts) in [(3, (3, 0)), (5, (4, 0)), (9, (4, 4)), (14, (4, 8))] {
            assert_eq!(parse_field(&text[..len], &mut cursor, LineRules::default()), Ok(FieldLine::Partial));
            assert_eq!((cursor.first_len, cursor.second_len), parts, "after {len} bytes");
        }
        let Ok(FieldLine::Field(found)) = parse_field(text, &mut cursor, LineRules::default()) else {
            panic!("a whole field")
        };
        assert_eq!((found.value.of(text), cursor.at), (&b"a value"[..], text.len()));
    }
}
