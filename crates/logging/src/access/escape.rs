//! Escaping of client data in log lines: no byte of it can end a line or change how the line is parsed.

use std::fmt::Write as _;

/// `fmt::Write` adapter for a buffer; writing does not fail.
pub(super) struct LineText<'o>(pub(super) &'o mut Vec<u8>);

impl std::fmt::Write for LineText<'_> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

/// Escapes quotes, backslashes, control characters and non-ASCII bytes as `\xHH`, as nginx does.
pub(super) fn escaped(out: &mut Vec<u8>, bytes: &[u8]) {
    for &byte in bytes {
        match byte {
            b'"' | b'\\' | 0..=0x1f | 0x7f.. => _ = write!(LineText(out), "\\x{byte:02X}"),
            _ => out.push(byte),
        }
    }
}

/// Whether bytes need no escaping in a JSON string. Branch-free within blocks of 16 bytes.
pub(super) fn is_plain_json(bytes: &[u8]) -> bool {
    let is_plain = |byte: u8| (0x20..=0x7e).contains(&byte) & (byte != b'"') & (byte != b'\\');
    let (chunks, rest) = bytes.as_chunks::<16>();
    let all = |bytes: &[u8]| bytes.iter().fold(true, |all, byte| all & is_plain(*byte));
    chunks.iter().all(|chunk| all(chunk)) && all(rest)
}

/// Escapes bytes for a JSON string: invalid UTF-8 becomes U+FFFD; control characters and characters that
/// change how a line is displayed (U+2028, U+202E …) become `\uHHHH`.
pub(super) fn json_escaped(out: &mut Vec<u8>, bytes: &[u8]) {
    if is_plain_json(bytes) {
        return out.extend_from_slice(bytes);
    }
    for char in String::from_utf8_lossy(bytes).chars() {
        match char {
            '"' | '\\' => out.extend_from_slice(&[b'\\', char as u8]),
            _ if char.is_control() || is_format(char) => {
                for unit in char.encode_utf16(&mut [0; 2]) {
                    _ = write!(LineText(out), "\\u{unit:04x}");
                }
            }
            _ => out.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

/// Whether a character ends a line, is invisible or changes the text direction, so that a line would be
/// misread: U+2028, U+2029 and Unicode's category Cf.
fn is_format(char: char) -> bool {
    matches!(char,
        '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{890}'..='\u{891}' | '\u{8e2}' | '\u{180e}'
        | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
        | '\u{110bd}' | '\u{110cd}' | '\u{13430}'..='\u{1343f}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
        | '\u{e0001}' | '\u{e0020}'..='\u{e007f}')
}
