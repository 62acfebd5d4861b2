//! Reading of configurations with their includes, and reporting of errors and warnings.

use std::collections::HashSet;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use config::Config;
use failure::{Failure, FailureContext};
use operator::config_text::ConfigText;
use process::config_files::MemoryFiles;
use serde_json::{Value, json};

use crate::check::{named_paths, path_warnings};
use crate::terminal;

/// Maximum number of included files.
const INCLUDED_FILES_MAX: usize = 1000;

/// Help for a missing configuration file.
const NO_FILE_HELP: &str =
    "name the configuration with `-c FILE`; `komainu run FOLDER` serves a folder without one";

/// Rereads a configuration from its origin.
pub(crate) type RereadConfig = Box<dyn Fn() -> Result<ReadConfig, Failure>>;

/// A configuration that was read.
pub(crate) struct ReadConfig {
    pub(crate) config: Config,
    /// Warnings, one line each.
    pub(crate) warnings: Vec<String>,
    /// `None` if the configuration comes from no file.
    pub(crate) text: Option<ConfigText>,
    /// Files that the configuration names and that are in memory.
    pub(crate) files: Option<MemoryFiles>,
}

/// Parses the text of a configuration again.
///
/// # Errors
/// The findings, or why a file cannot be read.
pub(crate) fn reparse_text(path: &Path, text: String) -> Result<ReadConfig, Failure> {
    let (config, warnings) = reparse(path, &text)?;
    let text = Some(ConfigText { path: path.to_owned(), joined: text.into() });
    Ok(ReadConfig { config, warnings, text, files: None })
}

/// Reads a configuration file. Returns it with the number of warnings, which are written to stderr.
///
/// # Errors
/// The findings, or why a file cannot be read.
pub(crate) fn read(path: &Path) -> Result<(Config, usize), Failure> {
    parse_counted(path, read_text(path)?.as_str())
}

/// Returns the text of a configuration file joined with those that it includes.
///
/// # Errors
/// The first file that cannot be read.
pub(crate) fn read_text(path: &Path) -> Result<String, Failure> {
    let text = read_file(path).map_err(|failure| match path.try_exists() {
        Ok(false) => failure.help(NO_FILE_HELP),
        _ => failure,
    })?;
    let mut files = vec![(path.to_owned(), text)];
    let mut seen: HashSet<PathBuf> = path.canonicalize().into_iter().collect();
    // Index of the file that includes each file.
    let mut parents = vec![0];
    let mut next = 0;
    while let Some((path, text)) = files.get(next) {
        let around = std::iter::successors(Some(next), |at| Some(parents[*at]).filter(|parent| parent != at));
        let around: Vec<&Path> = around.map(|at| files[at].0.as_path()).collect();
        let included = read_included(path, &around, text, INCLUDED_FILES_MAX + 1 - files.len(), &mut seen)?;
        parents.extend(included.iter().map(|_| next));
        files.extend(included);
        next += 1;
    }
    Ok(config::join_files(&files[0].1, &files[1..]))
}

/// Returns the files included by `text`, the content of `path`, at most `files_max`. Files seen before are
/// skipped. `around` holds `path` and the files that include it.
fn read_included(
    path: &Path,
    around: &[&Path],
    text: &str,
    files_max: usize,
    seen: &mut HashSet<PathBuf>,
) -> Result<Vec<(PathBuf, String)>, Failure> {
    let mut included = Vec::new();
    for pattern in config::include_patterns(text, &environment) {
        let directive = || format!("`include = \"{pattern}\"` in {}", include_place(path, text, &pattern));
        for file in matching_files(path, &pattern).with_context(directive)? {
            let real = file.canonicalize();
            let is_around =
                |real: &PathBuf| around.iter().any(|one| one.canonicalize().is_ok_and(|one| one == *real));
            if !is_pattern(&pattern) && real.as_ref().is_ok_and(is_around) {
                return Err(Failure::new(
                    "this file includes it, directly or by others: files would include each other without end",
                )
                .context(directive()));
            }
            if real.is_ok_and(|real| !seen.insert(real)) {
                continue;
            }
            if included.len() == files_max {
                let excess = format_args!("more than {INCLUDED_FILES_MAX} files are included");
                return Err(Failure::new(excess).context(directive()));
            }
            let text = read_file(&file).with_context(directive)?;
            included.push((file, text));
        }
    }
    Ok(included)
}

/// Returns the file of an include, with its line if it stands there as it is read.
fn include_place(path: &Path, text: &str, include: &str) -> String {
    let is_there =
        |line: &str| ['"', '\''].iter().any(|quote| line.contains(&format!("{quote}{include}{quote}")));
    match text.lines().position(is_there) {
        Some(at) => format!("{}:{}", path.display(), at + 1),
        None => path.display().to_string(),
    }
}

