//! Compression with dictionaries that clients have (RFC 9842): which responses are dictionaries, and which are compressed with one.
//!
//! What the content of a response is, and where it is kept, is the handler's affair; this decides by request and fields.

use std::fmt;
use std::sync::Arc;

use coding::{
    Delta, DeltaJob, Dictionaries, DictionaryCoding, DictionaryHash, DictionaryPlace, Effort, HashedContent,
};
use http::coding::weighted;
use http::dictionary::{FetchContext, available_hash, pattern_of, use_as_dictionary};
use http::{Coding, Fields, Method, Name, Status, media, scan};

use crate::compress::has_fixed_bytes;
pub use crate::compress::weaken_tag;
use crate::request::Request;

/// Whether a rule is for the response of that path.
pub type DictionaryPathTest = Arc<dyn Fn(&[u8]) -> bool + Send + Sync>;

/// Which responses clients keep as dictionaries, and for what.
#[derive(Clone)]
pub struct DictionaryRule {
    /// The paths of the responses, in normal form.
    pub applies: DictionaryPathTest,
    /// The requests that clients use the dictionary for: a URL pattern; that of the response's own path where there is none.
    pub pattern: Option<String>,
    /// Destinations of these requests, as the fetch standard names them; none for all.
    pub destinations: Vec<String>,
    /// What clients send back in `Dictionary-ID`.
    pub id: Option<String>,
}

/// The use of dictionaries in a route.
#[derive(Clone, Debug)]
pub struct DictionaryTransport {
    /// What is known of dictionaries, in all routes.
    pub known: Arc<Dictionaries>,
    /// The first that applies counts.
    pub rules: Arc<[DictionaryRule]>,
    /// How hard to compress.
    pub effort: Effort,
    /// Media types that are compressed with a dictionary, as [`media::is_any_of`] reads them.
    pub media: Vec<String>,
    /// Whether it is done without TLS too, for tests.
    pub insecure: bool,
}

/// A response that clients keep as a dictionary.
#[derive(Clone, Debug)]
pub struct DictionaryUse {
    /// The value of `Use-As-Dictionary`.
    pub value: Vec<u8>,
    /// For how long clients may use it, in seconds from now.
    pub lifetime_s: u64,
}

/// Where a response is from.
#[derive(Clone, Debug)]
pub struct DictionarySource {
    origin: Vec<u8>,
    path: Vec<u8>,
}

/// The dictionary that a client has, and the coding for it.
#[derive(Clone, Debug)]
pub struct DictionaryChoice {
    /// The dictionary.
    pub dictionary: HashedContent,
    /// The coding.
    pub coding: DictionaryCoding,
}

/// A result that was made before, or is to be made.
#[derive(Debug)]
pub enum DeltaStart {
    /// It was made before.
    Ready(Arc<[u8]>),
    /// To be made of the content, where blocking is allowed; how hard to compress.
    Make(DeltaJob, Effort),
}

impl DictionaryTransport {
    /// Whether the response is one that its clients keep as a dictionary. Nobody's own response is: what has a cookie, is
    /// `private`, or has no `max-age`, by which clients know how long it serves.
    #[must_use]
    pub fn use_of(&self, request: &Request<'_>, status: Status, fields: &Fields) -> Option<DictionaryUse> {
        let rule = self.rule(request).filter(|_| status == Status::OK)?;
        let lifetime_s = lifetime_s(fields)?;
        let own = || request.encoded_path().ok().map(|path| pattern_of(&path));
        let pattern = rule.pattern.as_ref().map_or_else(own, |text| Some(text.clone().into_bytes()))?;
        let value = use_as_dictionary(&pattern, &rule.destinations, rule.id.as_deref())?;
        Some(DictionaryUse { value, lifetime_s })
    }

    /// Where the response to this request is from, if a rule lets clients keep it: for [`DictionaryTransport::remember_from`].
    #[must_use]
    pub fn source(&self, request: &Request<'_>) -> Option<DictionarySource> {
        self.rule(request).map(|_| {
            let (origin, path) = place(request);
            DictionarySource { origin, path }
        })
    }

    fn rule(&self, request: &Request<'_>) -> Option<&DictionaryRule> {
        let reads = matches!(request.method(), Method::Get | Method::Head);
        if self.rules.is_empty() || !self.is_secure(request) || !reads {
            return None;
        }
        let path = request.normal_path().ok()?;
        self.rules.iter().find(|rule| (rule.applies)(&path))
    }

    /// Remembers the content of a response with these fields that is stored at that second since 1970, where clients keep it.
    pub fn remember_from(
        &self,
        source: &DictionarySource,
        fields: &Fields,
        content: &HashedContent,
        now_s: u64,
    ) {
        if let Some(lifetime_s) = lifetime_s(fields) {
            let place = DictionaryPlace { origin: &source.origin, path: &source.path };
            self.known.remember(place, content, now_s + lifetime_s);
        }
    }

