//! Project rules that a program can check. Each rule is a module with a function from the source tree to its
//! findings.

pub(crate) mod finding;
pub(crate) mod tree;
pub(crate) mod source;
pub(crate) mod modules;
pub(crate) mod layers;
pub(crate) mod order;
pub(crate) mod length;
pub(crate) mod naming;
pub(crate) mod shared_names;
pub(crate) mod words;
pub(crate) mod safety;
pub(crate) mod foreign_directives;
pub(crate) mod figures_page;
pub(crate) mod documents;
pub(crate) mod links;
pub(crate) mod attempts;
pub(crate) mod cited_names;
pub(crate) mod includes;

use std::path::Path;
use std::process::ExitCode;

use crate::measure::Fallible;

/// Checks the repository at `root` and prints the findings. Fails on any finding that is not just a warning.
pub(crate) fn run(root: &Path) -> Fallible<ExitCode> {
    let tree = tree::SourceTree::read(root)?;
    let mut findings = Vec::new();
    let rules = [
        layers::check,
        order::check,
        length::check,
        naming::check,
        shared_names::check,
        words::check,
        safety::check,
        documents::check,
        links::check,
        attempts::check,
        cited_names::check,
        includes::check,
    ];
    for rule in rules {
        findings.extend(rule(&tree));
    }
    findings.sort();
    findings.dedup();
    for finding in &findings {
        println!("{finding}");
    }
    let errors = findings.iter().filter(|finding| !finding.is_warning).count();
    println!("tidy: {} files, {errors} errors, {} warnings", tree.len(), findings.len() - errors);
    Ok(if errors == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Writes every generated document.
pub(crate) fn write_documents(root: &Path) -> Fallible<ExitCode> {
    for document in documents::generated_documents() {
        let file = root.join(&document.file);
        let written = std::fs::read_to_string(&file).unwrap_or_default();
        let source = document.source.map(|source| std::fs::read_to_string(root.join(source))).transpose()?;
        let source = source.unwrap_or_default();
        std::fs::write(&file, (document.text)(&written, &source))?;
        println!("{}", document.file);
    }
    Ok(ExitCode::SUCCESS)
}
