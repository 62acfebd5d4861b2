//! Media types: what a file's name says of its content.

use std::borrow::Cow;

/// What the registry or common practice says now, where the list of extensions lags behind.
const CORRECTIONS: &[(&str, &str)] = &[
    ("m3u8", "application/vnd.apple.mpegurl"),
    ("map", "application/json"),
    ("mjs", "text/javascript"),
    ("opus", "audio/ogg"),
    ("otf", "font/otf"),
    ("ts", "video/mp2t"),
    ("zst", "application/zstd"),
];

/// Media types whose content is compressed already, besides most of images, audio and video.
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

/// The media type of a file by the extension of its name; `application/octet-stream` where that says nothing.
#[must_use]
pub fn media_type(path: &[u8]) -> &'static str {
    const UNKNOWN: &str = "application/octet-stream";
    let name = &path[path.iter().rposition(|&byte| byte == b'/').map_or(0, |at| at + 1)..];
    let Some(dot) = name.iter().rposition(|&byte| byte == b'.').filter(|&dot| dot > 0) else {
        return UNKNOWN;
    };
    let Ok(extension) = std::str::from_utf8(&name[dot + 1..]) else { return UNKNOWN };
    let corrected = CORRECTIONS.iter().find(|(known, _)| extension.eq_ignore_ascii_case(known));
    match corrected {
        Some((_, media)) => media,
        None => mime_guess::from_ext(extension).first_raw().unwrap_or(UNKNOWN),
    }
}

/// The value of `Content-Type`: with the character set where the type is text and says none itself. XML is left
/// alone, because its own declaration would be overruled; JSON because it is always UTF-8.
#[must_use]
pub fn content_type<'m>(media: &'m str, charset: Option<&str>) -> Cow<'m, str> {
    let is_text = media.starts_with("text/") && !media.ends_with("xml");
    match charset {
        Some(charset) if is_text || media == "application/javascript" => {
            Cow::Owned(format!("{media}; charset={charset}"))
        }
        _ => Cow::Borrowed(media),
    }
}

/// Whether a media type is one of `patterns`: equal to it, or of its kind where it ends in a slash.
#[must_use]
pub fn is_any_of(media: &str, patterns: &[String]) -> bool {
    patterns.iter().any(|pattern| is(media, pattern))
}

/// Whether a media type fits a pattern, as in [`is_any_of`].
#[must_use]
pub fn is(media: &str, pattern: &str) -> bool {
    match pattern.ends_with('/') {
        true => media.starts_with(pattern),
        false => media == pattern,
    }
}

/// Whether content of that type gains nothing by compression.
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
    fn types_by_extension() {
        for (path, want) in [
            ("/index.html", "text/html"),
            ("/a.b/INDEX.HTM", "text/html"),
            ("/app.js", "text/javascript"),
            ("/app.mjs", "text/javascript"),
            ("/app.js.map", "application/json"),
            ("/site.webmanifest", "application/manifest+json"),
            ("/a.wasm", "application/wasm"),
            ("/a.avif", "image/avif"),
            ("/a.woff2", "font/woff2"),
            ("/a.tar.gz", "application/gzip"),
            ("/a.unheard-of", "application/octet-stream"),
            ("/README", "application/octet-stream"),
            ("/a.html/README", "application/octet-stream"),
            ("/.html", "application/octet-stream"),
            ("/a.", "application/octet-stream"),
            ("", "application/octet-stream"),
        ] {
            assert_eq!(media_type(path.as_bytes()), want, "{path}");
        }
        assert_eq!(media_type(b"/a.\xff"), "application/octet-stream");
    }

    #[test]
    fn text_says_its_character_set() {
        for (media, want) in [
            ("text/html", "text/html; charset=utf-8"),
            ("text/javascript", "text/javascript; charset=utf-8"),
            ("text/xml", "text/xml"),
            ("image/svg+xml", "image/svg+xml"),
            ("application/json", "application/json"),
            ("image/png", "image/png"),
        ] {
            assert_eq!(content_type(media, Some("utf-8")), want);
            assert_eq!(content_type(media, None), media);
        }
    }

    #[test]
    fn compressed_content_is_left_alone() {
        for media in ["image/png", "video/mp4", "audio/ogg", "application/zip", "font/woff2"] {
            assert!(is_compressed(media), "{media}");
        }
        for media in ["text/html", "image/svg+xml", "application/wasm", "font/ttf"] {
            assert!(!is_compressed(media), "{media}");
        }
        let patterns = ["text/".to_string(), "image/svg+xml".into()];
        assert!(is_any_of("text/css", &patterns) && is_any_of("image/svg+xml", &patterns));
        assert!(!is_any_of("image/svg", &patterns) && !is_any_of("texture/css", &patterns));
    }
}
