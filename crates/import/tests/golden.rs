//! Checks that each sample is translated to the configuration and the report next to it, that Komainu accepts
//! the configuration, and that every directive of the sample is in the report. `KOMAINU_BLESS=1` writes the
//! expected files.

#![allow(clippy::unwrap_used)]

#[path = "golden/guards.rs"]
mod guards;

#[path = "golden/path_guards.rs"]
mod path_guards;

#[path = "golden/route_guards.rs"]
mod route_guards;

#[path = "golden/ingress_guards.rs"]
mod ingress_guards;

#[path = "golden/to_gateway.rs"]
mod to_gateway;

#[path = "golden/app_guards.rs"]
mod app_guards;

#[path = "golden/app_options.rs"]
mod app_options;

#[path = "golden/nginx_files.rs"]
mod nginx_files;

use std::path::{Path, PathBuf};

use config::Config;
use import::{ImportResult, ImportVerdict};

fn samples(format: &str, ending: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(format);
    let mut found: Vec<PathBuf> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|found| found == ending))
        .collect();
    found.sort();
    assert!(!found.is_empty(), "{}", folder.display());
    found
}

/// Compares a result with the file of the expected one.
fn expect(path: &Path, actual: &str) {
    if std::env::var_os("KOMAINU_BLESS").is_some() {
        std::fs::write(path, actual).unwrap();
    }
    let expected = std::fs::read_to_string(path).unwrap_or_default();
    assert!(expected == actual, "{} differs; KOMAINU_BLESS=1 writes it:\n{actual}", path.display());
}

fn check(source: &Path, imported: &ImportResult) {
    expect(&source.with_extension("toml"), &imported.toml);
    expect(&source.with_extension("report"), &imported.report());
    if let Err(report) = Config::parse(&imported.toml, "komainu.toml", Path::new("/etc/komainu")) {
        panic!("{}:\n{}\n{}", source.display(), report.render(false), imported.toml);
    }
    for remark in imported.remarks.iter().filter(|remark| remark.verdict != ImportVerdict::Translated) {
        assert!(!remark.reasons.is_empty(), "{}: {remark}", source.display());
    }
}

/// Returns the lines on which directives of nginx begin: those that follow a `;`, `{` or `}`. Does not use
/// the importer's parser.
fn directive_lines(text: &str) -> Vec<usize> {
    let mut lines = Vec::new();
    let mut ended = true;
    let mut data = false;
    for (at, line) in text.lines().enumerate() {
        let line = line.split(" #").next().unwrap_or("").trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if line.starts_with('}') {
            data = false;
            ended = true;
            continue;
        }
        if ended && !data {
            lines.push(at + 1);
        }
        data |= ["map ", "geo ", "types ", "split_clients "].iter().any(|word| line.starts_with(word));
        ended = line.ends_with([';', '{', '}']);
    }
    lines
}

#[test]
fn nginx_samples_are_translated() {
    for source in samples("nginx", "conf") {
        let imported = import::nginx::import(&source, Some(Path::new("/etc/nginx"))).unwrap();
        check(&source, &imported);
        let name = source.file_name().unwrap().to_string_lossy();
        for line in directive_lines(&std::fs::read_to_string(&source).unwrap()) {
            let is_there = imported.remarks.iter().any(|remark| remark.line == line && remark.file == name);
            assert!(is_there, "{name}:{line} is not in the report");
        }
    }
}

