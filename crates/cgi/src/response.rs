//! CGI response heads (RFC 3875 section 6), converted to HTTP/1 heads.

use memchr::memchr;

/// Connection-specific fields, which have no meaning in responses of these protocols.
const CONNECTION_FIELDS: [&str; 7] =
    ["connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"];

/// The status line of a response whose head has no status.
const DEFAULT_STATUS_LINE: &[u8] = b"HTTP/1.1 200 OK\r\n";

/// Deviations of a head that are accepted.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeadRules {
    /// A head without fields, which PHP-FPM sends for a script that sets none.
    pub may_be_empty: bool,
    /// White space before a colon; it is removed.
    pub spaced_colon: bool,
}

/// Collects the head of a response, and converts it to HTTP/1.
#[derive(Debug, Default)]
pub struct ResponseHeadReader {
    gathered: Vec<u8>,
}

impl ResponseHeadReader {
    /// Collects bytes up to the end of the head. Returns the number of bytes consumed and whether the head is
    /// complete.
    ///
    /// # Errors
    /// The head exceeds `bytes_max`.
    pub fn feed(&mut self, bytes: &[u8], bytes_max: usize) -> Result<(usize, bool), &'static str> {
        let room = bytes_max.saturating_sub(self.gathered.len());
        let mut from = 0;
        while let Some(at) = memchr(b'\n', &bytes[from..]).map(|at| from + at).filter(|at| *at <= room) {
            if self.ends_with_line(&bytes[..at]) {
                self.gathered.extend_from_slice(&bytes[..=at]);
                return Ok((at + 1, true));
            }
            from = at + 1;
        }
        if bytes.len() > room {
            return Err("response head too long");
        }
        self.gathered.extend_from_slice(bytes);
        Ok((bytes.len(), false))
    }

    /// Whether the line that an LF after `more` would end is empty.
    fn ends_with_line(&self, more: &[u8]) -> bool {
        let mut before = more.iter().rev().chain(self.gathered.iter().rev()).peekable();
        if before.peek() == Some(&&b'\r') {
            before.next();
        }
        matches!(before.next(), None | Some(b'\n'))
    }

    /// Whether no byte of a head has been received.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.gathered.is_empty()
    }

    /// Number of bytes held.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.gathered.capacity()
    }

    /// Returns the head in HTTP/1 form and releases the held bytes. A response without `Status` is a 200, or
    /// a 302 if it has `Location`. Field lines are not validated.
    ///
    /// # Errors
    /// The reason that the head is invalid: an invalid or interim status, several statuses, or no field.
    pub fn into_http(&mut self, rules: HeadRules) -> Result<Vec<u8>, &'static str> {
        let gathered = std::mem::take(&mut self.gathered);
        let mut rest = &gathered[..];
        let mut lines = std::iter::from_fn(|| next_line(&mut rest)).peekable();
        let mut status = match lines.peek() {
            None if !rules.may_be_empty => return Err("the upstream's response has no head"),
            None => None,
            Some(line) => match line.strip_prefix(b"HTTP/1.") {
                // Skips the minor version and a space.
                Some(rest) => Some(status_of(rest.get(2..).unwrap_or_default())?),
                None => None,
            },
        };
        if status.is_some() {
            lines.next();
        }
        let mut head = Vec::with_capacity(gathered.len() + 64);
        head.extend_from_slice(DEFAULT_STATUS_LINE);
        let mut redirects = false;
        for line in lines {
            let colon = memchr(b':', line).ok_or("the upstream's head has a line without a colon")?;
            let mut field_name = &line[..colon];
            while rules.spaced_colon
                && let [shorter @ .., b' ' | b'\t'] = field_name
            {
                field_name = shorter;
            }
            let is = |name: &str| field_name.eq_ignore_ascii_case(name.as_bytes());
            if is("status") {
                // Some applications send both a status line and `Status`.
                let named = status_of(line[colon + 1..].trim_ascii())?;
                if status.is_some_and(|status| status.0 != named.0) {
                    return Err("the upstream's response has two statuses");
                }
                status = Some(named);
                continue;
            }
            if CONNECTION_FIELDS.iter().any(|name| is(name)) {
                continue;
            }
            redirects |= is("location");
            head.extend_from_slice(field_name);
            head.extend_from_slice(&line[colon..]);
            head.extend_from_slice(b"\r\n");
        }
        head.extend_from_slice(b"\r\n");
        let (code, reason) = match status {
            Some(status) => status,
            None if redirects => (*b"302", &b"Found"[..]),
            None => return Ok(head),
        };
        let line = [b"HTTP/1.1 ", &code[..], b" ", reason, b"\r\n"].concat();
        head.splice(..DEFAULT_STATUS_LINE.len(), line);
        Ok(head)
    }
}

