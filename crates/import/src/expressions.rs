//! Conversion of other servers' regular expressions to those of Komainu's paths, which are matched in linear
//! time.

use crate::findings::Untranslatable;
use crate::regex_tokens::{RegexToken, RegexTokenKind, regex_text, regex_tokens};
use shapes::pattern::PathPattern;

/// Maximum number of words that a negative lookahead may exclude.
const EXCLUDED_WORDS_MAX: usize = 16;
/// Expressions that may follow a lookahead that is to be rewritten: none depends on how much the rewritten
/// part has consumed.
const REWRITABLE_RESTS: [&str; 6] = ["", "$", ".*", ".*$", "(.*)", "(.*)$"];

/// A regular expression as the path of a route.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PathExpression {
    /// The path, including the `~` at its beginning.
    pub(crate) pattern: String,
    /// Names of the groups in the original configuration and in Komainu's.
    pub(crate) groups: Vec<(String, String)>,
}

/// Converts a regular expression to the path of a route.
///
/// # Errors
/// The reason why the expression cannot be converted.
pub(crate) fn path_expression(regex: &str, ignores_case: bool) -> Result<PathExpression, Untranslatable> {
    let plain = replace_lookahead(&regex_tokens(regex))?;
    let tokens = regex_tokens(&plain);
    refuse_differences(&tokens)?;
    let (plain, renamed) = rename_groups(&tokens);
    let pattern = format!("{} {plain}", if ignores_case { "~*" } else { "~" });
    let parsed = PathPattern::parse(&pattern).map_err(|fault| match fault.remedy.as_str() {
        "" => fault.message.clone(),
        remedy => format!("{} ({remedy})", fault.message),
    })?;
    let old_name = |name: &String| {
        renamed.iter().find(|(_, new)| new == name).map_or_else(|| name.clone(), |(old, _)| old.clone())
    };
    let groups = parsed.groups().iter().map(|name| (old_name(name), name.clone())).collect();
    Ok(PathExpression { pattern, groups })
}

/// Whether the path pattern of a route matches `path`.
pub(crate) fn path_matches(pattern: &str, path: &str) -> bool {
    PathPattern::parse(pattern).is_ok_and(|pattern| pattern.matches(path.as_bytes()))
}

/// Whether an expression of nginx matches a path, or cannot be tried.
pub(crate) fn may_match_path(regex: &str, path: &str) -> bool {
    let plain =
        |regex: &str| path_expression(regex, false).ok().map(|found| path_matches(&found.pattern, path));
    // `^/(?!index|remote)`: at a known place, what is excluded is an expression of its own.
    let excluded = || {
        let (before, rest) = regex.split_once("(?!").filter(|(before, _)| before.starts_with('^'))?;
        let (inside, behind) = rest.split_at(closing_parenthesis(rest)?);
        let (is_in, is_out) =
            (plain(&format!("{before}{}", &behind[1..]))?, plain(&format!("{before}(?:{inside})"))?);
        before[1..]
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "/-_".contains(c))
            .then_some(is_in && !is_out)
    };
    plain(regex).or_else(excluded).unwrap_or(true)
}

/// Returns the place of the parenthesis that ends a group whose beginning is not part of `rest`.
fn closing_parenthesis(rest: &str) -> Option<usize> {
    let mut depth = 0_usize;
    let mut at = 0;
    for token in regex_tokens(rest) {
        match token.kind {
            RegexTokenKind::Open => depth += 1,
            RegexTokenKind::Close if depth == 0 => return Some(at),
            RegexTokenKind::Close => depth -= 1,
            _ => {}
        }
        at += token.text.len();
    }
    None
}

/// Whether all paths that a pattern or expression matches begin with `prefix`. Returns false if this cannot
/// be determined.
pub(crate) fn implies_prefix(pattern: &str, prefix: &str) -> bool {
    literal_start(pattern).starts_with(prefix)
}

/// Returns the common beginning of all paths that a pattern or expression matches.
pub(crate) fn literal_start(pattern: &str) -> String {
    let Some(regex) = pattern.strip_prefix('~') else {
        return pattern.split('*').next().unwrap_or_default().to_owned();
    };
    let Some(body) = regex.trim_start().strip_prefix('^').filter(|_| !regex.starts_with('*')) else {
        return String::new();
    };
    let tokens = regex_tokens(body);
    if has_alternatives(&tokens) {
        return String::new();
    }
    let mut start = String::new();
    for token in &tokens {
        match token.literal() {
            Some(c) => start.push(c),
            None => {
                // The quantifier makes the preceding character optional.
                if token.kind == RegexTokenKind::Quantifier && !token.text.starts_with('+') {
                    start.pop();
                }
                break;
            }
        }
    }
    start
}

