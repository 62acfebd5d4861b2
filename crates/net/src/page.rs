//! Interface to the error pages, which sites define.

use std::borrow::Cow;

use http::Status;

/// Source of pages for responses of the server itself: errors and redirections to https.
pub trait ErrorPages {
    /// Returns the page for this status. `reason` is a sentence for people: a static text without quotes,
    /// markup or control bytes. `accept` is the request's `Accept` field; `None` also if the bytes received
    /// were not a valid request.
    fn page(&self, status: Status, reason: &'static str, accept: Option<&[u8]>) -> Cow<'_, Page>;

    /// Whether there is a specific page for this status.
    fn has_page(&self, _status: Status) -> bool {
        false
    }
}

/// A page held in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Value of `Content-Type`.
    pub content_type: Cow<'static, str>,
    /// The content.
    pub body: Vec<u8>,
}

/// Pages with status and reason in plain text, for services that define none.
pub(crate) struct PlainText;

impl ErrorPages for PlainText {
    fn page(&self, status: Status, reason: &'static str, _: Option<&[u8]>) -> Cow<'_, Page> {
        let body = format!("{} {}: {reason}\n", status.code(), status.reason()).into_bytes();
        Cow::Owned(Page { content_type: "text/plain; charset=utf-8".into(), body })
    }
}
