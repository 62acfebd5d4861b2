//! Findings of the rules.

use std::fmt;

/// Violation of a rule, and its remedy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TidyFinding {
    /// Path relative to the repository.
    pub(crate) file: String,
    /// Line number, from 1.
    pub(crate) line: usize,
    pub(crate) message: String,
    pub(crate) remedy: &'static str,
    /// Whether the finding is a warning, which does not fail the check.
    pub(crate) is_warning: bool,
}

impl TidyFinding {
    /// Creates a finding that fails the check.
    pub(crate) fn new(
        file: &str,
        line: usize,
        message: impl Into<String>,
        remedy: &'static str,
    ) -> TidyFinding {
        TidyFinding { file: file.to_string(), line, message: message.into(), remedy, is_warning: false }
    }

    /// Turns the finding into a warning.
    pub(crate) fn into_warning(self) -> TidyFinding {
        TidyFinding { is_warning: true, ..self }
    }
}

impl fmt::Display for TidyFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TidyFinding { file, line, message: what, remedy, is_warning: warning } = self;
        let weight = if *warning { "warning: " } else { "" };
        write!(f, "{file}:{line}: {weight}{what}; {remedy}")
    }
}
