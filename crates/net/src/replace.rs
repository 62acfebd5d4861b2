//! Text replacement in response bodies.
//!
//! The body is searched for all texts at once while it is sent, in linear time. At most an incomplete match
//! is held back.

use std::cell::RefCell;
use std::rc::Rc;

use aho_corasick::{AhoCorasick, Input, MatchKind};
use http::{Fields, Head, Length, Method, Status, media, scan};

use crate::compress::{CompressionInput, has_fixed_bytes, weaken_tag};
use crate::fault::Fault;

/// Maximum number of rules of a route.
pub const REPLACEMENTS_MAX: usize = 32;
/// Bytes searched in one step.
pub(crate) const REPLACED_BYTES: usize = 4 * 1024;
/// Cost of a searched byte against a connection's turn.
pub(crate) const REPLACED_WEIGHT: usize = 2;
/// Maximum ratio of the lengths of replacement and replaced text, for rules that replace all occurrences;
/// bounds the growth of a body.
const GROWTH_MAX: usize = 64;
/// Maximum length of a text that is inserted once, in bytes.
const TEXT_BYTES_MAX: usize = 64 * 1024;
/// Maximum number of automata that a route caches, one for each set of rules that applies to a media type.
const AUTOMATA_MAX: usize = 16;

/// A replacement rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplacementRule {
    /// The text to replace, compared byte by byte. Not empty.
    pub from: Vec<u8>,
    /// Media types of the responses to change, in the syntax of [`media::matches_any`].
    pub media: Vec<String>,
    /// Whether only the first occurrence in a response is replaced.
    pub is_once: bool,
}

/// Replacement rules of a route, shared by its requests. If several match at one position, the first rule is
/// used.
#[derive(Debug)]
pub struct BodyReplacement {
    rules: Vec<ReplacementRule>,
    /// Automata by their set of rules, as bits.
    automata: RefCell<Vec<(u32, Rc<AhoCorasick>)>>,
}

/// Source of the replacement texts for a request.
pub trait ReplacementTexts {
    /// Returns the replacement of a rule, for a response of this media type.
    fn text(&self, rule: usize, media_type: &str) -> Vec<u8>;
}

impl BodyReplacement {
    /// Creates the replacement with at most [`REPLACEMENTS_MAX`] rules.
    ///
    /// # Panics
    /// Panics if there are more rules, or if a rule's text is empty.
    #[must_use]
    pub fn new(rules: Vec<ReplacementRule>) -> BodyReplacement {
        assert!(rules.len() <= REPLACEMENTS_MAX && rules.iter().all(|rule| !rule.from.is_empty()), "rules");
        BodyReplacement { rules, automata: RefCell::default() }
    }

    /// Returns the rules for a response, as bits. 0 if it must not change: no rule applies to its type, it
    /// has a content coding, is partial, or has a digest of its bytes.
    fn rules_for(&self, request: &Head, status: Status, fields: &Fields, media_type: &str) -> u32 {
        let excluded = status.is_informational()
            || status.forbids_content()
            || matches!(status, Status::RESET_CONTENT | Status::PARTIAL_CONTENT)
            || request.method == Method::Connect
            || has_fixed_bytes(fields)
            || forbids_transform(fields);
        if excluded || media_type.is_empty() {
            return 0;
        }
        let fit = |(_, rule): &(usize, &ReplacementRule)| media::matches_any(media_type, &rule.media);
        self.rules.iter().enumerate().filter(fit).fold(0, |bits, (at, _)| bits | 1 << at)
    }

    fn automaton(&self, bits: u32) -> Rc<AhoCorasick> {
        let mut automata = self.automata.borrow_mut();
        if let Some((_, known)) = automata.iter().find(|(known, _)| *known == bits) {
            return known.clone();
        }
        let of = self.rules.iter().enumerate().filter(|(at, _)| bits & 1 << at != 0);
        let built = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostFirst)
            .build(of.map(|(_, rule)| &rule.from))
            .expect("a few texts of limited length make an automaton");
        let built = Rc::new(built);
        if automata.len() < AUTOMATA_MAX {
            automata.push((bits, built.clone()));
        }
        built
    }
}

fn forbids_transform(fields: &Fields) -> bool {
    let controls = fields.iter().filter(|(name, _)| name.eq_ignore_ascii_case(b"Cache-Control"));
    controls.flat_map(|(_, value)| scan::list(value)).any(|one| one.eq_ignore_ascii_case(b"no-transform"))
}

/// Removes or weakens the validators, which describe the original content.
fn update_validators(fields: &mut Fields) {
    fields.remove(b"Last-Modified");
    weaken_tag(fields);
}

/// The replacements for a request.
pub(crate) struct RequestReplacement {
    pub(crate) replacement: Rc<BodyReplacement>,
    pub(crate) texts: Box<dyn ReplacementTexts>,
}

impl RequestReplacement {
    /// Whether a complete response with these fields is changed.
    pub(crate) fn changes(&self, request: &Head, fields: &Fields) -> bool {
        let content_type = fields.first(b"Content-Type").map(media::without_parameters);
        content_type.is_some_and(|media| self.replacement.rules_for(request, Status::OK, fields, &media) != 0)
    }

    /// Whether responses of this media type may be changed.
    pub(crate) fn may_change(&self, media_type: &str) -> bool {
        self.replacement.rules.iter().any(|rule| media::matches_any(media_type, &rule.media))
    }