/// Escapes a text so that it matches itself in an expression.
pub(crate) fn escape_literal(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        if "\\.+*?()|[]{}^$#&~".contains(c) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// Whether the expression has alternatives outside of groups.
pub(crate) fn has_alternatives(tokens: &[RegexToken<'_>]) -> bool {
    let mut depth = 0_usize;
    tokens.iter().any(|token| {
        match token.kind {
            RegexTokenKind::Open => depth += 1,
            RegexTokenKind::Close => depth = depth.saturating_sub(1),
            _ => {}
        }
        token.kind == RegexTokenKind::Alternative && depth == 0
    })
}

/// Returns the expression for this engine and the renamed groups (old, new): groups with the names of
/// variables get a `_` at their end, and `\<`, which matches the start of a word in this engine, becomes a
/// literal character.
fn rename_groups(tokens: &[RegexToken<'_>]) -> (String, Vec<(String, String)>) {
    let mut out = String::new();
    let mut renamed = Vec::new();
    for token in tokens {
        let group = token.text.strip_prefix("(?P<").or_else(|| token.text.strip_prefix("(?<"));
        let name =
            group.and_then(|group| group.strip_suffix('>')).filter(|_| token.kind == RegexTokenKind::Open);
        match (name, token.text) {
            (Some(name), _) if config::check_variable_name(name).is_err() => {
                out.push_str(&format!("(?<{name}_>"));
                renamed.push((name.to_owned(), format!("{name}_")));
            }
            (Some(name), _) => out.push_str(&format!("(?<{name}>")),
            (None, r"\<" | r"\>") => out.push_str(&token.text[1..]),
            (None, text) => out.push_str(text),
        }
    }
    (out, renamed)
}

/// Refuses syntax that this engine accepts with another meaning than PCRE. The engine itself refuses unknown
/// syntax.
fn refuse_differences(tokens: &[RegexToken<'_>]) -> Result<(), Untranslatable> {
    for (at, token) in tokens.iter().enumerate() {
        let is_repeated = tokens.get(at + 1).is_some_and(|next| next.kind == RegexTokenKind::Quantifier);
        let text = token.text;
        let flags = text.strip_prefix("(?").and_then(|rest| rest.strip_suffix([':', ')']));
        let are_known = |flags: &str| flags.bytes().all(|flag| b"ims-".contains(&flag));
        let has_same_meaning = match token.kind {
            RegexTokenKind::Quantifier => !token.is_possessive(),
            RegexTokenKind::Literal => text != "{" && (text.is_ascii() || !is_repeated),
            RegexTokenKind::Escape => text != r"\v",
            RegexTokenKind::Setting => flags.is_some_and(are_known),
            RegexTokenKind::Open => flags.is_none_or(are_known),
            RegexTokenKind::Class => {
                refuse_set_operations(text)?;
                true
            }
            _ => true,
        };
        if !has_same_meaning {
            return Err(format!("`{text}` in an expression has another meaning here, or none").into());
        }
    }
    Ok(())
}

/// Refuses classes that this engine would read as set operations (`[a-z&&[^b]]`), which PCRE does not have.
fn refuse_set_operations(class: &str) -> Result<(), Untranslatable> {
    let inner = class.trim_start_matches('[').trim_start_matches('^');
    let mut before = ' ';
    let mut chars = inner.chars().peekable();
    chars.next_if_eq(&']');
    while let Some(c) = chars.next() {
        match c {
            '\\' if chars.next() == Some('v') => {
                return Err(r"`\v` in a class has another meaning here".into());
            }
            '[' if chars.peek() != Some(&':') => {
                return Err("a class has a `[` in it: write `\\[`".into());
            }
            '[' => drop(chars.by_ref().find(|&c| c == ']')),
            '&' | '~' | '-' if before == c => {
                return Err(format!("a class has `{c}{c}` in it: write it once").into());
            }
            _ => {}
        }
        before = c;
    }
    Ok(())
}

/// Replaces a `(?!…)` at the end of an expression by an equivalent expression of character classes.
fn replace_lookahead(tokens: &[RegexToken<'_>]) -> Result<String, Untranslatable> {
    let Some(at) = tokens.iter().position(RegexToken::looks_around) else { return Ok(regex_text(tokens)) };
    let refused = || {
        let what = "it looks ahead or back, which an expression of linear time cannot";
        Untranslatable::from(format!("{what}: write a route for the exception before this one"))
    };
    let end = find_closing(tokens, at).filter(|_| tokens[at].text == "(?!").ok_or_else(refused)?;
    let excluded = regex_text(&tokens[at + 1..end]);
    let rest = regex_text(&tokens[end + 1..]);
    let rest = rest.as_str();
    if !REWRITABLE_RESTS.contains(&rest) {
        return Err(refused());
    }
    let words = literal_words(&excluded).ok_or_else(refused)?;
    let words: Vec<&[char]> = words.iter().map(Vec::as_slice).collect();
    let other = not_starting_with(&words).ok_or_else(refused)?;
    let head = regex_text(&tokens[..at]);
    // The rest matches everything.
    let rest = if matches!(rest, ".*" | ".*$") { "" } else { rest };
    Ok(match rest.strip_prefix('(') {
        Some(rest) => format!("{head}({other}{rest}"),
        None => format!("{head}{other}{rest}"),
    })
}

/// Returns a path pattern that matches at least the paths that the expression matches. Used for refusals,
/// which may be broader than the original but never narrower.
pub(crate) fn widen_expression(regex: &str, ignores_case: bool) -> String {
    let everything = || "*".to_owned();
    let Some(plain) = remove_lookarounds(regex) else { return everything() };
    path_expression(&plain, ignores_case).map_or_else(|_| everything(), |found| found.pattern)
}

/// Removes syntax that only backtracking engines support; the result matches at least as much. Returns `None`
/// if an assertion is unbalanced or has a quantifier.
fn remove_lookarounds(regex: &str) -> Option<String> {
    let tokens = regex_tokens(regex);
    let mut out = String::new();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        at += 1;
        if token.looks_around() {
            at = find_closing(&tokens, at - 1)? + 1;
            if tokens.get(at).is_some_and(|next| next.kind == RegexTokenKind::Quantifier) {
                return None;
            }
            continue;
        }
        let refers = token.kind == RegexTokenKind::Escape
            && token.text[1..].starts_with(|c| matches!(c, '1'..='9' | 'k' | 'g'));
        out.push_str(match token.text {
            "(?>" | "(?|" => "(?:",
            r"\K" => "",
            text if token.kind == RegexTokenKind::Setting && text.starts_with("(?#") => "",
            // Backreferences and octal characters may match anything.
            _ if refers => ".*",
            text if token.is_possessive() => &text[..text.len() - 1],
            text => text,
        });
    }
    Some(out)
}

/// Returns the index of the token that closes the group opened at `open`.
fn find_closing(tokens: &[RegexToken<'_>], open: usize) -> Option<usize> {
    let mut depth = 0_usize;
    tokens.iter().enumerate().skip(open).find_map(|(at, token)| {
        match token.kind {
            RegexTokenKind::Open => depth += 1,
            RegexTokenKind::Close => depth = depth.saturating_sub(1),
            _ => {}
        }
        (depth == 0).then_some(at)
    })
}

/// Returns the alternatives of an expression if all of them are literal words.
fn literal_words(text: &str) -> Option<Vec<Vec<char>>> {
    let text = text.strip_suffix(".*").unwrap_or(text);
    let inner = text
        .strip_suffix(')')
        .and_then(|text| text.strip_prefix("(?:").or_else(|| text.strip_prefix('(')))
        .unwrap_or(text);
    let mut all = vec![Vec::new()];
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        let last = all.last_mut()?;
        match c {
            '\\' => match chars.next()? {
                c if c.is_ascii_alphanumeric() => return None,
                c => last.push(c),
            },
            '|' => all.push(Vec::new()),
            '.' | '*' | '+' | '?' | '(' | ')' | '[' | ']' | '{' | '}' | '^' | '$' => return None,
            c if c.is_ascii() => last.push(c),
            _ => return None,
        }
    }
    (all.len() <= EXCLUDED_WORDS_MAX && all.iter().all(|word| !word.is_empty())).then_some(all)
}

/// Returns an expression for texts that begin with none of the words; `None` if a word is empty, because
/// every text begins with it.
pub(crate) fn not_starting_with(words: &[&[char]]) -> Option<String> {
    if words.iter().any(|word| word.is_empty()) {
        return None;
    }
    let mut firsts: Vec<char> = Vec::new();
    for word in words {
        if !firsts.contains(&word[0]) {
            firsts.push(word[0]);
        }
    }
    let class: String = firsts.iter().map(|c| escape_in_class(*c)).collect();
    let mut parts = vec!["$".to_owned(), format!("[^{class}]")];
    for first in firsts {
        let rests: Vec<&[char]> =
            words.iter().filter(|word| word[0] == first).map(|word| &word[1..]).collect();
        if let Some(rest) = not_starting_with(&rests) {
            parts.push(format!("{}{rest}", escape_literal(&first.to_string())));
        }
    }
    Some(format!("(?:{})", parts.join("|")))
}

fn escape_in_class(c: char) -> String {
    match c {
        '\\' | ']' | '[' | '^' | '-' | '&' | '~' => format!("\\{c}"),
        c => c.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn convert(regex: &str) -> String {
        match path_expression(regex, false) {
            Ok(found) => found.pattern,
            Err(reason) => format!("! {reason}"),
        }
    }

    #[test]
    fn expressions_are_kept_and_groups_get_unused_names() {
        assert_eq!(convert(r"^/user/(\d+)$"), r"~ ^/user/(\d+)$");
        let found = path_expression(r"^/(?P<path>[a-z]+)/(?<id>\d+)", true).unwrap();
        assert_eq!(found.pattern, r"~* ^/(?<path_>[a-z]+)/(?<id>\d+)");
        let pair = |old: &str, new: &str| (old.to_owned(), new.to_owned());
        assert_eq!(found.groups, [pair("1", "1"), pair("path", "path_"), pair("2", "2"), pair("id", "id")]);
    }

    #[test]
    fn unsupported_expressions_are_rejected() {
        for (regex, part) in [
            (r"(?<!a)b", "looks ahead or back"),
            (r"^/(?=a)", "looks ahead or back"),
            (r"^/(?!a)[a-z]+/x$", "looks ahead or back"),
            (r"^/(?!a.+b)", "looks ahead or back"),
            (r"^/(?!api|admin|a$)", "looks ahead or back"),
            (r"^/(a)\1$", "backreference"),
            (r"[a-z&&b]", "`&&`"),
            (r"[a[b]", "`\\[`"),
            ("((a{100}){100}){100}", "too large"),
        ] {
            assert!(
                convert(regex).starts_with("! ") && convert(regex).contains(part),
                "{regex}: {}",
                convert(regex)
            );
        }
    }

    #[test]
    fn wider_expressions_match_at_least_as_much() {
        for (regex, expected) in [
            (r"/\.(?!well-known/)[a-z]+\.x", r"~ /\.[a-z]+\.x"),
            (r"^/(?>a|b)++/(c)\1$", r"~ ^/(?:a|b)+/(c).*$"),
            (r"(?<=/admin)/[^/]+(?=\.php)", "~ /[^/]+"),
            (r"^/(?!a\)b)c", "~ ^/c"),
            (r"^/(?!a)+b", "*"),
            (r"^/(?!a", "*"),
            (r"^/[a-z", "*"),
        ] {
            assert_eq!(widen_expression(regex, false), expected, "{regex}");
        }
        assert_eq!(widen_expression("(?=x)y", true), "~* y");
    }

    #[test]
    fn trailing_negative_lookahead_is_rewritten() {
        for (regex, paths, others) in [
            (
                r"/\.(?!well-known)",
                &["/.env", "/.", "/a/.git/x", "/.w", "/.well", "/.well-know", "/.well-knowx"][..],
                &["/a", "/.well-known", "/.well-known/x"][..],
            ),
            (r"/\.(?!well-known\/)", &["/.well-known", "/.x"], &["/.well-known/x"]),
            (
                r"^/(?!(api|admin)).*$",
                &["/", "/a", "/ap", "/apx", "/x/api", "/adm"],
                &["/api", "/api/x", "/adminx"],
            ),
            (r"^/(?!up)(.*)$", &["/", "/u", "/x"], &["/up", "/upx"]),
        ] {
            let found = convert(regex);
            for path in paths {
                assert!(path_matches(&found, path), "{regex}: {path} ({found})");
            }
            for path in others {
                assert!(!path_matches(&found, path), "{regex}: {path} ({found})");
            }
        }
        let found = PathPattern::parse(&convert(r"^/(?!up)(.*)$")).unwrap();
        assert_eq!(found.captures(b"/abc").unwrap()[0].1, b"abc");
    }

    #[test]
    fn implied_prefixes_of_patterns_are_detected() {
        for (pattern, prefix, expected) in [
            ("/a/b*", "/a/", true),
            ("/a*", "/a/", false),
            ("*.txt", "/a/", false),
            ("~ ^/a/(.+\\.php)$", "/a/", true),
            ("~ ^\\/a\\/b", "/a/", true),
            ("~ ^/a.b/", "/a.b/", false),
            ("~ ^/a\\.b/", "/a.b/", true),
            ("~ ^/a/?b", "/a/", false),
            ("~ ^/a/x|^/b", "/a/", false),
            ("~* ^/a/x", "/a/", false),
            ("~ /a/", "/a/", false),
        ] {
            assert_eq!(implies_prefix(pattern, prefix), expected, "{pattern} {prefix}");
        }
    }
}
