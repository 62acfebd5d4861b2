//! Masking of secrets in logged queries and header fields.

use http::{Variable, form};

/// Replacement for secrets.
const MASKED: &[u8] = b"***";

/// Names of query parameters and header fields whose values are masked.
#[derive(Debug, Default)]
pub(crate) struct Masks {
    /// Query parameters, in lower case.
    parameters: Vec<Vec<u8>>,
    /// Header fields, in lower case.
    fields: Vec<String>,
}

impl Masks {
    pub(crate) fn new(parameters: &[String], fields: &[String]) -> Masks {
        let lower = |text: &String| text.to_lowercase();
        Masks {
            parameters: parameters.iter().map(|text| lower(text).into_bytes()).collect(),
            fields: fields.iter().map(lower).collect(),
        }
    }

    /// Whether the whole value of a variable is hidden.
    pub(crate) fn hides(&self, variable: &Variable) -> bool {
        let hides = |name: &str| self.fields.iter().any(|field| field.eq_ignore_ascii_case(name));
        match variable {
            Variable::Field(name) => hides(name),
            Variable::Cookie(_) => hides("cookie"),
            _ => false,
        }
    }

    /// Masks parameter values in `out[start..]`, which is a query; or, if `is_url`, a URL or path, where
    /// parameters follow the first `?` or the `;` of a path segment (matrix parameters, RFC 3986 section
    /// 3.3).
    pub(crate) fn mask(&self, out: &mut Vec<u8>, start: usize, is_url: bool) {
        if self.parameters.is_empty() {
            return;
        }
        let mut at = start;
        let mut is_path = is_url;
        while at < out.len() {
            if is_path {
                let Some(mark) = out[at..].iter().position(|byte| b";?#".contains(byte)) else { return };
                is_path = out[at + mark] == b';';
                at += mark + 1;
            }
            // Some applications accept `;` as a separator like `&`.
            let ends: &[u8] = if is_path { b";/?#" } else { b"&;#" };
            let end = out[at..].iter().position(|byte| ends.contains(byte)).map_or(out.len(), |end| at + end);
            let equals = out[at..end].iter().position(|&byte| byte == b'=').map(|equals| at + equals);
            at = match equals.filter(|&equals| self.is_secret(&out[at..equals])) {
                None => end,
                Some(equals) => {
                    out.splice(equals + 1..end, MASKED.iter().copied());
                    equals + 1 + MASKED.len()
                }
            };
            // The byte that ends a path parameter is examined again: it may begin the next one.
            at += usize::from(!is_path);
        }
    }

    /// Whether a parameter name, in any spelling, is one whose value is masked.
    fn is_secret(&self, name: &[u8]) -> bool {
        let is_it = |name: &[u8]| {
            let is_same = |(a, b): (&u8, &u8)| normalize(*a) == normalize(*b);
            self.parameters
                .iter()
                .any(|other| other.len() == name.len() && other.iter().zip(name).all(is_same))
        };
        let decoded = form::decoded(name);
        let decoded = decoded.trim_ascii_start();
        // `token[]` and `token[a]` are lists and maps of `token` in many languages; PHP truncates a name at
        // NUL.
        let end = decoded.iter().position(|byte| b"[\0".contains(byte)).unwrap_or(decoded.len());
        is_it(decoded) || is_it(&decoded[..end])
    }
}

/// Normalizes a byte of a name: lower case; PHP replaces dots and spaces by underscores.
fn normalize(byte: u8) -> u8 {
    if matches!(byte, b'.' | b' ') { b'_' } else { byte.to_ascii_lowercase() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_in_queries_and_path_parameters_are_masked() {
        let masks = Masks::new(&["token".into(), "Pass".into()], &[]);
        for (text, want) in [
            ("/a?x=1&token=abc", "/a?x=1&token=***"),
            ("/a?token=abc&x=1", "/a?token=***&x=1"),
            ("/a?TOKEN=a&pass=b&token=", "/a?TOKEN=***&pass=***&token=***"),
            ("/a?%74oken=abc", "/a?%74oken=***"),
            ("/a?token[]=a&token%5Bx%5d=b", "/a?token[]=***&token%5Bx%5d=***"),
            ("/a?x=1;token=a;y", "/a?x=1;token=***;y"),
            (
                "/a?+token=a&%20%20token=b&token%00=c&token%00x=d",
                "/a?+token=***&%20%20token=***&token%00=***&token%00x=***",
            ),
            ("/a?tokens=1&x=token&token", "/a?tokens=1&x=token&token"),
            ("/token=a", "/token=a"),
            ("/a;token=x/b;y=1;pass=z", "/a;token=***/b;y=1;pass=***"),
            ("/a;token=x?y=1&token=z", "/a;token=***?y=1&token=***"),
            ("/a;TOKEN=x;jsessionid=1/?pass=b#token=c", "/a;TOKEN=***;jsessionid=1/?pass=***#token=***"),
            ("/a;%74oken=x=y;", "/a;%74oken=***;"),
            ("/a;tokens=1;token/token=2?", "/a;tokens=1;token/token=2?"),
            ("https://x.test/a;token=b", "https://x.test/a;token=***"),
            ("/a?token=a=b%26c?d", "/a?token=***"),
            ("https://x.test/?token=a#token=b", "https://x.test/?token=***#token=***"),
            ("/a?", "/a?"),
        ] {
            let mut out = b">".to_vec();
            out.extend_from_slice(text.as_bytes());
            masks.mask(&mut out, 1, true);
            assert_eq!(String::from_utf8(out).unwrap(), format!(">{want}"));
        }
        let mut out = b"a=1&token=x".to_vec();
        masks.mask(&mut out, 0, false);
        assert_eq!(out, b"a=1&token=***");
    }

    #[test]
    fn names_equal_for_php_are_masked() {
        let masks = Masks::new(&["api_key".into()], &[]);
        let mut out = b"api.key=1&api+key=2&API%5fKEY=3&apikey=4".to_vec();
        masks.mask(&mut out, 0, false);
        assert_eq!(out, b"api.key=***&api+key=***&API%5fKEY=***&apikey=4");
    }

    #[test]
    fn header_fields_and_cookies_are_masked_by_name() {
        let masks = Masks::new(&[], &["Authorization".into(), "cookie".into()]);
        assert!(masks.hides(&Variable::Field("authorization".into())));
        assert!(masks.hides(&Variable::Cookie("sid".into())));
        assert!(!masks.hides(&Variable::Field("accept".into())) && !masks.hides(&Variable::Host));
    }
}
