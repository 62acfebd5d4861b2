//! The pages that are sent with errors.

use settings::checker::{Checker, InvalidValue};
use settings::node::Node;
use settings::shape::{Map, PathShape, Shape, ShapeKind};
use std::path::{Path, PathBuf};

/// The statuses for which an error page is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StatusPattern {
    /// A single status, 400 to 599.
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

pub(crate) const ERROR_PAGES: Map<StatusPattern, PageShape> =
    Map { what: "statuses (404, or \"5xx\" for a class)", key: parse_status_pattern, value: PageShape };

/// Extensions of programs, whose source must not be sent to clients.
const PROGRAM_EXTENSIONS: [&str; 12] =
    ["php", "phtml", "phar", "php3", "php4", "php5", "php7", "php8", "pl", "cgi", "py", "rb"];

/// A file that is sent as it is.
pub(crate) struct PageShape;

impl Shape for PageShape {
    type Out = PathBuf;

    fn kind(&self) -> ShapeKind {
        PathShape("a file").kind()
    }

    fn read(&self, node: &Node, check: &mut Checker) -> Option<PathBuf> {
        let path = PathShape("a file").read(node, check)?;
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default().to_lowercase();
        if !PROGRAM_EXTENSIONS.contains(&ending.as_str()) {
            return Some(path);
        }
        let finding = check.report_invalid(
            &node.span,
            "a page is sent as it is: clients would get the text of this program",
        );
        finding.help("write a page of HTML; the program itself may answer errors: it gets every request that no file answers (`front` in `scripts`, `fallback`)");
        None
    }
}

fn parse_status_pattern(text: &str) -> Result<StatusPattern, InvalidValue> {
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
