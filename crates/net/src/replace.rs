//! Texts that are put in place of others in the bodies of responses, while they pass.
//!
//! A body is searched as it comes, for all texts at once, in time that grows with its length alone. What is held back is at most
//! the beginning of a text that the next bytes may complete.

use std::cell::RefCell;
use std::rc::Rc;

use aho_corasick::{AhoCorasick, Input, MatchKind};
use http::{Fields, Head, Length, Method, Status, media, scan};

use crate::compress::{CompressionInput, has_fixed_bytes, weaken_tag};
use crate::fault::Fault;

/// Rules of one route.
pub const REPLACEMENTS_MAX: usize = 32;
/// Bytes of a body that are searched in one go.
pub(crate) const REPLACED_BYTES: usize = 4 * 1024;
/// What a searched byte weighs against a connection's turn.
pub(crate) const REPLACED_WEIGHT: usize = 2;
/// How many times its text a text may be as long as that it replaces, where it replaces all of them: so long may a body become.
const GROWTH_MAX: usize = 64;
/// The same for a text that is put in once, in bytes.
const TEXT_BYTES_MAX: usize = 64 * 1024;
/// Automata that a route keeps: one for each set of rules that a media type has.
const AUTOMATA_MAX: usize = 16;

/// A text that is replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplacementRule {
    /// What is replaced, byte by byte. Not empty.
    pub from: Vec<u8>,
    /// Media types of the responses in which it is, as [`media::is_any_of`] reads them.
    pub media: Vec<String>,
    /// Whether only the first one of a response is.
    pub once: bool,
}

/// The texts that a route replaces. Where several begin at one place, the first rule counts. Shared by its requests.
#[derive(Debug)]
pub struct BodyReplacement {
    rules: Vec<ReplacementRule>,
    /// By the rules that they have, as bits.
    automata: RefCell<Vec<(u32, Rc<AhoCorasick>)>>,
}

/// The texts that a request's response gets in place of those of the rules.
pub trait ReplacementTexts {
    /// The text of a rule, for a response of this media type.
    fn text(&self, rule: usize, media_type: &str) -> Vec<u8>;
}

impl BodyReplacement {
    /// That of at most [`REPLACEMENTS_MAX`] rules.
    ///
    /// # Panics
    /// Where there are more, or one is empty.
    #[must_use]
    pub fn new(rules: Vec<ReplacementRule>) -> BodyReplacement {
        assert!(rules.len() <= REPLACEMENTS_MAX && rules.iter().all(|rule| !rule.from.is_empty()), "rules");
        BodyReplacement { rules, automata: RefCell::default() }
    }

