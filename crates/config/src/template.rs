//! Texts with variables of the request: `https://$host$path`.

use crate::check::{InvalidValue, shortened};
use crate::near::nearest;
use std::fmt;

/// A property of the request that a text may contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variable {
    /// `$path`: the path that routes match, percent-encoded.
    Path,
    /// `$rest`: what the final `*` of the route's path matched in this request's path, percent-encoded.
    Rest,
    /// `$query`: the query as the client sent it, with its `?`; empty if there is none.
    Query,
    /// `$host`: the host of the request, in lower case, without port.
    Host,
    /// `$scheme`: `http` or `https`.
    Scheme,
    /// `$method`: the method.
    Method,
    /// `$remote_addr`, or `$client_ip`: the client's IP address.
    RemoteAddr,
}

impl Variable {
    /// All there are.
    pub const ALL: [Self; 7] =
        [Self::Path, Self::Rest, Self::Query, Self::Host, Self::Scheme, Self::Method, Self::RemoteAddr];

    /// Whether this is one of its names.
    fn is_named(self, name: &str) -> bool {
        self.name() == name || (self == Self::RemoteAddr && name == "client_ip")
    }

    /// Its name, without the `$`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Path => "path",
            Self::Rest => "rest",
            Self::Query => "query",
            Self::Host => "host",
            Self::Scheme => "scheme",
            Self::Method => "method",
            Self::RemoteAddr => "remote_addr",
        }
    }
}

/// A piece of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TemplatePart {
    /// Literal text.
    Text(String),
    /// A variable of the request.
    Variable(Variable),
}

/// A text with variables.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Template {
    /// The pieces, in order; no two texts are neighbours and none is empty.
    pub parts: Vec<TemplatePart>,
}

impl Template {
    /// Parses a text in which `$name` or `${name}` is a variable, one of `allowed`, and `$$` a dollar sign.
    pub fn parse(text: &str, allowed: &[Variable]) -> Result<Self, InvalidValue> {
        let mut parts = Vec::new();
        let mut plain = String::new();
        let mut at = 0;
        while let Some(dollar) = text[at..].find('$').map(|offset| at + offset) {
            plain.push_str(&text[at..dollar]);
            let (name, end) = name_after(text, dollar)?;
            at = end;
            if name == "$" {
                plain.push('$');
                continue;
            }
            let Some(variable) = allowed.iter().find(|variable| variable.is_named(name)) else {
                return Err(unknown(name, allowed).within(dollar..end));
            };
            if !plain.is_empty() {
                parts.push(TemplatePart::Text(std::mem::take(&mut plain)));
            }
            parts.push(TemplatePart::Variable(*variable));
        }
        plain.push_str(&text[at..]);
        if !plain.is_empty() {
            parts.push(TemplatePart::Text(plain));
        }
        Ok(Self { parts })
    }

    /// True if it contains the variable.
    pub fn uses(&self, variable: Variable) -> bool {
        self.parts.contains(&TemplatePart::Variable(variable))
    }

    /// The text before the first variable.
    pub fn start(&self) -> &str {
        match self.parts.first() {
            Some(TemplatePart::Text(text)) => text,
            _ => "",
        }
    }
}

/// The name after the dollar sign, and where the text continues; `$` for a second dollar sign.
pub(crate) fn name_after(text: &str, dollar: usize) -> Result<(&str, usize), InvalidValue> {
    let after = &text[dollar + 1..];
    if after.starts_with('$') {
        return Ok(("$", dollar + 2));
    }
    if let Some(braced) = after.strip_prefix('{') {
        let Some(length) = braced.find('}') else {
            return Err(InvalidValue::new("the `}` is missing", "a variable is `$name` or `${name}`")
                .within(dollar..text.len()));
        };
        return Ok((&braced[..length], dollar + length + 3));
    }
    let length = after.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(after.len());
    match length {
        0 => Err(InvalidValue::new("a variable's name is missing", "write `$$` for a dollar sign")
            .within(dollar..dollar + 1)),
        _ => Ok((&after[..length], dollar + 1 + length)),
    }
}

fn unknown(name: &str, allowed: &[Variable]) -> InvalidValue {
    let names: Vec<&str> = allowed.iter().map(|variable| variable.name()).collect();
    no_variable(name, &names)
}

/// The error for a `$name` that is not known.
pub(crate) fn no_variable(name: &str, known: &[&str]) -> InvalidValue {
    let message = match nearest(name, known.iter().copied()) {
        Some(near) => format!("did you mean `${near}`?"),
        None => format!("there is no `${}` here", shortened(name)),
    };
    let list: Vec<String> = known.iter().map(|name| format!("`${name}`")).collect();
    InvalidValue::new(message, format!("variables here: {}; `$$` is a dollar sign", list.join(", ")))
}

impl fmt::Display for Template {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in &self.parts {
            match part {
                TemplatePart::Text(text) => out.write_str(&text.replace('$', "$$"))?,
                TemplatePart::Variable(variable) => write!(out, "${{{}}}", variable.name())?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_print_as_they_read() {
        for text in ["", "a", "$$", "${path}", "https://${host}${path}${query}", "a$$${rest}b"] {
            assert_eq!(Template::parse(text, &Variable::ALL).unwrap().to_string(), text);
        }
        let short = Template::parse("$path.html", &[Variable::Path]).unwrap();
        assert_eq!(short.parts, [TemplatePart::Variable(Variable::Path), TemplatePart::Text(".html".into())]);
    }

    #[test]
    fn faults_point_at_the_variable() {
        let fault = |text: &str| Template::parse(text, &[Variable::Path, Variable::Host]).unwrap_err();
        assert_eq!(fault("x/$pth/y").at, Some(2..6));
        assert!(fault("x/$pth/y").message.contains("`$path`"));
        assert_eq!(fault("${hots}").at, Some(0..7));
        assert_eq!(fault("$query").at, Some(0..6));
        assert_eq!(fault("a$").at, Some(1..2));
        assert_eq!(fault("a${b").at, Some(1..4));
    }
}
