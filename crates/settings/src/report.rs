//! Findings about a configuration, rendered with the line and a caret.

use crate::joined_text::{ConfigLine, JoinedText, SourcePart};
use annotate_snippets::{
    Annotation, AnnotationKind, Group, Level, Renderer, Snippet, normalize_untrusted_str,
};
use failure::{Failure, Findings};
use std::fmt;
use std::ops::Range;
use std::path::PathBuf;

/// A place in the configuration's text, in bytes.
pub type TextSpan = Range<usize>;

/// Findings kept. After that, further ones are only counted.
const FINDINGS_MAX: usize = 50;

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// The configuration cannot be used.
    Error,
    /// The configuration can be used, but probably does not mean what was intended.
    Warning,
}

/// Finding: the fault, its place, and the remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Error or warning.
    pub severity: Severity,
    /// Description of the fault, in one line.
    pub title: String,
    /// The key or value at fault.
    pub span: TextSpan,
    /// The text at the caret.
    pub label: String,
    /// Related places, such as the first of two duplicates.
    pub(crate) related: Vec<(TextSpan, String)>,
    /// The remedies.
    pub help: Vec<String>,
}

impl Finding {
    /// Adds a remedy.
    pub fn help(&mut self, remedy: impl Into<String>) -> &mut Self {
        self.help.push(remedy.into());
        self
    }

    /// Returns the finding and its remedies in one line, for places that have no text to show.
    #[must_use]
    pub fn one_line(&self) -> String {
        let mut text = format!("{}: {}", self.title, self.label);
        for help in &self.help {
            text += &format!("; {help}");
        }
        text
    }

    /// Adds another place that belongs to the finding.
    pub fn related(&mut self, at: TextSpan, label: impl Into<String>) -> &mut Self {
        self.related.push((at, label.into()));
        self
    }
}

/// A file or folder that the configuration names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedPath {
    /// The directive, such as `site.route.files.root`.
    pub directive: String,
    /// The path, relative to the working directory.
    pub path: PathBuf,
    /// Place where the path is named.
    pub span: TextSpan,
}

/// A user or group of the system that the configuration names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedAccount {
    /// Name or number.
    pub name: String,
    /// Whether it is a group.
    pub is_group: bool,
    /// Place where the name is written.
    pub span: TextSpan,
}

/// Everything found in one configuration file. As an `Error` it displays as its plain rendering.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    sources: JoinedText,
    findings: Vec<Finding>,
    findings_max: usize,
    omitted_findings: usize,
    error_count: usize,
    named_resources: Box<NamedResources>,
}

/// Paths, users and groups that the configuration names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct NamedResources {
    paths: Vec<NamedPath>,
    accounts: Vec<NamedAccount>,
}

impl Report {
    /// Creates a report without findings. `name` is the name of the first file of `text`.
    pub(crate) fn new(name: &str, text: &str) -> Self {
        Self {
            sources: JoinedText::new(name, text),
            findings: Vec::new(),
            findings_max: FINDINGS_MAX,
            omitted_findings: 0,
            error_count: 0,
            named_resources: Box::default(),
        }
    }

    /// Keeps all findings: for a tree of many parts, each of which is judged by its own.
    pub fn keep_all(&mut self) {
        self.findings_max = usize::MAX;
    }

    /// Adds a finding and returns it, so that the caller can add details.
    pub(crate) fn push(&mut self, finding: Finding) -> &mut Finding {
        self.error_count += usize::from(finding.severity == Severity::Error);
        if self.findings.len() > self.findings_max {
            self.findings.pop();
            self.omitted_findings += 1;
        }
        self.findings.push(finding);
        self.last_finding()
    }

    /// Notes a file or folder that the configuration names.
    pub fn add_named_path(&mut self, named: NamedPath) {
        self.named_resources.paths.push(named);
    }

    /// The files and folders that the configuration names, as far as it could be read.
    #[must_use]
    pub fn named_paths(&self) -> &[NamedPath] {
        &self.named_resources.paths
    }

