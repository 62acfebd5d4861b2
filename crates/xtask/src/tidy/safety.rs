//! Checks that `unsafe` is used only in allowed files and has a SAFETY comment.

use crate::tidy::finding::TidyFinding;
use crate::tidy::source::SourceFile;
use crate::tidy::tree::SourceTree;

/// Folders and files in which `unsafe` is allowed. In `net` each file is a wrapper around a few system calls.
const UNSAFE_ALLOWED: &[&str] = &[
    "crates/ring/",
    "crates/workers/",
    "crates/engine/src/memory.rs",
    "crates/net/src/sys.rs",
    "crates/net/src/sys/",
    "workers/native/examples/",
];

/// Returns all findings about `unsafe`.
pub(crate) fn check(tree: &SourceTree) -> Vec<TidyFinding> {
    let mut findings = Vec::new();
    for (name, text) in tree.rust() {
        let source = SourceFile::new(text);
        let tokens = source.tokens();
        for pair in tokens.windows(2) {
            let [keyword, next] = pair else { continue };
            // Declarations need a `# Safety` section, which clippy enforces.
            if keyword.text != "unsafe" || !matches!(next.text, "{" | "impl" | "fn" | "extern") {
                continue;
            }
            if !UNSAFE_ALLOWED.iter().any(|allowed| name.starts_with(allowed)) {
                let remedy = "use a safe wrapper, or give the file leave in xtask's list";
                findings.push(TidyFinding::new(name, keyword.line, "`unsafe` here", remedy));
            }
            if matches!(next.text, "{" | "impl") && !is_explained(text, &source, keyword.line) {
                let remedy = "say in a `// SAFETY:` comment before it why it is sound";
                findings.push(TidyFinding::new(name, keyword.line, "`unsafe` without its reason", remedy));
            }
        }
    }
    findings
}

/// Whether the comment before or within the statement around `line` (from 1) has a SAFETY line.
fn is_explained(text: &str, source: &SourceFile, line: usize) -> bool {
    let (lines, code): (Vec<&str>, Vec<&str>) = (text.lines().collect(), source.lines());
    let mut at = line - 1;
    loop {
        let comment = &lines[at][code[at].trim_end().len()..];
        if comment.contains("SAFETY:") {
            return true;
        }
        // Go up through the comment and the earlier lines of an unfinished statement.
        let Some(above) = at.checked_sub(1) else { return false };
        let ended = code[above].trim_end().ends_with([';', '{', '}', ',']);
        if ended || lines[above].trim().is_empty() {
            return false;
        }
        at = above;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find_all(name: &str, text: &str) -> Vec<String> {
        check(&SourceTree::of(&[(name, text)])).into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn unsafe_is_allowed_only_in_listed_files() {
        let text = "fn f() {\n    // SAFETY: there is none to lose.\n    unsafe { g() }\n}";
        assert_eq!(find_all("crates/http/src/x.rs", text), ["`unsafe` here"]);
        assert_eq!(find_all("crates/net/src/x.rs", "unsafe fn f() {}"), ["`unsafe` here"]);
        assert!(find_all("crates/ring/src/x.rs", text).is_empty());
        assert!(find_all("crates/http/src/x.rs", "// unsafe { }\n#![forbid(unsafe_code)]").is_empty());
    }

    #[test]
    fn unsafe_requires_a_safety_comment() {
        for good in [
            "// SAFETY: a.\nunsafe impl Send for A {}",
            "fn f() {\n    // SAFETY: a\n    // and b.\n    let x =\n        unsafe { g() };\n}",
            "fn f() {\n    // SAFETY: a.\n    #[rustfmt::skip]\n    unsafe { g() };\n}",
        ] {
            assert!(find_all("crates/ring/src/x.rs", good).is_empty(), "{good}");
        }
        for bad in [
            "unsafe impl Send for A {}",
            "// SAFETY: a.\n\nunsafe impl Send for A {}",
            "fn f() {\n    // SAFETY: a.\n    unsafe { g() };\n    unsafe { h() };\n}",
            "fn f() {\n    let x = \"SAFETY:\"; unsafe { g() };\n}",
        ] {
            assert_eq!(find_all("crates/ring/src/x.rs", bad), ["`unsafe` without its reason"], "{bad}");
        }
    }
}
