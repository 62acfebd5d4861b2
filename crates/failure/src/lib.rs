//! The error of a start, a check or a command: a value until a person reads it.
//!
//! This crate owns [`Failure`], its parts and the text that they become. It never opens a file, reads a text
//! back, or writes to a terminal: `main` of the crate `komainu` renders the failure of a command once.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Findings about a text, each with its place, that know how they are shown.
pub trait Findings: fmt::Debug + Send + Sync + 'static {
    /// Returns the findings as text for a terminal, with ANSI colours if `colour` is set.
    fn render(&self, colour: bool) -> String;
}

/// Error that a person reads: a title, and a place, cause and remedy if there are any.
///
/// Displays on one line as `FILE:LINE:COLUMN: TITLE: CAUSE`, without the remedy; a failure of findings displays
/// as these without colours. An [`io::Error`] can carry a failure: each is converted to the other without loss.
#[derive(Debug, Clone)]
pub struct Failure(Box<FailureParts>);

#[derive(Debug, Clone)]
struct FailureParts {
    title: String,
    cause: Option<String>,
    place: Option<TextPlace>,
    subject: Option<PathBuf>,
    named_at: Option<(Option<String>, u32)>,
    help: Option<String>,
    findings: Option<Arc<dyn Findings>>,
}

/// Place in a file that a person can open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextPlace {
    /// The file, as it is shown.
    pub file: String,
    /// Counted from 1.
    pub line: usize,
    /// Counted from 1, in characters.
    pub column: Option<usize>,
}

impl fmt::Display for TextPlace {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}", self.file, self.line)?;
        self.column.iter().try_for_each(|column| write!(out, ":{column}"))
    }
}

impl Failure {
    /// A failure with this title. Errors of other crates can be titles themselves: `.map_err(Failure::new)`. A
    /// title has no prefix such as `error: `, which is added when it is rendered.
    #[must_use]
    pub fn new(title: impl fmt::Display) -> Failure {
        Failure(Box::new(FailureParts {
            title: title.to_string(),
            cause: None,
            place: None,
            subject: None,
            named_at: None,
            help: None,
            findings: None,
        }))
    }

    /// A failure that consists of findings, which say everything themselves.
    #[must_use]
    pub fn of_findings(findings: impl Findings) -> Failure {
        let mut failure = Failure::new("invalid configuration");
        failure.0.findings = Some(Arc::new(findings));
        failure
    }

    /// Adds the place in a file, shown before the title. `line` and `column` count from 1.
    #[must_use]
    pub fn at(mut self, file: &Path, line: usize, column: impl Into<Option<usize>>) -> Failure {
        self.0.place = Some(TextPlace { file: file.display().to_string(), line, column: column.into() });
        self
    }

    /// Adds the remedy, shown as `help: …` below the title.
    #[must_use]
    pub fn help(mut self, remedy: impl Into<String>) -> Failure {
        self.0.help = Some(remedy.into());
        self
    }

    /// Adds the text of the error that caused this one, shown after the title.
    #[must_use]
    pub fn caused_by(mut self, error: impl fmt::Display) -> Failure {
        self.0.cause = Some(error.to_string());
        self
    }

    /// Adds the file or directory that the failure is about, by which a configuration that names it is
    /// searched. It is not shown: the title names it where necessary.
    #[must_use]
    pub fn about(mut self, subject: impl Into<PathBuf>) -> Failure {
        self.0.subject = Some(subject.into());
        self
    }

    /// Adds the line of the configuration below which the subject is named; `file` is the included file, if
    /// it is one. It is not shown.
    #[must_use]
    pub fn named_at(mut self, file: Option<String>, line: u32) -> Failure {
        self.0.named_at = Some((file, line));
        self
    }

    /// Puts what was attempted before the title: the old title becomes a part of the cause. Findings stay as
    /// they are.
    #[must_use]
    pub fn context(mut self, attempted: impl fmt::Display) -> Failure {
        self.0.cause = Some(self.line());
        self.0.place = None;
        self.0.title = attempted.to_string();
        self
    }

    /// The title, without place, cause and remedy.
    #[must_use]
    pub fn title(&self) -> &str {
        &self.0.title
    }

    /// The remedy.
    #[must_use]
    pub fn remedy(&self) -> Option<&str> {
        self.0.help.as_deref()
    }

    /// The place in a file.
    #[must_use]
    pub fn place(&self) -> Option<&TextPlace> {
        self.0.place.as_ref()
    }

    /// The file or directory that the failure is about.
    #[must_use]
    pub fn subject(&self) -> Option<&Path> {
        self.0.subject.as_deref()
    }

    /// The included file, if it is one, and the line below which the subject is named.
    #[must_use]
    pub fn naming_line(&self) -> Option<(Option<&str>, u32)> {
        self.0.named_at.as_ref().map(|(file, line)| (file.as_deref(), *line))
    }

    /// The findings, if the failure consists of these.
    #[must_use]
    pub fn findings(&self) -> Option<&dyn Findings> {
        self.0.findings.as_deref()
    }

    /// Returns place, title and cause on one line.
    fn line(&self) -> String {
        let place = self.0.place.iter().map(ToString::to_string);
        let parts: Vec<String> =
            place.chain([self.0.title.clone()]).chain(self.0.cause.iter().cloned()).collect();
        parts.join(": ")
    }