    /// Returns the paths named in the same file at or below `line`, in order.
    pub fn named_paths_from(&self, line: &ConfigLine) -> impl Iterator<Item = &NamedPath> {
        let is_it = |file: &&SourcePart| line.file.as_ref().is_none_or(|name| file.name == *name);
        let file = self.sources.files().iter().find(is_it);
        let place = file.map(|file| {
            let text = &self.sources.text[file.start..file.end];
            let lines = text.split_inclusive('\n').take(line.number.saturating_sub(1) as usize);
            file.start + lines.map(str::len).sum::<usize>()..file.end
        });
        let place = place.unwrap_or_default();
        self.named_resources.paths.iter().filter(move |named| place.contains(&named.span.start))
    }

    /// Notes a user or group that the configuration names.
    pub(crate) fn add_named_account(&mut self, named: NamedAccount) {
        self.named_resources.accounts.push(named);
    }

    /// The users and groups that the configuration names, as far as it could be read.
    #[must_use]
    pub fn named_accounts(&self) -> &[NamedAccount] {
        &self.named_resources.accounts
    }

    /// Returns the report without findings: only the paths, users and groups that the text names.
    #[must_use]
    pub fn without_findings(mut self) -> Self {
        self.findings.clear();
        (self.omitted_findings, self.error_count) = (0, 0);
        self
    }

    /// The report with further errors: a place, a title and a remedy.
    #[must_use]
    pub fn with_errors(mut self, errors: Vec<(TextSpan, String, String)>) -> Self {
        for (at, title, remedy) in errors {
            let label = "named here".to_owned();
            let severity = Severity::Error;
            let related = Vec::new();
            let help = if remedy.is_empty() { Vec::new() } else { vec![remedy] };
            self.push(Finding { severity, title, span: at, label, related, help });
        }
        self.finish()
    }

    /// Returns the report with further warnings: each a place, a title, the text at the caret, and a remedy.
    #[must_use]
    pub fn with_warnings(mut self, warnings: Vec<(TextSpan, String, &'static str, String)>) -> Self {
        for (at, title, label, remedy) in warnings {
            let severity = Severity::Warning;
            let related = Vec::new();
            self.push(Finding {
                severity,
                title,
                span: at,
                label: label.to_owned(),
                related,
                help: vec![remedy],
            });
        }
        self.finish()
    }

    /// The text and its files.
    #[must_use]
    pub fn sources(&self) -> &JoinedText {
        &self.sources
    }

    /// The finding that was added last.
    ///
    /// # Panics
    /// Panics if the report has no findings.
    pub(crate) fn last_finding(&mut self) -> &mut Finding {
        self.findings.last_mut().expect("one was added")
    }

    /// The findings so far.
    pub fn findings_mut(&mut self) -> &mut [Finding] {
        &mut self.findings
    }

    /// Removes findings that repeat another one at the same place.
    pub fn remove_repeated(&mut self) {
        let mut kept: Vec<Finding> = Vec::new();
        for finding in self.findings.drain(..) {
            if !kept.iter().any(|other| other.span == finding.span && other.title == finding.title) {
                kept.push(finding);
            } else if finding.severity == Severity::Error {
                self.error_count -= 1;
            }
        }
        self.findings = kept;
    }

    /// Sorts the findings by their place and removes superfluous ones.
    #[must_use]
    pub fn finish(mut self) -> Self {
        self.omitted_findings += self.findings.len().saturating_sub(self.findings_max);
        self.findings.truncate(self.findings_max);
        self.findings.sort_by_key(|finding| finding.span.start);
        self
    }

    /// The findings in the order of the file, at most 50.
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// True when nothing was found.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.findings.is_empty()
    }

    /// The number of errors, including those that were not kept.
    #[must_use]
    pub fn error_count(&self) -> usize {
        self.error_count
    }

    /// The name of the file that a finding is in.
    #[must_use]
    pub fn file_of(&self, finding: &Finding) -> &str {
        &self.sources.file_at(finding.span.start).name
    }

    /// Line and column of a finding, both from 1; the column counts characters.
    pub fn position(&self, finding: &Finding) -> (usize, usize) {
        let (file, text) = self.file_text_at(finding.span.start);
        let start = char_boundary(text, finding.span.start.saturating_sub(file.start));
        let (line, line_start) = line_of(text, start);
        (line, text[line_start..start].chars().count() + 1)
    }

