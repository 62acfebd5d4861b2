//! Environment files (`.env`), in the syntax of `docker run --env-file`, uvicorn and dotenv.

use failure::Failure;

/// Maximum size in bytes; a larger file is assumed to be a mistake.
const BYTES_MAX: u64 = 1024 * 1024;

/// Reads the variables of a file.
///
/// # Errors
/// The file cannot be read, or a line is malformed; the message contains the file, the line number and the
/// reason.
pub fn read(path: &std::path::Path) -> Result<Vec<(String, String)>, Failure> {
    let shown = path.display();
    let reported =
        |error: std::io::Error| format!("--env-file {shown}: {error}; it takes a file of NAME=VALUE lines");
    if std::fs::metadata(path).map_err(reported)?.len() > BYTES_MAX {
        return Err(Failure::new(format!(
            "--env-file {shown}: this is not a file of variables: it is larger than 1 MiB"
        )));
    }
    let text = std::fs::read_to_string(path).map_err(reported)?;
    parse(&text).map_err(|(line, what)| Failure::new(format!("--env-file {shown}:{line}: {what}")))
}

/// Parses a single `NAME=VALUE`.
///
/// # Errors
/// There is no `=`, no name before it, or a NUL.
pub fn parse_pair(text: &str) -> Result<(String, String), Failure> {
    match text.split_once('=') {
        Some((name, _)) if name.is_empty() || text.contains('\0') => Err("this names no variable".into()),
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => Err(Failure::new(format!("write {text}=VALUE"))),
    }
}

fn parse(text: &str) -> Result<Vec<(String, String)>, (usize, Failure)> {
    let mut pairs = Vec::new();
    for (at, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let line = line.strip_prefix("export ").unwrap_or(line);
        let (name, raw) = parse_pair(line).map_err(|what| (at + 1, what))?;
        let name = name.trim_end();
        if name.contains(char::is_whitespace) {
            return Err((at + 1, "a variable's name holds no space".into()));
        }
        pairs.push((name.to_owned(), parse_value(raw.trim_start()).map_err(|what| (at + 1, what.into()))?));
    }
    Ok(pairs)
}

/// Parses a value: literal in single quotes; with the escapes `\n`, `\t`, `\"`, `\\` and `\$` in double
/// quotes; otherwise up to ` #`. `$NAME` is not expanded.
fn parse_value(raw: &str) -> Result<String, &'static str> {
    let Some(quote) = raw.chars().next().filter(|c| matches!(c, '"' | '\'')) else {
        let end = raw.find(" #").or(raw.find("\t#")).unwrap_or(raw.len());
        return Ok(raw[..end].trim_end().to_owned());
    };
    let mut value = String::new();
    let mut rest = raw[1..].chars();
    while let Some(c) = rest.next() {
        match c {
            c if c == quote => {
                let after = rest.as_str().trim_start();
                let ends = after.is_empty() || after.starts_with('#');
                return if ends { Ok(value) } else { Err("something follows the closing quote") };
            }
            '\\' if quote == '"' => match rest.next() {
                Some('n') => value.push('\n'),
                Some('t') => value.push('\t'),
                Some(c @ ('"' | '\\' | '$')) => value.push(c),
                Some(c) => value.extend(['\\', c]),
                None => break,
            },
            c => value.push(c),
        }
    }
    Err("the closing quote is missing")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_parsed() {
        let text = "\u{feff}# settings\n\nA=1\nexport B = two words # and why\r\nC='x # $Y \\n'\nD=\"a\\n\\\"b\\\" $Z\" # e\nE=\nF=a#b=c\n";
        let pairs = parse(text).unwrap();
        let pairs: Vec<_> = pairs.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(
            pairs,
            [
                ("A", "1"),
                ("B", "two words"),
                ("C", "x # $Y \\n"),
                ("D", "a\n\"b\" $Z"),
                ("E", ""),
                ("F", "a#b=c")
            ]
        );
    }

    #[test]
    fn errors_name_their_line() {
        for (text, line, said) in [
            ("A=1\nB\n", 2, "B=VALUE"),
            ("=1\n", 1, "names no variable"),
            ("\nA='x\n", 2, "closing quote"),
            ("A=\"x\" y\n", 1, "follows the closing quote"),
            ("A B=1\n", 1, "no space"),
        ] {
            let (at, what) = parse(text).unwrap_err();
            assert!(at == line && what.to_string().contains(said), "{text}: {at}: {what}");
        }
    }
}
