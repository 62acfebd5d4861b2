//! Checks that the C sources of workers include only headers of files below them: no cycles, no source files,
//! and no header that declares functions of other files, which would hide cycles of calls.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::tidy::finding::TidyFinding;
use crate::tidy::links::resolve_link;
use crate::tidy::tree::SourceTree;

/// Folder with the sources of all workers.
const WORKERS: &str = "workers/";
/// Folder of the headers that every worker may include by name.
const SHARED: &str = "workers/include/";
const SOURCES: [&str; 3] = [".c", ".cc", ".cpp"];
const HEADERS: [&str; 2] = [".h", ".hpp"];

/// Line of the form `#include "NAME"`.
struct Include<'a> {
    file: &'a str,
    /// Line number, from 1.
    line: usize,
    name: &'a str,
    /// Path of the included file in the repository; `None` for headers of an interpreter.
    path: Option<String>,
}

/// Returns all findings about includes.
pub(crate) fn check(tree: &SourceTree) -> Vec<TidyFinding> {
    let sources =
        tree.files().filter(|(name, _)| name.starts_with(WORKERS) && (is_source(name) || is_header(name)));
    let includes: Vec<Include<'_>> = sources.flat_map(|(file, text)| includes(tree, file, text)).collect();
    let mut uses: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for include in &includes {
        if let Some(path) = &include.path {
            uses.entry(unit(include.file)).or_default().insert(unit(path));
        }
    }
    let misplaced = tree.files().flat_map(|(name, text)| misplaced(tree, name, text));
    includes.iter().filter_map(|include| fault(include, &uses)).chain(misplaced).collect()
}

/// Returns findings about functions that a header declares and another file of its folder defines.
fn misplaced(tree: &SourceTree, header: &str, text: &str) -> Vec<TidyFinding> {
    if !header.starts_with(WORKERS) || !is_header(header) {
        return Vec::new();
    }
    let sources: Vec<(&str, BTreeSet<&str>)> = tree
        .files()
        .filter(|(name, _)| is_source(name) && folder(name) == folder(header) && unit(name) != unit(header))
        .map(|(name, text)| (name, functions(text, false).map(|(_, function)| function).collect()))
        .collect();
    let definition = |function: &str| sources.iter().find(|(_, defined)| defined.contains(function));
    functions(text, true)
        .filter_map(|(line, function)| {
            let (source, _) = definition(function)?;
            let what = format!("`{function}` is declared here and defined in {source}");
            Some(TidyFinding::new(header, line, what, "declare it in the header of that file"))
        })
        .collect()
}

/// Returns the lines (from 1) and names of the functions for other files: those that are declared, or those
/// that are defined. A declaration or definition begins a line.
fn functions(text: &str, declared: bool) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().filter_map(move |(at, line)| {
        let outside = line.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        if !outside || line.starts_with("static") || line.trim_end().ends_with(';') != declared {
            return None;
        }
        let (before, after) = line.split_once('(')?;
        let is_other = |c: char| !c.is_ascii_alphanumeric() && c != '_';
        let mut name = before.rsplit(is_other).next()?;
        // A macro such as `XS(name)` declares its argument.
        if !name.contains(|c: char| c.is_ascii_lowercase()) {
            name = after.split(is_other).next()?;
        }
        (!before.contains('=') && !name.is_empty()).then_some((at + 1, name))
    })
}

fn fault(include: &Include<'_>, uses: &BTreeMap<&str, BTreeSet<&str>>) -> Option<TidyFinding> {
    let Include { file, line, name, path } = include;
    if is_source(name) {
        let remedy = "compile it by itself, and include its header";
        return Some(TidyFinding::new(
            file,
            *line,
            format!("an include of the source file `{name}`"),
            remedy,
        ));
    }
    let path = path.as_deref()?;
    // A source file includes its own header.
    if unit(path) == unit(file) && path != *file {
        return None;
    }
    let chain = chain(uses, unit(path), unit(file))?;
    let what = format!("`{name}` closes a cycle of includes: {}, {}", unit(file), chain.join(", "));
    Some(TidyFinding::new(file, *line, what, "move the shared part to a file below both, or pass a function"))
}

/// Returns the includes of a file.
fn includes<'a>(tree: &SourceTree, file: &'a str, text: &'a str) -> Vec<Include<'a>> {
    let mut includes = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let Some(name) = included(line) else { continue };
        let beside = resolve_link(file, name).map(|(path, _)| path);
        let shared = Some(format!("{SHARED}{name}"));
        let path = [beside, shared].into_iter().flatten().find(|path| tree.text(path).is_some());
        includes.push(Include { file, line: at + 1, name, path });
    }
    includes
}

/// Returns the name between the quotes if the line is an include with quotes.
fn included(line: &str) -> Option<&str> {
    let directive = line.trim_start().strip_prefix('#')?.trim_start().strip_prefix("include")?;
    Some(directive.trim_start().strip_prefix('"')?.split_once('"')?.0)
}

