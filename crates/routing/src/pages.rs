//! Error pages: configured files, or generated ones.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::rc::Rc;

use config::StatusPattern;
use failure::IoFailure;
use http::Status;
use net::{ErrorPages, Page};
use process::config_files::MemoryFiles;

/// Maximum length of a host that a page names, in bytes: that of a DNS name.
const HOST_BYTES_MAX: usize = 255;

/// Maximum size of a configured page, in bytes; pages are kept in memory.
const PAGE_BYTES_MAX: u64 = 1024 * 1024;

/// Error pages of a site, for responses that the server itself generates. For other statuses a plain page is
/// generated.
#[derive(Debug, Default)]
pub struct SitePages {
    exact: HashMap<u16, Page>,
    /// Pages for a class of statuses, by first digit: `5xx`.
    class: HashMap<u16, Page>,
}

impl SitePages {
    /// Reads the error pages of several levels, the innermost first, from memory or else from the disk.
    ///
    /// # Errors
    /// A file cannot be read or is too large.
    pub fn read(levels: &[&config::ErrorPages], memory: &MemoryFiles) -> io::Result<SitePages> {
        let mut pages = SitePages::default();
        for (pattern, path) in levels.iter().rev().copied().flatten() {
            let page = match memory.get(path) {
                Some(body) => Page { content_type: content_type(path).into(), body: body.clone() },
                None => read(path)?,
            };
            match pattern {
                StatusPattern::One(code) => pages.exact.insert(*code, page),
                StatusPattern::Class(class) => pages.class.insert(u16::from(*class), page),
            };
        }
        Ok(pages)
    }
}

impl SitePages {
    /// Returns the configured page for a status, if there is one.
    fn configured_page(&self, status: Status) -> Option<&Page> {
        let code = status.code();
        self.exact.get(&code).or_else(|| self.class.get(&(code / 100)))
    }
}

impl ErrorPages for SitePages {
    fn page(&self, status: Status, reason: &'static str, accept: Option<&[u8]>) -> Cow<'_, Page> {
        match self.configured_page(status) {
            Some(page) => Cow::Borrowed(page),
            None => Cow::Owned(generate(status, reason, accept)),
        }
    }

    fn has_page(&self, status: Status) -> bool {
        self.configured_page(status).is_some()
    }
}

/// Reason of a 404 if no site has the host. [`PagesWithoutSite`] replaces it by one that names the host.
pub(crate) const NO_SITE: &str = "no site has the host of this request";

/// Error pages for a request whose host no site has. Generated pages name the host.
pub(crate) struct PagesWithoutSite {
    pages: Rc<SitePages>,
    /// Reason with the host: `no site has the host example.com`.
    reason: String,
}

impl PagesWithoutSite {
    /// Creates the pages for a request. The host is named only if it consists of the characters of host names
    /// and addresses.
    pub(crate) fn new(pages: Rc<SitePages>, authority: &[u8]) -> PagesWithoutSite {
        let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(byte);
        let reason = match std::str::from_utf8(authority) {
            Ok(host)
                if !host.is_empty() && host.len() <= HOST_BYTES_MAX && authority.iter().all(is_plain) =>
            {
                let name =
                    host.rsplit_once(':').filter(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()));
                format!("no site has the host {}", name.map_or(host, |(name, _)| name))
            }
            _ => NO_SITE.to_owned(),
        };
        PagesWithoutSite { pages, reason }
    }
}

impl ErrorPages for PagesWithoutSite {
    fn page(&self, status: Status, reason: &'static str, accept: Option<&[u8]>) -> Cow<'_, Page> {
        let reason = if reason == NO_SITE { &*self.reason } else { reason };
        self.pages
            .configured_page(status)
            .map_or_else(|| Cow::Owned(generate(status, reason, accept)), Cow::Borrowed)
    }

    fn has_page(&self, status: Status) -> bool {
        self.pages.has_page(status)
    }
}

/// Generates a page: JSON (RFC 9457) for clients that accept it and not HTML, otherwise HTML.
fn generate(status: Status, reason: &str, accept: Option<&[u8]>) -> Page {
    let code = status.code();
    let title = status.reason();
    let accept = accept.unwrap_or_default();
    let wants = |what: &[u8]| accept.windows(what.len()).any(|window| window.eq_ignore_ascii_case(what));
    if wants(b"json") && !wants(b"text/html") {
        // No escaping is needed: reasons are fixed texts and host names without quotes, markup or control
        // characters.
        let body = format!("{{\"status\":{code},\"title\":\"{title}\",\"detail\":\"{reason}\"}}\n");
        return Page { content_type: "application/problem+json".into(), body: body.into_bytes() };
    }
    let body = format!(
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width\">\
         <title>{code} {title}</title><style>:root{{color-scheme:light dark}}body{{font:1rem/1.5 system-ui,sans-serif;\
         margin:18vh auto;max-width:32rem;padding:0 1.5rem}}h1{{font-size:1.5rem;margin:0}}p{{opacity:.75}}</style>\
         <h1>{code} {title}</h1><p>{reason}</p>\n"
    );
    Page { content_type: "text/html; charset=utf-8".into(), body: body.into_bytes() }
}

/// Returns the text of the error page if `respond` has an error status and no body.
pub(crate) fn respond_text(status: Status) -> &'static str {
    match status.code() {
        401 => "this address requires authentication",
        403 => "access to this address is forbidden",
        404 => "there is nothing at this address",
        410 => "this address no longer exists",
        429 => "too many requests",
        400..500 => "this request is refused",
        _ => "this address is temporarily out of service",
    }
}