    /// Returns the failure with its remedy on a line of its own, for logs and other programs.
    #[must_use]
    pub fn with_remedy(&self) -> String {
        match (&self.0.findings, &self.0.help) {
            (None, Some(help)) => format!("{self}\nhelp: {help}"),
            _ => self.to_string(),
        }
    }

    /// Returns the failure as a person reads it: `error: …` and the remedy, or the findings, with ANSI colours
    /// if `colour` is set. Control characters are kept, except those of findings.
    #[must_use]
    pub fn render(&self, colour: bool) -> String {
        match &self.0.findings {
            Some(findings) => findings.render(colour),
            None => format!("error: {}", self.with_remedy()),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.findings {
            Some(findings) => out.write_str(&findings.render(false)),
            None => out.write_str(&self.line()),
        }
    }
}

impl Error for Failure {}

/// Failures are equal if a person reads the same text.
impl PartialEq for Failure {
    fn eq(&self, other: &Failure) -> bool {
        self.with_remedy() == other.with_remedy()
    }
}

impl From<String> for Failure {
    fn from(title: String) -> Failure {
        Failure::new(title)
    }
}

impl From<&str> for Failure {
    fn from(title: &str) -> Failure {
        Failure::new(title)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        error.downcast::<Failure>().unwrap_or_else(Failure::new)
    }
}

impl From<Failure> for io::Error {
    fn from(failure: Failure) -> io::Error {
        io::Error::other(failure)
    }
}

/// Parts of a failure, added to an I/O error that carries it from then on. Its kind stays.
pub trait IoFailure {
    /// Puts what was attempted before the error.
    #[must_use]
    fn attempting(self, attempted: impl fmt::Display) -> io::Error;

    /// Adds the file or directory that the error is about ([`Failure::about`]).
    #[must_use]
    fn about(self, subject: impl Into<PathBuf>) -> io::Error;
}

impl IoFailure for io::Error {
    fn attempting(self, attempted: impl fmt::Display) -> io::Error {
        io::Error::new(self.kind(), Failure::from(self).context(attempted))
    }

    fn about(self, subject: impl Into<PathBuf>) -> io::Error {
        io::Error::new(self.kind(), Failure::from(self).about(subject))
    }
}

/// Results whose error can be told what was attempted.
pub trait FailureContext<T> {
    /// Adds what was attempted: `read(path).context("cannot read the keys")?`.
    ///
    /// # Errors
    /// The failure of the result, if it has one.
    fn context(self, attempted: impl fmt::Display) -> Result<T, Failure>;

    /// Adds what was attempted, in words that are made only if it failed.
    ///
    /// # Errors
    /// The failure of the result, if it has one.
    fn with_context<D: fmt::Display>(self, attempted: impl FnOnce() -> D) -> Result<T, Failure>;
}

impl<T, E: Into<Failure>> FailureContext<T> for Result<T, E> {
    fn context(self, attempted: impl fmt::Display) -> Result<T, Failure> {
        self.map_err(|error| error.into().context(attempted))
    }

    fn with_context<D: fmt::Display>(self, attempted: impl FnOnce() -> D) -> Result<T, Failure> {
        self.map_err(|error| error.into().context(attempted()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Caret;

    impl Findings for Caret {
        fn render(&self, colour: bool) -> String {
            format!("error: here{}", if colour { ", in red" } else { "" })
        }
    }

    #[test]
    fn parts_are_rendered_in_order() {
        let failure = Failure::new("no such key")
            .at(Path::new("plan.toml"), 3, 7)
            .caused_by("the table is empty")
            .help("name one");
        assert_eq!(failure.to_string(), "plan.toml:3:7: no such key: the table is empty");
        assert_eq!(
            failure.render(true),
            "error: plan.toml:3:7: no such key: the table is empty\nhelp: name one"
        );
        let failure = failure.context("cannot load the plan");
        assert_eq!(failure.title(), "cannot load the plan");
        assert_eq!(
            failure.with_remedy(),
            "cannot load the plan: plan.toml:3:7: no such key: the table is empty\nhelp: name one"
        );
    }

    #[test]
    fn findings_speak_for_themselves() {
        let failure = Failure::of_findings(Caret).context("a reload").help("unused");
        assert_eq!(
            (failure.to_string(), failure.render(true)),
            ("error: here".into(), "error: here, in red".into())
        );
        assert_eq!(failure.with_remedy(), "error: here");
    }

    #[test]
    fn failure_passes_through_an_io_error() {
        let failure = Failure::new("no such user").help("make one").about("/etc/passwd").named_at(None, 4);
        let back = Failure::from(io::Error::new(io::ErrorKind::NotFound, failure.clone()));
        assert_eq!(back, failure);
        assert_eq!((back.subject(), back.naming_line()), (Some(Path::new("/etc/passwd")), Some((None, 4))));
        let error = io::Error::new(io::ErrorKind::StorageFull, "disk full").about("/srv").attempting("`log`");
        assert_eq!(
            (error.kind(), error.to_string()),
            (io::ErrorKind::StorageFull, "`log`: disk full".into())
        );
        assert_eq!(Failure::from(error).subject(), Some(Path::new("/srv")));
        let plain: Result<(), io::Error> = Err(io::Error::other("disk full"));
        assert_eq!(plain.context("cannot write"), Err(Failure::new("cannot write: disk full")));
    }
}
