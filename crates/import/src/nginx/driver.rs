//! The driver of the table of directives: finds the row of each directive, checks where it stands and how many
//! arguments it has, has it translated, and enters the outcome in the ledger.

use other_servers::{ForeignDirective, NGINX};

use super::directive::{Contexts, Part};
use super::scope::Scope;
use super::translation::{AppliedDirective, DirectiveRow, Remark, Translation, Treatment};
use super::tree::{NginxDirective, is_data_block};
use crate::draft::TomlSection;
use crate::findings::{ImportLedger, ImportVerdict, Outcome, advice_outcome};

/// Beginnings of the names of directives that refuse no requests: those that are not in the table are harmless
/// too.
const HARMLESS_PREFIXES: [&str; 24] = [
    "add_trailer",
    "autoindex",
    "charset",
    "fastcgi_cache",
    "geoip",
    "gzip",
    "http2",
    "http3",
    "init_by_lua",
    "init_worker_by_lua",
    "limit_rate",
    "log_",
    "lua_",
    "mirror",
    "open_file_cache",
    "open_log_file_cache",
    "proxy_cache",
    "proxy_cookie_",
    "proxy_headers",
    "proxy_next_upstream",
    "proxy_store",
    "quic_",
    "sub_filter",
    "userid",
];

impl Remark {
    /// Returns the remark as an outcome.
    pub(crate) fn to_outcome(self) -> Outcome {
        match self {
            Self::NotNeeded(reason) => Outcome::not_needed(reason),
            Self::Differs(reason) => Outcome::differs(reason),
        }
    }
}

impl DirectiveRow {
    /// Returns the part that reads the directive; `None` if none does.
    pub(crate) fn part(&self) -> Option<Part> {
        match self.treatment {
            Treatment::Each(part, _)
            | Treatment::Noted(part)
            | Treatment::Different(part)
            | Treatment::Together(part) => Some(part),
            Treatment::Untranslated | Treatment::Block => None,
        }
    }

    /// Returns what `other_servers` says of the directive, as an outcome.
    pub(crate) fn advice(&self) -> Outcome {
        let is_stream = |directive: &ForeignDirective| directive.context == "stream";
        let mut rows: Vec<&ForeignDirective> =
            other_servers::find(&[&NGINX], self.name).map(|(_, directive)| directive).collect();
        rows.sort_by_key(|directive| is_stream(directive) != (self.contexts == Contexts::STREAMS));
        rows.first().map_or(Outcome::TRANSLATED, |directive| advice_outcome(directive))
    }
}

/// Whether a route may be served without a directive of this name.
pub(crate) fn is_harmless(directives: &[DirectiveRow], name: &str) -> bool {
    match directives.iter().find(|row| row.name == name) {
        Some(row) => row.is_harmless,
        None => HARMLESS_PREFIXES.iter().any(|start| name.starts_with(start)),
    }
}

/// Enters the outcomes of all directives that do not depend on other directives: those that nginx itself would
/// refuse, and those without a translation. `context` is that of `block`.
pub(crate) fn enter_untranslated(
    directives: &[DirectiveRow],
    ledger: &ImportLedger,
    block: &[NginxDirective],
    context: Contexts,
) {
    let is_opaque = context.includes(Contexts::OPAQUE);
    for one in block {
        let mut rows = directives.iter().filter(|row| row.name == one.name).peekable();
        let is_known = rows.peek().is_some();
        match rows.find(|row| is_opaque || row.contexts.includes(context)) {
            Some(row) => {
                let count = one.args.len();
                if !is_opaque && !row.arguments.accepts(count) {
                    let reason = format!("nginx refuses it: it takes {}, not {count}", row.arguments);
                    ledger.enter(one.entry, &Outcome::not_possible(reason));
                }
                match row.treatment {
                    Treatment::Untranslated if row.neutral == Some(one.first_arg()) => {
                        ledger.enter(one.entry, &Outcome::TRANSLATED);
                    }
                    Treatment::Untranslated => ledger.enter(one.entry, &row.advice()),
                    Treatment::Block => ledger.enter(one.entry, &Outcome::TRANSLATED),
                    Treatment::Each(..)
                    | Treatment::Noted(_)
                    | Treatment::Different(_)
                    | Treatment::Together(_) => {}
                }
            }
            None if is_known => {
                let reason = "nginx refuses it: it is not allowed in this block";
                ledger.enter(one.entry, &Outcome::not_possible(reason));
            }
            None => {}
        }
        if !is_data_block(&one.name) {
            enter_untranslated(directives, ledger, one.block_directives(), context.within(&one.name));
        }
    }
}

impl<'d> Translation<'d> {
    /// Whether a route may be served without a directive of this name.
    pub(crate) fn is_harmless(&self, name: &str) -> bool {
        is_harmless(self.directives, name)
    }

    /// Like [`is_harmless`](Self::is_harmless), for streams, whose directives of the same name may mean something else.
    pub(crate) fn is_harmless_for_streams(&self, name: &str) -> bool {
        let mut rows = self.directives.iter().filter(|row| row.name == name);
        rows.any(|row| row.is_harmless && row.contexts.includes(Contexts::STREAMS))
    }

