//! Media types by file name.

use std::borrow::Cow;

use http::Coding;

/// Types that the registry or common practice has changed since the list of extensions was published.
const CORRECTIONS: &[(&str, &str)] = &[
    ("m3u8", "application/vnd.apple.mpegurl"),
    ("map", "application/json"),
    ("mjs", "text/javascript"),
    ("opus", "audio/ogg"),
    ("otf", "font/otf"),
    ("ts", "video/mp2t"),
    ("woff", "font/woff"),
    ("zst", "application/zstd"),
];

/// Returns the media type of a file by its extension; `application/octet-stream` for an unknown extension.
#[must_use]
pub fn media_type(path: &[u8]) -> &'static str {
    let Some(extension) = extension(path) else { return UNKNOWN };
    let corrected = CORRECTIONS.iter().find(|(known, _)| extension.eq_ignore_ascii_case(known));
    match corrected {
        Some((_, media)) => media,
        None => mime_guess::from_ext(extension).first_raw().unwrap_or(UNKNOWN),
    }
}

/// Extensions of gzip-compressed files whose media type describes the uncompressed content.
const GZIPPED: [&str; 5] = ["svgz", "wrz", "x3dbz", "x3dvz", "x3dz"];

/// Returns the coding in which a file is stored, by its extension.
#[must_use]
pub fn coding(path: &[u8]) -> Coding {
    let is_gzipped = |extension: &str| GZIPPED.iter().any(|known| extension.eq_ignore_ascii_case(known));
    if extension(path).is_some_and(is_gzipped) { Coding::Gzip } else { Coding::Identity }
}

/// Media type of files of unknown type.
pub const UNKNOWN: &str = "application/octet-stream";

/// Returns the extension of a file's name, if it has one.
#[must_use]
pub fn extension(path: &[u8]) -> Option<&str> {
    let name = &path[path.iter().rposition(|&byte| byte == b'/').map_or(0, |at| at + 1)..];
    let dot = name.iter().rposition(|&byte| byte == b'.').filter(|&dot| dot > 0)?;
    std::str::from_utf8(&name[dot + 1..]).ok()
}

/// Returns the value of `Content-Type`: with the character set if the type is text and names none itself. Not
/// for XML, where it would override the document's own declaration, nor for JSON, which is always UTF-8.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{FileOptions, Options};

    #[test]
    fn media_type_depends_on_the_extension() {
        for (path, want) in [
            ("/index.html", "text/html"),
            ("/a.b/INDEX.HTM", "text/html"),
            ("/app.js", "text/javascript"),
            ("/a.woff", "font/woff"),
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
    fn configured_types_take_precedence() {
        let types = [("foo", "text/x-foo"), ("html", "application/xhtml+xml"), ("*", "text/plain")];
        let types = types.map(|(extension, media)| (extension.to_owned(), media.to_owned())).to_vec();
        let options =
            Options { files: FileOptions { types, ..FileOptions::default() }, ..Options::default() };
        for (path, want) in [
            ("/a.foo", "text/x-foo"),
            ("/a.FOO", "text/x-foo"),
            ("/a.html", "application/xhtml+xml"),
            ("/a.css", "text/css"),
            ("/README", "text/plain"),
            ("/a.bar", "text/plain"),
        ] {
            assert_eq!(options.media_type(path.as_bytes()), want, "{path}");
        }
    }

    #[test]
    fn text_types_have_a_charset() {
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
}
