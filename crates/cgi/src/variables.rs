//! The variables of a request (RFC 3875 section 4.1): pairs of name and value.

/// Pairs in one block in FastCGI encoding (FastCGI specification 1.0, section 3.4), from which the other
/// encodings are derived.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Variables {
    block: Vec<u8>,
}

/// Maximum length of the two lengths of a pair in bytes: both in long form.
const LENGTHS_BYTES: usize = 8;
/// Flag of a length that takes four bytes.
const LONG: u32 = 1 << 31;
/// Maximum length of a name or value in bytes.
const BYTES_MAX: usize = (LONG - 1) as usize;

impl Variables {
    /// Creates an empty list.
    #[must_use]
    pub fn new() -> Variables {
        Variables::default()
    }

    /// Creates an empty list with capacity for a block of that many bytes.
    #[must_use]
    pub fn with_capacity(bytes: usize) -> Variables {
        Variables { block: Vec::with_capacity(bytes) }
    }

    /// Appends a pair. A name or value of 2 GiB or more is truncated.
    pub fn push(&mut self, name: &[u8], value: &[u8]) {
        // The fast path for short names and values, which are the most common.
        if let (Ok(name_len @ 0..128), Ok(value_len @ 0..128)) =
            (u8::try_from(name.len()), u8::try_from(value.len()))
        {
            self.block.reserve(LENGTHS_BYTES + name.len() + value.len());
            self.block.extend_from_slice(&[name_len, value_len]);
            self.block.extend_from_slice(name);
            self.block.extend_from_slice(value);
            return;
        }
        self.push_parts(name, &[value]);
    }

    /// Appends a pair whose name is `prefix` followed by `name` with each byte mapped through `bytes`. A name
    /// or value of 2 GiB or more is truncated.
    pub fn push_mapped(&mut self, prefix: &[u8], name: &[u8], bytes: &[u8; 256], value: &[u8]) {
        let name_len = prefix.len() + name.len();
        self.block.reserve(LENGTHS_BYTES + name_len + value.len());
        let mut name_left = name_len.min(BYTES_MAX);
        let mut value_left = value.len().min(BYTES_MAX);
        self.push_length(name_left);
        self.push_length(value_left);
        self.push_bytes(prefix, &mut name_left);
        let mapped = name.iter().take(name_left).map(|byte| bytes[usize::from(*byte)]);
        self.block.extend(mapped);
        self.push_bytes(value, &mut value_left);
    }

    /// Appends a pair whose value consists of parts. A name or value of 2 GiB or more is truncated.
    pub fn push_parts(&mut self, name: &[u8], parts: &[&[u8]]) {
        let value_len = parts.iter().map(|part| part.len()).sum::<usize>();
        let mut name_left = name.len().min(BYTES_MAX);
        let mut value_left = value_len.min(BYTES_MAX);
        self.block.reserve(LENGTHS_BYTES + name_left + value_left);
        self.push_length(name_left);
        self.push_length(value_left);
        self.push_bytes(name, &mut name_left);
        parts.iter().for_each(|part| self.push_bytes(part, &mut value_left));
    }

    /// Appends at most `left` of the bytes, and subtracts their number from `left`.
    fn push_bytes(&mut self, bytes: &[u8], left: &mut usize) {
        let taken = &bytes[..bytes.len().min(*left)];
        self.block.extend_from_slice(taken);
        *left -= taken.len();
    }

    /// Appends a length of at most [`BYTES_MAX`].
    fn push_length(&mut self, length: usize) {
        match u8::try_from(length) {
            Ok(short) if short < 128 => self.block.push(short),
            _ => self.block.extend_from_slice(&(length as u32 | LONG).to_be_bytes()),
        }
    }

    /// All pairs in FastCGI encoding.
    #[must_use]
    pub fn block(&self) -> &[u8] {
        &self.block
    }

    /// The pairs in order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let mut rest = &self.block[..];
        std::iter::from_fn(move || {
            let name_len = take_length(&mut rest)?;
            let value_len = take_length(&mut rest)?;
            let (name, after) = rest.split_at_checked(name_len)?;
            let (value, after) = after.split_at_checked(value_len)?;
            rest = after;
            Some((name, value))
        })
    }

    /// The value of the first pair of that name.
    #[must_use]
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        self.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }
}

fn take_length(rest: &mut &[u8]) -> Option<usize> {
    let (&first, after) = rest.split_first()?;
    if first < 128 {
        *rest = after;
        return Some(usize::from(first));
    }
    let (long, after) = rest.split_first_chunk::<4>()?;
    *rest = after;
    usize::try_from(u32::from_be_bytes(*long) & !LONG).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_any_length_round_trip() {
        let mut variables = Variables::new();
        let values = [0, 1, 127, 128, 300, 70_000].map(|len| vec![b'v'; len]);
        for value in &values {
            variables.push(b"NAME", value);
        }
        variables.push(&[b'N'; 200], b"x");
        let read: Vec<_> = variables.iter().collect();
        assert_eq!(read.len(), values.len() + 1);
        for (value, (name, found)) in values.iter().zip(&read) {
            assert_eq!((*name, *found), (&b"NAME"[..], &value[..]));
        }
        assert_eq!(variables.get(&[b'N'; 200]), Some(&b"x"[..]));
        assert_eq!(variables.get(b"OTHER"), None);
        assert_eq!(&variables.block()[..6], b"\x04\x00NAME");
        let mut mapped = Variables::new();
        let upper = std::array::from_fn(|byte| (byte as u8).to_ascii_uppercase());
        mapped.push_mapped(b"X_", b"a-b", &upper, &[b'v'; 300]);
        assert_eq!(mapped.get(b"X_A-B"), Some(&[b'v'; 300][..]));
        let mut one = Variables::new();
        one.push(b"A", &[b'v'; 128]);
        assert_eq!(&one.block()[..6], b"\x01\x80\0\0\x80A");
    }
}
