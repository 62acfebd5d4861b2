//! Modules of a crate in the order of their declaration, and the paths that a file names.

use std::collections::{HashMap, HashSet};

use crate::tidy::source::{SourceFile, Token, closing_bracket};
use crate::tidy::tree::{SourceTree, is_test_path};

/// Path of a module from the crate's root; empty for the root.
pub(crate) type ModulePath = Vec<String>;

/// Modules of one crate.
pub(crate) struct CrateModules {
    /// Files of the modules that have one, without tests.
    pub(crate) files: Vec<(ModulePath, String)>,
    /// Children of each module in the order of their declaration, without tests.
    pub(crate) children: HashMap<ModulePath, Vec<String>>,
}

/// Path that a file names, made absolute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamedPathUse {
    /// Segments from the crate's root, without `crate`.
    pub(crate) path: Vec<String>,
    pub(crate) line: usize,
    /// Whether the path names a macro, which is not an item of any module.
    pub(crate) is_macro: bool,
    /// Whether the path is in a `pub use`.
    pub(crate) is_reexported: bool,
}

impl CrateModules {
    /// Reads the crate whose root file is `root`.
    pub(crate) fn read(tree: &SourceTree, root: &str) -> CrateModules {
        let mut modules = CrateModules { files: Vec::new(), children: HashMap::new() };
        modules.add_module(tree, Vec::new(), root.to_string());
        modules
    }

    fn add_module(&mut self, tree: &SourceTree, path: ModulePath, file: String) {
        let Some(text) = tree.text(&file) else { return };
        let source = SourceFile::new(text);
        let declared = declared_modules(&source);
        self.files.push((path.clone(), file.clone()));
        let folder = folder_of(&file, path.is_empty());
        for name in &declared {
            let child: ModulePath = path.iter().cloned().chain([name.clone()]).collect();
            let flat = format!("{folder}/{name}.rs");
            let nested = format!("{folder}/{name}/mod.rs");
            match tree.text(&flat) {
                Some(_) => self.add_module(tree, child, flat),
                None => self.add_module(tree, child, nested),
            }
        }
        self.children.insert(path, declared);
    }

    /// Returns the longest prefix of `path` that is a module.
    pub(crate) fn module_of(&self, path: &[String]) -> ModulePath {
        let mut module = ModulePath::new();
        for name in path {
            if !self.children.get(&module).is_some_and(|children| children.contains(name)) {
                break;
            }
            module.push(name.clone());
        }
        module
    }

    /// Returns the index of `name` among the children of `parent`.
    pub(crate) fn child_index(&self, parent: &[String], name: &str) -> Option<usize> {
        self.children.get(parent)?.iter().position(|child| child == name)
    }
}

/// Returns the folder that contains a file's child modules.
fn folder_of(file: &str, is_root: bool) -> &str {
    let folder = file.rsplit_once('/').map_or("", |(folder, _)| folder);
    if is_root || file.ends_with("/mod.rs") { folder } else { file.trim_end_matches(".rs") }
}

fn declared_modules(source: &SourceFile) -> Vec<String> {
    let tokens = source.tokens();
    let mut names = Vec::new();
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate() {
        match token.text {
            "{" => depth += 1,
            "}" => depth = depth.saturating_sub(1),
            "mod" if depth == 0 && !source.is_test(token.line) => {
                names.extend(tokens.get(at + 1).map(|name| name.text.to_string()));
            }
            _ => {}
        }
    }
    names
}

/// Returns all paths that the file of module `here` names outside tests, from its crate's root: those that
/// begin with `crate`, `self` or `super`, or with the name of one of its child modules.
pub(crate) fn named_paths(modules: &CrateModules, here: &[String], source: &SourceFile) -> Vec<NamedPathUse> {
    let tokens = source.tokens();
    let own: HashSet<&str> = modules.children.get(here).into_iter().flatten().map(String::as_str).collect();
    let mut found = Vec::new();
    let mut inline: Vec<usize> = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        inline.retain(|&end| end > at);
        let token = tokens[at];
        let before = at.checked_sub(1).map_or("", |before| tokens[before].text);
        let follows = tokens.get(at + 1).is_some_and(|next| next.text == "::");
        if token.text == "mod" && tokens.get(at + 2).is_some_and(|open| open.text == "{") {
            inline.push(closing_bracket(&tokens, at + 2));
        }
        let starts = follows && !matches!(before, "::" | "." | "in") && !source.is_test(token.line);
        let base = match token.text {
            "crate" => Some(Vec::new()),
            "self" => Some(here.to_vec()),
            // In an inline module, the first `super` refers to this file.
            "super" if inline.is_empty() => Some(here[..here.len().saturating_sub(1)].to_vec()),
            "super" => Some(here.to_vec()),
            word if own.contains(word) => Some(here.iter().cloned().chain([word.to_string()]).collect()),
            _ => None,
        };
        match base.filter(|_| starts) {
            None => at += 1,
            Some(mut base) => {
                at += 2;
                while tokens.get(at).is_some_and(|token| token.text == "super") {
                    base.pop();
                    at += 2;
                }
                let reexported = is_reexport(&tokens, at);
                let from = found.len();
                at = collect_use_tree(&tokens, at, &base, &mut found);
                found[from..].iter_mut().for_each(|named| named.is_reexported = reexported);
            }
        }
    }
    found
}

