//! Paths below a root, and prefixes of paths that are removed.

use settings::checker::InvalidValue;
use settings::shape::Text;

/// A script below a root, such as `/index.php`.
pub const FRONT: Text<String> = Text { what: "a script such as \"/index.php\"", parse: parse_front };

/// The prefix to remove from a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StripPrefix {
    /// Nothing.
    None,
    /// The part of the route's `path` before its final `/*`.
    OfRoute,
    /// This text, which starts with `/` and does not end with one. Paths with another start stay as they are.
    Text(String),
}

/// Parses a path below a root, which begins with a slash.
///
/// # Errors
/// The path is relative, or has `..` or NUL.
pub fn parse_rooted_path(text: &str) -> Result<String, InvalidValue> {
    if !text.starts_with('/') {
        return Err(InvalidValue::new("a path below the root starts with `/`", format!("write \"/{text}\"")));
    }
    if text.contains('\0') || text.split('/').any(|segment| segment == "..") {
        return Err(InvalidValue::new("a path below the root must not contain `..` or NUL", ""));
    }
    Ok(text.to_owned())
}

/// Parses a prefix of paths.
///
/// # Errors
/// The text is not a path below the root, or ends with a slash.
pub fn parse_strip_prefix(text: &str) -> Result<StripPrefix, InvalidValue> {
    let path = parse_rooted_path(text)?;
    match path.strip_suffix('/') {
        Some(stripped) => {
            Err(InvalidValue::new("a prefix does not end with `/`", format!("write \"{stripped}\"")))
        }
        None => Ok(StripPrefix::Text(path)),
    }
}

fn parse_front(text: &str) -> Result<String, InvalidValue> {
    let is_path = text.starts_with('/') && !text.contains("..") && !text.contains('\0');
    if is_path && text.ends_with(".php") {
        Ok(text.to_owned())
    } else {
        Err(InvalidValue::new("this is not a script below the root", "write \"/index.php\", or `false`"))
    }
}