fn is_source(name: &str) -> bool {
    SOURCES.iter().any(|end| name.ends_with(end))
}

fn is_header(name: &str) -> bool {
    HEADERS.iter().any(|end| name.ends_with(end))
}

fn folder(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// Returns the path without its extension: a source file and its header are one unit.
fn unit(path: &str) -> &str {
    path.rsplit_once('.').map_or(path, |(unit, _)| unit)
}

/// Returns the shortest chain of units that leads from `from` to `to`, with both.
fn chain<'a>(uses: &BTreeMap<&'a str, BTreeSet<&'a str>>, from: &'a str, to: &str) -> Option<Vec<&'a str>> {
    let mut chains = VecDeque::from([vec![from]]);
    let mut seen = BTreeSet::from([from]);
    while let Some(chain) = chains.pop_front() {
        let last = *chain.last()?;
        if last == to {
            return Some(chain);
        }
        for next in uses.get(last).into_iter().flatten().filter(|next| seen.insert(**next)) {
            chains.push_back([&chain[..], &[*next]].concat());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reported(files: &[(&str, &str)]) -> Vec<String> {
        check(&SourceTree::of(files)).iter().map(TidyFinding::to_string).collect()
    }

    #[test]
    fn includes_of_files_below_pass() {
        let files = [
            ("workers/x/top.c", "#include \"middle.h\"\n#include \"low.h\"\n#include <stdio.h>\n"),
            ("workers/x/middle.c", "#include \"middle.h\"\n#include \"low.h\"\n"),
            ("workers/x/middle.h", "#include \"low.h\"\n"),
            ("workers/x/low.c", "#include \"low.h\"\n"),
            (
                "workers/x/low.h",
                "#include \"interpreter.h\"\n#include \"channel.h\"\n#include \"../y/low.h\"\n",
            ),
            ("workers/y/low.h", "// #include \"../x/low.h\"\n"),
            ("workers/include/channel.h", ""),
            ("elsewhere/a.c", "#include \"b.c\"\n"),
        ];
        assert_eq!(reported(&files), [""; 0]);
    }

    #[test]
    fn cycles_are_reported_at_each_include_that_closes_one() {
        for (low, include) in [("low.h", "#include \"top.h\""), ("low.c", " # include\t\"./top.h\" // why")] {
            let path = format!("workers/x/{low}");
            let text = format!("\n{include}\n");
            let files = [
                ("workers/x/low.h", ""),
                ("workers/x/middle.h", "#include \"low.h\""),
                ("workers/x/top.c", "#include \"middle.h\""),
                ("workers/x/top.h", ""),
                (&path, &text),
            ];
            let found = reported(&files);
            assert_eq!(found.len(), 3, "{found:?}");
            assert!(found[0].starts_with(&format!("{path}:2: ")), "{found:?}");
            assert!(found[0].contains("workers/x/low, workers/x/top, workers/x/middle, workers/x/low;"));
        }
    }

    #[test]
    fn a_cycle_may_pass_through_shared_headers_or_be_one_file() {
        let files = [
            ("workers/include/channel.h", "#include \"../x/a.h\""),
            ("workers/x/a.h", "#include \"channel.h\""),
            ("workers/x/b.h", "#include \"b.h\""),
        ];
        assert_eq!(reported(&files).len(), 3);
    }

    #[test]
    fn a_header_declares_functions_of_its_own_source_file_only() {
        let header = "#include <stdio.h>\nint own(void);\n\
                      static inline int one(void) {\n    return upper();\n}\n\
                      /* upper() */\nPyObject *upper(int a, int (*b)(int));\n";
        let files = [
            ("workers/x/low.h", header),
            ("workers/x/macro.h", "XS(one_more);\nXS(own_one);\n"),
            ("workers/x/low.c", "int own(void) { return 1; }\n"),
            (
                "workers/x/top.c",
                "PyObject *upper(int a,\n                int (*b)(int)) {\n}\nstatic int own(void) {}\n",
            ),
            ("workers/x/macros.c", "XS(one_more) {\n}\n"),
            ("workers/y/own.c", "int own(void) {\n    return 2;\n}\n"),
        ];
        let found = reported(&files);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("workers/x/low.h:7: `upper` is declared here and defined"), "{found:?}");
        assert!(
            found[1].contains("`one_more` is declared here and defined in workers/x/macros.c;"),
            "{found:?}"
        );
    }

    #[test]
    fn includes_of_source_files_are_reported() {
        let files =
            [("workers/x/a.c", "#include \"b.c\"\n#include \"generated.cpp\"\n"), ("workers/x/b.c", "")];
        let found = reported(&files);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("workers/x/a.c:1: an include of the source file `b.c`;"), "{found:?}");
    }
}
