//! An owned block of fields, in wire form.

use crate::name::Name;
use crate::scan;

/// Field lines as HTTP/1 writes them (`Name: value\r\n`, repeated). HTTP/1 copies the block whole; other
/// versions iterate with [`Fields::iter`]. Every name is a token and no value has control bytes, by
/// construction, so a block can never split a response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields {
    bytes: Vec<u8>,
}

/// The name is not a token, or the value has a control byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidField;

impl Fields {
    /// An empty block.
    #[must_use]
    pub const fn new() -> Fields {
        Fields { bytes: Vec::new() }
    }

    /// Adds a line with an untrusted name and value.
    ///
    /// # Errors
    /// [`InvalidField`] if the name is not a token or the value has a control byte; nothing is added then.
    pub fn try_push(&mut self, name: &[u8], value: &[u8]) -> Result<(), InvalidField> {
        let value = scan::trim(value);
        if !scan::is_token(name) || scan::value_len(value) != value.len() {
            return Err(InvalidField);
        }
        self.bytes.extend_from_slice(name);
        self.bytes.extend_from_slice(b": ");
        self.bytes.extend_from_slice(value);
        self.bytes.extend_from_slice(b"\r\n");
        Ok(())
    }

    /// Adds a line with a name and value of the server itself.
    ///
    /// # Panics
    /// If name or value is invalid, which is a bug of the caller.
    pub fn push(&mut self, name: Name, value: &[u8]) {
        self.try_push(name.text().as_bytes(), value).expect("a field made by the server is valid");
    }

    /// Adds every line of `other`.
    pub fn extend(&mut self, other: &Fields) {
        self.bytes.extend_from_slice(&other.bytes);
    }

    /// Removes every line of that name (ASCII case-insensitive). Returns whether there was one.
    pub fn remove(&mut self, name: &[u8]) -> bool {
        let before = self.bytes.len();
        let mut kept = Fields { bytes: Vec::with_capacity(before) };
        for (other, value) in self.iter() {
            if !other.eq_ignore_ascii_case(name) {
                kept.bytes.extend_from_slice(&[other, b": ", value, b"\r\n"].concat());
            }
        }
        *self = kept;
        self.bytes.len() != before
    }

    /// The value of the first line of that name.
    #[must_use]
    pub fn first(&self, name: &[u8]) -> Option<&[u8]> {
        self.iter().find(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// Name and value of each line, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let mut rest = &self.bytes[..];
        std::iter::from_fn(move || {
            let end = memchr::memchr(b'\r', rest)?;
            let line = &rest[..end];
            rest = &rest[end + 2..];
            let colon = memchr::memchr(b':', line).expect("every line of a block has a colon");
            Some((&line[..colon], &line[colon + 2..]))
        })
    }

    /// The lines as HTTP/1 writes them, without the blank line that ends a head.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether there is no line.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Removes all lines; keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_would_split_a_message_are_rejected() {
        let mut fields = Fields::new();
        for (name, value) in [
            (&b"X Y"[..], &b"1"[..]),
            (b"", b"1"),
            (b"X:", b"1"),
            (b"X", b"a\r\nY: b"),
            (b"X", b"a\nb"),
            (b"X", b"\0"),
            (b"X\r\n", b"1"),
        ] {
            assert_eq!(fields.try_push(name, value), Err(InvalidField));
        }
        assert!(fields.is_empty());
    }

    #[test]
    fn fields_are_found_removed_and_serialized() {
        let mut fields = Fields::new();
        fields.push(Name::Etag, b"\"a:b\"");
        fields.try_push(b"X-Empty", b"").unwrap();
        fields.try_push(b"x-two", b" 2 ").unwrap();
        let lines: Vec<_> = fields.iter().collect();
        assert_eq!(lines, [(&b"ETag"[..], &b"\"a:b\""[..]), (b"X-Empty", b""), (b"x-two", b"2")]);
        assert_eq!(fields.first(b"X-TWO"), Some(&b"2"[..]));
        assert!(fields.remove(b"x-empty"));
        assert!(!fields.remove(b"x-empty"));
        assert_eq!(fields.as_bytes(), b"ETag: \"a:b\"\r\nx-two: 2\r\n");
    }
}
