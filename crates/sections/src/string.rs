//! String literals (RFC 7541 section 5.2, RFC 9204 section 4.1.2).

use crate::{huffman, integer};

/// Appends the string literal at the start of `input` to `out`; returns the remaining input. `prefix` is the
/// number of low bits of the first byte that begin the length; the bit above them says whether the string is
/// Huffman-coded.
///
/// # Errors
/// A static reason: the literal is cut off, too long or wrongly coded.
pub fn read<'i>(input: &'i [u8], prefix: u32, out: &mut Vec<u8>) -> Result<&'i [u8], &'static str> {
    let is_huffman = input.first().is_some_and(|first| first >> prefix & 1 != 0);
    let (len, rest) = integer::read(input, prefix)?;
    let (text, rest) = rest.split_at_checked(len).ok_or("header block ends in a string")?;
    if is_huffman {
        huffman::decode(text, out)?
    } else {
        out.extend_from_slice(text)
    }
    Ok(rest)
}

/// Writes a string literal in its shorter form: Huffman-coded or as it is. `opcode` gives the bits of the
/// first byte above the one that says which.
pub fn write(out: &mut Vec<u8>, opcode: u8, prefix: u32, text: &[u8]) {
    let coded = huffman::encoded_len(text);
    if coded < text.len() {
        integer::write(out, opcode | 1 << prefix, prefix, coded as u64);
        huffman::encode(text, out);
    } else {
        integer::write(out, opcode, prefix, text.len() as u64);
        out.extend_from_slice(text);
    }
}
