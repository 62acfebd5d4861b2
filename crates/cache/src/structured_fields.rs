//! Parser for the structured fields (RFC 9651) that caches need: dictionaries of targeted cache control and
//! lists of cache groups. An invalid field is ignored as a whole.

/// Name of a dictionary member, and its value unless it is a boolean.
pub(crate) type Member = (Vec<u8>, Option<Vec<u8>>);

/// Directives with a number of seconds; a value of another type makes the field invalid.
const NUMBER_DIRECTIVES: [&[u8]; 4] = [b"max-age", b"s-maxage", b"stale-while-revalidate", b"stale-if-error"];

/// Parses a dictionary; `None` if it is invalid, empty or absent. Members with the value `false` are omitted.
pub(crate) fn members(value: &[u8]) -> Option<Vec<Member>> {
    let mut rest = value;
    let mut members = Vec::new();
    loop {
        let name = key(&mut rest)?;
        let mut is_true = true;
        let mut value = None;
        if consume(&mut rest, b"=") {
            let (text, kind) = item(&mut rest)?;
            match kind {
                ItemKind::Boolean => is_true = text == b"1",
                ItemKind::Integer => value = Some(text),
                _ if NUMBER_DIRECTIVES.contains(&&name[..]) => return None,
                _ => value = Some(text),
            }
        }
        if is_true {
            members.push((name, value));
        }
        if is_last(&mut rest)? {
            return Some(members);
        }
    }
}

/// Skips a member's parameters and the following comma. True if the member was the last; `None` if anything
/// else follows.
fn is_last(rest: &mut &[u8]) -> Option<bool> {
    parameters(rest)?;
    spaces(rest);
    if rest.is_empty() {
        return Some(true);
    }
    consume(rest, b",").then(|| spaces(rest))?;
    Some(false)
}

/// Parses a list of strings; `None` if it is invalid, empty or has members of another type.
pub(crate) fn strings(value: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut rest = value;
    let mut strings = Vec::new();
    spaces(&mut rest);
    loop {
        if rest.first() != Some(&b'"') {
            return None;
        }
        strings.push(item(&mut rest)?.0);
        if is_last(&mut rest)? {
            return Some(strings);
        }
    }
}

/// Value of a dictionary member: a flag, a list of strings, or anything else.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FlagOrNames {
    Flag(bool),
    Names(Vec<Vec<u8>>),
    Other,
}

/// Parses a dictionary whose values are flags and lists of strings; `None` if it is invalid or empty.
pub(crate) fn flags_and_names(value: &[u8]) -> Option<Vec<(Vec<u8>, FlagOrNames)>> {
    let mut rest = value;
    let mut members = Vec::new();
    loop {
        let name = key(&mut rest)?;
        let value = if !consume(&mut rest, b"=") {
            FlagOrNames::Flag(true)
        } else if rest.starts_with(b"(") {
            inner_list(&mut rest)?.map_or(FlagOrNames::Other, FlagOrNames::Names)
        } else {
            match item(&mut rest)? {
                (flag, ItemKind::Boolean) => FlagOrNames::Flag(flag == b"1"),
                _ => FlagOrNames::Other,
            }
        };
        members.push((name, value));
        if is_last(&mut rest)? {
            return Some(members);
        }
    }
}