/// Whether the statement around `at` begins with `pub … use`.
fn is_reexport(tokens: &[Token<'_>], at: usize) -> bool {
    let statement =
        tokens[..at].iter().rposition(|token| matches!(token.text, ";" | "}")).map_or(0, |end| end + 1);
    let words: Vec<&str> = tokens[statement..at].iter().map(|token| token.text).collect();
    words.contains(&"pub") && words.contains(&"use")
}

/// Collects the paths of a use tree that begins at `at`; returns the index after it.
pub(crate) fn collect_use_tree(
    tokens: &[Token<'_>],
    at: usize,
    base: &[String],
    found: &mut Vec<NamedPathUse>,
) -> usize {
    let mut path = base.to_vec();
    let mut at = at;
    let Some(first) = tokens.get(at) else { return at };
    let line = first.line;
    loop {
        match tokens.get(at).map(|token| token.text) {
            Some("{") => {
                let end = closing_bracket(tokens, at);
                at += 1;
                while at < end {
                    let next = collect_use_tree(tokens, at, &path, found);
                    at = next.max(at + 1);
                    // Skip an alias and continue after the comma.
                    while at < end && tokens[at - 1].text != "," {
                        at += 1;
                    }
                }
                return end + 1;
            }
            Some("self") => {}
            // The path ends before generic arguments, as in `Vec::<u8>`.
            Some("<") => {
                found.push(NamedPathUse { path, line, is_macro: false, is_reexported: false });
                return at;
            }
            Some(word) => path.push(word.to_string()),
            None => return at,
        }
        at += 1;
        match tokens.get(at).map(|token| token.text) {
            Some("::") => at += 1,
            next => {
                found.push(NamedPathUse { path, line, is_macro: next == Some("!"), is_reexported: false });
                return at;
            }
        }
    }
}

/// Returns the root files of all crates: `lib.rs`, and `main.rs` if there is one.
pub(crate) fn crate_roots(tree: &SourceTree) -> Vec<String> {
    let is_root = |name: &str| name.ends_with("/src/lib.rs") || name.ends_with("/src/main.rs");
    tree.rust()
        .map(|(name, _)| name)
        .filter(|name| is_root(name) && !is_test_path(name))
        .map(str::to_string)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(text: &str, here: &[&str]) -> Vec<String> {
        let tree = SourceTree::of(&[
            ("c/src/lib.rs", "mod low; mod high;"),
            ("c/src/low.rs", ""),
            ("c/src/high.rs", text),
        ]);
        let modules = CrateModules::read(&tree, "c/src/lib.rs");
        let here: ModulePath = here.iter().map(|name| name.to_string()).collect();
        named_paths(&modules, &here, &SourceFile::new(text))
            .iter()
            .map(|named| named.path.join("::"))
            .collect()
    }

    #[test]
    fn paths_are_found_in_groups_aliases_and_expressions() {
        let text = "use crate::{a::{self, B as C}, d::*, e};\nfn f() { crate::g::h::<u8>(); super::i!(); self::j::k }";
        assert_eq!(paths(text, &["high"]), ["a", "a::B", "d::*", "e", "g::h", "i", "high::j::k"]);
    }

    #[test]
    fn visibility_modifiers_and_tests_are_ignored() {
        let text = "pub(crate) fn a() {}\npub(in crate::x) fn b() {}\n#[cfg(test)]\nmod tests { use super::*; use crate::y; }";
        assert!(paths(text, &["high"]).is_empty());
    }

    #[test]
    fn super_is_resolved_from_files_and_inline_modules() {
        assert_eq!(paths("use super::super::z::A;", &["x", "y"]), ["z::A"]);
        assert_eq!(paths("mod inner { use super::A; }", &["high"]), ["high::A"]);
    }

    #[test]
    fn modules_are_found_in_both_layouts_without_tests() {
        let tree = SourceTree::of(&[
            ("c/src/lib.rs", "mod a; pub(crate) mod b;\n#[cfg(test)]\nmod rig;"),
            ("c/src/a.rs", "mod x;"),
            ("c/src/a/x.rs", ""),
            ("c/src/b/mod.rs", "mod y;"),
            ("c/src/b/y.rs", ""),
            ("c/src/rig.rs", ""),
        ]);
        let modules = CrateModules::read(&tree, "c/src/lib.rs");
        let files: Vec<&str> = modules.files.iter().map(|(_, file)| file.as_str()).collect();
        assert_eq!(files, ["c/src/lib.rs", "c/src/a.rs", "c/src/a/x.rs", "c/src/b/mod.rs", "c/src/b/y.rs"]);
        let path = ["a", "x", "Item"].map(str::to_string);
        assert_eq!(modules.module_of(&path), ["a", "x"]);
        assert_eq!(modules.child_index(&[], "b"), Some(1));
    }
}
