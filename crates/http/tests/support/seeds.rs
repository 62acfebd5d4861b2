//! Seeds of the fuzz targets and of the replay of the laws: the bytes of the vectors.

use std::path::Path;

use super::case;
use super::drive::Role;

/// The seeds of each fuzz target, by its name.
pub(crate) fn of(target: &str, folder: &Path) -> Vec<Vec<u8>> {
    match target {
        "request" => sent(folder, |role| role == Role::Request).collect(),
        "response" => sent(folder, |role| role != Role::Request).collect(),
        "chunked" => sent(folder, |_| true).filter_map(chunked_body).collect(),
        "target" => {
            sent(folder, |role| role == Role::Request).filter_map(target_or_host).chain(paths()).collect()
        }
        "forwarded" => Vec::new(),
        _ => panic!("no such fuzz target: {target}"),
    }
}

/// The bytes of the vectors, except floods.
fn sent(folder: &Path, is_wanted: fn(Role) -> bool) -> impl Iterator<Item = Vec<u8>> {
    let cases = case::load(folder).into_iter();
    cases.filter(move |case| is_wanted(case.setup.role) && case.bytes.len() <= 2048).map(|case| case.bytes)
}

/// The bytes after the head of a chunked message.
fn chunked_body(bytes: Vec<u8>) -> Option<Vec<u8>> {
    let is_chunked = bytes.to_ascii_lowercase().windows(17).any(|name| name == b"transfer-encoding");
    let head_end = bytes.windows(4).position(|end| end == b"\r\n\r\n").filter(|_| is_chunked)? + 4;
    Some(bytes[head_end..].to_vec()).filter(|body| !body.is_empty())
}

/// The second word of the request line; for the target `/`, the Host instead.
fn target_or_host(bytes: Vec<u8>) -> Option<Vec<u8>> {
    let mut words = bytes.split(|byte| b" \r\n".contains(byte)).skip(1);
    let target = words.next()?;
    let word = if target == b"/" { words.nth(3)? } else { target };
    Some(word.to_vec()).filter(|word| !word.is_empty())
}

/// Paths with encoded bytes and dot segments, which no vector of the machine needs.
fn paths() -> impl Iterator<Item = Vec<u8>> {
    let paths = [
        "/a/../b/./c//d",
        "/%61%2e/%2E%2e/x",
        "/..%2f",
        "/%",
        "/%0",
        "/a%00",
        "/a/b/../..",
        "/.well-known",
        "/a%2fb%5Cc\\d/..;x/.%3b",
        "/a//b///../%252e%252e//",
        "/caf\u{e9}|<>/x;y=1/..",
    ];
    paths.into_iter().map(|path| path.as_bytes().to_vec())
}