/// The next line of a head, without its line end; `None` at the end of the head.
fn next_line<'x>(rest: &mut &'x [u8]) -> Option<&'x [u8]> {
    let (line, after) = match memchr(b'\n', rest) {
        Some(end) => (&rest[..end], &rest[end + 1..]),
        None => (*rest, &b""[..]),
    };
    *rest = after;
    Some(line.strip_suffix(b"\r").unwrap_or(line)).filter(|line| !line.is_empty())
}

/// Parses three digits and a reason.
fn status_of(text: &[u8]) -> Result<([u8; 3], &[u8]), &'static str> {
    let (code, rest) = text.split_first_chunk::<3>().ok_or("the upstream's status is not a number")?;
    if !code.iter().all(u8::is_ascii_digit) || !matches!(rest.first(), None | Some(b' ')) {
        return Err("the upstream's status is not a number of three digits");
    }
    match code[0] {
        b'2'..=b'9' => Ok((*code, rest.trim_ascii())),
        b'1' => Err("the upstream sends an interim response, which this protocol has not"),
        _ => Err("the upstream's status is not one that there is"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the head converted from `pieces`, and the bytes after it.
    fn convert(pieces: &[&[u8]]) -> Result<(String, Vec<u8>), &'static str> {
        let mut reader = ResponseHeadReader::default();
        for (index, piece) in pieces.iter().enumerate() {
            let (taken, whole) = reader.feed(piece, 1024)?;
            if whole {
                let rest = [&piece[taken..], &pieces[index + 1..].concat()].concat();
                let head = reader.into_http(HeadRules::default())?;
                return Ok((String::from_utf8(head).expect("text"), rest));
            }
        }
        Err("not whole")
    }

    #[test]
    fn cgi_heads_become_http_heads_however_they_are_split() {
        for (text, want) in [
            ("Content-Type: a/b\r\n\r\nbody", "HTTP/1.1 200 OK\r\nContent-Type: a/b\r\n\r\n"),
            ("Status: 404 Not Found\nX: y\n\nbody", "HTTP/1.1 404 Not Found\r\nX: y\r\n\r\n"),
            ("X: y\r\nstatus:404\r\n\r\nbody", "HTTP/1.1 404 \r\nX: y\r\n\r\n"),
            ("Location: /a\r\n\r\nbody", "HTTP/1.1 302 Found\r\nLocation: /a\r\n\r\n"),
            ("Status: 201 Made\r\nLocation: /a\n\r\nbody", "HTTP/1.1 201 Made\r\nLocation: /a\r\n\r\n"),
            ("HTTP/1.0 500 Oh\r\nConnection: close\r\nX: y\r\n\r\nbody", "HTTP/1.1 500 Oh\r\nX: y\r\n\r\n"),
            ("HTTP/1.1 200 OK\r\nStatus: 200 OK\r\n\r\nbody", "HTTP/1.1 200 OK\r\n\r\n"),
            ("Transfer-Encoding: chunked\r\nX: y\r\n\r\nbody", "HTTP/1.1 200 OK\r\nX: y\r\n\r\n"),
        ] {
            let bytes = text.as_bytes();
            let want = Ok((want.to_owned(), b"body".to_vec()));
            assert_eq!(convert(&[bytes]), want, "{text:?}");
            let single: Vec<&[u8]> = bytes.chunks(1).collect();
            assert_eq!(convert(&single), want, "{text:?}");
            for at in 0..bytes.len() {
                let (left, right) = bytes.split_at(at);
                assert_eq!(convert(&[left, right]), want, "{text:?} split at {at}");
            }
        }
    }

    #[test]
    fn invalid_cgi_heads_are_rejected() {
        for text in [
            "\r\nbody",
            "\n\n",
            "Status: 99 Low\r\n\r\n",
            "Status: 100 Continue\r\n\r\n",
            "Status: 101 Switching\r\n\r\n",
            "Status: 020\r\n\r\n",
            "Status: 2000\r\n\r\n",
            "Status: OK\r\n\r\n",
            "Status:\r\n\r\n",
            "Status: 200 OK\r\nStatus: 404 Not Found\r\n\r\n",
            "HTTP/1.1 200 OK\r\nStatus: 404\r\n\r\n",
            "HTTP/1.1\r\n\r\n",
            "HTTP/1.1 abc\r\n\r\n",
            "PHP Warning  Undefined variable\r\n\r\n",
        ] {
            assert!(convert(&[text.as_bytes()]).is_err_and(|why| why != "not whole"), "{text:?}");
        }
        let endless = format!("X: {}", "y".repeat(2000));
        assert_eq!(convert(&[endless.as_bytes()]), Err("response head too long"));
        let single: Vec<&[u8]> = endless.as_bytes().chunks(1).collect();
        assert_eq!(convert(&single), Err("response head too long"));
        assert_eq!(convert(&[b"X: y\r\n"]), Err("not whole"));
    }
}
