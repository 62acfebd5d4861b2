//! Decoded HPACK field sections.

use http::{Field, FieldList, Limits, Name, Span, scan};

/// Size of a field or table entry in addition to its name and value (RFC 7541 section 4.1, RFC 9204 section
/// 3.2.1).
pub const ENTRY_OVERHEAD_BYTES: usize = 32;

/// A decoded field section: field lines in HTTP/1 form (`name: value\r
/// `), one after another, and their spans. Pseudo-header fields are included, with the colon in their names.
/// Reused from message to message.
#[derive(Clone, Debug, Default)]
pub struct FieldBlock {
    /// The lines.
    pub bytes: Vec<u8>,
    /// The fields, in order.
    pub fields: FieldList,
    /// Size of the section as defined by RFC 9113 section 6.5.2: the bytes of names and values, and 32 for
    /// each field, including fields that were left out because of a limit.
    pub size: usize,
    /// Whether fields were left out because the section exceeds a limit.
    pub is_too_large: bool,
    /// Whether every name and value is valid in a message.
    pub is_valid: bool,
    /// Number of fields that do not count towards the field limit.
    uncounted: usize,
}

impl FieldBlock {
    /// Clears the section; keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.fields.clear();
        (self.size, self.is_too_large, self.is_valid, self.uncounted) = (0, false, true, 0);
    }

    /// Appends a complete field line, `name: value\r\n`, unless it exceeds a limit.
    pub fn push_line(&mut self, id: Name, line: &[u8], name_len: usize, limits: &Limits) {
        let start = self.bytes.len();
        let value_len = line.len() - 4 - name_len;
        if self.admit(is_of_start_line(&line[..name_len]), name_len + value_len, limits) {
            self.bytes.extend_from_slice(line);
            self.fields.push(field(id, start, name_len, value_len));
        }
    }

    /// Ends the field whose name, colon and value were written at the end of `bytes`, beginning at `start`;
    /// removes it again if it exceeds a limit.
    pub fn end_field(&mut self, id: Name, start: usize, name_len: usize, limits: &Limits) {
        let value_len = self.bytes.len() - start - name_len - 2;
        let is_of_start_line = is_of_start_line(&self.bytes[start..start + name_len]);
        if self.admit(is_of_start_line, name_len + value_len, limits) {
            self.bytes.extend_from_slice(b"\r\n");
            self.fields.push(field(id, start, name_len, value_len));
        } else {
            self.bytes.truncate(start);
        }
    }

    /// Counts a field and returns whether it is within the limits.
    fn admit(&mut self, is_of_start_line: bool, bytes: usize, limits: &Limits) -> bool {
        self.size = self.size.saturating_add(bytes + ENTRY_OVERHEAD_BYTES);
        self.uncounted += usize::from(is_of_start_line && self.uncounted < UNCOUNTED_MAX);
        self.is_too_large |= self.size > limits.head_bytes_max + limits.fields_max * ENTRY_OVERHEAD_BYTES
            || self.fields.len() >= limits.fields_max + self.uncounted;
        !self.is_too_large
    }

    /// Name and value of each field.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.fields.iter().map(|field| (field.name.of(&self.bytes), field.value.of(&self.bytes)))
    }
}

/// Maximum number of fields of a request that are part of the start line in HTTP/1: method, scheme, path and protocol.
const UNCOUNTED_MAX: usize = 4;

/// Whether a field is a pseudo-header field other than `:authority`, which is a field (`Host`) in HTTP/1 too: the limit of fields
/// is the same in all versions.
fn is_of_start_line(name: &[u8]) -> bool {
    name.first() == Some(&b':') && name.get(1) != Some(&b'a')
}

fn field(id: Name, start: usize, name_len: usize, value_len: usize) -> Field {
    let value_start = start + name_len + 2;
    Field {
        id,
        name: Span::new(start, start + name_len),
        value: Span::new(value_start, value_start + value_len),
    }
}

/// Whether a field is valid in a message (RFC 9113 section 8.2.1): a lower-case token as name, optionally
/// after a colon, and a value of field bytes without surrounding white space.
pub fn is_valid(name: &[u8], value: &[u8]) -> bool {
    let token = name.strip_prefix(b":").unwrap_or(name);
    scan::is_token(token)
        && !name.iter().any(u8::is_ascii_uppercase)
        && scan::value_len(value) == value.len()
        && !matches!(value, [b' ' | b'\t', ..] | [.., b' ' | b'\t'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_of_fields_is_that_of_http1() {
        let limits = Limits { fields_max: 3, ..Limits::default() };
        let count = |names: &[&str]| {
            let mut block = FieldBlock::default();
            for name in names {
                block.push_line(Name::Other, format!("{name}: a\r\n").as_bytes(), name.len(), &limits);
            }
            (!block.is_too_large).then_some(block.fields.len())
        };
        let request = [":method", ":scheme", ":path", ":authority", "a", "b"];
        assert_eq!(count(&request), Some(6), "the authority is one of three");
        assert_eq!(count(&[&request[..], &["c"]].concat()), None);
        assert_eq!(count(&["a", "b", "c"]), Some(3));
        assert_eq!(count(&["a", "b", "c", "d"]), None);
        assert_eq!(count(&[":x"; 8]), None, "fields that no message has do not lift the limit");
    }

    #[test]
    fn fields_with_invalid_bytes_are_rejected() {
        for (name, value) in [("a", ""), (":path", "/"), ("x-y_z", "a b\tc"), ("n", "caf\u{e9}")] {
            assert!(is_valid(name.as_bytes(), value.as_bytes()), "{name:?} {value:?}");
        }
        for (name, value) in [
            ("", "a"),
            (":", "a"),
            ("A", "a"),
            ("a b", "a"),
            ("a:", "a"),
            ("::a", "a"),
            ("a\r", "a"),
            ("n", " a"),
            ("n", "a\t"),
            ("n", "a\nb"),
            ("n", "a\rb"),
            ("n", "a\0b"),
            ("n", "\x7f"),
            ("n", " "),
            ("na\u{e9}", "a"),
        ] {
            assert!(!is_valid(name.as_bytes(), value.as_bytes()), "{name:?} {value:?}");
        }
    }
}
