//! The uwsgi and SCGI packets that carry variables; the body follows unmodified.

use crate::variables::Variables;

/// Writes a uwsgi packet.
///
/// # Errors
/// The reason that the variables do not fit: 65,535 bytes in total, and for each name and value.
pub fn uwsgi(out: &mut Vec<u8>, variables: &Variables) -> Result<(), &'static str> {
    const TOO_LONG: &str = "the request's variables are longer than uwsgi can carry (64 KiB)";
    let start = out.len();
    // Modifier 1, the size in two bytes, modifier 2.
    out.extend_from_slice(&[0; 4]);
    for (name, value) in variables.iter() {
        for part in [name, value] {
            let Ok(len) = u16::try_from(part.len()) else {
                out.truncate(start);
                return Err(TOO_LONG);
            };
            out.extend_from_slice(&len.to_le_bytes());
            out.extend_from_slice(part);
        }
    }
    let Ok(size) = u16::try_from(out.len() - start - 4) else {
        out.truncate(start);
        return Err(TOO_LONG);
    };
    out[start + 1..start + 3].copy_from_slice(&size.to_le_bytes());
    Ok(())
}

/// Writes an SCGI packet: a netstring whose first variable is `CONTENT_LENGTH` and which contains `SCGI`.
///
/// # Errors
/// A name or value contains NUL.
pub fn scgi(out: &mut Vec<u8>, variables: &Variables) -> Result<(), &'static str> {
    let length = variables.get(b"CONTENT_LENGTH").filter(|length| !length.is_empty()).unwrap_or(b"0");
    let mut text = Vec::with_capacity(variables.block().len() + 64);
    let mut push = |name: &[u8], value: &[u8]| {
        for part in [name, value] {
            if part.contains(&0) {
                return Err("a variable of the request has a NUL, which SCGI cannot carry");
            }
            text.extend_from_slice(part);
            text.push(0);
        }
        Ok(())
    };
    push(b"CONTENT_LENGTH", length)?;
    push(b"SCGI", b"1")?;
    for (name, value) in variables.iter().filter(|(name, _)| !matches!(*name, b"CONTENT_LENGTH" | b"SCGI")) {
        push(name, value)?;
    }
    out.extend_from_slice(text.len().to_string().as_bytes());
    out.push(b':');
    out.extend_from_slice(&text);
    out.push(b',');
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uwsgi_and_scgi_packets_match_their_specifications() {
        let mut variables = Variables::new();
        variables.push(b"REQUEST_METHOD", b"POST");
        variables.push(b"CONTENT_LENGTH", b"27");
        let mut out = b"before".to_vec();
        uwsgi(&mut out, &variables).expect("short variables");
        assert_eq!(out, b"before\0\x2a\0\0\x0e\0REQUEST_METHOD\x04\0POST\x0e\0CONTENT_LENGTH\x02\x0027");
        out.clear();
        scgi(&mut out, &variables).expect("no NUL");
        assert_eq!(out, b"45:CONTENT_LENGTH\x0027\0SCGI\x001\0REQUEST_METHOD\0POST\0,");
    }

    #[test]
    fn unencodable_variables_are_rejected_without_output() {
        let mut variables = Variables::new();
        variables.push(b"A", &[b'x'; 65_536]);
        let mut out = b"before".to_vec();
        assert!(uwsgi(&mut out, &variables).is_err());
        let mut many = Variables::new();
        for _ in 0..3 {
            many.push(b"A", &[b'x'; 30_000]);
        }
        assert!(uwsgi(&mut out, &many).is_err());
        let mut nul = Variables::new();
        nul.push(b"A", b"x\0y");
        assert!(scgi(&mut out, &nul).is_err());
        assert_eq!(out, b"before");
        scgi(&mut out, &Variables::new()).expect("no NUL");
        assert_eq!(out, b"before24:CONTENT_LENGTH\x000\0SCGI\x001\0,");
    }
}