#[test]
fn invalid_nginx_configuration_is_rejected_with_its_line() {
    let folder = std::env::temp_dir().join(format!("komainu-import-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("nginx.conf");
    let fault = |text: &str| {
        std::fs::write(&path, text).unwrap();
        import::nginx::import(&path, None).unwrap_err().to_string()
    };
    assert_eq!(fault("http {\n server {\n}"), "nginx.conf:1: this `{` is not closed");
    assert_eq!(fault("a\n}"), "nginx.conf:2: a `;` is missing before `}`");
    assert_eq!(fault("a;\n}"), "nginx.conf:2: this `}` closes nothing");
    assert_eq!(fault("a"), "nginx.conf:1: a `;` is missing at the end");
    assert_eq!(fault(";"), "nginx.conf:1: a directive's name is missing here");
    assert_eq!(fault("a;\ninclude nginx.conf;"), "nginx.conf:2: nginx.conf: this file includes itself");
    assert_eq!(fault(&"a {".repeat(100)), "nginx.conf:1: blocks are nested too deeply");
    assert!(import::nginx::import(&folder.join("none"), None).is_err());
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Returns the text of the first code block in this language.
fn block<'a>(text: &'a str, language: &str) -> &'a str {
    let start = format!("```{language}\n");
    let (_, rest) = text.split_once(&start).unwrap();
    rest.split_once("```").unwrap().0
}

#[test]
fn documented_example_matches_the_output() {
    let document =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/import.md")).unwrap();
    let (_, nginx) = document.split_once("\n## nginx\n").unwrap();
    let folder = std::env::temp_dir().join(format!("komainu-import-document-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("site.conf");
    std::fs::write(&path, block(nginx, "nginx")).unwrap();
    let imported = import::nginx::import(&path, None).unwrap();
    assert_eq!(imported.toml, block(nginx, "toml"));
    let (_, php) = document.split_once("\n### Sites of PHP\n").unwrap();
    std::fs::write(&path, block(php, "nginx")).unwrap();
    let imported = import::nginx::import(&path, None).unwrap();
    assert!(imported.toml.ends_with(block(php, "toml")), "{}", imported.toml);
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Checks that each scalar of a JSON file that follows a key is in the report with its line. Does not use the
/// importer's parser.
fn check_lines(source: &Path, imported: &ImportResult) {
    let name = source.file_name().unwrap().to_string_lossy();
    for (at, line) in std::fs::read_to_string(source).unwrap().lines().enumerate() {
        let has_value = line.trim_start().starts_with('"')
            && line.contains(':')
            && !line.trim_end().ends_with(['{', '[']);
        let is_there = imported.remarks.iter().any(|remark| remark.line == at + 1 && remark.file == name);
        assert!(is_there || !has_value, "{name}:{} is not in the report", at + 1);
    }
}

#[test]
fn unit_samples_are_translated() {
    for source in samples("unit", "json") {
        let imported = import::unit::import(&source).unwrap();
        check(&source, &imported);
        check_lines(&source, &imported);
    }
}

#[test]
fn caddy_samples_are_translated() {
    for source in samples("caddy", "json") {
        let imported = import::caddy::import(&source).unwrap();
        check(&source, &imported);
        check_lines(&source, &imported);
    }
    let path = std::env::temp_dir().join(format!("komainu-import-Caddyfile-{}", std::process::id()));
    std::fs::write(&path, "example.com {\n\tfile_server\n}\n").unwrap();
    let error = import::caddy::import(&path).unwrap_err().to_string();
    assert!(error.contains("caddy adapt"), "{error}");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn ingress_samples_are_translated() {
    for source in samples("ingress", "json") {
        let imported = import::ingress::import(&source).unwrap();
        check(&source, &imported);
        check_lines(&source, &imported);
    }
    for source in samples("ingress", "yaml") {
        let imported = import::ingress::import(&source).unwrap();
        check(&source, &imported);
    }
    let path = std::env::temp_dir().join(format!("komainu-import-ingress-{}", std::process::id()));
    let fault = |text: &str| {
        std::fs::write(&path, text).unwrap();
        import::ingress::import(&path).unwrap_err().to_string()
    };
    let error = fault("apiVersion: v1\nkind: Service\n");
    assert!(error.contains("no object of the kind Ingress"), "{error}");
    let error = fault("kind: Ingress\nspec: {{ toYaml .Values.spec }}\n");
    assert!(error.contains("helm template"), "{error}");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn application_server_samples_are_translated() {
    use import::ImportKind;
    for (kind, name) in [
        (ImportKind::Gunicorn, "gunicorn/gunicorn.conf.py"),
        (ImportKind::Gunicorn, "gunicorn/shop.service"),
        (ImportKind::Puma, "puma/puma.rb"),
        (ImportKind::Puma, "puma/Procfile"),
        (ImportKind::Starman, "starman/Procfile"),
        (ImportKind::Passenger, "passenger/Passengerfile.json"),
    ] {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name);
        let text = std::fs::read_to_string(&source).unwrap();
        assert_eq!(ImportKind::detect(&source, &text), Some(kind), "{name}");
        let imported = import::hosting::import(kind, Some(&source), &[]).unwrap();
        check(&source, &imported);
    }
    let command = ["--workers", "10", "--max-requests=1000", "app.psgi"].map(str::to_owned);
    let imported = import::hosting::import(ImportKind::Starman, None, &command).unwrap();
    for line in ["psgi = \"app.psgi\"", "workers = 10", "recycle = { requests = 1000 }"] {
        assert!(imported.toml.contains(line), "{}", imported.toml);
    }
    assert!(import::hosting::import(ImportKind::Starman, None, &[]).is_err());
}
