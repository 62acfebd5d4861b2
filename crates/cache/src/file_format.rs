//! Encoding of a response in one file: key, head and content, each with a checksum.
//!
//! ```text
//! magic, version   8 bytes
//! head length      4 bytes
//! content length   8 bytes
//! head checksum    8 bytes, of the head, seeded with the content length
//! head             key, status, freshness, variant, fields, a checksum for each 64 KiB of content
//! content
//! ```
//!
//! Integers are little-endian. A file with any mismatch is rejected.

use std::io::{self, Read, Write};
use std::sync::Arc;

use http::{Fields, Status};
use twox_hash::XxHash3_64;

use crate::freshness::{Freshness, NEVER_S, stated_s};
use crate::object::{Object, StoredBody};
use crate::vary::RequestVariant;

/// First bytes of a file; the last one is the version of the format.
const MAGIC: [u8; 8] = *b"KOMAINU\x01";
/// Number of bytes before the head.
const PREFIX_BYTES: usize = 28;
/// Size of the pieces of content that have a checksum each.
const PIECE_BYTES: u64 = 64 * 1024;
/// Maximum bytes of a head, without the checksums of pieces.
const HEAD_BYTES_MAX: u64 = 1 << 20;

/// Decoded data of a file, except the content.
#[derive(Debug)]
pub(crate) struct FileHead {
    /// Key under which the response is stored.
    pub(crate) key: Vec<u8>,
    /// The response, without its content.
    pub(crate) object: Object,
    body_bytes: u64,
    sums: Vec<u64>,
}

/// Encodes the bytes before the content.
pub(crate) fn encode_head(key: &[u8], object: &Object) -> Vec<u8> {
    let mut head = Vec::with_capacity(512 + key.len() + object.fields.as_bytes().len());
    put_bytes(&mut head, key);
    put(&mut head, object.status.code().into());
    let Freshness {
        received_s,
        initial_age_s,
        lifetime_s,
        while_revalidate_s,
        if_error_s,
        unreachable_s,
        keep_s,
        no_cache,
        is_guessed,
    } = object.freshness_when_stored();
    let times = [received_s, initial_age_s, lifetime_s, while_revalidate_s, if_error_s, unreachable_s];
    times
        .into_iter()
        .chain([
            keep_s.unwrap_or(NEVER_S),
            u64::from(no_cache) | u64::from(is_guessed) << 1,
            object.expired_s().unwrap_or(NEVER_S),
        ])
        .for_each(|one| put(&mut head, one));
    let selectors = object.variant.selectors();
    put(&mut head, selectors.len() as u64);
    for (name, value) in selectors {
        put_bytes(&mut head, name);
        put(&mut head, value.is_some().into());
        put_bytes(&mut head, value.as_deref().unwrap_or_default());
    }
    put_bytes(&mut head, object.fields.as_bytes());
    piece_sums(&object.body).into_iter().for_each(|sum| put(&mut head, sum));
    framed(&head, object.body.len())
}

/// Writes a response.
///
/// # Errors
/// Errors of the file.
pub(crate) fn write(file: &mut impl Write, head: &[u8], body: &StoredBody) -> io::Result<()> {
    file.write_all(head)?;
    body.read(0..body.len()).try_for_each(|piece| file.write_all(&piece?))
}

/// Reads the data before the content; `file_bytes` is the size of the file.
///
/// # Errors
/// Errors of the file; `InvalidData` if it is damaged.
pub(crate) fn read_head(file: &mut impl Read, file_bytes: u64) -> io::Result<FileHead> {
    let mut prefix = [0; PREFIX_BYTES];
    file.read_exact(&mut prefix)?;
    let mut rest = HeadDecoder(&prefix);
    let magic = rest.take(MAGIC.len())?;
    let head_bytes = u64::from(u32::from_le_bytes(rest.array()?));
    let body_bytes = rest.number()?;
    let sum = rest.number()?;
    let pieces = body_bytes.div_ceil(PIECE_BYTES);
    let whole = (PREFIX_BYTES as u64 + head_bytes).checked_add(body_bytes);
    if magic != MAGIC || whole != Some(file_bytes) || head_bytes > HEAD_BYTES_MAX + pieces * 8 {
        return Err(corrupt());
    }
    let mut head = vec![0; head_bytes as usize];
    file.read_exact(&mut head)?;
    if sum != head_sum(&head, body_bytes) {
        return Err(corrupt());
    }
    decode_head(&head, body_bytes)
}

