//! Media types (RFC 9110 section 8.3.1): patterns of them, and whether their content is compressed already.

use crate::scan;

/// Media types whose content is already compressed, in addition to most image, audio and video types.
const COMPRESSED: &[&str] = &[
    "application/epub+zip",
    "application/gzip",
    "application/java-archive",
    "application/pdf",
    "application/vnd.rar",
    "application/x-7z-compressed",
    "application/x-bzip2",
    "application/x-rar-compressed",
    "application/x-xz",
    "application/zip",
    "application/zstd",
    "font/woff",
    "font/woff2",
];

/// The media type of a `Content-Type` value, without its parameters and in lower case.
#[must_use]
pub fn without_parameters(content_type: &[u8]) -> String {
    let end = content_type.iter().position(|&byte| byte == b';').unwrap_or(content_type.len());
    String::from_utf8_lossy(scan::trim(&content_type[..end])).to_ascii_lowercase()
}

/// Whether a media type matches one of `patterns`: an exact match, or a prefix match if the pattern ends in a
/// slash.
#[must_use]
pub fn matches_any(media: &str, patterns: &[String]) -> bool {
    patterns.iter().any(|pattern| matches(media, pattern))
}

/// Whether a media type matches a pattern, as in [`matches_any`].
#[must_use]
pub fn matches(media: &str, pattern: &str) -> bool {
    if pattern.ends_with('/') { media.starts_with(pattern) } else { media == pattern }
}

/// Whether content of that type is already compressed.
#[must_use]
pub fn is_compressed(media: &str) -> bool {
    let kind = media.split('/').next().unwrap_or_default();
    match kind {
        "audio" | "video" => true,
        "image" => !matches!(media, "image/svg+xml" | "image/x-icon" | "image/bmp"),
        _ => COMPRESSED.contains(&media),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_type_ignores_parameters_and_case() {
        assert_eq!(without_parameters(b"Text/HTML ; charset=utf-8"), "text/html");
        assert_eq!(without_parameters(b"application/json"), "application/json");
        assert_eq!(without_parameters(b""), "");
    }

    #[test]
    fn compressed_media_types_are_recognized() {
        for media in ["image/png", "video/mp4", "audio/ogg", "application/zip", "font/woff2"] {
            assert!(is_compressed(media), "{media}");
        }
        for media in ["text/html", "image/svg+xml", "application/wasm", "font/ttf"] {
            assert!(!is_compressed(media), "{media}");
        }
        let patterns = ["text/".to_string(), "image/svg+xml".into()];
        assert!(matches_any("text/css", &patterns) && matches_any("image/svg+xml", &patterns));
        assert!(!matches_any("image/svg", &patterns) && !matches_any("texture/css", &patterns));
    }
}
