//! What a rule has to say.

use std::fmt;

/// One breach of one rule, and the way out.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    /// Relative to the repository.
    pub(crate) file: String,
    /// From 1.
    pub(crate) line: usize,
    pub(crate) what: String,
    pub(crate) remedy: &'static str,
    /// Whether it is only told.
    pub(crate) warning: bool,
}

impl Finding {
    /// A breach that fails the check.
    pub(crate) fn new(file: &str, line: usize, what: impl Into<String>, remedy: &'static str) -> Finding {
        Finding { file: file.to_string(), line, what: what.into(), remedy, warning: false }
    }

    /// The same, only told.
    pub(crate) fn told_only(self) -> Finding {
        Finding { warning: true, ..self }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding { file, line, what, remedy, warning } = self;
        let weight = if *warning { "warning: " } else { "" };
        write!(f, "{file}:{line}: {weight}{what}; {remedy}")
    }
}
