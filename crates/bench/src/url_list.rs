//! Lists of URLs, in the format of siege's `urls.txt`.
//!
//! Each line is a URL, a URL with `POST` and content, or a URL with `POST <FILE`; other methods use the same
//! syntax. `NAME=value` defines a variable, which later lines use as `$(NAME)` or `${NAME}`; `#` begins a
//! comment. As an extension, a number before the URL is its weight: the URL is requested that many times as
//! often as others.

use std::path::Path;

use failure::{Failure, FailureContext};

use crate::request::BenchRequest;
use crate::url::Url;

/// Parses a list; files that it names are relative to `folder`.
///
/// # Errors
/// Returns the first error, with its line number.
pub fn parse_list(text: &str, folder: &Path) -> Result<Vec<BenchRequest>, Failure> {
    let mut variables: Vec<(String, String)> = Vec::new();
    let mut asks = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let line = expand_variables(line, &variables);
        if let Some((name, value)) = parse_definition(&line) {
            variables.push((name.to_string(), value.to_string()));
            continue;
        }
        asks.push(parse_request(&line, folder).with_context(|| format!("line {}", at + 1))?);
    }
    if asks.is_empty() {
        return Err(Failure::new("there is no URL in it"));
    }
    Ok(asks)
}

fn parse_definition(line: &str) -> Option<(&str, &str)> {
    let (name, value) = line.split_once('=')?;
    let name = name.trim();
    let is_name = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    is_name.then(|| (name, value.trim()))
}

/// Replaces variables; the latest definition wins.
fn expand_variables(line: &str, variables: &[(String, String)]) -> String {
    variables.iter().rev().fold(line.to_string(), |line, (name, value)| {
        line.replace(&format!("$({name})"), value).replace(&format!("${{{name}}}"), value)
    })
}

fn parse_request(line: &str, folder: &Path) -> Result<BenchRequest, Failure> {
    let (first, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let (weight, line) = match first.parse::<u32>() {
        Ok(0) => return Err(Failure::new("a weight is at least 1")),
        Ok(weight) => (weight, rest.trim()),
        Err(_) => (1, line),
    };
    let (url, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let (method, content) = match rest.trim().split_once(char::is_whitespace) {
        Some((method, content)) => (method, Some(content.trim())),
        None if rest.trim().is_empty() => ("GET", None),
        None => (rest.trim(), None),
    };
    if !method.bytes().all(|b| b.is_ascii_uppercase()) {
        return Err(Failure::new(format!(
            "{method:?} is not a method; spaces in a URL must be percent-encoded"
        )));
    }
    let body = match content.map(|content| (content, content.strip_prefix('<'))) {
        None => matches!(method, "POST" | "PUT" | "PATCH").then(Vec::new),
        Some((_, Some(file))) => {
            let path = folder.join(file.trim());
            Some(std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?)
        }
        Some((content, None)) => Some(content.as_bytes().to_vec()),
    };
    Ok(BenchRequest { method: method.to_string(), url: Url::parse(url)?, body, weight })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn siege_url_lists_and_weights_are_parsed() {
        let text = "# a comment\nHOST=127.0.0.1:81\n\nhttp://$(HOST)/a\nhttp://${HOST}/b POST x=1&y=2\n\
                    3 http://h/c\nhttp://h/d?e=f\nhttp://h/g HEAD\nhttp://h/h POST\nHOST=i\nhttp://$(HOST)/";
        let asks = parse_list(text, Path::new(".")).unwrap();
        let shown: Vec<String> = asks.iter().map(|ask| format!("{} {}", ask.method, ask.url)).collect();
        assert_eq!(
            shown,
            [
                "GET http://127.0.0.1:81/a",
                "POST http://127.0.0.1:81/b",
                "GET http://h/c",
                "GET http://h/d?e=f",
                "HEAD http://h/g",
                "POST http://h/h",
                "GET http://i/"
            ]
        );
        assert_eq!(asks[1].body.as_deref(), Some(&b"x=1&y=2"[..]));
        assert_eq!((asks[2].weight, asks[5].body.as_deref()), (3, Some(&b""[..])));
    }

    #[test]
    fn content_is_read_from_a_file_next_to_the_list() {
        let folder = std::env::temp_dir().join(format!("komainu-list-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("body"), "from a file").unwrap();
        let asks = parse_list("http://h/ PUT < body", &folder).unwrap();
        assert_eq!(asks[0].body.as_deref(), Some(&b"from a file"[..]));
        assert!(
            parse_list("http://h/ PUT <none", &folder)
                .unwrap_err()
                .to_string()
                .contains("line 1: cannot read")
        );
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn list_errors_name_their_line() {
        for (text, what) in [
            ("# only this", "no URL"),
            ("http://h/\n0 http://h/", "line 2: a weight"),
            ("http://h/a b", "line 1: \"b\" is not a method"),
            ("ftp://h/", "line 1"),
        ] {
            assert!(parse_list(text, Path::new(".")).unwrap_err().to_string().contains(what), "{text}");
        }
    }
}
