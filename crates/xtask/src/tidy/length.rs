//! Checks the lengths of files and functions; the findings are mostly warnings.

use crate::tidy::finding::TidyFinding;
use crate::tidy::source::{SourceFile, Token, closing_bracket};
use crate::tidy::tree::{SourceTree, is_test_path};

const FILE_LINES_MAX: usize = 600;
const FUNCTION_LINES_WARNING: usize = 70;
const ARCHITECTURE_LINES_MAX: usize = 120;

/// Returns all findings about lengths.
pub(crate) fn check(tree: &SourceTree) -> Vec<TidyFinding> {
    let mut findings = Vec::new();
    if let Some(count) = tree.text("ARCHITECTURE.md").map(|text| text.lines().count())
        && count > ARCHITECTURE_LINES_MAX
    {
        let what = format!("{count} lines, {ARCHITECTURE_LINES_MAX} at most");
        findings.push(TidyFinding::new("ARCHITECTURE.md", count, what, "move a part to docs/decisions"));
    }
    for (name, text) in tree.rust() {
        let count = text.lines().count();
        if count > FILE_LINES_MAX {
            let what = format!("{count} lines, {FILE_LINES_MAX} at most");
            let finding =
                TidyFinding::new(name, count, what, "split it, or move its tests to a file beside it");
            findings.push(finding.into_warning());
        }
        if !is_test_path(name) {
            findings.extend(check_functions(name, &SourceFile::new(text)));
        }
    }
    findings
}

fn check_functions(name: &str, source: &SourceFile) -> Vec<TidyFinding> {
    let tokens = source.tokens();
    let mut findings = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        // A function pointer type such as `fn(u8) -> u8` has no name.
        let named = |next: &&Token<'_>| token.text == "fn" && next.text != "(" && !source.is_test(token.line);
        let Some(function) = tokens.get(at + 1).filter(named) else { continue };
        let Some(open) = body_start(&tokens, at) else { continue };
        let lines = tokens[closing_bracket(&tokens, open)].line + 1 - token.line;
        if lines > FUNCTION_LINES_WARNING {
            let what = format!("`{}` has {lines} lines, {FUNCTION_LINES_WARNING} at most", function.text);
            let finding = TidyFinding::new(name, token.line, what, "give its steps names of their own");
            findings.push(finding.into_warning());
        }
    }
    findings
}

/// Returns the index of the brace that opens the body of the function at `at`; `None` for a declaration
/// without body.
fn body_start(tokens: &[Token<'_>], at: usize) -> Option<usize> {
    let mut at = at + 1;
    loop {
        match tokens.get(at)?.text {
            "{" => return Some(at),
            ";" => return None,
            "(" | "[" => at = closing_bracket(tokens, at) + 1,
            _ => at += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find_all(name: &str, text: &str) -> Vec<TidyFinding> {
        check(&SourceTree::of(&[(name, text)]))
    }

    #[test]
    fn file_over_the_line_limit_is_reported() {
        assert!(find_all("a/src/x.rs", &"\n".repeat(FILE_LINES_MAX)).is_empty());
        assert_eq!(find_all("a/src/x.rs", &"\n".repeat(FILE_LINES_MAX + 1)).len(), 1);
        assert!(find_all("ARCHITECTURE.md", &"\n".repeat(ARCHITECTURE_LINES_MAX)).is_empty());
        assert_eq!(find_all("ARCHITECTURE.md", &"\n".repeat(ARCHITECTURE_LINES_MAX + 1)).len(), 1);
    }

    #[test]
    fn long_function_causes_a_warning() {
        let of = |lines: usize| {
            format!(
                "fn f<A: B<C>, const N: u8>(x: [u8; 2]) -> Result<A, [u8; 2]> where A: D, C: E {{{}}}",
                "\n".repeat(lines - 1)
            )
        };
        assert!(find_all("a/src/x.rs", &of(FUNCTION_LINES_WARNING)).is_empty());
        let warned = find_all("a/src/x.rs", &of(FUNCTION_LINES_WARNING + 1));
        assert!(warned.len() == 1 && warned[0].is_warning);
        assert!(find_all("a/tests/x.rs", &of(FUNCTION_LINES_WARNING + 1)).is_empty());
        let within = format!("#[cfg(test)]\nmod tests {{ {} }}", of(FUNCTION_LINES_WARNING + 1));
        assert!(find_all("a/src/x.rs", &within).is_empty());
    }

    #[test]
    fn types_and_declarations_are_not_measured() {
        let text = format!(
            "struct A {{ f: fn(u8) -> u8, }}\ntrait B {{ fn g(&self); }}\nmod c {{{}}}",
            "\n".repeat(200)
        );
        assert!(find_all("a/src/x.rs", &text).is_empty());
    }
}
