//! The format of the vectors, described in `vectors/README.md`.

use std::path::{Path, PathBuf};

use http::{Limits, Method};

use super::drive::{Ending, Outcome, Role, Setup};

/// One exchange and its expected results.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) setup: Setup,
    pub(crate) bytes: Vec<u8>,
    /// The expected outcome, one item per line, in canonical spelling.
    pub(crate) expected: Vec<String>,
}

/// Every case of every file in `folder`, in the order of file names.
pub(crate) fn load(folder: &Path) -> Vec<Case> {
    let entries = std::fs::read_dir(folder).expect("the folder of the vectors");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("a folder entry").path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "case"));
    files.sort();
    let mut cases = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).expect("a vector file is text");
        match parse(&text) {
            Ok(found) if !found.is_empty() => cases.extend(found),
            Ok(_) => panic!("{}: no case", file.display()),
            Err(why) => panic!("{}: {why}", file.display()),
        }
    }
    cases
}

/// The cases of one file.
pub(crate) fn parse(text: &str) -> Result<Vec<Case>, String> {
    let mut cases: Vec<Case> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let at = |why: &str| format!("line {}: {why}: {line}", index + 1);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if line.ends_with(char::is_whitespace) {
            return Err(at("white space at the end (write \\x20)"));
        }
        if let Some(name) = line.strip_prefix("case ") {
            if cases.iter().any(|case| case.name == name) {
                return Err(at("the name is taken"));
            }
            let name = name.to_owned();
            let bytes = Vec::new();
            let expected = Vec::new();
            cases.push(Case { name, setup: Setup::default(), bytes, expected });
            continue;
        }
        let case = cases.last_mut().ok_or_else(|| at("before the first case"))?;
        case.line(line).map_err(at)?;
    }
    match cases.iter().find(|case| case.bytes.is_empty() || case.expected.is_empty()) {
        Some(case) => Err(format!("case {}: nothing sent, or nothing expected", case.name)),
        None => Ok(cases),
    }
}

impl Case {
    fn line(&mut self, line: &str) -> Result<(), &'static str> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let (word, times) = match word.split_once('*') {
            Some((word, times)) => (word, times.parse().map_err(|_| "no number of repeats")?),
            None => (word, 1),
        };
        match word {
            "method" => self.setup.role = Role::Response(method(rest)?),
            "limits" => rest.split(' ').try_for_each(|limit| self.limit(limit))?,
            "close" => self.setup.close = true,
            ">" => self.bytes.extend(unescape(rest)?.repeat(times)),
            "data" => {
                let more = escape(&unescape(rest)?.repeat(times));
                match self.expected.last_mut() {
                    Some(data) if data.starts_with("data ") => data.push_str(&more),
                    _ => self.expected.push(format!("data {more}")),
                }
            }
            "head" | "field" | "trailer" | "end" | "reject" | "more" | "left" => {
                self.expected.push(line.to_owned());
            }
            _ => return Err("unknown word"),
        }
        Ok(())
    }

    fn limit(&mut self, limit: &str) -> Result<(), &'static str> {
        let (name, value) = limit.split_once('=').unwrap_or((limit, "1"));
        let value: usize = value.parse().map_err(|_| "no number")?;
        let Limits { head_bytes_max, start_line_bytes_max, fields_max, bare_lf, lenient_heads } =
            &mut self.setup.limits;
        match name {
            "head-bytes" => *head_bytes_max = value,
            "start-line-bytes" => *start_line_bytes_max = value,
            "fields" => *fields_max = value,
            "bare-lf" => *bare_lf = true,
            "lenient-heads" => *lenient_heads = true,
            "body-bytes" => self.setup.body_bytes_max = value as u64,
            _ => return Err("unknown limit"),
        }
        Ok(())
    }

    /// Compares an outcome with the expected one; returns the difference as an error.
    pub(crate) fn check(&self, outcome: &Outcome) -> Result<(), String> {
        let found = self.render(outcome);
        if found == self.expected {
            return Ok(());
        }
        let expected = self.expected.join("\n  ");
        let found = found.join("\n  ");
        Err(format!("case {}\nexpected\n  {expected}\nfound\n  {found}\n", self.name))
    }

    /// Renders the outcome in the spelling of the expected one. Fields are included only if the case lists
    /// them.
    fn render(&self, outcome: &Outcome) -> Vec<String> {
        let mut lines = Vec::new();
        for (message, listed) in outcome.messages.iter().zip(self.listed().chain(std::iter::repeat(false))) {
            lines.push(format!("head {}", message.summary));
            let pairs = |word: &'static str, pairs: &[(Vec<u8>, Vec<u8>)]| -> Vec<String> {
                let line = |(name, value): &(Vec<u8>, Vec<u8>)| {
                    format!("{word} {}: {}", escape(name), escape(value)).trim_end().to_owned()
                };
                pairs.iter().map(line).collect()
            };
            if listed {
                lines.extend(pairs("field", &message.fields));
            }
            if !message.content.is_empty() {
                lines.push(format!("data {}", escape(&message.content)));
            }
            if message.complete {
                lines.extend(pairs("trailer", &message.trailers));
                lines.push("end".to_owned());
            }
        }
        lines.extend(match &outcome.ending {
            Ending::Idle => None,
            Ending::More => Some("more".to_owned()),
            Ending::Left(0) => None,
            Ending::Left(bytes) => Some(format!("left {bytes}")),
            Ending::Reject(reject) => Some(format!("reject {} {}", reject.status.code(), reject.reason)),
        });
        lines
    }

    /// For each expected head, whether its fields are listed.
    fn listed(&self) -> impl Iterator<Item = bool> {
        let lines = self.expected.iter().enumerate().filter(|(_, line)| line.starts_with("head "));
        lines.map(|(at, _)| self.expected.get(at + 1).is_some_and(|line| line.starts_with("field ")))
    }
}

fn method(name: &str) -> Result<Method, &'static str> {
    match Method::of(name.as_bytes()) {
        Method::Other => Err("unknown method"),
        method => Ok(method),
    }
}

/// Escapes everything but printable ASCII, and spaces at both ends.
pub(crate) fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for (at, &byte) in bytes.iter().enumerate() {
        let edge = at == 0 || at + 1 == bytes.len();
        match byte {
            b'\r' => text.push_str("\\r"),
            b'\n' => text.push_str("\\n"),
            b'\t' => text.push_str("\\t"),
            b'\0' => text.push_str("\\0"),
            b'\\' => text.push_str("\\\\"),
            b' ' if edge => text.push_str("\\x20"),
            b' '..=b'~' => text.push(byte as char),
            _ => text.push_str(&format!("\\x{byte:02x}")),
        }
    }
    text
}

/// Decodes an escaped text.
pub(crate) fn unescape(text: &str) -> Result<Vec<u8>, &'static str> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'\\' => match rest.next() {
                Some(b'r') => b'\r',
                Some(b'n') => b'\n',
                Some(b't') => b'\t',
                Some(b'0') => 0,
                Some(b'\\') => b'\\',
                Some(b'x') => {
                    let digit =
                        |byte: Option<u8>| byte.and_then(http::scan::hex_value).ok_or("\\x needs two digits");
                    digit(rest.next())? << 4 | digit(rest.next())?
                }
                _ => return Err("unknown escape"),
            },
            b' '..=b'~' => byte,
            _ => return Err("a byte that needs an escape"),
        });
    }
    Ok(bytes)
}