/// Returns the files that an include in `path` matches.
fn matching_files(path: &Path, pattern: &str) -> Result<Vec<PathBuf>, Failure> {
    let folder = path.parent().unwrap_or(Path::new(""));
    if !is_pattern(pattern) {
        return Ok(vec![folder.join(pattern)]);
    }
    let folder = folder.to_str().ok_or("the name of its folder is not UTF-8")?;
    let whole = Path::new(&glob::Pattern::escape(folder)).join(pattern);
    let found = glob::glob(&whole.to_string_lossy()).map_err(Failure::new)?;
    found.collect::<Result<_, _>>().map_err(Failure::new)
}

/// Whether an include is a glob pattern, which may match no file.
fn is_pattern(include: &str) -> bool {
    include.contains(['*', '?', '['])
}

/// Whether the directory of a pattern exists and is empty, so that files may be added later.
fn is_empty_folder(path: &Path, pattern: &str) -> bool {
    let folder = path.parent().unwrap_or(Path::new("")).join(pattern);
    let entries = folder.parent().and_then(|folder| std::fs::read_dir(folder).ok());
    entries.is_some_and(|mut entries| entries.next().is_none())
}

/// Returns warnings for includes that match no file, except in empty directories.
fn unmatched_include_warnings(path: &Path, text: &str) -> Vec<String> {
    let mut warnings = Vec::new();
    for (name, content) in config::split_files(text) {
        let file = name.map_or(path, Path::new);
        let patterns =
            config::include_patterns(content, &environment).into_iter().filter(|one| is_pattern(one));
        let unmatched = patterns.filter(|pattern| {
            matching_files(file, pattern).is_ok_and(|found| found.is_empty())
                && !is_empty_folder(file, pattern)
        });
        warnings.extend(unmatched.map(|pattern| {
            let (place, folder) = (include_place(file, content, &pattern), base_folder(file).display());
            format!("`include = \"{pattern}\"` in {place}: no file matches it; it is looked for in {folder}")
        }));
    }
    warnings
}

/// Returns an environment variable of this process.
pub(crate) fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Reads a text file of at most [`config::TEXT_BYTES_MAX`] bytes.
///
/// # Errors
/// The file cannot be read, is not a regular file, is too large, or is not UTF-8 text.
pub(crate) fn read_file(path: &Path) -> Result<String, Failure> {
    // Opening a FIFO without a writer would block; those of a shell (`<(…)`) are below /dev and /proc.
    let is_file = std::fs::metadata(path).map(|found| found.is_file());
    if matches!(is_file, Ok(false)) && !["/dev", "/proc"].iter().any(|folder| path.starts_with(folder)) {
        return Err(Failure::new(format!("cannot read {}: this is not a file", path.display())));
    }
    let mut bytes = Vec::new();
    // Files such as /dev/zero are endless.
    let bytes_max = config::TEXT_BYTES_MAX as u64;
    let opened = std::fs::File::open(path);
    let read = opened.and_then(|file| file.take(bytes_max + 1).read_to_end(&mut bytes));
    read.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            Failure::new(format!("cannot read {}: there is no such file", path.display()))
        }
        _ => Failure::from(error).context(format_args!("cannot read {}", path.display())),
    })?;
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        let name = path.display();
        return Err(Failure::new(format!(
            "{name}: this is UTF-16, and TOML is UTF-8: save it as UTF-8 (`iconv -f UTF-16 -t UTF-8 {name}`)"
        )));
    }
    if let Some(at) = bytes.iter().position(|&byte| byte == 0) {
        let line = 1 + bytes[..at].iter().filter(|&&byte| byte == b'\n').count();
        return Err(Failure::new("a NUL byte: this is not text").at(path, line, None));
    }
    if bytes.len() as u64 > bytes_max {
        let mib = bytes_max >> 20;
        return Err(Failure::new(format!(
            "cannot read {}: a configuration has at most {mib} MiB",
            path.display()
        )));
    }
    String::from_utf8(bytes).map_err(|error| {
        let line =
            1 + error.as_bytes()[..error.utf8_error().valid_up_to()].iter().filter(|&&b| b == b'\n').count();
        Failure::new("this is not UTF-8, which TOML is").at(path, line, None)
    })
}

/// Parses the text of a configuration file. Warnings are written to stderr.
///
/// # Errors
/// The findings, or why a file cannot be read.
pub(crate) fn parse(path: &Path, text: &str) -> Result<Config, Failure> {
    parse_counted(path, text).map(|(config, _)| config)
}

/// Parses like [`parse`] and returns the number of warnings.
fn parse_counted(path: &Path, text: &str) -> Result<(Config, usize), Failure> {
    let (config, warnings) = parse_with_paths(path, text)?;
    let doubts_of_paths = path_warnings::path_warnings(&warnings, &config);
    let warnings = warnings.with_warnings(doubts_of_paths);
    if !warnings.is_empty() {
        let _ = writeln!(io::stderr(), "{}", warnings.render(terminal::is_coloured()));
    }
    let more: Vec<String> = content_warnings(path, text, &config)
        .into_iter()
        .chain(path_warnings::socket_warnings(&config))
        .collect();
    for text in &more {
        terminal::print_error_line(&format!("warning: {text}"));
    }
    Ok((config, warnings.findings().len() + more.len()))
}

