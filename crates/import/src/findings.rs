//! Outcome of each directive of a foreign configuration.

use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt::{self, Write};

use other_servers::{ForeignDirective, Ours};

/// Outcome of a directive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ImportVerdict {
    /// Translated without a difference, or not needed.
    Translated,
    /// Translated with a difference that the remark describes.
    Differs,
    /// No equivalent in Komainu; the remark describes the alternative.
    Impossible,
}

/// A directive of the source and its outcome.
#[derive(Debug, Clone)]
pub struct ImportRemark {
    /// File of the directive.
    pub file: String,
    /// Line of the directive, from 1.
    pub line: usize,
    /// The directive, shortened.
    pub directive: String,
    /// Outcome of the directive.
    pub verdict: ImportVerdict,
    /// Reasons, sentences without a full stop. May be empty for translated directives.
    pub reasons: Vec<String>,
}

impl fmt::Display for ImportRemark {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}: {}", self.file, self.line, self.directive)?;
        self.reasons.iter().try_for_each(|reason| write!(out, "\n    {reason}"))
    }
}

/// A translated configuration.
#[derive(Debug, Clone)]
pub struct ImportResult {
    /// The text of `komainu.toml`.
    pub toml: String,
    /// Directives of the source, in the order in which they were read.
    pub remarks: Vec<ImportRemark>,
    /// Differences between the servers that do not depend on the source.
    pub general_differences: &'static [&'static str],
}

impl ImportResult {
    /// The report for the user: directives without a translation first, then those translated with a
    /// difference, then the others.
    pub fn report(&self) -> String {
        let mut out = String::new();
        let parts = [
            (ImportVerdict::Impossible, "Not possible"),
            (ImportVerdict::Differs, "Translated with a difference"),
            (ImportVerdict::Translated, "Translated"),
        ];
        for (verdict, title) in parts {
            let found: Vec<&ImportRemark> =
                self.remarks.iter().filter(|one| one.verdict == verdict).collect();
            let _ = writeln!(out, "{title} ({}):", found.len());
            for remark in found {
                let _ = writeln!(out, "  {}", remark.to_string().replace('\n', "\n  "));
            }
            out.push('\n');
        }
        if !self.general_differences.is_empty() {
            out.push_str("What differs between the servers in any case:\n");
            self.general_differences.iter().for_each(|one| {
                let _ = writeln!(out, "  - {one}");
            });
        }
        out
    }

    /// Returns the number of directives with this outcome.
    pub fn count(&self, verdict: ImportVerdict) -> usize {
        self.remarks.iter().filter(|remark| remark.verdict == verdict).count()
    }
}

/// The reason why nothing was translated: a file cannot be read or is not of the expected kind.
#[derive(Debug, Clone)]
pub struct ImportError {
    /// The file, or empty.
    pub file: String,
    /// The line, from 1; 0 if the error does not refer to a line.
    pub line: usize,
    /// Description of the error.
    pub message: String,
}

impl ImportError {
    pub(crate) fn new(file: &str, line: usize, message: impl Into<String>) -> Self {
        Self { file: file.to_owned(), line, message: message.into() }
    }
}

impl fmt::Display for ImportError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.file.as_str(), self.line) {
            ("", _) => out.write_str(&self.message),
            (file, 0) => write!(out, "{file}: {}", self.message),
            (file, line) => write!(out, "{file}:{line}: {}", self.message),
        }
    }
}

impl std::error::Error for ImportError {}

impl From<String> for ImportError {
    fn from(message: String) -> Self {
        Self { file: String::new(), line: 0, message }
    }
}

/// Outcome of a directive, with its reasons: sentences without a full stop.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) verdict: ImportVerdict,
    pub(crate) reasons: Vec<Cow<'static, str>>,
}

impl Outcome {
    /// Translated without a difference.
    pub(crate) const TRANSLATED: Self = Self { verdict: ImportVerdict::Translated, reasons: Vec::new() };

    /// Nothing has to be translated.
    pub(crate) fn not_needed(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::TRANSLATED.with(ImportVerdict::Translated, reason)
    }

    /// Translated with a difference.
    pub(crate) fn differs(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::TRANSLATED.with(ImportVerdict::Differs, reason)
    }

    /// No equivalent; the reason names the alternative.
    pub(crate) fn not_possible(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::TRANSLATED.with(ImportVerdict::Impossible, reason)
    }

    fn with(mut self, verdict: ImportVerdict, reason: impl Into<Cow<'static, str>>) -> Self {
        self.verdict = self.verdict.max(verdict);
        self.reasons.push(reason.into());
        self
    }
}

/// Returns the outcome of a directive that is not translated, from the table of other servers.
pub(crate) fn advice_outcome(directive: &ForeignDirective) -> Outcome {
    match directive.ours {
        Ours::NotNeeded(reason) => Outcome::not_needed(format!("not needed: {reason}")),
        Ours::NotThere(reason) => Outcome::not_possible(reason),
        Ours::Here(equivalent) => {
            let page = match directive.page.split('#').next() {
                Some("") | None => String::new(),
                Some(page) => format!(": docs/{page}"),
            };
            Outcome::not_possible(format!("write {equivalent}{page}"))
        }
    }
}

/// Reason why a part of a foreign configuration has no equivalent: a sentence without a full stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Untranslatable(Cow<'static, str>);

