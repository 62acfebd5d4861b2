//! A row of the table.

/// Directives of another server, and what takes their place here.
#[derive(Debug, Clone, Copy)]
pub struct ForeignDirective {
    /// Names, as the other server writes them; they may have arguments. A name in parentheses is a description.
    pub names: &'static [&'static str],
    /// Block in which the names are meant; empty if they mean the same everywhere.
    pub context: &'static str,
    /// Equivalent.
    pub ours: Ours,
    /// Page below `docs` about the subject, perhaps with an anchor; empty if there is none.
    pub page: &'static str,
    /// Text of the link to the page.
    pub subject: &'static str,
    /// Whether a name is the directive of this server wherever it is found. Not so for words such as `status`,
    /// for which `check` has no hint.
    pub is_distinct: bool,
}

/// Replacement of a directive, or the reason why there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ours {
    /// The equivalent; completes "here this is …" and "write …".
    Here(&'static str),
    /// Nothing has to be written; completes "not needed: …".
    NotNeeded(&'static str),
    /// There is no equivalent: the reason, and what to do instead.
    NotThere(&'static str),
}

const fn row(names: &'static [&'static str], ours: Ours) -> ForeignDirective {
    ForeignDirective { names, context: "", ours, page: "", subject: "", is_distinct: true }
}

/// Directives with an equivalent.
pub(crate) const fn here(names: &'static [&'static str], ours: &'static str) -> ForeignDirective {
    row(names, Ours::Here(ours))
}

/// Directives for which nothing has to be written.
pub(crate) const fn not_needed(names: &'static [&'static str], why: &'static str) -> ForeignDirective {
    row(names, Ours::NotNeeded(why))
}

/// Directives without an equivalent.
pub(crate) const fn not_there(names: &'static [&'static str], why: &'static str) -> ForeignDirective {
    row(names, Ours::NotThere(why))
}

impl ForeignDirective {
    /// The names have this meaning in one block alone.
    pub(crate) const fn within(mut self, context: &'static str) -> Self {
        self.context = context;
        self
    }

    /// A page below `docs` is about the subject.
    pub(crate) const fn see(mut self, subject: &'static str, page: &'static str) -> Self {
        self.subject = subject;
        self.page = page;
        self
    }

    /// The names are words that also mean something else.
    pub(crate) const fn ambiguous(mut self) -> Self {
        self.is_distinct = false;
        self
    }
}
