//! Replacement of texts in response bodies.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use http::{Fields, Name, Template};
use net::{BodyReplacement, Exchange, ReplacementRule, ReplacementTexts};

use crate::edits::template_values;
use crate::templates::BodyEscape;

/// Body replacements of a route.
pub struct RouteReplacement {
    rules: Rc<BodyReplacement>,
    /// Replacement texts, by rule.
    texts: Vec<Template>,
    /// Replaces the client's `Accept-Encoding`, because encoded bodies are not edited.
    identity: Fields,
}

impl RouteReplacement {
    /// Creates the replacements of a route. `None` if it has none.
    pub fn new(rules: &[config::BodyEdit]) -> Option<Box<RouteReplacement>> {
        let rule = |rule: &config::BodyEdit| ReplacementRule {
            from: rule.from.clone().into_bytes(),
            media: rule.types.clone(),
            is_once: rule.once,
        };
        let mut identity = Fields::new();
        identity.try_push(b"Accept-Encoding", b"identity").expect("it is a valid field");
        (!rules.is_empty()).then(|| {
            Box::new(RouteReplacement {
                rules: Rc::new(BodyReplacement::new(rules.iter().map(rule).collect())),
                texts: rules.iter().map(|rule| rule.to.clone()).collect(),
                identity,
            })
        })
    }

    /// Enables the replacements for the response to this request, regardless of its handler. `prefix` is the
    /// part of the route's path before its final `*`.
    pub(crate) fn begin(&self, exchange: &mut Exchange<'_>, prefix: &[u8]) {
        let texts: Vec<FilledText> =
            self.texts.iter().map(|text| FilledText::new(text, &template_values(exchange, prefix))).collect();
        exchange.set_replacement(self.rules.clone(), Box::new(FilledTexts(texts)));
        exchange.amend(&[b"accept-encoding".to_vec()], &self.identity);
    }
}

/// Removes the ranges from a request for an upstream server or application if its response may be one in which texts are
/// replaced: a part of it (206) would have the texts as they were. Returns them, for a file that the response names.
pub(crate) fn take_ranges(exchange: &mut Exchange<'_>) -> Option<Fields> {
    if !exchange.may_replace_texts(None) {
        return None;
    }
    let request = exchange.request();
    request.field(Name::Range)?;
    // Only content that is compressed already, such as a film, is known by its name not to be a page.
    let media_type = files::media::media_type(request.path());
    if http::media::is_compressed(media_type) && !exchange.may_replace_texts(Some(media_type)) {
        return None;
    }
    let mut taken = Fields::new();
    for (name, _, value) in request.fields().filter(|(name, ..)| matches!(name, Name::Range | Name::IfRange))
    {
        taken.push(name, value);
    }
    exchange.amend(&[b"range".to_vec(), b"if-range".to_vec()], &Fields::new());
    Some(taken)
}

/// Replacement texts of a request.
struct FilledTexts(Vec<FilledText>);

/// Replacement text with its variables expanded.
struct FilledText {
    text: Vec<u8>,
    /// Ranges of the variables' values in `text`, in order.
    values: Vec<Range<usize>>,
}

impl FilledText {
    fn new(template: &Template, values: &http::template::VariableValues<'_>) -> FilledText {
        let mut text = Vec::new();
        let places = RefCell::new(Vec::new());
        let note = |out: &mut Vec<u8>, start: usize| places.borrow_mut().push(start..out.len());
        template.write_each(&mut text, values, note);
        FilledText { text, values: places.into_inner() }
    }
}

impl ReplacementTexts for FilledTexts {
    fn text(&self, rule: usize, media_type: &str) -> Vec<u8> {
        let FilledText { text, values } = &self.0[rule];
        let escape = BodyEscape::of(media_type);
        let mut out = Vec::new();
        let mut at = 0;
        for value in values {
            out.extend_from_slice(&text[at..value.start]);
            let start = out.len();
            out.extend_from_slice(&text[value.clone()]);
            escape.escape(&mut out, start);
            at = value.end;
        }
        out.extend_from_slice(&text[at..]);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_variable_values_are_escaped_in_replacements() {
        let texts =
            FilledTexts(vec![FilledText { text: b"<i>\"a\"</i>-'b'".to_vec(), values: vec![3..6, 11..14] }]);
        let text = |media_type: &str| String::from_utf8(texts.text(0, media_type)).unwrap();
        assert_eq!(text("text/html"), "<i>&quot;a&quot;</i>-&#39;b&#39;");
        assert_eq!(text("application/json"), "<i>\\\"a\\\"</i>-'b'");
        assert_eq!(text("text/css"), "<i>\"a\"</i>-'b'");
    }
}
