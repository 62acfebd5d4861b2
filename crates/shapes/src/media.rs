//! Media types, and content codings of responses.

use http::Coding;
use settings::checker::InvalidValue;
use settings::shape::Text;

use crate::header::parse_media_type;

/// Names of content codings, as in `Content-Encoding` and as extensions of files.
pub const CODINGS: &[(&str, Coding)] = &[
    ("br", Coding::Brotli),
    ("zst", Coding::Zstd),
    ("zstd", Coding::Zstd),
    ("gz", Coding::Gzip),
    ("gzip", Coding::Gzip),
];
/// A media type without parameters, or all types of a kind.
pub const TYPE: Text<String> =
    Text { what: "a media type such as \"text/css\" or \"text/*\"", parse: parse_type_pattern };

/// Returns all codings, the preferred ones first.
#[must_use]
pub fn every_coding() -> Vec<Coding> {
    vec![Coding::Brotli, Coding::Zstd, Coding::Gzip]
}

/// Parses a media type without parameters and returns it in lower case; `text/*` becomes `text/`.
///
/// # Errors
/// The text is not a media type, or has parameters.
pub fn parse_type_pattern(text: &str) -> Result<String, InvalidValue> {
    let lower = parse_media_type(text)?.to_ascii_lowercase();
    if let Some(at) = lower.find(';') {
        return Err(InvalidValue::new("a type must not have parameters here", "").within(at..text.len()));
    }
    Ok(lower.strip_suffix('*').map(str::to_owned).unwrap_or(lower))
}
