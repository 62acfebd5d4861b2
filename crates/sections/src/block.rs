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
}

impl FieldBlock {
    /// Clears the section; keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.fields.clear();
        (self.size, self.is_too_large, self.is_valid) = (0, false, true);
    }

    /// Appends a complete field line, `name: value\r\n`, unless it exceeds a limit.
    pub fn push_line(&mut self, id: Name, line: &[u8], name_len: usize, limits: &Limits) {
        let start = self.bytes.len();
        if self.admit(name_len, line.len() - 4 - name_len, limits) {
            self.bytes.extend_from_slice(line);
            self.fields.push(field(id, start, name_len, line.len() - 4 - name_len));
        }
    }

    /// Ends the field whose name, colon and value were written at the end of `bytes`, beginning at `start`;
    /// removes it again if it exceeds a limit.
    pub fn end_field(&mut self, id: Name, start: usize, name_len: usize, limits: &Limits) {
        let value_len = self.bytes.len() - start - name_len - 2;
        if self.admit(name_len, value_len, limits) {
            self.bytes.extend_from_slice(b"\r\n");
            self.fields.push(field(id, start, name_len, value_len));
        } else {
            self.bytes.truncate(start);
        }
    }

    /// Counts a field and returns whether it is within the limits.
    fn admit(&mut self, name_len: usize, value_len: usize, limits: &Limits) -> bool {
        self.size = self.size.saturating_add(name_len + value_len + ENTRY_OVERHEAD_BYTES);
        self.is_too_large |= self.size > limits.head_bytes_max + limits.fields_max * ENTRY_OVERHEAD_BYTES
            || self.fields.len() >= limits.fields_max + PSEUDO_FIELDS_MAX;
        !self.is_too_large
    }

    /// Name and value of each field.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.fields.iter().map(|field| (field.name.of(&self.bytes), field.value.of(&self.bytes)))
    }
}

/// Maximum number of pseudo-header fields of a request, which do not count towards the field limit.
const PSEUDO_FIELDS_MAX: usize = 5;

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