    /// Whether a directive is one of a part.
    pub(crate) fn is_of_part(&self, directive: &NginxDirective, part: Part) -> bool {
        self.directives.iter().any(|row| row.name == directive.name && row.part() == Some(part))
    }

    /// Translates the directives of a part that apply in a place, in the order of the table.
    pub(crate) fn apply(&self, part: Part, scope: &Scope<'_>, section: &mut TomlSection) {
        for row in self.directives.iter().filter(|row| row.part() == Some(part)) {
            let found = match row.is_repeatable {
                true => scope.effective_all(row.name),
                false => scope.effective(row.name).into_iter().collect(),
            };
            for (at, directive) in found.into_iter().enumerate() {
                let applied = AppliedDirective { translation: self, scope, directive, at };
                self.translate_by_row(row, &applied, section);
            }
        }
    }

    /// Translates the directives of a block that belong to a part, in the order of the block.
    pub(crate) fn apply_to_block(&self, part: Part, block: &'d [NginxDirective], section: &mut TomlSection) {
        let scope = Scope::of(vec![block]);
        for one in block {
            self.apply_one(part, one, &scope, section);
        }
    }

    /// Translates a directive if it belongs to a part. Returns whether it does.
    pub(crate) fn apply_one(
        &self,
        part: Part,
        directive: &NginxDirective,
        scope: &Scope<'_>,
        section: &mut TomlSection,
    ) -> bool {
        let mut rows = self.directives.iter().filter(|row| row.part() == Some(part));
        let Some(row) = rows.find(|row| row.name == directive.name) else { return false };
        self.translate_by_row(row, &AppliedDirective { translation: self, scope, directive, at: 0 }, section);
        true
    }

    /// Translates those of some directives that belong to a part, in the order of the table.
    pub(crate) fn apply_to_all(&self, part: Part, all: &[&'d NginxDirective], section: &mut TomlSection) {
        for row in self.directives.iter().filter(|row| row.part() == Some(part)) {
            for (at, directive) in all.iter().filter(|one| one.name == row.name).enumerate() {
                let applied = AppliedDirective { translation: self, scope: &self.http, directive, at };
                self.translate_by_row(row, &applied, section);
            }
        }
    }

    fn translate_by_row(
        &self,
        row: &DirectiveRow,
        applied: &AppliedDirective<'_>,
        section: &mut TomlSection,
    ) {
        let outcome = match row.treatment {
            Treatment::Each(_, translate) => translate(applied, section),
            Treatment::Noted(_) | Treatment::Untranslated => row.advice(),
            Treatment::Different(_) => Outcome { verdict: ImportVerdict::Differs, ..row.advice() },
            Treatment::Together(_) | Treatment::Block => return,
        };
        self.ledger.enter(applied.directive.entry, &outcome);
    }

    /// Returns the directive of this name that applies in a place, for a function that translates it together with
    /// others. It counts as translated unless the function notes a difference.
    pub(crate) fn take<'a>(&self, scope: &Scope<'a>, name: &str) -> Option<&'a NginxDirective> {
        let found = scope.effective(name);
        found.into_iter().for_each(|one| self.count_taken(one));
        found
    }

    /// Like [`take`](Self::take), for directives that may be repeated: returns all that apply.
    pub(crate) fn take_all<'a>(&self, scope: &Scope<'a>, name: &str) -> Vec<&'a NginxDirective> {
        self.take_all_of(scope, &[name])
    }

    /// Like [`take_all`](Self::take_all), for several names that replace each other.
    pub(crate) fn take_all_of<'a>(&self, scope: &Scope<'a>, names: &[&str]) -> Vec<&'a NginxDirective> {
        let found = scope.effective_all_of(names);
        found.iter().for_each(|one| self.count_taken(one));
        found
    }

    /// Like [`take_all`](Self::take_all), for the directives of one block.
    pub(crate) fn take_in_block<'a>(
        &self,
        block: &'a [NginxDirective],
        name: &str,
    ) -> impl Iterator<Item = &'a NginxDirective> {
        block.iter().filter(move |one| one.name == name).inspect(|one| self.count_taken(one))
    }

    /// Like [`take`](Self::take), for a block and its directives.
    pub(crate) fn count_block_taken(&self, block: &NginxDirective) {
        self.count_taken(block);
        block.block_directives().iter().for_each(|inner| self.count_taken(inner));
    }

    /// Notes that a directive has no effect here, unless it has a difference already.
    pub(crate) fn not_needed(&self, directive: &NginxDirective, reason: &'static str) {
        self.ledger.enter(directive.entry, &Outcome::not_needed(reason));
    }

    /// Like [`take`](Self::take), for a directive that was found otherwise.
    pub(crate) fn count_taken(&self, directive: &NginxDirective) {
        let is_together = |row: &DirectiveRow| matches!(row.treatment, Treatment::Together(_));
        let mut rows = self.directives.iter().filter(|row| row.name == directive.name);
        debug_assert!(rows.any(is_together), "`{}` is not translated together with others", directive.name);
        self.ledger.enter(directive.entry, &Outcome::TRANSLATED);
    }
}
