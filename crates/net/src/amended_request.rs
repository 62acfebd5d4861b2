//! Modified request heads: fields that identify a client come from this server, never from the client.

use std::borrow::Cow;

use http::{Field, Fields, Head, HeadRef, Name, Span, Target, is_confusable, scan};

/// A changed head, and the bytes that its spans refer to.
pub(crate) struct AmendedHead {
    pub(crate) head: Head,
    pub(crate) bytes: Vec<u8>,
    /// Names of fields that only this server sets.
    removed: Vec<Vec<u8>>,
}

impl AmendedHead {
    pub(crate) fn as_head(&self) -> HeadRef<'_> {
        HeadRef::new(&self.head, &self.bytes)
    }

    /// A copy of a head with the fields of `own`, and without the fields named in `removed`, in any spelling
    /// that applications may treat as equivalent.
    pub(crate) fn new(
        HeadRef { head, bytes }: HeadRef<'_>,
        removed: &[Vec<u8>],
        own: &Fields,
    ) -> AmendedHead {
        let spans = head.fields.iter().flat_map(|field| [field.name, field.value]);
        let lines = [head.method_name, head.target.whole, head.sent_target, head.authority, head.protocol];
        let end = spans.chain(lines);
        // The server's own bytes begin behind the client's, even if the last of these were removed.
        let end = end.map(Span::end).max().unwrap_or(0).max(head.own_fields_at);
        let mut head = head.clone();
        let mut bytes = bytes[..end].to_vec();
        let is_removed = |name: &[u8]| removed.iter().any(|other| is_confusable(other, name));
        head.fields.retain(|field| !is_removed(field.name.of(&bytes)));
        // A field that `Connection` names would not be forwarded.
        for at in 0..head.fields.len() {
            let field = head.fields[at];
            if field.id != Name::Connection || !scan::list(field.value.of(&bytes)).any(is_removed) {
                continue;
            }
            let options = scan::list(field.value.of(&bytes)).filter(|option| !is_removed(option));
            let value = options.collect::<Vec<_>>().join(&b", "[..]);
            let start = bytes.len();
            bytes.extend_from_slice(&value);
            head.fields.replace(at, Field { value: Span::new(start, bytes.len()), ..field });
        }
        // Fields that an earlier change has set remain the server's own.
        if head.own_fields_at == 0 {
            head.own_fields_at = bytes.len();
        }
        for (name, value) in own.iter() {
            let start = bytes.len();
            bytes.extend_from_slice(name);
            let value_at = bytes.len();
            bytes.extend_from_slice(value);
            let name_span = Span::new(start, value_at);
            let value = Span::new(value_at, bytes.len());
            head.fields.push(Field { id: Name::of(name), name: name_span, value });
        }
        AmendedHead { head, bytes, removed: removed.to_vec() }
    }

    /// A copy of a head whose path and query are replaced by `target`, which is in origin-form. The client's
    /// target remains available as [`Head::sent_target`].
    pub(crate) fn with_target(head: HeadRef<'_>, target: &[u8]) -> AmendedHead {
        let mut amended = AmendedHead::new(head, &[], &Fields::new());
        // The server has added no fields.
        if head.own_fields_at == 0 {
            amended.head.own_fields_at = 0;
        }
        let at = amended.bytes.len();
        let head = &mut amended.head;
        amended.bytes.extend_from_slice(target);
        let end = amended.bytes.len();
        let question = target.iter().position(|&byte| byte == b'?');
        if head.sent_target.is_empty() {
            head.sent_target = head.target.whole;
        }
        head.target = Target {
            whole: Span::new(at, end),
            path: Span::new(at, question.map_or(end, |question| at + question)),
            query: question.map(|question| Span::new(at + question + 1, end)),
            ..Target::default()
        };
        amended
    }

    /// The trailers without the fields that were removed from the head.
    pub(crate) fn trailers<'t>(&self, trailers: &'t Fields) -> Cow<'t, Fields> {
        let is_removed = |name: &[u8]| self.removed.iter().any(|other| is_confusable(other, name));
        if !trailers.iter().any(|(name, _)| is_removed(name)) {
            return Cow::Borrowed(trailers);
        }
        let mut kept = Fields::new();
        for (name, value) in trailers.iter().filter(|(name, _)| !is_removed(name)) {
            kept.try_push(name, value).expect("a field that was read is valid");
        }
        Cow::Owned(kept)
    }

    /// Merges with the change made `before`: fields removed by it stay removed from trailers.
    pub(crate) fn inherit_removed(mut self, before: Option<&AmendedHead>) -> AmendedHead {
        self.removed.extend(before.into_iter().flat_map(|before| before.removed.iter().cloned()));
        self
    }

    /// Memory held, in bytes.
    pub(crate) fn weight_bytes(&self) -> usize {
        size_of::<AmendedHead>() + self.bytes.capacity() + self.head.fields.weight_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Head, Vec<u8>) {
        let mut head = http::RequestHead::default();
        assert!(head.parse(text.as_bytes(), &http::Limits::default()).unwrap());
        (Head::clone(&head), text.as_bytes().to_vec())
    }

    fn texts(amended: &AmendedHead) -> Vec<String> {
        let text = |span: Span| String::from_utf8(span.of(&amended.bytes).to_vec()).unwrap();
        amended.head.fields.iter().map(|field| text(field.name) + ": " + &text(field.value)).collect()
    }

    #[test]
    fn amended_head_keeps_the_originally_sent_target() {
        let (head, bytes) = read("GET /a?b=1 HTTP/1.1\r\nHost: h\r\nX: y\r\n\r\n");
        let once = AmendedHead::with_target(HeadRef::new(&head, &bytes), b"/new/path?c=2");
        let of = |amended: &AmendedHead| {
            let target = &amended.head.target;
            let text = |span: Span| String::from_utf8(span.of(&amended.bytes).to_vec()).unwrap();
            let sent = String::from_utf8(amended.head.sent_target(&amended.bytes).to_vec()).unwrap();
            (text(target.whole), text(target.path), target.query.map(text), sent)
        };
        let owned = |text: &str| text.to_owned();
        let want = (owned("/new/path?c=2"), owned("/new/path"), Some(owned("c=2")), owned("/a?b=1"));
        assert_eq!(of(&once), want);
        assert_eq!(texts(&once), ["Host: h", "X: y"]);
        let mut own = Fields::new();
        own.try_push(b"Remote-User", b"alice").unwrap();
        let amended = AmendedHead::new(once.as_head(), &[b"x".to_vec()], &own);
        assert_eq!(of(&amended), want);
        let twice = AmendedHead::with_target(amended.as_head(), b"/z");
        assert_eq!(of(&twice), (owned("/z"), owned("/z"), None, owned("/a?b=1")));
        let owns: Vec<bool> = twice.head.fields.iter().map(|field| twice.head.is_own(field)).collect();
        assert_eq!(
            (texts(&twice), owns),
            (vec![owned("Host: h"), owned("Remote-User: alice")], vec![false, true])
        );
    }

    #[test]
    fn client_fields_with_removed_names_are_dropped_in_any_spelling() {
        let (head, bytes) = read(
            "GET / HTTP/1.1\r\nHost: a\r\nRemote-User: x\r\nREMOTE_USER: y\r\nremote.user: z\r\nRemoteUser: kept\r\n\
             Connection: close, remote-user\r\nRemote-Users: kept\r\n\r\n",
        );
        let mut own = Fields::new();
        own.try_push(b"Remote-User", b"alice").unwrap();
        let removed = [b"remote-user".to_vec()];
        let amended = AmendedHead::new(HeadRef::new(&head, &bytes), &removed, &own);
        assert_eq!(
            texts(&amended),
            ["Host: a", "RemoteUser: kept", "Connection: close", "Remote-Users: kept", "Remote-User: alice"]
        );
        let owns: Vec<bool> = amended.head.fields.iter().map(|field| amended.head.is_own(field)).collect();
        assert_eq!(owns, [false, false, false, false, true]);
        let none = AmendedHead::new(
            HeadRef::new(&head, &bytes),
            &[b"host".to_vec(), b"remote-users".to_vec()],
            &Fields::new(),
        );
        let twice = AmendedHead::new(none.as_head(), &removed, &own);
        let last = twice.head.fields.last().unwrap();
        assert!(twice.head.is_own(last) && texts(&twice).last().unwrap() == "Remote-User: alice");
        let none = AmendedHead::new(HeadRef::new(&head, &bytes), &removed, &Fields::new());
        assert!(!none.head.fields.iter().any(|field| none.head.is_own(field)) && none.head.fields.len() == 4);
        let mut trailers = Fields::new();
        trailers.try_push(b"Remote_User", b"x").unwrap();
        assert!(none.trailers(&trailers).is_empty());
    }
}