/// Parses an inner list; the inner `None` if it has items other than strings.
fn inner_list(rest: &mut &[u8]) -> Option<Option<Vec<Vec<u8>>>> {
    let mut names = Some(Vec::new());
    consume(rest, b"(").then_some(())?;
    loop {
        spaces(rest);
        if consume(rest, b")") {
            return Some(names);
        }
        let is_string = rest.starts_with(b"\"");
        let (text, _) = item(rest)?;
        parameters(rest)?;
        match &mut names {
            Some(names) if is_string => names.push(text),
            names => *names = None,
        }
        if !matches!(rest.first(), Some(b' ' | b')')) {
            return None;
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ItemKind {
    Integer,
    Boolean,
    Other,
}

fn spaces(rest: &mut &[u8]) {
    while let [b' ' | b'\t', after @ ..] = rest {
        *rest = after;
    }
}

/// Removes a prefix. Returns whether it was there.
fn consume(rest: &mut &[u8], what: &[u8]) -> bool {
    rest.strip_prefix(what).map(|after| *rest = after).is_some()
}

/// Takes bytes while `is_one` accepts them.
fn run<'a>(rest: &mut &'a [u8], is_one: impl Fn(u8) -> bool) -> &'a [u8] {
    let end = rest.iter().position(|&byte| !is_one(byte)).unwrap_or(rest.len());
    let (found, after) = rest.split_at(end);
    *rest = after;
    found
}

fn key(rest: &mut &[u8]) -> Option<Vec<u8>> {
    if !matches!(rest.first(), Some(b'a'..=b'z' | b'*')) {
        return None;
    }
    let is_one = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'.' | b'*');
    Some(run(rest, is_one).to_vec())
}

fn item(rest: &mut &[u8]) -> Option<(Vec<u8>, ItemKind)> {
    match rest.first()? {
        b'?' => {
            let (flag, after) = rest.split_at_checked(2)?;
            *rest = after;
            matches!(flag[1], b'0' | b'1').then(|| (flag[1..].to_vec(), ItemKind::Boolean))
        }
        b'"' => {
            let mut text = Vec::new();
            let mut at = 1;
            loop {
                match rest.get(at)? {
                    b'"' => break,
                    b'\\' => {
                        at += 1;
                        let escaped = *rest.get(at)?;
                        matches!(escaped, b'"' | b'\\').then(|| text.push(escaped))?;
                    }
                    byte => text.push(*byte),
                }
                at += 1;
            }
            *rest = &rest[at + 1..];
            Some((text, ItemKind::Other))
        }
        b'-' | b'0'..=b'9' => {
            let text = run(rest, |byte| matches!(byte, b'0'..=b'9' | b'.' | b'-')).to_vec();
            let is_integer = text.iter().all(u8::is_ascii_digit) && text.len() <= 15;
            Some((text, if is_integer { ItemKind::Integer } else { ItemKind::Other }))
        }
        b'a'..=b'z' | b'A'..=b'Z' | b'*' => {
            let is_one = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(&byte);
            Some((run(rest, is_one).to_vec(), ItemKind::Other))
        }
        // Byte sequences, dates, display strings and inner lists do not occur in directives.
        _ => None,
    }
}

fn parameters(rest: &mut &[u8]) -> Option<()> {
    while consume(rest, b";") {
        spaces(rest);
        key(rest)?;
        if consume(rest, b"=") {
            item(rest)?;
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dictionaries_are_parsed_and_invalid_ones_rejected() {
        let names = |text: &str| -> Option<Vec<String>> {
            let shown = |(name, value): Member| {
                let value = value.map(|value| format!("={}", String::from_utf8_lossy(&value)));
                format!("{}{}", String::from_utf8_lossy(&name), value.unwrap_or_default())
            };
            Some(members(text.as_bytes())?.into_iter().map(shown).collect())
        };
        let some = |all: &[&str]| Some(all.iter().map(|&one| one.to_owned()).collect::<Vec<_>>());
        assert_eq!(names("max-age=60, foobar"), some(&["max-age=60", "foobar"]));
        assert_eq!(names("max-age=60;a;b=1 ,\tno-store"), some(&["max-age=60", "no-store"]));
        assert_eq!(names("no-store=?0, private=?1"), some(&["private"]));
        assert_eq!(names("x=\"a, \\\"b\", y=token/1"), some(&["x=a, \"b", "y=token/1"]));
        for invalid in [
            "",
            ",",
            "a,",
            "a b",
            "A",
            "a==1",
            "a=",
            "max-age=1.5",
            "max-age=-1",
            "a=\"x",
            "a=(1)",
            "a;=1",
            "a=?2",
        ] {
            assert_eq!(names(invalid), None, "{invalid}");
        }
    }
}
