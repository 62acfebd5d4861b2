//! The pages that are sent with errors.

use crate::check::InvalidValue;
use crate::shape::{Map, PathShape};
use std::path::{Path, PathBuf};

/// The statuses for which an error page is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StatusPattern {
    /// One status, 400 to 599.
    One(u16),
    /// A class: 4 for 400 to 499, 5 for 500 to 599.
    Class(u8),
}

/// Files to send as the body of errors, by status.
pub type ErrorPages = Vec<(StatusPattern, PathBuf)>;

/// The page for a status: the page for this status, or the one for its class.
pub(crate) fn error_page(pages: &ErrorPages, status: u16) -> Option<&Path> {
    let page_for = |wanted| pages.iter().find(|(pattern, _)| *pattern == wanted);
    let class = StatusPattern::Class(u8::try_from(status / 100).unwrap_or(0));
    let found = page_for(StatusPattern::One(status)).or_else(|| page_for(class));
    found.map(|(_, path)| path.as_path())
}

pub(crate) const ERROR_PAGES: Map<StatusPattern, PathShape> =
    Map { what: "statuses (404, or \"5xx\" for a class)", key: status_pattern, value: PathShape("a file") };

fn status_pattern(text: &str) -> Result<StatusPattern, InvalidValue> {
    match text {
        "4xx" => return Ok(StatusPattern::Class(4)),
        "5xx" => return Ok(StatusPattern::Class(5)),
        _ => {}
    }
    let status = text.parse::<u16>().ok().filter(|status| text.len() == 3 && (400..=599).contains(status));
    status.map(StatusPattern::One).ok_or_else(|| {
        InvalidValue::new(
            "this is not the status of an error",
            "write a status from 400 to 599, or \"4xx\" or \"5xx\"",
        )
    })
}
