//! Tests of the table itself.

use std::path::{Path, PathBuf};

use super::super::directive::Contexts;
use super::super::translation::{DirectiveRow, Treatment};
use super::super::tree::{NginxDirective, TreeReader, is_data_block};
use super::DIRECTIVES;
use crate::findings::{ImportLedger, Outcome};

fn samples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nginx")
}

fn find_row(name: &str, context: Contexts) -> Option<usize> {
    DIRECTIVES.iter().position(|row| row.name == name && row.contexts.includes(context))
}

#[test]
fn each_directive_has_one_row_in_each_block() {
    for (at, row) in DIRECTIVES.iter().enumerate() {
        let is_same = |other: &&DirectiveRow| other.name == row.name && other.contexts.includes(row.contexts);
        let twice = DIRECTIVES[at + 1..].iter().any(|other| is_same(&other));
        assert!(!twice, "two rows have `{}` for the same block", row.name);
    }
}

#[test]
fn each_untranslated_directive_has_advice() {
    for row in &DIRECTIVES {
        let is_advised =
            matches!(row.treatment, Treatment::Noted(_) | Treatment::Different(_) | Treatment::Untranslated);
        assert!(!is_advised || row.advice() != Outcome::TRANSLATED, "no advice on `{}`", row.name);
    }
}

fn collect_used(block: &[NginxDirective], context: Contexts, used: &mut [bool]) {
    for one in block {
        if let Some(at) = find_row(&one.name, context) {
            used[at] = true;
        }
        if !is_data_block(&one.name) {
            collect_used(one.block_directives(), context.within(&one.name), used);
        }
    }
}

/// The list shows which rows nothing has tried. `KOMAINU_BLESS=1` writes it.
#[test]
fn rows_without_a_sample_are_listed() {
    let mut used = vec![false; DIRECTIVES.len()];
    for entry in std::fs::read_dir(samples()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|ending| ending != "conf") {
            continue;
        }
        let ledger = ImportLedger::default();
        let main = TreeReader::new(&ledger, &path, &samples()).read(&path).unwrap();
        let has_http = main.iter().any(|one| one.name == "http");
        let context = if has_http { Contexts::MAIN } else { Contexts::MAIN.or(Contexts::HTTP) };
        collect_used(&main, context, &mut used);
    }
    let mut names: Vec<&str> =
        (0..used.len()).filter(|at| !used[*at]).map(|at| DIRECTIVES[at].name).collect();
    names.sort_unstable();
    let actual = format!("{}\n", names.join("\n"));
    let list = samples().join("rows_without_sample.txt");
    if std::env::var_os("KOMAINU_BLESS").is_some() {
        std::fs::write(&list, &actual).unwrap();
    }
    let expected = std::fs::read_to_string(&list).unwrap_or_default();
    assert!(expected == actual, "{} differs; KOMAINU_BLESS=1 writes it", list.display());
}
