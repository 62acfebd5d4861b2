//! Each `errors/NAME.toml` renders as `errors/NAME.txt`.

use crate::{compare, place};
use config::{Config, Severity};
use std::path::Path;

#[test]
fn reports_are_rendered_as_expected() {
    let folder = std::fs::read_dir(place("tests/errors")).unwrap();
    let mut files: Vec<_> = folder.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    assert!(files.len() >= 15);
    for path in files {
        let text = std::fs::read_to_string(&path).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        let report = match Config::parse(&text, name, Path::new("/srv")) {
            Ok((_, report)) => report,
            Err(report) => report,
        };
        assert!(!report.is_empty(), "{name}: nothing was found");
        compare(&path.with_extension("txt"), &report.render(false));
    }
}

#[test]
fn warnings_do_not_prevent_loading() {
    let text = std::fs::read_to_string(place("tests/errors/unreachable.toml")).unwrap();
    let (config, report) = Config::parse(&text, "unreachable.toml", Path::new("/srv")).unwrap();
    assert_eq!(config.sites.len(), 3);
    assert_eq!(report.error_count(), 0);
    assert!(report.findings().iter().all(|finding| finding.severity == Severity::Warning));
}

#[test]
fn positions_count_lines_and_characters() {
    let text = "\n[[site]]\nhosts = [\"日本.example\", \"a b\"]\n";
    let report = Config::parse(text, "a", Path::new("")).unwrap_err();
    let positions: Vec<_> = report.findings().iter().map(|finding| report.position(finding)).collect();
    assert_eq!(positions, [(2, 1), (3, 11), (3, 26)]);
}

#[test]
fn colors_are_optional() {
    let report = Config::parse("a = 1", "a", Path::new("")).unwrap_err();
    assert!(report.render(true).contains('\u{1b}'));
    assert!(!report.render(false).contains('\u{1b}'));
    assert_eq!(report.to_string(), report.render(false));
}

#[test]
fn control_characters_are_not_printed() {
    let text = "\"a\\u001b[31m\" = 1\nlisten = \"unix\\u001b:\"\n[limits]\nhead = \"1\\u001bB\"\n";
    let report = Config::parse(text, "a", Path::new("")).unwrap_err();
    assert_eq!(report.error_count(), 3);
    assert!(!report.render(false).contains('\u{1b}'));
}