/// Reads a page.
///
/// # Errors
/// The file cannot be read or is too large.
pub fn read(path: &Path) -> io::Result<Page> {
    let named = |error: io::Error| {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
        error.attempting(format_args!("cannot read the error page {}", path.display())).about(path)
    };
    let found = std::fs::metadata(path).map_err(named)?;
    // Opening a FIFO would block.
    if !found.is_file() {
        return Err(named(io::Error::other("this is not a file")));
    }
    if found.len() > PAGE_BYTES_MAX {
        return Err(named(io::Error::other("larger than 1 MiB")));
    }
    let body = std::fs::read(path).map_err(named)?;
    Ok(Page { content_type: content_type(path).into(), body })
}

/// Returns the media type of a page, by the extension of its file.
fn content_type(path: &Path) -> &'static str {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("json") => "application/json",
        Some("txt") => "text/plain; charset=utf-8",
        _ => "text/html; charset=utf-8",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_error_page_is_used_or_a_generated_one() {
        let folder = std::env::temp_dir().join(format!("komainu-pages-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = |name: &str, text: &str| {
            std::fs::write(folder.join(name), text).unwrap();
            folder.join(name)
        };
        let site = vec![(StatusPattern::One(404), file("404.txt", "of the site"))];
        let server = vec![
            (StatusPattern::One(404), file("404.html", "of the server")),
            (StatusPattern::Class(5), file("5xx.json", "{}")),
        ];
        let memory = MemoryFiles::from([("/memory/503.txt".into(), b"of memory".to_vec())]);
        let own = vec![(StatusPattern::One(503), "/memory/503.txt".into())];
        let pages = SitePages::read(&[&own, &site, &server], &memory).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        let page = |status, accept: &'static str| pages.page(status, "a reason", Some(accept.as_bytes()));
        assert_eq!(page(Status::NOT_FOUND, "").body, b"of the site");
        assert_eq!(page(Status::SERVICE_UNAVAILABLE, "").body, b"of memory");
        assert_eq!(page(Status::BAD_GATEWAY, "").content_type, "application/json");
        let plain = page(Status::FORBIDDEN, "application/json, text/html");
        assert!(String::from_utf8_lossy(&plain.body).ends_with("<h1>403 Forbidden</h1><p>a reason</p>\n"));
        let json = page(Status::FORBIDDEN, "application/problem+json");
        assert_eq!(json.content_type, "application/problem+json");
        assert_eq!(json.body, b"{\"status\":403,\"title\":\"Forbidden\",\"detail\":\"a reason\"}\n");
        // Without a site the host is named, unless there is a configured page or the host is invalid.
        for (authority, said) in [
            ("a.test:8080", "no site has the host a.test"),
            ("[::1]:80", "no site has the host [::1]"),
            ("[::1]", "no site has the host [::1]"),
            ("<b>", NO_SITE),
            ("", NO_SITE),
        ] {
            let none = PagesWithoutSite::new(Rc::default(), authority.as_bytes());
            let page = none.page(Status::NOT_FOUND, NO_SITE, None);
            assert!(
                String::from_utf8_lossy(&page.body).ends_with(&format!("<p>{said}</p>\n")),
                "{authority}"
            );
            assert!(!none.has_page(Status::NOT_FOUND));
        }
        let own = PagesWithoutSite::new(Rc::new(pages), b"a.test");
        assert_eq!(own.page(Status::NOT_FOUND, NO_SITE, None).body, b"of the site");
        let missing = vec![(StatusPattern::One(404), folder.join("none"))];
        let error = SitePages::read(&[&missing], &memory).unwrap_err().to_string();
        assert!(error.starts_with("cannot read the error page /"), "{error}");
    }
}
