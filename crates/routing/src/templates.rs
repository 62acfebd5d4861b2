//! Fixed responses with variables in their bodies.

use http::{Fields, Status, Template};
use net::{Exchange, Fault};

use crate::edits::template_values;

/// Response whose body is a template.
pub struct TemplateResponse {
    pub(crate) status: Status,
    pub(crate) fields: Fields,
    pub(crate) body: Template,
    pub(crate) escape: BodyEscape,
}

/// Escaping of values in a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyEscape {
    None,
    /// HTML and XML: values cannot contain markup.
    Markup,
    /// JSON: values cannot end the string that contains them.
    Json,
    /// JavaScript: values cannot end the string, template literal or `<script>` element that contains them.
    Script,
}

impl BodyEscape {
    /// Returns the escaping for a media type.
    pub(crate) fn of(media_type: &str) -> BodyEscape {
        let essence = media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        match essence.as_str() {
            "text/html" | "text/xml" | "application/xml" => BodyEscape::Markup,
            "application/json" => BodyEscape::Json,
            "text/javascript" | "application/javascript" | "application/x-javascript" => BodyEscape::Script,
            other if other.ends_with("+xml") => BodyEscape::Markup,
            other if other.ends_with("+json") => BodyEscape::Json,
            _ => BodyEscape::None,
        }
    }

    /// Escapes the bytes of `out` from `start` on.
    pub(crate) fn escape(self, out: &mut Vec<u8>, start: usize) {
        if self == BodyEscape::None {
            return;
        }
        let value = out.split_off(start);
        for byte in value {
            match (self, byte) {
                (BodyEscape::Markup, b'&') => out.extend_from_slice(b"&amp;"),
                (BodyEscape::Markup, b'<') => out.extend_from_slice(b"&lt;"),
                (BodyEscape::Markup, b'>') => out.extend_from_slice(b"&gt;"),
                (BodyEscape::Markup, b'"') => out.extend_from_slice(b"&quot;"),
                (BodyEscape::Markup, b'\'') => out.extend_from_slice(b"&#39;"),
                (BodyEscape::Json, b'"' | b'\\') => out.extend_from_slice(&[b'\\', byte]),
                (BodyEscape::Json, b'\t') => out.extend_from_slice(b"\\t"),
                (BodyEscape::Script, b'"' | b'\'' | b'`' | b'\\' | b'<' | b'>' | b'&' | b'$' | b'\t') => {
                    out.extend_from_slice(format!("\\x{byte:02x}").as_bytes());
                }
                (_, byte) => out.push(byte),
            }
        }
    }
}

impl TemplateResponse {
    /// Sends the response.
    ///
    /// # Errors
    /// Those of sending to the client.
    pub(crate) async fn serve(&self, exchange: &mut Exchange<'_>, prefix: &[u8]) -> Result<(), Fault> {
        let mut body = Vec::new();
        self.body.write_each(&mut body, &template_values(exchange, prefix), |out, start| {
            self.escape.escape(out, start)
        });
        exchange.reply(self.status, &self.fields, &body).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_cannot_end_a_javascript_string() {
        let mut out = b"a = \"".to_vec();
        let start = out.len();
        out.extend_from_slice(b"\"';x(`</script>\\");
        BodyEscape::of("Text/JavaScript; charset=utf-8").escape(&mut out, start);
        assert_eq!(String::from_utf8(out).unwrap(), r#"a = "\x22\x27;x(\x60\x3c/script\x3e\x5c"#);
    }

    #[test]
    fn values_are_escaped_for_the_media_type() {
        let escaped = |media_type: &str| {
            let mut out = b"<b>".to_vec();
            out.extend_from_slice(b"<a href=\"x\">'&\\");
            BodyEscape::of(media_type).escape(&mut out, 3);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(escaped("text/html; charset=utf-8"), "<b>&lt;a href=&quot;x&quot;&gt;&#39;&amp;\\");
        assert_eq!(escaped("image/svg+xml"), escaped("text/html"));
        assert_eq!(escaped("application/ld+json"), "<b><a href=\\\"x\\\">'&\\\\");
        assert_eq!(escaped("text/plain"), "<b><a href=\"x\">'&\\");
    }
}
