//! Constructors of rows.

use super::super::directive::{Arguments, Contexts, Part};
use super::super::translation::{DirectiveRow, Remark, TranslateFn, Treatment};

const fn row(
    name: &'static str,
    contexts: Contexts,
    arguments: Arguments,
    treatment: Treatment,
) -> DirectiveRow {
    DirectiveRow {
        name,
        contexts,
        arguments,
        treatment,
        is_harmless: false,
        is_repeatable: false,
        neutral: None,
        unused: None,
    }
}

/// A directive that is translated by itself.
pub(super) const fn each(
    name: &'static str,
    contexts: Contexts,
    arguments: Arguments,
    part: Part,
    translate: TranslateFn,
) -> DirectiveRow {
    row(name, contexts, arguments, Treatment::Each(part, translate))
}

/// A directive without an effect where a part applies.
pub(super) const fn noted(
    name: &'static str,
    contexts: Contexts,
    arguments: Arguments,
    part: Part,
) -> DirectiveRow {
    row(name, contexts, arguments, Treatment::Noted(part))
}

/// A directive that means something else where a part applies.
pub(super) const fn different(
    name: &'static str,
    contexts: Contexts,
    arguments: Arguments,
    part: Part,
) -> DirectiveRow {
    row(name, contexts, arguments, Treatment::Different(part))
}

/// A directive that is translated together with others.
pub(super) const fn together(
    name: &'static str,
    contexts: Contexts,
    arguments: Arguments,
    part: Part,
) -> DirectiveRow {
    row(name, contexts, arguments, Treatment::Together(part))
}

/// A block, whose directives are translated one by one.
pub(super) const fn block(name: &'static str, contexts: Contexts) -> DirectiveRow {
    row(name, contexts, Arguments::NONE, Treatment::Block)
}

/// A directive that is not translated.
pub(super) const fn untranslated(
    name: &'static str,
    contexts: Contexts,
    arguments: Arguments,
) -> DirectiveRow {
    row(name, contexts, arguments, Treatment::Untranslated)
}

impl DirectiveRow {
    /// A route may be served without the directive.
    pub(super) const fn harmless(mut self) -> Self {
        self.is_harmless = true;
        self
    }

    /// All directives of this name in a block apply.
    pub(super) const fn repeatable(mut self) -> Self {
        self.is_repeatable = true;
        self
    }

    /// The first argument with which the directive changes nothing.
    pub(super) const fn neutral(mut self, argument: &'static str) -> Self {
        self.neutral = Some(argument);
        self
    }

    /// Remark for directives that no translated route uses.
    pub(super) const fn unused(mut self, remark: Remark) -> Self {
        self.unused = Some(remark);
        self
    }
}
