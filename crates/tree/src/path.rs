//! Paths of items in a tree, and errors.

use std::fmt;

/// The reason that an item cannot be read or changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TreeError {
    /// There is no such item; the text lists the existing ones.
    NotFound(String),
    /// The request is invalid.
    Invalid(String),
    /// The item exists, but this change is not possible.
    Conflict(String),
}

impl TreeError {
    /// The message for users.
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            TreeError::NotFound(text) | TreeError::Invalid(text) | TreeError::Conflict(text) => text,
        }
    }
}

impl fmt::Display for TreeError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.text())
    }
}

impl std::error::Error for TreeError {}

/// Maximum number of segments of a path.
const SEGMENTS_MAX: usize = 64;

/// A path of table keys and list positions. A position is a number, the name of an item, or `-` for the one
/// after the last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TreePath(Vec<String>);

impl TreePath {
    /// Parses the segments of a URL's path, each percent-encoded: `site/example.com/route/%2Fapi%2F*`. Empty
    /// for the whole tree.
    ///
    /// # Errors
    /// An invalid escape, or a path of more than 64 segments.
    pub fn parse(text: &str) -> Result<TreePath, TreeError> {
        let text = text.trim_matches('/');
        if text.is_empty() {
            return Ok(TreePath::default());
        }
        let segments: Vec<String> = text.split('/').map(decoded).collect::<Result<_, _>>()?;
        if segments.len() <= SEGMENTS_MAX {
            Ok(TreePath(segments))
        } else {
            Err(TreeError::Invalid(format!("the path has more than {SEGMENTS_MAX} segments")))
        }
    }

    /// The decoded segments.
    #[must_use]
    pub fn segments(&self) -> &[String] {
        &self.0
    }

    /// Whether the path denotes the whole tree.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the path of an item in the item at this path.
    #[must_use]
    pub fn join(&self, segment: impl Into<String>) -> TreePath {
        TreePath(self.0.iter().cloned().chain([segment.into()]).collect())
    }

    /// Returns the parent path and the last segment; `None` for the root.
    #[must_use]
    pub fn split_last(&self) -> Option<(TreePath, &str)> {
        self.0.split_last().map(|(last, parent)| (TreePath(parent.to_vec()), last.as_str()))
    }
}

/// Formats the segments, encoded as in a URL.
impl fmt::Display for TreePath {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, segment) in self.0.iter().enumerate() {
            if at > 0 {
                out.write_str("/")?;
            }
            for &byte in segment.as_bytes() {
                if byte.is_ascii_alphanumeric() || b"-._~*:".contains(&byte) {
                    write!(out, "{}", char::from(byte))?
                } else {
                    write!(out, "%{byte:02X}")?
                }
            }
        }
        Ok(())
    }
}

fn decoded(segment: &str) -> Result<String, TreeError> {
    let invalid = || TreeError::Invalid(format!("{segment:?} is not a segment of a path"));
    let mut bytes = Vec::with_capacity(segment.len());
    let mut rest = segment.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || char::from(rest.next()?).to_digit(16);
        let high = digit().ok_or_else(invalid)?;
        let low = digit().ok_or_else(invalid)?;
        bytes.push((high * 16 + low) as u8);
    }
    match String::from_utf8(bytes) {
        Ok(text) if !text.is_empty() && !text.contains(char::is_control) => Ok(text),
        _ => Err(invalid()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_decoded() {
        let path = TreePath::parse("/site/example.com/route/%2Fapi%2f*").unwrap();
        assert_eq!(path.segments(), ["site", "example.com", "route", "/api/*"]);
        assert_eq!(path.to_string(), "site/example.com/route/%2Fapi%2F*");
        assert!(TreePath::parse("").unwrap().is_root() && TreePath::parse("/").unwrap().is_root());
        for bad in ["a//b", "%", "%4", "%zz", "%00", "%ff"] {
            assert!(TreePath::parse(bad).is_err(), "{bad}");
        }
        assert!(TreePath::parse(&"a/".repeat(65)).is_err() && TreePath::parse(&"a/".repeat(64)).is_ok());
    }
}
