//! A file that a handler names in place of a response: `X-Accel-Redirect` and `X-Sendfile` of applications and upstream servers.

use http::{Fields, Name};

use crate::exchange::Exchange;
use crate::state::ReplyState;

/// A file of this server that a handler has named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedFile {
    /// How it is named.
    pub name: FileName,
    /// The fields of the handler's response, without those that are the file's own.
    pub fields: Fields,
}

/// How a file is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileName {
    /// `X-Accel-Redirect`: a path of an internal route, percent-encoded, with or without a query.
    Path(Vec<u8>),
    /// `X-Sendfile`: its path on the disk.
    OnDisk(Vec<u8>),
}

impl FileName {
    /// What a field of a response names.
    #[must_use]
    pub fn of(name: &[u8], value: &[u8]) -> Option<FileName> {
        let value = || http::scan::trim(value).to_vec();
        if name.eq_ignore_ascii_case(b"x-accel-redirect") {
            Some(FileName::Path(value()))
        } else if name.eq_ignore_ascii_case(b"x-sendfile")
            || name.eq_ignore_ascii_case(b"x-lighttpd-send-file")
        {
            Some(FileName::OnDisk(value()))
        } else {
            None
        }
    }
}

impl NamedFile {
    /// What the fields of a response name, if they do: the first such field counts.
    pub fn find<'f>(fields: impl Iterator<Item = (&'f [u8], &'f [u8])> + Clone) -> Option<NamedFile> {
        let name = fields.clone().find_map(|(name, value)| FileName::of(name, value))?;
        let mut kept = Fields::new();
        for (name, value) in fields.filter(|(name, _)| !is_of_content(name)) {
            // What is not valid is as if it were not there.
            let _ = kept.try_push(name, value);
        }
        Some(NamedFile { name, fields: kept })
    }
}

/// Whether a field describes the content, or frames it, or is for this server alone: then the file's own counts.
fn is_of_content(name: &[u8]) -> bool {
    const OF_CONTENT: [Name; 7] = [
        Name::ContentLength,
        Name::ContentEncoding,
        Name::ContentRange,
        Name::AcceptRanges,
        Name::Etag,
        Name::LastModified,
        Name::TransferEncoding,
    ];
    let of = Name::of(name);
    http::is_internal(name)
        || OF_CONTENT.contains(&of)
        || matches!(
            of,
            Name::Connection | Name::KeepAlive | Name::Upgrade | Name::Server | Name::Date | Name::Trailer
        )
}

impl Exchange<'_> {
    /// Lets the handler name a file in place of its response.
    pub fn let_name_files(&mut self) {
        self.state.sends_files = true;
    }

    /// Whether a handler may name a file in place of its response: [`Exchange::name_file`].
    #[must_use]
    pub fn may_name_file(&self) -> bool {
        self.state.sends_files && self.state.reply == ReplyState::Unsent
    }

    /// Names a file in place of a response. What the handler writes from now on is dropped.
    ///
    /// # Panics
    /// Where [`Exchange::may_name_file`] is false.
    pub fn name_file(&mut self, file: NamedFile) {
        assert!(self.may_name_file(), "a file is named in place of a response");
        self.state.named_file = Some(Box::new(file));
        self.state.reply = ReplyState::Elsewhere;
    }

    /// The file that the handler has named, which has ended by now. The response has not begun then.
    pub fn take_named_file(&mut self) -> Option<NamedFile> {
        let file = self.state.named_file.take()?;
        (self.state.reply, self.state.sends_files) = (ReplyState::Unsent, false);
        Some(*file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_of_a_response_name_a_file_and_others_stay() {
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
        assert_eq!(file.name, FileName::Path(b"/protected/a.pdf".to_vec()));
        let kept: Vec<_> = file.fields.iter().map(|(name, _)| name.to_vec()).collect();
        assert_eq!(kept, [&b"Content-Type"[..], b"Set-Cookie", b"Set-Cookie"]);
        assert_eq!(FileName::of(b"x-sendfile", b"/srv/a"), Some(FileName::OnDisk(b"/srv/a".to_vec())));
        assert_eq!(
            NamedFile::find(fields.into_iter().filter(|(name, _)| *name != b"X-Accel-Redirect")),
            None
        );
    }
}