    /// Remembers a content that clients keep, of which only the hash is at hand. False where it is not known.
    #[must_use]
    pub fn touch(&self, request: &Request<'_>, hash: &DictionaryHash, until_s: u64) -> bool {
        let (origin, path) = place(request);
        self.known.touch(DictionaryPlace { origin: &origin, path: &path }, hash, until_s)
    }

    /// Remembers a content that clients keep until that second since 1970.
    pub fn remember(&self, request: &Request<'_>, content: &HashedContent, until_s: u64) {
        let (origin, path) = place(request);
        self.known.remember(DictionaryPlace { origin: &origin, path: &path }, content, until_s);
    }

    /// Whether a response with this status and these fields is compressed for clients that have a dictionary, and `Vary` has
    /// to say so.
    #[must_use]
    pub fn may_compress(&self, request: &Request<'_>, status: Status, fields: &Fields) -> bool {
        self.is_secure(request) && status == Status::OK && self.is_media(fields) && !has_fixed_bytes(fields)
    }

    /// The dictionary to compress the response with, at that second since 1970: the client has it, prefers a coding with it,
    /// and whoever made it send the request may read the response.
    #[must_use]
    pub fn choose(&self, request: &Request<'_>, fields: &Fields, now_s: u64) -> Option<DictionaryChoice> {
        // Nearly all requests end here.
        let hash = available_hash(request.field(Name::AvailableDictionary)?)?;
        let reads = matches!(request.method(), Method::Get | Method::Head);
        if !reads || request.field(Name::Range).is_some() || !context(request).may_read(fields) {
            return None;
        }
        if fields.first(b"set-cookie").is_some() || !is_public(fields) {
            return None;
        }
        let coding = preferred(request)?;
        let dictionary = self.known.find(&place(request).0, &hash, now_s)?;
        Some(DictionaryChoice { dictionary, coding })
    }

    /// The content of that hash and length, compressed. `None` where that makes nothing smaller, or others are being made:
    /// the response goes out in another coding.
    #[must_use]
    pub fn start(&self, choice: &DictionaryChoice, content: (&DictionaryHash, u64)) -> Option<DeltaStart> {
        match self.known.delta(&choice.dictionary, content, choice.coding) {
            Delta::Ready(made) => Some(DeltaStart::Ready(made)),
            Delta::None => None,
            Delta::Begun(job) => Some(DeltaStart::Make(job, self.effort)),
        }
    }

    fn is_secure(&self, request: &Request<'_>) -> bool {
        self.insecure || request.client().secure
    }

    fn is_media(&self, fields: &Fields) -> bool {
        let media_type = fields.first(b"content-type").map(media::without_parameters).unwrap_or_default();
        media::is_any_of(&media_type, &self.media) && !media::is_compressed(&media_type)
    }
}

/// Makes the fields say that the content is compressed with a dictionary.
pub fn say_compressed_with(fields: &mut Fields, coding: DictionaryCoding) {
    fields.remove(b"content-encoding");
    fields.push(Name::ContentEncoding, coding.text().as_bytes());
    fields.remove(b"Accept-Ranges");
    weaken_tag(fields);
}

/// Makes the fields say that the response depends on the client's dictionary, and on its codings.
pub fn vary_by_dictionary(fields: &mut Fields) {
    for name in ["Accept-Encoding", "Available-Dictionary"] {
        let varies = |(field, value): (&[u8], &[u8])| {
            field.eq_ignore_ascii_case(b"vary")
                && scan::list(value).any(|one| one == b"*" || one.eq_ignore_ascii_case(name.as_bytes()))
        };
        if !fields.iter().any(varies) {
            fields.push(Name::Vary, name.as_bytes());
        }
    }
}

/// Origin and path of a request.
fn place(request: &Request<'_>) -> (Vec<u8>, Vec<u8>) {
    let scheme: &[u8] = if request.client().secure { b"https://" } else { b"http://" };
    let origin = [scheme, &request.authority().to_ascii_lowercase()].concat();
    (origin, request.encoded_path().map(|path| path.into_owned()).unwrap_or_default())
}

fn named<'r>(request: &Request<'r>, name: &'static [u8]) -> impl Iterator<Item = &'r [u8]> {
    let fields: Vec<_> = request.fields().collect();
    fields.into_iter().filter(|(_, other, _)| other.eq_ignore_ascii_case(name)).map(|(.., value)| value)
}

fn context<'r>(request: &Request<'r>) -> FetchContext<'r> {
    FetchContext {
        site: named(request, b"sec-fetch-site").next(),
        mode: named(request, b"sec-fetch-mode").next(),
        origin: request.field(Name::Origin),
    }
}