/// Reads the content, which follows the head.
///
/// # Errors
/// See [`read_head`].
pub(crate) fn read_body(file: &mut impl Read, head: FileHead) -> io::Result<Object> {
    let FileHead { object, body_bytes, sums, .. } = head;
    let mut pieces = Vec::with_capacity(sums.len());
    for (at, sum) in sums.into_iter().enumerate() {
        let len = (body_bytes - at as u64 * PIECE_BYTES).min(PIECE_BYTES);
        let mut piece: Arc<[u8]> = std::iter::repeat_n(0, len as usize).collect();
        file.read_exact(Arc::get_mut(&mut piece).expect("nobody else has it yet"))?;
        if XxHash3_64::oneshot(&piece) != sum {
            return Err(corrupt());
        }
        pieces.push(piece);
    }
    Ok(object.with_body(StoredBody::new(pieces)))
}

/// Adds the bytes that precede a head.
fn framed(head: &[u8], body_bytes: u64) -> Vec<u8> {
    let length = u32::try_from(head.len()).expect("a head is far smaller");
    let mut out = Vec::with_capacity(PREFIX_BYTES + head.len());
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&length.to_le_bytes());
    put(&mut out, body_bytes);
    put(&mut out, head_sum(head, body_bytes));
    out.extend_from_slice(head);
    out
}

fn head_sum(head: &[u8], body_bytes: u64) -> u64 {
    XxHash3_64::oneshot_with_seed(body_bytes, head)
}

/// Returns the checksum of each piece of the content, with the piece boundaries used for reading.
fn piece_sums(body: &StoredBody) -> Vec<u64> {
    let mut sums = Vec::with_capacity(body.len().div_ceil(PIECE_BYTES) as usize);
    let mut at = 0;
    while at < body.len() {
        let mut hasher = XxHash3_64::new();
        // An unreadable piece is skipped: writing it fails later with the same error.
        for piece in body.read(at..at + PIECE_BYTES).flatten() {
            std::hash::Hasher::write(&mut hasher, &piece);
        }
        sums.push(std::hash::Hasher::finish(&hasher));
        at += PIECE_BYTES;
    }
    sums
}

fn decode_head(head: &[u8], body_bytes: u64) -> io::Result<FileHead> {
    let mut rest = HeadDecoder(head);
    let key = rest.bytes()?.to_vec();
    let status = u16::try_from(rest.number()?).ok().and_then(Status::of).ok_or_else(corrupt)?;
    let mut number = || rest.number();
    let mut freshness = Freshness {
        received_s: number()?,
        initial_age_s: number()?,
        lifetime_s: number()?,
        while_revalidate_s: number()?,
        if_error_s: number()?,
        unreachable_s: number()?,
        keep_s: stated_s(number()?),
        ..Freshness::default()
    };
    let flags = number()?;
    freshness.no_cache = flags & 1 != 0;
    freshness.is_guessed = flags & 2 != 0;
    let expired_s = stated_s(number()?);
    let mut selectors = Vec::new();
    for _ in 0..rest.number()? {
        let name = rest.bytes()?.to_vec();
        let has_value = rest.number()? != 0;
        let value = rest.bytes()?.to_vec();
        selectors.push((name, has_value.then_some(value)));
    }
    let mut fields = Fields::new();
    for line in rest.bytes()?.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
        let colon = line.iter().position(|&byte| byte == b':').ok_or_else(corrupt)?;
        let value = line[colon + 1..].strip_suffix(b"\r").ok_or_else(corrupt)?;
        fields.try_push(&line[..colon], value).map_err(|_| corrupt())?;
    }
    let sums: Vec<u64> =
        (0..body_bytes.div_ceil(PIECE_BYTES)).map(|_| rest.number()).collect::<io::Result<_>>()?;
    if !rest.0.is_empty() {
        return Err(corrupt());
    }
    let variant = RequestVariant::of_selectors(selectors);
    let object = Object::new(status, fields, StoredBody::default(), variant, freshness);
    if let Some(expired_s) = expired_s {
        object.expire(expired_s);
    }
    Ok(FileHead { key, object, body_bytes, sums })
}