    /// All findings as text for a terminal: message, `file:line:column`, the line with a caret, the remedies. The
    /// decoration is plain ASCII; with ANSI colours if `colour` is set.
    pub fn render(&self, colour: bool) -> String {
        let renderer = if colour { Renderer::styled() } else { Renderer::plain() };
        let mut out = String::new();
        for finding in &self.findings {
            out.push_str(&renderer.render(&[self.render_group(finding)]));
            out.push_str("\n\n");
        }
        if self.omitted_findings > 0 {
            out.push_str(&format!("... and {} more\n", self.omitted_findings));
        }
        out
    }

    fn render_group<'a>(&'a self, finding: &'a Finding) -> Group<'a> {
        let level = match finding.severity {
            Severity::Error => Level::ERROR,
            Severity::Warning => Level::WARNING,
        };
        let mut group = Group::with_title(level.primary_title(&*finding.title));
        let places = std::iter::once((&finding.span, &finding.label, AnnotationKind::Primary));
        let related = finding.related.iter().map(|(at, label)| (at, label, AnnotationKind::Context));
        let mut places: Vec<_> = places.chain(related).collect();
        // Each file is a snippet of its own.
        while let Some(file) = places.first().map(|(at, ..)| self.file_text_at(at.start).0.start) {
            let (here, elsewhere): (Vec<_>, Vec<_>) =
                places.into_iter().partition(|(at, ..)| self.file_text_at(at.start).0.start == file);
            group = group.element(self.render_snippet(&here));
            places = elsewhere;
        }
        for remedy in &finding.help {
            group = group.element(Level::HELP.message(replace_controls(remedy)));
        }
        group
    }

    /// The file of this byte, and its text.
    fn file_text_at(&self, at: usize) -> (&SourcePart, &str) {
        let file = self.sources.file_at(at);
        (file, &self.sources.text[file.start..file.end])
    }

    /// The lines of places in one file.
    fn render_snippet<'a>(
        &'a self,
        places: &[(&'a TextSpan, &'a String, AnnotationKind)],
    ) -> Snippet<'a, Annotation<'a>> {
        let (file, text) = self.file_text_at(places.first().map_or(0, |(at, ..)| at.start));
        let inside = |at: usize| char_boundary(text, at.saturating_sub(file.start));
        let first = places.iter().map(|(at, ..)| at.start).min().unwrap_or(0);
        let last = places.iter().map(|(at, ..)| at.end).max().unwrap_or(0);
        // Only the lines concerned are passed to the renderer, because it scans all of its input.
        let (line, start) = line_of(text, inside(first));
        let end = inside(last);
        let end = text[end..].find('\n').map_or(text.len(), |at| end + at);
        let mut snippet = Snippet::source(&text[start..end]).line_start(line).path(&*file.name);
        for (at, label, kind) in places {
            let local = inside(at.start) - start..inside(at.end) - start;
            snippet = snippet.annotation(kind.span(local).label(replace_controls(label)));
        }
        snippet
    }
}

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.render(false))
    }
}

impl std::error::Error for Report {}

impl Findings for Report {
    fn render(&self, colour: bool) -> String {
        self.render(colour)
    }
}

impl From<Report> for Failure {
    fn from(report: Report) -> Failure {
        Failure::of_findings(report)
    }
}

/// Replaces control characters of the file, so that they do not reach the terminal.
fn replace_controls(text: &str) -> String {
    normalize_untrusted_str(text)
}

/// The nearest character boundary at or before `at`.
fn char_boundary(text: &str, at: usize) -> usize {
    let at = at.min(text.len());
    (0..=at).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0)
}

/// The number, from 1, of the line that contains byte `at`, and the line's first byte.
fn line_of(text: &str, at: usize) -> (usize, usize) {
    let before = &text[..at];
    let line = before.bytes().filter(|&byte| byte == b'\n').count() + 1;
    (line, before.rfind('\n').map_or(0, |newline| newline + 1))
}
