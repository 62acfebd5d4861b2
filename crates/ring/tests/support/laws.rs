//! Laws that hold for arbitrary bytes, called by fuzz targets and tests; each panics if its law is violated.

use ring::wire::{self, Malformed, WireFields};

/// Heads and trailers as a worker may write them: every field lies within the bytes, a malformed one is the
/// last, and the fields before it are preserved when written again.
pub(crate) fn ring_head(bytes: &[u8]) {
    if let Ok((status, fields)) = wire::response(bytes) {
        assert_eq!(status.to_le_bytes(), bytes[..2]);
        read_again(fields);
    }
    read_again(WireFields(bytes));
}

fn read_again(fields: WireFields<'_>) {
    let total = fields.0.len();
    let mut written = Vec::new();
    let mut read = Vec::new();
    let mut used = 0;
    for field in fields {
        assert_ne!(read.last(), Some(&Err(Malformed)), "a field follows a malformed one");
        if let Ok(field) = field {
            assert!(field.known.is_none_or(|known| known.text().as_bytes() == field.name));
            let name_bytes = if field.known.is_some() { 0 } else { 2 + field.name.len() };
            used += 4 + name_bytes + field.value.len();
            match field.known {
                Some(known) => wire::put(&mut written, known, field.value).unwrap(),
                None => wire::put_header(&mut written, field.name, field.value).unwrap(),
            }
        }
        read.push(field);
    }
    assert!(used <= total, "fields reach beyond the bytes");
    let again: Vec<_> = WireFields(&written).collect();
    let good: Vec<_> = read.into_iter().filter(Result::is_ok).collect();
    let named = |fields: &[Result<wire::WireField<'_>, Malformed>]| {
        let pairs =
            fields.iter().flatten().map(|field| (field.name.to_ascii_lowercase(), field.value.to_vec()));
        pairs.collect::<Vec<_>>()
    };
    assert_eq!(named(&again), named(&good));
}
