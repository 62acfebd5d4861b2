//! Findings of the rules.

use std::fmt;

/// Violation of a rule, and its remedy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TidyFinding {
    /// Path relative to the repository.
    pub(crate) file: String,
    /// Line number, from 1.
    pub(crate) line: usize,
    pub(crate) what: String,
    pub(crate) remedy: &'static str,
    /// Whether the finding is a warning, which does not fail the check.
    pub(crate) warning: bool,
}

impl TidyFinding {
    /// Creates a finding that fails the check.
    pub(crate) fn new(file: &str, line: usize, what: impl Into<String>, remedy: &'static str) -> TidyFinding {
        TidyFinding { file: file.to_string(), line, what: what.into(), remedy, warning: false }
    }

    /// Turns the finding into a warning.
    pub(crate) fn warning_only(self) -> TidyFinding {
        TidyFinding { warning: true, ..self }
    }
}

impl fmt::Display for TidyFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TidyFinding { file, line, what, remedy, warning } = self;
        let weight = if *warning { "warning: " } else { "" };
        write!(f, "{file}:{line}: {weight}{what}; {remedy}")
    }
}