/// Parses a configuration for a reload. Returns its warnings, one line each.
///
/// # Errors
/// The findings, or why a file cannot be read.
pub(crate) fn reparse(path: &Path, text: &str) -> Result<(Config, Vec<String>), Failure> {
    let (config, report) = parse_with_warnings(path, text)?;
    let line = |finding: &config::Finding| {
        let (line, _) = report.position(finding);
        format!("{} ({}, line {line})", finding.title, report.file_of(finding))
    };
    let mut warnings: Vec<String> = report.findings().iter().map(line).collect();
    warnings.extend(content_warnings(path, text, &config));
    Ok((config, warnings))
}

/// Parses a configuration for the control API. Returns its warnings, one line each.
///
/// # Errors
/// A JSON document with `error`, and `findings` with positions and remedies.
pub(crate) fn parse_for_api(path: &Path, text: &str) -> Result<(Config, Vec<String>), Value> {
    let parsed = Config::parse_with(text, &path.display().to_string(), base_folder(path), &environment);
    let report = match &parsed {
        Ok((_, report)) | Err(report) => report,
    };
    if let Some(report) = named_paths::report_missing(report) {
        return Err(findings_document(&report));
    }
    parsed.map_err(|report| findings_document(&report))?;
    reparse(path, text).map_err(|failure| json!({ "error": failure.with_remedy() }))
}

/// Returns the JSON error, like that of [`parse_for_api`], for a valid configuration that cannot be used.
pub(crate) fn unusable_document(path: &Path, text: &str, failure: &Failure) -> Value {
    let report = place_at_directive(path, text, failure);
    let mut document = report.map_or_else(|| json!({}), |report| findings_document(&report));
    document["error"] = json!(failure.with_remedy());
    document
}

/// Converts a report to the JSON document of [`parse_for_api`].
fn findings_document(report: &config::Report) -> Value {
    let finding = |finding: &config::Finding| {
        let (line, column) = report.position(finding);
        json!({
            "severity": if finding.severity == config::Severity::Error { "error" } else { "warning" },
            "title": finding.title,
            "file": report.file_of(finding),
            "line": line,
            "column": column,
            "label": finding.label,
            "help": finding.help,
        })
    };
    let findings: Vec<Value> = report.findings().iter().map(finding).collect();
    json!({ "error": "the configuration would not be valid", "findings": findings })
}

/// Returns warnings for includes that match nothing, and for a configuration with neither sites nor streams.
fn content_warnings(path: &Path, text: &str, config: &Config) -> Vec<String> {
    let nothing = "there is no `[[site]]` and no `[[route]]`: every request is answered 404".to_owned();
    let serves_nothing = config.sites.is_empty() && config.streams.is_empty();
    unmatched_include_warnings(path, text).into_iter().chain(serves_nothing.then_some(nothing)).collect()
}

/// Parses a text whose warnings were shown before.
///
/// # Errors
/// The findings, or why a file cannot be read.
pub(crate) fn parse_silently(path: &Path, text: &str) -> Result<Config, Failure> {
    parse_with_warnings(path, text).map(|(config, _)| config)
}

/// Parses a configuration; missing files and directories are reported together with all other errors.
fn parse_with_paths(path: &Path, text: &str) -> Result<(Config, config::Report), Failure> {
    check_not_empty(path, text)?;
    let parsed = Config::parse_with(text, &path.display().to_string(), base_folder(path), &environment);
    let report = match &parsed {
        Ok((_, report)) | Err(report) => report,
    };
    if let Some(report) = named_paths::report_missing(report) {
        return Err(report.into());
    }
    parsed.map_err(Failure::from)
}

/// Converts the failure of a start or check to a finding at the directive that names the file or directory
/// that it is about, if there is one.
pub(crate) fn place_failure(path: &Path, failure: Failure) -> Failure {
    if failure.subject().is_none() {
        return failure;
    }
    let text = read_text(path).ok();
    text.and_then(|text| place_at_directive(path, &text, &failure)).map_or(failure, Failure::from)
}

/// Returns the failure as a finding at the directive that names what it is about.
fn place_at_directive(path: &Path, text: &str, failure: &Failure) -> Option<config::Report> {
    let (_, report) = parse_with_warnings(path, text).ok()?;
    named_paths::attach_to_path(&report.without_findings(), failure)
}

fn parse_with_warnings(path: &Path, text: &str) -> Result<(Config, config::Report), Failure> {
    check_not_empty(path, text)?;
    let parsed = Config::parse_with(text, &path.display().to_string(), base_folder(path), &environment);
    parsed.map_err(Failure::from)
}

fn check_not_empty(path: &Path, text: &str) -> Result<(), Failure> {
    // An empty file is more likely an accident than intended.
    if text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
        return Err(Failure::new(format!("{} says nothing: there is no directive in it", path.display())).help(
            "`[[route]]` and below it `files = \"/var/www\"` serve a folder; `komainu reference` lists what there is",
        ));
    }
    Ok(())
}

/// Returns the directory to which paths in a configuration are relative.
pub(crate) fn base_folder(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}