    /// The rules for a response, as bits; 0 where it is sent as it is: it has another type, is coded or a part, or has a digest of
    /// its bytes.
    fn rules_for(&self, request: &Head, status: Status, fields: &Fields, media_type: &str) -> u32 {
        let excluded = status.is_informational()
            || status.forbids_content()
            || matches!(status, Status::RESET_CONTENT | Status::PARTIAL_CONTENT)
            || request.method == Method::Connect
            || has_fixed_bytes(fields)
            || is_fixed_by_its_sender(fields);
        if excluded || media_type.is_empty() {
            return 0;
        }
        let fit = |(_, rule): &(usize, &ReplacementRule)| media::is_any_of(media_type, &rule.media);
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

fn is_fixed_by_its_sender(fields: &Fields) -> bool {
    let controls = fields.iter().filter(|(name, _)| name.eq_ignore_ascii_case(b"Cache-Control"));
    controls.flat_map(|(_, value)| scan::list(value)).any(|one| one.eq_ignore_ascii_case(b"no-transform"))
}

/// Date and strong tag are those of the content as it was.
fn say_changed(fields: &mut Fields) {
    fields.remove(b"Last-Modified");
    weaken_tag(fields);
}

/// What a request has to replace.
pub(crate) struct RequestReplacement {
    pub(crate) of: Rc<BodyReplacement>,
    pub(crate) texts: Box<dyn ReplacementTexts>,
}

impl RequestReplacement {
    /// Edits the head of a response whose body is to be changed; `None` where it is sent as it is, or has no body that is sent.
    pub(crate) fn begin(
        &self,
        request: &CompressionInput<'_>,
        status: Status,
        fields: &mut Fields,
        length: &mut Length,
    ) -> Option<Box<Replacing>> {
        if status == Status::NOT_MODIFIED {
            self.describe_whole(request, fields);
            return None;
        }
        let content_type = fields.first(b"Content-Type")?;
        let media_type = media::without_parameters(content_type);
        let bits = self.of.rules_for(request.head, status, fields, &media_type);
        if bits == 0 || *length == Length::Known(0) {
            return None;
        }
        fields.remove(b"Accept-Ranges");
        say_changed(fields);
        let left = match std::mem::replace(length, Length::Unknown) {
            Length::Known(bytes) => Some(bytes),
            Length::Unknown => None,
        };
        // To HEAD the fields are those of GET.
        (request.head.method != Method::Head).then(|| Box::new(self.replacing(bits, &media_type, left)))
    }

    /// Makes the fields of a 304 those of the whole response (RFC 9110 section 15.4.5). It seldom has a type, so one of a response
    /// in which nothing is replaced may get a weak tag.
    fn describe_whole(&self, request: &CompressionInput<'_>, fields: &mut Fields) {
        let media_type = fields.first(b"Content-Type").map(media::without_parameters);
        let is_excluded = media_type
            .is_some_and(|media_type| self.of.rules_for(request.head, Status::OK, fields, &media_type) == 0);
        if !is_excluded && !request.knows_strong_tag(fields) {
            say_changed(fields);
        }
    }

    fn replacing(&self, bits: u32, media_type: &str, left: Option<u64>) -> Replacing {
        let of = self.of.rules.iter().enumerate().filter(|(at, _)| bits & 1 << at != 0);
        let rules = of.map(|(at, rule)| {
            let text = self.texts.text(at, media_type);
            let max = if rule.once { TEXT_BYTES_MAX } else { rule.from.len() * GROWTH_MAX };
            // A client may have made it long.
            let text = (text.len() <= max).then_some(text);
            ActiveRule { from: rule.from.clone(), text, once: rule.once }
        });
        Replacing { automaton: self.of.automaton(bits), rules: rules.collect(), held: Vec::new(), left }
    }
}

struct ActiveRule {
    from: Vec<u8>,
    /// `None` where it replaces nothing more.
    text: Option<Vec<u8>>,
    once: bool,
}

/// The replacing in the response under way.
pub(crate) struct Replacing {
    automaton: Rc<AhoCorasick>,
    rules: Vec<ActiveRule>,
    /// The last bytes, where they may be the beginning of a text.
    held: Vec<u8>,
    /// Bytes that the handler has announced and not written yet.
    left: Option<u64>,
}

impl Replacing {
    /// A piece of the body; returns what there is to send now.
    pub(crate) fn write(&mut self, piece: &[u8]) -> Result<Vec<u8>, Fault> {
        if let Some(left) = &mut self.left {
            let written = left.checked_sub(piece.len() as u64);
            *left = written.ok_or(Fault::Broken("more body written than announced"))?;
        }
        Ok(self.replace(piece, false))
    }

    /// Ends the body. Returns the last bytes of it.
    pub(crate) fn finish(mut self) -> Result<Vec<u8>, Fault> {
        if self.left.is_some_and(|left| left > 0) {
            return Err(Fault::Broken("less body written than announced"));
        }
        Ok(self.replace(b"", true))
    }

    fn replace(&mut self, piece: &[u8], is_last: bool) -> Vec<u8> {
        let mut window = std::mem::take(&mut self.held);
        window.extend_from_slice(piece);
        let (mut out, mut at) = (Vec::with_capacity(window.len()), 0);
        let mut hold_at = if is_last { window.len() } else { self.hold_at(&window, at) };
        // Of what begins before `hold_at` it is known whether it is one of the texts.
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
            if rule.once {
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

    /// Where the bytes begin that may be the beginning of a text, from `at` on.
    fn hold_at(&self, window: &[u8], at: usize) -> usize {
        let longest = self.rules.iter().map(|rule| rule.from.len()).max().unwrap_or(1);
        let begins = |start: &usize| {
            let rest = &window[*start..];
            self.rules.iter().any(|rule| rule.from.len() > rest.len() && rule.from.starts_with(rest))
        };
        let first = at.max((window.len() + 1).saturating_sub(longest));
        (first..window.len()).find(begins).unwrap_or(window.len())
    }

    /// Bytes of memory that it holds, without the automaton that the route's responses share.
    pub(crate) fn weight_bytes(&self) -> usize {
        let of = |rule: &ActiveRule| rule.from.len() + rule.text.as_ref().map_or(0, Vec::len);
        REPLACED_BYTES + self.rules.iter().map(of).sum::<usize>()
    }
}

#[cfg(test)]
mod tests;
