//! The pages of errors: what a site shows is its own affair, so this is only the way to ask for one.

use std::borrow::Cow;

use http::Status;

/// What makes the page of a response that the server itself sends: an error, or a redirection to https.
pub trait ErrorPages {
    /// The page for this status. `reason` is a sentence for people, a static text without quotes, markup or control
    /// bytes. `accept` is the request's `Accept` field; `None` also where the bytes received were not a valid request.
    fn page(&self, status: Status, reason: &'static str, accept: Option<&[u8]>) -> Cow<'_, Page>;

    /// Whether there is a page of its own for this status.
    fn has(&self, _status: Status) -> bool {
        false
    }
}

/// A page held in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Its `Content-Type`.
    pub content_type: Cow<'static, str>,
    /// Its bytes.
    pub body: Vec<u8>,
}

/// Status and reason in plain text, for services without pages of their own.
pub(crate) struct PlainText;

impl ErrorPages for PlainText {
    fn page(&self, status: Status, reason: &'static str, _: Option<&[u8]>) -> Cow<'_, Page> {
        let body = format!("{} {}: {reason}\n", status.code(), status.reason()).into_bytes();
        Cow::Owned(Page { content_type: "text/plain; charset=utf-8".into(), body })
    }
}