    /// Edits the head of a response whose body will change; `None` if it is sent unchanged or has no body.
    pub(crate) fn begin(
        &self,
        request: &CompressionInput<'_>,
        status: Status,
        fields: &mut Fields,
        length: &mut Length,
    ) -> Option<Box<Replacing>> {
        if status == Status::NOT_MODIFIED {
            self.set_full_response_fields(request, fields);
            return None;
        }
        let content_type = fields.first(b"Content-Type")?;
        let media_type = media::without_parameters(content_type);
        let bits = self.replacement.rules_for(request.head, status, fields, &media_type);
        if bits == 0 || *length == Length::Known(0) {
            return None;
        }
        fields.remove(b"Accept-Ranges");
        update_validators(fields);
        let left = match std::mem::replace(length, Length::Unknown) {
            Length::Known(bytes) => Some(bytes),
            Length::Unknown => None,
        };
        // A response to HEAD has the fields of the response to GET.
        (request.head.method != Method::Head).then(|| Box::new(self.start(bits, &media_type, left)))
    }

    /// Gives a 304 the fields of the complete response (RFC 9110 section 15.4.5). A 304 seldom has a
    /// Content-Type, so one whose response would not change may get a weak tag.
    fn set_full_response_fields(&self, request: &CompressionInput<'_>, fields: &mut Fields) {
        let media_type = fields.first(b"Content-Type").map(media::without_parameters);
        let is_excluded = media_type.is_some_and(|media_type| {
            self.replacement.rules_for(request.head, Status::OK, fields, &media_type) == 0
        });
        if !is_excluded && !request.knows_strong_tag(fields) {
            update_validators(fields);
        }
    }

    fn start(&self, bits: u32, media_type: &str, left: Option<u64>) -> Replacing {
        let of = self.replacement.rules.iter().enumerate().filter(|(at, _)| bits & 1 << at != 0);
        let rules = of.map(|(at, rule)| {
            let text = self.texts.text(at, media_type);
            let max = if rule.is_once { TEXT_BYTES_MAX } else { rule.from.len() * GROWTH_MAX };
            // The text may include input of the client, so its length is limited.
            let text = (text.len() <= max).then_some(text);
            ActiveRule { from: rule.from.clone(), text, is_once: rule.is_once }
        });
        Replacing {
            automaton: self.replacement.automaton(bits),
            rules: rules.collect(),
            held: Vec::new(),
            remaining_bytes: left,
        }
    }
}

struct ActiveRule {
    from: Vec<u8>,
    /// `None` if the rule replaces nothing more.
    text: Option<Vec<u8>>,
    is_once: bool,
}

/// The replacement in the current response.
pub(crate) struct Replacing {
    automaton: Rc<AhoCorasick>,
    rules: Vec<ActiveRule>,
    /// Trailing bytes that may begin a match.
    held: Vec<u8>,
    /// Announced bytes that the handler has not written.
    remaining_bytes: Option<u64>,
}

impl Replacing {
    /// Replaces texts in a piece of the body; returns the bytes to send now.
    pub(crate) fn write(&mut self, piece: &[u8]) -> Result<Vec<u8>, Fault> {
        if let Some(left) = &mut self.remaining_bytes {
            let written = left.checked_sub(piece.len() as u64);
            *left = written.ok_or(Fault::Failed("more body written than announced"))?;
        }
        Ok(self.replace(piece, false))
    }

    /// Ends the body. Returns its last bytes.
    pub(crate) fn finish(mut self) -> Result<Vec<u8>, Fault> {
        if self.remaining_bytes.is_some_and(|left| left > 0) {
            return Err(Fault::Failed("less body written than announced"));
        }
        Ok(self.replace(b"", true))
    }

    fn replace(&mut self, piece: &[u8], is_last: bool) -> Vec<u8> {
        let mut window = std::mem::take(&mut self.held);
        window.extend_from_slice(piece);
        let mut out = Vec::with_capacity(window.len());
        let mut at = 0;
        let mut hold_at = if is_last { window.len() } else { self.hold_at(&window, at) };
        // Matches that begin before `hold_at` can be decided with the bytes at hand.
        while let Some(found) = self.automaton.find(Input::new(&window).range(at..)) {
            if found.start() >= hold_at {
                break;
            }
            out.extend_from_slice(&window[at..found.start()]);
            let rule = &mut self.rules[found.pattern().as_usize()];
            match &rule.text {
                Some(text) => out.extend_from_slice(text),
                None => out.extend_from_slice(&window[found.range()]),
            }
            if rule.is_once {
                rule.text = None;
            }
            at = found.end();
            if at > hold_at {
                hold_at = self.hold_at(&window, at);
            }
        }
        out.extend_from_slice(&window[at..hold_at]);
        window.drain(..hold_at);
        self.held = window;
        out
    }

    /// Returns the offset, from `at` on, of the bytes that may begin a match.
    fn hold_at(&self, window: &[u8], at: usize) -> usize {
        let longest = self.rules.iter().map(|rule| rule.from.len()).max().unwrap_or(1);
        let begins = |start: &usize| {
            let rest = &window[*start..];
            self.rules.iter().any(|rule| rule.from.len() > rest.len() && rule.from.starts_with(rest))
        };
        let first = at.max((window.len() + 1).saturating_sub(longest));
        (first..window.len()).find(begins).unwrap_or(window.len())
    }

    /// Returns the memory held, in bytes, without the automaton that the route's responses share.
    pub(crate) fn weight_bytes(&self) -> usize {
        let of = |rule: &ActiveRule| rule.from.len() + rule.text.as_ref().map_or(0, Vec::len);
        REPLACED_BYTES + self.rules.iter().map(of).sum::<usize>()
    }
}

#[cfg(test)]
mod tests;