/// The coding with a dictionary that the client prefers to all others, or likes equally.
fn preferred(request: &Request<'_>) -> Option<DictionaryCoding> {
    let mut weights = [0; DictionaryCoding::ALL.len()];
    let mut other = 0;
    for (name, weight) in named(request, b"accept-encoding").flat_map(weighted) {
        match DictionaryCoding::ALL
            .iter()
            .position(|coding| name.eq_ignore_ascii_case(coding.text().as_bytes()))
        {
            Some(at) => weights[at] = weight,
            None if Coding::of(name).is_some() => other = other.max(weight),
            None => {}
        }
    }
    let best = *weights.iter().max().expect("there are two");
    let at = weights.iter().position(|weight| *weight == best)?;
    (best > 0 && best >= other).then(|| DictionaryCoding::ALL[at])
}

/// Whether the response is not for one client alone.
fn is_public(fields: &Fields) -> bool {
    let private = [&b"private"[..], b"no-store", b"no-transform"];
    let personal = [&b"cookie"[..], b"authorization"];
    !is_listed(fields, b"cache-control", &private) && !is_listed(fields, b"vary", &personal)
}

/// Whether one of these words is in the lists of a field.
fn is_listed(fields: &Fields, name: &[u8], words: &[&[u8]]) -> bool {
    let values = fields.iter().filter(|(known, _)| known.eq_ignore_ascii_case(name));
    let mut items = values.flat_map(|(_, value)| scan::list(value));
    items.any(|one| words.iter().any(|word| one.eq_ignore_ascii_case(word)))
}

fn directives(fields: &Fields) -> impl Iterator<Item = &[u8]> {
    let values = fields.iter().filter(|(name, _)| name.eq_ignore_ascii_case(b"cache-control"));
    values.flat_map(|(_, value)| scan::list(value))
}

/// For how long clients keep the response, in seconds: `max-age`, and the time for which it serves stale.
fn lifetime_s(fields: &Fields) -> Option<u64> {
    if !is_public(fields) || fields.first(b"set-cookie").is_some() {
        return None;
    }
    let seconds = |name: &[u8]| {
        let value = directives(fields).find_map(|one| {
            let (directive, value) = one.split_at_checked(name.len())?;
            directive.eq_ignore_ascii_case(name).then_some(value)?.strip_prefix(b"=")
        })?;
        std::str::from_utf8(value).ok()?.parse::<u32>().ok().map(u64::from)
    };
    let fresh_s = seconds(b"max-age")?;
    (fresh_s > 0).then(|| fresh_s + seconds(b"stale-while-revalidate").unwrap_or(0))
}

impl fmt::Debug for DictionaryRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DictionaryRule").field("pattern", &self.pattern).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(lines: &[(&str, &str)]) -> Fields {
        let mut fields = Fields::new();
        lines.iter().for_each(|(name, value)| fields.try_push(name.as_bytes(), value.as_bytes()).unwrap());
        fields
    }

    #[test]
    fn clients_keep_what_is_fresh_and_nobodys_own() {
        let lifetime = |lines: &[(&str, &str)]| lifetime_s(&fields(lines));
        assert_eq!(lifetime(&[("Cache-Control", "public, Max-Age=60")]), Some(60));
        let stale = [("Cache-Control", "max-age=60"), ("Cache-Control", "stale-while-revalidate=5")];
        assert_eq!(lifetime(&stale), Some(65));
        for lines in [
            &[][..],
            &[("Cache-Control", "max-age=0")],
            &[("Cache-Control", "max-agex=1, max-age=a")],
            &[("Cache-Control", "private, max-age=60")],
            &[("Cache-Control", "max-age=60"), ("Vary", "Accept, Cookie")],
            &[("Cache-Control", "max-age=60"), ("Set-Cookie", "a=b")],
            &[("Cache-Control", "max-age=60"), ("Cache-Control", "no-transform")],
        ] {
            assert_eq!(lifetime(lines), None, "{lines:?}");
        }
    }

    #[test]
    fn the_fields_say_what_the_content_depends_on() {
        let mut made = fields(&[("ETag", "\"a\""), ("Accept-Ranges", "bytes"), ("Vary", "accept-encoding")]);
        vary_by_dictionary(&mut made);
        vary_by_dictionary(&mut made);
        say_compressed_with(&mut made, DictionaryCoding::Brotli);
        let text = String::from_utf8(made.wire().to_vec()).unwrap();
        assert_eq!(
            text,
            "Vary: accept-encoding\r\nVary: Available-Dictionary\r\nContent-Encoding: dcb\r\nETag: W/\"a\"\r\n"
        );
    }
}