fn corrupt() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "it is not what was written")
}

fn put(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(&number.to_le_bytes());
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Unread rest of an encoded head.
struct HeadDecoder<'b>(&'b [u8]);

impl<'b> HeadDecoder<'b> {
    fn take(&mut self, len: usize) -> io::Result<&'b [u8]> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or_else(corrupt)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        Ok(self.take(N)?.try_into().expect("so many were taken"))
    }

    fn number(&mut self) -> io::Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn bytes(&mut self) -> io::Result<&'b [u8]> {
        let len = self.number()?;
        self.take(usize::try_from(len).map_err(|_| corrupt())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn large() -> (Vec<u8>, Object) {
        let lines = [("A", "1"), ("ETag", "\"x\""), ("X-Empty", "")];
        let object = crate::object::tests::object(&lines, "");
        let body: Vec<u8> = (0..150_000u32).map(|n| (n * 7 / 3) as u8).collect();
        // Piece lengths differ from those used for reading.
        let pieces = body.chunks(40_000).map(Arc::from).collect();
        let object = object.with_body(StoredBody::new(pieces));
        object.expire(105);
        (body, object)
    }

    fn read(bytes: &[u8]) -> io::Result<(Vec<u8>, Object)> {
        let mut file = bytes;
        let mut head = read_head(&mut file, bytes.len() as u64)?;
        let key = std::mem::take(&mut head.key);
        Ok((key, read_body(&mut file, head)?))
    }

    #[test]
    fn stored_response_is_read_back_unchanged() {
        let (body, object) = large();
        let mut bytes = Vec::new();
        write(&mut bytes, &encode_head(b"http://a/x", &object), &object.body).unwrap();
        let (key, back) = read(&bytes).unwrap();
        assert_eq!(key, b"http://a/x");
        assert_eq!(
            (back.status, &back.fields, &back.variant),
            (object.status, &object.fields, &object.variant)
        );
        assert_eq!(back.freshness(), object.freshness());
        assert!(!back.freshness().is_fresh(106), "a soft purge is kept");
        assert_eq!(back.body.slices(0..u64::MAX).flatten().copied().collect::<Vec<u8>>(), body);
    }

    #[test]
    fn damaged_or_truncated_records_are_rejected() {
        let object = crate::object::tests::object(&[("A", "1")], "the content");
        let mut bytes = Vec::new();
        write(&mut bytes, &encode_head(b"http://a/x", &object), &object.body).unwrap();
        assert!(read(&bytes).is_ok());
        for at in 0..bytes.len() {
            assert!(read(&bytes[..at]).is_err(), "cut at {at}");
            let mut other = bytes.clone();
            other[at] ^= 0x10;
            assert!(read(&other).is_err(), "changed at {at}");
        }
        let (_, object) = large();
        let mut bytes = Vec::new();
        write(&mut bytes, &encode_head(b"http://a/x", &object), &object.body).unwrap();
        for at in [bytes.len() - 1, bytes.len() - 70_000, bytes.len() - 149_999] {
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert_eq!(read(&other).unwrap_err().kind(), io::ErrorKind::InvalidData, "{at}");
        }
    }
}