impl fmt::Display for Untranslatable {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl std::error::Error for Untranslatable {}

impl AsRef<str> for Untranslatable {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl From<&'static str> for Untranslatable {
    fn from(reason: &'static str) -> Self {
        Self(Cow::Borrowed(reason))
    }
}

impl From<String> for Untranslatable {
    fn from(reason: String) -> Self {
        Self(Cow::Owned(reason))
    }
}

/// The number of a directive in a [`ImportLedger`].
pub(crate) type EntryIndex = usize;

#[derive(Debug)]
struct LedgerEntry {
    file: String,
    line: usize,
    directive: String,
    verdict: Option<ImportVerdict>,
    reasons: Vec<String>,
}

/// Every directive that was read, with its outcome. A directive without one is reported as not possible, so
/// none is lost.
#[derive(Debug, Default)]
pub(crate) struct ImportLedger(RefCell<Vec<LedgerEntry>>);

/// Remark for a directive without an outcome.
const UNTRANSLATED_REMARK: &str = "nothing was made of this: write by hand what it is for";
/// Maximum number of characters of a directive in a report.
const SHOWN_MAX: usize = 100;

impl ImportLedger {
    /// Adds a directive that was read.
    pub(crate) fn add_entry(&self, file: &str, line: usize, directive: &str) -> EntryIndex {
        let mut items = self.0.borrow_mut();
        let mut shown: String = directive.chars().take(SHOWN_MAX).collect();
        if shown.len() < directive.len() {
            shown.push('…');
        }
        let shown = shown.replace(['\n', '\r'], " ");
        items.push(LedgerEntry {
            file: file.to_owned(),
            line,
            directive: shown,
            verdict: None,
            reasons: Vec::new(),
        });
        items.len() - 1
    }

    fn set_verdict(&self, entry: EntryIndex, verdict: ImportVerdict, reason: &str) {
        let mut items = self.0.borrow_mut();
        let Some(item) = items.get_mut(entry) else { return };
        item.verdict = Some(item.verdict.map_or(verdict, |before| before.max(verdict)));
        if !reason.is_empty() && !item.reasons.iter().any(|one| one == reason) {
            item.reasons.push(reason.to_owned());
        }
    }

    /// Enters the outcome of a directive. A directive that is entered several times has the worst of its verdicts,
    /// and all reasons.
    pub(crate) fn enter(&self, entry: EntryIndex, outcome: &Outcome) {
        if outcome.verdict == ImportVerdict::Translated {
            self.mark_translated(entry);
            outcome.reasons.iter().for_each(|reason| self.mark_not_needed(entry, reason));
        } else {
            outcome.reasons.iter().for_each(|reason| self.set_verdict(entry, outcome.verdict, reason));
        }
    }

    /// Marks a directive as translated without a difference.
    pub(crate) fn mark_translated(&self, entry: EntryIndex) {
        self.set_verdict(entry, ImportVerdict::Translated, "");
    }

    /// Marks a directive as not needed, unless it has another verdict already.
    pub(crate) fn mark_not_needed(&self, entry: EntryIndex, reason: &str) {
        let is_judged =
            self.0.borrow().get(entry).is_some_and(|item| item.verdict > Some(ImportVerdict::Translated));
        if !is_judged {
            self.set_verdict(entry, ImportVerdict::Translated, reason);
        }
    }

    /// Formats the comment above a route: `CHECK FILE:LINE: TEXT.`
    pub(crate) fn check_comment(&self, line: usize, text: &str) -> String {
        let items = self.0.borrow();
        let file = items.first().map_or("", |item| item.file.as_str());
        format!("CHECK {file}:{line}: {text}.")
    }

    /// Marks a directive as translated with a difference.
    pub(crate) fn mark_different(&self, entry: EntryIndex, reason: impl AsRef<str>) {
        self.set_verdict(entry, ImportVerdict::Differs, reason.as_ref());
    }

    /// Marks a directive as not possible; `reason` says why and names the alternative.
    pub(crate) fn mark_impossible(&self, entry: EntryIndex, reason: impl AsRef<str>) {
        self.set_verdict(entry, ImportVerdict::Impossible, reason.as_ref());
    }

    /// Whether the directive has a verdict.
    pub(crate) fn is_marked(&self, entry: EntryIndex) -> bool {
        self.0.borrow().get(entry).is_some_and(|item| item.verdict.is_some())
    }

    /// Whether the directive was reported as not possible.
    pub(crate) fn is_impossible(&self, entry: EntryIndex) -> bool {
        self.0.borrow().get(entry).is_some_and(|item| item.verdict == Some(ImportVerdict::Impossible))
    }

    /// Directives without a verdict.
    pub(crate) fn entries_without_verdict(&self) -> Vec<EntryIndex> {
        let items = self.0.borrow();
        (0..items.len()).filter(|entry| items[*entry].verdict.is_none()).collect()
    }

    /// Marks a directive as not translated.
    pub(crate) fn mark_untranslated(&self, entry: EntryIndex) {
        self.mark_impossible(entry, UNTRANSLATED_REMARK);
    }

    /// The comment that asks the user to translate the directive by hand, if it is not possible.
    pub(crate) fn manual_comment(&self, entry: EntryIndex) -> Option<String> {
        let items = self.0.borrow();
        let item = items.get(entry).filter(|item| item.verdict == Some(ImportVerdict::Impossible))?;
        let reason = item.reasons.first().map_or("", String::as_str);
        Some(format!("CHECK {}:{}: `{}`: {reason}.", item.file, item.line, item.directive))
    }

    /// Remarks on all directives, in the order in which they were read.
    pub(crate) fn into_remarks(self) -> Vec<ImportRemark> {
        let remark = |item: LedgerEntry| {
            let unread = item.verdict.is_none();
            let mut reasons = item.reasons;
            if unread {
                reasons.push(UNTRANSLATED_REMARK.to_owned());
            }
            ImportRemark {
                file: item.file,
                line: item.line,
                directive: item.directive,
                verdict: item.verdict.unwrap_or(ImportVerdict::Impossible),
                reasons,
            }
        };
        self.0.into_inner().into_iter().map(remark).collect()
    }
}
