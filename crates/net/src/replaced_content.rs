//! Replacement of texts, for handlers that need to know before they respond whether it changes the content.

use std::rc::Rc;

use http::Fields;

use crate::exchange::Exchange;
use crate::replace::{BodyReplacement, ReplacementTexts, RequestReplacement};

impl Exchange<'_> {
    /// Sets the replacements in response bodies. A response that has begun is not affected.
    pub fn set_replacement(&mut self, replacement: Rc<BodyReplacement>, texts: Box<dyn ReplacementTexts>) {
        self.state.filters.replacement = Some(RequestReplacement { replacement, texts });
    }

    /// Whether texts are replaced in a complete response with these fields. A handler then sends no part of it (206): the
    /// texts of a part are not replaced.
    #[must_use]
    pub fn replaces_texts(&self, fields: &Fields) -> bool {
        let Some(replacement) = &self.state.filters.replacement else { return false };
        replacement.changes(self.lane.head().head, &self.edited(fields))
    }

    /// Whether texts may be replaced in a response of this media type; of any type if it is not known.
    #[must_use]
    pub fn may_replace_texts(&self, media_type: Option<&str>) -> bool {
        let replacement = self.state.filters.replacement.as_ref();
        replacement.is_some_and(|one| media_type.is_none_or(|media_type| one.may_change(media_type)))
    }
}
