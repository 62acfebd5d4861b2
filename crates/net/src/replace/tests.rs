use http::RequestHead;

use super::*;

/// The replacement texts of a test's rules.
struct Texts(Vec<&'static str>);

impl ReplacementTexts for Texts {
    fn text(&self, rule: usize, _: &str) -> Vec<u8> {
        self.0[rule].as_bytes().to_vec()
    }
}

fn rules(pairs: &[(&'static str, &'static str, bool)]) -> RequestReplacement {
    let rule = |(from, _, once): &(&'static str, &'static str, bool)| ReplacementRule {
        from: from.as_bytes().to_vec(),
        media: vec!["text/html".to_owned()],
        is_once: *once,
    };
    RequestReplacement {
        replacement: Rc::new(BodyReplacement::new(pairs.iter().map(rule).collect())),
        texts: Box::new(Texts(pairs.iter().map(|(_, text, _)| *text).collect())),
    }
}

fn request(method: &str) -> RequestHead {
    let mut head = RequestHead::default();
    let text = format!("{method} / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(head.parse(text.as_bytes(), &http::Limits::default()).unwrap());
    head
}

fn input(head: &Head) -> CompressionInput<'_> {
    CompressionInput { head, bytes: b"", secure: false }
}

fn fields(lines: &[(&str, &str)]) -> Fields {
    let mut fields = Fields::new();
    for (name, value) in lines {
        fields.try_push(name.as_bytes(), value.as_bytes()).unwrap();
    }
    fields
}

fn start(replacement: &RequestReplacement) -> Replacing {
    let mut fields = fields(&[("Content-Type", "text/html; charset=utf-8")]);
    let begun = replacement.begin(&input(&request("GET")), Status::OK, &mut fields, &mut { Length::Unknown });
    *begun.expect("HTML is edited")
}

/// Returns the body after replacing, when it is written in pieces that end at these offsets.
fn replace_in_pieces(replacement: &RequestReplacement, body: &[u8], cuts: &[usize]) -> String {
    let mut replacing = start(replacement);
    let mut out = Vec::new();
    let mut at = 0;
    let longest = replacement.replacement.rules.iter().map(|rule| rule.from.len()).max().unwrap();
    for cut in cuts.iter().copied().chain([body.len()]) {
        out.extend(replacing.write(&body[at..cut]).unwrap());
        assert!(replacing.held.len() < longest, "no more is held than a beginning");
        at = cut;
    }
    out.extend(replacing.finish().unwrap());
    String::from_utf8(out).unwrap()
}

/// A simple reference implementation of replacing.
fn replace_simply(replacement: &[(&'static str, &'static str, bool)], body: &str) -> String {
    let mut out = String::new();
    let mut at = 0;
    let mut done = vec![false; replacement.len()];
    while at < body.len() {
        match replacement.iter().position(|(from, ..)| body[at..].starts_with(from)) {
            Some(rule) => {
                let (from, text, once) = replacement[rule];
                out.push_str(if done[rule] { from } else { text });
                done[rule] |= once;
                at += from.len();
            }
            None => {
                out.push(char::from(body.as_bytes()[at]));
                at += 1;
            }
        }
    }
    out
}

#[test]
fn replacement_is_independent_of_how_the_body_is_split() {
    let all: [&[(&str, &str, bool)]; 6] = [
        &[("abc", "X", false)],
        &[("abcd", "1", false), ("bc", "2", false)],
        &[("ab", "1", false), ("abcd", "2", false), ("d", "3", false)],
        &[("abcd", "1", false), ("ab", "2", false), ("b", "", false)],
        &[("aa", "b", false)],
        &[("abc", "once", true), ("c", "C", false), ("ab", "", true)],
    ];
    let body = "xabcabcdaaabcabxbcdab";
    for pairs in all {
        let replacement = rules(pairs);
        let wanted = replace_simply(pairs, body);
        for first in 0..=body.len() {
            for second in first..=body.len() {
                let cuts = [first, second];
                assert_eq!(
                    replace_in_pieces(&replacement, body.as_bytes(), &cuts),
                    wanted,
                    "{pairs:?} cut at {cuts:?}"
                );
            }
        }
        let every: Vec<usize> = (1..body.len()).collect();
        assert_eq!(
            replace_in_pieces(&replacement, body.as_bytes(), &every),
            wanted,
            "{pairs:?} byte by byte"
        );
    }
}

#[test]
fn random_bodies_are_replaced_as_by_the_naive_implementation() {
    let mut random = fastrand::Rng::with_seed(7);
    let texts = ["a", "ab", "ba", "aab", "abab", "bbb", "aaaaaaab"];
    for _ in 0..2_000 {
        let pairs: Vec<(&str, &str, bool)> = (0..random.usize(1..4))
            .map(|_| (texts[random.usize(..texts.len())], ["", "b", "<a>"][random.usize(..3)], random.bool()))
            .collect();
        let body: String = (0..random.usize(..60)).map(|_| if random.bool() { 'a' } else { 'b' }).collect();
        let mut cuts: Vec<usize> = (0..random.usize(..6)).map(|_| random.usize(..=body.len())).collect();
        cuts.sort_unstable();
        let got = replace_in_pieces(&rules(&pairs), body.as_bytes(), &cuts);
        assert_eq!(got, replace_simply(&pairs, &body), "{pairs:?} in {body:?} cut at {cuts:?}");
    }
}

#[test]
fn replacement_buffers_no_completed_matches() {
    let replacement = rules(&[("ab", "xyz", false)]);
    let mut replacing = start(&replacement);
    let piece = b"ab".repeat(REPLACED_BYTES / 2);
    let weight = replacing.weight_bytes();
    let mut sent = 0;
    for _ in 0..1_000_000 / (REPLACED_BYTES / 2) + 1 {
        let out = replacing.write(&piece).unwrap();
        assert_eq!(out.len(), piece.len() / 2 * 3);
        assert!(replacing.held.is_empty() && replacing.weight_bytes() == weight);
        sent += out.len();
    }
    assert!(sent > 3_000_000);
}

#[test]
fn long_replacement_texts_are_limited() {
    static LONG: &str = "0123456789012345678901234567890123456789012345678901234567890123456789";
    let replacement = rules(&[("a", LONG, false), ("b", LONG, true)]);
    assert!(LONG.len() > GROWTH_MAX);
    // Replacement texts may contain input of the client. The first one is too long and not used; the other is
    // inserted once.
    assert_eq!(replace_in_pieces(&replacement, b"a-b-b", &[]), format!("a-{LONG}-b"));
}

#[test]
fn responses_that_cannot_be_edited_pass_unchanged() {
    let replacement = rules(&[("a", "b", false)]);
    let head =
        [("ETag", "\"x\""), ("Last-Modified", "Thu, 01 Jan 1970 00:00:00 GMT"), ("Accept-Ranges", "bytes")];
    let begin = |method: &str, status: u16, more: &[(&str, &str)]| {
        let all: Vec<(&str, &str)> = head.iter().chain(more).copied().collect();
        let mut sent = fields(&all);
        let mut length = Length::Known(3);
        let before = sent.clone();
        let status = Status::of(status).unwrap();
        let is_begun = replacement.begin(&input(&request(method)), status, &mut sent, &mut length).is_some();
        let is_edited = sent.as_bytes() != before.as_bytes();
        assert_eq!(is_edited, length == Length::Unknown, "head and length change together");
        (is_begun, is_edited)
    };
    let html = ("Content-Type", "Text/HTML; charset=utf-8");
    assert_eq!(begin("GET", 200, &[html]), (true, true));
    assert_eq!(begin("POST", 404, &[html]), (true, true));
    assert_eq!(begin("HEAD", 200, &[html]), (false, true), "its fields are those of GET");
    for (status, more) in [
        (200, &[][..]),
        (200, &[("Content-Type", "text/plain")]),
        (200, &[html, ("Content-Encoding", "gzip")]),
        (200, &[html, ("Content-Range", "bytes 0-1/3")]),
        (200, &[html, ("Repr-Digest", "sha-256=:AA==:")]),
        (200, &[html, ("Cache-Control", "private, No-Transform")]),
        (206, &[html]),
        (204, &[html]),
        (205, &[html]),
        (304, &[("Content-Type", "text/plain")]),
        (103, &[html]),
    ] {
        assert_eq!(begin("GET", status, more), (false, false), "{status} {more:?}");
    }
    let mut sent = fields(&[html, head[0], head[1], head[2]]);
    replacement.begin(&input(&request("GET")), Status::OK, &mut sent, &mut Length::Known(1));
    assert_eq!(sent.first(b"etag"), Some(&b"W/\"x\""[..]));
    assert_eq!((sent.first(b"last-modified"), sent.first(b"accept-ranges")), (None, None));
    // A 304 has the fields of the 200, but seldom a Content-Type.
    let mut sent = fields(&head[..2]);
    let request = request("GET");
    let begun = replacement.begin(&input(&request), Status::NOT_MODIFIED, &mut sent, &mut Length::Known(0));
    assert!(begun.is_none() && sent.as_bytes() == b"ETag: W/\"x\"\r\n");
}

#[test]
fn body_must_match_its_declared_length() {
    let begin = || {
        let replacement = rules(&[("a", "bbb", false)]);
        let mut fields = fields(&[("Content-Type", "text/html")]);
        let begun =
            replacement.begin(&input(&request("GET")), Status::OK, &mut fields, &mut Length::Known(3));
        *begun.unwrap()
    };
    assert!(begin().write(b"aaaa").is_err());
    let mut short = begin();
    short.write(b"aa").unwrap();
    assert!(short.finish().is_err());
    let mut whole = begin();
    assert_eq!(whole.write(b"aaa").unwrap(), b"bbbbbbbbb");
    assert!(whole.finish().unwrap().is_empty());
}

#[test]
fn replacement_rules_are_selected_by_media_type() {
    let of = |media: &str| ReplacementRule { from: b"a".to_vec(), media: vec![media.into()], is_once: false };
    let replacement = BodyReplacement::new(vec![of("text/"), of("text/html"), of("application/json")]);
    let bits = |media: &str| replacement.rules_for(&request("GET"), Status::OK, &Fields::new(), media);
    assert_eq!(
        [bits("text/html"), bits("text/css"), bits("application/json"), bits("image/png")],
        [3, 1, 4, 0]
    );
    let one = replacement.automaton(3);
    assert!(Rc::ptr_eq(&one, &replacement.automaton(3)));
    for bits in 1..=7 {
        replacement.automaton(bits);
    }
    assert_eq!(replacement.automata.borrow().len(), 7);
}
