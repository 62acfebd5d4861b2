//! The dashboard: a page with its style and script, embedded in the program. Its content security policy
//! allows requests to this server only.

use http::{Fields, Name, Status};
use net::{Exchange, Fault};

/// Allows no foreign origins, no inline code and no framing.
const CONTENT_SECURITY_POLICY: &[u8] =
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HTML: &str = include_str!("page/index.html");
const STYLE: &str = include_str!("page/dashboard.css");
const SCRIPT: &str = include_str!("page/dashboard.js");

/// A file of the dashboard.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DashboardFile {
    media_type: &'static [u8],
    content: &'static str,
}

impl DashboardFile {
    /// Returns the file at a path.
    pub(crate) fn find_file(path: &[u8]) -> Option<DashboardFile> {
        let (kind, content): (&[u8], _) = match path {
            b"/" => (b"text/html; charset=utf-8", HTML),
            b"/dashboard.css" => (b"text/css; charset=utf-8", STYLE),
            b"/dashboard.js" => (b"text/javascript; charset=utf-8", SCRIPT),
            _ => return None,
        };
        Some(DashboardFile { media_type: kind, content })
    }

    pub(crate) async fn send(self, exchange: &mut Exchange<'_>) -> Result<(), Fault> {
        let mut fields = Fields::new();
        fields.push(Name::ContentType, self.media_type);
        // Another version may run at the next visit.
        fields.push(Name::CacheControl, b"no-cache");
        let others: [(&[u8], &[u8]); 4] = [
            (b"Content-Security-Policy", CONTENT_SECURITY_POLICY),
            (b"X-Content-Type-Options", b"nosniff"),
            (b"Referrer-Policy", b"no-referrer"),
            (b"Cross-Origin-Opener-Policy", b"same-origin"),
        ];
        for (name, value) in others {
            fields.try_push(name, value).expect("a field made by the server is valid");
        }
        exchange.reply(Status::OK, &fields, self.content.as_bytes()).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dashboard_loads_nothing_external_and_builds_no_html() {
        let all = [HTML, STYLE, SCRIPT].concat();
        // The namespace of SVG is a name that is never fetched.
        let urls = all.matches("://").count() - all.matches("http://www.w3.org/2000/svg").count();
        assert_eq!(urls, 0);
        for dangerous in
            ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "style=", " onclick="]
        {
            assert!(!all.contains(dangerous), "{dangerous}");
        }
    }
}
