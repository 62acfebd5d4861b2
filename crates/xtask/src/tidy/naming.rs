//! Checks for meaningless names.

use crate::tidy::finding::TidyFinding;
use crate::tidy::source::SourceFile;
use crate::tidy::tree::SourceTree;

const MEANINGLESS_WORDS: [&str; 5] = ["manager", "helper", "helpers", "util", "utils"];
const DECLARING_KEYWORDS: [&str; 9] =
    ["struct", "enum", "trait", "type", "fn", "mod", "const", "static", "union"];

/// Returns all findings about names.
pub(crate) fn check(tree: &SourceTree) -> Vec<TidyFinding> {
    let mut findings = Vec::new();
    for (file, text) in tree.rust() {
        let source = SourceFile::new(text);
        let tokens = source.tokens();
        for pair in tokens.windows(2) {
            let [keyword, name] = pair else { continue };
            if !DECLARING_KEYWORDS.contains(&keyword.text) {
                continue;
            }
            if let Some(word) =
                split_words(name.text).into_iter().find(|word| MEANINGLESS_WORDS.contains(&word.as_str()))
            {
                let what = format!("`{}`: `{word}` says nothing", name.text);
                findings.push(TidyFinding::new(file, name.line, what, "name it for what it does or holds"));
            }
            if keyword.text == "fn" && name.text.starts_with("get_") {
                let what = format!("`{}`: `get_` says nothing", name.text);
                findings.push(TidyFinding::new(file, name.line, what, "name it for what it answers"));
            }
        }
    }
    findings
}

/// Returns the words of a name in `snake_case`, `CamelCase` or `SHOUTING_CASE`, in lower case.
fn split_words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut last_small = false;
    for c in name.chars() {
        if c == '_' || (c.is_uppercase() && last_small) {
            words.push(String::new());
        }
        if c != '_' {
            words.last_mut().expect("begun with one").extend(c.to_lowercase());
        }
        last_small = c.is_lowercase();
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meaningless_words_are_reported_in_declarations() {
        for bad in [
            "struct PoolManager;",
            "enum HelperKind {}",
            "mod util;",
            "fn parse_utils() {}",
            "const HELPER: u8 = 1;",
            "fn get_name() {}",
            "impl A { pub fn get_(&self) {} }",
        ] {
            assert_eq!(check(&SourceTree::of(&[("a.rs", bad)])).len(), 1, "{bad}");
        }
    }

    #[test]
    fn other_names_uses_and_comments_pass() {
        let good = "fn utility() {} fn getter() {} use other::Manager; // struct Manager\nfn x() { map.get_mut(1); }";
        assert!(check(&SourceTree::of(&[("a.rs", good)])).is_empty());
        assert_eq!(split_words("HTTPMethod_nameOf"), ["httpmethod", "name", "of"]);
    }
}
