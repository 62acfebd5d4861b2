//! Files that handlers name instead of sending a response: `X-Accel-Redirect` and `X-Sendfile` of
//! applications and upstream servers.

use http::{Fields, Name, NameSet};

/// A file of this server that a handler has named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedFile {
    /// Reference to the file.
    pub name: FileReference,
    /// Fields of the handler's response, without those that describe the file.
    pub fields: Fields,
}

/// Reference to a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileReference {
    /// `X-Accel-Redirect`: the path of an internal route, percent-encoded, with an optional query.
    Path(Vec<u8>),
    /// `X-Sendfile`: a path in the file system.
    OnDisk(Vec<u8>),
}

impl FileReference {
    /// Returns the reference in a response field; `None` for other fields.
    #[must_use]
    pub fn of(name: &[u8], value: &[u8]) -> Option<FileReference> {
        let value = || http::scan::trim(value).to_vec();
        if name.eq_ignore_ascii_case(b"x-accel-redirect") {
            Some(FileReference::Path(value()))
        } else if name.eq_ignore_ascii_case(b"x-sendfile")
            || name.eq_ignore_ascii_case(b"x-lighttpd-send-file")
        {
            Some(FileReference::OnDisk(value()))
        } else {
            None
        }
    }
}

impl NamedFile {
    /// Returns the file that the response names in its first such field.
    pub fn find<'f>(fields: impl Iterator<Item = (&'f [u8], &'f [u8])> + Clone) -> Option<NamedFile> {
        let name = fields.clone().find_map(|(name, value)| FileReference::of(name, value))?;
        let mut kept = Fields::new();
        for (name, value) in fields.filter(|(name, _)| !is_content_field(name)) {
            // Invalid fields are ignored.
            let _ = kept.try_push(name, value);
        }
        Some(NamedFile { name, fields: kept })
    }
}

/// Fields that describe or frame the content, which the file replaces.
const CONTENT_FIELDS: NameSet = NameSet::FRAMING
    .with(Name::ContentEncoding)
    .with(Name::ContentRange)
    .with(Name::AcceptRanges)
    .with(Name::Etag)
    .with(Name::LastModified)
    .with(Name::Server)
    .with(Name::Date);

/// Whether a field is replaced by the file's, or is meant only for this server.
fn is_content_field(name: &[u8]) -> bool {
    http::is_internal(name) || CONTENT_FIELDS.has(Name::of(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x_accel_redirect_and_x_sendfile_name_a_file() {
        let fields: [(&[u8], &[u8]); 7] = [
            (b"Content-Type", b"application/pdf"),
            (b"X-Accel-Redirect", b" /protected/a.pdf "),
            (b"Content-Length", b"0"),
            (b"ETag", b"\"x\""),
            (b"Set-Cookie", b"a=1"),
            (b"Set-Cookie", b"b=2"),
            (b"X-Accel-Buffering", b"no"),
        ];
        let file = NamedFile::find(fields.into_iter()).unwrap();
        assert_eq!(file.name, FileReference::Path(b"/protected/a.pdf".to_vec()));
        let kept: Vec<_> = file.fields.iter().map(|(name, _)| name.to_vec()).collect();
        assert_eq!(kept, [&b"Content-Type"[..], b"Set-Cookie", b"Set-Cookie"]);
        assert_eq!(
            FileReference::of(b"x-sendfile", b"/srv/a"),
            Some(FileReference::OnDisk(b"/srv/a".to_vec()))
        );
        assert_eq!(
            NamedFile::find(fields.into_iter().filter(|(name, _)| *name != b"X-Accel-Redirect")),
            None
        );
    }
}
